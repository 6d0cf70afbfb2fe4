"""Products of narrow matrices with dot product instructions: the register tiles of `matmul`, with
dot groups of 2 or 4 neighbors as reduction steps.

Weights are packed so that a group lies side by side in each lane (`NK32n2k`). Panels of columns are
outermost, so that a panel of weights stays in cache while the rows stream by.
"""

from __future__ import annotations

from clew.cost.policy.caches import SHARE_OF_ROWS
from clew.cost.policy.tiles import MOST_ROWS, ROWS_OF_WIDE_DOT, UNROLLED_STEPS, VECTORS_OF_DOT
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.demands import DOT_UNIT, PACKED, PRODUCTS, REDUCES, TAILED
from clew.schedules.library.products import dot_lanes, dot_tile, product_in, registers_taken
from clew.schedules.library.register_tile import rows_in_cache, split_bands, split_tiles, spread
from clew.schedules.library.streaming import stream
from clew.schedules.library.tile_sizes import (
    balanced,
    rows_of_tile,
    vectors_of_tile,
)
from clew.schedules.rule import Rule, TailMatch, Work
from clew.schedules.space import Choice, Settings, Space, flag, tile_size
from clew.schedules.stages import flatten_axes, stage_infos
from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class Sums(TailMatch):
    """Sums of products of dot groups. The instruction takes `taken` registers besides those of sums
    and operands.
    """

    lanes: int
    group: int
    taken: int

    @property
    def height(self) -> int:
        """The number of rows; 0 for a vector."""
        shape = self.info.store.buffer.typical_shape
        return shape[-2] if len(shape) > 1 else 0

    @property
    def height_is_known(self) -> bool:
        """Whether the number of rows is known at compile time."""
        shape = self.info.store.buffer.shape
        return len(shape) < 2 or isinstance(shape[-2], int)


def _is_enough(target: Target, taken: int) -> bool:
    """Whether tiles of `VECTORS_OF_DOT` vectors have enough rows to be as fast as narrower ones."""
    return rows_of_tile(target, VECTORS_OF_DOT, taken) >= ROWS_OF_WIDE_DOT


class Dot(Rule[Sums]):
    """Sums of products that dot product instructions can compute."""

    name = "dot"
    demands = (REDUCES, TAILED, PRODUCTS, PACKED, DOT_UNIT)

    def match(self, work: Work, target: Target) -> Sums | None:
        anchor, root = work.reduction.name, work.root.name
        schedule = work.start.copy()
        flatten_axes(schedule, anchor, root)  # a tile of rows spans short sequences
        product = product_in(stage_infos(schedule)[anchor])
        assert product is not None
        lanes = dot_lanes(product, target)
        taken = registers_taken(product, target)
        return Sums(schedule, target, anchor, root, lanes, product.group, taken)

    def choices(self, match: Sums) -> Space:
        target, height = match.target, match.height
        columns = match.info.store.buffer.typical_shape[-1]
        vectors = vectors_of_tile(columns, match.lanes)
        # A last tile of free columns is computed whole: the wider it is, the more of it is unused.
        is_known = isinstance(match.info.store.buffer.shape[-1], int)
        many = not match.height_is_known and is_known and _is_enough(target, match.taken)
        if height <= 1 or many:
            vectors = max(vectors, min(VECTORS_OF_DOT, columns // match.lanes))
        choices = [
            Choice("vectors", vectors, (1, 2, 3, 4), "vectors of columns in a tile"),
            Choice("unroll", 0, UNROLLED_STEPS, "unrolled steps; 0: by the tile's size"),
            flag("prefetch", True, "prefetch the next panel while one is in use"),
        ]
        if height:
            band = rows_in_cache(match.info, target, SHARE_OF_ROWS)
            rows = balanced(balanced(height, band), rows_of_tile(target, vectors, match.taken))
            choices += [
                tile_size("band", band, height, "rows that each panel serves", 8),
                tile_size("rows", rows, min(height, MOST_ROWS), "rows in a register tile"),
            ]
        return Space(tuple(choices))

    def schedule(self, match: Sums, settings: Settings) -> Schedule:
        schedule, infos = match.begin()
        info, lanes = infos[match.anchor], match.lanes
        *batch, columns = infos[match.root].axes_in(match.result(schedule))
        row = batch.pop() if batch else ""
        if row:
            batch, row = split_bands(schedule, [*batch, row, columns], settings["band"], "once")
        rows = [row] if row else []
        schedule.reorder(columns, *batch, *rows)  # outermost: a last panel is a nest beside
        panel, column = schedule.split(columns, lanes * settings["vectors"])
        vector, lane = schedule.split(column, lanes, tail="guard")
        schedule.reorder(*batch, panel, *rows, vector, lane)
        attach = panel
        if row:
            attach, inner = split_tiles(schedule, row, settings["rows"])
            schedule.unroll(inner)
        schedule.compute_at(info.name, attach, "register")
        reduction = dot_tile(schedule, info, lanes, match.group, unroll=settings["unroll"])
        schedule.unroll(vector)
        schedule.vectorize(lane)
        if settings["prefetch"]:
            levels = [attach, *reduction] if row else reduction
            stream(schedule, info, panel, levels, match.target, tiles=attach if row else "")
        banded = schedule.extent(batch[0]) > 1 if batch else False
        spread(schedule, [*batch, panel], attach if row and not banded else "")
        return schedule
