"""Requests during an import for values that are unknown before a run."""

from __future__ import annotations

from collections.abc import Sequence

from clew.ir.deciding import deciding_leaves, may_decide
from clew.ir.expr import Expr, Var
from clew.ir.values import KnownValues


class Asked:
    """Values that converters requested and that are unknown, with the inputs they depend on."""

    def __init__(self, known: KnownValues) -> None:
        self._known = known
        self._before: list[Expr] = []
        self._here: list[Expr] = []
        self._undecided: list[Expr] = []

    def next_layer(self) -> None:
        """Starts a layer: later requests belong to it."""
        self._before += self._here
        self._here = []

    def unknown(self, expr: Expr) -> None:
        """Records that a converter requested a value that is unknown before the run."""
        self._here.append(expr)

    def undecided(self, condition: Expr) -> None:
        """Records a condition that selects one of two different graphs and is unknown before
        a run.
        """
        self._undecided.append(condition)

    def left_open(self, params: Sequence[Var]) -> tuple[str, ...]:
        """Returns the inputs that decide between different branches: flags, counts, axes."""
        leaves = self._leaves(self._undecided)
        return tuple(
            p.name
            for p in params
            if p.id in leaves and may_decide(p.type) and p.tensor.dtype in ("bool", "i32", "i64")
        )

    def in_vain(self, params: Sequence[Var]) -> tuple[str, ...]:
        """Returns the inputs behind unknown values that the last layer requested; if it requested
        none, those that any layer requested. Only vectors and scalars: tensors of higher rank are
        data.
        """
        for asked in (self._here, self._before):
            leaves = self._leaves(asked)
            small = [p for p in params if p.id in leaves and may_decide(p.type)]
            if small:
                return tuple(p.name for p in small)
        return ()

    def _leaves(self, exprs: Sequence[Expr]) -> set[int]:
        return {leaf.id for leaf in deciding_leaves(exprs, self._known.stands_for)}
