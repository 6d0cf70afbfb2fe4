"""A subgraph that is being imported."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from clew.frontends.tflite.file.model import GraphInfo
from clew.frontends.tflite.variables import Memory
from clew.ir.expr import Expr

KEEPING: Final = frozenset({"CALL", "CALL_ONCE", "IF", "STABLEHLO_CASE", "VAR_HANDLE", "WHILE"})
"""Operators that pass operands on as they are: constants stay constants."""
SETTINGS: Final = frozenset({"CALL_ONCE", "VAR_HANDLE"})
"""Operators that are done at import."""


@dataclass
class Scope:
    """A subgraph that is being imported: its number, and the values of its tensors and variables.

    `layer` is the layer that runs it, and `around` has the numbers of the enclosing subgraphs.
    """

    number: int
    graph: GraphInfo
    memory: Memory
    layer: str = ""
    around: tuple[int, ...] = ()
    values: dict[int, Expr] = field(default_factory=dict)
