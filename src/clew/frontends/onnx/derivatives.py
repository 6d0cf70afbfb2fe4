"""Reverse-mode derivatives of graph values: each operator's rule computes the derivatives by its
arguments from the derivative by its result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from clew.frontends.building import call, filled, reshaped, scalar, turned
from clew.ir.dims import Dim, product
from clew.ir.expr import Attrs, Call, Expr
from clew.ir.rewrite import rebuild
from clew.ir.types import TensorType, is_float
from clew.ops.common import axes_of
from clew.support.errors import UnsupportedError
from clew.support.walk import post_order

# From the arguments, the result, its derivative and the attributes to the arguments' derivatives,
# whose shapes broadcast to the arguments' shapes, or are broadcast from them.
Rule: TypeAlias = "Callable[[Sequence[Expr], Expr, Expr, Attrs], Sequence[Expr | None]]"


def gradients(
    target: Expr, sources: Sequence[Expr], values: Mapping[int, Expr]
) -> list[Expr | None]:
    """Returns the derivatives of the sum of `target` by each source; None if it does not depend on
    it. `values` holds, by node id, the replacements of nodes in the computation.

    Errors: U005 for an operator without a rule.
    """
    order = _between(target, set(values))
    now: dict[int, Expr] = dict(values)
    depends = {source.id for source in sources}
    for node in order:
        if node.id in values:
            continue
        children = [now.get(child.id, child) for child in node.children]
        now[node.id] = rebuild(node, children)
        if any(child.id in depends for child in node.children):
            depends.add(node.id)
    result = now.get(target.id, target)
    by: dict[int, Expr] = {}
    if target.id in depends:
        by[target.id] = filled(1, result.tensor.dtype, result.tensor.shape)
    for node in reversed(order):
        if node.id in values or node.id not in by:
            continue
        for child, found in _of_arguments(node, now, by[node.id], depends):
            before = by.get(child.id)
            by[child.id] = found if before is None else call("add", before, found)
    return [by.get(source.id) for source in sources]


def _between(target: Expr, ends: set[int]) -> list[Expr]:
    """Returns the nodes that a value is computed from, producers first, up to the ends."""
    return post_order((target,), lambda node: () if node.id in ends else node.children)


def _of_arguments(
    node: Expr, now: Mapping[int, Expr], derivative: Expr, depends: set[int]
) -> list[tuple[Expr, Expr]]:
    """Returns the derivatives by the arguments that depend on a source."""
    wanted = [child for child in node.children if child.id in depends]
    if not wanted:
        return []
    rule = _RULES.get(node.op_name) if isinstance(node, Call) else None
    if rule is None or not isinstance(node, Call):
        what = node.op_name if isinstance(node, Call) else type(node).__name__
        raise UnsupportedError(
            "U005",
            f"Gradient: {what} has no derivative rule",
            hint=f"there are rules for {', '.join(sorted(_RULES))}",
        )
    args = [now.get(a.id, a) for a in node.args]
    found = rule(args, now[node.id], derivative, node.attrs)
    return [
        (child, _as_shape(value, arg.tensor))
        for child, arg, value in zip(node.args, args, found, strict=True)
        if child.id in depends and value is not None and is_float(arg.tensor.dtype)
    ]


def _as_shape(x: Expr, wanted: TensorType) -> Expr:
    """Returns a derivative summed over the axes along which an argument was broadcast."""
    extra = x.tensor.rank - wanted.rank
    axes = list(range(extra))
    for n, size in enumerate(wanted.shape):
        if extra >= 0 and size == 1 and x.tensor.shape[n + extra] != 1:
            axes.append(n + extra)
    if axes:
        x = call("sum", x, axes=tuple(axes), keepdims=False)
    if x.tensor.size == wanted.size:
        return reshaped(x, wanted.shape)
    return call("broadcast_to", x, shape=wanted.shape)


def _times(*factors: Expr) -> Expr:
    first, *rest = factors
    for factor in rest:
        first = call("multiply", first, factor)
    return first


def _number(value: float, like: Expr) -> Expr:
    return scalar(value, like.tensor.dtype)


def _zero_unless(condition: Expr, x: Expr) -> Expr:
    return call("where", condition, x, _number(0, x))


def _divide(args: Sequence[Expr], y: Expr, g: Expr, attrs: Attrs) -> Sequence[Expr | None]:
    share = call("divide", g, args[1])
    return share, call("negative", _times(share, y))


def _power(args: Sequence[Expr], y: Expr, g: Expr, attrs: Attrs) -> Sequence[Expr | None]:
    base, exponent = args
    less = call("subtract", exponent, _number(1, exponent))
    return _times(g, exponent, call("power", base, less)), _times(g, y, call("log", base))


def _extreme(op: str) -> Rule:
    """Equal elements share the derivative, half each."""

    def rule(args: Sequence[Expr], y: Expr, g: Expr, attrs: Attrs) -> Sequence[Expr | None]:
        a, b = args
        half = _times(g, _number(0.5, g))
        same = call("where", call("equal", a, b), half, _number(0, g))
        return tuple(
            call("add", _zero_unless(call(op, x, z), g), same) for x, z in ((a, b), (b, a))
        )

    return rule


def _where(args: Sequence[Expr], y: Expr, g: Expr, attrs: Attrs) -> Sequence[Expr | None]:
    zero = _number(0, g)
    return None, call("where", args[0], g, zero), call("where", args[0], zero, g)


def _kept(x: Expr, g: Expr, attrs: Attrs) -> Expr:
    """Returns the derivative by a reduction's result, with reduced axes of size 1."""
    axes = axes_of("Gradient", attrs.axes, x.tensor.rank)
    return reshaped(g, [1 if n in axes else d for n, d in enumerate(x.tensor.shape)])


