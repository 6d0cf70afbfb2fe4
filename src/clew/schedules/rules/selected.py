"""Reductions over steps that data select (regions of images): loops stop where the steps of a
result end, and skip steps that contribute nothing.

All lanes, the last axis, take the same steps. Their results stay in registers.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Final

from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.demands import NOT_EMPTY, REDUCES
from clew.schedules.library.register_tile import spread
from clew.schedules.library.row_vectors import vectorize_last
from clew.schedules.rule import Rule, TailMatch, Work, stage_role
from clew.schedules.space import Choice, Settings, Space
from clew.support.errors import ScheduleError
from clew.te.roles import ROW_TABLE, SELECTED

_VECTORS: Final = (1, 2, 4, 8)


@dataclass(frozen=True)
class Steps(TailMatch):
    """The reduction with its tail, and the tables of each row that it reads."""

    tables: tuple[str, ...] = ()


class Selected(Rule[Steps]):
    """Reductions over steps that data select."""

    name = "selected"
    demands = (REDUCES, NOT_EMPTY, stage_role(SELECTED))

    def match(self, work: Work, target: Target) -> Steps | None:
        info = work.by_role[SELECTED]
        others = [s for s in work.stages if s not in (info, work.root)]
        shared = info.store.buffer.shape == work.root.store.buffer.shape
        if not shared or any(s.role != ROW_TABLE for s in others):
            return None
        return Steps(work.start, target, info.name, work.root.name, tuple(s.name for s in others))

    def choices(self, match: Steps) -> Space:
        lanes = match.target.vector_lanes(match.info.lane_dtype)
        every = -(-match.info.store.buffer.typical_shape[-1] // lanes)
        vectors = next(n for n in reversed(_VECTORS) if n <= max(every, 1))
        return Space((Choice("vectors", vectors, _VECTORS, "vectors of results in registers"),))

    def schedule(self, match: Steps, settings: Settings) -> Schedule:
        schedule, infos = match.begin()
        info = infos[match.anchor]
        *outer, column = infos[match.root].axes_in(match.result(schedule))
        lanes = min(match.target.vector_lanes(info.lane_dtype), schedule.extent(column))
        panel, lane = schedule.split(column, lanes * settings["vectors"])
        schedule.compute_at(match.anchor, panel, "register")
        schedule.reorder(*info.reduction_axes, *info.axes)
        for loop in (info.axes[-1], lane):
            vector, inner = schedule.split(loop, lanes, tail="guard")
            schedule.unroll(vector)
            schedule.vectorize(inner)
        with contextlib.suppress(ScheduleError):  # all steps may count
            schedule.skip_padding(match.anchor)
        for table in reversed(match.tables):
            schedule.compute_at(table, outer[0], "scratch")
            if infos[table].is_reduction:
                schedule.skip_padding(table)  # ends where its reader stops
            else:
                vectorize_last(schedule, infos[table].axes[-1:], match.target, infos[table])
        spread(schedule, outer[:1] if match.tables else outer)
        return schedule
