"""An operator of a TFLite file, as its converter sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from clew.frontends.builder import GraphBuilder
from clew.frontends.building import call
from clew.frontends.layer import Layer
from clew.frontends.tflite.file.model import OperatorInfo, TensorInfo
from clew.ir.dims import Dim
from clew.ir.expr import Expr
from clew.ir.types import is_integer

_ACTIVATIONS: Final[Sequence[tuple[str, str, Mapping[str, float]]]] = (
    ("none", "identity", {}),
    ("relu", "nn.relu", {}),
    ("relu_n1_to_1", "clip", {"min": -1.0, "max": 1.0}),
    ("relu6", "clip", {"min": 0.0, "max": 6.0}),
    ("tanh", "tanh", {}),
    ("sign_bit", "", {}),
)
"""Fused activations by number: name, operator ("" if it is not supported), and attributes."""


class TfliteLayer(Layer):
    """A layer with what the file says about its tensors: `operands` and `results`."""

    def __init__(
        self,
        name: str,
        operator: OperatorInfo,
        inputs: Sequence[Expr | None],
        operands: Sequence[TensorInfo | None],
        results: Sequence[TensorInfo | None],
        builder: GraphBuilder,
    ) -> None:
        outputs = [each.name if each else "" for each in results]
        given: Mapping[str, Any] = operator.options
        super().__init__(name, operator.op, inputs, outputs, given, builder, operator.version)
        self.operands: Final = tuple(operands)
        self.results: Final = tuple(results)

    def image(self, index: int, rank: int = 4) -> Expr:
        """Returns an input with as many axes as an image. Errors: M012 for another number."""
        if self.rank(index) != rank:
            raise self.wrong(f"takes {rank} axes as input {index}, got {self.type(index)}")
        return self.input(index)

    def result_dtype(self, index: int = 0) -> str:
        """Returns the type of a result's elements."""
        result = self.results[index] if index < len(self.results) else None
        if result is None:
            raise self.wrong(f"has no result {index}")
        return result.dtype

    def dims(self, index: int, what: str) -> tuple[Dim, ...]:
        """Returns the sizes in an input: ints, or symbolic dimensions.

        Errors: U002 if they are known only at run time, M012 if they are no integers.
        """
        if not is_integer(self.type(index).dtype):
            raise self.wrong(f"takes {what} as integers, got {self.type(index)}")
        return super().dims(index, what)

    def activated(self, value: Expr) -> Expr:
        """Returns a result after the operator's fused activation."""
        number = self.integer("activation", 0)
        if not 0 <= number < len(_ACTIVATIONS):
            raise self.wrong(f"has the activation {number}")
        name, op, bounds = _ACTIVATIONS[number]
        if not op:
            raise self.unsupported(f"the activation {name}")
        return value if op == "identity" else call(op, value, **bounds)
