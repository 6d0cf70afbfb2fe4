"""Stages that visit positions in order (`te.sequential`): rows are distributed over threads, and
loops that write contiguous elements are vectorized.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from clew.loop.affine import Simplifier
from clew.loop.ir import For, Stmt, Store, loops, walk
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.library.register_tile import spread
from clew.schedules.library.tile_sizes import vector_factor
from clew.schedules.rule import Match, Rule, Work
from clew.schedules.space import Settings
from clew.schedules.stages import offset_stride
from clew.support.errors import ScheduleError
from clew.te.roles import IN_ORDER


@dataclass(frozen=True)
class Visits(Match):
    """The outer loops with independent iterations, outermost first, and the loop to vectorize with
    its number of lanes ("" and 1 if there is none).
    """

    rows: tuple[str, ...] = ()
    lane: str = ""
    lanes: int = 1


class Sequential(Rule[Visits]):
    """Stages that visit positions in order."""

    name = "sequential"
    scope = "sequential"

    def match(self, work: Work, target: Target) -> Visits | None:
        (stage,) = work.members
        schedule = work.start
        nests = [s for s in schedule.nest.body.stmts if _writes(s, stage)]
        lane, lanes = _lane(nests, target)
        rows: list[str] = []
        inner = nests[0]
        while len(nests) == 1 and isinstance(inner, For) and inner.index.role != IN_ORDER:
            if inner.name != lane:
                rows.append(inner.name)
            inner = inner.body
        return Visits(schedule, target, tuple(rows), lane, lanes)

    def schedule(self, match: Visits, settings: Settings) -> Schedule:
        schedule, _ = match.begin()
        if match.lanes > 1:
            _, inner = schedule.split(match.lane, match.lanes)
            schedule.vectorize(inner)
        if match.rows:
            with contextlib.suppress(ScheduleError):  # rows may share a temporary value
                spread(schedule, list(match.rows))
        return schedule


def _lane(nests: list[Stmt], target: Target) -> tuple[str, int]:
    """Returns the loop whose iterations write contiguous elements, and its number of lanes."""
    for nest in nests:
        for loop in loops(nest):
            stores = [s for s in walk(loop.body) if isinstance(s, Store)]
            if loop.index.role == IN_ORDER or any(True for _ in loops(loop.body)):
                continue
            steps = (offset_stride(s.buffer, s.indices, loop.index, Simplifier()) for s in stores)
            if all(step == 1 for step in steps):
                return loop.name, min(
                    vector_factor(target, s.buffer.dtype, loop.typical) for s in stores
                )
    return "", 1


def _writes(stmt: Stmt, stage: str) -> bool:
    return any(isinstance(s, Store) and s.stage == stage for s in walk(stmt))
