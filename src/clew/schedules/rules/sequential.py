"""Stages that write where values tell (`te.sequential`): rows are distributed over threads, and
slices that move as a whole are vectorized. All other loops stay in order.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from clew.loop.affine import Simplifier
from clew.loop.ir import For, If, Stmt, Store, walk
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.library.register_tile import spread
from clew.schedules.library.tile_sizes import vector_factor
from clew.schedules.rule import Match, Rule, Work
from clew.schedules.space import Settings
from clew.schedules.stages import offset_stride
from clew.support.errors import ScheduleError

_PRIVATE = ("register", "scratch")


@dataclass(frozen=True)
class Updates(Match):
    """The outer loops whose iterations write elements of their own, outermost first, and the loop
    to vectorize, by how many lanes ("" and 1 if there is none).
    """

    rows: tuple[str, ...] = ()
    lane: str = ""
    lanes: int = 1


class Sequential(Rule[Updates]):
    """Stages that write where values tell."""

    name = "sequential"
    scope = "sequential"

    def match(self, work: Work, target: Target) -> Updates | None:
        (stage,) = work.members
        schedule = work.start
        nests = [s for s in schedule.nest.body.stmts if _writes(s, stage)]
        if len(nests) != 1:
            return Updates(schedule, target)
        placed = [
            s for s in walk(nests[0])
            if isinstance(s, Store) and s.is_placed and s.buffer.scope not in _PRIVATE
        ]  # fmt: skip
        chain: list[For] = []
        inner: Stmt = nests[0]
        while isinstance(inner, (For, If)):
            if isinstance(inner, For):
                chain.append(inner)
            inner = inner.body
        lane, lanes = "", 1
        if chain and isinstance(inner, Store) and inner.follows(chain[-1].index):
            last, buffer = chain[-1], inner.buffer
            if offset_stride(buffer, inner.indices, last.index, Simplifier()) == 1:
                chain.pop()
                lane = last.name
                lanes = vector_factor(target, buffer.dtype, schedule.extent(lane))
        rows: list[str] = []
        for loop in chain:
            if not all(s.follows(loop.index) for s in placed):
                break
            rows.append(loop.name)
        return Updates(schedule, target, tuple(rows), lane, lanes)

    def schedule(self, match: Updates, settings: Settings) -> Schedule:
        schedule, _ = match.begin()
        if match.lanes > 1:
            _, inner = schedule.split(match.lane, match.lanes)
            schedule.vectorize(inner)
        if match.rows:
            with contextlib.suppress(ScheduleError):  # rows may share a temporary value
                spread(schedule, list(match.rows))
        return schedule


def _writes(stmt: Stmt, stage: str) -> bool:
    return any(isinstance(s, Store) and s.stage == stage for s in walk(stmt))
