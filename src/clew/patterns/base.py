"""What all patterns have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, TypeAlias

from clew.ir.expr import Expr
from clew.patterns.text import text

# Kinds of nodes that a pattern's root can be; `None` stands for any.
Kinds: TypeAlias = "frozenset[type[Expr]] | None"


class PatternBase(ABC):
    """What a node may look like. `is_naming` says whether the node that it matches is part of the
    match, where it is of a kind that can be.
    """

    is_naming: ClassVar[bool] = False

    @property
    def parts(self) -> tuple[PatternBase, ...]:
        """The patterns that this one is made of."""
        return ()

    @property
    def root_ops(self) -> frozenset[str] | None:
        """Names of the operators whose calls can match; `None` when other nodes can, too."""
        return None

    @property
    def root_kinds(self) -> Kinds:
        """Kinds of nodes that can match; `None` for any."""
        return None

    @abstractmethod
    def written(self, parts: Sequence[str]) -> str:
        """Returns the pattern in words, its parts being written already."""

    def __repr__(self) -> str:
        return text(self)
