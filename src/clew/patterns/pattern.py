"""The data of patterns, their text form, and the constraints that narrow them.

A pattern object used twice in one pattern must match the same node. `language.py` has the functions
that build patterns; `match.py` defines their meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np

from clew.ir.dims import Dim
from clew.ir.expr import Attrs, Call, Constant, Expr, Function, If, Tuple, TupleGetItem
from clew.ir.types import TensorType, Type, is_float, to_numpy
from clew.ops.registry import Op
from clew.patterns.base import Kinds, PatternBase
from clew.patterns.explanation import Explanation
from clew.patterns.found import Match
from clew.patterns.goals import Above, Chain, Tested
from clew.support.dataclass import dataclass
from clew.support.errors import InputError
from clew.support.lazy import cached_property
from clew.te.analysis import Kind

Number: TypeAlias = "int | float"
# A pattern, or a value that `as_pattern` converts to one.
PatternLike: TypeAlias = "Pattern | Number | Expr"
Test: TypeAlias = "Callable[[Expr, Match], bool]"
_CALL: Final[Kinds] = frozenset({Call})
# The function that explains patterns. `explain.py`, which imports this file, sets it.
_explain: Final[list[Callable[..., Explanation]]] = []


def explained_by(form: Callable[..., Explanation]) -> None:
    """Sets the function that explains patterns."""
    _explain[:] = [form]


class Pattern(PatternBase):
    """A description of nodes. Constraints return a narrower pattern.

    Arithmetic on patterns gives the pattern of that arithmetic (`a + b`, `a * 2.0`, `-a`), in which
    a number stands for a constant with all elements equal to it.
    """

    def explain(self, where: Any, uses: Any = None) -> Explanation:
        """Returns how the pattern matches a node, or where and why it fails (`explain.explain`)."""
        return _explain[0](self, where, uses)

    # --- alternatives ---

    def __or__(self, other: Pattern) -> Pattern:
        """Either this pattern or the other, tried in this order."""
        return Either((self, other))

    def optional(self, around: Callable[[Pattern], Pattern]) -> Pattern:
        """Matches `around(self)`, or else this pattern alone."""
        return Either((around(self), self))

    # --- constraints ---

    def check(self, test: Callable[[Expr], bool], wording: str = "") -> Pattern:
        """Also requires `test(node)`. `wording` describes the requirement."""
        label = wording or getattr(test, "__name__", "test")
        return Checked(self, lambda node, _: bool(test(node)), f"check({label})")

    def where(self, test: Callable[[Match], bool], wording: str = "") -> Pattern:
        """Also requires `test` of all bindings made when this pattern matches.

        The test is part of the search: if it fails, the search tries the next way to match.
        """
        label = wording or getattr(test, "__name__", "test")
        return Checked(self, lambda _, found: bool(test(found)), f"where({label})")

    def used_once(self) -> Pattern:
        """Matches a value used only inside the match."""

        def says(node: Expr, found: Match) -> str:
            return f"{found.uses(node)} uses"

        return Checked(self, lambda node, found: found.uses(node) == 1, "used_once()", says)

    def has_type(self, type_: Type) -> Pattern:
        """Matches a value of exactly this type."""
        return Checked(self, lambda node, _: node.type == type_, f"has_type({type_})", _type_of)

    def has_dtype(self, *dtypes: str) -> Pattern:
        """Matches a tensor of one of the dtypes."""

        def test(node: Expr, _: Match) -> bool:
            return isinstance(node.type, TensorType) and node.type.dtype in dtypes

        return Checked(self, test, f"has_dtype({', '.join(dtypes)})", _type_of)

    def has_shape(self, *shape: Dim | None) -> Pattern:
        """Matches a tensor of this shape; `None` stands for any size."""

        def test(node: Expr, _: Match) -> bool:
            if not isinstance(node.type, TensorType) or node.type.rank != len(shape):
                return False
            return all(s is None or s == d for s, d in zip(shape, node.type.shape, strict=True))

        sizes = ", ".join("*" if s is None else str(s) for s in shape)
        return Checked(self, test, f"has_shape({sizes})", _type_of)

    def has_rank(self, rank: int) -> Pattern:
        """Matches a tensor with this number of axes."""

        def test(node: Expr, _: Match) -> bool:
            return isinstance(node.type, TensorType) and node.type.rank == rank

        return Checked(self, test, f"has_rank({rank})", _type_of)

    def has_attr(self, **attrs: Any) -> Pattern:
        """Matches a call or function with these attributes; a callable value is a test of the
        attribute.
        """

        def holds(given: Attrs, name: str, wanted: Any) -> bool:
            if name not in given:
                return False
            value = given[name]
            return bool(wanted(value)) if callable(wanted) else bool(value == _tuples(wanted))

        def test(node: Expr, _: Match) -> bool:
            given = getattr(node, "attrs", None)
            return given is not None and all(holds(given, n, w) for n, w in attrs.items())

        def says(node: Expr, _: Match) -> str:
            given = getattr(node, "attrs", None)
            if given is None:
                return "no attributes"
            bad = [n for n, w in attrs.items() if not holds(given, n, w)]
            return ", ".join(f"{n}={given[n]!r}" if n in given else f"no {n}" for n in bad)

        wanted = [f"{n}={getattr(w, '__name__', repr(w))}" for n, w in attrs.items()]
        return Checked(self, test, f"has_attr({', '.join(wanted)})", says)

    def has_kind(self, *kinds: str) -> Pattern:
        """Matches a call of an operator of one of the fusion kinds: `elementwise`, `broadcast`,
        `injective`, `reduction`, `anchor`, `opaque`.
        """

        def says(node: Expr, _: Match) -> str:
            return _kind_of(node) or "not a call of an operator"

        return Checked(
            self, lambda node, _: _kind_of(node) in kinds, f"has_kind({', '.join(kinds)})", says
        )

    # --- arithmetic ---

    def __add__(self, other: Pattern | Number) -> Pattern:
        return _arithmetic("add", self, other)

    def __radd__(self, other: Number) -> Pattern:
        return _arithmetic("add", other, self)

    def __sub__(self, other: Pattern | Number) -> Pattern:
        return _arithmetic("subtract", self, other)

    def __rsub__(self, other: Number) -> Pattern:
        return _arithmetic("subtract", other, self)

    def __mul__(self, other: Pattern | Number) -> Pattern:
        return _arithmetic("multiply", self, other)

    def __rmul__(self, other: Number) -> Pattern:
        return _arithmetic("multiply", other, self)

    def __truediv__(self, other: Pattern | Number) -> Pattern:
        return _arithmetic("divide", self, other)

    def __rtruediv__(self, other: Number) -> Pattern:
        return _arithmetic("divide", other, self)

    def __pow__(self, other: Pattern | Number) -> Pattern:
        return _arithmetic("power", self, other)

    def __rpow__(self, other: Number) -> Pattern:
        return _arithmetic("power", other, self)

    def __matmul__(self, other: Pattern) -> Pattern:
        return _arithmetic("nn.matmul", self, other)

    def __neg__(self) -> Pattern:
        return CallOf(frozenset({"negative"}), (self,))


def _arithmetic(name: str, left: Any, right: Any) -> Pattern:
    operands = [splat(o) if _is_number(o) else o for o in (left, right)]
    if not all(isinstance(o, Pattern) for o in operands):
        return NotImplemented  # type: ignore[no-any-return]
    return CallOf(frozenset({name}), tuple(operands))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)


def as_pattern(value: Any) -> Pattern:
    """Returns a pattern unchanged, a number as the pattern of such a constant, and a node as the
    pattern of its structure.

    Errors: I026 for anything else.
    """
    if isinstance(value, Pattern):
        return value
    if _is_number(value):
        return splat(value)
    if isinstance(value, Expr):
        return Given(value)
    raise InputError(
        "I026",
        f"{value!r} is not a pattern",
        hint="call an operator with patterns of its arguments: is_op('exp')(x), or .any_args()",
    )


def splat(value: Number | Callable[[float], bool] | None) -> Pattern:
    """Returns the pattern of constants with all elements equal, to each other and to `value`
    (within the precision of their dtype), or passing its test.
    """

    def test(node: Expr, _: Match) -> bool:
        if not isinstance(node, Constant) or not node.is_splat or node.tensor.size == 0:
            return False
        if value is None:
            return True
        found = node.splat_value
        if callable(value):
            return bool(value(found))
        if found == value:
            return True
        dtype = node.tensor.dtype
        return is_float(dtype) and bool(found == to_numpy(dtype).type(value))

    def says(node: Expr, _: Match) -> str:
        assert isinstance(node, Constant)
        return repr(node.splat_value) if node.is_splat and node.tensor.size else "several values"

    shown = "" if value is None else getattr(value, "__name__", repr(value))
    return Checked(NodeKind(Constant), test, f"splat({shown})", says)


def _kind_of(node: Expr) -> str:
    """Returns the fusion kind of an operator's call; "" for other nodes."""
    if not isinstance(node, Call) or not isinstance(node.op, Op):
        return ""
    types = tuple(a.type for a in node.args if isinstance(a.type, TensorType))
    if len(types) < len(node.args):
        return Kind.OPAQUE.name.lower()
    return node.op.kind(types, node.attrs).name.lower()


