"""Kernels of several stages that reduce along axes before the last (softmax, norms and argmax along
the channels of a plain image): all stages are computed for a few neighboring columns at a time.

Lanes are columns, so that no vector is summed across its lanes and all accesses are contiguous.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Final

from clew.cost.policy.sums import LEAST_COLUMNS, VECTORS_OF_REDUCTIONS
from clew.cost.policy.threads import PIECES_FOR_THREADS
from clew.ir.dims import Dim, product, typical
from clew.ir.types import memory_bytes
from clew.loop.affine import Simplifier
from clew.loop.ir import buffer_loads
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.demands import REDUCES, TAILED
from clew.schedules.library.register_tile import spread
from clew.schedules.library.row_vectors import down_columns, split_columns
from clew.schedules.rule import Demand, Match, Rule, Work
from clew.schedules.space import Choice, Settings, Space
from clew.schedules.stages import StageInfo, flatten_axes, lane_stride, stage_infos
from clew.support.dataclass import dataclass

SEVERAL_STAGES: Final = Demand(
    "more than one reduction with a tail", lambda work, target: not TAILED.holds(work, target)
)


@dataclass(frozen=True)
class ColumnStages(Match):
    """The stages, the root last, and the number of leading and of trailing axes that all share."""

    members: tuple[str, ...]
    leading: int
    trailing: int

    def held(self, info: StageInfo) -> Dim:
        """Returns the number of a stage's elements in one column."""
        shape = info.store.buffer.shape
        return product(shape[self.leading : len(shape) - self.trailing])


class Columns(Rule[ColumnStages]):
    """Reductions along axes before a shared last axis, and the stages computed with them."""

    name = "columns"
    demands = (REDUCES, SEVERAL_STAGES)

    def match(self, work: Work, target: Target) -> ColumnStages | None:
        if not all(info.axes and _is_contiguous(info) for info in work.stages):
            return None
        if work.root.store.buffer.typical_shape[-1] < LEAST_COLUMNS:
            return None
        schedule = work.start.copy()
        if len({len(info.axes) for info in work.stages}) == 1:
            flatten_axes(schedule, *work.members)
        infos = stage_infos(schedule)
        stages = [infos[name] for name in work.members]
        rank = min(len(info.axes) for info in stages)
        trailing = _count(_is_shared(stages, -1 - n) for n in range(rank))
        if not trailing:
            return None
        leading = _count(_is_shared(stages, n) for n in range(rank - trailing))
        return ColumnStages(schedule, target, work.members, leading, trailing)

    def choices(self, match: ColumnStages) -> Space:
        infos = stage_infos(match.start)
        stages = [infos[name] for name in match.members]
        lanes, columns = _lanes(match), stages[-1].store.buffer.typical_shape[-1]
        held = max(typical(match.held(s)) * memory_bytes(s.store.buffer.dtype) for s in stages)
        most = min(
            match.target.l1_bytes // (2 * lanes * max(held, 1)),
            columns // (lanes * PIECES_FOR_THREADS),
        )
        vectors = next(n for n in reversed(VECTORS_OF_REDUCTIONS) if n <= max(most, 1))
        about = "vectors of columns computed together"
        return Space((Choice("vectors", vectors, VECTORS_OF_REDUCTIONS, about),))

    def schedule(self, match: ColumnStages, settings: Settings) -> Schedule:
        schedule, found = match.begin()
        infos, root = dict(found), match.members[-1]
        info = infos[root]
        out = schedule.cache_write(root) if info.is_reduction else root
        members = [m for m in match.members if m != root or info.is_reduction]
        *axes, column = info.axes_in(out)
        inside = slice(match.leading, len(axes) + 1 - match.trailing)
        middle = axes[inside]
        outer = [axis for axis in axes if axis not in middle]
        schedule.reorder(*outer, column, *middle)
        lanes = min(_lanes(match), schedule.extent(column))
        panel, inner = schedule.split(column, lanes * settings["vectors"])
        schedule.reorder(panel, *middle, inner)
        for member in reversed(members):
            alone = match.held(infos[member]) == 1
            schedule.compute_at(member, panel, "register" if alone else "scratch")
        for member in members:  # lanes of the same width, so that vectors stay in registers
            down_columns(schedule, infos[member], lanes)
        split_columns(schedule, inner, lanes)
        spread(schedule, [*outer, panel])
        return schedule


def _lanes(match: ColumnStages) -> int:
    infos = stage_infos(match.start)
    dtypes = {infos[name].lane_dtype for name in match.members}
    return max(match.target.vector_lanes(dtype) for dtype in dtypes)


def _count(holds: Iterable[bool]) -> int:
    """Returns how many are true before the first that is not."""
    return sum(1 for _ in itertools.takewhile(bool, holds))


def _is_shared(stages: list[StageInfo], position: int) -> bool:
    """Whether all stages have the same axis at a position, and read their own position of each
    other there.
    """
    size = stages[-1].store.buffer.shape[position]
    buffers, simplifier = {id(info.store.buffer) for info in stages}, Simplifier()
    return all(
        info.store.buffer.shape[position] == size
        and all(
            simplifier.linear(load.indices[position])
            == simplifier.linear(info.store.indices[position])
            for load in buffer_loads(info.store.value)
            if id(load.source) in buffers
        )
        for info in stages
    )


def _is_contiguous(info: StageInfo) -> bool:
    """Whether all operands of a stage are contiguous or constant along its last axis."""
    simplifier = Simplifier()
    last = next(n.index for n in info.loops if n.name == info.axes[-1])
    steps = {lane_stride(load, last, 2, simplifier) for load in buffer_loads(info.store.value)}
    return steps <= {0, 1}
