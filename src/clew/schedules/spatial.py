"""Reductions whose output's last axis is contiguous in the input (pooling, sums over leading axes):
lanes are that axis, a few neighbors along the axis before it share a register tile.
"""

from __future__ import annotations

import contextlib

from clew.loop.affine import Simplifier
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.matmul import register_tile, spread
from clew.schedules.shape import StageInfo, flatten_axes, largest_load, stage_infos, stride
from clew.support.errors import ScheduleError

NAME = "spatial"
_NEIGHBORS = 4
_LEAST_PANELS = 4  # for threads
_MOST_UNROLLED = 64


def applies(infos: dict[str, StageInfo], reduction: str, root: str, target: Target) -> bool:
    """Whether lanes along the last output axis read side by side, or at least no reduction axis
    does.
    """
    info = infos[reduction]
    if infos[root].store.buffer.shape != info.store.buffer.shape or not info.axes:
        return False
    load = largest_load(info)
    if load is None:
        return False
    simplifier = Simplifier()
    steps = {n.name: stride(load, n.index, simplifier) for n in info.loops}
    last = next(n for n in info.loops if n.name == info.axes[-1])
    if last.extent < 2 or steps[last.name] is None:
        return False
    return steps[last.name] == 1 or not any(
        steps[r] == 1 and schedule_extent(info, r) >= target.vector_lanes(info.store.buffer.dtype)
        for r in info.reduction_axes
    )


def schedule_extent(info: StageInfo, name: str) -> int:
    """Returns the extent of one of a stage's loops."""
    return next(n.extent for n in info.loops if n.name == name)


def schedule(
    schedule: Schedule, infos: dict[str, StageInfo], root: str, reduction: str, target: Target
) -> None:
    """Schedules a reduction and its tail `root` (itself, if there is none)."""
    flatten_axes(schedule, reduction, root)
    infos = stage_infos(schedule)
    info = infos[reduction]
    out = schedule.cache_write(reduction) if root == reduction else root
    axes = infos[root].axes_in(out)
    *outer, column = axes
    lanes = min(target.vector_lanes(info.store.buffer.dtype), schedule.extent(column))
    row = outer.pop() if outer else ""
    schedule.reorder(column, *outer, *([row] if row else []))
    vectors = 1
    if not row:  # a step reads a run of memory
        columns = -(-schedule.extent(column) // lanes)
        vectors = max(1, min(target.vector_registers // 2, columns // _LEAST_PANELS))
    panel, lane = schedule.split(column, lanes * vectors)
    attach = panel
    if row:
        schedule.reorder(*outer, panel, row, lane)
        attach, inner = schedule.split(row, min(_NEIGHBORS, schedule.extent(row)))
        schedule.unroll(inner)
    schedule.compute_at(reduction, attach, "register")
    taps = register_tile(schedule, info, lanes)
    with contextlib.suppress(ScheduleError):  # windows need not lie inside
        schedule.skip_padding(reduction, lanes=info.axes[-1])
        schedule.partition(attach)
        if schedule.extent(taps[-1]) * _NEIGHBORS <= _MOST_UNROLLED:
            schedule.unroll(taps[-1])  # neighbors read the same elements
    if vectors > 1:
        vector, lane = schedule.split(lane, lanes, tail="guard")
        schedule.unroll(vector)
    schedule.vectorize(lane)
    spread(schedule, [*outer, panel])
