"""Memory-bound products of one row with a matrix.

Several vectors of columns are computed together. This keeps several memory streams and sums in
flight, which hides the latency of additions.
"""

from __future__ import annotations

import math

from clew.cost.policy.threads import PIECES_FOR_THREADS
from clew.cost.policy.tiles import FULL_VECTORS_OF_ROW, STEPS_OF_ROW, VECTORS_OF_ROW
from clew.loop.affine import Simplifier
from clew.loop.ir import buffer_loads
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.demands import ONE_ROW, PRODUCTS, REDUCES, TAILED
from clew.schedules.library.register_tile import spread
from clew.schedules.rule import Rule, TailMatch, Work
from clew.schedules.space import Choice, Settings, Space
from clew.schedules.stages import StageInfo, lane_stride, stride
from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class Row(TailMatch):
    """A product with a matrix in which the columns of the result are contiguous."""

    lanes: int
    vectors: int


class Matvec(Rule[Row]):
    """Products of one row with a matrix that has more columns than a register tile."""

    name = "matvec"
    demands = (REDUCES, TAILED, PRODUCTS, ONE_ROW)

    def match(self, work: Work, target: Target) -> Row | None:
        info = work.reduction
        lanes = target.vector_lanes(info.store.buffer.dtype)
        if (
            len(info.reduction_axes) != 1
            or info.store.buffer.typical_shape[-1] < lanes * VECTORS_OF_ROW
        ):
            return None
        last = next(n for n in info.loops if n.name == info.axes[-1])
        loads = buffer_loads(info.store.value)
        steps = [lane_stride(x, last.index, lanes, Simplifier()) for x in loads]
        if sorted(steps, key=str) != [0, 1]:
            return None
        vectors = _vectors(info, lanes, target)
        return Row(work.start, target, info.name, work.root.name, lanes, vectors)

    def choices(self, match: Row) -> Space:
        about = "vectors of columns computed together"
        return Space(
            (
                Choice("vectors", match.vectors, (1, 2, 4, 8, 16), about),
                Choice("unroll", STEPS_OF_ROW, (1, 2, 4, 8), "unrolled reduction steps"),
            )
        )

    def schedule(self, match: Row, settings: Settings) -> Schedule:
        schedule, infos = match.begin()
        info, lanes = infos[match.anchor], match.lanes
        out = match.result(schedule)
        *rows, columns = infos[match.root].axes_in(out)
        ones = [row for row in rows if schedule.extent(row) == 1]
        batch = [row for row in rows if row not in ones]
        schedule.reorder(*batch, columns, *ones)
        panel, column = schedule.split(columns, lanes * settings["vectors"])
        vector, lane = schedule.split(column, lanes, tail="guard")
        schedule.reorder(panel, *ones, vector, lane)
        schedule.compute_at(match.anchor, panel, "register")
        (step,) = info.reduction_axes
        schedule.reorder(step, *info.axes)
        own_vector, own_lane = schedule.split(info.axes[-1], lanes, tail="guard")
        if 1 < settings["unroll"] < schedule.extent(step):
            _, each = schedule.split(step, settings["unroll"])
            schedule.unroll(each)
        for name in (*info.axes[:-1], own_vector, *ones, vector):
            schedule.unroll(name)
        for name in (own_lane, lane):
            schedule.vectorize(name)
        spread(schedule, [*batch, panel])
        return schedule


def _vectors(info: StageInfo, lanes: int, target: Target) -> int:
    """Returns the number of vectors of columns computed together. It is larger if the matrix is not
    packed in panels, so that memory is read in longer runs.
    """
    depth = next(n.index for n in info.loops if n.name == info.reduction_axes[0])
    steps = [stride(x, depth, Simplifier()) for x in buffer_loads(info.store.value)]
    if all(isinstance(step, int) and step <= lanes * VECTORS_OF_ROW for step in steps):
        return VECTORS_OF_ROW
    *rows, columns = info.store.buffer.typical_shape
    whole = columns // lanes
    most = min(target.vector_registers // 2, whole, whole * math.prod(rows) // PIECES_FOR_THREADS)
    return next((n for n in FULL_VECTORS_OF_ROW if n <= most), VECTORS_OF_ROW)
