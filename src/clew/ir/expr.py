"""Graph expressions: immutable, numbered, and typed on construction.

An expression is a node of a DAG, shared by object identity. Control flow is closed: the branches of
`If` and the parts of `While` are functions that receive everything they use as parameters, so a
pass can treat every function separately. Nothing here recurses, since graphs may be tens of
thousands of nodes deep. All kinds of nodes are here, since they check the types of each other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias
from weakref import ref

import numpy as np

from clew.ir.dims import Dim, SymDim, unknown_dim
from clew.ir.types import (
    HOST_DTYPES,
    FunctionType,
    TensorType,
    TupleType,
    Type,
    UnrankedType,
    from_numpy,
    join,
    to_numpy,
)
from clew.support.arrays import aligned_copy
from clew.support.dataclass import dataclass
from clew.support.errors import GraphTypeError
from clew.support.shared_arrays import shared
from clew.support.text_arrays import TEXT, as_text
from clew.trace.lineage import note
from clew.trace.span import Span

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ids = itertools.count(1)
_set = object.__setattr__

AttrValue: TypeAlias = "int | float | str | bool | SymDim | ArgRef | tuple[AttrValue, ...] | None"


@dataclass(frozen=True, slots=True)
class ArgRef:
    """A placeholder for an attribute's value, which the call's argument `index` holds during the
    run.

    Such arguments come after the operator's inputs. `Op.resolve` inserts the value once it is
    known.
    """

    index: int

    def __str__(self) -> str:
        return f"arg[{self.index}]"


class Attrs(Mapping[str, Any]):
    """Attributes of a call: an immutable, hashable mapping that also allows `attrs.padding`."""

    __slots__ = ("_hash", "_values")

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        _set(self, "_values", {k: _freeze(v) for k, v in (values or {}).items()})
        _set(self, "_hash", None)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"attributes are immutable; build new ones with .with_({name}=...)")

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        if self._hash is None:
            _set(self, "_hash", hash(tuple(self._values.items())))
        return self._hash  # type: ignore[return-value]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Attrs) or self._values != other._values:
            return False
        return _zeros(tuple(self._values.values())) == _zeros(
            tuple(other[name] for name in self._values)
        )

    def __repr__(self) -> str:
        return f"Attrs({self._values})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (Attrs, (dict(self._values),))

    @property
    def plain(self) -> Mapping[str, Any]:
        """The same attributes as a dictionary, which must not be changed."""
        return self._values

    def with_(self, **changes: Any) -> Attrs:
        """Returns the attributes with some changed."""
        return Attrs({**self._values, **changes})

    _values: dict[str, Any]
    _hash: int | None


_PLAIN: Final = frozenset((int, str, float, bool, type(None)))


def _freeze(value: Any) -> Any:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, (list, tuple)):
        return tuple(_freeze(v) for v in value)
    if isinstance(value, np.generic):
        return value.item()
    return value


def _zeros(values: tuple[Any, ...]) -> list[str]:
    """Returns the float zeros in values with their signs, which `==` ignores."""
    found: list[str] = []
    for value in values:
        if type(value) is float:
            if not value:
                found.append(str(value))
        elif type(value) is tuple:
            found += _zeros(value)
    return found


class Operator(Protocol):
    """An operator, as the graph IR sees it; `clew.ops` declares them."""

    @property
    def name(self) -> str:
        """Dotted name, such as `nn.conv2d`."""
        ...

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Default values of optional attributes."""
        ...

    @property
    def traits(self) -> Any:
        """Facts about the operator (`clew.ops.traits`)."""
        ...

    def bind(self, attrs: Mapping[str, Any]) -> Attrs:
        """Returns the attributes, checked, converted and with defaults filled in."""
        ...

    def infer(self, args: Sequence[Expr], attrs: Attrs) -> Type:
        """Returns the result type, or raises `GraphTypeError`."""
        ...