def _type_of(node: Expr, _: Match) -> str:
    return str(node.type)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value


# --- the nodes of patterns ---


@dataclass(frozen=True, eq=False, repr=False)
class Wildcard(Pattern):
    """Any node."""

    def written(self, parts: Sequence[str]) -> str:
        return "*"


@dataclass(frozen=True, eq=False, repr=False)
class NodeKind(Pattern):
    """Any node of a class."""

    is_naming: ClassVar[bool] = True
    kind: type[Expr]

    @property
    def root_kinds(self) -> Kinds:
        return frozenset({self.kind})

    def written(self, parts: Sequence[str]) -> str:
        return self.kind.__name__.lower()


@dataclass(frozen=True, eq=False, repr=False)
class Given(Pattern):
    """Nodes with the same structure as a given expression."""

    is_naming: ClassVar[bool] = True
    expr: Expr

    @property
    def root_kinds(self) -> Kinds:
        return frozenset({type(self.expr)})

    def written(self, parts: Sequence[str]) -> str:
        return f"expr(%{self.expr.id})"


@dataclass(frozen=True, eq=False, repr=False)
class CallOf(Pattern):
    """A call of one of the operators; if `args` is `None`, with any arguments.

    Two arguments of a commutative operator match in either order, and nested calls of an
    associative one in any bracketing.
    """

    is_naming: ClassVar[bool] = True
    names: frozenset[str]
    args: tuple[Pattern, ...] | None

    @property
    def parts(self) -> tuple[Pattern, ...]:
        return self.args or ()

    @property
    def root_ops(self) -> frozenset[str] | None:
        return self.names

    @property
    def root_kinds(self) -> Kinds:
        return _CALL

    @cached_property
    def chain(self) -> Chain | None:
        """The operands of nested calls of one operator, as a flat list; `None` if nothing is
        nested.
        """
        leaves = _leaves(self)
        if len(leaves) < 3 or len(self.names) != 1:
            return None
        return Chain(self, leaves)

    def written(self, parts: Sequence[str]) -> str:
        name = " or ".join(sorted(self.names))
        return f"{name}({'...' if self.args is None else ', '.join(parts)})"


