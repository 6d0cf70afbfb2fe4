"""Closes a part of a graph into a function: values used from outside become parameters."""

from __future__ import annotations

from clew.ir.expr import Expr, Var


class Parameters:
    """A function's parameters in order of first use, with the expressions they stand for."""

    def __init__(self) -> None:
        self.variables: list[Var] = []
        self.arguments: list[Expr] = []
        self._found: dict[int, Var] = {}

    def of(self, argument: Expr) -> Var:
        """Returns the parameter for an argument, created on first use."""
        found = self._found.get(argument.id)
        if found is None:
            found = Var(f"p{len(self.variables)}", argument.type)
            self._found[argument.id] = found
            self.variables.append(found)
            self.arguments.append(argument)
        return found
