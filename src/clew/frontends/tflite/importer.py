"""Imports a subgraph of a TFLite file, and the subgraphs that it runs.

A layer is named after its first result, as in other TFLite tools. Images keep the layout of the
file, NHWC: a convolution becomes a layer of three nodes, with a transpose on either side, and
ChannelsFirst removes transposes that meet.

Quantized tensors hold codes. Data movement moves the codes. Other operators compute with them in
TFLite's integer arithmetic (`converters/quantized/`). Those without such a form get the real
numbers that the codes represent, and their result is quantized again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from clew.frontends.builder import KNOWN, GraphBuilder, coded
from clew.frontends.faults import FAULTS
from clew.frontends.limits import checked_size, over
from clew.frontends.names import Symbols, UniqueNames, display
from clew.frontends.tflite.codes import codes, is_code, numbers
from clew.frontends.tflite.file.model import File, GraphInfo, OperatorInfo, TensorInfo
from clew.frontends.tflite.file.model import constant as elements
from clew.frontends.tflite.file.names import wanted_name
from clew.frontends.tflite.layer import TfliteLayer
from clew.frontends.tflite.loop_facts import LoopFacts
from clew.frontends.tflite.registry import CODES, CONVERTERS, ON_CODES
from clew.frontends.tflite.scope import KEEPING, SETTINGS, Scope
from clew.frontends.tflite.signatures import interface_of
from clew.frontends.tflite.variables import Memory, Variables, variable_tensor
from clew.ir.deferred import DeclaredInput
from clew.ir.dims import Dim, SymDim
from clew.ir.expr import Constant, Expr
from clew.ir.module import Module
from clew.ir.state import STATE, state_attribute
from clew.ir.types import DTYPES, TensorType, to_numpy
from clew.ir.usual_shapes import USUAL
from clew.ops.registry import bound_in_tflite
from clew.support.arrays import native
from clew.support.budgets import Budgets
from clew.support.call_form import FORM, CallForm
from clew.support.errors import (
    ClewError,
    InputError,
    ModelError,
    UnsupportedError,
    locate,
)
from clew.support.near import did_you_mean
from clew.trace.span import Source

_UNDEFINED: Final = frozenset({"CONCAT_EMBEDDINGS"})
"""Operators of TFLite's schema whose results nothing defines."""


