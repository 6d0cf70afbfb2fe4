"""Recurrent networks: the inputs' part as one dense layer, then a loop over time.

Each direction is a `While` whose state is the hidden state (and the cell), the inputs' part of the
gates and the recurrent weights; what leaves it at each step is stacked. Where sequences are of
unequal length, those that have ended keep their state and give zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from clew.frontends.building import call, cast, filled, reshaped, scalar
from clew.frontends.lowering.captures import Captures
from clew.frontends.lowering.loops import build_loop, length_of
from clew.ir.expr import Constant, Expr, Var
from clew.ir.types import NARROW_FLOATS, TensorType
from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class Cell:
    """One direction's step: the weights that the loop carries, and the new state for an input and
    the old state.
    """

    weights: tuple[Expr, ...]
    step: Callable[[Expr, Sequence[Expr], Sequence[Expr]], list[Expr]]
    inputs: Expr


@dataclass(frozen=True)
class Product:
    """A product with a direction's weights; `of` takes the other operand and the weights."""

    weights: tuple[Expr, ...]
    of: Callable[[Expr, Sequence[Expr]], Expr]


def plain(weight: Expr) -> Product:
    """Returns the product with a matrix `[out, in]`, which the loop carries."""
    return Product((weight,), lambda x, held: dense(x, held[0]))


def dense(x: Expr, weight: Expr) -> Expr:
    """Returns the product with a matrix `[out, in]`."""
    return call("nn.dense", x, weight, weight_layout="NK")


def input_part(x: Expr, product: Product, *biases: Expr) -> Expr:
    """Returns the inputs' contribution to the gates for all steps and sequences, as one product."""
    seq, batch, size = x.tensor.shape
    rows = product.of(reshaped(x, (seq * batch, size)), product.weights)
    for bias in biases:
        rows = call("add", rows, bias)
    return reshaped(rows, (seq, batch, rows.tensor.shape[1]))


def over_time(
    cell: Cell, states: Sequence[Expr], lengths: Expr | None, captures: Captures
) -> list[Expr]:
    """Returns the last states, and the first of them stacked over time. `lengths` are those of the
    sequences, where they differ. Between steps, states of narrow floats are not rounded.
    """
    dtype = states[0].tensor.dtype
    if dtype in NARROW_FLOATS:
        weights = tuple(cast(weight, "f32") for weight in cell.weights)
        wide = Cell(weights, cell.step, cast(cell.inputs, "f32"))
        found = over_time(wide, [cast(state, "f32") for state in states], lengths, captures)
        return [cast(value, dtype) for value in found]
    series = cell.inputs
    trips = series.tensor.shape[0]
    if trips == 0:
        state = states[0].tensor
        return [*states, filled(0, state.dtype, (0, *state.shape))]
    carried = [*states, series, *cell.weights]
    if lengths is not None:
        batch = lengths.tensor.shape[0]
        carried.append(reshaped(cast(lengths, "i64"), (batch, 1)))
    index, going = Var("t", TensorType((), "i64")), Var("going", TensorType((), "bool"))
    params = [Var(f"state{n}", expr.type) for n, expr in enumerate(carried)]
    before, (whole, *kept) = params[: len(states)], params[len(states) :]
    now = call("gather", whole, index, axis=0)
    after = cell.step(now, before, kept[: len(cell.weights)])
    result = after[0]
    if lengths is not None:
        ends = call("less", index, kept[-1])
        zeros = scalar(0, result.tensor.dtype)
        result = call("where", ends, result, zeros)
        after = [call("where", ends, new, old) for new, old in zip(after, before, strict=True)]
    limit: Expr = Constant(trips) if isinstance(trips, int) else length_of(series)
    found = build_loop(
        limit,
        scalar(True, "bool"),
        (index, going, *params),
        going,
        [going, *after, whole, *kept, result],
        carried,
        captures,
        trips,
    )
    last = found[: len(states)]
    if lengths is not None:
        some = call("greater", carried[-1], scalar(0, "i64"))
        last = [call("where", some, end, scalar(0, end.tensor.dtype)) for end in last]
    return [*last, found[-1]]


def joined(parts: Sequence[Expr], axis: int) -> Expr:
    """Returns tensors joined along an axis."""
    return parts[0] if len(parts) == 1 else call("concatenate", *parts, axis=axis)
