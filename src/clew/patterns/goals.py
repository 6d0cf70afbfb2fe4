"""Goals of the matcher that come after a pattern has been taken on: what is left to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeAlias, TypeVar

from clew.ir.expr import Expr
from clew.patterns.base import PatternBase

P = TypeVar("P", bound=PatternBase)
# A pattern (or a further goal of one that is bound already), its node, and the rest.
Goals: TypeAlias = "tuple[Any, Expr, Goals] | None"
# Goals that are left; or several, to be tried in order; or FAILED.
Outcome: TypeAlias = "Goals | list[Goals] | Iterator[Goals] | bool"
FAILED: Final = False


@dataclass(frozen=True, eq=False, slots=True)
class Tested(Generic[P]):
    """The test of a pattern that has matched otherwise."""

    checked: P


@dataclass(frozen=True, eq=False, slots=True)
class Chain:
    """A row of operands, in any bracketing of the node's own."""

    pattern: PatternBase
    leaves: tuple[PatternBase, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Assign:
    """Each leaf matches one of the terms. `inner` are nodes that are covered with that."""

    pattern: PatternBase
    leaves: tuple[PatternBase, ...]
    terms: tuple[Expr, ...]
    inner: tuple[Expr, ...] = ()


@dataclass(frozen=True, eq=False, slots=True)
class Above(Generic[P]):
    """The parent of a child that has matched."""

    pattern: P
