"""Which values of a function are stored rounded to the dtype of the products that read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from clew.ir.expr import Call, Constant, Expr, Function, Var
from clew.ir.types import TensorType, to_numpy
from clew.ir.visit import post_order
from clew.ops.registry import Op, argument_references, get_op


def stored_rounded(function: Function, operands: Iterable[Expr], dtype: str) -> set[int]:
    """Returns the ids of the calls of `dtype` whose values are stored rounded, as operands of
    products are.

    Rounding moves up through operators that only move elements. A concatenation is also rounded if
    only well-conditioned operators lead from it to rounded values, and the same holds for each of
    its parts.
    """
    calls = [n for n in post_order(function.body) if isinstance(n, Call)]
    rounded: set[int] = set()
    _round(operands, dtype, rounded)
    _round_what_moves(calls, dtype, rounded)
    _round_joined(function, dtype, rounded)
    _round_what_moves(calls, dtype, rounded)
    return rounded


def stored_in_both(
    function: Function,
    rounded: set[int],
    convolved: Iterable[Expr],
    dtype: str,
    reads_wide: Callable[[Expr], bool],
) -> set[int]:
    """Returns the ids of those rounded values that are also stored in f32, for other readers: the
    operands of dense layers and attention, such as the norm of a residual sum. The layers take far
    longer than the store, and the errors of a residual stream add up. What convolutions read
    (`convolved`) is stored once, so that activations between layers take half the bytes.
    """
    read = {c.id for n in post_order(function.body) if reads_wide(n) for c in n.children}
    return (rounded & read) - stored_rounded(function, convolved, dtype)


def has_dtype(value: Expr, dtype: str) -> bool:
    """Whether a value is a tensor of a dtype."""
    return isinstance(value.type, TensorType) and value.type.dtype == dtype


def in_dtype(value: Expr, dtype: str) -> Expr:
    """Returns a tensor cast to a dtype; a constant is converted."""
    if not isinstance(value, Constant):
        return get_op("cast")(value, dtype=dtype)
    wanted = value.tensor.with_(dtype=dtype)
    if value.is_splat:
        return Constant.splat(value.splat_value, wanted)
    return value.derived(dtype, wanted, lambda data: data.astype(to_numpy(dtype)))


def factors(call: Call) -> int:
    """Returns the number of a product's operands that are multiplied; the first ones are."""
    return 3 if call.op_name == "nn.attention" else 2


def is_stored(value: Expr) -> bool:
    """Whether a value is an input, such as a cache, or an input with some elements replaced."""
    while isinstance(value, Call) and isinstance(value.op, Op):
        types = [a.tensor for a in value.args]
        if value.op.scatter_rule is None and not value.op.selects(types, value.attrs):
            return False
        value = value.args[0]
    return isinstance(value, Var)


def moves(node: Expr, dtype: str) -> bool:
    """Whether a call only selects elements of operands of a dtype, so that rounding can move before
    it.
    """
    return (
        isinstance(node, Call)
        and isinstance(node.op, Op)
        and not argument_references(node.attrs)
        and isinstance(node.type, TensorType)
        and all(has_dtype(a, dtype) for a in node.args)
        and node.op.selects([a.tensor for a in node.args], node.attrs)
    )


def _round(values: Iterable[Expr], dtype: str, rounded: set[int]) -> None:
    rounded.update(v.id for v in values if isinstance(v, Call) and has_dtype(v, dtype))


def _round_what_moves(calls: Sequence[Call], dtype: str, rounded: set[int]) -> None:
    for call in reversed(calls):
        if call.id in rounded and moves(call, dtype):
            _round(call.args, dtype, rounded)


def _round_joined(function: Function, dtype: str, rounded: set[int]) -> None:
    ends: dict[int, list[Expr]] = {}
    nodes = post_order(function.body)
    for node in nodes:
        for child in node.children:
            ends.setdefault(child.id, []).append(node)
    refused: set[int] = set()
    while True:
        leading = set(rounded)
        for node in reversed(nodes):
            found = ends.get(node.id, [])
            well = all(u.id in leading and _leads(u, dtype) for u in found)
            if found and well and node.id not in refused:
                leading.add(node.id)
        joined = [n for n in nodes if n.id in leading - rounded and _joins(n, dtype)]
        more = [n.id for n in joined if not all(a.id in leading for a in n.children)]
        if not more:
            rounded.update(n.id for n in joined)
            return
        refused.update(more)


def _joins(node: Expr, dtype: str) -> bool:
    return isinstance(node, Call) and node.op_name == "concatenate" and moves(node, dtype)


def _leads(node: Expr, dtype: str) -> bool:
    """Whether rounding an operand of a call has no larger effect than rounding its result."""
    if moves(node, dtype):
        return True
    if not isinstance(node, Call) or not isinstance(node.op, Op):
        return False
    types = [a.type for a in node.args if isinstance(a.type, TensorType)]
    return len(types) == len(node.args) and node.op.well_conditioned(types, node.attrs)
