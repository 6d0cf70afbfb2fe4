"""Products of narrow operands with dot product instructions: the register tiles of matrix products
and convolutions, where a reduction step is a dot group of 2 or 4 neighbors.

Weights are packed so that a group lies side by side in each lane (`NK32n2k`, `OHWI32o2i`).
"""

from __future__ import annotations

from dataclasses import dataclass

from clew.loop.products import product_of
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.demands import DOT_UNIT, PACKED, PRODUCTS, REDUCES, TAILED
from clew.schedules.library.images import Image, blocked_image
from clew.schedules.library.products import dot_lanes, dot_tile
from clew.schedules.library.register_tile import split_tiles, spread
from clew.schedules.library.tile_sizes import MOST_ROWS, UNROLLED, balanced, rows_of_tile
from clew.schedules.rule import Rule, TailMatch, Work
from clew.schedules.space import Choice, Settings, Space, tile_size
from clew.schedules.stages import StageInfo


@dataclass(frozen=True)
class Sums(TailMatch):
    """Sums of products of dot groups. `image` is set if a block of channels is at most as wide as a
    register tile.
    """

    lanes: int
    group: int
    image: Image | None


class Dot(Rule[Sums]):
    """Sums of products that dot product instructions can compute."""

    name = "dot"
    demands = (REDUCES, TAILED, PRODUCTS, PACKED, DOT_UNIT)

    def match(self, work: Work, target: Target) -> Sums | None:
        info = work.reduction
        product = product_of(info.store)
        assert product is not None
        lanes, image = dot_lanes(product, target), blocked_image(info)
        if image is not None and image.lanes > 2 * lanes:
            image = None
        return Sums(work.start, target, info.name, work.root.name, lanes, product.group, image)

    def choices(self, match: Sums) -> Space:
        shape, lanes, target = match.info.store.buffer.typical_shape, match.lanes, match.target
        unroll = Choice("unroll", 0, UNROLLED, "unrolled steps; 0: by the tile's size")
        if match.image is not None:
            most = rows_of_tile(target, -(-match.image.lanes // lanes))
            columns = balanced(match.image.width, most)
            lines = balanced(match.image.height, max(1, most // columns))
            return Space(
                (
                    tile_size("columns", columns, min(match.image.width, MOST_ROWS),
                         "pixels of a line in a register tile"),
                    tile_size("lines", lines, min(match.image.height, MOST_ROWS),
                         "lines in a register tile"),
                    unroll,
                )
            )  # fmt: skip
        vectors = 2 if shape[-1] > lanes else 1
        choices = [Choice("vectors", vectors, (1, 2, 3, 4), "vectors of columns in a tile"), unroll]
        if len(shape) > 1:
            rows = balanced(shape[-2], rows_of_tile(target, vectors))
            most = min(shape[-2], MOST_ROWS)
            choices.append(tile_size("rows", rows, most, "rows in a register tile"))
        return Space(tuple(choices))

    def schedule(self, match: Sums, settings: Settings) -> Schedule:
        schedule, infos = match.begin()
        info = infos[match.anchor]
        axes = infos[match.root].axes_in(match.result(schedule))
        arrange = _rows if match.image is None else _image
        outer = arrange(schedule, info, axes, match.lanes, settings)
        dot_tile(schedule, info, match.lanes, match.group, settings["unroll"])
        spread(schedule, outer)
        return schedule


def _rows(
    schedule: Schedule, info: StageInfo, axes: list[str], lanes: int, settings: Settings
) -> list[str]:
    """Arranges tiles of rows by vectors of columns, with panels of columns outside."""
    *batch, column = axes
    row = batch.pop() if batch else ""
    schedule.reorder(column, *axes[:-1])
    panel, inner = schedule.split(column, lanes * settings["vectors"])
    vector, lane = schedule.split(inner, lanes, tail="guard")
    schedule.reorder(*batch, panel, *([row] if row else []), vector, lane)
    attach = panel
    if row:
        attach, line = split_tiles(schedule, row, settings["rows"])
        schedule.unroll(line)
    schedule.compute_at(info.name, attach, "register")
    schedule.unroll(vector)
    schedule.vectorize(lane)
    return [*batch, panel]


def _image(
    schedule: Schedule, info: StageInfo, axes: list[str], lanes: int, settings: Settings
) -> list[str]:
    """Arranges tiles of pixels by one block of channels."""
    n, co, oh, ow, ci = axes
    oh_outer, oh_inner = split_tiles(schedule, oh, settings["lines"])
    schedule.reorder(oh_outer, ow, oh_inner, ci)
    ow_outer, ow_inner = split_tiles(schedule, ow, settings["columns"])
    schedule.reorder(ow_outer, oh_inner, ow_inner, ci)
    schedule.compute_at(info.name, ow_outer, "register")
    vector, lane = schedule.split(ci, lanes, tail="guard")
    for name in (oh_inner, ow_inner, vector):
        schedule.unroll(name)
    schedule.vectorize(lane)
    return [n, co, oh_outer]
