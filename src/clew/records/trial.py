"""A record: one set of choices for one kernel, or for one decision of the graph, on one machine."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final

KERNEL: Final = "kernel"
"""The kind of a record about a kernel's schedule. Other kinds are decisions about the graph."""

STATES: Final = {
    "verifying": "being compared with the interpreter",
    "measuring": "being measured",
    "won": "faster than what it was measured against",
    "lost": "not faster than what it was measured against",
    "undecided": "the measurements were not conclusive",
    "wrong": "its results differ from the interpreter's",
    "failed": "it cannot be scheduled or compiled",
    "crashed": "the process ended while it was verified",
}
"""The states of a record. The first two are those of a trial that is running."""
RUNNING: Final = ("verifying", "measuring")


def new_uid() -> str:
    """Returns an identifier that no other database uses."""
    return secrets.token_hex(8)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a trial, as one of `STATES`, its reason, and the measurements.

    `subject` is the structural hash of a kernel, or the text that identifies a decision of the
    graph. `choices` is the text of a schedule request, and `schedule` the primitives that it made,
    one per line.

    `ns` is the time in a call (of all uses of the kernel), with its quartiles, and `against_ns` the
    time of the choices it was measured against. Both are medians of `pairs` turns; `ratio` is the
    median ratio of the two times.
    """

    subject: str
    choices: str
    state: str = "verifying"
    reason: str = ""
    schedule: str = ""
    ns: float | None = None
    q1_ns: float | None = None
    q3_ns: float | None = None
    against_ns: float | None = None
    pairs: int = 0
    ratio: float | None = None


@dataclass(frozen=True, kw_only=True)
class Trial(Outcome):
    """A record: an outcome, and where it holds.

    `machine` is `Target.identity`, and `version` that of the code that made the schedule: a record
    applies only where the choices make the same primitives again. It was measured against the
    record `against`, or the default if that is empty. `total_ratio` is the product of the ratios
    down to the default. `confirmed`: whether it was measured against the default itself, at the
    end of a session.
    """

    kind: str
    machine: str
    threads: int
    version: str
    model: str = ""
    against: str = ""
    total_ratio: float | None = None
    confirmed: bool = False
    made: float = field(default_factory=time.time)
    uid: str = field(default_factory=new_uid)

    def ended(self, outcome: Outcome, total_ratio: float | None) -> Trial:
        """Returns the record of this trial with its outcome."""
        found = {one.name: getattr(outcome, one.name) for one in fields(Outcome)}
        return replace(self, **found, total_ratio=total_ratio)

    @property
    def gain(self) -> float:
        """The share of the default's time that it saves; 0 if it was not measured."""
        return 0.0 if self.total_ratio is None else 1.0 - self.total_ratio

    @property
    def day(self) -> str:
        """The day it was made, in UTC."""
        return time.strftime("%Y-%m-%d", time.gmtime(self.made))

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values."""
        return asdict(self)

    @staticmethod
    def of_json(value: Any) -> Trial:
        """Returns a record from JSON values, after checking them.

        Errors: ValueError, with the reason.
        """
        if not isinstance(value, Mapping):
            raise ValueError("it is not an object")
        known = {one.name for one in fields(Trial)}
        if not known.issuperset(value):
            raise ValueError(f"it has an unknown field {sorted(map(str, set(value) - known))[0]}")
        try:
            made = Trial(**value)
        except TypeError:
            raise ValueError("it lacks a field") from None
        made.check()
        return made

    def check(self) -> None:
        """Checks the types and ranges of all fields.

        Errors: ValueError, with the reason.
        """
        for one in fields(self):
            value = getattr(self, one.name)
            if not _fits(value, str(one.type)):
                raise ValueError(f"{one.name} is {value!r}")
        if self.state not in STATES:
            raise ValueError(f"state is {self.state!r}")
        if self.threads < 1 or self.pairs < 0 or not self.uid:
            raise ValueError("threads, pairs or uid are out of range")


def _fits(value: object, declared: str) -> bool:
    if declared == "str":
        return isinstance(value, str)
    if declared == "bool":
        return isinstance(value, bool)
    if declared == "int":
        return isinstance(value, int) and not isinstance(value, bool)
    if value is None:
        return declared.endswith("| None")
    real = isinstance(value, (int, float)) and not isinstance(value, bool)
    return real and math.isfinite(value) and value >= 0  # type: ignore[arg-type,operator]
