"""Tensor expressions: `compute(shape, lambda i, j: ...)` defines elements, not how to compute
them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Sequence
from typing import Any

from clew.ir.dims import Dim, product
from clew.ir.types import TensorType
from clew.support.walk import post_order
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
from clew.te.roles import of_layout
from clew.te.walk import loads


class Tensor:
    """A tensor: a placeholder (`body is None`), or computed element by element from other tensors.

    `body` is over `axes`; a reduction's body is one `Reduce`. `inputs` are the tensors it reads.
    `role` is the part of the stage in its operator, such as `attention.scores`.
    """

    __slots__ = ("axes", "body", "dtype", "layout", "name", "role", "shape")

    def __init__(
        self,
        name: str,
        shape: Sequence[Dim],
        dtype: str,
        axes: Sequence[Index] = (),
        body: Scalar | None = None,
        layout: str = "",
        role: str = "",
    ) -> None:
        self.name = name
        self.role = role
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
        """Tensors that the body reads, each once, in order."""
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
    role: str = "",
    roles: Sequence[str] = (),
) -> Tensor:
    """Returns the tensor whose element at `(i, j, ...)` is `body(i, j, ...)`.

    `body` takes one index per axis (or `*indices`) and returns a scalar expression, or is a
    reduction (`te.sum(...)`) as a whole. `axes` names the axes; by default, the names are those of
    its parameters. `role` is the role of the stage within its operator, and `roles` are those of
    its axes (`te.roles`); an image layout implies the latter.

    >>> x = placeholder((4, 8), "f32", "x")
    >>> compute((8, 4), lambda i, j: x[j, i], "transpose").type
    TensorType(shape=(8, 4), dtype='f32', layout='')
    """
    names = axes or _axis_names(body, len(shape))
    roles = roles or of_layout(layout) or ("",) * len(shape)
    indices = [Index(*axis) for axis in zip(names, shape, roles, strict=True)]
    value = body(*indices)
    if not isinstance(value, Scalar):
        value = as_scalar(value, "f32" if isinstance(value, float) else INDEX)
    return Tensor(name, shape, value.dtype, indices, value, layout, role)


def _axis_names(body: Callable[..., Any], rank: int) -> list[str]:
    code = getattr(body, "__code__", None)
    if code is None or code.co_flags & inspect.CO_VARARGS or code.co_argcount != rank:
        return [f"i{n}" for n in range(rank)]
    return list(code.co_varnames[:rank])


def reduce_axis(extent: Dim, name: str = "k", role: str = "") -> Index:
    """Returns an axis to reduce over. `role` is its meaning (`te.roles`)."""
    return Index(name, extent, role)


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


def stages(outputs: Sequence[Tensor], known: Container[int] = ()) -> list[Tensor]:
    """Returns the computed tensors that the outputs need, producers first, without those in `known`
    by id and what only these need.
    """
    computed = (t for t in outputs if t.body is not None)
    return post_order(computed, lambda t: [i for i in t.inputs if i.body is not None], known)


__all__ = [
    "Cast",
    "Size",
    "Tensor",
    "call",
    "compute",
    "max",
    "min",
    "placeholder",
    "power",
    "prod",
    "reduce",
    "reduce_axis",
    "size",
    "stages",
    "sum",
]
