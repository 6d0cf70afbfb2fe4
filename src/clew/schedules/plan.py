"""Assigns the stages of a kernel to rules: inlines some stages, and finds a rule for the others."""

from __future__ import annotations

import math
from typing import Final

from clew.cost.policy.fusion import OPERATIONS_OF_TABLES, READS_OF_TABLES
from clew.loop.ir import Nest
from clew.loop.schedule import Refusal, Schedule
from clew.machine.target import Target
from clew.schedules.library.blocks_of_sums import divide_sums
from clew.schedules.library.images import is_padding, is_widening, reads_own_channels
from clew.schedules.library.shared_work import share_work
from clew.schedules.registry import RULES, Registry
from clew.schedules.request import NO_REQUEST, Request, Wish
from clew.schedules.rule import Scope, Work
from clew.schedules.space import Settings, Space
from clew.schedules.stages import StageInfo, sequential_stages, stage_infos
from clew.support.dataclass import dataclass
from clew.support.errors import ScheduleError
from clew.te.roles import ROW_TABLE, SELECTED, TABLE

EMPTY: Final = "empty"
"""Takes the place of a rule's name if a root has no iterations."""


@dataclass(frozen=True)
class Decision:
    """A rule that was applied, its root, and the values of its choices. `refused` lists the steps
    that it left out because they were not legal here.
    """

    rule: str
    root: str
    space: Space
    settings: Settings
    refused: tuple[Refusal, ...] = ()

    def __str__(self) -> str:
        return f"{self.rule}: {self.settings}" if self.settings else self.rule


@dataclass(frozen=True)
class Plan:
    """The schedule of a kernel and its decisions, one per root.

    A root is a stage that keeps its own loops, such as an output or a stage that several outputs
    read.
    """

    schedule: Schedule
    decisions: tuple[Decision, ...]

    @property
    def rules(self) -> tuple[str, ...]:
        """The names of the rules used."""
        return tuple(decision.rule for decision in self.decisions)

    @property
    def request(self) -> Request:
        """The request that makes this plan again: each rule at its root, with all its choices."""
        return Request(
            tuple(
                Wish(d.rule, {name: str(value) for name, value in d.settings.items()}, d.root)
                for d in self.decisions
                if d.root and d.rule != EMPTY
            )
        )


def schedule_kernel(
    nest: Nest, target: Target, rules: Registry = RULES, request: Request = NO_REQUEST
) -> Plan:
    """Returns the plan of a kernel. `request` holds a user's rules and choices.

    Errors: S061 to S065 for a request that does not fit the kernel.
    """
    planner = Planner(target, rules, request)
    return planner.finished(nest, planner.kernel(nest))


def schedule_melted(
    nest: Nest, target: Target, rules: Registry = RULES, request: Request = NO_REQUEST
) -> Plan:
    """Returns the plan of a kernel whose stages are computed at tiles of its result.

    Errors: S050 if it has several results; S061 to S065 as in `schedule_kernel`.
    """
    planner = Planner(target, rules, request)
    return planner.finished(nest, planner.melted(nest))


class Planner:
    """Chooses rules for a kernel, or for several parts of one."""

    def __init__(self, target: Target, rules: Registry, request: Request) -> None:
        """Errors: S061 for a rule that does not exist."""
        self.target = target
        self.rules = rules
        self.request = request
        self.decisions: list[Decision] = []
        request.check(rules.names())

    def kernel(self, nest: Nest) -> Schedule:
        """Returns the schedule of a kernel: from a rule for all of it, or root by root."""
        whole = Work.whole(Schedule(nest))
        wanted = [wish.rule for wish in self.request.wishes]
        apart = any(self.rules[rule].scope == "root" for rule in wanted)
        schedule = None if apart else self._taken("kernel", whole)
        if schedule is not None:
            return schedule
        schedule = Schedule(nest)
        _inline(schedule, self.target)
        roots = _roots(schedule)
        # A rule may move some stages into the loops of their reader. These come last, and only if
        # they still have their own loops.
        roles = {role for rule in self.rules for role in rule.takes}
        infos = stage_infos(schedule)
        late = [root for root in roots if infos[root].role in roles]
        for root in [*(r for r in roots if r not in late), *late]:
            infos = stage_infos(schedule)
            if root in infos:
                schedule = self._root(schedule, infos, root)
        for name in sequential_stages(schedule):
            made = self._taken("sequential", Work(schedule, (name,)))
            assert made is not None
            schedule = made
        return schedule

    def melted(self, nest: Nest) -> Schedule:
        """Returns the schedule of a kernel whose stages are computed at tiles of its result.

        Errors: S050.
        """
        schedule = Schedule(nest)
        _inline(schedule, self.target)
        made = self._taken("melt", Work.whole(schedule))
        assert made is not None
        return made

    def finished(self, nest: Nest, schedule: Schedule) -> Plan:
        """Returns the plan, after the whole kernel has been scheduled.

        Errors: S065 if a requested rule matches no stage.
        """
        used = {decision.rule for decision in self.decisions}
        roots = {(decision.rule, decision.root) for decision in self.decisions}
        for rule, _, root in self.request.wishes:
            if rule not in used or (root and (rule, root) not in roots):
                where = f"the stage {root}" if root else "no stage"
                raise ScheduleError(
                    "S065",
                    f"the rule {rule} {'does not match' if root else 'matches'} {where} of "
                    f"{nest.name}",
                    hint=f"its stages match {', '.join(used)}",
                )
        divide_sums(schedule)
        share_work(schedule, self.target.costs)
        return Plan(schedule, tuple(self.decisions))

    def _root(self, schedule: Schedule, infos: dict[str, StageInfo], root: str) -> Schedule:
        """Schedules a root and the stages computed in its loops."""
        work = Work(schedule, tuple(_members(infos, root)))
        if work.is_empty:
            self.decisions.append(Decision(EMPTY, root, Space(), Settings({})))
            return schedule
        made = self._taken("root", work)
        assert made is not None, f"no rule for {root}"
        return made

    def _taken(self, scope: Scope, work: Work) -> Schedule | None:
        """Returns the schedule by the rule that matches some stages; None if none matches.
        Requested rules come first.
        """
        wished = (
            (self.rules.find(scope, work, self.target, only=wish.rule), wish.changes)
            for wish in self.request.wishes
            if wish.root in ("", work.members[-1])
        )
        found, changes = next(
            (wish for wish in wished if wish[0] is not None),
            (self.rules.find(scope, work, self.target), {}),
        )
        if found is None:
            return None
        rule, match = found
        space = rule.choices(match)
        settings = space.settings(rule.name, changes)
        made = rule.schedule(match, settings)
        refused = tuple(made.refusals[len(work.start.refusals) :])
        self.decisions.append(Decision(rule.name, work.members[-1], space, settings, refused))
        return made


