"""Cells of LSTM, GRU and RNN: a step from the inputs' part of the gates and the state.

The gates of a layer lie side by side, in an order that differs from format to format: it is a text
with a letter for each. Rows of weights and biases have the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from clew.frontends.building import call, fields, scalar
from clew.frontends.lowering.recurrent import Cell, Product, dense
from clew.ir.expr import Expr

Activation: TypeAlias = "Callable[[Expr], Expr]"
_PEEPHOLES: Final = "iof"  # the gates that see the cell, in the order of their weights


def activation(op: str) -> Activation:
    """Returns an operator as an activation."""
    return lambda x: call(op, x)


_SIGMOID: Final = activation("sigmoid")
_TANH: Final = activation("tanh")


def lstm_cell(
    inputs: Expr,
    state: Product,
    hidden: int,
    order: str,
    *,
    gate: Activation = _SIGMOID,
    squash: Activation = _TANH,
    out: Activation = _TANH,
    coupled: bool = False,
    peepholes: Sequence[Expr] = (),
    projection: Expr | None = None,
) -> Cell:
    """Returns the cell of an LSTM. Gates: `i` (input), `f` (forget), `g` (candidate), `o` (output).

    If `coupled`, the cell forgets what the input gate does not take. `peepholes` are the weights of
    the cell at the gates i, o and f; `projection` is the matrix of the hidden state.
    """
    seen_from = len(state.weights)
    last = () if projection is None else (projection,)

    def step(now: Expr, states: Sequence[Expr], weights: Sequence[Expr]) -> list[Expr]:
        h, c = states
        parts = _parts(call("add", now, state.of(h, weights)), hidden, order)

        def seeing(letter: str, cell: Expr) -> Expr:
            if not peepholes:
                return parts[letter]
            weight = weights[seen_from + _PEEPHOLES.index(letter)]
            return call("add", parts[letter], call("multiply", weight, cell))

        take = gate(seeing("i", c))
        if coupled:
            keep: Expr = call("subtract", scalar(1, take.tensor.dtype), take)
        else:
            keep = gate(seeing("f", c))
        new = call("add", call("multiply", keep, c), call("multiply", take, squash(parts["g"])))
        result: Expr = call("multiply", gate(seeing("o", new)), out(new))
        return [dense(result, weights[-1]) if last else result, new]

    return Cell((*state.weights, *peepholes, *last), step, inputs)


def gru_cell(
    inputs: Expr,
    weight: Expr,
    hidden: int,
    order: str,
    *,
    gate: Activation = _SIGMOID,
    squash: Activation = _TANH,
    bias: Expr | None = None,
    candidate_bias: Expr | None = None,
) -> Cell:
    """Returns the cell of a GRU that resets the product with the state. Gates: `z` (update), `r`
    (reset), `n` (candidate).

    `bias` is added to that product, `candidate_bias` to its part for the candidate.
    """
    held = [b for b in (bias, candidate_bias) if b is not None]
    assert len(held) < 2

    def step(now: Expr, states: Sequence[Expr], weights: Sequence[Expr]) -> list[Expr]:
        (h,) = states
        product: Expr = dense(h, weights[0])
        if bias is not None:
            product = call("add", product, weights[1])
        given, kept = _parts(now, hidden, order), _parts(product, hidden, order)
        z, r = (gate(call("add", given[n], kept[n])) for n in "zr")
        inner = kept["n"]
        if candidate_bias is not None:
            inner = call("add", inner, weights[1])
        return [_updated(h, z, squash(call("add", given["n"], call("multiply", r, inner))))]

    return Cell((weight, *held), step, inputs)


def gru_cell_resetting_first(
    inputs: Expr, gates: Expr, candidate: Expr, hidden: int, gate: Activation, squash: Activation
) -> Cell:
    """Returns the cell of a GRU that resets the state before the product for the candidate. Order:
    z, r, n; `gates` are the weights of the first two.
    """

    def step(now: Expr, states: Sequence[Expr], weights: Sequence[Expr]) -> list[Expr]:
        (h,) = states
        part, rest = fields(call("split", now, sizes=(2 * hidden, hidden), axis=1), 2)
        both = gate(call("add", part, dense(h, weights[0])))
        z, r = fields(call("split", both, sizes=(hidden, hidden), axis=1), 2)
        inner = dense(call("multiply", r, h), weights[1])
        return [_updated(h, z, squash(call("add", rest, inner)))]

    return Cell((gates, candidate), step, inputs)


def rnn_cell(inputs: Expr, weight: Expr, squash: Activation) -> Cell:
    """Returns the cell of a network with one gate."""

    def step(now: Expr, states: Sequence[Expr], weights: Sequence[Expr]) -> list[Expr]:
        return [squash(call("add", now, dense(states[0], weights[0])))]

    return Cell((weight,), step, inputs)


def _parts(gates: Expr, hidden: int, order: str) -> dict[str, Expr]:
    count = len(order)
    found = fields(call("split", gates, sizes=(hidden,) * count, axis=1), count)
    return dict(zip(order, found, strict=True))


def _updated(h: Expr, z: Expr, new: Expr) -> Expr:
    return call("add", new, call("multiply", z, call("subtract", h, new)))
