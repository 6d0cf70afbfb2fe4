"""LSTM, GRU and RNN: their cells and loops over time are those of `frontends/lowering/`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from clew.frontends.building import call, fields, filled, reshaped, scalar
from clew.frontends.lowering.captures import Captures
from clew.frontends.lowering.cells import (
    Activation,
    gru_cell,
    gru_cell_resetting_first,
    lstm_cell,
    rnn_cell,
)
from clew.frontends.lowering.recurrent import Cell, Product, input_part, joined, over_time, plain
from clew.frontends.onnx.layer import Layer
from clew.frontends.onnx.registry import Result, converter
from clew.ir.dims import Dim
from clew.ir.expr import Expr
from clew.ops.common import differ

# Each operator's default alpha and beta.
_ACTIVATIONS: Final[dict[str, tuple[str, dict[str, float]]]] = {
    "affine": ("", {"alpha": 1.0, "beta": 0.0}),
    "elu": ("nn.elu", {"alpha": 1.0}),
    "hardsigmoid": ("nn.hard_sigmoid", {"alpha": 0.2, "beta": 0.5}),
    "leakyrelu": ("nn.leaky_relu", {"alpha": 0.01}),
    "relu": ("nn.relu", {}),
    "scaledtanh": ("tanh", {"alpha": 1.0, "beta": 1.0}),
    "sigmoid": ("sigmoid", {}),
    "softplus": ("nn.softplus", {}),
    "softsign": ("nn.softsign", {}),
    "tanh": ("tanh", {}),
    "thresholdedrelu": ("nn.thresholded_relu", {"alpha": 1.0}),
}


def _activations(layer: Layer, defaults: Sequence[str], direction: int) -> list[Activation]:
    """Returns the activations of one direction. Those with an alpha (a beta) take the next one of
    the model's list.
    """
    directions = len(_backwards(layer))
    names, count = list(defaults) * directions, len(defaults) * directions
    if layer.has("activations"):
        names = [n.lower() for n in layer.texts("activations")][:count]
    if len(names) != count:
        raise layer.wrong(f"has {len(names)} activations, expected {count}")
    given = {
        "alpha": iter(layer.reals("activation_alpha")),
        "beta": iter(layer.reals("activation_beta")),
    }
    found = [_activation(layer, name, given) for name in names]
    return found[direction * len(defaults) :][: len(defaults)]


def _activation(layer: Layer, name: str, given: dict[str, Iterator[float]]) -> Activation:
    if name not in _ACTIVATIONS:
        raise layer.wrong(f"has the activation {name!r}")
    op, defaults = _ACTIVATIONS[name]
    values = {key: next(given[key], default) for key, default in defaults.items()}
    limit = layer.real("clip") if layer.has("clip") else None
    if limit is not None and not limit >= 0:
        raise layer.wrong(f"has clip={limit}")

    def apply(x: Expr) -> Expr:
        if limit is not None:
            x = call("clip", x, min=-limit, max=limit)
        if name not in ("affine", "scaledtanh"):
            return call(op, x, **values)
        alpha, beta = (scalar(values[key], x.tensor.dtype) for key in ("alpha", "beta"))
        if name == "affine":
            return call("add", call("multiply", x, alpha), beta)
        return call("multiply", call("tanh", call("multiply", x, beta)), alpha)

    return apply


def _backwards(layer: Layer) -> list[bool]:
    """Returns for each direction whether it runs backwards."""
    direction = layer.text("direction", "forward").lower()
    known = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
    if direction not in known:
        raise layer.wrong(f"has the direction {direction!r}")
    return known[direction]


def of_direction(x: Expr, direction: int) -> Expr:
    """Returns the part of a parameter that belongs to one direction."""
    part = call("slice", x, begin=(direction,), end=(direction + 1,), strides=(1,), axes=(0,))
    return reshaped(part, x.tensor.shape[1:])


def _rows(x: Expr, begin: int, end: int) -> Expr:
    return call("slice", x, begin=(begin,), end=(end,), axes=(0,))


def _plain(layer: Layer, index: int, direction: int) -> Product:
    """Returns the product with an input that holds weights."""
    return plain(of_direction(layer.input(index), direction))


def _biases(layer: Layer, direction: int, gates: int, hidden: int) -> tuple[Expr, Expr] | None:
    """Returns the biases of the inputs' and of the recurrent part."""
    bias = layer.optional(3)
    if bias is None:
        return None
    sizes = (gates * hidden, gates * hidden)
    first, second = fields(call("split", of_direction(bias, direction), sizes=sizes, axis=0), 2)
    return first, second


def recurrent_size(layer: Layer, axis: int = 2) -> int:
    """Returns the number of elements of a state: a size of the recurrent weight."""
    if layer.rank(2) <= axis:
        raise layer.wrong(f"has recurrence weights {layer.type(2)}")
    size = layer.type(2).shape[axis]
    if not isinstance(size, int):
        raise layer.open_size(f"the hidden size, {size},", size)
    return size


