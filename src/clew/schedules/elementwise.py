"""Elementwise, broadcast and injective kernels: one pass over the output, vectors along its last
axis.
"""

from __future__ import annotations

import contextlib
import math

from clew.loop.affine import Simplifier, contains
from clew.loop.ir import buffer_loads, reads
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules import interleave
from clew.schedules.matmul import spread
from clew.schedules.shape import StageInfo, lane_stride, offset_stride, stage_infos
from clew.schedules.tiles import lanes_of_chains, passes_caches, vector_factor
from clew.support.errors import ScheduleError

NAME = "elementwise"
_TILE = 16
_NEAR_BYTES = 256
# Two vectors of the result are as much as memory moves at once.
_VECTORS_OF_BLOCK = 2
_BLOCKED_RANK = 5
_MOST_CHOICES = 4
_LEAST_LANES = 4


def schedule(schedule: Schedule, infos: dict[str, StageInfo], root: str, target: Target) -> None:
    """Fuses the axes that every access walks as one, vectorizes the last, spreads the rest."""
    info = infos[root]
    write_past_caches(schedule, info, target)
    if not info.axes:
        return
    axes = list(info.axes)
    blocked = _is_blocked_image(info, target)
    least = _BLOCKED_RANK - 1 if blocked else 1  # the image's lines stay apart
    while len(axes) > least and _walks_as_one(stage_infos(schedule)[root], axes[-2], axes[-1]):
        axes[-2:] = [schedule.fuse(axes[-2], axes[-1])]
    if interleave.applies(stage_infos(schedule)[root], axes, target):
        interleave.schedule(schedule, info, axes, target)
        return
    across = _axis_across(stage_infos(schedule)[root], axes, target)
    if across is not None:
        _tile(schedule, axes, *across, info, target)
        return
    choices = [a for a in axes[1:-1] if _chooses(stage_infos(schedule)[root], a)]
    axes = [a for a in axes if a not in choices]
    if choices:
        schedule.reorder(*axes, *choices)
        schedule.partition(axes[0])  # what is whole asks nothing
    blocked = blocked and not choices
    if blocked:
        axes[:2] = [schedule.fuse(axes[0], axes[1])]
    while len(axes) > 2 and not blocked:
        axes[:2] = [schedule.fuse(axes[0], axes[1])]
    extent = schedule.extent(axes[-1])
    lanes = vector_factor(target, info.store.buffer.dtype, extent)
    lanes = _regular_lanes(stage_infos(schedule)[root], axes[-1], lanes)
    if _is_chain_of_floats(info):
        lanes = lanes_of_chains(target, extent, lanes)
    if lanes > 1:
        outer, inner = schedule.split(axes[-1], lanes)
        if choices:
            schedule.reorder(outer, *choices, inner)
        elif len(axes) > 1 and _conditions_use(info, tuple(n.index for n in info.loops[-1:])):
            with contextlib.suppress(ScheduleError):  # a short axis is lanes alone
                schedule.partition(outer)  # vectors that lie on one side ask nothing
        schedule.vectorize(inner)
        axes[-1] = outer
    for name in choices:
        schedule.unroll(name)
    if blocked:
        spread(schedule, [axes[0]], axes[1])
    elif schedule.extent(axes[0]) > 1:
        schedule.parallel(axes[0])


def write_past_caches(schedule: Schedule, info: StageInfo, target: Target) -> None:
    """Has a large output written past the caches, so that it need not be read first."""
    if info.is_output and passes_caches(target, info.store.buffer.size_bytes):
        schedule.nontemporal(info.name)


def _is_chain_of_floats(info: StageInfo) -> bool:
    """Whether each element is a long chain of instructions, all of them on `f32`."""
    dtypes = {load.dtype for _, load in reads(info.store)} | {info.store.buffer.dtype}
    return info.is_costly and dtypes == {"f32"}


def _is_blocked_image(info: StageInfo, target: Target) -> bool:
    """Whether the result is an image in blocks of channels, [n, co, oh, ow, ci]."""
    shape = info.store.buffer.shape
    lanes = target.vector_lanes(info.store.buffer.dtype)
    return len(shape) == len(info.axes) == _BLOCKED_RANK and 1 < shape[-1] <= lanes