class Importer:
    """Imports the first subgraph of a file, or that of a signature. `shapes` overrides those of
    inputs, by name. Inputs with a value in `constants` are constants, and also stay parameters.
    """

    def __init__(
        self,
        file: File,
        shapes: Mapping[str, Sequence[int | str]],
        budgets: Budgets,
        signature: str | None = None,
        constants: Mapping[str, Any] | None = None,
        without_ones: bool = False,
    ) -> None:
        self.file: Final = file
        self.builder = GraphBuilder("tflite", budgets, without_ones=without_ones)
        self.loops: Final = LoopFacts(file)
        self._interface = interface_of(file, signature)
        self._shapes = shapes
        self._constants = constants or {}
        self._symbols = Symbols()
        self._names = UniqueNames()
        self._layer_names: dict[tuple[str, int, int], str] = {}
        self._input_names = UniqueNames()
        self.variables: Final = Variables(
            file, self._interface.graph, self.builder, self._input_names
        )

    def run(self) -> Module:
        """Returns the module.

        Errors: I004 for shapes of inputs that the model does not have; M..., U... and T... as
        `clew.frontends.tflite.load`.
        """
        number = self._interface.graph
        scope = Scope(number, self.file.graphs[number], self.variables.memory)
        self._inputs(scope)
        self._operators(scope)
        outputs = [self._value(scope, index) for index in scope.graph.outputs]
        output_names = UniqueNames()
        names = [output_names.claim(name) for name in self._interface.outputs]
        states = list(self.variables.states(output_names))
        usual = self._usual(scope.graph)
        attributes: dict[str, Any] = {USUAL: usual} if usual else {}
        if not states:
            return self.builder.module(outputs, names, attributes)
        count, given = len(outputs), len(self.builder.params)
        shown = 0 if count == 1 else ("tuple", tuple(range(count)))
        attributes |= {
            STATE: state_attribute([state for *_, state in states]),
            FORM: CallForm(self._interface.inputs, tuple(range(given)), shown).plain,
        }
        self.builder.params.extend(var for var, _, _ in states)
        outputs += [value for _, value, _ in states]
        names += [state.output for *_, state in states]
        return self.builder.module(outputs, names, attributes)

    def _usual(self, graph: GraphInfo) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Returns the shapes that the file has for inputs with open sizes."""
        named = ((name, graph.tensors[n]) for name, n in self._named_inputs(graph))
        return tuple(
            (name, tensor.usual)
            for name, tensor in named
            if name not in self._shapes and None in tensor.shape and min(tensor.usual) > 0
        )

    def _named_inputs(self, graph: GraphInfo) -> Iterable[tuple[str, int]]:
        return zip(self._interface.inputs, graph.inputs, strict=True)

    @property
    def output_names(self) -> list[str]:
        """Names of the model's outputs."""
        names = UniqueNames()
        return [names.claim(name) for name in self._interface.outputs]

    def declared(self) -> list[DeclaredInput]:
        """Returns the model's inputs as declared in the file, with the given shapes. Sizes have the
        names that an import gives them.
        """
        graph, symbols = self.file.graphs[self._interface.graph], Symbols()
        return [
            self._declared(name, graph.tensors[index], symbols)
            for name, index in self._named_inputs(graph)
        ]

    def _declared(self, name: str, tensor: TensorInfo, symbols: Symbols) -> DeclaredInput:
        shape: list[int | str] = []
        for axis, size in enumerate(self._shapes.get(name, tensor.shape)):
            if isinstance(size, int):
                shape.append(size)
            else:
                shape.append(symbols.named(size) if size else symbols.fresh(f"{name}_{axis}"))
        return DeclaredInput(name, tensor.dtype, tuple(shape))

    # --- inputs and constants ---

    def _inputs(self, scope: Scope) -> None:
        names = self._interface.inputs
        if len(set(names)) < len(names):
            raise ModelError("M010", "two inputs of the model have the same name")
        unknown = sorted(set(self._shapes) - set(names))
        if unknown:
            shown = [display(name) for name in names]
            raise InputError(
                "I004",
                f"the model has no input {display(unknown[0])!r}",
                hint=did_you_mean(display(unknown[0]), shown, "model's inputs"),
            )
        for name, index in self._named_inputs(scope.graph):
            self._input_names.claim(name)
            type_ = self._input_type(name, scope.graph.tensors[index])
            scope.values[index] = self.builder.input(name, type_)
            if name in self._constants:
                data, span = native(self._constants[name]), self.builder.input_span(name)
                scope.values[index] = Constant(data, name=name, span=span)

    def _input_type(self, name: str, tensor: TensorInfo) -> TensorType:
        what = f"input {display(name)!r}"
        if tensor.dtype not in DTYPES:
            raise UnsupportedError("U004", f"{what} has elements of type {tensor.dtype}")
        declared = self._declared(name, tensor, self._symbols).shape or ()
        shape: list[Dim] = [d if isinstance(d, int) else SymDim.symbol(d) for d in declared]
        checked_size(
            [size for size in shape if isinstance(size, int)],
            tensor.dtype,
            self.builder.budgets,
            what,
        )
        return TensorType(tuple(shape), tensor.dtype)

    def _value(self, scope: Scope, index: int) -> Expr:
        """Returns a tensor's value. Errors: M004 for an undefined one."""
        tensor = scope.graph.tensors[index]
        if tensor.is_variable and index not in scope.values:
            variable = variable_tensor(scope.graph, scope.number, index)
            return self.variables.read(scope.memory, variable, tensor)
        if index not in scope.values:
            if tensor.data is None and 0 not in tensor.shape:
                raise ModelError(
                    "M004",
                    f"tensor {display(tensor.name)!r} is no input, constant or earlier result",
                    hint="the file is damaged, or its operators are out of order",
                )
            scope.values[index] = self._constant(tensor, scope.number, index)
        return scope.values[index]

    def _constant(self, tensor: TensorInfo, graph: int, index: int) -> Constant:
        name = tensor.name or f"constant_{index}"
        budgets = self.builder.budgets
        return self.builder.constant(name, lambda: _elements(tensor, budgets), key=(graph, index))

    # --- layers ---

    def subgraph(
        self, layer: TfliteLayer, number: int, inputs: Sequence[Expr], memory: Memory
    ) -> list[Expr]:
        """Returns the results of a subgraph that a layer runs. Its layers are named `layer/inner`.

        Errors: M012 for a graph that does not exist, takes other inputs, or runs itself.
        """
        graph = layer.graph(number)
        around = (*layer.scope.around, layer.scope.number)
        if number in around:
            raise layer.wrong(f"runs the graph {display(graph.name)!r} that it is part of")
        if len(around) > self.builder.budgets.nesting:
            raise over(
                "M009", "nested graphs", len(around), "nesting", self.builder.budgets.nesting
            )
        if len(graph.inputs) != len(inputs):
            raise layer.wrong(
                f"runs {display(graph.name)!r} of {len(graph.inputs)} inputs on {len(inputs)}"
            )
        scope = Scope(number, graph, memory, layer.name, around)
        scope.values.update(zip(graph.inputs, inputs, strict=True))
        self._operators(scope)
        return [self._value(scope, index) for index in graph.outputs]

    def _operators(self, scope: Scope) -> None:
        for number, operator in enumerate(scope.graph.operators):
            name = self._layer_name(scope, operator, number)
            with locate(layer=display(name)):
                self._operator(scope, operator, name)

    def _layer_name(self, scope: Scope, operator: OperatorInfo, number: int) -> str:
        """Returns the name of a layer. A subgraph that is imported again gets the same names."""
        key = (scope.layer, scope.number, number)
        if key not in self._layer_names:
            wanted = wanted_name(scope.graph, operator, number)
            wanted = f"{scope.layer}/{wanted}" if scope.layer else wanted
            self.builder.count_name(wanted)
            self._layer_names[key] = self._names.claim(wanted)
        return self._layer_names[key]

    def _operator(self, scope: Scope, operator: OperatorInfo, name: str) -> None:
        self.builder.start_layer()
        tensors = scope.graph.tensors
        source = Source(name, operator.op, self.builder.frontend)
        _checked_known(operator.op)  # first: its operands may be defined by its own runtime
        inputs = [self._value(scope, i) if i >= 0 else None for i in operator.inputs]
        operands = [tensors[i] if i >= 0 else None for i in operator.inputs]
        results = [tensors[i] if i >= 0 else None for i in operator.outputs]
        with self.builder.layer(source) as bound:
            try:
                with coded(operator.op, FAULTS):
                    layer = TfliteLayer(name, operator, inputs, operands, results, self, scope)
                    found = converted(layer)
            except ClewError:
                self.builder.fail(inputs)
                raise
            if len(found) < len(results):
                raise layer.unsupported(f"its result {len(found)}")
            for number, (index, value) in enumerate(zip(operator.outputs, found, strict=False)):
                if index < 0:
                    continue
                if index in scope.values:
                    raise ModelError("M010", f"{display(tensors[index].name)!r} is defined twice")
                if operator.op not in KEEPING or value not in inputs:
                    value = bound.bind(number, value, tensors[index].name or name)
                scope.values[index] = value
        kept = [scope.values[index] for index in operator.outputs if index >= 0]
        reason = KNOWN if operator.op in SETTINGS else ""
        self.builder.account(source, kept, reason)


