"""Row kernels (softmax, norms, reductions over trailing axes): every stage of one row, then the
next row.

The row is the leading axes that all stages share. Reductions run along the row in vectors of
partial results, values that several stages need stay in a scratch row.
"""

from __future__ import annotations

from clew.loop.affine import Simplifier
from clew.loop.ir import buffer_loads
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.elementwise import write_past_caches
from clew.schedules.matmul import spread
from clew.schedules.shape import StageInfo, lane_stride, largest_load
from clew.te.expr import Index, Load

NAME = "rows"
_PARTIAL_VECTORS = 4


def schedule(
    schedule: Schedule,
    infos: dict[str, StageInfo],
    root: str,
    members: list[str],
    target: Target,
) -> None:
    """Schedules a root and the stages computed in its rows."""
    info = infos[root]
    out = schedule.cache_write(root) if info.is_reduction else root
    members = [m for m in members if m != root or info.is_reduction]
    axes = info.axes_in(out)
    shared = _row_rank(infos, members, info)
    row, inside = axes[:shared], axes[shared:]
    attach = row[-1] if row else ""
    for member in reversed(members):
        if not attach:
            continue
        whole = 1
        for extent in infos[member].store.buffer.shape[shared:]:
            whole *= extent
        schedule.compute_at(member, attach, "register" if whole == 1 else "scratch")
    for member in members:
        if infos[member].is_reduction:
            reduce_in_vectors(schedule, infos[member], target)
        else:
            vectorize_last(schedule, infos[member].axes[-1:], target, infos[member])
    vectorize_last(schedule, inside[-1:], target, info)
    if not info.is_reduction:
        write_past_caches(schedule, info, target)
    if row:
        spread(schedule, row)


def _row_rank(infos: dict[str, StageInfo], members: list[str], root: StageInfo) -> int:
    """Returns how many leading axes all stages walk alike, reading only their own row of each
    other.
    """
    names = set(members)
    rank = len(root.axes) if root.is_reduction else max(len(root.axes) - 1, 0)
    for member in members:
        rank = min(rank, len(infos[member].axes))
    stages = [infos[m] for m in members] + [root]
    buffers = {id(infos[m].store.buffer) for m in names}
    for info in stages:
        for position in range(rank):
            same_extent = info.store.buffer.shape[position] == root.store.buffer.shape[position]
            if not same_extent or not _reads_own(info, position, buffers):
                rank = min(rank, position)
    return rank


def _reads_own(info: StageInfo, position: int, buffers: set[int]) -> bool:
    own = info.store.indices[position]
    return info.store.buffer.shape[position] == 1 or all(
        load.indices[position] is own
        for load in buffer_loads(info.store.value)
        if id(load.source) in buffers
    )


def reduce_in_vectors(schedule: Schedule, info: StageInfo, target: Target) -> None:
    """Reduces in vectors along the contiguous axis: a reduction axis, or the stage's own last
    one.
    """
    lanes = target.vector_lanes(info.store.buffer.dtype)
    deepest = info.reduction_axes[-1]
    load = largest_load(info)
    if load is None or schedule.extent(deepest) < 2:
        return
    index = next(n.index for n in info.loops if n.name == deepest)
    extent = schedule.extent(deepest)
    width = _regular_lanes(load, index, min(lanes, extent))
    if width < 2:
        return
    if extent >= width * _PARTIAL_VECTORS:
        _, block = schedule.split(deepest, width * _PARTIAL_VECTORS)
        parts, lane = schedule.split(block, width, tail="guard")
        schedule.rfactor(info.name, parts, lane)
        schedule.unroll(parts)
        schedule.unroll(f"{info.name}.rf0")
        schedule.vectorize(lane)
        schedule.vectorize(f"{info.name}.rf1")
        return
    _, lane = schedule.split(deepest, width)
    schedule.rfactor(info.name, lane)
    schedule.vectorize(lane)
    schedule.vectorize(f"{info.name}.rf0")


def _regular_lanes(load: Load, index: Index, most: int) -> int:
    """Returns how many neighbors along a loop lie evenly in memory: blocks are that long."""
    simplifier = Simplifier()
    while most > 1 and lane_stride(load, index, most, simplifier) is None:
        most //= 2
    return most


def vectorize_last(schedule: Schedule, last: list[str], target: Target, info: StageInfo) -> None:
    """Makes the last of a stage's loops vector lanes."""
    if not last or schedule.extent(last[0]) < 2:
        return
    lanes = min(target.vector_lanes(info.store.buffer.dtype), schedule.extent(last[0]))
    _, lane = schedule.split(last[0], lanes)
    schedule.vectorize(lane)
