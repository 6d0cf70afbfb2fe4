"""The reason why a pattern does not match, in words."""

from __future__ import annotations

from clew.ir.expr import Call, Constant, Expr, Function, GlobalVar, If, TupleGetItem, Var, While
from clew.patterns.base import PatternBase
from clew.patterns.found import Match
from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class Explanation:
    """The result of matching a pattern against a node.

    `match` is the match, if there is one. Otherwise `at` is the node where the search got farthest:
    `reached` is the part of the pattern that failed there, `wanted` and `found` give the reason,
    and `depth` is the number of parts of the pattern matched by then.
    """

    pattern: PatternBase
    root: Expr | None
    match: Match | None = None
    at: Expr | None = None
    reached: PatternBase | None = None
    wanted: str = ""
    found: str = ""
    depth: int = 0

    def __str__(self) -> str:
        if self.match is not None and self.root is not None:
            return f"{self.pattern}\n  matches {describe(self.root)}"
        lines = [str(self.pattern)]
        if self.root is None:
            return "\n".join([*lines, "  matches nothing here", f"  wanted:  {self.wanted}"])
        lines.append(f"  does not match {describe(self.root)}")
        if self.at is not None:
            lines.append(f"  came to: {describe(self.at)}")
        if self.reached is not None and self.reached is not self.pattern:
            lines.append(f"  part:    {self.reached}")
        return "\n".join([*lines, f"  wanted:  {self.wanted}", f"  found:   {self.found}"])


def kind_of(node: Expr) -> str:
    """Returns a description of a node without its operands."""
    match node:
        case Call(op=Function()):
            return f"a call of the function {node.title}"
        case Call():
            return f"a call of {node.op_name}"
        case Constant():
            return f"a constant {node.type}"
        case Var():
            return f"the variable {node.name}"
        case TupleGetItem():
            return f"value {node.index} of a tuple"
        case If():
            return "a branch"
        case While():
            return "a loop"
        case GlobalVar():
            return f"the function @{node.name}"
    return f"a {type(node).__name__.lower()}"


def describe(node: Expr) -> str:
    """Returns a description of a node: its kind, its type, and its layers."""
    layers = ", ".join(node.layers[:3]) + (", ..." if len(node.layers) > 3 else "")
    typed = "" if isinstance(node, Constant) else f": {node.type}"
    return f"%{node.id}, {kind_of(node)}{typed}" + (f"  // {layers}" if layers else "")
