"""Control flow: `If`, `Loop` and `Scan` become closed functions over what they take from
outside.
"""

from __future__ import annotations

from collections.abc import Sequence

from clew.frontends.onnx.build import reshaped, scalar
from clew.frontends.onnx.layer import Layer
from clew.frontends.onnx.registry import Result, call, converter
from clew.frontends.onnx.scope import Captures
from clew.ir.dims import Dim, SymDim
from clew.ir.expr import (
    Call,
    Constant,
    Expr,
    Function,
    If,
    Tuple,
    TupleGetItem,
    Var,
    While,
    unknown_dim,
)
from clew.ir.types import TensorType, Type
from clew.support.errors import GraphTypeError, UnsupportedError


@converter("If")
def if_(layer: Layer) -> Result:
    """A condition known at import leaves only its branch."""
    known = layer.known(0)
    if known is not None and known.size == 1:
        taken = "then_branch" if bool(known.reshape(-1)[0]) else "else_branch"
        return layer.subgraph(taken, [])
    branches = []
    for name in ("then_branch", "else_branch"):
        captures = Captures(layer.importer.known)
        branches.append((Tuple(layer.subgraph(name, [], captures)), captures))
    outers = {o.id: o for _, captures in branches for o in captures.outers}
    then, orelse = (_closed(body, captures, outers.values()) for body, captures in branches)
    try:
        result = If(reshaped(layer.input(0), ()), then, orelse, list(outers.values()))
    except GraphTypeError as error:
        if error.code != "T007":
            raise
        raise UnsupportedError(
            "U102",
            f"If: {error.message}: the condition must be known before the run",
            hint="give the values that it depends on when compiling (constants={...})",
        ) from error
    return [TupleGetItem(result, n) for n in range(len(branches[0][0].fields))]


def _closed(body: Expr, captures: Captures, outers: object) -> Function:
    """Returns a branch as a function of all that both branches take."""
    params = []
    for outer in outers:  # type: ignore[attr-defined]
        found = captures.parameters.get(outer.id)
        params.append(found[1] if found else Var("unused", outer.type))
    return Function(params, body)


@converter("Loop")
def loop(layer: Layer) -> Result:
    """State: the condition, what the body carries, then what it takes from outside unchanged."""
    limit, go_on = layer.optional(0), layer.optional(1)
    init = [layer.input(n) for n in range(2, len(layer.inputs))]
    start = scalar(True, "bool") if go_on is None else reshaped(go_on, ())
    types: list[Type] = [expr.type for expr in init]
    widened: set[str] = set()
    while True:
        index, going, *state = _parameters(layer, types)
        captures = Captures(layer.importer.known)
        results = layer.subgraph("body", [index, going, *state], captures)
        changed = _widen(layer, types, results[1:], widened)
        if not changed:
            break
    proceed = reshaped(results[0], ())
    forever = _passed_on(proceed) is going or _always(layer, proceed)
    trips = _trips(layer, limit, start) if forever else None
    bound = None if limit is None else reshaped(limit, ())
    return build_loop(
        layer, bound, start, (index, going, *state), proceed, results, init, captures, trips
    )


def _parameters(layer: Layer, types: Sequence[Type]) -> list[Var]:
    names = [value.name for value in layer.graph("body").input]
    if len(names) != len(types) + 2:
        raise layer.wrong(f"carries {len(types)} values, and its body takes {len(names) - 2}")
    scalars = [TensorType((), "i64"), TensorType((), "bool")]
    return [Var(name, type_) for name, type_ in zip(names, [*scalars, *types], strict=True)]


def _widen(layer: Layer, types: list[Type], results: Sequence[Expr], widened: set[str]) -> bool:
    """Makes sizes that change from turn to turn unknown, in place. Whether any was made so."""
    changed = False
    for n, (before, expr) in enumerate(zip(list(types), results, strict=False)):
        after = expr.type
        if before == after:
            continue
        if not isinstance(before, TensorType) or not isinstance(after, TensorType):
            raise layer.unsupported(f"carries a {before} that becomes a {after}")
        if before.dtype != after.dtype or before.rank != after.rank:
            raise layer.unsupported(f"carries a {before} that becomes a {after}")
        shape: list[Dim] = []
        for a, b in zip(before.shape, after.shape, strict=True):
            if a == b or str(a) in widened:
                shape.append(a)
                continue
            fresh = unknown_dim()
            widened.add(str(fresh))
            shape.append(fresh)
            changed = True
        types[n] = before.with_(shape=tuple(shape))
    return changed


def _passed_on(expr: Expr) -> Expr:
    """Returns what an expression only passes on."""
    while isinstance(expr, Call) and expr.op_name == "identity":
        expr = expr.args[0]
    return expr


def _always(layer: Layer, proceed: Expr) -> bool:
    known = layer.importer.known.get(proceed)
    return known is not None and bool(known.reshape(-1)[0])


def _trips(layer: Layer, limit: Expr | None, start: Expr) -> Dim | None:
    """Returns how often the loop runs, where that is known and only its limit ends it."""
    known, first = layer.known(0), layer.importer.known.get(start)
    if limit is None or known is None or first is None:
        return None
    if not bool(first.reshape(-1)[0]):
        return 0
    count = layer.known_one(0)
    return count if isinstance(count, SymDim) else max(int(count), 0)


def build_loop(
    layer: Layer,
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


@converter("Scan", since=9)
def scan(layer: Layer) -> Result:
    """A loop over slices of some inputs, with its results stacked."""
    count = layer.integer("num_scan_inputs")
    inputs = layer.present()
    states = len(inputs) - count
    if count < 1 or states < 0:
        raise layer.wrong(f"scans {count} of {len(inputs)} inputs")
    init, sequences = inputs[:states], inputs[states:]
    for name in ("scan_input_directions", "scan_output_directions", "scan_output_axes"):
        if any(layer.integers(name)):
            raise layer.unsupported(f"{name} other than 0")
    axes = layer.integers("scan_input_axes") or (0,) * count
    if any(axes):
        raise layer.unsupported("scan_input_axes other than 0")
    if any(layer.type_of(s).rank == 0 for s in sequences):
        raise layer.wrong("scans a value without axes")
    trips = layer.type_of(sequences[0]).shape[0]
    index, going = Var("i", TensorType((), "i64")), Var("going", TensorType((), "bool"))
    carried = [Var(f"state{n}", expr.type) for n, expr in enumerate(init)]
    whole = [Var(f"sequence{n}", expr.type) for n, expr in enumerate(sequences)]
    captures = Captures(layer.importer.known)
    slices = [call("gather", var, index, axis=0) for var in whole]
    results = layer.subgraph("body", [*carried, *slices], captures)
    if [r.type for r in results[:states]] != [c.type for c in carried]:
        raise layer.unsupported("a state that changes its type from turn to turn")
    # The sequences travel as state that never changes.
    size = Constant(trips) if isinstance(trips, int) else length_of(sequences[0])
    all_results = [going, *results[:states], *whole, *results[states:]]
    found = build_loop(
        layer,
        size,
        scalar(True, "bool"),
        (index, going, *carried, *whole),
        going,
        all_results,
        [*init, *sequences],
        captures,
        trips,
    )
    return [*found[:states], *found[len(inputs) :]]


def length_of(sequence: Expr) -> Expr:
    """Returns the number of turns over a sequence: its first size, `i64[]`."""
    sizes = call("shape_of", sequence)
    return call("gather", sizes, scalar(0, "i64"), axis=0)
