"""Scalar arithmetic in an FX graph: on sizes, and on numbers computed from them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial, reduce
from typing import Any, Final

import torch
from torch import fx

from clew.frontends.building import call, cast
from clew.frontends.torch.values import Value, Values
from clew.ir.expr import Expr
from clew.support.errors import UnsupportedError


def _op(name: str) -> Callable[..., Expr]:
    return lambda *args: call(name, *args)


def floor_quotient(a: Expr, b: Expr) -> Expr:
    """Returns `floor(a / b)` of integers."""
    return call("divide", call("subtract", a, call("floor_mod", a, b)), b)


# How numbers that are known only during the run are computed, in f64 (comparisons: in f64, too).
_FLOATS: Final[Mapping[Any, Callable[..., Expr]]] = {
    operator.add: _op("add"),
    operator.sub: _op("subtract"),
    operator.mul: _op("multiply"),
    operator.truediv: _op("divide"),
    operator.pow: _op("power"),
    operator.neg: _op("negative"),
    operator.floordiv: lambda a, b: call("floor", call("divide", a, b)),
    operator.mod: _op("floor_mod"),
    operator.lt: _op("less"),
    operator.le: _op("less_equal"),
    operator.gt: _op("greater"),
    operator.ge: _op("greater_equal"),
    operator.eq: _op("equal"),
    operator.ne: _op("not_equal"),
    operator.and_: _op("logical_and"),
    operator.or_: _op("logical_or"),
    torch.sym_ite: _op("where"),
    torch.sym_not: _op("logical_not"),
    torch.sym_max: _op("maximum"),
    torch.sym_min: _op("minimum"),
    torch.sym_sum: lambda *terms: reduce(partial(call, "add"), terms),
    torch.sym_float: lambda a: a,
    math.sqrt: _op("sqrt"),
    torch._sym_sqrt: _op("sqrt"),
    math.ceil: _op("ceil"),
    math.floor: _op("floor"),
    math.trunc: _op("trunc"),
    torch.sym_int: _op("trunc"),
    round: _op("round"),
}
# Of integers, in i64; the others are computed as floats are.
_INTEGERS: Final[Mapping[Any, Callable[..., Expr]]] = {
    target: rule
    for target, rule in _FLOATS.items()
    if target not in (operator.truediv, operator.pow, math.sqrt, torch._sym_sqrt, torch.sym_float)
} | {
    operator.floordiv: floor_quotient,
    math.ceil: lambda a: a,
    math.floor: lambda a: a,
    math.trunc: lambda a: a,
    torch.sym_int: lambda a: a,
    round: lambda a: a,
}
_READ: Final = ("sym_size", "sym_numel", "sym_stride", "sym_storage_offset", "sym_is_contiguous")


def is_arithmetic(target: Any) -> bool:
    """Whether a call is of numbers, not of tensors."""
    return target in _FLOATS or reads_size(target)


def reads_size(target: Any) -> bool:
    """Whether a call reads a size of a tensor."""
    name = getattr(target, "__name__", "").partition(".")[0]
    return isinstance(target, torch._ops.OpOverload) and name in _READ


def arithmetic(importer: Values, node: fx.Node, args: list[Value]) -> Value:
    """Returns the value of a call of numbers: a dimension where it is an integer, else a scalar.

    Errors: U060.
    """
    if node.target is torch.sym_sum:
        (args,) = args
    known = node.meta.get("val")
    if isinstance(known, (bool, int, float)):
        return known
    if reads_size(node.target):
        return importer.sizes.dim(known)
    if isinstance(known, torch.SymInt) and importer.sizes.is_named(known):
        with suppress(UnsupportedError):
            return importer.sizes.dim(known)
    args = [a for a in args if a is not None]  # `round` of no digits
    whole = all(map(_is_whole, args)) and node.target in _INTEGERS
    dtype = "i64" if whole else "f64"
    operands = [importer.as_dtype(a, dtype if not _is_truth(a) else "bool") for a in args]
    rules = _INTEGERS if whole else _FLOATS
    found = rules[node.target](*operands)
    if isinstance(known, torch.SymInt):
        found = cast(found, "i64")
        importer.sizes.number(known, found)
    return found


def _is_whole(value: Value) -> bool:
    if isinstance(value, Expr):
        return value.tensor.dtype in ("i64", "bool")
    return not isinstance(value, float)


def _is_truth(value: Value) -> bool:
    return isinstance(value, bool) or (isinstance(value, Expr) and value.tensor.dtype == "bool")
