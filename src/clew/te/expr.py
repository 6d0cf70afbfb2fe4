"""Scalar expressions: the value of one element, for tensor expressions and the loop IR.

Expressions are immutable and may be shared: a subexpression that is the same object is computed
once. `i64` is the type of indices. Integer `//` and `%` floor, as in Python. All kinds of
nodes are here, since the operators of each build others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Final, TypeAlias

from clew.ir.dim_text import operand_text
from clew.ir.dims import Dim, Facts, SymDim, at_least
from clew.ir.types import is_float, is_integer
from clew.support.bounds import Places
from clew.support.walk import post_order
from clew.te.roles import IN_ORDER

INDEX: Final = "i64"
MOST_SHORT: Final = 0xFFFFFFFF
ARITHMETIC: Final = ("add", "sub", "mul", "div", "floordiv", "mod", "min", "max", "pow")
BITWISE: Final = ("and", "or", "xor", "shl", "shr")
COMPARISONS: Final = ("lt", "le", "gt", "ge", "eq", "ne")
UNARY: Final = ("neg", "not", "abs")
# Functions of floats, which code generation lowers to polynomials or instructions.
INTRINSICS: Final = (
    "exp", "log", "tanh", "erf", "sigmoid", "sin", "cos", "tan", "asin", "acos", "atan",
    "sinh", "cosh", "asinh", "acosh", "atanh", "sqrt", "rsqrt", "floor", "ceil", "round", "trunc",
    "isnan", "isinf", "fma", "log1p", "expm1", "exp2", "log2", "copysign",
    "fmod", "normal_cdf", "exp_normal",
)  # fmt: skip


class Scalar:
    """A scalar expression of type `dtype`."""

    __slots__ = ("_variables", "dtype")
    dtype: str
    _variables: frozenset[Index]

    @property
    def variables(self) -> frozenset[Index]:
        """The loop variables in the expression; found once."""
        try:
            return self._variables
        except AttributeError:
            self._variables = _variables(self)
            return self._variables

    def __add__(self, other: ScalarLike) -> Scalar:
        return binary("add", self, other)

    def __radd__(self, other: ScalarLike) -> Scalar:
        return binary("add", as_scalar(other, self.dtype), self)

    def __sub__(self, other: ScalarLike) -> Scalar:
        return binary("sub", self, other)

    def __rsub__(self, other: ScalarLike) -> Scalar:
        return binary("sub", as_scalar(other, self.dtype), self)

    def __mul__(self, other: ScalarLike) -> Scalar:
        return binary("mul", self, other)

    def __rmul__(self, other: ScalarLike) -> Scalar:
        return binary("mul", as_scalar(other, self.dtype), self)

    def __truediv__(self, other: ScalarLike) -> Scalar:
        return binary("div", self, other)

    def __rtruediv__(self, other: ScalarLike) -> Scalar:
        return binary("div", as_scalar(other, self.dtype), self)

    def __floordiv__(self, other: ScalarLike) -> Scalar:
        return binary("floordiv", self, other)

    def __rfloordiv__(self, other: ScalarLike) -> Scalar:
        return binary("floordiv", as_scalar(other, self.dtype), self)

    def __mod__(self, other: ScalarLike) -> Scalar:
        return binary("mod", self, other)

    def __and__(self, other: ScalarLike) -> Scalar:
        return binary("and", self, other)

    def __or__(self, other: ScalarLike) -> Scalar:
        return binary("or", self, other)

    def __xor__(self, other: ScalarLike) -> Scalar:
        return binary("xor", self, other)

    def __neg__(self) -> Scalar:
        return unary("neg", self)

    def __invert__(self) -> Scalar:
        return unary("not", self)

    def __lt__(self, other: ScalarLike) -> Scalar:
        return binary("lt", self, other)

    def __le__(self, other: ScalarLike) -> Scalar:
        return binary("le", self, other)

    def __gt__(self, other: ScalarLike) -> Scalar:
        return binary("gt", self, other)

    def __ge__(self, other: ScalarLike) -> Scalar:
        return binary("ge", self, other)

    def equal(self, other: ScalarLike) -> Scalar:
        """Whether both operands are equal (`==` compares expressions as objects)."""
        return binary("eq", self, other)

    def not_equal(self, other: ScalarLike) -> Scalar:
        """Whether the operands differ."""
        return binary("ne", self, other)

    def __bool__(self) -> bool:
        raise TypeError("a scalar expression has no truth value; use select(cond, a, b)")

    @property
    def children(self) -> tuple[Scalar, ...]:
        """The operands of this expression."""
        return ()

    def rebuild(self, children: Sequence[Scalar]) -> Scalar:
        """Returns the same expression with other children."""
        assert not children
        return self

    def __repr__(self) -> str:
        return spelled_out(self)


def _variables(expr: Scalar) -> frozenset[Index]:
    found: set[Index] = set()
    seen: set[Scalar] = set()
    stack = [expr]
    while stack:
        node = stack.pop()
        if isinstance(node, Index):
            found.add(node)
        elif node not in seen:
            seen.add(node)
            stack += node.children
    return frozenset(found)


ScalarLike: TypeAlias = "Scalar | SymDim | int | float | bool"


class Imm(Scalar):
    """A literal."""

    __slots__ = ("value",)
    value: Any

    def __init__(self, value: Any, dtype: str) -> None:
        self.dtype = dtype
        self.value = bool(value) if dtype == "bool" else value


class Index(Scalar):
    """A loop variable or axis, compared by identity; it takes `extent` values from 0.

    `role` is the meaning of the axis (`te.roles`). `facts` hold inside the loop: expressions of
    sizes that are at least 0 if the loop runs at all. `repeats`: whether iterations may compute an
    element that another one has computed.
    """

    __slots__ = ("extent", "facts", "name", "repeats", "role")
    name: str
    extent: Dim
    role: str
    facts: Facts
    repeats: bool

    def __init__(
        self, name: str, extent: Dim, role: str = "", facts: Facts = (), *, repeats: bool = False
    ) -> None:
        self.dtype = INDEX
        self.name = name
        self.extent = extent
        self.role = role
        self.facts = facts
        self.repeats = repeats

    def part(self, name: str, extent: Dim, facts: Facts = (), *, repeats: bool = False) -> Index:
        """Returns a loop variable over parts of this loop, where its facts and more ones hold."""
        facts = (*self.facts, *facts)
        repeats = repeats or self.repeats
        return Index(name, extent, self.role_of_parts, facts, repeats=repeats)

    @property
    def role_of_parts(self) -> str:
        """The role of loops over parts of this loop."""
        return IN_ORDER if self.role == IN_ORDER else ""

    def merged(
        self, other: Index, name: str, extent: Dim, role: str = "", facts: Facts = ()
    ) -> Index:
        """Returns the variable of one loop over the iterations of two, where `facts` hold too."""
        facts = (*self.facts, *other.facts, *facts)
        role = IN_ORDER if IN_ORDER in (self.role, other.role) else role
        repeats = self.repeats or other.repeats
        return Index(name, extent, role, facts, repeats=repeats)


class Binary(Scalar):
    """`op` of two operands of one dtype; comparisons give `bool`. Integer `div` truncates."""

    __slots__ = ("a", "b", "op")

    def __init__(self, op: str, a: Scalar, b: Scalar) -> None:
        self.dtype = "bool" if op in COMPARISONS else a.dtype
        self.op = op
        self.a = a
        self.b = b

    @property
    def children(self) -> tuple[Scalar, ...]:
        return (self.a, self.b)

    def rebuild(self, children: Sequence[Scalar]) -> Scalar:
        return binary(self.op, children[0], children[1])


class Unary(Scalar):
    """Negation, logical or bitwise not, absolute value."""

    __slots__ = ("a", "op")

    def __init__(self, op: str, a: Scalar) -> None:
        self.dtype = a.dtype
        self.op = op
        self.a = a

    @property
    def children(self) -> tuple[Scalar, ...]:
        return (self.a,)

    def rebuild(self, children: Sequence[Scalar]) -> Scalar:
        return unary(self.op, children[0])


class Intrinsic(Scalar):
    """A named function such as `exp` or `fma`."""

    __slots__ = ("args", "name")

    def __init__(self, name: str, args: Sequence[Scalar]) -> None:
        self.dtype = "bool" if name in ("isnan", "isinf") else args[0].dtype
        self.name = name
        self.args = tuple(args)

    @property
    def children(self) -> tuple[Scalar, ...]:
        return self.args

    def rebuild(self, children: Sequence[Scalar]) -> Scalar:
        return Intrinsic(self.name, children)


class Select(Scalar):
    """`a` where `cond` holds, else `b`. Loads in the other branch are not performed."""

    __slots__ = ("a", "b", "cond")

    def __init__(self, cond: Scalar, a: Scalar, b: Scalar) -> None:
        assert a.dtype == b.dtype, (a.dtype, b.dtype)
        self.dtype = a.dtype
        self.cond = cond
        self.a = a
        self.b = b

    @property
    def children(self) -> tuple[Scalar, ...]:
        return (self.cond, self.a, self.b)

    def rebuild(self, children: Sequence[Scalar]) -> Scalar:
        return select(*children)


class Cast(Scalar):
    """Value conversion: floats to integers truncate, never saturate; to `bool` tests for 0."""

    __slots__ = ("a",)

    def __init__(self, dtype: str, a: Scalar) -> None:
        self.dtype = dtype
        self.a = a

    @property
    def children(self) -> tuple[Scalar, ...]:
        return (self.a,)

    def rebuild(self, children: Sequence[Scalar]) -> Scalar:
        return cast(self.dtype, children[0])


class ShortFactor(Cast):
    """A cast of a factor of 8 bits in a sum of products. It states that 16 bits hold the sum of any
    two of the products, so that an instruction may add these first.
    """

    __slots__ = ()

    def rebuild(self, children: Sequence[Scalar]) -> Scalar:
        return ShortFactor(self.dtype, children[0])


class Bitcast(Scalar):
    """The same bits as another type of the same width."""

    __slots__ = ("a",)

    def __init__(self, dtype: str, a: Scalar) -> None:
        self.dtype = dtype
        self.a = a

    @property
    def children(self) -> tuple[Scalar, ...]:
        return (self.a,)

    def rebuild(self, children: Sequence[Scalar]) -> Scalar:
        return Bitcast(self.dtype, children[0])


class Load(Scalar):
    """One element of a tensor (in te) or buffer (in loops)."""

    __slots__ = ("indices", "source")

    def __init__(self, source: Any, indices: Sequence[Scalar]) -> None:
        self.dtype = source.dtype
        self.source = source
        self.indices = tuple(indices)

    @property
    def children(self) -> tuple[Scalar, ...]:
        return self.indices

    def rebuild(self, children: Sequence[Scalar]) -> Scalar:
        return Load(self.source, children)


class Reduce(Scalar):
    """`value` combined over `axes` by `sum`, `prod`, `max`, `min`, `and`, `or`. Only as a body."""

    __slots__ = ("axes", "combiner", "value")

    def __init__(self, combiner: str, value: Scalar, axes: Sequence[Index]) -> None:
        self.dtype = value.dtype
        self.combiner = combiner
        self.value = value
        self.axes = tuple(axes)

    @property
    def children(self) -> tuple[Scalar, ...]:
        return (self.value,)

    def rebuild(self, children: Sequence[Scalar]) -> Scalar:
        return Reduce(self.combiner, children[0], self.axes)


class Sequential(Scalar):
    """A stage that visits the positions of axes one after another (`te.sequential`). Only as a
    body.
    """

    __slots__ = ("over",)
    word: ClassVar[str]

    def __init__(self, dtype: str, over: Sequence[Index]) -> None:
        self.dtype = dtype
        self.over = tuple(over)

    def over_axes(self, children: Sequence[Scalar], over: Sequence[Index]) -> Scalar:
        """Returns the same stage with other children and axes."""
        raise NotImplementedError

    def visits(self, axes: Sequence[Index]) -> tuple[Index, ...]:
        """Returns the axes that a stage over `axes` visits."""
        raise NotImplementedError

    def rebuild(self, children: Sequence[Scalar]) -> Scalar:
        return self.over_axes(children, self.over)


class Inlined(Scalar):
    """The value of a stage that is computed in place; it attributes the work of `value` to the
    stage.
    """

    __slots__ = ("stage", "value")

    def __init__(self, stage: str, value: Scalar) -> None:
        self.dtype = value.dtype
        self.stage = stage
        self.value = value

    @property
    def children(self) -> tuple[Scalar, ...]:
        return (self.value,)

    def rebuild(self, children: Sequence[Scalar]) -> Scalar:
        return Inlined(self.stage, children[0])


class Checked(Scalar):
    """A value used as an index, counted from the front. If it is not one of `places`, the run
    raises an error at its end. An index out of range becomes 0 if `hold` is set, else it stays
    unchanged.

    The check runs where the index is evaluated, so an index in a branch of a select that is not
    taken is not checked. `site` is its number among the checks of a kernel.
    """

    __slots__ = ("hold", "places", "site", "value")

    def __init__(self, value: Scalar, places: Places, hold: bool = True, site: int = 0) -> None:
        assert value.dtype == INDEX, value.dtype
        self.dtype = INDEX
        self.value = value
        self.places = places
        self.hold = hold
        self.site = site

    @property
    def name(self) -> str:
        """A name that distinguishes it from other checks of the same value."""
        return f"index{self.site}"

    @property
    def children(self) -> tuple[Scalar, ...]:
        return (self.value,)

    def rebuild(self, children: Sequence[Scalar]) -> Scalar:
        return Checked(children[0], self.places, self.hold, self.site)

    @property
    def is_short(self) -> bool:
        """Whether it is a 32-bit number."""
        return self.hold and at_least(MOST_SHORT - self.places.count)

    @property
    def clamped(self) -> Scalar:
        """The index without the check, clamped to the axis."""
        index, size = self.value, as_scalar(self.places.count)
        if self.places.from_end:
            index = select(index < 0, index + size, index)
        return minimum(maximum(index, 0), size - 1) if self.hold else index


class Size(Scalar):
    """A symbolic dimension used as a value in an expression; concrete shapes eliminate it."""

    __slots__ = ("dim",)

    def __init__(self, dim: SymDim) -> None:
        self.dtype = INDEX
        self.dim = dim


def size(dim: Dim) -> Scalar:
    """Returns a dimension as an index expression."""
    return Size(dim) if isinstance(dim, SymDim) else Imm(dim, INDEX)


def as_scalar(value: ScalarLike, dtype: str = INDEX) -> Scalar:
    """Returns a number as a literal of `dtype`, a size as its value, an expression unchanged."""
    if isinstance(value, Scalar):
        return value
    if isinstance(value, SymDim):
        return size(value) if dtype == INDEX else Cast(dtype, size(value))
    if is_float(dtype):
        return Imm(float(value), dtype)
    return Imm(int(value) if dtype != "bool" else bool(value), dtype)


_FOLD: Final[dict[str, Any]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b, "mod": lambda a, b: a % b, "min": min, "max": max,
    "lt": lambda a, b: a < b, "le": lambda a, b: a <= b, "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b, "eq": lambda a, b: a == b, "ne": lambda a, b: a != b,
}  # fmt: skip


def binary(op: str, a: ScalarLike, b: ScalarLike) -> Scalar:
    """Returns `op(a, b)`; index arithmetic on literals and sizes, and with 0 and 1, is
    simplified.
    """
    if not isinstance(a, Scalar):
        a = as_scalar(a, b.dtype if isinstance(b, Scalar) else INDEX)
    if not isinstance(b, Scalar):
        b = as_scalar(b, a.dtype)
    assert a.dtype == b.dtype, f"{op} of {a.dtype} and {b.dtype}: {a} {b}"
    if a.dtype == INDEX:
        simple = _simplify_index(op, a, b)
        if simple is not None:
            return simple
    elif a.dtype == "bool" and op in ("and", "or"):
        for x, y in ((a, b), (b, a)):
            if isinstance(x, Imm):
                return y if bool(x.value) == (op == "and") else x
    return Binary(op, a, b)


def _simplify_index(op: str, a: Scalar, b: Scalar) -> Scalar | None:
    if isinstance(a, Imm) and isinstance(b, Imm) and op in _FOLD:
        if op in ("floordiv", "mod") and b.value == 0:
            return None
        return Imm(_FOLD[op](a.value, b.value), "bool" if op in COMPARISONS else INDEX)
    if isinstance(a, (Imm, Size)) and isinstance(b, (Imm, Size)) and op in ("add", "sub", "mul"):
        left, right = (x.dim if isinstance(x, Size) else x.value for x in (a, b))
        return size(_FOLD[op](left, right))
    if isinstance(b, Imm):
        value = b.value
        if value == 0 and op in ("add", "sub"):
            return a
        if value == 0 and op == "mul":
            return b
        if value == 1:
            if op in ("mul", "floordiv"):
                return a
            if op == "mod":
                return Imm(0, INDEX)
    elif isinstance(a, Imm) and op in ("add", "mul"):
        swapped = _simplify_index(op, b, a)
        return swapped if swapped is not None else Binary(op, b, a)
    return None


def unary(op: str, a: Scalar) -> Scalar:
    """Returns `op(a)`, folded for literals."""
    if isinstance(a, Imm):
        if op == "neg":
            return Imm(-a.value, a.dtype)
        if op == "not" and a.dtype == "bool":
            return Imm(not a.value, "bool")
    return Unary(op, a)


def select(cond: Scalar, a: ScalarLike, b: ScalarLike) -> Scalar:
    """Returns `a` where `cond` holds, else `b`; a literal condition is resolved at once."""
    if not isinstance(a, Scalar):
        a = as_scalar(a, b.dtype if isinstance(b, Scalar) else INDEX)
    if not isinstance(b, Scalar):
        b = as_scalar(b, a.dtype)
    if isinstance(cond, Imm):
        return a if cond.value else b
    return Select(cond, a, b)


def cast(dtype: str, a: Scalar) -> Scalar:
    """Returns `a` converted to `dtype`; `a` itself if it has that dtype."""
    if a.dtype == dtype:
        return a
    if isinstance(a, Imm) and is_integer(a.dtype) and (is_float(dtype) or dtype == INDEX):
        return as_scalar(a.value, dtype)
    return Cast(dtype, a)


def minimum(a: ScalarLike, b: ScalarLike) -> Scalar:
    """Returns the smaller operand."""
    return binary("min", a, b)


def maximum(a: ScalarLike, b: ScalarLike) -> Scalar:
    """Returns the larger operand."""
    return binary("max", a, b)


def all_of(*conditions: Scalar) -> Scalar:
    """Returns the conjunction of the conditions."""
    result: Scalar = Imm(True, "bool")
    for condition in conditions:
        result = binary("and", result, condition)
    return result


def conjuncts(cond: Scalar) -> list[Scalar]:
    """Returns the conditions of a conjunction, in order."""
    found: list[Scalar] = []
    seen: set[int] = set()
    stack = [cond]
    while stack:
        node = stack.pop()
        if not (isinstance(node, Binary) and node.op == "and" and node.dtype == "bool"):
            found.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            stack += [node.b, node.a]
    return found


def any_of(*conditions: Scalar) -> Scalar:
    """Returns the disjunction of the conditions."""
    result: Scalar = Imm(False, "bool")
    for condition in conditions:
        result = binary("or", result, condition)
    return result


_INFIX: Final = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%", "and": "&",
    "or": "|", "xor": "^", "shl": "<<", "shr": ">>", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "eq": "==", "ne": "!=",
}  # fmt: skip


# If the text of an expression without names is longer than this, and many times longer than its
# distinct parts, its shared parts get names. Parts smaller than that are always written out.
_LEAST_SPELLED_OUT: Final = 1024
_LEAST_TIMES_LONGER: Final = 4
_LEAST_SHARED: Final = 8


def shared_parts(
    expr: Scalar, *, lines: bool = False, least: int = _LEAST_SPELLED_OUT
) -> list[Scalar]:
    """Returns the parts that must be named (or computed once) to keep the rest short: large parts
    that are used more than once, producers first; [] if the expression is short enough when written
    out (`least` nodes). With `lines`, inlined values already have names.
    """
    order = post_order((expr,), lambda node: node.children)
    uses = Counter([id(expr), *(id(c) for node in order for c in node.children)])
    sizes: dict[int, int] = {}
    spelled = 0
    for node in order:
        size = 1 + sum(sizes[id(c)] for c in node.children)
        if node is expr or (lines and isinstance(node, Inlined)):
            spelled, size = spelled + size, 1
        sizes[id(node)] = size
    if spelled <= max(least, _LEAST_TIMES_LONGER * len(order)):
        return []
    parts: list[Scalar] = []
    for node in order:
        size = 1 + sum(sizes[id(c)] for c in node.children)
        named = lines and isinstance(node, Inlined)
        if not named and uses[id(node)] > 1 and size >= _LEAST_SHARED:
            parts.append(node)
            named = True
        sizes[id(node)] = 1 if named else size
    return parts


def spelled_out(expr: Scalar) -> str:
    """Returns the expression as text; a long one is preceded by its shared parts with names."""
    names: dict[int, str] = {}
    text = ""
    for part in shared_parts(expr):
        text += f"let %t{len(names)} = {render(part, names)}; "
        names[id(part)] = f"%t{len(names)}"
    return text + render(expr, names)


_CAST_PREFIXES: Final[Mapping[type[Scalar], str]] = {Bitcast: "bits_", ShortFactor: "short_"}


def render(
    expr: Scalar,
    names: Mapping[int, str] = MappingProxyType({}),
    size: Callable[[Dim], str] = operand_text,
) -> str:
    """Returns the expression as text; parts with a name, by id, are printed as that name. `size`
    returns the text of a dimension.
    """
    named = names.get(id(expr))
    if named is not None:
        return named
    match expr:
        case Imm():
            return str(expr.value).lower() if expr.dtype == "bool" else str(expr.value)
        case Index():
            return expr.name
        case Binary():
            a, b = render(expr.a, names, size), render(expr.b, names, size)
            return f"({a} {_INFIX[expr.op]} {b})" if expr.op in _INFIX else f"{expr.op}({a}, {b})"
        case Unary():
            return f"{expr.op}({render(expr.a, names, size)})"
        case Intrinsic():
            return f"{expr.name}({', '.join(render(a, names, size) for a in expr.args)})"
        case Select():
            return f"select({', '.join(render(a, names, size) for a in expr.children)})"
        case Cast() | Bitcast():
            prefix = _CAST_PREFIXES.get(type(expr), "")
            return f"{prefix}{expr.dtype}({render(expr.a, names, size)})"
        case Load():
            return f"{expr.source.name}[{', '.join(render(a, names, size) for a in expr.indices)}]"
        case Reduce():
            axes = ", ".join(a.name for a in expr.axes)
            return f"{expr.combiner}({render(expr.value, names, size)}, over=[{axes}])"
        case Sequential():
            axes = ", ".join(a.name for a in expr.over)
            parts = ", ".join(render(a, names, size) for a in expr.children)
            return f"{expr.word}({parts}, over=[{axes}])"
        case Inlined():
            return render(expr.value, names, size)
        case Checked():
            of = "of" if expr.places.from_end else "below"
            return f"index({render(expr.value, names, size)}, {of}={size(expr.places.count)})"
        case Size():
            return size(expr.dim)
    return str(getattr(expr, "name", "?"))
