"""Loops of the graph IR, built from a body's parameters and results."""

from __future__ import annotations

from collections.abc import Sequence

from clew.frontends.building import call, scalar
from clew.frontends.lowering.captures import Captures
from clew.ir.dims import Dim
from clew.ir.expr import Constant, Expr, Function, Tuple, TupleGetItem, Var, While
from clew.ir.types import Type


def build_loop(
    limit: Expr | None,
    start: Expr,
    params: Sequence[Var],
    proceed: Expr,
    results: Sequence[Expr],
    init: Sequence[Expr],
    captures: Captures,
    trips: Dim | None,
) -> list[Expr]:
    """Builds the loop; the results are the carried values and the stacks."""
    taken = list(captures.parameters.values())
    outers, inner = [o for o, _ in taken], [v for _, v in taken]
    if limit is not None and not isinstance(limit, Constant):
        outers, inner = [*outers, limit], [*inner, Var("trips", limit.type)]
    index, going, *state = params
    carried = results[1 : 1 + len(state)]
    stacked = results[1 + len(state) :]
    body = Tuple([proceed, *carried, *inner, *stacked])
    function = Function([index, going, *state, *inner], body)
    condition = _condition(limit, [p.type for p in function.params], bool(inner))
    loop = While(condition, function, [start, *init, *outers], scans=len(stacked), trips=trips)
    first_stack = 1 + len(init) + len(outers)
    picks = [*range(1, 1 + len(init)), *range(first_stack, first_stack + len(stacked))]
    return [TupleGetItem(loop, n) for n in picks]


def _condition(limit: Expr | None, types: Sequence[Type], has_outers: bool) -> Function:
    """Returns `i < limit and going` as a function of the whole state."""
    params = [Var(f"state{n}", type_) for n, type_ in enumerate(types)]
    index, going = params[:2]
    if limit is None:
        return Function(params, going)
    bound: Expr = limit
    if not isinstance(limit, Constant):
        assert has_outers
        bound = params[-1]
    return Function(params, call("logical_and", call("less", index, bound), going))


def length_of(sequence: Expr) -> Expr:
    """Returns the number of iterations over a sequence: its first size, `i64[]`."""
    sizes = call("shape_of", sequence)
    return call("gather", sizes, scalar(0, "i64"), axis=0)
