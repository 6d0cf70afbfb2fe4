"""Which inputs decide sizes: those whose *values* a graph's shapes and axes are computed from.

A value that decides costs a build for each new value, so little may: small integer vectors and
numbers (and float ones, such as the scales of a resize), through operators that sizes are computed
with. Everything else is data, whose sizes are settled inside the run. The size of an activation is
not its value: `shape_of(%activation)` leads to no input.
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
    """Returns where the values of expressions begin: parameters, and calls of operators that no
    sizes are computed with. Sizes themselves and constants are left out. `alias` tells for which
    outer expression a parameter of a branch or loop body stands.
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
    """Returns how a call makes sizes (`Traits.sizes` of its operator)."""
    return "" if isinstance(call.op, (Function, GlobalVar)) else str(call.op.traits.sizes)


def _computes_sizes(call: Call) -> bool:
    """Whether an input may decide through a call. A value from any other operator (a position of
    the largest, a count of what is not zero, a product of matrices) is data.
    """
    sizes = _sizes(call)
    if sizes == "computed from integers":
        return isinstance(call.type, TensorType) and not is_float(call.type.dtype)
    return sizes == "computed"


def may_decide(type_: Type) -> bool:
    """Whether a model's input of a type may decide: tensors of a higher rank than one are data, and
    so are long vectors.
    """
    if not isinstance(type_, TensorType) or type_.rank > 1:
        return False
    size = type_.size
    return not isinstance(size, int) or size <= MAX_DECIDING_ELEMENTS


def decided_by(
    function: Function, may: Callable[[Type], bool] = may_decide
) -> list[tuple[Call, str, tuple[Var, ...]]]:
    """Returns what parameters decide: calls, the attribute that a run tells, and the parameters its
    value is computed from. Calls of which some attribute needs other data are left out, since no
    parameters settle them. `may` says of which types a parameter may be.
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
