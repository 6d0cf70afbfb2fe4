"""Products of operands split into parts (bf16x3), in panels of two tiles of columns."""

from __future__ import annotations

from clew.cost.policy.caches import SHARE_OF_PANEL_ROWS
from clew.cost.policy.tiles import TILES_HIGH, TILES_WIDE
from clew.ir.dims import exact_quotient
from clew.ir.types import bits
from clew.loop.products import product_of
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.rule import TailMatch, Work
from clew.schedules.space import Choice, tile_size
from clew.schedules.stages import StageInfo, flatten_axes, stage_infos
from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class PartsMatch(TailMatch):
    """Products of parts whose rows and depth fill tiles. `tile` is rows, columns and depth."""

    tile: tuple[int, int, int]

    @property
    def rows(self) -> int:
        """The number of rows, at typical sizes."""
        return self.info.store.buffer.typical_shape[-2]


def match_parts(work: Work, target: Target) -> PartsMatch | None:
    """Returns products of parts; None if their rows or their depth do not fill whole tiles."""
    anchor, root = work.reduction.name, work.root.name
    schedule = work.start.copy()
    flatten_axes(schedule, anchor, root)
    info = stage_infos(schedule)[anchor]
    product = product_of(info.store)
    assert product is not None
    tile = target.tile_shape(product.a.dtype, product.b.dtype)
    assert tile is not None
    height, _, deep = tile
    extents = stage_infos(schedule)[root].store.buffer.shape
    several = any(extent != 1 for extent in extents[:-2])
    if several and exact_quotient(extents[-2], height) is None:
        return None
    if not schedule.is_multiple(info.reduction_axes[-1], deep):
        return None
    return PartsMatch(schedule, target, anchor, root, tile)


def band_size(match: PartsMatch) -> Choice:
    """Returns the choice of the number of rows in a band."""
    unit, band = TILES_HIGH * match.tile[0], _rows_of_band(match)
    most = max(band, match.rows // unit * unit)
    return tile_size("band", band, most, "rows that each panel of weights serves", unit)


def _rows_of_band(match: PartsMatch) -> int:
    """Returns the number of data rows that stay in the second-level cache while panels of weights
    stream by, a multiple of two tiles. If there are several bands, their number is even, so that
    threads get equal shares.
    """
    info, unit = match.info, TILES_HIGH * match.tile[0]
    product = product_of(info.store)
    assert product is not None
    extents = {n.name: n.typical for n in info.loops}
    parts, block = product.a.source.typical_shape[2:4]  # the same at all sizes
    row_bytes: int = parts * extents[info.reduction_axes[-1]] * bits(product.a.dtype) // 8
    rows = int(match.target.l2_bytes * SHARE_OF_PANEL_ROWS) // row_bytes
    whole = extents[info.axes[-2]]
    if rows < whole:
        unit_rows = TILES_HIGH * block
        bands = -(-whole // rows) if rows else whole
        even = -(-whole // (bands + bands % 2) // unit_rows) * unit_rows
        rows = min(rows, even)
    return max(rows // unit, 1) * unit


def splitting(work: Work, source: object, role: str) -> StageInfo | None:
    """Returns the stage with this role that computes an operand, if only the products read it."""
    found = [i for i in work.infos.values() if i.store.buffer is source and i.role == role]
    return found[0] if found and found[0].readers == [work.reduction.name] else None


def has_static_rows(match: PartsMatch) -> bool:
    """Whether the number of rows is known."""
    return match.start.is_static(stage_infos(match.start)[match.anchor].axes[-2])


@dataclass(frozen=True)
class Panels:
    """The loops of columns in panels of two tiles; each panel covers all rows, or a band of them.

    `outer` holds the loops down to the loop over panels. `row` is the loop over rows, and `inside`
    the loop over the columns of a panel.
    """

    outer: list[str]
    banded: bool
    row: str
    inside: str


def write_vectors(schedule: Schedule, inside: str, target: Target) -> None:
    """Vectorizes `inside`, the columns of a panel, in the stage that writes them."""
    vector, lane = schedule.split(inside, target.vector_lanes("f32"), tail="guard")
    schedule.unroll(vector)
    schedule.vectorize(lane)


def multiply_tiles(schedule: Schedule, info: StageInfo, tile: tuple[int, int, int]) -> str:
    """Computes the sums of two by two tiles for the whole depth, all products of parts at each
    step. Returns the loop over the steps.
    """
    height, _, deep = tile
    terms, depth = info.reduction_axes
    *others, m, n = info.axes
    schedule.reorder(depth, terms, *others, m, n)
    block, line = schedule.split(m, height)
    steps, inner = schedule.split(depth, deep)
    schedule.reorder(steps, terms, *others, block, line, n, inner)
    schedule.unroll(terms)
    schedule.tensorize(info.name, line, n, inner)
    return steps


def arrange_panels(schedule: Schedule, match: PartsMatch, root: StageInfo, band: int) -> Panels:
    """Splits the stage that holds the sums into panels, and its rows into bands of `band`."""
    *batch, row, across = root.axes_in(match.result(schedule))
    bands: list[str] = []
    if band < schedule.extent(row):
        schedule.reorder(row, *batch, across)  # outermost: the last band may be shorter
        outer, row = schedule.split(row, band)
        bands = [outer]
    schedule.reorder(across, *batch, row)
    panel, inside = schedule.split(across, TILES_WIDE * match.tile[1])
    schedule.reorder(*batch, panel, row, inside)
    return Panels([*bands, *batch, panel], bool(bands), row, inside)
