"""LSTM, GRU and RNN: the inputs' part as one dense layer, then a loop over time.

Each direction is a `While` whose state is the hidden state (and the cell), the inputs' part of the
gates and
the recurrent weights; what leaves it at each step is stacked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from clew.frontends.onnx.build import fields, filled, reshaped, scalar
from clew.frontends.onnx.converters_control import build_loop, length_of
from clew.frontends.onnx.layer import Layer
from clew.frontends.onnx.registry import Result, call, converter
from clew.frontends.onnx.scope import Captures
from clew.ir.dims import Dim
from clew.ir.expr import Constant, Expr, Var
from clew.ir.types import TensorType

_ACTIVATIONS: Final = {"sigmoid": "sigmoid", "tanh": "tanh", "relu": "nn.relu"}


@dataclass(frozen=True)
class Cell:
    """One direction's step: weights that the loop carries, and the new state of an input and the
    old.
    """

    weights: tuple[Expr, ...]
    step: Callable[[Expr, Sequence[Expr], Sequence[Expr]], list[Expr]]
    inputs: Expr


def _activations(layer: Layer, defaults: Sequence[str], direction: int) -> list[str]:
    names = [n.lower() for n in layer.texts("activations")] or list(defaults) * 2
    count = len(defaults)
    chosen = names[direction * count : (direction + 1) * count]
    for name in chosen:
        if name not in _ACTIVATIONS:
            raise layer.unsupported(f"the activation {name!r}")
    if len(chosen) != count:
        raise layer.wrong(f"has {len(names)} activations")
    return [_ACTIVATIONS[name] for name in chosen]


def _pick(x: Expr, direction: int) -> Expr:
    """Returns the part of a parameter that belongs to one direction."""
    part = call("slice", x, begin=(direction,), end=(direction + 1,), strides=(1,), axes=(0,))
    return reshaped(part, x.tensor.shape[1:])


def _dense(x: Expr, weight: Expr) -> Expr:
    return call("nn.dense", x, weight, weight_layout="NK")


def _biases(layer: Layer, direction: int, gates: int, hidden: int) -> tuple[Expr, Expr] | None:
    """Returns the biases of the inputs' and of the recurrent part."""
    bias = layer.optional(3)
    if bias is None:
        return None
    sizes = (gates * hidden, gates * hidden)
    first, second = fields(call("split", _pick(bias, direction), sizes=sizes, axis=0), 2)
    return first, second


def _hidden(layer: Layer) -> int:
    size = layer.type(2).shape[-1] if layer.rank(2) else None
    if not isinstance(size, int):
        raise layer.unsupported(f"a hidden size of {size}")
    return size


def _run(
    layer: Layer,
    initial: Sequence[int],
    cell: Callable[[Layer, Expr, int], Cell],
) -> list[Expr]:
    """Returns the stacked hidden states and the last states over all directions.

    `initial` are the inputs that hold the first states, where they are given.
    """
    hidden = _hidden(layer)
    if any(layer.rank(n) != 3 for n in range(3)):
        raise layer.wrong(f"takes 3 axes, got {layer.type(0)}, {layer.type(1)}, {layer.type(2)}")
    if layer.optional(4) is not None:
        raise layer.unsupported("sequence_lens")
    if layer.has("clip"):
        raise layer.unsupported("clip")
    batch_first = "layout" in layer.schema.attributes and layer.flag("layout")
    x = layer.input(0)
    if batch_first:
        x = call("transpose", x, axes=(1, 0, 2))
    direction = layer.text("direction", "forward")
    backwards = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}.get(
        direction
    )
    if backwards is None:
        raise layer.wrong(f"has the direction {direction!r}")
    outputs, last = [], []
    for number, backward in enumerate(backwards):
        states = [_first_state(layer, x, n, number, hidden, bool(batch_first)) for n in initial]
        series = call("flip", x, axes=(0,)) if backward else x
        *ends, stacked = _direction(layer, cell(layer, series, number), states)
        outputs.append(call("flip", stacked, axes=(0,)) if backward else stacked)
        last.append(ends)
    seq, batch, _ = x.tensor.shape
    whole = _joined([reshaped(y, (seq, 1, batch, hidden)) for y in outputs], 1)
    ends_of = [
        _joined([reshaped(ends[n], (1, batch, hidden)) for ends in last], 0)
        for n in range(len(initial))
    ]
    if batch_first:
        whole = call("transpose", whole, axes=(2, 0, 1, 3))
        ends_of = [call("transpose", end, axes=(1, 0, 2)) for end in ends_of]
    return [whole, *ends_of]


def _joined(parts: Sequence[Expr], axis: int) -> Expr:
    return parts[0] if len(parts) == 1 else call("concatenate", *parts, axis=axis)


def _first_state(
    layer: Layer, x: Expr, index: int, direction: int, hidden: int, batch_first: bool
) -> Expr:
    batch: Dim = x.tensor.shape[1]
    given = layer.optional(index)
    if given is None:
        return filled(0, x.tensor.dtype, (batch, hidden))
    if batch_first:
        given = call("transpose", given, axes=(1, 0, 2))
    return _pick(given, direction)


