"""Reductions over steps that data select (regions of images), or at uneven places (resampling):
loops stop where the steps of a result end, and skip steps that contribute nothing.

All lanes take the same steps: they are vectors of the last axis or, where its elements select
different steps, an unrolled group of channels of a plain image. Results stay in registers.
"""

from __future__ import annotations

from typing import Final

from clew.cost.policy.sums import PLANES_TOGETHER
from clew.cost.policy.tiles import VECTORS_OF_COLUMNS
from clew.loop.ir import buffer_loads
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.demands import NOT_EMPTY, REDUCES
from clew.schedules.library.register_tile import spread
from clew.schedules.library.row_vectors import vectorize_last
from clew.schedules.rule import Demand, Rule, TailMatch, Work, stage_role
from clew.schedules.space import Choice, Settings, Space
from clew.schedules.stages import StageInfo
from clew.support.dataclass import dataclass
from clew.support.errors import ScheduleError
from clew.te.expr import Load
from clew.te.roles import ROW_TABLE, SELECTED
from clew.te.walk import nodes


def _others(work: Work) -> list[StageInfo]:
    """Returns the stages besides the reduction and its tail."""
    return [s for s in work.stages if s is not work.root and s.role != SELECTED]


TABLES: Final = Demand(
    "tables of its rows, and no other stages",
    lambda work, target: all(s.role == ROW_TABLE for s in _others(work)),
)

TAIL: Final = Demand(
    "a result of the reduction's shape",
    lambda work, target: work.by_role[SELECTED].store.buffer.shape == work.root.store.buffer.shape,
)


@dataclass(frozen=True)
class Steps(TailMatch):
    """The reduction with its tail, the tables of each row that it reads, and the number of the axis
    of lanes among the axes of the result.
    """

    tables: tuple[str, ...] = ()
    lanes: int = -1

    @property
    def in_vectors(self) -> bool:
        """Whether lanes are neighbors in memory; else they are planes that are far apart."""
        return self.lanes == -1


def _axis_of_lanes(info: StageInfo) -> int:
    """Returns the number, from the end, of the last axis of a result whose elements all take the
    same steps: no table that selects steps is read at its index. Returns -1 if there is none.
    """
    axes = info.store.indices
    places = [index for load in buffer_loads(info.store.value) for index in load.indices]
    tables = [x for index in places for x in nodes(index) if isinstance(x, Load)]
    selecting = {id(i) for x in tables for index in x.indices for i in nodes(index)}
    kept = [n - len(axes) for n, i in enumerate(axes) if id(i) not in selecting]
    return kept[-1] if kept else -1


def _joined(start: Schedule, info: StageInfo, root: StageInfo) -> Schedule:
    """Merges the last axes of a result that its accesses walk as one, such as the pixels and
    channels of a line: three channels alone fill few lanes. Other stages keep their axes.
    """
    schedule, own = start.copy(), tuple(dict.fromkeys((info.name, root.name)))
    buffers = [root.store.buffer, *(load.source for load in buffer_loads(info.store.value))]
    shared = tuple(sorted({x.name for x in buffers if x.scope == "workspace"}))
    for first in reversed(range(len(info.axes) - 1)):
        try:
            schedule.apply("flatten", stages=own, first=first, count=2, keep=shared)
        except ScheduleError:
            break
    return schedule


class Selected(Rule[Steps]):
    """Reductions over steps that data select, or at uneven places."""

    name = "selected"
    demands = (REDUCES, NOT_EMPTY, stage_role(SELECTED), TABLES, TAIL)

    def match(self, work: Work, target: Target) -> Steps:
        info = work.by_role[SELECTED]
        tables = tuple(table.name for table in _others(work))
        lanes = _axis_of_lanes(info)
        start = _joined(work.start, info, work.root) if lanes == -1 and not tables else work.start
        if not isinstance(info.store.buffer.shape[lanes], int):
            lanes = -1  # planes are unrolled
        return Steps(start, target, info.name, work.root.name, tables, lanes)

    def choices(self, match: Steps) -> Space:
        lanes = match.target.vector_lanes(match.info.lane_dtype)
        result, every = match.info.store.buffer, 1
        # The remainder of a line whose length only a run knows takes as many vectors.
        if match.in_vectors and isinstance(result.shape[-1], int):
            every = -(-result.shape[-1] // lanes)
        vectors = next(n for n in reversed(VECTORS_OF_COLUMNS) if n <= max(every, 1))
        options = VECTORS_OF_COLUMNS if match.in_vectors else (1,)
        return Space((Choice("vectors", vectors, options, "vectors of results in registers"),))

    def schedule(self, match: Steps, settings: Settings) -> Schedule:
        schedule, infos = match.begin()
        info = infos[match.anchor]
        outer, own = infos[match.root].axes_in(match.result(schedule)), list(info.axes)
        column, across = outer.pop(match.lanes), own.pop(match.lanes)
        extent = schedule.extent(column)
        if match.in_vectors:
            lanes = min(match.target.vector_lanes(info.lane_dtype), extent)
        else:  # loops between a panel and its planes leave no place for a tail
            lanes = max(n for n in range(1, PLANES_TOGETHER + 1) if not extent % n)
        if not match.in_vectors:
            schedule.reorder(outer[0], column, *outer[1:])
        panel, lane = schedule.split(column, lanes * settings["vectors"])
        if not match.in_vectors:
            schedule.reorder(panel, *outer[1:], lane)
            panel = outer[-1]
        schedule.compute_at(match.anchor, panel, "register")
        schedule.reorder(*info.reduction_axes, *own, across)
        for loop in (across, lane):
            vector, inner = schedule.split(loop, lanes, tail="guard")
            schedule.unroll(vector)
            if match.in_vectors:
                schedule.vectorize(inner)
            else:
                schedule.unroll(inner)
        schedule.attempt(lambda: schedule.skip_padding(match.anchor))  # all steps may count
        for table in reversed(match.tables):
            schedule.compute_at(table, outer[0], "scratch")
            if infos[table].is_reduction:
                schedule.skip_padding(table)  # ends where its reader stops
            else:
                vectorize_last(schedule, infos[table].axes[-1:], match.target, infos[table])
        spread(schedule, outer[:1] if match.tables else outer)
        return schedule
