"""Trip counts of loops whose conditions compare counters with limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clew.frontends.tflite.layer import TfliteLayer
from clew.ir.dims import Dim, SymDim
from clew.ir.expr import Call, Expr, Var


def trips_of(
    layer: TfliteLayer,
    goes_on: Expr,
    params: Sequence[Var],
    results: Sequence[Expr],
    first: Sequence[Expr],
) -> Dim | None:
    """Returns the trip count of a loop; None if it is unknown.

    Each state has a parameter, a value after an iteration, and a value before the loop.
    """
    counters = {param.id: n for n, param in enumerate(params)}
    found: list[Dim] = []
    for test in _conjuncts(goes_on):
        match test:
            case Call(op_name="less", args=[low, high]) | Call(op_name="greater", args=[high, low]):
                pass
            case _:
                return None
        state = counters.get(_plain(low).id)
        if state is None:
            return None
        limit, start = _number(layer, high), _number(layer, first[state])
        step = _step(layer, results[state], params[state])
        if limit is None or start is None or step is None:
            return None
        if isinstance(limit, SymDim) and (start, step) == (0, 1):
            found.append(limit)
        elif isinstance(limit, int) and isinstance(start, int):
            found.append(max(0, -((start - limit) // step)))
        else:
            return None
    if len(found) > 1 and not all(isinstance(count, int) for count in found):
        return None
    return min(found) if found else None  # type: ignore[type-var]


def _plain(expr: Expr) -> Expr:
    """Returns the value that an expression passes on unchanged."""
    while isinstance(expr, Call) and expr.op_name in ("identity", "reshape"):
        expr = expr.args[0]
    return expr


def _conjuncts(test: Expr) -> Iterator[Expr]:
    pending = [test]
    while pending:
        match _plain(pending.pop()):
            case Call(op_name="logical_and", args=args):
                pending += args
            case other:
                yield other


def _number(layer: TfliteLayer, expr: Expr) -> Dim | None:
    """Returns the integer that an expression holds; None if it is unknown."""
    known = layer.builder.known.get(expr)
    if known is None or known.size != 1:
        return None
    (found,) = known.reshape(-1).tolist()
    return found if isinstance(found, (int, SymDim)) and not isinstance(found, bool) else None


def _step(layer: TfliteLayer, result: Expr, param: Var) -> int | None:
    """Returns the increment of a counter per iteration; None if it is not a positive constant."""
    match _plain(result):
        case Call(op_name="add", args=[a, b]):
            for own, other in ((a, b), (b, a)):
                step = _number(layer, other)
                if _plain(own) is param and isinstance(step, int) and step > 0:
                    return step
    return None
