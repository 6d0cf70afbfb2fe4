"""StableHLO operators whose subgraph is a single operation: scatter and window reductions.

Source: the StableHLO specification, and LiteRT's kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from clew.frontends.building import call, cast, constant, reshaped, scalar
from clew.frontends.tflite.converters.blocks import windows_reduced
from clew.frontends.tflite.converters.stablehlo import padded
from clew.frontends.tflite.layer import TfliteLayer
from clew.frontends.tflite.registry import Result, converter
from clew.ir.dims import Dim, product
from clew.ir.expr import Expr

_BODIES: Final = {
    "ADD": "add", "STABLEHLO_ADD": "add", "MUL": "multiply", "STABLEHLO_MULTIPLY": "multiply",
    "MAXIMUM": "maximum", "STABLEHLO_MAXIMUM": "maximum", "MINIMUM": "minimum",
    "STABLEHLO_MINIMUM": "minimum", "LOGICAL_AND": "logical_and", "LOGICAL_OR": "logical_or",
    "STABLEHLO_AND": "and", "STABLEHLO_OR": "or",
}  # fmt: skip
_REPLACE: Final = ""
"""The body that returns its second operand."""
_REDUCTIONS: Final = {
    _REPLACE: "none", "add": "add", "multiply": "mul", "maximum": "max", "minimum": "min",
}  # fmt: skip
"""How `scatter_elements` combines elements, by body."""


def _body(layer: TfliteLayer, number: int) -> str:
    """Returns the operator that a subgraph of two operands applies to them, or `_REPLACE`.

    Errors: M012 for a subgraph that does not exist, U005 for one of another form.
    """
    graph = layer.graph(number)
    if (
        not graph.operators
        and len(graph.inputs) == 2
        and list(graph.outputs) == list(graph.inputs[1:])
    ):
        return _REPLACE
    if len(graph.operators) == 1:
        (operator,) = graph.operators
        fits = sorted(operator.inputs) == sorted(graph.inputs) and len(graph.inputs) == 2
        found = _BODIES.get(operator.op)
        if fits and list(operator.outputs) == list(graph.outputs) and found is not None:
            kind = "logical" if layer.type(0).dtype == "bool" else "bitwise"
            return f"{kind}_{found}" if found in ("and", "or") else found
    raise layer.unsupported("a subgraph other than one operation of its two operands")


@converter("STABLEHLO_REDUCE_WINDOW")
def reduce_window(layer: TfliteLayer) -> Result:
    """Reduces the windows of the padded and dilated tensor."""
    body = _body(layer, layer.integer("body_subgraph_index", 0))
    value = layer.known_one(1)
    if body == _REPLACE:
        raise layer.unsupported("windows of which the last element remains")
    if value is None:
        raise layer.unknown("the initial value")
    sizes, strides, between, gaps, ends = (
        layer.integers(name)
        for name in (
            "window_dimensions", "window_strides", "base_dilations", "window_dilations", "padding",
        )
    )  # fmt: skip
    if len(ends) != 2 * layer.rank():
        raise layer.wrong(f"pads {layer.type(0)} by {list(ends)}")
    x = padded(layer, ends[::2], ends[1::2], [n - 1 for n in between], value)
    return windows_reduced(layer, x, body, sizes, strides, gaps)


@converter("STABLEHLO_SCATTER")
def scatter(layer: TfliteLayer) -> Result:
    """Combines elements of the first operand with updates. Index vectors say where windows of
    updates begin; updates outside the operand have no effect.
    """
    x, indices, updates = layer.input(0), cast(layer.input(1), "i64"), layer.input(2)
    body = _body(layer, layer.integer("update_computation_subgraph_index", 0))
    if body not in _REDUCTIONS:
        raise layer.unsupported(f"updates that are combined by {body}")
    window, inserted, mapped = (
        layer.integers(name)
        for name in ("update_window_dims", "inserted_window_dims", "scatter_dims_to_operand_dims")
    )
    sizes, places = _sizes(layer, 0), _sizes(layer, 2)
    rank = len(places)
    outer = [axis for axis in range(rank) if axis not in window]
    windowed = [axis for axis in range(len(sizes)) if axis not in inserted]
    starts = _starts(layer, indices, outer, len(mapped))
    if len(windowed) != len(window) or not {*mapped, *inserted} <= set(range(len(sizes))):
        raise layer.wrong(f"has windows at {list(window)} of updates {layer.type(2)}")
    if not set(window) <= set(range(rank)):
        raise layer.wrong(f"has windows at {list(window)} of updates {layer.type(2)}")
    # The position of each update along each axis of the operand, broadcast to the updates.
    flat: Expr = scalar(0, "i64")
    inside: Expr = scalar(True, "bool")
    for axis, size in enumerate(sizes):
        place: Expr = scalar(0, "i64")
        if axis in mapped:
            shape = [places[n] if n in outer else 1 for n in range(rank)]
            place = _field(starts, mapped.index(axis), shape)
        if axis in windowed:
            own = window[windowed.index(axis)]
            shape = [places[own] if n == own else 1 for n in range(rank)]
            place = call("add", place, constant(np.arange(places[own]).reshape(shape)))
        fits = call("logical_and", call("greater_equal", place, scalar(0, "i64")),
                    call("less", place, scalar(size, "i64")))  # fmt: skip
        inside = call("logical_and", inside, fits)
        flat = call("add", call("multiply", flat, scalar(size, "i64")), place)
    count = int(np.prod(sizes))
    flat = call("where", inside, flat, scalar(count, "i64"))  # one more element takes the others
    flat = call("broadcast_to", reshaped(flat, _ranked(flat, rank)), shape=tuple(places))
    total = product(updates.tensor.shape)
    room = call("pad", reshaped(x, (count,)), pads=(0, 1), mode="constant", value=0)
    found = call(
        "scatter_elements",
        room,
        reshaped(flat, (total,)),
        reshaped(updates, (total,)),
        axis=0,
        reduction=_REDUCTIONS[body],
    )
    found = call("slice", found, begin=(0,), end=(count,), strides=(1,), axes=(0,))
    return reshaped(found, sizes)


def _ranked(value: Expr, rank: int) -> Sequence[Dim]:
    shape = value.tensor.shape
    return (*(1,) * (rank - len(shape)), *shape)


def _sizes(layer: TfliteLayer, index: int) -> list[int]:
    """Returns the sizes of an operand. Errors: U002 for free ones."""
    shape = layer.input(index).tensor.shape
    known = [size for size in shape if isinstance(size, int)]
    if len(known) < len(shape):
        raise layer.open_size("the size of an axis", *shape)
    return known


def _starts(layer: TfliteLayer, indices: Expr, outer: Sequence[int], depth: int) -> Expr:
    """Returns the index vectors along the last axis.

    Errors: M012 if they do not fit the updates.
    """
    vector = layer.integer("index_vector_dim", 0)
    if vector == indices.tensor.rank:
        indices = reshaped(indices, (*indices.tensor.shape, 1))
    rest = [n for n in range(indices.tensor.rank) if n != vector]
    given, updates = indices.tensor.shape, layer.input(2).tensor.shape
    fits = 0 <= vector < len(given) and given[vector] == depth and len(rest) == len(outer)
    if not fits or [given[n] for n in rest] != [updates[n] for n in outer]:
        raise layer.wrong(f"has indices {layer.type(1)} for updates {layer.type(2)}")
    return call("transpose", indices, axes=(*rest, vector))


def _field(starts: Expr, number: int, shape: Sequence[Dim]) -> Expr:
    """Returns one number of each index vector, in the given shape."""
    last = starts.tensor.rank - 1
    own = call("slice", starts, begin=(number,), end=(number + 1,), strides=(1,), axes=(last,))
    return reshaped(own, tuple(shape))
