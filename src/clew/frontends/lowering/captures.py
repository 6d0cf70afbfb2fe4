"""The outside values of inner graphs (branches, bodies of loops)."""

from __future__ import annotations

from dataclasses import field

from clew.ir.expr import Expr, Var
from clew.ir.values import KnownValues
from clew.support.dataclass import dataclass


@dataclass
class Captures:
    """Outside values that a function (a branch, a loop body) takes as parameters."""

    known: KnownValues
    parameters: dict[int, tuple[Expr, Var]] = field(default_factory=dict)

    def parameter(self, name: str, outer: Expr) -> Var:
        """Returns the parameter for an outside value."""
        found = self.parameters.get(outer.id)
        if found is None:
            var = Var(name, outer.type)
            self.known.alias(var, outer)
            found = self.parameters[outer.id] = (outer, var)
        return found[1]

    @property
    def outers(self) -> list[Expr]:
        """The outside values, in order of first use."""
        return [outer for outer, _ in self.parameters.values()]
