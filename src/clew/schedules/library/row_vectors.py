"""Vectors along rows, for partial results of reductions and for elements."""

from __future__ import annotations

from collections.abc import Sequence

from clew.cost.policy.sums import MOST_COLUMNS_IN_REGISTERS, PARTIAL_VECTORS
from clew.loop.affine import Simplifier
from clew.loop.primitives.loops import MOST_LANES
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.library.tile_sizes import lanes_of_chains, vector_factor
from clew.schedules.stages import StageInfo, lane_stride, largest_load, walks_as_one
from clew.support.errors import ScheduleError
from clew.te.expr import Index, Load


def reduce_in_vectors(
    schedule: Schedule, info: StageInfo, target: Target, partial: int = PARTIAL_VECTORS
) -> None:
    """Vectorizes a reduction along its innermost reduction axis, with partial results in the lanes.
    A long reduction keeps `partial` vectors of partial results. They are one long vector if each
    element takes a long chain of instructions, so that the instructions alternate.
    """
    lanes = target.vector_lanes(info.lane_dtype)
    if info.is_chain_of_floats:
        lanes, partial = min(lanes * partial, MOST_LANES), 1
    long = [name for name in info.reduction_axes if schedule.extent(name) > 1]
    load = largest_load(info)
    if load is None or not long:
        return
    index = next(n.index for n in info.loops if n.name == long[-1])
    deepest = joined(schedule, info, info.reduction_axes)
    extent = schedule.extent(deepest)
    width = _regular_lanes(load, index, min(lanes, extent))
    if width < 2:
        return
    if partial > 1 and extent >= width * partial:
        _, block = _split_free(schedule, deepest, width * partial, width)
        parts, lane = schedule.split(block, width, tail="guard")
        schedule.rfactor(info.name, parts, lane)
        schedule.unroll(parts)
        schedule.unroll(f"{info.name}.rf0")
        schedule.vectorize(lane)
        schedule.vectorize(f"{info.name}.rf1")
        return
    vector = min(width, target.vector_lanes(info.lane_dtype))
    _, lane = _split_free(schedule, deepest, width, vector)
    schedule.rfactor(info.name, lane)
    schedule.vectorize(lane)
    schedule.vectorize(f"{info.name}.rf0")


def _split_free(schedule: Schedule, loop: str, width: int, vector: int) -> tuple[str, str]:
    """Splits a loop into groups of vectors. The remainder of a free size is single vectors, as its
    group may be mostly empty.
    """
    several = width > vector and not schedule.is_static(loop)
    return schedule.split(loop, width, rest=vector if several else 0)


def joined(
    schedule: Schedule,
    info: StageInfo,
    axes: Sequence[str],
    names: Sequence[str] = (),
) -> str:
    """Fuses the last of a stage's axes where all accesses walk them as one, such as the lines of an
    image. Only the joined axis then has a remainder, and not each line. Returns the name of the
    last axis. `names` are those of the loops to fuse, if not the stage's own.
    """
    pairs = list(zip(axes, names or axes, strict=True))
    (inner, last), outer = pairs[-1], pairs[:-1]
    for axis, name in reversed(outer):
        if not walks_as_one(info, axis, inner):
            break
        try:
            last, inner = schedule.fuse(name, last), axis
        except ScheduleError:  # other loops may be between them
            break
    return last


def _regular_lanes(load: Load, index: Index, most: int) -> int:
    """Returns the number of neighbors along a loop that are evenly spaced in memory, at most
    `most`; in a blocked layout, the length of a block.
    """
    simplifier = Simplifier()
    while most > 1 and lane_stride(load, index, most, simplifier) is None:
        most //= 2
    return most


def sums_columns(info: StageInfo, target: Target) -> bool:
    """Whether a reduction is better vectorized along the last axis of its results: neighbors in
    memory belong to different results, which fit a few vectors. Images in blocks of channels are an
    example.
    """
    load = largest_load(info)
    if load is None or not info.axes or not info.reduction_axes:
        return False
    loops = {n.name: n for n in info.loops}
    last, deepest = loops[info.axes[-1]], loops[info.reduction_axes[-1]]
    lanes = target.vector_lanes(info.lane_dtype)
    if (
        not isinstance(last.size, int)
        or last.size % lanes
        or last.size > MOST_COLUMNS_IN_REGISTERS * lanes
    ):
        return False
    simplifier = Simplifier()
    steps = (lane_stride(load, loop.index, lanes, simplifier) for loop in (last, deepest))
    return tuple(step == 1 for step in steps) == (True, False)


def down_columns(schedule: Schedule, info: StageInfo, lanes: int) -> None:
    """Vectorizes a stage along the last axis of its results and unrolls the vectors. The loops of a
    reduction go outside, so that the sums stay in registers.
    """
    if info.is_reduction:
        schedule.reorder(*info.reduction_axes, *info.axes)
    split_columns(schedule, info.axes[-1], lanes)


def split_columns(schedule: Schedule, column: str, lanes: int) -> None:
    """Vectorizes a loop over columns that are in registers, and unrolls its vectors."""
    vector, lane = schedule.split(column, min(lanes, schedule.extent(column)), tail="guard")
    schedule.unroll(vector)
    schedule.vectorize(lane)


def vectorize_last(schedule: Schedule, last: list[str], target: Target, info: StageInfo) -> None:
    """Vectorizes a stage's last loop; several vectors at a time, if each is a long chain of
    instructions.
    """
    if not last or schedule.extent(last[0]) < 2:
        return
    extent = schedule.extent(last[0])
    lanes = vector_factor(target, info.store.buffer.dtype, extent)
    vector = lanes
    if info.is_chain_of_floats:
        # The remainder of a free size is single vectors, so groups cost nothing if it is short.
        long = extent if schedule.is_static(last[0]) else 2 * MOST_LANES
        lanes = lanes_of_chains(target, long, lanes, whole=False)
    _, lane = _split_free(schedule, last[0], lanes, vector)
    schedule.vectorize(lane)
