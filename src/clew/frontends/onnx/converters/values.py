"""Sequences and optionals: host operators, or no operators at all if their structure is known."""

from __future__ import annotations

from collections.abc import Sequence

from clew.frontends.building import call, scalar
from clew.frontends.lowering.captures import Captures
from clew.frontends.lowering.loops import build_loop
from clew.frontends.onnx.file.tensors import dtype_of
from clew.frontends.onnx.layer import Layer
from clew.frontends.onnx.registry import Result, converter
from clew.frontends.onnx.value_types import value_type
from clew.ir.expr import Expr, Var
from clew.ir.syntax import type_text
from clew.ir.types import OptionalType, SequenceType, TensorType, Type, UnrankedType
from clew.ops.data.structure import elements_of, folded, sequence_of


def _folded(layer: Layer, op: str, *args: Expr, **attrs: object) -> Expr:
    return folded(call(op, *args, **attrs), layer.builder.known.get)


@converter("SequenceConstruct", values=True)
def sequence_construct(layer: Layer) -> Result:
    """A list of the inputs."""
    return call("sequence.construct", *layer.present())


@converter("SequenceEmpty", values=True)
def sequence_empty(layer: Layer) -> Result:
    """An empty list of dtype `dtype` (f32)."""
    dtype = dtype_of(layer.integer("dtype", 1), "the sequence")
    return call("sequence.construct", dtype=dtype)


@converter("SequenceAt", values=True)
def sequence_at(layer: Layer) -> Result:
    """The element itself, if sequence and position are known."""
    return _folded(layer, "sequence.at", layer.input(0), layer.input(1))


@converter("SequenceInsert", values=True)
def sequence_insert(layer: Layer) -> Result:
    """By default at the end."""
    return _folded(layer, "sequence.insert", *_without_last(layer, 2))


@converter("SequenceErase", values=True)
def sequence_erase(layer: Layer) -> Result:
    """By default from the end."""
    return _folded(layer, "sequence.erase", *_without_last(layer, 1))


def _without_last(layer: Layer, index: int) -> list[Expr]:
    """Returns the inputs; the one at `index` may be absent."""
    inputs = [layer.input(n) for n in range(index)]
    last = layer.optional(index)
    return inputs if last is None else [*inputs, last]


@converter("SequenceLength", values=True)
def sequence_length(layer: Layer) -> Result:
    """A constant, if the sequence's elements are known."""
    return _folded(layer, "sequence.length", layer.input(0))


@converter("SplitToSequence", values=True)
def split_to_sequence(layer: Layer) -> Result:
    """Slices, if size and parts are known."""
    attrs = {"axis": layer.integer("axis"), "keepdims": layer.flag("keepdims")}
    return _folded(layer, "sequence.split", *_without_last(layer, 1), **attrs)


@converter("ConcatFromSequence", values=True)
def concat_from_sequence(layer: Layer) -> Result:
    """A concatenation, if the sequence's elements are known."""
    axis, new_axis = layer.integer("axis"), layer.flag("new_axis")
    return _folded(layer, "sequence.concat", layer.input(0), axis=axis, new_axis=new_axis)


@converter("SequenceMap", values=True)
def sequence_map(layer: Layer) -> Result:
    """The body over the elements: once for each if they are known, else as a loop."""
    inputs = layer.present()
    first = inputs[0]
    if not isinstance(first.type, SequenceType):
        raise layer.wrong(f"goes over a {first.type}")
    held = [elements_of(x) for x in inputs if isinstance(x.type, SequenceType)]
    if all(h is not None for h in held):
        count = len(held[0] or ())
        if count and all(len(h or ()) >= count for h in held):
            iterations = [_iteration(layer, inputs, n) for n in range(count)]
            return [sequence_of(elements, first.type) for elements in zip(*iterations, strict=True)]
    return _mapped(layer, inputs)


def _iteration(layer: Layer, inputs: Sequence[Expr], position: int) -> list[Expr]:
    """Returns the body's results for the elements at a position."""
    found = []
    for x in inputs:
        elements = elements_of(x)
        found.append(x if elements is None else elements[position])
    return layer.subgraph("body", found)


def _mapped(layer: Layer, inputs: Sequence[Expr]) -> list[Expr]:
    index, going = Var("i", TensorType((), "i64")), Var("going", TensorType((), "bool"))
    whole = [Var(f"input{n}", x.type) for n, x in enumerate(inputs)]
    captures = Captures(layer.builder.known)
    read = [call("sequence.at", x, index) if isinstance(x.type, SequenceType) else x for x in whole]
    results = layer.subgraph("body", read, captures)
    outs: list[Var] = []
    for n, result in enumerate(results):
        if not isinstance(result.type, (TensorType, UnrankedType)):
            raise layer.wrong(f"makes a sequence of {result.type}")
        outs.append(Var(f"output{n}", SequenceType(result.type)))
    grown = [call("sequence.insert", o, r) for o, r in zip(outs, results, strict=True)]
    empty = [call("sequence.construct", dtype=_dtype(r.type)) for r in results]
    found = build_loop(
        call("sequence.length", inputs[0]),
        scalar(True, "bool"),
        (index, going, *outs, *whole),
        going,
        [going, *grown, *whole],
        [*empty, *inputs],
        captures,
        None,
    )
    return found[: len(outs)]


def _dtype(type_: Type) -> str:
    assert isinstance(type_, (TensorType, UnrankedType))
    return type_.dtype


@converter("Optional", values=True)
def optional(layer: Layer) -> Result:
    """The input, or an empty optional of the type `type`."""
    value = layer.optional(0)
    if value is not None:
        return call("optional.some", value)
    attribute = layer.attribute("type")
    if attribute is None:
        raise layer.wrong("has neither an input nor a type")
    type_ = value_type(attribute.tp, f"the type of {layer.name!r}")
    return call("optional.none", type=type_text(type_))


@converter("OptionalHasElement", values=True)
def optional_has_element(layer: Layer) -> Result:
    """A constant, if it is known: a value that is not an optional has an element."""
    value = layer.optional(0)
    if value is None or not isinstance(value.type, OptionalType):
        return scalar(value is not None, "bool")
    return _folded(layer, "optional.has", value)


@converter("OptionalGetElement", values=True)
def optional_get_element(layer: Layer) -> Result:
    """The element; a value that is not an optional is its own element."""
    value = layer.input(0)
    if not isinstance(value.type, OptionalType):
        return value
    return _folded(layer, "optional.get", value)
