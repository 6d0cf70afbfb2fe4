"""Recurrent cells: `SVDF`, `RNN` and `LSTM`, for one step or over a sequence. The state is a
variable.

The weights of a gate are `[units, size]`. If they are codes and the inputs are floats, products
quantize the rows of inputs (`hybrid.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from clew.frontends.building import call, fields, reshaped
from clew.frontends.lowering.captures import Captures
from clew.frontends.lowering.recurrent import Cell, over_time
from clew.frontends.tflite.converters.hybrid import Weight, weight_of
from clew.frontends.tflite.converters.lstm import Gates, Places, gates_of, lstm_step
from clew.frontends.tflite.converters.quantized.cells import shifted, svdf_of_codes
from clew.frontends.tflite.converters.quantized.lstm import basic_of_codes, integer_cell
from clew.frontends.tflite.converters.quantized.lstm8 import INTERMEDIATES, byte_cell
from clew.frontends.tflite.layer import TfliteLayer
from clew.frontends.tflite.registry import Result, converter
from clew.ir.dims import Dim, product
from clew.ir.expr import Expr
from clew.support.dataclass import dataclass

_BASIC = 1


@converter("SVDF", codes=True)
def svdf(layer: TfliteLayer) -> Result:
    """Filters of features over time. The state has the last values of each: `[batch, filters *
    memory]`.
    """
    layer = _for_batch(layer, (4,))
    x, shape = layer.image(0, 2), layer.image(2, 2).tensor.shape
    state, rank = _state(layer, 4, x.tensor.shape[0]), layer.integer("rank", 1)
    filters, memory = shape
    if not isinstance(filters, int) or rank < 1 or filters % rank:
        raise layer.wrong(f"has {filters} filters of rank {rank}")
    if x.tensor.dtype == "i8":
        return svdf_of_codes(layer)
    features, times = weight_of(layer, 1), layer.numbers_of(2)
    batch = x.tensor.shape[0]
    after = shifted(state, features.times(x), (batch, filters, memory))
    layer.keep(4, reshaped(after, state.tensor.shape))
    sums = call("sum", call("multiply", after, times), axes=(2,), keepdims=False)
    if rank > 1:
        parts = reshaped(sums, (batch, filters // rank, rank))
        sums = call("sum", parts, axes=(2,), keepdims=False)
    bias = layer.optional(3)
    return layer.activated(sums if bias is None else call("add", sums, bias))


# --- one gate ---


def _rnn_cell(
    layer: TfliteLayer, x: Expr, first: int, aux: tuple[Expr, Weight] | None = None
) -> Cell:
    """Returns the cell. The weights of the inputs, those of the state, and the bias begin at
    operand `first`.
    """
    weight, recurrent = weight_of(layer, first), weight_of(layer, first + 1)
    now = call("add", over_steps(x, weight), layer.input(first + 2))
    if aux is not None:
        now = call("add", now, over_steps(*aux))

    def step(now: Expr, states: Sequence[Expr], held: Sequence[Expr]) -> list[Expr]:
        return [layer.activated(call("add", now, recurrent.with_matrix(held[0]).times(states[0])))]

    return Cell((recurrent.matrix,), step, now)


def over_steps(x: Expr, weight: Weight) -> Expr:
    """Returns the products for all steps of a sequence `[steps, batch, size]`."""
    steps, batch, size = x.tensor.shape
    rows = weight.times(reshaped(x, (product((steps, batch)), size)))
    return reshaped(rows, (steps, batch, rows.tensor.shape[1]))


@converter("RNN", codes=True)
def rnn(layer: TfliteLayer) -> Result:
    """One step: `activation(x W + h R + b)`."""
    layer = _for_batch(layer, (4,))
    return _one_step(layer, _rnn_cell(layer, _frame(layer), 1), (4,))


@converter("UNIDIRECTIONAL_SEQUENCE_RNN", codes=True)
def sequence_rnn(layer: TfliteLayer) -> Result:
    """The hidden state after each step of a sequence."""
    layer = _for_batch(layer, (4,))
    x = _sequence(layer, 0)
    return _laid_out(layer, _run(layer, _rnn_cell(layer, x, 1), (4,)))


@converter("BIDIRECTIONAL_SEQUENCE_RNN", codes=True)
def bidirectional_rnn(layer: TfliteLayer) -> Result:
    """Both directions. An auxiliary sequence is a further input, or replaces that of the backward
    direction; LiteRT reads the latter only if time is the first axis.
    """
    layer = _for_batch(layer, (4, 8))
    sides = _sides(layer, 9, [(10, 11)])
    if sides[0].aux is None and not layer.flag("time_major", False):
        sides[1] = sides[0]
    forward = _run(layer, _rnn_cell(layer, sides[0].x, 1, _aux(layer, sides[0])), (4,))
    cell = _rnn_cell(layer, _backward(sides[1].x), 5, _aux(layer, sides[1], turned=True))
    return _merged(layer, forward, _backward(_run(layer, cell, (8,))))


# --- LSTM ---


@converter("LSTM", codes=True)
def lstm(layer: TfliteLayer) -> Result:
    """One step. The basic kernel also returns its states."""
    if layer.integer("kernel_type", 0) == _BASIC:
        layer = _for_batch(layer, (1, 4))
        return _basic(layer, layer.image(0, 2))
    layer = _for_batch(layer, Places.single().states)
    return _one_step(layer, _cell(layer, _frame(layer)), Places.single().states)


def _basic(layer: TfliteLayer, x: Expr) -> Result:
    """One step of the basic kernel: gates share one weight; states are operands and results."""
    hidden, _, bias, cell = (layer.input(n) for n in range(1, 5))
    rows = call("concatenate", x, hidden, axis=1)
    if x.tensor.dtype == "u8":
        found = basic_of_codes(layer, rows)
    else:
        sums = call("add", weight_of(layer, 2).times(rows), bias)
        units = cell.tensor.shape[1]
        take, new, keep, give = fields(call("split", sums, sizes=(units,) * 4, axis=1), 4)
        taken = call("multiply", call("sigmoid", take), layer.activated(new))
        after = call("add", call("multiply", call("sigmoid", keep), cell), taken)
        result = call("multiply", call("sigmoid", give), layer.activated(after))
        found = [result, after, rows, sums]
    for index, value in ((1, found[0]), (4, found[1])):
        if layer.is_variable(index):
            layer.keep(index, value)
    return found


@converter("UNIDIRECTIONAL_SEQUENCE_LSTM", codes=True)
def sequence_lstm(layer: TfliteLayer) -> Result:
    """The hidden state after each step of a sequence."""
    layer = _for_batch(layer, Places.single().states)
    cell = _cell(layer, _sequence(layer, 0))
    return _laid_out(layer, _run(layer, cell, Places.single().states))


def _cell(layer: TfliteLayer, x: Expr) -> Cell:
    """Returns the cell of one direction, for inputs `[steps, batch, size]`."""
    if x.tensor.dtype == "i8":
        in_bytes = len(layer.intermediates) == INTERMEDIATES
        integers = byte_cell(layer) if in_bytes else integer_cell(layer)
        return Cell(integers.matrices, integers.step, integers.inputs(x))
    return _lstm_cell(layer, gates_of(layer, Places.single()), x)


@converter("BIDIRECTIONAL_SEQUENCE_LSTM", codes=True)
def bidirectional_lstm(layer: TfliteLayer) -> Result:
    """Both directions. An auxiliary sequence is a further input, or replaces that of the backward
    direction.
    """
    layer = _for_batch(layer, [index for places in Places.both() for index in places.states])
    sides = _sides(layer, 39, [(40 + n, 44 + n) for n in range(4)])
    found = []
    for n, (side, places) in enumerate(zip(sides, Places.both(), strict=True)):
        gates = gates_of(layer, places, side.weights)
        x, aux = side.x, side.aux
        if n:
            x, aux = _backward(x), None if aux is None else _backward(aux)
        cell = _lstm_cell(layer, gates, x, aux)
        hidden = _run(layer, cell, places.states)
        found.append(_backward(hidden) if n else hidden)
    return _merged(layer, *found)


def _lstm_cell(layer: TfliteLayer, gates: Gates, x: Expr, aux: Expr | None = None) -> Cell:
    return Cell(gates.matrices, lstm_step(layer, gates), gates.inputs(x, aux))


# --- sequences ---


def _frame(layer: TfliteLayer) -> Expr:
    """Returns the operand of one step as `[1, batch, size]`."""
    x = layer.image(0, 2)
    return reshaped(x, (1, *x.tensor.shape))


def _one_step(layer: TfliteLayer, cell: Cell, states: Sequence[int]) -> Expr:
    hidden = _run(layer, cell, states)
    return reshaped(hidden, hidden.tensor.shape[1:])


def _sequence(layer: TfliteLayer, index: int) -> Expr:
    """Returns a sequence as `[steps, batch, size]`."""
    x = layer.image(index, 3)
    return x if layer.flag("time_major", False) else call("transpose", x, axes=(1, 0, 2))


def _laid_out(layer: TfliteLayer, hidden: Expr) -> Expr:
    """Returns hidden states `[steps, batch, units]` in the layout of the layer's result."""
    return hidden if layer.flag("time_major", False) else call("transpose", hidden, axes=(1, 0, 2))