def _leaves(pattern: CallOf) -> tuple[Pattern, ...]:
    """Returns the operands of nested calls of the same binary operator, left to right."""
    if pattern.args is None or len(pattern.args) != 2:
        return (pattern,)
    found: list[Pattern] = []
    stack: list[Pattern] = [*reversed(pattern.args)]
    while stack:
        part = stack.pop()
        nested = isinstance(part, CallOf) and part.names == pattern.names
        if nested and isinstance(part, CallOf) and part.args is not None and len(part.args) == 2:
            stack.extend(reversed(part.args))
        else:
            found.append(part)
    return tuple(found)


@dataclass(frozen=True, eq=False, repr=False)
class FunctionCall(Pattern):
    """A call of a function; if `args` is `None`, with any arguments."""

    is_naming: ClassVar[bool] = True
    function: Pattern
    args: tuple[Pattern, ...] | None

    @property
    def parts(self) -> tuple[Pattern, ...]:
        return (self.function, *(self.args or ()))

    @property
    def root_kinds(self) -> Kinds:
        return _CALL

    def written(self, parts: Sequence[str]) -> str:
        return f"{parts[0]}({'...' if self.args is None else ', '.join(parts[1:])})"


@dataclass(frozen=True, eq=False, repr=False)
class FunctionOf(Pattern):
    """A function whose result, and parameters if given, match."""

    body: Pattern
    params: tuple[Pattern, ...] | None

    @property
    def parts(self) -> tuple[Pattern, ...]:
        return (*(self.params or ()), self.body)

    @property
    def root_kinds(self) -> Kinds:
        return frozenset({Function})

    def __call__(self, *args: PatternLike) -> Pattern:
        """Returns the pattern of calls of functions that match."""
        return FunctionCall(self, tuple(map(as_pattern, args)))

    def any_args(self) -> Pattern:
        """Returns the pattern of calls, with any arguments, of functions that match."""
        return FunctionCall(self, None)

    def written(self, parts: Sequence[str]) -> str:
        head = "fn(...)" if self.params is None else f"fn({', '.join(parts[:-1])})"
        return f"{head} {{ {parts[-1]} }}"


