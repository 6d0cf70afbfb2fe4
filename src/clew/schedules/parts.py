"""Products of numbers in parts (`split_parts`) on a matrix unit: as `tiles`, on data that lies in
tiles already, all products of parts at once.

Two by two tiles of sums take 24 products for each 12 tiles that are loaded, so what is loaded comes
from the second-level cache without holding the unit up.
"""

from __future__ import annotations

from dataclasses import dataclass

from clew.ir.types import bits
from clew.loop.products import product_of
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.matmul import spread
from clew.schedules.shape import StageInfo, flatten_axes, stage_infos
from clew.schedules.streaming import stream

NAME = "parts"
# Tiles of sums at once.
HIGH = 2
WIDE = 2
_SHARE_OF_ROWS = 0.5
DATA_RANK = 5  # blocks of rows, blocks of depth, part, row, depth


def applies(infos: dict[str, StageInfo], anchor: str, target: Target) -> bool:
    """Whether a stage sums products of parts in tiles, and the target has a unit for them."""
    info = infos[anchor]
    product = product_of(info.store)
    if product is None or len(info.axes) < 2 or len(info.reduction_axes) != 2:
        return False
    shape = target.tile_shape(product.a.dtype, product.b.dtype)
    data = product.a.source.shape
    return shape is not None and len(data) == DATA_RANK and data[-2:] == (shape[0], shape[2])


def schedule(
    schedule: Schedule, infos: dict[str, StageInfo], root: str, anchor: str, target: Target
) -> bool:
    """Schedules an anchor and its tail `root` (itself, if there is none); False if the rule does
    not fit.
    """
    panels = panels_of(schedule, infos, root, anchor, target)
    if panels is None:
        return False
    info, (height, _, deep), inside = panels.info, panels.tile, panels.inside
    blocks, line = schedule.split(panels.row, height)
    pairs, pair = schedule.split(blocks, HIGH)
    schedule.reorder(pairs, pair, line, inside)
    schedule.compute_at(anchor, pairs, "scratch")
    panels.write_vectors(schedule, target)
    terms, depth = info.reduction_axes
    *others, m, n = info.axes
    schedule.reorder(depth, terms, *others, m, n)
    m_block, m_line = schedule.split(m, height)
    steps, inner = schedule.split(depth, deep)
    schedule.reorder(steps, terms, *others, m_block, m_line, n, inner)
    schedule.unroll(terms)
    schedule.tensorize(anchor, m_line, n, inner)
    stream(schedule, info, panels.outer[-1], [pairs, steps], target)
    spread(schedule, panels.outer, "" if panels.banded else pairs)
    return True


@dataclass(frozen=True)
class Panels:
    """Columns in panels of two tiles, all rows or a band of them for each.

    `outer` are the loops down to that over panels, `row` that over rows, `inside` that over a
    panel's columns; a `tile` has rows, columns and a depth.
    """

    info: StageInfo
    tile: tuple[int, int, int]
    outer: list[str]
    banded: bool
    row: str
    inside: str

    def write_vectors(self, schedule: Schedule, target: Target) -> None:
        """Makes a panel's columns vectors of the stage that writes them."""
        vector, lane = schedule.split(self.inside, target.vector_lanes("f32"), tail="guard")
        schedule.unroll(vector)
        schedule.vectorize(lane)


def panels_of(
    schedule: Schedule, infos: dict[str, StageInfo], root: str, anchor: str, target: Target
) -> Panels | None:
    """Arranges what holds the sums of an anchor in panels; None, and nothing done, where its rows
    or its depth fill no tiles.
    """
    if infos[root].store.buffer.shape != infos[anchor].store.buffer.shape:
        return None
    flattened = flatten_axes(schedule, anchor, root)
    infos = stage_infos(schedule)
    info = infos[anchor]
    product = product_of(info.store)
    assert product is not None
    tile = target.tile_shape(product.a.dtype, product.b.dtype)
    assert tile is not None
    height, width, deep = tile
    extents = infos[root].store.buffer.shape
    several = any(e > 1 for e in extents[:-2])
    if (several and extents[-2] % height) or schedule.extent(info.reduction_axes[-1]) % deep:
        for _ in range(flattened):
            schedule.undo()
        return None
    out = schedule.cache_write(anchor) if root == anchor else root
    *batch, row, across = infos[root].axes_in(out)
    rows = _rows_in_cache(schedule, info, target) // (HIGH * height) * HIGH * height
    bands: list[str] = []
    if rows < schedule.extent(row):
        schedule.reorder(row, *batch, across)  # outermost: the last band may be lower
        band, row = schedule.split(row, max(rows, HIGH * height))
        bands = [band]
    schedule.reorder(across, *batch, row)
    panel, inside = schedule.split(across, WIDE * width)
    schedule.reorder(*batch, panel, row, inside)
    return Panels(info, tile, [*bands, *batch, panel], bool(bands), row, inside)


def _rows_in_cache(schedule: Schedule, info: StageInfo, target: Target) -> int:
    """Returns how many rows of the data stay in the second-level cache while panels of weights pass
    by. Several bands are an even number, for threads to share.
    """
    product = product_of(info.store)
    assert product is not None
    parts = product.a.source.shape[2]
    row_bytes: int = parts * schedule.extent(info.reduction_axes[-1]) * bits(product.a.dtype) // 8
    rows = int(target.l2_bytes * _SHARE_OF_ROWS) // row_bytes
    whole = schedule.extent(info.axes[-2])
    if rows >= whole:
        return rows
    block = HIGH * product.a.source.shape[3]
    bands = -(-whole // rows)
    even: int = -(-whole // (bands + bands % 2) // block) * block
    return min(rows, even)