def _mean(args: Sequence[Expr], y: Expr, g: Expr, attrs: Attrs) -> Sequence[Expr | None]:
    shape = args[0].tensor.shape
    count = product(tuple(shape[n] for n in axes_of("Gradient", attrs.axes, len(shape))))
    if not isinstance(count, int):
        raise UnsupportedError("U005", f"Gradient: of a mean of {count} elements")
    return (_times(_kept(args[0], g, attrs), _number(1 / max(count, 1), g)),)


def _matmul(args: Sequence[Expr], y: Expr, g: Expr, attrs: Attrs) -> Sequence[Expr | None]:
    a, b = args
    if a.tensor.rank < 2 or b.tensor.rank < 2:
        raise UnsupportedError("U005", f"Gradient: of a product of {a.type} and {b.type}")
    return call("nn.matmul", g, turned(b)), call("nn.matmul", turned(a), g)


def _dense(args: Sequence[Expr], y: Expr, g: Expr, attrs: Attrs) -> Sequence[Expr | None]:
    x, weight = args
    if weight.tensor.rank != 2:
        raise UnsupportedError("U005", f"Gradient: of a dense layer with weights {weight.type}")
    swapped = attrs.weight_layout == "NK"
    by_x = call("nn.matmul", g, weight if swapped else turned(weight))
    depth, width = x.tensor.shape[-1], g.tensor.shape[-1]
    rows: Dim = product(x.tensor.shape[:-1])
    flat, out = reshaped(x, (rows, depth)), reshaped(g, (rows, width))
    by_weight = call("nn.matmul", turned(flat), out)
    return by_x, turned(by_weight) if swapped else by_weight


def _softmax(args: Sequence[Expr], y: Expr, g: Expr, attrs: Attrs) -> Sequence[Expr | None]:
    weighted = _times(g, y)
    total = call("sum", weighted, axes=(attrs.axis,), keepdims=True)
    return (call("subtract", weighted, _times(y, total)),)


def _transpose(args: Sequence[Expr], y: Expr, g: Expr, attrs: Attrs) -> Sequence[Expr | None]:
    order = [a % len(attrs.axes) for a in attrs.axes]
    return (call("transpose", g, axes=tuple(order.index(n) for n in range(len(order)))),)


def _concatenate(args: Sequence[Expr], y: Expr, g: Expr, attrs: Attrs) -> Sequence[Expr | None]:
    axis = attrs.axis % y.tensor.rank
    sizes = tuple(a.tensor.shape[axis] for a in args)
    parts, begin = [], 0
    for size in sizes:
        if not isinstance(size, int):
            raise UnsupportedError("U005", f"Gradient: of a concatenation along {size}")
        end = begin + size
        parts.append(call("slice", g, begin=(begin,), end=(end,), strides=(1,), axes=(axis,)))
        begin = end
    return parts


def _simple(function: Callable[[Expr, Expr, Expr], Expr]) -> Rule:
    """Returns the rule of an operator of one argument `x`, with the result `y`."""
    return lambda args, y, g, attrs: (function(args[0], y, g),)


def _one_less(x: Expr) -> Expr:
    return call("subtract", _number(1, x), x)


_RULES: Final[dict[str, Any]] = {
    "abs": _simple(lambda x, y, g: _times(g, call("sign", x))),
    "add": lambda args, y, g, attrs: (g, g),
    "broadcast_to": lambda args, y, g, attrs: (g,),
    "cast": _simple(lambda x, y, g: call("cast", g, dtype=x.tensor.dtype)),
    "concatenate": _concatenate,
    "cos": _simple(lambda x, y, g: call("negative", _times(g, call("sin", x)))),
    "divide": _divide,
    "erf": _simple(
        lambda x, y, g: _times(
            g, _number(2 / math.sqrt(math.pi), g), call("exp", call("negative", _times(x, x)))
        )
    ),
    "exp": _simple(lambda x, y, g: _times(g, y)),
    "identity": lambda args, y, g, attrs: (g,),
    "log": _simple(lambda x, y, g: call("divide", g, x)),
    "maximum": _extreme("greater"),
    "mean": _mean,
    "minimum": _extreme("less"),
    "multiply": lambda args, y, g, attrs: (_times(g, args[1]), _times(g, args[0])),
    "negative": _simple(lambda x, y, g: call("negative", g)),
    "nn.dense": _dense,
    "nn.matmul": _matmul,
    "nn.relu": _simple(lambda x, y, g: _zero_unless(call("greater", x, _number(0, x)), g)),
    "nn.softmax": _softmax,
    "power": _power,
    "reciprocal": _simple(lambda x, y, g: call("negative", _times(g, y, y))),
    "reshape": _simple(lambda x, y, g: reshaped(g, x.tensor.shape)),
    "sigmoid": _simple(lambda x, y, g: _times(g, y, _one_less(y))),
    "sin": _simple(lambda x, y, g: _times(g, call("cos", x))),
    "sqrt": _simple(lambda x, y, g: call("divide", _times(g, _number(0.5, g)), y)),
    "subtract": lambda args, y, g, attrs: (g, call("negative", g)),
    "sum": lambda args, y, g, attrs: (_kept(args[0], g, attrs),),
    "tanh": _simple(lambda x, y, g: _times(g, _one_less(_times(y, y)))),
    "transpose": _transpose,
    "where": _where,
}