def _inline(schedule: Schedule, target: Target) -> None:
    """Inlines stages that are cheap to compute where they are read.

    It keeps reductions, outputs, operands of a sum of products (each is read many times), costly
    values with several readers, quotients of a row's reduced value, and tables. On
    microcontrollers, whose memory is scarce, padding of single channels and wider copies of
    operands are not kept either.
    """
    scarce = target.is_microcontroller
    for name in reversed(list(stage_infos(schedule))):
        infos = stage_infos(schedule)
        info = infos[name]
        if info.is_reduction or info.is_output or any(r not in infos for r in info.readers):
            continue
        anchors = [infos[r] for r in info.readers if infos[r].is_anchor]
        if anchors and not (
            (is_padding(info) and (reads_own_channels(anchors[0]) or scarce))
            or (scarce and is_widening(info))
        ):
            continue
        read_again = len(info.readers) > 1 or any(infos[r].is_reduction for r in info.readers)
        if info.is_costly and read_again and len(info.readers) > 1:
            continue
        if info.role == ROW_TABLE or _is_row_value(infos, info) or _is_table(infos, info):
            continue
        schedule.inline(name)


def _is_row_value(infos: dict[str, StageInfo], info: StageInfo) -> bool:
    """Whether a value computed from a reduction's result is costly, and many elements read it."""
    if not (info.is_costly or info.divides):
        return False
    if not _reads_sums(infos, info):
        return False
    points = math.prod(loop.typical for loop in info.loops)
    return any(math.prod(n.typical for n in infos[r].loops) > points for r in info.readers)


def _reads_sums(infos: dict[str, StageInfo], info: StageInfo) -> bool:
    """Whether a stage reads the result of a reduction, directly or rounded."""
    for read in (other for other in infos.values() if info.name in other.readers):
        same = read.store.buffer.shape == info.store.buffer.shape
        if read.is_reduction or (same and _reads_sums(infos, read)):
            return True
    return False


def _is_table(infos: dict[str, StageInfo], info: StageInfo) -> bool:
    """Whether a stage is a table, which is computed before its readers: its operator says so, or it
    has few values, each of many operations, that are read many times.
    """
    if info.role == TABLE:
        return not info.is_output
    if info.role == ROW_TABLE:
        return False
    if info.role == SELECTED:  # only a tail of its shape shares its loops
        others = (infos[r].store.buffer.shape for r in info.readers if r in infos)
        return any(shape != info.store.buffer.shape for shape in others)
    if info.is_reduction or info.is_output or info.operations < OPERATIONS_OF_TABLES:
        return False
    points = READS_OF_TABLES * math.prod(loop.typical for loop in info.loops)
    readers = (infos[r] for r in info.readers if r in infos)  # others are scheduled already
    return any(math.prod(n.typical for n in reader.loops) >= points for reader in readers)


def _roots(schedule: Schedule) -> list[str]:
    """Returns the stages that keep their own loops, as they are not computed within the loops of
    a single root.
    """
    infos = stage_infos(schedule)
    roots: list[str] = []
    home: dict[str, str] = {}
    for name in reversed(list(infos)):
        info = infos[name]
        homes = {home.get(r, "") for r in info.readers}
        anchored = any(infos[r].is_anchor for r in info.readers if r in infos)
        apart = len(homes) != 1 or "" in homes  # a sequential stage has loops of its own
        if info.is_output or apart or anchored or _is_table(infos, info):
            roots.append(name)
            home[name] = name
        else:
            home[name] = homes.pop()
    return list(reversed(roots))


def _members(infos: dict[str, StageInfo], root: str) -> list[str]:
    """Returns the stages computed in a root's loops, the root last."""
    members = {root}
    for name in reversed(list(infos)):
        info = infos[name]
        readers = set(info.readers)
        anchored = any(infos[r].is_anchor for r in readers if r in infos)  # others have moved
        inside = not (info.is_output or anchored or _is_table(infos, info))
        if inside and readers and readers <= members:
            members.add(name)
    return [n for n in infos if n in members]
