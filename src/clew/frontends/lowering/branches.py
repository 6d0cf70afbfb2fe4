"""Branches of the graph IR, built from results that were imported for either case."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from clew.frontends.asked import Asked
from clew.frontends.building import call, scalar
from clew.frontends.lowering.captures import Captures
from clew.ir.expr import Expr, Function, If, Tuple, TupleGetItem, Var
from clew.ir.syntax import type_text
from clew.ir.types import TupleType, Type, is_unranked
from clew.ir.values import KnownValues
from clew.support.errors import ClewError, GraphTypeError, ModelError

Branch: TypeAlias = "tuple[Tuple | ClewError, Captures]"
"""A branch's results, or the error of its import; and the outside values that it uses."""


def read_branch(read: Callable[[Captures], Sequence[Expr]], known: KnownValues) -> Branch:
    """Returns a branch, whose results `read` returns."""
    captures = Captures(known)
    try:
        return Tuple(read(captures)), captures
    except GraphTypeError as error:
        return error, Captures(known)
    except ModelError as error:
        if error.code != "M012":
            raise
        return error, Captures(known)


def build_if(
    condition: Expr,
    then: Branch,
    orelse: Branch,
    wrong: Callable[[str], ClewError],
    asked: Asked,
) -> list[Expr]:
    """Returns the results of an `If`. `wrong` returns the error for an invalid layer.

    The branches may return values of different shape and rank, which are then data-dependent
    (`ir.types.join`). A branch that cannot be imported for its shapes is one that these shapes
    never take: if the run takes it after all, the run raises the error.
    """
    read = (then, orelse)
    bodies = [body for body, _ in read]
    for n, other in ((0, 1), (1, 0)):
        body, failed = bodies[n], bodies[other]
        if isinstance(failed, ClewError):
            if isinstance(body, ClewError):
                raise body
            bodies[other] = Tuple([_refused(failed, f.type) for f in body.fields])
            asked.undecided(condition)
    outers = {o.id: o for _, captures in read for o in captures.outers}
    first, second = (
        _closed(body, captures, outers.values())  # type: ignore[arg-type]
        for body, (_, captures) in zip(bodies, read, strict=True)
    )
    counts = [len(f.body.type.fields) for f in (first, second)]  # type: ignore[union-attr]
    if counts[0] != counts[1]:
        raise wrong(f"has branches that return {counts[0]} and {counts[1]} values")
    result = If(condition, first, second, list(outers.values()))
    assert isinstance(result.type, TupleType)
    if any(map(is_unranked, result.type.fields)):
        asked.undecided(condition)
    return [TupleGetItem(result, n) for n in range(counts[0])]


def _refused(error: ClewError, type_: Type) -> Expr:
    """Returns a value of a type that raises an error when it is requested."""
    never = scalar(False, "bool")
    return call("assume", never, code=error.code, message=error.message, type=type_text(type_))


def _closed(body: Expr, captures: Captures, outers: Iterable[Expr]) -> Function:
    """Returns a branch as a function of all outside values of both branches."""
    params = []
    for outer in outers:
        found = captures.parameters.get(outer.id)
        params.append(found[1] if found else Var("unused", outer.type))
    return Function(params, body)
