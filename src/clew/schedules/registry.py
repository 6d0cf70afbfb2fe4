"""The registry of rules. The number of their demands determines the order of matching."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from clew.machine.target import Target
from clew.schedules.rule import Match, Rule, Scope, Work
from clew.schedules.rules.attention import Attention
from clew.schedules.rules.codes import Codes
from clew.schedules.rules.codes_row import CodesRow
from clew.schedules.rules.columns import Columns
from clew.schedules.rules.conv import Conv
from clew.schedules.rules.conv_parts import ConvParts
from clew.schedules.rules.conv_parts_rows import ConvPartsRows
from clew.schedules.rules.dot import Dot
from clew.schedules.rules.dot_conv import DotConv
from clew.schedules.rules.dots import Dots
from clew.schedules.rules.elementwise import Elementwise
from clew.schedules.rules.fourier import Fourier
from clew.schedules.rules.lines import Lines
from clew.schedules.rules.matmul import Matmul
from clew.schedules.rules.matvec import Matvec
from clew.schedules.rules.melt import Melt
from clew.schedules.rules.neighbors import Neighbors
from clew.schedules.rules.parts import Parts
from clew.schedules.rules.parts_rows import PartsRows
from clew.schedules.rules.rows import Rows
from clew.schedules.rules.selected import Selected
from clew.schedules.rules.separable import Separable
from clew.schedules.rules.sequential import Sequential
from clew.schedules.rules.spatial import Spatial
from clew.schedules.rules.split_weights import SplitWeights
from clew.schedules.rules.streamed import Streamed
from clew.schedules.rules.tiles import Tiles
from clew.schedules.rules.windows import Windows
from clew.schedules.rules.winograd import Winograd
from clew.support.errors import ScheduleError

AnyRule = Rule[Any]


class Registry:
    """A set of rules. If two match a kernel, the one with more demands schedules it."""

    def __init__(self, rules: Iterable[AnyRule]) -> None:
        """Errors: S060 if two rules have the same name, or the same scope and demands."""
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
                    hint="add a demand to the rule for fewer kernels",
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
        """Returns a registry of these rules and `rules`.

        Errors: S060.
        """
        return Registry([*self._rules.values(), *rules]) if rules else self

    def find(
        self, scope: Scope, work: Work, target: Target, only: str = ""
    ) -> tuple[AnyRule, Match] | None:
        """Returns the rule for some stages and its match; None if none matches. With `only`, tries
        only the rule of that name.

        Errors: S064 if two rules with equally many demands match.
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
                    f"{', '.join(work.members)} and have as many demands",
                    hint="add a demand to the rule that should schedule it",
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
        Attention(), Codes(), CodesRow(), Columns(), Conv(), ConvParts(), ConvPartsRows(),
        Dot(), DotConv(), Dots(), Elementwise(), Fourier(), Lines(), Matmul(), Matvec(), Melt(),
        Neighbors(), Parts(), PartsRows(), Rows(), Selected(), Separable(), Sequential(), Spatial(),
        SplitWeights(), Streamed(), Tiles(), Windows(), Winograd(),
    )
)  # fmt: skip
"""clew's own rules."""
