"""Decisions of passes that measurements may make better than a cost model."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from clew.ir.expr import Call
from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class Decision:
    """One of several ways to compute something, of which the pass prefers `default`.

    `kind` is the kind of decision, and `subject` is text that is equal where the decision is the
    same: an operator with its types and attributes. `layers` are those concerned.
    """

    kind: str
    subject: str
    options: tuple[str, ...]
    default: str
    layers: tuple[str, ...]


class Decisions(Protocol):
    """Makes decisions. Its `repr` identifies the decisions."""

    def choose(self, decision: Decision) -> tuple[str, str]:
        """Returns one of the options, and a remark on it ("" for none)."""
        ...


class Defaults:
    """Decides as passes prefer."""

    def choose(self, decision: Decision) -> tuple[str, str]:
        """Returns the default."""
        return decision.default, ""

    def __repr__(self) -> str:
        return "defaults"


def subject_of(call: Call, without: Collection[str] = ()) -> str:
    """Returns the text that identifies a call's computation: operator, types and attributes, except
    those `without`, which other decisions make.
    """
    types = ", ".join(str(argument.type) for argument in call.args[: 1 if without else None])
    attrs = ", ".join(
        f"{name}={call.attrs[name]}" for name in sorted(call.attrs) if name not in without
    )
    return f"{call.op_name}({types}; {attrs})"
