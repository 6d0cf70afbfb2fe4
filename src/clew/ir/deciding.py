"""Deciding inputs: inputs whose *values* determine a graph's shapes and axes.

Each new value of a deciding input costs a build. So an input may decide only if it is a small
integer vector or a number (or a float one, such as the scales of a resize), and only through
operators that compute sizes. Everything else is data; sizes computed from data are determined
during the run. The size of an activation is not its value: `shape_of(%activation)` leads to no
input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from clew.ir.expr import ArgRef, Call, Constant, Expr, Function, GlobalVar, Tuple, TupleGetItem, Var
from clew.ir.types import TensorType, Type, is_float
from clew.ir.visit import post_order
from clew.support.budgets import MAX_DECIDING_ELEMENTS


def deciding_leaves(
    exprs: Iterable[Expr], alias: Callable[[Var], Expr | None] = lambda var: None
) -> list[Expr]:
    """Returns the leaves of expressions: parameters, and calls of operators that do not compute
    sizes. Sizes themselves and constants are excluded. `alias` maps a parameter of a branch or loop
    body to its outer expression.
    """
    leaves: list[Expr] = []
    stack, seen = list(exprs), set[int]()
    while stack:
        node = stack.pop()
        if node.id in seen:
            continue
        seen.add(node.id)
        match node:
            case Constant():
                continue
            case Var() if (outer := alias(node)) is not None:
                stack.append(outer)
            case Tuple():
                stack += node.fields
            case TupleGetItem():
                stack.append(node.value)
            case Call() if _sizes(node) == "read":
                continue
            case Call() if _computes_sizes(node):
                stack += node.args
            case _:
                leaves.append(node)
    return leaves


def _sizes(call: Call) -> str:
    """Returns how a call computes sizes (`Traits.sizes` of its operator)."""
    return "" if isinstance(call.op, (Function, GlobalVar)) else str(call.op.traits.sizes)


def _computes_sizes(call: Call) -> bool:
    """Whether an input may decide through a call. The result of any other operator (an argmax, a
    count of nonzero elements, a matrix product) is data.
    """
    sizes = _sizes(call)
    if sizes == "computed from integers":
        return isinstance(call.type, TensorType) and not is_float(call.type.dtype)
    return sizes == "computed"


def may_decide(type_: Type) -> bool:
    """Whether a model input of a type may decide. Tensors of rank 2 and up and long vectors are
    data.
    """
    if not isinstance(type_, TensorType) or type_.rank > 1:
        return False
    size = type_.size
    return not isinstance(size, int) or size <= MAX_DECIDING_ELEMENTS


def decided_by(
    function: Function, may: Callable[[Type], bool] = may_decide
) -> list[tuple[Call, str, tuple[Var, ...]]]:
    """Returns the attributes that parameters decide: the call, the attribute known only during the
    run, and the parameters its value depends on. Excludes calls with an attribute that needs other
    data, since parameters do not determine them. `may` selects the types of deciding parameters.
    """
    mine = {p.id for p in function.params if may(p.type)}
    found: list[tuple[Call, str, tuple[Var, ...]]] = []
    for node in post_order(function):
        if not isinstance(node, Call):
            continue
        here = []
        for name, index in ((n, v.index) for n, v in node.attrs.items() if isinstance(v, ArgRef)):
            leaves = deciding_leaves([node.args[index]])
            params = tuple(leaf for leaf in leaves if isinstance(leaf, Var) and leaf.id in mine)
            if len(params) != len(leaves):
                break
            here.append((node, name, params))
        else:
            found += (entry for entry in here if entry[2])
    return found


def deciding_params(
    function: Function, may: Callable[[Type], bool] = may_decide
) -> tuple[int, ...]:
    """Returns the positions of parameters whose values decide attributes (see `decided_by`)."""
    found = {p.id for _, _, params in decided_by(function, may) for p in params}
    return tuple(n for n, p in enumerate(function.params) if p.id in found)
