"""Fast Fourier transforms: each row passes through all stages in scratch memory, in vectors along
the columns of its matrix. Steps are unrolled along a column, so that results share their sums.
"""

from __future__ import annotations

from typing import Final

from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.demands import NOT_EMPTY, ONE_RESULT
from clew.schedules.rule import Match, Rule, Work, stage_role
from clew.schedules.space import Settings
from clew.schedules.stages import StageInfo
from clew.support.dataclass import dataclass

_JOIN: Final = "fourier.join"


@dataclass(frozen=True)
class Transform(Match):
    """The stages in order; the last one joins real and imaginary parts."""

    stages: tuple[StageInfo, ...]


class Fourier(Rule[Transform]):
    """The stages of `fourier`."""

    name = "fourier"
    scope = "kernel"
    demands = (stage_role(_JOIN), ONE_RESULT, NOT_EMPTY)

    def match(self, work: Work, target: Target) -> Transform | None:
        if any(not info.role.startswith("fourier.") for info in work.stages):
            return None
        return Transform(work.start, target, tuple(work.stages))

    def schedule(self, match: Transform, settings: Settings) -> Schedule:
        schedule, _ = match.begin()
        *inner, join = match.stages
        lanes = match.target.vector_lanes(join.store.buffer.dtype)
        row, k, part = join.axes
        for info in reversed(inner):
            schedule.compute_at(info.name, row, "scratch")
        (columns,) = (schedule.extent(x.axes[-1]) for x in inner if x.role == "fourier.turn")
        for info in inner:
            axes = list(info.axes[1:])
            if info.role == "fourier.last":
                axes[1:] = schedule.split(axes[1], columns)
            _ARRANGED[info.role](schedule, axes, lanes)
        _, lane = schedule.split(schedule.fuse(k, part), lanes)
        schedule.vectorize(lane)
        schedule.parallel(row)
        return schedule


def _vectors(schedule: Schedule, axis: str, most: int) -> tuple[str, str]:
    """Splits an axis into equal vectors."""
    extent = schedule.extent(axis)
    return schedule.split(axis, max(n for n in range(1, most + 1) if extent % n == 0))


def _split(schedule: Schedule, axes: list[str], lanes: int) -> None:
    part, i, column = axes
    vector, lane = _vectors(schedule, column, lanes)
    schedule.reorder(i, vector, part, lane)
    schedule.unroll(part)
    schedule.vectorize(lane)


def _step(schedule: Schedule, axes: list[str], lanes: int) -> None:
    part, i, column = axes
    vector, lane = _vectors(schedule, column, lanes)
    schedule.reorder(vector, i, part, lane)
    for axis in (i, part):
        schedule.unroll(axis)
    schedule.vectorize(lane)


def _turn(schedule: Schedule, axes: list[str], lanes: int) -> None:
    """Transposes tiles in registers."""
    part, column, i = axes
    tile, row = _vectors(schedule, column, lanes)
    vector, lane = _vectors(schedule, i, lanes)
    schedule.reorder(part, tile, vector, row, lane)
    schedule.unroll(row)
    schedule.vectorize(lane)


def _bins(schedule: Schedule, axes: list[str], lanes: int) -> None:
    part, k = axes
    _, lane = schedule.split(k, lanes)
    schedule.unroll(part)
    schedule.vectorize(lane)


_ARRANGED: Final = {
    "fourier.split": _split,
    "fourier.step": _step,
    "fourier.last": _step,
    "fourier.turn": _turn,
    "fourier.bins": _bins,
}
