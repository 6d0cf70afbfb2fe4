"""The facts about a threshold, recorded beside its value."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias, TypeVar

Value: TypeAlias = float | tuple[int, ...]
V = TypeVar("V", bound=Value)


class Facts(NamedTuple):
    """A threshold's value, its unit, and the reason for it.

    `measured` names the CPUs on which the value was measured; "" if that was not recorded. A
    `tunable` threshold sets the default or the options of a rule's choice, so the tuner can choose
    another value for a kernel.
    """

    value: Value
    unit: str
    reason: str
    measured: str = ""
    tunable: bool = False


class Subject:
    """The thresholds of one subject. A call records one and returns its value."""

    def __init__(self) -> None:
        self.facts: list[Facts] = []

    def __call__(
        self, value: V, unit: str, reason: str, *, measured: str = "", tunable: bool = False
    ) -> V:
        self.facts.append(Facts(value, unit, reason, measured, tunable))
        return value
