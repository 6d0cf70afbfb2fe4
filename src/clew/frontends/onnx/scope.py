"""Names and their values while a graph is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from onnx import AttributeProto, FunctionProto

from clew.frontends.lowering.captures import Captures
from clew.ir.expr import Constant, Expr
from clew.support.dataclass import dataclass
from clew.trace.span import Source


@dataclass
class Scope:
    """A graph or function body being imported.

    `key` identifies it, `prefix` precedes its layers' names, `attributes` are those that a
    function's nodes refer to. `within` is set while a standard operator's definition is expanded:
    all its nodes belong to that one layer.
    """

    key: str
    opsets: Mapping[str, int]
    prefix: str = ""
    parent: Scope | None = None
    captures: Captures | None = None
    attributes: Mapping[str, AttributeProto] = field(default_factory=dict)
    functions: Mapping[tuple[str, str, str], FunctionProto] = field(default_factory=dict)
    within: Source | None = None
    values: dict[str, Expr] = field(default_factory=dict)

    def lookup(self, name: str) -> Expr | None:
        """Returns the value of a name here, None if the name is not defined."""
        found = self.values.get(name)
        if found is not None or self.parent is None:
            return found
        outer = self.parent.lookup(name)
        if outer is None or self.captures is None or isinstance(outer, Constant):
            return outer
        return self.captures.parameter(name, outer)
