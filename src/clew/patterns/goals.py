"""Goals of the matcher that come after a pattern has been taken on: what is left to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clew.ir.expr import Expr

if TYPE_CHECKING:
    from clew.patterns.pattern import CallOf, Checked, Dominates, Pattern


@dataclass(frozen=True, eq=False, slots=True)
class Tested:
    """The test of a pattern that has matched otherwise."""

    checked: Checked


@dataclass(frozen=True, eq=False, slots=True)
class Chain:
    """A row of operands, in any bracketing of the node's own."""

    pattern: CallOf
    leaves: tuple[Pattern, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Assign:
    """Each leaf matches one of the terms. `inner` are nodes that are covered with that."""

    pattern: Pattern
    leaves: tuple[Pattern, ...]
    terms: tuple[Expr, ...]
    inner: tuple[Expr, ...] = ()


@dataclass(frozen=True, eq=False, slots=True)
class Above:
    """The parent of a child that has matched."""

    pattern: Dominates
