"""An operator of a TFLite file, as converters see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, Final, Protocol

from clew.frontends.builder import GraphBuilder
from clew.frontends.building import call
from clew.frontends.layer import Layer
from clew.frontends.tflite.codes import numbers
from clew.frontends.tflite.file.model import File, GraphInfo, OperatorInfo, TensorInfo
from clew.frontends.tflite.loop_facts import LoopFacts
from clew.frontends.tflite.scope import Scope
from clew.frontends.tflite.variables import Memory, Variables, variable_tensor
from clew.ir.dims import Dim
from clew.ir.expr import Expr
from clew.ir.types import is_integer
from clew.ops.registry import Op

ACTIVATIONS: Final[Sequence[tuple[str, str, Mapping[str, float]]]] = (
    ("none", "identity", {}),
    ("relu", "nn.relu", {}),
    ("relu_n1_to_1", "clip", {"min": -1.0, "max": 1.0}),
    ("relu6", "clip", {"min": 0.0, "max": 6.0}),
    ("tanh", "tanh", {}),
    ("sign_bit", "", {}),
)
"""Fused activations by number: name, operator ("" if it is not supported), and attributes."""


class Importing(Protocol):
    """The import that contains a layer, as converters see it."""

    @property
    def file(self) -> File:
        """The file."""
        ...

    @property
    def builder(self) -> GraphBuilder:
        """The builder of the module."""
        ...

    @property
    def loops(self) -> LoopFacts:
        """Facts about the file's loops."""
        ...

    @property
    def variables(self) -> Variables:
        """The model's variables."""
        ...

    def subgraph(
        self, layer: TfliteLayer, number: int, inputs: Sequence[Expr], memory: Memory
    ) -> list[Expr]:
        """Returns the results of a subgraph that a layer runs."""
        ...


class TfliteLayer(Layer):
    """A layer, with its tensors in the file: `operands` and `results`."""

    def __init__(
        self,
        name: str,
        operator: OperatorInfo,
        inputs: Sequence[Expr | None],
        operands: Sequence[TensorInfo | None],
        results: Sequence[TensorInfo | None],
        importer: Importing,
        scope: Scope,
    ) -> None:
        outputs = [each.name if each else "" for each in results]
        given: Mapping[str, Any] = operator.options
        builder = importer.builder
        super().__init__(name, operator.op, inputs, outputs, given, builder, operator.version)
        self.custom: Final = operator.custom
        self.operands: Final = tuple(operands)
        self.results: Final = tuple(results)
        self.importer: Final = importer
        self.scope: Final = scope
        self.intermediates: Final = tuple(scope.graph.tensors[n] for n in operator.intermediates)
        self._numbers = operator.inputs

    def graph(self, number: int) -> GraphInfo:
        """Returns a subgraph of the file. Errors: M012 if it does not exist."""
        graphs = self.importer.file.graphs
        if not 0 <= number < len(graphs):
            raise self.wrong(f"runs graph {number} of {len(graphs)}")
        return graphs[number]

    def is_variable(self, index: int) -> bool:
        """Whether an operand is a variable."""
        tensor = self.operands[index] if index < len(self.operands) else None
        return tensor is not None and tensor.is_variable

    def keep(self, index: int, value: Expr) -> None:
        """Sets the next value of a variable operand. Errors: M012 for another operand."""
        if not self.is_variable(index):
            raise self.wrong(f"keeps a state in input {index}, which is no variable")
        variable = variable_tensor(self.scope.graph, self.scope.number, self._numbers[index])
        self.scope.memory.write(variable, value)

    def with_rows(self, states: Sequence[int], count: Dim) -> TfliteLayer:
        """Returns the layer with a free number of rows in its states, which are variables.

        Errors: U002 within a branch or a loop, if only it knows the number.
        """
        values = list(self.inputs)
        for index in states:
            if self.is_variable(index):
                number = self._numbers[index]
                variable = variable_tensor(self.scope.graph, self.scope.number, number)
                found = self.importer.variables.with_rows(self.scope.memory, variable, count)
                if found is None:
                    raise self.open_size("the batch", count)
                values[index] = found
        return self.with_inputs(*values)

    def with_options(self, **changed: Any) -> TfliteLayer:
        """Returns the layer with other options, to pass to another converter."""
        made = copy(self)
        made.given = {**self.given, **changed}
        return made

    def image(self, index: int, rank: int = 4) -> Expr:
        """Returns an input of the given rank. Errors: M012 for another rank."""
        if self.rank(index) != rank:
            raise self.wrong(f"takes {rank} axes as input {index}, got {self.type(index)}")
        return self.input(index)

    def numbers_of(self, index: int) -> Expr:
        """Returns an operand as real numbers: codes are dequantized, other values unchanged."""
        found = numbers(self.input(index), self.operands[index])
        assert found is not None
        return found

    def result_dtype(self, index: int = 0) -> str:
        """Returns the type of a result's elements."""
        result = self.results[index] if index < len(self.results) else None
        if result is None:
            raise self.wrong(f"has no result {index}")
        return result.dtype

    def dims(self, index: int, what: str) -> tuple[Dim, ...]:
        """Returns the sizes in an input: ints, or symbolic dimensions.

        Errors: U002 if they are known only at run time, M012 if they are not integers.
        """
        if not is_integer(self.type(index).dtype):
            raise self.wrong(f"takes {what} as integers, got {self.type(index)}")
        return super().dims(index, what)

    def call_of(self, op: Op) -> list[Expr]:
        """Returns the results of the user's operator that is registered for this one: inputs by
        position, options by name.

        Errors: U005 for an omitted input before others; those of the operator.
        """
        given = list(self.inputs)
        while given and given[-1] is None:
            given.pop()
        if None in given:
            raise self.unsupported(f"input {given.index(None)} is omitted")
        return self.results_of(op, [g for g in given if g is not None], self.given)

    def activated(self, value: Expr) -> Expr:
        """Applies the operator's fused activation to a result."""
        number = self.integer("activation", 0)
        if not 0 <= number < len(ACTIVATIONS):
            raise self.wrong(f"has the activation {number}")
        name, op, bounds = ACTIVATIONS[number]
        if not op:
            raise self.unsupported(f"the activation {name}")
        return value if op == "identity" else call(op, value, **bounds)
