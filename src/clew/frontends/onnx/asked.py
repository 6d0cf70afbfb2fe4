"""What an import asked of values that only a run tells."""

from __future__ import annotations

from collections.abc import Sequence

from clew.ir.deciding import deciding_leaves, may_decide
from clew.ir.expr import Expr, Var
from clew.ir.values import KnownValues


class Asked:
    """Values that converters asked for and nobody knows, and which inputs they depend on."""

    def __init__(self, known: KnownValues) -> None:
        self._known = known
        self._before: list[Expr] = []
        self._here: list[Expr] = []
        self._undecided: list[Expr] = []

    def next_layer(self) -> None:
        """Begins a layer: what is asked from here on is asked by it."""
        self._before += self._here
        self._here = []

    def unknown(self, expr: Expr) -> None:
        """Notes that a converter asked for a value that is not known before the run."""
        self._here.append(expr)

    def undecided(self, condition: Expr) -> None:
        """Notes a condition of which only a run tells which of two unlike graphs it leads to."""
        self._undecided.append(condition)

    def left_open(self, params: Sequence[Var]) -> tuple[str, ...]:
        """Returns the inputs that decide between unlike branches: flags, counts, axes."""
        leaves = self._leaves(self._undecided)
        return tuple(
            p.name
            for p in params
            if p.id in leaves and may_decide(p.type) and p.tensor.dtype in ("bool", "i32", "i64")
        )

    def in_vain(self, params: Sequence[Var]) -> tuple[str, ...]:
        """Returns the inputs that values depend on which the last layer asked for and nobody knows;
        those that any layer asked for where it asked for none. Vectors and numbers only: tensors
        of a higher rank are data.
        """
        for asked in (self._here, self._before):
            leaves = self._leaves(asked)
            small = [p for p in params if p.id in leaves and may_decide(p.type)]
            if small:
                return tuple(p.name for p in small)
        return ()

    def _leaves(self, exprs: Sequence[Expr]) -> set[int]:
        return {leaf.id for leaf in deciding_leaves(exprs, self._known.stands_for)}
