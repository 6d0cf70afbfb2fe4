"""Tensor expressions: `compute(shape, lambda i, j: ...)` says what each element is, never how."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from clew.ir.dims import Dim, product
from clew.ir.types import TensorType
from clew.te.expr import (
    INDEX,
    Cast,
    Index,
    Intrinsic,
    Load,
    Reduce,
    Scalar,
    ScalarLike,
    Size,
    as_scalar,
    binary,
    cast,
    size,
)


class Tensor:
    """A tensor: a placeholder (`body is None`) or computed element by element from others.

    `body` is over `axes`; a reduction's body is one `Reduce`. `inputs` are the tensors it reads.
    """

    __slots__ = ("axes", "body", "dtype", "layout", "name", "shape")

    def __init__(
        self,
        name: str,
        shape: Sequence[Dim],
        dtype: str,
        axes: Sequence[Index] = (),
        body: Scalar | None = None,
        layout: str = "",
    ) -> None:
        self.name = name
        self.shape: tuple[Dim, ...] = tuple(shape)
        self.dtype = dtype
        self.axes = tuple(axes)
        self.body = body
        self.layout = layout

    def __getitem__(self, indices: ScalarLike | tuple[ScalarLike, ...]) -> Scalar:
        items = indices if isinstance(indices, tuple) else (indices,)
        assert len(items) == len(self.shape), f"{self} has {len(self.shape)} axes, got {len(items)}"
        return Load(self, [_index(i) for i in items])

    def __repr__(self) -> str:
        return f"<Tensor {self.name}: {self.type}>"

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> Dim:
        """Number of elements."""
        return product(self.shape)

    @property
    def type(self) -> TensorType:
        """The tensor's type."""
        return TensorType(self.shape, self.dtype, self.layout)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Tensors the body reads, each once, in order."""
        if self.body is None:
            return ()
        found: dict[int, Tensor] = {}
        for load in loads(self.body):
            found.setdefault(id(load.source), load.source)
        return tuple(found.values())


def _index(value: ScalarLike) -> Scalar:
    scalar = as_scalar(value, INDEX)
    return scalar if scalar.dtype == INDEX else cast(INDEX, scalar)


def placeholder(shape: Sequence[Dim], dtype: str, name: str, layout: str = "") -> Tensor:
    """Returns an input tensor."""
    return Tensor(name, shape, dtype, layout=layout)


def compute(
    shape: Sequence[Dim],
    body: Callable[..., ScalarLike],
    name: str = "compute",
    *,
    layout: str = "",
    axes: Sequence[str] = (),
) -> Tensor:
    """Returns the tensor whose element at `(i, j, ...)` is `body(i, j, ...)`.

    `body` takes one index an axis (or `*indices`) and returns a scalar expression, or a reduction
    (`te.sum(...)`) as a whole. `axes` names the axes; else they have the names of its parameters.

    >>> x = placeholder((4, 8), "f32", "x")
    >>> compute((8, 4), lambda i, j: x[j, i], "transpose").type
    TensorType(shape=(8, 4), dtype='f32', layout='')
    """
    names = axes or _axis_names(body, len(shape))
    indices = [Index(n, extent) for n, extent in zip(names, shape, strict=True)]
    value = body(*indices)
    if not isinstance(value, Scalar):
        value = as_scalar(value, "f32" if isinstance(value, float) else INDEX)
    return Tensor(name, shape, value.dtype, indices, value, layout)


def _axis_names(body: Callable[..., Any], rank: int) -> list[str]:
    code = getattr(body, "__code__", None)
    if code is None or code.co_flags & inspect.CO_VARARGS or code.co_argcount != rank:
        return [f"i{n}" for n in range(rank)]
    return list(code.co_varnames[:rank])


def reduce_axis(extent: Dim, name: str = "k") -> Index:
    """Returns an axis to reduce over."""
    return Index(name, extent)


def reduce(combiner: str, value: ScalarLike, axes: Index | Sequence[Index]) -> Scalar:
    """Returns `value` combined over axes by `sum`, `prod`, `max`, `min`, `and` or `or`."""
    over = [axes] if isinstance(axes, Index) else list(axes)
    scalar = as_scalar(value, "f32")
    return Reduce(combiner, scalar, over) if over else scalar


def sum(value: ScalarLike, axes: Index | Sequence[Index]) -> Scalar:
    """Returns the sum over axes."""
    return reduce("sum", value, axes)


def prod(value: ScalarLike, axes: Index | Sequence[Index]) -> Scalar:
    """Returns the product over axes."""
    return reduce("prod", value, axes)


def max(value: ScalarLike, axes: Index | Sequence[Index]) -> Scalar:
    """Returns the maximum over axes."""
    return reduce("max", value, axes)


def min(value: ScalarLike, axes: Index | Sequence[Index]) -> Scalar:
    """Returns the minimum over axes."""
    return reduce("min", value, axes)


def call(name: str, *args: Scalar) -> Scalar:
    """Returns an intrinsic such as `te.call("exp", x)`."""
    return Intrinsic(name, args)


def power(base: Scalar, exponent: ScalarLike) -> Scalar:
    """Returns `base` to the power of `exponent`."""
    return binary("pow", base, exponent)


def nodes(expr: Scalar) -> Iterator[Scalar]:
    """Yields an expression and all in it, each shared one once: `v = v * v`, a hundred times over,
    is a hundred nodes and 2^100 paths.
    """
    seen: set[int] = set()
    stack = [expr]
    while stack:
        node = stack.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            stack.extend(node.children)


def loads(expr: Scalar) -> list[Load]:
    """Returns the loads in an expression, those in indices first, each shared one once."""
    found: list[Load] = []
    seen: set[int] = set()
    stack: list[tuple[Scalar, bool]] = [(expr, False)]
    while stack:
        node, expanded = stack.pop()
        if expanded:
            found.append(node)  # type: ignore[arg-type]
            continue
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, Load):
            stack.append((node, True))
        stack.extend((child, False) for child in reversed(node.children))
    return found


def substitute(expr: Scalar, values: dict[int, Scalar]) -> Scalar:
    """Returns the expression with subexpressions (by identity) replaced; sharing is kept."""
    memo = dict(values)
    stack: list[tuple[Scalar, bool]] = [(expr, False)]
    while stack:
        node, expanded = stack.pop()
        if id(node) in memo:
            continue
        children = node.children
        if not expanded and children:
            stack.append((node, True))
            stack.extend((c, False) for c in children if id(c) not in memo)
            continue
        new = [memo[id(c)] for c in children]
        same = all(a is b for a, b in zip(children, new, strict=True))
        memo[id(node)] = node if same else node.rebuild(new)
    return memo[id(expr)]


def map_loads(
    expr: Scalar,
    change: Callable[[Load, Sequence[Scalar]], Scalar | None],
    values: Mapping[int, Scalar] | None = None,
) -> Scalar:
    """Returns the expression with loads replaced, inner ones first; sharing is kept.

    `change` is given each load once with its new indices; None leaves it. `values` replace
    subexpressions by identity.
    """
    memo: dict[int, Scalar] = dict(values or {})
    stack: list[tuple[Scalar, bool]] = [(expr, False)]
    while stack:
        node, expanded = stack.pop()
        if id(node) in memo:
            continue
        children = node.children
        if not expanded and children:
            stack.append((node, True))
            stack.extend((c, False) for c in children if id(c) not in memo)
            continue
        new = [memo[id(c)] for c in children]
        changed = change(node, new) if isinstance(node, Load) else None
        if changed is None:
            same = all(a is b for a, b in zip(children, new, strict=True))
            changed = node if same else node.rebuild(new)
        memo[id(node)] = changed
    return memo[id(expr)]


def stages(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Returns the computed tensors that the outputs need, producers first."""
    order: list[Tensor] = []
    seen: set[int] = set()
    stack: list[tuple[Tensor, bool]] = [(t, False) for t in reversed(outputs)]
    while stack:
        tensor, expanded = stack.pop()
        if expanded:
            order.append(tensor)
            continue
        if id(tensor) in seen or tensor.body is None:
            continue
        seen.add(id(tensor))
        stack.append((tensor, True))
        stack.extend((t, False) for t in reversed(tensor.inputs))
    return order


__all__ = [
    "Cast",
    "Size",
    "Tensor",
    "call",
    "compute",
    "loads",
    "max",
    "min",
    "placeholder",
    "power",
    "prod",
    "reduce",
    "reduce_axis",
    "size",
    "stages",
    "substitute",
    "sum",
]