class Expr:
    """A node: `id` is unique in the process, `type` is the type of its value, `span` the layers it
    serves.
    """

    __slots__ = ("__weakref__", "id", "span", "type")
    id: int
    span: Span
    type: Type

    def _init(self, type_: Type, span: Span | None) -> None:
        node_id = next(_ids)
        taken = note(node_id)
        _set(self, "id", node_id)
        _set(self, "type", type_)
        _set(self, "span", taken if span is None else span)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} %{self.id}: {self.type}>"

    @property
    def children(self) -> tuple[Expr, ...]:
        """The expressions this one uses, in order."""
        return ()

    @property
    def tensor(self) -> TensorType:
        """The type as a tensor type. Asserts that it is one."""
        assert isinstance(self.type, TensorType), self
        return self.type

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the user's layers that the node serves."""
        return tuple(self.span.layers)


def carry_marks(old: Expr, new: Expr) -> None:
    """Copies the output marks of a node to a new node that computes its value (rewriters only)."""
    mark_results(new, old.span)


def mark_results(node: Expr, span: Span) -> None:
    """Adds the output marks of a span to a new node (rewriters, editors and frontends
    only).
    """
    _set(node, "span", node.span.marked_by(span))


def retype(node: Expr, type_: Type) -> None:
    """Gives a new node a type in which unknown sizes have other names (rewriters only)."""
    _set(node, "type", type_)


class Var(Expr):
    """A parameter of a function, or a name bound by `Let`."""

    __slots__ = ("name",)
    name: str

    def __init__(self, name: str, type_: Type, *, span: Span | None = None) -> None:
        _set(self, "name", name)
        self._init(type_, span)


def _tensor(data: Any) -> NDArray[Any]:
    """Returns the array of a constant. Errors: T001 for objects that are not text."""
    array = np.asarray(data)
    if array.dtype != TEXT and array.dtype.kind != "T":
        return array
    try:
        return as_text(array)
    except (TypeError, ValueError) as error:
        raise GraphTypeError("T001", f"a constant does not hold text: {error}") from error


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array


class Constant(Expr):
    """A constant tensor. A splat (all elements equal) is stored as one element, broadcast: do not
    densify it without need. `data` is read-only. `name` is the parameter's name in the user's
    model, if it has one.

    A lazy constant (`Constant.lazy`) stores a function that computes its data, and the data only
    while they are in use: intermediate layouts of weights use no memory in the stages kept by a
    trace.
    """

    __slots__ = ("_compute", "_held", "name", "token")
    _held: NDArray[Any] | ref[NDArray[Any]] | None
    _compute: Callable[[], NDArray[Any]] | None
    name: str
    token: str

    def __init__(
        self, data: Any, *, name: str = "", layout: str = "", span: Span | None = None
    ) -> None:
        array = _read_only(_tensor(data))
        _set(self, "_held", array)
        _set(self, "_compute", None)
        _set(self, "token", "")
        _set(self, "name", name)
        self._init(TensorType(array.shape, from_numpy(array.dtype), layout), span)

    @staticmethod
    def lazy(
        type_: TensorType, compute: Callable[[], Any], *, name: str = "", token: str = ""
    ) -> Constant:
        """Returns a constant of a static type with data from `compute`, which must return the same
        on every call.

        `token`, if given, identifies the data cheaply: equal tokens mean equal data.
        """
        constant = Constant.__new__(Constant)
        _set(constant, "_held", None)
        _set(constant, "_compute", compute)
        _set(constant, "token", token)
        _set(constant, "name", name)
        constant._init(type_, None)
        return constant

    def derived(
        self, how: str, type_: TensorType, make: Callable[[NDArray[Any]], NDArray[Any]]
    ) -> Constant:
        """Returns a lazy constant of `type_`: the result of `make` on this constant's data, laid
        out for native code. `how` identifies the conversion: equal data with equal texts make equal
        constants.
        """
        return Constant.lazy(
            type_,
            lambda: shared(aligned_copy(make(self.data))),
            name=self.name,
            token=f"{how}({self.token})" if self.token else "",
        )

    @property
    def data(self) -> NDArray[Any]:
        """The elements."""
        if self._compute is None:
            assert isinstance(self._held, np.ndarray)
            return self._held
        alive = self._held() if isinstance(self._held, ref) else None
        if alive is None:
            alive = _read_only(np.asarray(self._compute(), to_numpy(self.tensor.dtype)))
            assert alive.shape == self.tensor.shape, "a lazy constant gave another shape"
            _set(self, "_held", ref(alive))
        return alive

    @property
    def is_lazy(self) -> bool:
        """Whether the data are computed on access."""
        return self._compute is not None

    @staticmethod
    def splat(value: float, type_: TensorType) -> Constant:
        """Returns a constant with all elements equal, stored as one element."""
        one = np.asarray(value, dtype=to_numpy(type_.dtype))
        return Constant(np.broadcast_to(one, type_.concrete), layout=type_.layout)

    @property
    def is_splat(self) -> bool:
        """Whether only one element is stored, so all are equal."""
        if self.tensor.dtype in HOST_DTYPES:
            return False
        if self._compute is not None:
            return self.tensor.size == 1
        return self.data.ndim == 0 or self.data.size == 1 or not any(self.data.strides)

    @property
    def splat_value(self) -> Any:
        """The value of a splat's elements as a Python scalar."""
        assert self.is_splat
        if self.data.size == 0:  # no elements: any value is correct
            return np.zeros((), self.data.dtype).item()
        return self.data.reshape(-1)[0].item() if self.data.ndim == 0 else self.data.flat[0].item()


