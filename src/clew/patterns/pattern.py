"""The pattern language. A pattern object used twice in one pattern must match the same node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clew.ir.dims import Dim
from clew.ir.expr import Attrs, Call, Constant, Expr, Var
from clew.ir.types import TensorType, Type

if TYPE_CHECKING:
    from clew.patterns.match import Match


class Pattern:
    """What a node may look like. Constraints return a narrower pattern."""

    def __or__(self, other: Pattern) -> Pattern:
        """Either this or the other, tried in this order."""
        return Either((self, other))

    @property
    def root_ops(self) -> frozenset[str] | None:
        """Names of the operators whose calls can match; `None` when other nodes can, too."""
        return None

    def check(self, test: Callable[[Expr], bool]) -> Pattern:
        """Matches where `test(node)` holds as well."""
        return Checked(self, lambda node, _: test(node))

    def where(self, test: Callable[[Match], bool]) -> Pattern:
        """Matches where `test` holds for all that has been matched when this pattern is."""
        return Checked(self, lambda _, found: test(found))

    def used_once(self) -> Pattern:
        """Matches a value that nothing but the match uses."""
        return Checked(self, lambda node, found: found.uses(node) == 1)

    def has_type(self, type_: Type) -> Pattern:
        """Matches a value of exactly this type."""
        return self.check(lambda node: node.type == type_)

    def has_dtype(self, *dtypes: str) -> Pattern:
        """Matches a tensor of one of the dtypes."""
        return self.check(
            lambda node: isinstance(node.type, TensorType) and node.type.dtype in dtypes
        )

    def has_shape(self, *shape: Dim | None) -> Pattern:
        """Matches a tensor of this shape; `None` stands for any size."""

        def test(node: Expr) -> bool:
            if not isinstance(node.type, TensorType) or node.type.rank != len(shape):
                return False
            return all(s is None or s == d for s, d in zip(shape, node.type.shape, strict=True))

        return self.check(test)

    def has_rank(self, rank: int) -> Pattern:
        """Matches a tensor with so many axes."""
        return self.check(lambda node: isinstance(node.type, TensorType) and node.type.rank == rank)

    def has_attr(self, **attrs: Any) -> Pattern:
        """Matches a call with these attributes; a callable value is a test of the attribute."""

        def holds(given: Attrs, name: str, wanted: Any) -> bool:
            if name not in given:
                return False
            value = given[name]
            return bool(wanted(value)) if callable(wanted) else value == _tuples(wanted)

        def test(node: Expr) -> bool:
            given = getattr(node, "attrs", None)
            return given is not None and all(holds(given, n, w) for n, w in attrs.items())

        return self.check(test)

    def optional(self, around: Callable[[Pattern], Pattern]) -> Pattern:
        """Matches `around(self)`, or else this pattern alone."""
        return Either((around(self), self))


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value


@dataclass(frozen=True, eq=False)
class Wildcard(Pattern):
    """Any node."""


@dataclass(frozen=True, eq=False)
class NodeKind(Pattern):
    """Any node of a class."""

    kind: type[Expr]


@dataclass(frozen=True, eq=False)
class CallOf(Pattern):
    """A call of one of the operators; `args` of `None` stands for any arguments.

    Two arguments of a commutative operator match in either order.
    """

    names: frozenset[str]
    args: tuple[Pattern, ...] | None

    @property
    def root_ops(self) -> frozenset[str] | None:
        return self.names


@dataclass(frozen=True, eq=False)
class Projection(Pattern):
    """One value of a tuple; `index` of `None` stands for any."""

    value: Pattern
    index: int | None


@dataclass(frozen=True, eq=False)
class Either(Pattern):
    """One of several patterns, tried in order."""

    options: tuple[Pattern, ...]

    @property
    def root_ops(self) -> frozenset[str] | None:
        names: frozenset[str] = frozenset()
        for option in self.options:
            if option.root_ops is None:
                return None
            names |= option.root_ops
        return names


@dataclass(frozen=True, eq=False)
class Checked(Pattern):
    """A pattern whose node must pass a test, made once the pattern itself has matched."""

    inner: Pattern
    test: Callable[[Expr, Match], bool]

    @property
    def root_ops(self) -> frozenset[str] | None:
        return self.inner.root_ops


@dataclass(frozen=True, eq=False)
class OpName:
    """An operator by name: called with patterns of its arguments, it is a pattern of its calls."""

    names: frozenset[str]

    def __call__(self, *args: Pattern) -> Pattern:
        """Returns the pattern of calls with such arguments."""
        return CallOf(self.names, args)

    def any_args(self) -> Pattern:
        """Returns the pattern of calls with whatever arguments."""
        return CallOf(self.names, None)


def wildcard() -> Pattern:
    """Returns a pattern of any node."""
    return Wildcard()


def is_constant() -> Pattern:
    """Returns a pattern of constants."""
    return NodeKind(Constant)


def is_splat(value: float | Callable[[float], bool] | None = None) -> Pattern:
    """Returns a pattern of constants whose elements are equal, and equal to `value` or pass its
    test.
    """

    def test(node: Expr) -> bool:
        if not isinstance(node, Constant) or not node.is_splat or node.data.size == 0:
            return False
        if value is None:
            return True
        found = node.splat_value
        return bool(value(found)) if callable(value) else bool(found == value)

    return is_constant().check(test)


def is_call() -> Pattern:
    """Returns a pattern of calls of whatever operator or function."""
    return NodeKind(Call)


def is_var() -> Pattern:
    """Returns a pattern of variables."""
    return NodeKind(Var)


def is_op(*names: str) -> OpName:
    """Returns what, called with argument patterns, is the pattern of calls of one of the
    operators.
    """
    return OpName(frozenset(names))


def is_tuple_get_item(value: Pattern, index: int | None = None) -> Pattern:
    """Returns a pattern of one value of a tuple."""
    return Projection(value, index)
