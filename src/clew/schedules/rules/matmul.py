"""Matrix products in register tiles of rows by vectors. Sums stay in registers for the whole
reduction.

Panels of columns are outermost, so that a panel of the second operand stays in cache while the rows
of the first stream by.
"""

from __future__ import annotations

import math
from typing import Final

from clew.cost.policy.caches import (
    COLUMNS_TO_COPY,
    MOST_COPIED_ROWS,
    SHARE_OF_COPIED_PANELS,
    SHARE_OF_ROWS,
    SHARE_OF_ROWS_BESIDE_COPIES,
    WAYS_OF_L1,
)
from clew.cost.policy.tiles import (
    COPIED_PANELS,
    GROUPS_OF_COPIED_PANELS,
    MOST_ROWS,
    ROWS_TO_COPY_PANELS,
    UNROLLED_STEPS,
    VECTORS_OF_MATMUL,
)
from clew.ir.types import memory_bytes
from clew.loop.affine import Simplifier, contains
from clew.loop.ir import buffer_loads
from clew.loop.primitives.prefetch import CACHE_LINE_BYTES
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.machine.units import PAGE_BYTES as WAY_BYTES
from clew.schedules.demands import PRODUCTS, REDUCES, TAILED
from clew.schedules.library.register_tile import (
    register_tile,
    rows_in_cache,
    split_bands,
    split_tiles,
    spread,
)
from clew.schedules.library.streaming import stream
from clew.schedules.library.tile_sizes import (
    balanced,
    rows_of_tile,
    vectors_of_tile,
)
from clew.schedules.rule import Rule, TailMatch, Work
from clew.schedules.space import Choice, Settings, Space, flag, tile_size
from clew.schedules.stages import (
    StageInfo,
    flatten_axes,
    lane_stride,
    rows_together,
    stage_infos,
    stride,
    sums_rows,
)
from clew.support.dataclass import dataclass
from clew.te.expr import Index, Load

_MOST_VECTORS: Final = max(VECTORS_OF_MATMUL)


@dataclass(frozen=True)
class Product(TailMatch):
    """A product whose columns are contiguous in one operand. `together` is the number of rows that
    share the second operand; 0 if all do. `panel` is the number of columns in a panel of the second
    operand; all columns if it is not packed in panels.
    """

    lanes: int
    columns: int
    together: int
    panel: int

    @property
    def height(self) -> int:
        """The number of rows that share the second operand; 0 for a vector."""
        shape = self.info.store.buffer.typical_shape
        return self.together or (shape[-2] if len(shape) > 1 else 0)


