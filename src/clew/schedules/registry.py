"""The rules, in the order in which they are asked: by what they demand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from clew.machine.target import Target
from clew.schedules.rule import Match, Rule, Scope, Work
from clew.schedules.rules.attention import Attention
from clew.schedules.rules.conv import Conv
from clew.schedules.rules.conv_parts import ConvParts
from clew.schedules.rules.dot import Dot
from clew.schedules.rules.elementwise import Elementwise
from clew.schedules.rules.matmul import Matmul
from clew.schedules.rules.matvec import Matvec
from clew.schedules.rules.melt import Melt
from clew.schedules.rules.neighbors import Neighbors
from clew.schedules.rules.parts import Parts
from clew.schedules.rules.rows import Rows
from clew.schedules.rules.separable import Separable
from clew.schedules.rules.spatial import Spatial
from clew.schedules.rules.split_weights import SplitWeights
from clew.schedules.rules.tiles import Tiles
from clew.schedules.rules.windows import Windows
from clew.schedules.rules.winograd import Winograd
from clew.support.errors import ScheduleError

AnyRule = Rule[Any]


class Registry:
    """A set of rules. Of two that match a kernel, the one with more demands has it."""

    def __init__(self, rules: Iterable[AnyRule]) -> None:
        """Errors: S060 for two rules of one name, or with the same demands."""
        self._rules: dict[str, AnyRule] = {}
        for rule in rules:
            self._add(rule)

    def _add(self, rule: AnyRule) -> None:
        demands = {d.name for d in rule.demands}
        for other in self._rules.values():
            if other.name == rule.name:
                raise ScheduleError("S060", f"two rules have the name {rule.name}")
            if other.scope == rule.scope and {d.name for d in other.demands} == demands:
                raise ScheduleError(
                    "S060",
                    f"the rules {other.name} and {rule.name} have the same demands",
                    hint="add to the demands of the rule that is for fewer kernels",
                )
        self._rules[rule.name] = rule

    def __iter__(self) -> Iterator[AnyRule]:
        return iter(self._rules.values())

    def __contains__(self, name: str) -> bool:
        return name in self._rules

    def __getitem__(self, name: str) -> AnyRule:
        return self._rules[name]

    def names(self) -> list[str]:
        """Returns the names of the rules, in alphabetical order."""
        return sorted(self._rules)

    def extended(self, rules: Sequence[AnyRule]) -> Registry:
        """Returns these rules and others.

        Errors: S060.
        """
        return Registry([*self._rules.values(), *rules]) if rules else self

    def find(
        self, scope: Scope, work: Work, target: Target, only: str = ""
    ) -> tuple[AnyRule, Match] | None:
        """Returns the rule for some stages and its match; None where none matches. `only` names
        the rule to ask.

        Errors: S064 where two rules with as many demands match.
        """
        found: tuple[AnyRule, Match] | None = None
        for rule in self._ordered(scope):
            if only and rule.name != only:
                continue
            if found is not None and len(rule.demands) < len(found[0].demands):
                break
            match = _match(rule, work, target)
            if match is None:
                continue
            if found is not None:
                raise ScheduleError(
                    "S064",
                    f"the rules {found[0].name} and {rule.name} both match "
                    f"{', '.join(work.members)} and demand as much",
                    hint="add to the demands of the one that should have it",
                )
            found = rule, match
        return found

    def matching(self, scope: Scope, work: Work, target: Target) -> list[str]:
        """Returns the names of all rules that match some stages."""
        rules = self._ordered(scope)
        return [rule.name for rule in rules if _match(rule, work, target) is not None]

    def _ordered(self, scope: Scope) -> list[AnyRule]:
        rules = [rule for rule in self._rules.values() if rule.scope == scope]
        return sorted(rules, key=lambda rule: (-len(rule.demands), rule.name))


def _match(rule: AnyRule, work: Work, target: Target) -> Match | None:
    if not all(demand.holds(work, target) for demand in rule.demands):
        return None
    found: Match | None = rule.match(work, target)
    return found


RULES: Final = Registry(
    (
        Attention(), Conv(), ConvParts(), Dot(), Elementwise(), Matmul(), Matvec(), Melt(),
        Neighbors(), Parts(), Rows(), Separable(), Spatial(), SplitWeights(), Tiles(), Windows(),
        Winograd(),
    )
)  # fmt: skip
"""clew's own rules."""
