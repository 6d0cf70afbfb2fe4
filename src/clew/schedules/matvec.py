"""Products of one row with a matrix: bound by how fast the matrix comes.

Several panels of columns go side by side: that many streams of memory are on their way at once, and
that many sums are, so that none waits for its own last addition.
"""

from __future__ import annotations

import math

from clew.loop.affine import Simplifier
from clew.loop.ir import buffer_loads
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.matmul import spread
from clew.schedules.shape import StageInfo, lane_stride

NAME = "matvec"
_VECTORS = 4
_STEPS = 2


def applies(infos: dict[str, StageInfo], root: str, anchor: str, target: Target) -> bool:
    """Whether there is one row, whose columns lie side by side, for more than one register tile."""
    info = infos[anchor]
    shape = info.store.buffer.shape
    lanes = target.vector_lanes(info.store.buffer.dtype)
    if not shape or infos[root].store.buffer.shape != shape or len(info.reduction_axes) != 1:
        return False
    if math.prod(shape[:-1]) != 1 or shape[-1] < lanes * _VECTORS:
        return False
    last = next(n for n in info.loops if n.name == info.axes[-1])
    steps = [lane_stride(x, last.index, lanes, Simplifier())
             for x in buffer_loads(info.store.value)]  # fmt: skip
    return sorted(steps, key=str) == [0, 1]


def schedule(
    schedule: Schedule, infos: dict[str, StageInfo], root: str, anchor: str, target: Target
) -> None:
    """Schedules an anchor and its tail `root` (itself, if there is none)."""
    info = infos[anchor]
    lanes = target.vector_lanes(info.store.buffer.dtype)
    out = schedule.cache_write(anchor) if root == anchor else root
    *ones, columns = infos[root].axes_in(out)
    schedule.reorder(columns, *ones)
    panel, column = schedule.split(columns, lanes * _VECTORS)
    vector, lane = schedule.split(column, lanes, tail="guard")
    schedule.reorder(panel, *ones, vector, lane)
    schedule.compute_at(anchor, panel, "register")
    (step,) = info.reduction_axes
    schedule.reorder(step, *info.axes)
    own_vector, own_lane = schedule.split(info.axes[-1], lanes, tail="guard")
    if schedule.extent(step) > _STEPS:
        _, each = schedule.split(step, _STEPS)
        schedule.unroll(each)
    for name in (*info.axes[:-1], own_vector, *ones, vector):
        schedule.unroll(name)
    for name in (own_lane, lane):
        schedule.vectorize(name)
    spread(schedule, [panel])
