"""Goals of the matcher that follow from a pattern: its remaining conditions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Generic, TypeAlias, TypeVar

from clew.ir.expr import Expr
from clew.patterns.base import PatternBase
from clew.support.dataclass import dataclass

P = TypeVar("P", bound=PatternBase)
# A pattern (or a further goal of a bound one), its node, and the remaining goals.
Goals: TypeAlias = "tuple[Any, Expr, Goals] | None"
# The remaining goals; or several alternatives, tried in order; or FAILED.
Outcome: TypeAlias = "Goals | list[Goals] | Iterator[Goals] | bool"
FAILED: Final = False


@dataclass(frozen=True, eq=False, slots=True)
class Tested(Generic[P]):
    """The test of a pattern that has otherwise matched."""

    checked: P


@dataclass(frozen=True, eq=False, slots=True)
class Chain:
    """A list of operands, in any bracketing except the pattern's."""

    pattern: PatternBase
    leaves: tuple[PatternBase, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Assign:
    """Each leaf matches one of the terms. `inner` are the nodes this covers."""

    pattern: PatternBase
    leaves: tuple[PatternBase, ...]
    terms: tuple[Expr, ...]
    inner: tuple[Expr, ...] = ()


@dataclass(frozen=True, eq=False, slots=True)
class Above(Generic[P]):
    """The parent of a child that has matched."""

    pattern: P
