"""The base class of all patterns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, TypeAlias

from clew.ir.expr import Expr
from clew.patterns.text import text

# Kinds of nodes that a pattern's root can match; `None` means any.
Kinds: TypeAlias = "frozenset[type[Expr]] | None"


class PatternBase(ABC):
    """A description of nodes. `is_naming` says whether a matched node belongs to the match, if its
    kind allows it.
    """

    is_naming: ClassVar[bool] = False

    @property
    def parts(self) -> tuple[PatternBase, ...]:
        """The patterns that this one consists of."""
        return ()

    @property
    def root_ops(self) -> frozenset[str] | None:
        """Names of the operators whose calls can match; `None` if other nodes can match, too."""
        return None

    @property
    def root_kinds(self) -> Kinds:
        """Kinds of nodes that can match; `None` for any."""
        return None

    @abstractmethod
    def written(self, parts: Sequence[str]) -> str:
        """Returns the pattern's text, given the text of its parts."""

    def __repr__(self) -> str:
        return text(self)