class GlobalVar(Expr):
    """A function of the module, by name."""

    __slots__ = ("name",)
    name: str

    def __init__(self, name: str, type_: FunctionType, *, span: Span | None = None) -> None:
        _set(self, "name", name)
        self._init(type_, span)


class Call(Expr):
    """An operator or a function applied to arguments."""

    __slots__ = ("args", "attrs", "op")
    op: Operator | Function | GlobalVar
    args: tuple[Expr, ...]
    attrs: Attrs

    def __init__(
        self,
        op: Operator | Function | GlobalVar,
        args: Sequence[Expr],
        attrs: Mapping[str, Any] | None = None,
        *,
        span: Span | None = None,
    ) -> None:
        args = tuple(args)
        if isinstance(op, (Function, GlobalVar)):
            bound = attrs if isinstance(attrs, Attrs) else Attrs(attrs)
            assert isinstance(op.type, FunctionType)
            if len(args) != len(op.type.params):
                raise GraphTypeError(
                    "T002",
                    f"function takes {len(op.type.params)} arguments, got {len(args)}",
                )
            type_ = op.type.result
        else:
            # Attributes from a call of the same operator are already bound.
            bound = attrs if isinstance(attrs, Attrs) else op.bind(attrs or {})
            type_ = op.infer(args, bound)
        _set(self, "op", op)
        _set(self, "args", args)
        _set(self, "attrs", bound)
        self._init(type_, span)

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.op, *self.args) if isinstance(self.op, Function) else self.args

    @property
    def op_name(self) -> str:
        """The operator's name, or that of a composite function or global. A kernel or region, which
        may be named after an operator, has a name that none has: `fn[add]`.
        """
        op = self.op
        if isinstance(op, Function):
            return f"fn[{self.title}]" if op.is_primitive else self.title
        return op.name

    @property
    def title(self) -> str:
        """The name of the operator, function or global, for display."""
        return (
            str(self.op.attrs.get("name", "fn")) if isinstance(self.op, Function) else self.op.name
        )

    def with_args(self, args: Sequence[Expr]) -> Call:
        """Returns the same call with other arguments."""
        return Call(self.op, args, self.attrs)


class Tuple(Expr):
    """Several values combined into one."""

    __slots__ = ("fields",)
    fields: tuple[Expr, ...]

    def __init__(self, fields: Sequence[Expr], *, span: Span | None = None) -> None:
        _set(self, "fields", tuple(fields))
        self._init(TupleType(tuple(f.type for f in fields)), span)

    @property
    def children(self) -> tuple[Expr, ...]:
        return self.fields


class TupleGetItem(Expr):
    """One field of a tuple."""

    __slots__ = ("index", "value")
    value: Expr
    index: int

    def __init__(self, value: Expr, index: int, *, span: Span | None = None) -> None:
        if not isinstance(value.type, TupleType) or not 0 <= index < len(value.type.fields):
            raise GraphTypeError("T003", f"no field {index} in a value of type {value.type}")
        _set(self, "value", value)
        _set(self, "index", index)
        self._init(value.type.fields[index], span)

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.value,)


