"""Imports the graph of a TFLite file.

A layer has the name of its first result, as tools of TFLite show it. Images keep the layout of the
file, channels last: a convolution is a layer of three nodes, with a transpose on either side, and
ChannelsFirst removes those that meet.

Quantized tensors are codes. Operators that move elements move codes; those that compute get the
numbers that the codes stand for, and their result is quantized again. The passes on precision make
integer kernels of that, as for ONNX.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from clew.frontends.builder import GraphBuilder, coded
from clew.frontends.building import call, constant
from clew.frontends.faults import FAULTS
from clew.frontends.limits import checked_size
from clew.frontends.names import Symbols, UniqueNames, display
from clew.frontends.tflite.converters.quantized.codes import is_code
from clew.frontends.tflite.file.model import File, GraphInfo, OperatorInfo, TensorInfo
from clew.frontends.tflite.file.model import constant as elements
from clew.frontends.tflite.layer import TfliteLayer
from clew.frontends.tflite.registry import CODES, CONVERTERS, ON_CODES
from clew.ir.dims import Dim, SymDim
from clew.ir.expr import Constant, Expr
from clew.ir.module import Module
from clew.ir.types import DTYPES, TensorType, to_numpy
from clew.ops.registry import bound_in_tflite
from clew.support.budgets import Budgets
from clew.support.errors import (
    ClewError,
    InputError,
    ModelError,
    UnsupportedError,
    locate,
)
from clew.support.near import did_you_mean
from clew.trace.span import Source


class Importer:
    """Imports the main graph of a file. `shapes` are given by the names of inputs."""

    def __init__(
        self, file: File, shapes: Mapping[str, Sequence[int | str]], budgets: Budgets
    ) -> None:
        self._graph = file.graphs[0]
        self._shapes = shapes
        self._budgets = budgets
        self._symbols = Symbols()
        self._names = UniqueNames()
        self._values: dict[int, Expr] = {}
        self._builder: Final = GraphBuilder("tflite", budgets)

    def run(self) -> Module:
        """Returns the module.

        Errors: I004 for shapes of inputs that the model does not have; M..., U... and T... as
        `clew.frontends.tflite.load`.
        """
        graph = self._graph
        self._inputs(graph)
        for number, operator in enumerate(graph.operators):
            name = self._layer_name(graph, operator, number)
            with locate(layer=display(name)):
                self._operator(graph, operator, name)
        outputs = [self._value(graph, index) for index in graph.outputs]
        output_names = UniqueNames()
        names = [output_names.claim(graph.tensors[index].name) for index in graph.outputs]
        return self._builder.module(outputs, names, {})

    # --- inputs and constants ---

    def _inputs(self, graph: GraphInfo) -> None:
        names = [graph.tensors[index].name for index in graph.inputs]
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
        for index in graph.inputs:
            tensor = graph.tensors[index]
            self._values[index] = self._builder.input(tensor.name, self._input_type(tensor))

    def _input_type(self, tensor: TensorInfo) -> TensorType:
        what = f"input {display(tensor.name)!r}"
        if tensor.dtype not in DTYPES:
            raise UnsupportedError("U004", f"{what} has elements of type {tensor.dtype}")
        shape: list[Dim] = []
        given = self._shapes.get(tensor.name, tensor.shape)
        for axis, size in enumerate(given):
            if isinstance(size, int):
                shape.append(size)
            else:
                name = (
                    self._symbols.named(size)
                    if size
                    else self._symbols.fresh(f"{tensor.name}_{axis}")
                )
                shape.append(SymDim.symbol(name))
        checked_size(
            [size for size in shape if isinstance(size, int)], tensor.dtype, self._budgets, what
        )
        return TensorType(tuple(shape), tensor.dtype)

    def _value(self, graph: GraphInfo, index: int) -> Expr:
        """Returns a tensor's value.

        Errors: M004 for one that nothing has defined, U004 for a variable.
        """
        if index not in self._values:
            tensor = graph.tensors[index]
            if tensor.is_variable:
                raise UnsupportedError("U004", f"tensor {display(tensor.name)!r} is a variable")
            if tensor.data is None and 0 not in tensor.shape:
                raise ModelError(
                    "M004",
                    f"tensor {display(tensor.name)!r} is no input, constant or earlier result",
                    hint="the file is damaged, or its operators are out of order",
                )
            self._values[index] = self._constant(tensor, index)
        return self._values[index]

    def _constant(self, tensor: TensorInfo, index: int) -> Constant:
        name = tensor.name or f"constant_{index}"
        return self._builder.constant(name, lambda: _elements(tensor, self._budgets))

    # --- layers ---

    def _layer_name(self, graph: GraphInfo, operator: OperatorInfo, number: int) -> str:
        first = next((index for index in operator.outputs if index >= 0), -1)
        own = graph.tensors[first].name if first >= 0 else ""
        wanted = own or f"{operator.op}_{number}"
        self._builder.count_name(wanted)
        return self._names.claim(wanted)

    def _operator(self, graph: GraphInfo, operator: OperatorInfo, name: str) -> None:
        self._builder.start_layer()
        source = Source(name, operator.op, self._builder.frontend)
        inputs = [self._value(graph, i) if i >= 0 else None for i in operator.inputs]
        operands = [graph.tensors[i] if i >= 0 else None for i in operator.inputs]
        results = [graph.tensors[i] if i >= 0 else None for i in operator.outputs]
        with self._builder.layer(source) as bound:
            try:
                with coded(operator.op, FAULTS):
                    layer = TfliteLayer(name, operator, inputs, operands, results, self._builder)
                    found = converted(layer)
            except ClewError:
                self._builder.fail(inputs)
                raise
            if len(found) < len(results):
                raise layer.unsupported(f"its result {len(found)}")
            for number, (index, value) in enumerate(zip(operator.outputs, found, strict=False)):
                if index >= 0:
                    tensor = graph.tensors[index]
                    if index in self._values:
                        raise ModelError("M010", f"{display(tensor.name)!r} is defined twice")
                    self._values[index] = bound.bind(number, value, tensor.name or name)
        kept = [self._values[index] for index in operator.outputs if index >= 0]
        self._builder.account(source, kept)


def converted(layer: TfliteLayer) -> list[Expr]:
    """Returns the results of a layer, codes where the file has codes.

    Errors: U001 for an operator that is not supported.
    """
    bound = bound_in_tflite(layer.op)
    if bound is not None:
        return layer.call_of(bound)
    convert = CONVERTERS.find(layer.op)
    if convert is None:
        raise _unknown(layer.op)
    if layer.op in CODES:
        return _listed(convert(layer))
    if any(map(is_code, (*layer.operands, *layer.results))):
        on_codes = ON_CODES.find(layer.op)
        integers = None if on_codes is None else on_codes(layer)
        if integers is not None:
            return _listed(integers)
    numbers = [
        _numbers(value, tensor) for value, tensor in zip(layer.inputs, layer.operands, strict=True)
    ]
    found = _listed(convert(layer.with_inputs(*numbers)))
    return [
        value if tensor is None else _codes(value, tensor)
        for value, tensor in zip(found, layer.results, strict=False)
    ]


def _unknown(op: str) -> UnsupportedError:
    if op.startswith("Flex"):
        hint = (
            f"{display(op[4:])} is an operator of TensorFlow: convert the model with builtin"
            " operators only (without SELECT_TF_OPS)"
        )
    else:
        hint = f"bind an operator of yours to it: register_op(..., tflite={display(op)!r})"
    return UnsupportedError("U001", f"{display(op)} is not supported", hint=hint)


def _listed(result: Expr | Sequence[Expr]) -> list[Expr]:
    return [result] if isinstance(result, Expr) else list(result)


def _numbers(value: Expr | None, tensor: TensorInfo | None) -> Expr | None:
    """Returns what codes stand for; other values as they are."""
    if value is None or tensor is None or not is_code(tensor):
        return value
    return call("dequantize", value, *_parameters(tensor, tensor.dtype), dtype="f32")


def _codes(value: Expr, tensor: TensorInfo) -> Expr:
    """Returns the codes of numbers, if the file's tensor has codes."""
    if not is_code(tensor) or value.tensor.dtype not in ("f32", "f16"):
        return value
    return call("quantize", value, *_parameters(tensor, tensor.dtype), dtype=tensor.dtype)


def _parameters(tensor: TensorInfo, dtype: str) -> list[Expr]:
    """Returns the scale of codes, and their zero point if it is not 0."""
    given = tensor.quantization
    assert given is not None
    shape = [1] * (len(tensor.shape) - given.axis) if given.by_channel else []
    if given.by_channel:
        shape[0] = given.scale.size
    found: list[Expr] = [constant(given.scale.reshape(shape))]
    if given.zero.any():
        found.append(constant(given.zero.astype(to_numpy(dtype)).reshape(shape)))
    return found


def _elements(tensor: TensorInfo, budgets: Budgets) -> Any:
    if tensor.data is None:
        return np.empty(tuple(size or 0 for size in tensor.shape), to_numpy(tensor.dtype))
    return elements(tensor, budgets)