@dataclass(frozen=True, eq=False, repr=False)
class TupleOf(Pattern):
    """A tuple; if `fields` is `None`, with any fields."""

    is_naming: ClassVar[bool] = True
    fields: tuple[Pattern, ...] | None

    @property
    def parts(self) -> tuple[Pattern, ...]:
        return self.fields or ()

    @property
    def root_kinds(self) -> Kinds:
        return frozenset({Tuple})

    def written(self, parts: Sequence[str]) -> str:
        return "(...)" if self.fields is None else f"({', '.join(parts)},)"


@dataclass(frozen=True, eq=False, repr=False)
class Projection(Pattern):
    """One value of a tuple; if `index` is `None`, any of them."""

    is_naming: ClassVar[bool] = True
    value: Pattern
    index: int | None

    @property
    def parts(self) -> tuple[Pattern, ...]:
        return (self.value,)

    @property
    def root_kinds(self) -> Kinds:
        return frozenset({TupleGetItem})

    def written(self, parts: Sequence[str]) -> str:
        return f"{parts[0]}[{'*' if self.index is None else self.index}]"


@dataclass(frozen=True, eq=False, repr=False)
class IfOf(Pattern):
    """A branch: its condition, the results of both sides, and its arguments if given."""

    is_naming: ClassVar[bool] = True
    cond: Pattern
    then: Pattern
    orelse: Pattern
    args: tuple[Pattern, ...] | None

    @property
    def parts(self) -> tuple[Pattern, ...]:
        return (self.cond, self.then, self.orelse, *(self.args or ()))

    @property
    def root_kinds(self) -> Kinds:
        return frozenset({If})

    def written(self, parts: Sequence[str]) -> str:
        cond, then, orelse, *args = parts
        given = "..." if self.args is None else ", ".join(args)
        return f"if {cond} then {then} else {orelse} ({given})"


@dataclass(frozen=True, eq=False, repr=False)
class Either(Pattern):
    """One of several patterns, tried in order."""

    options: tuple[Pattern, ...]

    @property
    def parts(self) -> tuple[Pattern, ...]:
        return self.options

    @property
    def root_ops(self) -> frozenset[str] | None:
        names: frozenset[str] = frozenset()
        for option in self.options:
            if option.root_ops is None:
                return None
            names |= option.root_ops
        return names

    @property
    def root_kinds(self) -> Kinds:
        kinds: frozenset[type[Expr]] = frozenset()
        for option in self.options:
            if option.root_kinds is None:
                return None
            kinds |= option.root_kinds
        return kinds

    def written(self, parts: Sequence[str]) -> str:
        return f"({' | '.join(parts)})"


@dataclass(frozen=True, eq=False, repr=False)
class Checked(Pattern):
    """A pattern with a test of its node, applied after the pattern itself has matched.

    `text` describes the requirement, `says` what the node has instead.
    """

    inner: Pattern
    test: Test
    text: str = "check(test)"
    says: Callable[[Expr, Match], str] | None = None

    @property
    def parts(self) -> tuple[Pattern, ...]:
        return (self.inner,)

    @property
    def root_ops(self) -> frozenset[str] | None:
        return self.inner.root_ops

    @property
    def root_kinds(self) -> Kinds:
        return self.inner.root_kinds

    @cached_property
    def after(self) -> Tested[Checked]:
        """The matcher's goal after `inner` has matched."""
        return Tested(self)

    def written(self, parts: Sequence[str]) -> str:
        return self.text if self.text.startswith("splat") else f"{parts[0]}.{self.text}"


@dataclass(frozen=True, eq=False, repr=False)
class Dominates(Pattern):
    """A `child` on which everything computed from `parent` converges, through nodes that each match
    `path`.
    """

    parent: Pattern
    path: Pattern
    child: Pattern

    @property
    def parts(self) -> tuple[Pattern, ...]:
        return (self.parent, self.path, self.child)

    @property
    def root_ops(self) -> frozenset[str] | None:
        return self.child.root_ops

    @property
    def root_kinds(self) -> Kinds:
        return self.child.root_kinds

    @cached_property
    def above(self) -> Above[Dominates]:
        """The matcher's goal after the child has matched."""
        return Above(self)

    def written(self, parts: Sequence[str]) -> str:
        return f"dominates({', '.join(parts)})"
