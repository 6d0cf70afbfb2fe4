"""The interface of a schedule rule: demands, a match, choices, and a schedule made from both.

```python
class Columns(Rule[Match]):
    name = "columns"
    demands = (REDUCES, TAILED)

    def match(self, work: Work, target: Target) -> Match | None: ...
    def choices(self, match: Match) -> Space: ...
    def schedule(self, match: Match, settings: Settings) -> Schedule: ...
```
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import ClassVar, Generic, Literal, TypeAlias, TypeVar

from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.space import Settings, Space
from clew.schedules.stages import StageInfo, stage_infos
from clew.support.dataclass import dataclass

Scope: TypeAlias = Literal["root", "kernel", "melt", "sequential"]


@dataclass(frozen=True)
class Work:
    """The stages to schedule, and the schedule so far.

    `members` are in order. The last is the root, the stage whose loops hold all others.
    """

    start: Schedule
    members: tuple[str, ...]

    @staticmethod
    def whole(schedule: Schedule) -> Work:
        """Returns all stages of a kernel."""
        return Work(schedule, tuple(stage_infos(schedule)))

    @cached_property
    def infos(self) -> dict[str, StageInfo]:
        """All stages of the kernel that have their own loops, by name."""
        return stage_infos(self.start)

    @property
    def root(self) -> StageInfo:
        """The last of the stages."""
        return self.infos[self.members[-1]]

    @cached_property
    def stages(self) -> list[StageInfo]:
        """The stages, the root last."""
        return [self.infos[name] for name in self.members]

    @cached_property
    def reductions(self) -> list[StageInfo]:
        """The stages that reduce."""
        return [info for info in self.stages if info.is_reduction]

    @property
    def reduction(self) -> StageInfo:
        """The only stage that reduces."""
        (only,) = self.reductions
        return only

    @cached_property
    def outputs(self) -> list[StageInfo]:
        """The stages that write outputs of the kernel."""
        return [info for info in self.stages if info.is_output]

    @cached_property
    def by_role(self) -> dict[str, StageInfo]:
        """Stages by the role their operators state."""
        return {info.role: info for info in self.stages if info.role}

    @cached_property
    def is_empty(self) -> bool:
        """Whether a stage has no elements, and thus no iterations to schedule."""
        return any(loop.size == 0 for info in self.stages for loop in info.loops)


@dataclass(frozen=True)
class Demand:
    """A condition that a rule requires. Rules with more demands are tried first."""

    name: str
    holds: Callable[[Work, Target], bool]

    def __repr__(self) -> str:
        return f"<Demand {self.name}>"


def stage_role(role: str) -> Demand:
    """Returns the demand that some stage of the kernel has this role."""
    return Demand(role, lambda work, target: role in work.by_role)


@dataclass(frozen=True)
class Match:
    """The result of a rule's match: the schedule to start from, which is never changed, and the
    target.
    """

    start: Schedule
    target: Target

    def begin(self) -> tuple[Schedule, Mapping[str, StageInfo]]:
        """Returns a copy of the schedule to continue, and its stages."""
        schedule = self.start.copy()
        return schedule, stage_infos(schedule)


@dataclass(frozen=True)
class TailMatch(Match):
    """A reduction and the stage that writes its result: an elementwise tail, or the reduction."""

    anchor: str
    root: str

    @cached_property
    def info(self) -> StageInfo:
        """The reduction."""
        return stage_infos(self.start)[self.anchor]

    def result(self, schedule: Schedule) -> str:
        """Returns the stage that writes the result. A reduction without a tail gets one that copies
        it out of registers.
        """
        return schedule.cache_write(self.anchor) if self.root == self.anchor else self.root


M = TypeVar("M", bound=Match)


class Rule(ABC, Generic[M]):
    """Schedules the kernels it matches.

    The registry tries rules by their number of demands, most first. Of the rules whose demands
    hold, the first that matches schedules the kernel. `scope` is the part of a kernel that a rule
    schedules: a whole kernel (`kernel`), a whole kernel from a user's fusion with `mode="melt"`
    (`melt`), a root and the stages computed in its loops (`root`), or a stage that visits positions
    in order (`sequential`).
    """

    name: ClassVar[str]
    scope: ClassVar[Scope] = "root"
    demands: ClassVar[Sequence[Demand]] = ()
    takes: ClassVar[Sequence[str]] = ()
    """Roles of stages that the rule may move into the loops of their reader."""

    @abstractmethod
    def match(self, work: Work, target: Target) -> M | None:
        """Returns the facts about stages that the rule needs, if they meet its demands; None to
        decline them.
        """

    def choices(self, match: M) -> Space:
        """Returns the choices, with the defaults for this kernel on this machine."""
        return Space()

    @abstractmethod
    def schedule(self, match: M, settings: Settings) -> Schedule:
        """Returns the schedule for a match and settings. It depends on nothing else, and modifies
        neither.
        """

    def applied(self, work: Work, target: Target) -> Schedule:
        """Returns the schedule of `work` with default choices. Rules call this to have another rule
        schedule a stage; that rule must match.
        """
        match = self.match(work, target)
        assert match is not None, f"{self.name} does not match {work.members[-1]}"
        return self.schedule(match, self.choices(match).default)

    def __repr__(self) -> str:
        return f"<Rule {self.name}>"