def _direction(layer: Layer, cell: Cell, states: Sequence[Expr]) -> list[Expr]:
    """Returns the last states, and the first of them stacked over time."""
    series = cell.inputs
    trips = series.tensor.shape[0]
    carried = [*states, series, *cell.weights]
    index, going = Var("t", TensorType((), "i64")), Var("going", TensorType((), "bool"))
    params = [Var(f"state{n}", expr.type) for n, expr in enumerate(carried)]
    before, (whole, *weights) = params[: len(states)], params[len(states) :]
    now = call("gather", whole, index, axis=0)
    after = cell.step(now, before, weights)
    limit: Expr = Constant(trips) if isinstance(trips, int) else length_of(series)
    found = build_loop(
        layer,
        limit,
        scalar(True, "bool"),
        (index, going, *params),
        going,
        [going, *after, whole, *weights, after[0]],
        carried,
        Captures(layer.importer.known),
        trips,
    )
    return [*found[: len(states)], found[-1]]


@converter("LSTM", since=7)
def lstm(layer: Layer) -> Result:
    """Gates i, o, f, c. Source: ONNX LSTM-22."""
    if layer.optional(7) is not None or layer.integer("input_forget"):
        raise layer.unsupported("peepholes and input_forget")
    hidden = _hidden(layer)

    def cell(layer: Layer, x: Expr, direction: int) -> Cell:
        gate, squash, out = _activations(layer, ("sigmoid", "tanh", "tanh"), direction)
        inputs = _dense(x, _pick(layer.input(1), direction))
        for bias in _biases(layer, direction, 4, hidden) or ():
            inputs = call("add", inputs, bias)

        def step(now: Expr, state: Sequence[Expr], weights: Sequence[Expr]) -> list[Expr]:
            h, c = state
            gates = call("add", now, _dense(h, weights[0]))
            i, o, f, g = fields(call("split", gates, sizes=(hidden,) * 4, axis=1), 4)
            kept = call("multiply", call(gate, f), c)
            new = call("add", kept, call("multiply", call(gate, i), call(squash, g)))
            return [call("multiply", call(gate, o), call(out, new)), new]

        return Cell((_pick(layer.input(2), direction),), step, inputs)

    return _run(layer, (5, 6), cell)


@converter("GRU", since=7)
def gru(layer: Layer) -> Result:
    """Gates z, r, h. Source: ONNX GRU-22."""
    hidden = _hidden(layer)
    reset_after = layer.flag("linear_before_reset")

    def cell(layer: Layer, x: Expr, direction: int) -> Cell:
        gate, squash = _activations(layer, ("sigmoid", "tanh"), direction)
        inputs = _dense(x, _pick(layer.input(1), direction))
        biases = _biases(layer, direction, 3, hidden)
        sizes = (2 * hidden, hidden)
        recurrent = _pick(layer.input(2), direction)
        weights = fields(call("split", recurrent, sizes=sizes, axis=0), 2)
        if biases is not None:
            inputs = call("add", inputs, biases[0])
            # The bias of h lies inside the reset where that comes after the product.
            gates, rest = fields(call("split", biases[1], sizes=sizes, axis=0), 2)
            outer = filled(0, x.tensor.dtype, (hidden,)) if reset_after else rest
            inputs = call("add", inputs, call("concatenate", gates, outer, axis=0))
            if reset_after:
                weights.append(rest)

        def step(now: Expr, state: Sequence[Expr], held: Sequence[Expr]) -> list[Expr]:
            (h,) = state
            part, candidate = fields(call("split", now, sizes=sizes, axis=1), 2)
            both = call(gate, call("add", part, _dense(h, held[0])))
            z, r = fields(call("split", both, sizes=(hidden, hidden), axis=1), 2)
            if reset_after:
                inner = _dense(h, held[1])
                inner = call("add", inner, held[2]) if len(held) > 2 else inner
                inner = call("multiply", r, inner)
            else:
                inner = _dense(call("multiply", r, h), held[1])
            new = call(squash, call("add", candidate, inner))
            return [call("add", new, call("multiply", z, call("subtract", h, new)))]

        return Cell(tuple(weights), step, inputs)

    return _run(layer, (5,), cell)


@converter("RNN", since=7)
def rnn(layer: Layer) -> Result:
    """One gate. Source: ONNX RNN-22."""
    hidden = _hidden(layer)

    def cell(layer: Layer, x: Expr, direction: int) -> Cell:
        (squash,) = _activations(layer, ("tanh",), direction)
        inputs = _dense(x, _pick(layer.input(1), direction))
        for bias in _biases(layer, direction, 1, hidden) or ():
            inputs = call("add", inputs, bias)

        def step(now: Expr, state: Sequence[Expr], weights: Sequence[Expr]) -> list[Expr]:
            return [call(squash, call("add", now, _dense(state[0], weights[0])))]

        return Cell((_pick(layer.input(2), direction),), step, inputs)

    return _run(layer, (5,), cell)
