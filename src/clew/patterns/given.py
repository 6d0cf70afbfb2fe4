"""Compares a node's structure with a given expression."""

from __future__ import annotations

import numpy as np

from clew.ir.expr import Call, Constant, Expr, Function, GlobalVar, TupleGetItem, Var, While
from clew.ir.structural import structural_equal


def structure(given: Expr, node: Expr) -> tuple[Expr, ...] | None:
    """Returns the nodes under `node` that correspond to those under `given`; `None` if they differ.
    The work is bounded by the size of `given`, with shared nodes counted once.
    """
    there: dict[int, Expr] = {}
    back: dict[int, int] = {}
    stack = [(given, node)]
    while stack:
        a, b = stack.pop()
        if a.id in there or b.id in back:
            if there.get(a.id) is not b or back.get(b.id) != a.id:
                return None
            continue
        if not _alike(a, b):
            return None
        there[a.id], back[b.id] = b, a.id
        if not isinstance(a, Function):
            if len(a.children) != len(b.children):
                return None
            stack.extend(zip(reversed(a.children), reversed(b.children), strict=True))
    return tuple(n for n in there.values() if not isinstance(n, (Var, Function)))


def _alike(a: Expr, b: Expr) -> bool:
    """Whether two nodes are equal except for their operands."""
    if a is b:
        return True
    if type(a) is not type(b) or a.type != b.type:
        return False
    match a, b:
        case Call(), Call():
            functions = isinstance(a.op, Function) and isinstance(b.op, Function)
            return a.attrs == b.attrs and (functions or _same_operator(a, b))
        case Constant(), Constant():
            return _same_data(a, b)
        case TupleGetItem(), TupleGetItem():
            return a.index == b.index
        case Var(), Var():
            return a.name == b.name
        case GlobalVar(), GlobalVar():
            return a.name == b.name
        case Function(), Function():
            return structural_equal(a, b)
        case While(), While():
            return (a.scans, a.trips) == (b.scans, b.trips)
    return True


def _same_operator(a: Call, b: Call) -> bool:
    return type(a.op) is type(b.op) and a.op_name == b.op_name


def _same_data(a: Constant, b: Constant) -> bool:
    if a.token and a.token == b.token:
        return True
    if not a.is_lazy and not b.is_lazy and a.data is b.data:
        return True
    return bool(np.array_equal(a.data, b.data))