class Function(Expr):
    """Parameters and a body. Closed: the body uses no variables except the parameters."""

    __slots__ = ("attrs", "body", "params")
    params: tuple[Var, ...]
    body: Expr
    attrs: Attrs

    def __init__(
        self,
        params: Sequence[Var],
        body: Expr,
        attrs: Mapping[str, Any] | None = None,
        *,
        span: Span | None = None,
    ) -> None:
        _set(self, "params", tuple(params))
        _set(self, "body", body)
        _set(self, "attrs", attrs if isinstance(attrs, Attrs) else Attrs(attrs))
        self._init(FunctionType(tuple(p.type for p in params), body.type), span)

    @property
    def children(self) -> tuple[Expr, ...]:
        return (*self.params, self.body)

    @property
    def is_primitive(self) -> bool:
        """Whether the function is one kernel, or a region that a backend runs."""
        return bool(self.attrs.get("primitive", False))

    @property
    def backend(self) -> str:
        """The name of the backend that runs the function as a region; empty for all others."""
        return str(self.attrs.get("backend", ""))


class Let(Expr):
    """`value` bound to `var` in `body`: makes sharing explicit for order or readability."""

    __slots__ = ("body", "value", "var")
    var: Var
    value: Expr
    body: Expr

    def __init__(self, var: Var, value: Expr, body: Expr, *, span: Span | None = None) -> None:
        if var.type != value.type:
            raise GraphTypeError("T004", f"let {var.name}: {var.type} is given a {value.type}")
        _set(self, "var", var)
        _set(self, "value", value)
        _set(self, "body", body)
        self._init(body.type, span)

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.var, self.value, self.body)


class If(Expr):
    """`then(*args)` if `cond` is true, else `orelse(*args)`."""

    __slots__ = ("args", "cond", "orelse", "then")
    cond: Expr
    then: Function
    orelse: Function
    args: tuple[Expr, ...]

    def __init__(
        self,
        cond: Expr,
        then: Function,
        orelse: Function,
        args: Sequence[Expr],
        *,
        span: Span | None = None,
    ) -> None:
        if not isinstance(cond.type, TensorType) or cond.type.dtype != "bool":
            raise GraphTypeError("T005", f"condition is a {cond.type}, expected bool[]")
        _set(self, "cond", cond)
        _set(self, "then", then)
        _set(self, "orelse", orelse)
        _set(self, "args", tuple(args))
        self._init(join(then.body.type, orelse.body.type), span)

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.cond, self.then, self.orelse, *self.args)


class While(Expr):
    """Runs `body(i, *state)` while `cond(i, *state)` holds; `i` (i64[]) counts from 0.

    The body returns a tuple: the next state, then `scans` values, which are stacked over the
    iterations. The result is a tuple of the last state and the stacks, whose first dimension is the
    number of iterations: `trips` if known before the run, else an unknown size.
    """

    __slots__ = ("body", "cond", "init", "scans", "trips")
    cond: Function
    body: Function
    init: tuple[Expr, ...]
    scans: int
    trips: Dim | None

    def __init__(
        self,
        cond: Function,
        body: Function,
        init: Sequence[Expr],
        *,
        scans: int = 0,
        trips: Dim | None = None,
        span: Span | None = None,
    ) -> None:
        _set(self, "cond", cond)
        _set(self, "body", body)
        _set(self, "init", tuple(init))
        _set(self, "scans", scans)
        _set(self, "trips", trips)
        result = body.body.type
        if not isinstance(result, TupleType) or len(result.fields) != len(init) + scans:
            raise GraphTypeError(
                "T006", f"loop body returns {result}, expected {len(init)} states + {scans} stacks"
            )
        states = tuple(join(a.type, b) for a, b in zip(init, result.fields, strict=False))
        count = trips if trips is not None else unknown_dim()
        stacks = tuple(_stacked(t, count) for t in result.fields[len(init) :])
        self._init(TupleType((*states, *stacks)), span)

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.cond, self.body, *self.init)


def _stacked(type_: Type, count: Dim) -> Type:
    if isinstance(type_, UnrankedType):
        return type_
    if not isinstance(type_, TensorType):
        raise GraphTypeError("T008", f"a loop stacks values of type {type_}, expected tensors")
    return TensorType((count, *type_.shape), type_.dtype)
