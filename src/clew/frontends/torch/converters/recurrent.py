"""LSTM, GRU and RNN: their cells and loops over time are those of `frontends/lowering/`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from clew.frontends.building import call, reshaped, scalar
from clew.frontends.lowering.captures import Captures
from clew.frontends.lowering.cells import activation, gru_cell, lstm_cell, rnn_cell
from clew.frontends.lowering.recurrent import Cell, input_part, joined, over_time, plain
from clew.frontends.torch.layer import Layer
from clew.frontends.torch.registry import Result, converter
from clew.ir.expr import Expr
from clew.ir.values import KnownValues


@dataclass(frozen=True)
class Weights:
    """One direction of one layer. Without biases, these are None; `projection` is that of an LSTM
    with `proj_size`.
    """

    inputs: Expr
    state: Expr
    input_bias: Expr | None = None
    state_bias: Expr | None = None
    projection: Expr | None = None


MakeCell: TypeAlias = "Callable[[Expr, Weights], Cell]"


def _inputs(x: Expr, own: Weights, *biases: Expr | None) -> Expr:
    return input_part(x, plain(own.inputs), *(b for b in biases if b is not None))


def _hidden(own: Weights, gates: int) -> int:
    size = own.state.tensor.shape[0]
    assert isinstance(size, int)  # of a weight
    return size // gates


def _lstm_cell(x: Expr, own: Weights) -> Cell:
    inputs = _inputs(x, own, own.input_bias, own.state_bias)
    state, hidden = plain(own.state), _hidden(own, 4)
    return lstm_cell(inputs, state, hidden, "ifgo", projection=own.projection)


def _gru_cell(x: Expr, own: Weights) -> Cell:
    """The reset comes after the product, and so does the state's bias."""
    inputs = _inputs(x, own, own.input_bias)
    return gru_cell(inputs, own.state, _hidden(own, 3), "rzn", bias=own.state_bias)


def _plain_cell(squash: str) -> MakeCell:
    def make(x: Expr, own: Weights) -> Cell:
        inputs = _inputs(x, own, own.input_bias, own.state_bias)
        return rnn_cell(inputs, own.state, activation(squash))

    return make


_CELLS: Final[dict[str, MakeCell]] = {
    "lstm": _lstm_cell,
    "gru": _gru_cell,
    "rnn_tanh": _plain_cell("tanh"),
    "rnn_relu": _plain_cell("nn.relu"),
}


@converter("lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input")
def recurrent(layer: Layer) -> Result:
    """Layers of one or two directions: the states over time, then the last ones."""
    if layer.flag("train") and layer.number("dropout", 0.0):
        raise layer.unsupported("dropout")
    x = layer.tensor("input")
    given = layer["hx"]
    first = list(given) if isinstance(given, (list, tuple)) else [given]
    batch_first = layer.flag("batch_first")
    if batch_first:
        x = call("transpose", x, axes=(1, 0, 2))
    make = _CELLS[layer.op.partition(".")[0]]
    ends: list[list[Expr]] = [[] for _ in first]
    for number, directions in enumerate(_weights(layer)):
        outputs = []
        for way, own in enumerate(directions):
            states = [_part(s, number * len(directions) + way) for s in first]
            cell = make(call("flip", x, axes=(0,)) if way else x, own)
            *last, stacked = over_time(cell, states, None, Captures(KnownValues()))
            outputs.append(call("flip", stacked, axes=(0,)) if way else stacked)
            for end, found in zip(ends, last, strict=True):
                end.append(reshaped(found, (1, *found.tensor.shape)))
        x = joined(outputs, 2)
    if batch_first:
        x = call("transpose", x, axes=(1, 0, 2))
    return [x, *(joined(end, 0) for end in ends)]


def _part(x: Expr, number: int) -> Expr:
    """Returns a row of a tensor."""
    return call("gather", x, scalar(number, "i64"), axis=0)


def _weights(layer: Layer) -> list[list[Weights]]:
    """Returns the weights by layer and direction."""
    params = layer.tensors("params")
    directions = 2 if layer.flag("bidirectional") else 1
    layers = layer.integer("num_layers")
    count = len(params) // (layers * directions)
    biased = layer.flag("has_biases")
    found = []
    for start in range(0, len(params), count):
        own = params[start : start + count]
        inputs, state, *rest = own
        biases = (rest.pop(0), rest.pop(0)) if biased else (None, None)
        found.append(Weights(inputs, state, biases[0], biases[1], rest[0] if rest else None))
    return [found[n : n + directions] for n in range(0, len(found), directions)]
