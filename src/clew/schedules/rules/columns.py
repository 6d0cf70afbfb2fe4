"""Kernels of several stages that reduce along axes before the last (softmax, norms and argmax along
the channels of a plain image): all stages are computed for a few neighboring columns at a time.

Lanes are columns, so that no vector is summed across its lanes and all accesses are contiguous.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from clew.ir.dims import product
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

_MOST_VECTORS: Final = 4
_LEAST_PANELS: Final = 4  # for threads

SEVERAL_STAGES: Final = Demand(
    "more than one reduction with a tail", lambda work, target: not TAILED.holds(work, target)
)


@dataclass(frozen=True)
class ColumnStages(Match):
    """The stages, the root last, and the number of leading axes that all of them share."""

    members: tuple[str, ...]
    leading: int


class Columns(Rule[ColumnStages]):
    """Reductions along axes before a shared last axis, and the stages computed with them."""

    name = "columns"
    demands = (REDUCES, SEVERAL_STAGES)

    def match(self, work: Work, target: Target) -> ColumnStages | None:
        stages, root = work.stages, work.root
        rank = len(root.axes)
        if not rank or any(len(info.axes) != rank for info in stages):
            return None
        shared = [_is_shared(stages, position) for position in range(rank)]
        if not shared[-1] or all(shared) or root.store.buffer.typical_shape[-1] < 2:
            return None
        if not all(_is_contiguous(info) for info in stages):
            return None
        schedule = work.start.copy()
        flatten_axes(schedule, *work.members)
        return ColumnStages(schedule, target, work.members, shared.index(False))

    def choices(self, match: ColumnStages) -> Space:
        infos = stage_infos(match.start)
        lanes, columns = _lanes(match), infos[match.members[-1]].store.buffer.typical_shape[-1]
        held = max(
            product(infos[m].store.buffer.typical_shape[match.leading : -1]) * memory_bytes(
                infos[m].store.buffer.dtype
            )
            for m in match.members
        )
        most = min(match.target.l1_bytes // (2 * lanes * held), columns // (lanes * _LEAST_PANELS))
        vectors = 1
        while 2 * vectors <= min(_MOST_VECTORS, most):
            vectors *= 2
        about = "vectors of columns computed together"
        return Space((Choice("vectors", vectors, (1, 2, 4), about),))

    def schedule(self, match: ColumnStages, settings: Settings) -> Schedule:
        schedule, found = match.begin()
        infos, root = dict(found), match.members[-1]
        info = infos[root]
        out = schedule.cache_write(root) if info.is_reduction else root
        members = [m for m in match.members if m != root or info.is_reduction]
        *outer, column = info.axes_in(out)
        lanes = min(_lanes(match), schedule.extent(column))
        panel, inner = schedule.split(column, lanes * settings["vectors"])
        leading, middle = outer[: match.leading], outer[match.leading :]
        schedule.reorder(*leading, panel, *middle, inner)
        for member in reversed(members):
            held = product(infos[member].store.buffer.shape[match.leading : -1])
            schedule.compute_at(member, panel, "register" if held == 1 else "scratch")
        for member in members:  # lanes of the same width, so that vectors stay in registers
            down_columns(schedule, infos[member], lanes)
        split_columns(schedule, inner, lanes)
        spread(schedule, [*leading, panel])
        return schedule


def _lanes(match: ColumnStages) -> int:
    infos = stage_infos(match.start)
    dtypes = {infos[m].store.buffer.dtype for m in match.members}
    return max(match.target.vector_lanes(dtype) for dtype in dtypes)


def _is_shared(stages: list[StageInfo], position: int) -> bool:
    """Whether all stages have the same axis at a position, and read their own position of each
    other there.
    """
    size = stages[-1].store.buffer.shape[position]
    buffers = {id(info.store.buffer) for info in stages}
    return all(
        info.store.buffer.shape[position] == size
        and all(
            load.indices[position] is info.store.indices[position]
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
