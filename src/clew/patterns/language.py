"""The functions for writing patterns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from clew.ir.dims import Dim
from clew.ir.expr import Call, Constant, Expr, Var
from clew.ir.types import Type
from clew.patterns.pattern import (
    CallOf,
    Checked,
    Dominates,
    FunctionOf,
    Given,
    IfOf,
    NodeKind,
    Pattern,
    PatternLike,
    Projection,
    TupleOf,
    Wildcard,
    as_pattern,
    splat,
)
from clew.support.dataclass import dataclass


@dataclass(frozen=True, eq=False)
class OpName:
    """An operator by name. Called with patterns of its arguments, it gives a pattern of its
    calls.
    """

    names: frozenset[str]

    def __call__(self, *args: PatternLike) -> Pattern:
        """Returns the pattern of calls with matching arguments.

        Errors: I026 if an argument is not a pattern, number or node.
        """
        return CallOf(self.names, tuple(map(as_pattern, args)))

    def any_args(self) -> Pattern:
        """Returns the pattern of calls with any arguments."""
        return CallOf(self.names, None)


def wildcard() -> Pattern:
    """Returns a pattern of any node."""
    return Wildcard()


def is_constant() -> Pattern:
    """Returns a pattern of constants."""
    return NodeKind(Constant)


def is_splat(value: float | Callable[[float], bool] | None = None) -> Pattern:
    """Returns a pattern of constants with all elements equal, to each other and to `value` (within
    the precision of their dtype), or passing its test.
    """
    return splat(value)


def is_call() -> Pattern:
    """Returns a pattern of calls of any operator or function."""
    return NodeKind(Call)


def is_var(name: str | None = None) -> Pattern:
    """Returns a pattern of variables, or of those with the name."""
    if name is None:
        return NodeKind(Var)

    def test(node: Expr, _: Any) -> bool:
        return isinstance(node, Var) and node.name == name

    def says(node: Expr, _: Any) -> str:
        return f"the variable {getattr(node, 'name', '')}"

    return Checked(NodeKind(Var), test, f"named({name})", says)


def is_expr(expr: Expr) -> Pattern:
    """Returns a pattern of nodes with the same structure as `expr`: the same operators, attributes
    and constants over variables of the same names and types.
    """
    return Given(expr)


def is_op(*names: str) -> OpName:
    """Returns a callable that takes patterns of arguments and returns the pattern of calls of one
    of the operators.
    """
    return OpName(frozenset(names))


def is_function(
    body: PatternLike | None = None, params: Sequence[PatternLike] | None = None
) -> FunctionOf:
    """Returns a pattern of functions by their result. Called with patterns of arguments, it gives a
    pattern of calls of these functions.
    """
    return FunctionOf(_or_any(body), _several(params))


def is_composite(name: str, *args: PatternLike, body: PatternLike | None = None) -> Pattern:
    """Returns a pattern of calls of composite functions with a name; without `args`, with any
    arguments. `body` is a pattern of the function's result.
    """

    def test(node: Expr, _: Any) -> bool:
        return isinstance(node, Call) and getattr(node.op, "attrs", {}).get("composite") == name

    function = FunctionOf(_or_any(body), None)
    calls = function(*args) if args else function.any_args()
    return Checked(calls, test, f"composite({name})")


def is_tuple(fields: Sequence[PatternLike] | None = None) -> Pattern:
    """Returns a pattern of tuples with these fields, or with any."""
    return TupleOf(_several(fields))


def is_tuple_get_item(value: PatternLike, index: int | None = None) -> Pattern:
    """Returns a pattern of one field of a tuple."""
    return Projection(as_pattern(value), index)


def is_if(
    cond: PatternLike | None = None,
    then: PatternLike | None = None,
    orelse: PatternLike | None = None,
    args: Sequence[PatternLike] | None = None,
) -> Pattern:
    """Returns a pattern of branches. `then` and `orelse` are patterns of their results, over the
    branches' own parameters.
    """
    return IfOf(_or_any(cond), _or_any(then), _or_any(orelse), _several(args))


def _or_any(value: PatternLike | None) -> Pattern:
    return Wildcard() if value is None else as_pattern(value)


def _several(values: Sequence[PatternLike] | None) -> tuple[Pattern, ...] | None:
    return None if values is None else tuple(map(as_pattern, values))


def dominates(parent: PatternLike, path: PatternLike, child: PatternLike) -> Pattern:
    """Returns a pattern of a `child` on which everything computed from a `parent` converges.

    Every node between the two matches `path` (each separately), and the parent's value reaches the
    rest of the graph only through the child. The pattern's root is the child. It needs the uses of
    values: it matches in `find_all`, `rewrite` and `partition`, or if `match` is given the
    function.
    """
    return Dominates(as_pattern(parent), as_pattern(path), as_pattern(child))


def has_type(type_: Type) -> Pattern:
    """Returns a pattern of values of exactly this type."""
    return Wildcard().has_type(type_)


def has_shape(*shape: Dim | None) -> Pattern:
    """Returns a pattern of tensors of this shape; `None` stands for any size."""
    return Wildcard().has_shape(*shape)


def has_dtype(*dtypes: str) -> Pattern:
    """Returns a pattern of tensors of one of the dtypes."""
    return Wildcard().has_dtype(*dtypes)


def has_attr(**attrs: Any) -> Pattern:
    """Returns a pattern of calls, and functions, with these attributes."""
    return Wildcard().has_attr(**attrs)


def has_kind(*kinds: str) -> Pattern:
    """Returns a pattern of calls of operators of these fusion kinds: `elementwise`, `broadcast`,
    `injective`, `reduction`, `anchor`, `opaque`.
    """
    return Wildcard().has_kind(*kinds)