def _axis_across(info: StageInfo, axes: list[str], target: Target) -> tuple[str, int] | None:
    """Returns the axis that is contiguous in an operand whose lanes lie apart, as in a transpose,
    and how far apart in bytes (0 where irregular); None where there is none, or it is the next one
    out anyway.
    """
    simplifier = Simplifier()
    indices = {n.name: n.index for n in info.loops}
    extents = {n.name: n.extent for n in info.loops}
    *outer, last = axes
    lanes = vector_factor(target, info.store.buffer.dtype, extents[last])
    for load in buffer_loads(info.store.value):
        step = lane_stride(load, indices[last], lanes, simplifier)
        if step in (0, 1):
            continue
        for axis in outer[:-1] if lanes == extents[last] else outer:
            contiguous = lane_stride(load, indices[axis], _TILE, simplifier) == 1
            if extents[axis] > 1 and contiguous:
                size = load.source.size_bytes // max(1, math.prod(load.source.shape))
                return axis, abs(step or 0) * size
    return None


def _regular_lanes(info: StageInfo, axis: str, most: int) -> int:
    """Returns how many neighbors along a loop lie evenly in all operands: blocks of channels of
    another size are that long; `most` where there is no such number.
    """
    simplifier = Simplifier()
    index = next(n.index for n in info.loops if n.name == axis)
    lanes = most
    loads = [load for _, load in reads(info.store)]
    while lanes > _LEAST_LANES and any(
        lane_stride(x, index, lanes, simplifier) is None for x in loads
    ):
        lanes //= 2
    if any(lane_stride(x, index, lanes, simplifier) is None for x in loads):
        return most
    return lanes


def _tile(
    schedule: Schedule,
    axes: list[str],
    across: str,
    apart_bytes: int,
    info: StageInfo,
    target: Target,
) -> None:
    """Walks tiles, so that cache lines of the operand are used up while they are there: along its
    rows, several at once, where these lie far apart; along the result's, where they are near.
    """
    *outer, last = axes
    outer.remove(across)
    extent = schedule.extent(last)
    lanes = vector_factor(target, info.store.buffer.dtype, extent)
    if apart_bytes <= _NEAR_BYTES:
        schedule.reorder(*outer, across, last)
        column, column_inner = schedule.split(across, _TILE)
        schedule.reorder(column, last, column_inner)
        vector, lane = schedule.split(last, lanes)
        schedule.reorder(vector, column_inner, lane)
        schedule.unroll(column_inner)
        schedule.vectorize(lane)
        spread(schedule, [*outer, column, vector])
        return
    schedule.reorder(last, *outer, across)
    block, inner = schedule.split(last, lanes * _VECTORS_OF_BLOCK)
    schedule.reorder(block, *outer, across, inner)
    column, column_inner = schedule.split(across, _TILE)
    schedule.reorder(column, inner, column_inner)
    vector, lane = schedule.split(inner, lanes)
    schedule.reorder(vector, column_inner, lane)
    schedule.unroll(column_inner)
    schedule.vectorize(lane)
    spread(schedule, [block, *outer, column])


def _chooses(info: StageInfo, axis: str) -> bool:
    """Whether a short axis only chooses between values that share their operands: unrolled, what
    they share is read once.
    """
    loop = next(n for n in info.loops if n.name == axis)
    inputs = [load for _, load in reads(info.store)]
    used = any(contains(i, loop.index) for load in inputs for i in load.indices)
    return loop.extent <= _MOST_CHOICES and not used and _conditions_use(info, (loop.index,))


def _walks_as_one(info: StageInfo, outer: str, inner: str) -> bool:
    """Whether every access moves along two nested loops as along one."""
    simplifier = Simplifier()
    by_name = {n.name: n for n in info.loops}
    a, b = by_name[outer], by_name[inner]
    accesses = [(load.source, load.indices) for _, load in reads(info.store)]
    accesses.append((info.store.buffer, info.store.indices))
    for buffer, indices in accesses:
        over = offset_stride(buffer, indices, a.index, simplifier)
        under = offset_stride(buffer, indices, b.index, simplifier)
        if over is None or under is None or over != under * b.extent:
            return False
    return not _conditions_use(info, (a.index, b.index))


def _conditions_use(info: StageInfo, indices: tuple[object, ...]) -> bool:
    """Whether a value depends on one of the loop variables other than through addresses."""
    wanted = {id(i) for i in indices}
    seen: set[int] = set()
    stack = [info.store.value]
    while stack:
        node = stack.pop()
        if id(node) in wanted:
            return True
        if id(node) not in seen and type(node).__name__ != "Load":
            seen.add(id(node))
            stack.extend(node.children)
    return False
