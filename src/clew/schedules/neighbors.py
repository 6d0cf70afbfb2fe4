"""Sums over neighboring channels of an image in blocks (local response normalization): lanes are
channels of a block, and neighbors of its first and last ones lie in other blocks.

So what is summed is laid out channel beside channel first, some pixels at a time: a sum then reads
whole vectors at any offset.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from clew.loop.affine import contains
from clew.loop.ir import buffer_loads
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.matmul import spread
from clew.schedules.shape import StageInfo, stage_infos
from clew.schedules.tiles import balanced
from clew.support.errors import ScheduleError

NAME = "neighbors"
_IMAGE_RANK = 5
# So many that a sum reads what left the store buffer a while ago, few enough for the first cache.
_PIXELS = 8


@dataclass(frozen=True)
class Stages:
    """Names of the stages: `line` has the channels of a pixel side by side, `sums` reads them."""

    line: str
    sums: str
    root: str


def find(schedule: Schedule, target: Target) -> Stages | None:
    """Returns the stages of such a kernel; None for any other."""
    infos = stage_infos(schedule)
    reductions = [n for n, info in infos.items() if info.is_reduction]
    roots = [n for n, info in infos.items() if info.is_output]
    if len(reductions) != 1 or len(roots) != 1 or reductions == roots:
        return None
    sums = infos[reductions[0]]
    shape = infos[roots[0]].store.buffer.shape
    if len(shape) != _IMAGE_RANK or sums.store.buffer.shape != shape or 0 in shape:
        return None
    lines = [n for n, info in infos.items() if sums.name in info.readers]
    if len(lines) != 1 or infos[lines[0]].readers != [sums.name] or not _slides(sums):
        return None
    return Stages(lines[0], sums.name, roots[0])


def _slides(sums: StageInfo) -> bool:
    """Whether a sum walks along the axis that its lanes are on, and no other."""
    if sums.is_anchor or len(sums.reduction_axes) != 1 or len(sums.axes) != _IMAGE_RANK:
        return False
    indices = {n.name: n.index for n in sums.loops}
    step, lane = indices[sums.reduction_axes[0]], indices[sums.axes[-1]]
    loads = list(buffer_loads(sums.store.value))
    return len(loads) == 1 and all(
        contains(index, step) == contains(index, lane) == (index is loads[0].indices[-1])
        for index in loads[0].indices
    )


def schedule(schedule: Schedule, stages: Stages, target: Target) -> bool:
    """Schedules the kernel."""
    for name in reversed(list(stage_infos(schedule))):
        if name not in (stages.line, stages.sums, stages.root):
            schedule.inline(name)
    infos = stage_infos(schedule)
    sums = infos[stages.sums]
    n, co, oh, ow, ci = infos[stages.root].axes
    schedule.reorder(n, oh, ow, co, ci)
    size = balanced(schedule.extent(ow), _PIXELS)
    tile, _ = schedule.split(ow, size, tail="balance")
    lanes = min(target.vector_lanes(sums.store.buffer.dtype), schedule.extent(ci))
    vector, lane = schedule.split(ci, lanes, tail="guard")
    schedule.compute_at(stages.sums, vector, "register")
    schedule.compute_at(stages.line, tile, "scratch", align=lanes)
    schedule.reorder(*sums.reduction_axes, *sums.axes)
    schedule.unroll(sums.reduction_axes[0])
    schedule.vectorize(sums.axes[-1])
    schedule.vectorize(lane)
    column = infos[stages.line].axes[-1]
    across = min(target.vector_lanes(sums.store.buffer.dtype), schedule.extent(column))
    vectors, side = schedule.split(column, across, tail="guard")
    schedule.vectorize(side)
    with contextlib.suppress(ScheduleError):  # zeros are vectors of their own
        schedule.partition(vectors)
    spread(schedule, [n, oh])
    return True