def _backward(x: Expr) -> Expr:
    return call("flip", x, axes=(0,))


def _merged(layer: TfliteLayer, forward: Expr, backward: Expr) -> list[Expr]:
    found = [_laid_out(layer, each) for each in (forward, backward)]
    return [call("concatenate", *found, axis=2)] if layer.flag("merge_outputs", False) else found


def _run(layer: TfliteLayer, cell: Cell, states: Sequence[int]) -> Expr:
    """Returns the hidden states `[steps, batch, units]` of a sequence, and stores the last states
    in the variables `states`.
    """
    batch = cell.inputs.tensor.shape[1]
    before = [_state(layer, index, batch) for index in states]
    if cell.inputs.tensor.shape[0] == 1:  # a frame of a stream needs no loop
        after = cell.step(reshaped(cell.inputs, cell.inputs.tensor.shape[1:]), before, cell.weights)
        hidden = reshaped(after[0], (1, *after[0].tensor.shape))
    else:
        *after, hidden = over_time(cell, before, None, Captures(layer.builder.known))
    _keep_all(layer, states, after)
    return hidden


def _state(layer: TfliteLayer, index: int, batch: Dim) -> Expr:
    """Returns a state as `[batch, units]`. Errors: M012 for a batch of another size."""
    state = layer.input(index)
    if state.tensor.rank == 1 and state.tensor.shape[0] != 0:
        size = state.tensor.shape[0]
        if isinstance(size, int) and isinstance(batch, int) and batch and size % batch == 0:
            return reshaped(state, (batch, size // batch))
    if state.tensor.rank != 2 or state.tensor.shape[0] != batch:
        raise layer.wrong(f"has the state {state.tensor} for a batch of {batch}")
    return state


def _for_batch(layer: TfliteLayer, states: Sequence[int]) -> TfliteLayer:
    """Returns the layer with states for a free batch: first values are repeated for its size."""
    shape = layer.type(0).shape
    batch = shape[1 if len(shape) == 3 and layer.flag("time_major", False) else 0]
    return layer if not shape or isinstance(batch, int) else layer.with_rows(states, batch)


def _keep_all(layer: TfliteLayer, states: Sequence[int], after: Sequence[Expr]) -> None:
    for index, value in zip(states, after, strict=True):
        layer.keep(index, reshaped(value, layer.input(index).tensor.shape))


# --- two directions ---


@dataclass(frozen=True)
class _Side:
    """A direction: its sequence, the auxiliary sequence, and the operands with the latter's
    weights.
    """

    x: Expr
    aux: Expr | None
    weights: tuple[int, ...]


def _sides(layer: TfliteLayer, aux: int, weights: Sequence[tuple[int, int]]) -> list[_Side]:
    x = _sequence(layer, 0)
    other = None if layer.optional(aux) is None else _sequence(layer, aux)
    # The first of four gates may be missing.
    if other is None or layer.optional(weights[-1][0]) is None:
        return [_Side(x, None, ()), _Side(x if other is None else other, None, ())]
    return [_Side(x, other, tuple(pair[side] for pair in weights)) for side in (0, 1)]


def _aux(layer: TfliteLayer, side: _Side, *, turned: bool = False) -> tuple[Expr, Weight] | None:
    if side.aux is None:
        return None
    return _backward(side.aux) if turned else side.aux, weight_of(layer, side.weights[0])