def _run(
    layer: Layer,
    initial: Sequence[int],
    cell: Callable[[Layer, Expr, int], Cell],
    hidden: int,
) -> list[Expr]:
    """Returns the stacked hidden states and the last states over all directions.

    `initial` are the inputs that hold the first states, if they are given.
    """
    backwards = _backwards(layer)
    if any(layer.rank(n) != 3 for n in range(3)):
        raise layer.wrong(f"takes 3 axes, got {layer.type(0)}, {layer.type(1)}, {layer.type(2)}")
    if any(differ(layer.type(n).shape[0], len(backwards)) for n in (1, 2)):
        raise layer.wrong(f"has weights {layer.type(1)} and {layer.type(2)} for {len(backwards)}")
    batch_first = "layout" in layer.schema.attributes and layer.flag("layout")
    x, lengths = layer.input(0), layer.optional(4)
    if batch_first:
        x = call("transpose", x, axes=(1, 0, 2))

    def reverse(series: Expr) -> Expr:
        if lengths is None:
            return call("flip", series, axes=(0,))
        return call("reverse_sequence", series, lengths, batch_axis=1, time_axis=0)

    outputs, last = [], []
    for number, backward in enumerate(backwards):
        states = [_first_state(layer, x, n, number, hidden, bool(batch_first)) for n in initial]
        made = cell(layer, reverse(x) if backward else x, number)
        *ends, stacked = over_time(made, states, lengths, Captures(layer.builder.known))
        outputs.append(reverse(stacked) if backward else stacked)
        last.append(ends)
    seq, batch, _ = x.tensor.shape
    whole = joined([reshaped(y, (seq, 1, batch, hidden)) for y in outputs], 1)
    ends_of = [
        joined([reshaped(ends[n], (1, batch, hidden)) for ends in last], 0)
        for n in range(len(initial))
    ]
    if batch_first:
        whole = call("transpose", whole, axes=(2, 0, 1, 3))
        ends_of = [call("transpose", end, axes=(1, 0, 2)) for end in ends_of]
    return [whole, *ends_of]


def _first_state(
    layer: Layer, x: Expr, index: int, direction: int, hidden: int, batch_first: bool
) -> Expr:
    batch: Dim = x.tensor.shape[1]
    given = layer.optional(index)
    if given is None:
        return filled(0, x.tensor.dtype, (batch, hidden))
    if batch_first:
        given = call("transpose", given, axes=(1, 0, 2))
    # The batch's size may have another name there; a loop's states keep theirs.
    return reshaped(of_direction(given, direction), (batch, hidden))


def _peepholes(layer: Layer, direction: int, hidden: int) -> list[Expr]:
    """Returns the cell's contribution to the gates i, o and f; empty if the model has none."""
    if layer.optional(7) is None:
        return []
    return fields(
        call("split", of_direction(layer.input(7), direction), sizes=(hidden,) * 3, axis=0), 3
    )


@converter("LSTM")
def lstm(layer: Layer) -> Result:
    """Gates i, o, f, c. Source: ONNX LSTM-22."""

    def products(direction: int) -> tuple[Product, Product]:
        return _plain(layer, 1, direction), _plain(layer, 2, direction)

    return lstm_with(layer, recurrent_size(layer), products)


def lstm_with(
    layer: Layer, hidden: int, products: Callable[[int], tuple[Product, Product]]
) -> list[Expr]:
    """Returns the results of an LSTM. `products` returns the products of a direction for inputs and
    state; inputs from 3 on are those of ONNX.
    """
    coupled = "input_forget" in layer.schema.attributes and layer.flag("input_forget")

    def cell(layer: Layer, x: Expr, direction: int) -> Cell:
        gate, squash, out = _activations(layer, ("sigmoid", "tanh", "tanh"), direction)
        outer, inner = products(direction)
        return lstm_cell(
            input_part(x, outer, *_biases(layer, direction, 4, hidden) or ()),
            inner,
            hidden,
            "iofg",
            gate=gate,
            squash=squash,
            out=out,
            coupled=bool(coupled),
            peepholes=_peepholes(layer, direction, hidden),
        )

    return _run(layer, (5, 6), cell, hidden)


@converter("GRU")
def gru(layer: Layer) -> Result:
    """Gates z, r, h. Source: ONNX GRU-22."""
    hidden = recurrent_size(layer)
    name = "linear_before_reset"
    reset_after = name in layer.schema.attributes and layer.flag(name)

    def cell(layer: Layer, x: Expr, direction: int) -> Cell:
        gate, squash = _activations(layer, ("sigmoid", "tanh"), direction)
        biases = _biases(layer, direction, 3, hidden)
        sizes = (2 * hidden, hidden)
        recurrent = of_direction(layer.input(2), direction)
        added: list[Expr] = []
        rest: Expr | None = None
        if biases is not None:
            # If the reset comes after the product, the bias of h lies inside the reset.
            gates, rest = fields(call("split", biases[1], sizes=sizes, axis=0), 2)
            outer = filled(0, x.tensor.dtype, (hidden,)) if reset_after else rest
            added = [biases[0], call("concatenate", gates, outer, axis=0)]
        inputs = input_part(x, _plain(layer, 1, direction), *added)
        if reset_after:
            return gru_cell(
                inputs, recurrent, hidden, "zrn", gate=gate, squash=squash, candidate_bias=rest
            )
        weights = _rows(recurrent, 0, sizes[0]), _rows(recurrent, sizes[0], 3 * hidden)
        return gru_cell_resetting_first(inputs, *weights, hidden, gate, squash)

    return _run(layer, (5,), cell, hidden)


@converter("RNN")
def rnn(layer: Layer) -> Result:
    """One gate. Source: ONNX RNN-22."""
    hidden = recurrent_size(layer)

    def cell(layer: Layer, x: Expr, direction: int) -> Cell:
        (squash,) = _activations(layer, ("tanh",), direction)
        biases = _biases(layer, direction, 1, hidden) or ()
        inputs = input_part(x, _plain(layer, 1, direction), *biases)
        return rnn_cell(inputs, of_direction(layer.input(2), direction), squash)

    return _run(layer, (5,), cell, hidden)