class Matmul(Rule[Product]):
    """Products of matrices whose columns are contiguous."""

    name = "matmul"
    demands = (REDUCES, TAILED, PRODUCTS)

    def match(self, work: Work, target: Target) -> Product | None:
        anchor, root = work.reduction.name, work.root.name
        if not work.reduction.axes:
            return None
        schedule = work.start.copy()
        flatten_axes(schedule, anchor, root)
        info = stage_infos(schedule)[anchor]
        last = next(n for n in info.loops if n.name == info.axes[-1])
        simplifier = Simplifier()
        lanes = min(target.vector_lanes(info.store.buffer.dtype), last.typical)
        steps = [
            lane_stride(x, last.index, lanes, simplifier) for x in buffer_loads(info.store.value)
        ]
        if None in steps or not any(steps) or sums_rows(info):
            return None
        together = rows_together(info, info.axes[-2]) if len(info.axes) > 1 else 0
        panel = min(
            (
                x.source.typical_shape[-1]
                for x, step in zip(buffer_loads(info.store.value), steps, strict=True)
                if step == 1
            ),
            default=last.typical,
        )
        return Product(schedule, target, anchor, root, lanes, last.typical, together, panel)

    def choices(self, match: Product) -> Space:
        target, height = match.target, match.height
        vectors = vectors_of_tile(match.columns, match.lanes)
        if match.panel < match.columns:
            vectors = min(max(1, match.panel // match.lanes), _MOST_VECTORS)
        choices = [
            Choice("vectors", vectors, VECTORS_OF_MATMUL, "vectors of columns in a register tile"),
            Choice("unroll", 0, UNROLLED_STEPS, "unrolled reduction steps; 0: by the tile's size"),
            flag("prefetch", True, "prefetch the next panel while one is in use"),
        ]
        packed = _panels_to_copy(match, vectors)
        if packed:
            about = "panels of the second operand to copy together; 0: none"
            choices.append(Choice("packed", packed, (0, *COPIED_PANELS), about))
        if height and not match.together:
            share = SHARE_OF_ROWS_BESIDE_COPIES if packed else SHARE_OF_ROWS
            band = rows_in_cache(match.info, target, share)
            choices.append(tile_size("band", band, height, "rows that each panel serves", 8))
            height = balanced(height, band)
        if height:
            rows = balanced(height, rows_of_tile(target, vectors))
            choices.append(
                tile_size("rows", rows, min(height, MOST_ROWS), "rows in a register tile")
            )
        if _crowded_rows(match):
            choices.append(flag("copied", True, "copy the rows to lines at other distances"))
        return Space(tuple(choices))

    def schedule(self, match: Product, settings: Settings) -> Schedule:
        schedule, infos = match.begin()
        info, lanes = infos[match.anchor], match.lanes
        if settings.get("copied"):
            _copied(schedule, info, lanes)
        packed = settings.get("packed", 0)
        copy, lines_of_copy = _copied_panels(schedule, match) if packed else ("", "")
        out = match.result(schedule)
        *batch, columns = infos[match.root].axes_in(out)
        row = batch.pop() if batch else ""
        if match.together:
            outer, row = schedule.split(row, match.together)
            batch.append(outer)
        elif row:
            # Rows that ran twice would not let a result take the memory of what is added to it.
            axes = [*batch, row, columns]
            batch, row = split_bands(schedule, axes, settings["band"], "once")
        # Columns go outermost before they are split, so that a peeled last panel is a nest beside
        # the main one.
        rows = [row] if row else []
        schedule.reorder(columns, *batch, *rows)
        panel, column = schedule.split(columns, lanes * settings["vectors"])
        vector, lane = schedule.split(column, lanes, tail="guard")
        if packed:
            # A copy serves several panels, because longer runs of far lines arrive faster.
            group, panel = schedule.split(panel, packed)
            batch.append(group)
        schedule.reorder(*batch, panel, *rows, vector, lane)
        attach = panel
        if row:
            attach, inner = split_tiles(schedule, row, settings["rows"])
            schedule.unroll(inner)
        schedule.compute_at(match.anchor, attach, "register")
        if copy:
            schedule.compute_at(copy, batch[-1])
            wide, run = schedule.split(lines_of_copy, lanes, tail="guard")
            schedule.unroll(wide)
            schedule.vectorize(run)
        reduction = register_tile(schedule, info, lanes, unroll=settings["unroll"])
        schedule.unroll(vector)
        schedule.vectorize(lane)
        if settings["prefetch"] and not copy:
            levels = [attach, *reduction] if row else reduction
            stream(schedule, info, panel, levels, match.target, tiles=attach if row else "")
        if copy:
            spread(schedule, batch)
            return schedule
        banded = schedule.extent(batch[0]) > 1 if batch else False
        spread(schedule, [*batch, panel], attach if row and not banded else "")
        return schedule


def _panels_to_copy(match: Product, vectors: int) -> int:
    """Returns the number of panels of the second operand to copy together, if its lines lie apart
    and a panel takes one cache line of each: every tile would wait for lines that no hardware
    prefetcher expects. Returns 0 otherwise.
    """
    load = _load_of_columns(match)
    if load is None or match.height < ROWS_TO_COPY_PANELS:
        return 0
    room = match.target.l2_bytes * SHARE_OF_COPIED_PANELS
    if math.prod(load.source.typical_shape[-2:]) * memory_bytes(load.dtype) <= room:
        return 0
    wide = vectors * match.lanes
    line_bytes = wide * memory_bytes(load.dtype)
    panels = match.columns // wide
    if line_bytes != CACHE_LINE_BYTES or not match.target.has_half_lines:
        return 0
    depth = load.source.typical_shape[-2]
    batch = math.prod(match.info.store.buffer.typical_shape[:-2])
    usual, *more = COPIED_PANELS
    fitting = max((n for n in more if n * depth * line_bytes <= room), default=usual)
    for_threads = batch * panels // GROUPS_OF_COPIED_PANELS
    return max((n for n in COPIED_PANELS if n <= min(fitting, for_threads)), default=0)


def _load_of_columns(match: Product) -> Load | None:
    """Returns the only load of a matrix of known size whose rows are as long as the result's; None
    if the second operand is another one.
    """
    info = match.info
    if match.together or len(info.reduction_axes) != 1 or match.panel < match.columns:
        return None
    if any(not isinstance(n.size, int) for n in info.loops):
        return None
    by_name = {n.name: n.index for n in info.loops}
    column, depth = by_name[info.axes[-1]], by_name[info.reduction_axes[0]]
    found = [
        load
        for load in buffer_loads(info.store.value)
        if any(contains(index, column) for index in load.indices)
    ]
    if len(found) != 1 or found[0].source.scope != "input":
        return None
    *_, line, place = (None, *found[0].indices)
    return found[0] if line is depth and place is column else None


def _copied_panels(schedule: Schedule, match: Product) -> tuple[str, str]:
    """Copies the second operand. Returns the stage of the copy, and its loop along lines, which do
    not compete for the same places.
    """
    load = _load_of_columns(match)
    assert load is not None
    gap = int(CACHE_LINE_BYTES // memory_bytes(load.dtype))
    copy = schedule.cache_read(match.anchor, load.source.name, gap=gap)
    return copy, stage_infos(schedule)[copy].axes[-1]


def _crowded_rows(match: Product) -> bool:
    """Whether the rows of a register tile compete for the same places of the first-level cache,
    because their distance is a multiple of many places, and many columns read a copy of them.
    """
    info = match.info
    by_name = {n.name: n for n in info.loops}
    if len(info.axes) != 2 or len(info.reduction_axes) != 1 or not match.height:
        return False
    row, depth = by_name[info.axes[0]], by_name[info.reduction_axes[0]]
    load = _load_of_rows(info, row.index)
    if load is None or load.source.scope != "input" or match.columns < COLUMNS_TO_COPY:
        return False
    if load.source.typical_bytes > MOST_COPIED_ROWS * match.target.l2_bytes:
        return False
    simplifier = Simplifier()
    step = stride(load, row.index, simplifier)
    if stride(load, depth.index, simplifier) != 1 or not isinstance(step, int):
        return False
    step_bytes = step * memory_bytes(load.dtype)
    places = WAY_BYTES // math.gcd(step_bytes, WAY_BYTES)
    rows = min(
        match.height, rows_of_tile(match.target, vectors_of_tile(match.columns, match.lanes))
    )
    return rows > WAYS_OF_L1 * places


def _load_of_rows(info: StageInfo, row: Index) -> Load | None:
    """Returns the only load that reads the first operand."""
    found = [
        load
        for load in buffer_loads(info.store.value)
        if any(contains(index, row) for index in load.indices)
    ]
    return found[0] if len(found) == 1 else None


def _copied(schedule: Schedule, info: StageInfo, lanes: int) -> None:
    """Copies the rows to lines that do not compete for the same places."""
    row = next(n.index for n in info.loops if n.name == info.axes[0])
    load = _load_of_rows(info, row)
    assert load is not None
    gap = int(CACHE_LINE_BYTES // memory_bytes(load.dtype))
    copy = schedule.cache_read(info.name, load.source.name, gap=gap)
    *lines, column = stage_infos(schedule)[copy].axes
    _, lane = schedule.split(column, lanes, tail="guard")
    schedule.vectorize(lane)
    spread(schedule, lines)
