"""Closing a part of a graph into a function: what it uses from outside becomes parameters."""

from __future__ import annotations

from clew.ir.expr import Expr, Var


class Parameters:
    """A function's parameters as they come up, and what they stand for."""

    def __init__(self) -> None:
        self.variables: list[Var] = []
        self.arguments: list[Expr] = []
        self._found: dict[int, Var] = {}

    def of(self, argument: Expr) -> Var:
        """Returns the parameter that stands for an argument, a new one when it first comes up."""
        found = self._found.get(argument.id)
        if found is None:
            found = Var(f"p{len(self.variables)}", argument.type)
            self._found[argument.id] = found
            self.variables.append(found)
            self.arguments.append(argument)
        return found