def converted(layer: TfliteLayer) -> list[Expr]:
    """Returns the results of a layer of a known operator; codes for quantized tensors."""
    bound = bound_in_tflite(layer.op)
    if bound is not None:
        return layer.call_of(bound)
    convert = CONVERTERS.find(layer.op)
    assert convert is not None
    if layer.op in CODES:
        return _listed(convert(layer))
    if any(map(is_code, (*layer.operands, *layer.results))):
        on_codes = ON_CODES.find(layer.op)
        integers = None if on_codes is None else on_codes(layer)
        if integers is not None:
            return _listed(integers)
    given = [
        numbers(value, tensor) for value, tensor in zip(layer.inputs, layer.operands, strict=True)
    ]
    found = _listed(convert(layer.with_inputs(*given)))
    return [
        value if tensor is None else codes(value, tensor)
        for value, tensor in zip(found, layer.results, strict=False)
    ]


def _checked_known(op: str) -> None:
    """Errors: U001 for an operator that is not supported."""
    if bound_in_tflite(op) is not None or CONVERTERS.find(op) is not None:
        return
    if op.startswith("Flex"):
        hint = (
            f"{display(op[4:])} is an operator of TensorFlow: convert the model with builtin"
            " operators only (without SELECT_TF_OPS)"
        )
    else:
        hint = f"bind an operator of yours to it: register_op(..., tflite={display(op)!r})"
    if op in _UNDEFINED:
        hint = f"TFLite defines the options of {op}, but not its results; {hint}"
    raise UnsupportedError("U001", f"{display(op)} is not supported", hint=hint)


def _listed(result: Expr | Sequence[Expr]) -> list[Expr]:
    return [result] if isinstance(result, Expr) else list(result)


def _elements(tensor: TensorInfo, budgets: Budgets) -> Any:
    if tensor.data is None:
        shape = tuple(size or 0 for size in tensor.shape)
        checked_size(shape, tensor.dtype, budgets, f"tensor {display(tensor.name)!r}")
        return np.empty(shape, to_numpy(tensor.dtype))
    return elements(tensor, budgets)
