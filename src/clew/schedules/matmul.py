"""Matrix products: a register tile of rows by vectors, the whole reduction in registers.

Panels of columns are outermost, so that a panel of the second operand stays in cache while the rows
of the first stream by.
"""

from __future__ import annotations

import contextlib
import math

from clew.loop.affine import Simplifier
from clew.loop.ir import buffer_loads
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.shape import StageInfo, flatten_axes, lane_stride, stage_infos
from clew.schedules.streaming import stream
from clew.schedules.tiles import (
    balanced,
    reduction_unroll,
    rows_of_tile,
    vectors_of_tile,
)
from clew.support.errors import ScheduleError
from clew.te.expr import Binary, Imm
from clew.te.walk import nodes

NAME = "matmul"
# The panel at work and the one on its way take the rest of the second-level cache.
_SHARE_OF_ROWS = 0.4
# Fewer rows would have a panel pass by for too little work.
_LEAST_ROWS = 56


def schedule(
    schedule: Schedule, infos: dict[str, StageInfo], root: str, anchor: str, target: Target
) -> bool:
    """Schedules an anchor and its tail `root` (itself, if there is none); False if the rule does
    not fit.
    """
    if not infos[anchor].axes or infos[root].store.buffer.shape != infos[anchor].store.buffer.shape:
        return False
    flattened = flatten_axes(schedule, anchor, root)
    infos = stage_infos(schedule)
    info = infos[anchor]
    last = next(n for n in info.loops if n.name == info.axes[-1])
    simplifier = Simplifier()
    lanes = min(target.vector_lanes(info.store.buffer.dtype), last.extent)
    loads = list(buffer_loads(info.store.value))
    steps = [lane_stride(x, last.index, lanes, simplifier) for x in loads]
    if None in steps or not any(steps):
        for _ in range(flattened):
            schedule.undo()
        return False
    out = schedule.cache_write(anchor) if root == anchor else root
    axes = infos[root].axes_in(out)
    *batch, columns = axes
    row = batch.pop() if batch else ""
    vectors = vectors_of_tile(last.extent, lanes)
    together = _rows_together(info) if row else 0
    if together:
        outer, row = schedule.split(row, together)
        batch.append(outer)
    elif row:
        batch, row = bands(schedule, info, [*batch, row, columns], target)
    # Columns go outermost before they are split: a peeled last panel is then a nest beside the main
    # one.
    schedule.reorder(columns, *batch, *([row] if row else []))
    panel, column = schedule.split(columns, lanes * vectors)
    vector, lane = schedule.split(column, lanes, tail="guard")
    schedule.reorder(*batch, panel, *([row] if row else []), vector, lane)
    attach = panel
    if row:
        size = balanced(schedule.extent(row), rows_of_tile(target, vectors))
        attach, inner = schedule.split(row, size, tail="balance")
        schedule.unroll(inner)
    schedule.compute_at(anchor, attach, "register")
    reduction = register_tile(schedule, info, lanes)
    schedule.unroll(vector)
    schedule.vectorize(lane)
    stream(schedule, info, panel, [attach, *reduction] if row else reduction, target)
    banded = schedule.extent(batch[0]) > 1 if batch else False
    spread(schedule, [*batch, panel], attach if row and not banded else "")
    return True


def _rows_together(info: StageInfo) -> int:
    """Returns how many rows, as in a group of a convolution, share the second operand; 0: all."""
    row = next(n.index for n in info.loops if n.name == info.axes[-2])
    assert isinstance(row.extent, int)
    for load in buffer_loads(info.store.value):
        for index in load.indices:
            for part in nodes(index):
                if not isinstance(part, Binary) or part.op != "floordiv" or part.a is not row:
                    continue
                if isinstance(part.b, Imm) and row.extent % part.b.value == 0:
                    return int(part.b.value)
    return 0


def bands(
    schedule: Schedule,
    info: StageInfo,
    axes: list[str],
    target: Target,
    share: float = _SHARE_OF_ROWS,
) -> tuple[list[str], str]:
    """Splits rows (the last axis but one) into bands whose part of the first operand stays in
    `share` of the second-level cache. Returns the loops outside of a band, outermost first, and
    that over its rows.
    """
    *batch, row, column = axes
    rows = _rows_in_cache(schedule, info, row, target, share)
    if rows >= schedule.extent(row):
        return batch, row
    schedule.reorder(row, *batch, column)  # outermost: bands may differ in height
    band, row = schedule.split(row, rows, tail="balance")
    return [band, *batch], row


def _rows_in_cache(
    schedule: Schedule, info: StageInfo, row: str, target: Target, share: float
) -> int:
    """Returns how many rows of the first operand stay in the second-level cache while panels of the
    second pass by.
    """
    depth = math.prod(schedule.extent(name) for name in info.reduction_axes)
    row_bytes = depth * max(
        x.source.size_bytes // math.prod(x.source.shape) for x in buffer_loads(info.store.value)
    )
    fitting = int(target.l2_bytes * share) // max(row_bytes, 1)
    extent = schedule.extent(row)
    return balanced(extent, max(fitting, _LEAST_ROWS)) if fitting < extent else extent


def register_tile(
    schedule: Schedule, info: StageInfo, lanes: int, blocks: str | None = None
) -> list[str]:
    """Orders an anchor that was moved into registers: reduction outside, its tile unrolled inside.
    Returns the reduction's loops, outermost first.

    `blocks` is the axis whose steps are further vectors of the same pixel: it goes innermost, so
    that a broadcast is used up at once.
    """
    *others, column = info.axes
    if blocks is not None:
        others = [*(a for a in others if a != blocks), blocks]
    # Peeling repeats what is inside: the order is set before any loop is split.
    schedule.reorder(*info.reduction_axes, *others, column)
    vector, lane = schedule.split(column, lanes, tail="guard")
    deepest = info.reduction_axes[-1]
    accumulators = math.prod(schedule.extent(name) for name in (*others, vector))
    steps = reduction_unroll(accumulators)
    reduction = list(info.reduction_axes)
    if 1 < steps < schedule.extent(deepest):
        reduction[-1], inner = schedule.split(deepest, steps)
        schedule.unroll(inner)
    for name in (*others, vector):
        schedule.unroll(name)
    schedule.vectorize(lane)
    return reduction


def spread(schedule: Schedule, outer: list[str], lines: str = "") -> None:
    """Makes the outermost loops, as far as they nest directly, one parallel loop.

    `lines`, if there are any, are the loop inside of them that goes down the image, or the rows:
    threads may share these instead, so that each reads what it has written itself.
    """
    name = outer[0]
    for following in outer[1:]:
        try:
            name = schedule.fuse(name, following)
        except ScheduleError:
            break
    if lines:
        schedule.parallel(name)
        with contextlib.suppress(ScheduleError):  # it may not be all there is inside
            schedule.parallel(lines)
    elif schedule.extent(name) > 1:
        schedule.parallel(name)
