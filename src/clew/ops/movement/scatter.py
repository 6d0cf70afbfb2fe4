"""Updates of elements at given indices.

If updates are few (caches, masks, single rows), each element of the result is computed separately,
fused with the operators around it: it is the last update for its position, or the combination of
all such updates, so every index is compared with every element. If updates are many, or only the
run knows how many, a separate kernel applies them one after another. Negative indices count from
the end. An index out of range raises an error in the run; nothing outside the tensor is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from clew import te
from clew.ir.dims import Dim, product
from clew.ir.expr import Expr
from clew.ir.types import TensorType, Type, integer_limits, is_float
from clew.ops.common import (
    accumulator,
    axis_of,
    boolean,
    differ,
    exceeds,
    f16,
    f32,
    f64,
    i32,
    i64,
    need_integer,
    tensor_type,
)
from clew.ops.math.reduce import narrowed
from clew.ops.movement.indexing import index_at, indices_in
from clew.ops.registry import Op, Sample, get_op, register_op
from clew.ops.traits import Traits
from clew.support.bounds import Places
from clew.support.errors import GraphTypeError
from clew.te import Scalar, Tensor
from clew.te.expr import Index

Array = np.ndarray[Any, Any]

# Comparisons with indices up to which updates count as few. At the limit, they take 4 to 6
# microseconds more than a kernel of their own (AVX-512, one thread), but fuse with other operators.
_MOST_LOOKS: Final = 1 << 14

_COMBINE: Final[dict[str, Any]] = {
    "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum,
}  # fmt: skip
_REDUCERS: Final = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}


def check_reduction(name: str, reduction: str, x: TensorType, updates: TensorType) -> None:
    """Checks the reduction that combines updates with existing elements.

    Errors: T101, T105, T107.
    """
    if reduction != "none" and reduction not in _COMBINE:
        raise GraphTypeError(
            "T107",
            f"{name}: reduction={reduction!r}",
            hint=f"use none, {', '.join(_COMBINE)}",
        )
    if x.dtype != updates.dtype:
        raise GraphTypeError("T101", f"{name}: input is {x}, updates are {updates}")


def put(x: Array, place: tuple[Array, ...], updates: Array, reduction: str) -> Array:
    """Returns a copy of `x` with updates written or combined at positions, one after another."""
    result = np.array(x)
    if reduction == "none":
        result[place] = updates
    else:
        _COMBINE[reduction].at(result, place, updates)
    return result


def _neutral(combiner: str, dtype: str) -> Scalar:
    """Returns the neutral element of a combiner."""
    if combiner in ("sum", "prod"):
        return te.as_scalar(int(combiner == "prod"), dtype)
    if dtype == "bool":
        return te.as_scalar(combiner == "min", dtype)
    if is_float(dtype):
        return te.as_scalar(-math.inf if combiner == "max" else math.inf, dtype)
    lowest, highest = integer_limits(dtype)
    return te.as_scalar(lowest if combiner == "max" else highest, dtype)


def _joined(reduction: str, a: Scalar, b: Scalar) -> Scalar:
    if reduction == "max":
        return te.maximum(a, b)
    if reduction == "min":
        return te.minimum(a, b)
    if reduction == "mul":
        return a * b
    return te.select(b.equal(0), a, a + b)  # -0 that nothing is added to remains


def _scattered(
    name: str,
    x: Tensor,
    reduction: str,
    over: Sequence[Index],
    hits: Callable[[tuple[Scalar, ...], Sequence[Scalar]], Scalar],
    update: Callable[[tuple[Scalar, ...], Sequence[Scalar]], Scalar],
    places: int,
) -> Tensor:
    """Returns `x` with updates, numbered over the axes `over`, applied at the positions they `hit`.

    Only the first `places` indices of an element determine its update.
    """
    if reduction != "none":
        wide = accumulator(x.dtype)

        def combined(*i: Scalar) -> Scalar:
            value = te.select(
                hits(i, over), te.cast(wide, update(i, over)), _neutral(_REDUCERS[reduction], wide)
            )
            return te.reduce(_REDUCERS[reduction], value, list(over))

        total = te.compute(x.shape, combined, f"{name}_updates")
        whole = te.compute(
            x.shape, lambda *i: _joined(reduction, te.cast(wide, x[i]), total[i]), name
        )
        return narrowed(whole, x.dtype, f"{name}_cast")

    sizes = [axis.extent for axis in over]

    def latest(*i: Scalar) -> Scalar:
        number = te.as_scalar(0)
        for size, axis in zip(sizes, over, strict=True):
            number = number * te.size(size) + axis
        return te.max(te.select(hits(i, over), number, -1), list(over))

    last = te.compute(x.shape[:places], latest, f"{name}_last")

    def chosen(*i: Scalar) -> Scalar:
        number = last[i[:places]]
        rest, place = te.maximum(number, 0), []
        for size in reversed(sizes):
            place.append(rest % te.size(size))
            rest = rest // te.size(size)
        return te.select(number < 0, x[i], update(i, place[::-1]))

    return te.compute(x.shape, chosen, name)


def _looks(indices: Dim, elements: Dim) -> bool:
    """Whether comparing `indices` indices with `elements` elements is cheap enough."""
    known = isinstance(indices, int) and isinstance(elements, int)
    return known and indices * elements <= _MOST_LOOKS  # type: ignore[operator]


def _expanded(op: Op, few: bool, *args: Expr, **attrs: Any) -> Expr:
    return get_op(f"{op.name}_{'few' if few else 'many'}")(*args, **attrs)


# --- by one index per update ---------------------------------------------------------------

_ELEMENTS = (
    Sample(f32(4, 3), np.array([[0, 2, 1], [3, 0, -1]]), f32(2, 3), axis=0),
    Sample(f32(4, 3), np.array([[0, 2], [1, 0]], "i4"), f32(2, 2), axis=1),
    Sample(f32(4, 3), np.array([[0, 0, 0], [0, 2, 2]]), f32(2, 3), axis=0, reduction="add"),
    Sample(f16(4, 3), np.array([[0, 0, 0], [0, 2, 3]]), f16(2, 3), axis=-2, reduction="mul"),
    Sample(i32(4, 3), np.array([[0, 0, 0], [0, 2, 2]]), i32(2, 3), axis=0, reduction="max"),
    Sample(f64(5), np.array([4, -5, 4]), f64(3), reduction="min"),
    Sample(boolean(5), np.array([4, 1, 4]), boolean(3)),
    Sample(f32(5), np.zeros(0, "i8"), f32(0)),
)
_ELEMENTS_OUTSIDE = (
    Sample(f32(4, 3), np.array([[0, 2, 4], [3, 0, -1]]), f32(2, 3), axis=0, error="I320"),
    Sample(f16(4, 3), np.array([[0, 2, 3], [3, 0, -5]]), f16(2, 3), reduction="mul", error="I320"),
)
_BAD_ELEMENTS = (
    *_ELEMENTS_OUTSIDE,
    Sample(f32(4, 3), i64(2, 3), f32(2, 2), axis=0, error="T108"),
    Sample(f32(4, 3), i64(2, 4), f32(2, 4), axis=0, error="T108"),
    Sample(f32(4, 3), i64(2, 3), i32(2, 3), axis=0, error="T101"),
    Sample(f32(4, 3), f32(2, 3), f32(2, 3), axis=0, error="T105"),
    Sample(f32(4, 3), i64(2, 3), f32(2, 3), axis=2, error="T104"),
    Sample(f32(4, 3), i64(2, 3), f32(2, 3), axis=0, reduction="mean", error="T107"),
)


def _has_elements(index: TensorType) -> bool:
    """Whether there surely are indices. Their number may be known only during the run."""
    return isinstance(index.size, int) and index.size > 0


def _check_elements(
    name: str, x: Type, indices: Type, updates: Type, axis: int, reduction: str
) -> int:
    """Returns the axis, counted from the front."""
    data, index, new = (tensor_type(name, t) for t in (x, indices, updates))
    check_reduction(name, reduction, data, new)
    n = axis_of(name, axis, data.rank)
    wrong = not data.rank == index.rank == new.rank or any(map(differ, index.shape, new.shape))
    if not wrong:
        pairs = enumerate(zip(index.shape, data.shape, strict=True))
        wrong = any(k != n and exceeds(size, most) for k, (size, most) in pairs)
        wrong = wrong or (data.shape[n] == 0 and _has_elements(index))
    if wrong:
        raise GraphTypeError("T108", f"{name}: {new} at {index} does not fit {data}")
    if index.dtype not in ("i32", "i64"):
        raise GraphTypeError("T105", f"{name}: indices are {index}, expected i32 or i64")
    return n


@register_op(
    "scatter_elements",
    traits=Traits(sizes="computed", fits_always=True),
    samples=(*_ELEMENTS, *_BAD_ELEMENTS),
)
def scatter_elements(  # type: ignore[empty-body]
    x: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none"
) -> Tensor:
    """`x` with each update written (or combined by `reduction`) at its own position, with the
    coordinate on `axis` replaced by its index; of several updates for one position, the last.
    Negative indices count from the end; an index out of range raises an error in the run.

    Errors: T101, T104, T105, T107, T108, I320. Source: ONNX ScatterElements-18.
    """


@scatter_elements.types
def _scatter_elements_types(
    x: Type, indices: Type, updates: Type, *, axis: int, reduction: str
) -> Type:
    _check_elements("scatter_elements", x, indices, updates, axis, reduction)
    return tensor_type("scatter_elements", x).with_(layout="")


@scatter_elements.decompose
def _scatter_elements_expanded(x: Expr, indices: Expr, updates: Expr, **attrs: Any) -> Expr:
    along = indices.tensor.shape[attrs["axis"]]
    few = _looks(along, x.tensor.size)
    return _expanded(scatter_elements, few, x, indices, updates, **attrs)


@register_op(
    "scatter_elements_few",
    traits=Traits(fits_always=True),
    samples=(*_ELEMENTS, *_ELEMENTS_OUTSIDE),
)
def scatter_elements_few(
    x: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none"
) -> Tensor:
    """`scatter_elements` as a kernel, which compares each element with all indices along `axis`.

    Errors: T101, T104, T105, T107, T108.
    """
    name = "scatter_elements"
    n = _check_elements(name, x.type, indices.type, updates.type, axis, reduction)
    if indices.size == 0:
        return te.compute(x.shape, lambda *i: x[i], name)
    over = te.reduce_axis(indices.shape[n], "update")

    def inside(i: tuple[Scalar, ...]) -> Scalar:
        """Whether an update may apply to a position: there may be fewer updates along other
        axes.
        """
        checks = [
            i[k] < te.size(size)
            for k, size in enumerate(indices.shape)
            if k != n and size != x.shape[k]
        ]
        return te.all_of(*checks)

    def place(i: tuple[Scalar, ...], number: Scalar) -> tuple[Scalar, ...]:
        kept = [
            i[k] if size == x.shape[k] else te.minimum(i[k], te.size(size - 1))
            for k, size in enumerate(indices.shape)
        ]
        return (*kept[:n], number, *kept[n + 1 :])

    def hits(i: tuple[Scalar, ...], number: Sequence[Scalar]) -> Scalar:
        index = index_at(name, indices, place(i, number[0]), n, x.shape[n])
        return te.all_of(inside(i), index.equal(i[n]))

    def update(i: tuple[Scalar, ...], number: Sequence[Scalar]) -> Scalar:
        return updates[place(i, number[0])]

    return _scattered(name, x, reduction, [over], hits, update, x.rank)


@register_op(
    "scatter_elements_many",
    traits=Traits(fits_always=True),
    samples=(*_ELEMENTS, *_ELEMENTS_OUTSIDE),
)
def scatter_elements_many(
    x: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none"
) -> Tensor:
    """`scatter_elements` as a kernel that applies one update after another.

    Errors: T101, T104, T105, T107, T108.
    """
    name = "scatter_elements"
    n = _check_elements(name, x.type, indices.type, updates.type, axis, reduction)
    if 0 in indices.shape:
        return te.compute(x.shape, lambda *i: x[i], name)
    whole = [k != n and size == x.shape[k] for k, size in enumerate(indices.shape)]
    over = [te.reduce_axis(size, f"update{k}") for k, size in enumerate(indices.shape)]

    def updated(*i: Scalar) -> Scalar:
        at = tuple(i[k] if whole[k] else over[k] for k in range(x.rank))
        place = (*at[:n], index_at(name, indices, at, n, x.shape[n]), *at[n + 1 :])
        rest = [axis for k, axis in enumerate(over) if not whole[k]]
        return te.scatter(x[i], place, updates[at], rest, combiner=_combiner(reduction, x.dtype))

    return te.compute(x.shape, updated, name)


def _combiner(reduction: str, dtype: str) -> str:
    """Returns the combiner of a reduction."""
    if reduction == "none":
        return ""
    combiner = _REDUCERS[reduction]
    if dtype != "bool":
        return combiner
    return "or" if combiner in ("sum", "max") else "and"


@scatter_elements_many.reference
def _scatter_elements_reference(
    x: Array, indices: Array, updates: Array, *, axis: int, reduction: str
) -> Array:
    if not indices.size:
        return x
    place: list[Array] = list(np.indices(indices.shape, sparse=True))
    n = axis % x.ndim
    place[n] = indices_in("scatter_elements", indices, n, x.shape[n])
    return put(x, tuple(place), updates, reduction)


for _op in (scatter_elements, scatter_elements_few, scatter_elements_many):
    _op.scatter(scatter_elements_many.compute)  # type: ignore[arg-type]
scatter_elements.reference(scatter_elements_many.reference_rule)  # type: ignore[arg-type]
scatter_elements_few.reference(scatter_elements_many.reference_rule)  # type: ignore[arg-type]


# --- by several indices per update ---------------------------------------------------------

_SLICES_BY_INDEX = (
    Sample(f32(4, 3), np.array([[0], [-1]]), f32(2, 3)),
    Sample(f32(4, 3), np.array([[0, 1], [3, 2], [0, 1]]), f32(3), reduction="add"),
    Sample(f32(4, 3), np.array([[[0, 1]], [[3, -3]]]), f32(2, 1)),
    Sample(i32(4, 3, 2), np.array([[1], [1]]), i32(2, 3, 2), reduction="mul"),
    Sample(f16(4, 3), np.array([[1], [1]]), f16(2, 3), reduction="max"),
    Sample(f64(3), np.array([[2], [0]]), f64(2), reduction="min"),
    Sample(f32(2, 3), np.zeros((0, 1), "i8"), f32(0, 3)),
)
_SLICES = (*_SLICES_BY_INDEX, Sample(f32(2, 3), np.zeros((1, 0), "i8"), f32(1, 2, 3)))
_SLICES_OUTSIDE = (
    Sample(f32(4, 3), np.array([[[0, 1]], [[3, 9]]]), f32(2, 1), error="I320"),
    Sample(i32(4, 3), np.array([[0], [-5]]), i32(2, 3), reduction="add", error="I320"),
)
_BAD_SLICES = (
    *_SLICES_OUTSIDE,
    Sample(f32(4, 3), i64(2, 1), f32(2, 4), error="T108"),
    Sample(f32(4, 3), i64(2, 3), f32(2), error="T108"),
    Sample(f32(0, 3), i64(2, 1), f32(2, 3), error="T108"),
    Sample(f32(4, 3), i64(2, 1), i32(2, 3), error="T101"),
    Sample(f32(4, 3), f32(2, 1), f32(2, 3), error="T105"),
    Sample(f32(4, 3), i64(2, 1), f32(2, 3), reduction="mean", error="T107"),
)


def _check_slices(name: str, x: Type, indices: Type, updates: Type, reduction: str) -> int:
    """Returns the number of axes that the index tuples address."""
    data, index, new = (tensor_type(name, t) for t in (x, indices, updates))
    check_reduction(name, reduction, data, new)
    depth = index.shape[-1] if index.rank else data.rank + 1
    if not isinstance(depth, int) or depth > data.rank:
        raise GraphTypeError("T108", f"{name}: {index} does not hold index tuples into {data}")
    wanted = (*index.shape[:-1], *data.shape[depth:])
    wrong = len(wanted) != new.rank or any(map(differ, wanted, new.shape))
    if wrong or (0 in data.shape[:depth] and _has_elements(index)):
        raise GraphTypeError("T108", f"{name}: {new} at {index} does not fit {data}")
    if index.dtype not in ("i32", "i64"):
        raise GraphTypeError("T105", f"{name}: indices are {index}, expected i32 or i64")
    return depth


@register_op(
    "scatter_nd",
    traits=Traits(sizes="computed", fits_always=True),
    samples=(*_SLICES, *_BAD_SLICES),
)
def scatter_nd(x: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none") -> Tensor:  # type: ignore[empty-body]
    """`x` with slices written (or combined by `reduction`) at the index tuples in the last axis of
    `indices`; of several updates for one position, the last. Negative indices count from the end;
    an index out of range raises an error in the run.

    Errors: T101, T105, T107, T108, I320. Source: ONNX ScatterND-18.
    """


@scatter_nd.types
def _scatter_nd_types(x: Type, indices: Type, updates: Type, *, reduction: str) -> Type:
    _check_slices("scatter_nd", x, indices, updates, reduction)
    return tensor_type("scatter_nd", x).with_(layout="")


@scatter_nd.decompose
def _scatter_nd_expanded(x: Expr, indices: Expr, updates: Expr, *, reduction: str) -> Expr:
    depth = indices.tensor.shape[-1]
    assert isinstance(depth, int)
    places = x.tensor.shape[:depth] if reduction == "none" else x.tensor.shape
    few = not depth or _looks(product(indices.tensor.shape[:-1]), product(tuple(places)))
    return _expanded(scatter_nd, few, x, indices, updates, reduction=reduction)


@register_op(
    "scatter_nd_few", traits=Traits(fits_always=True), samples=(*_SLICES, *_SLICES_OUTSIDE)
)
def scatter_nd_few(
    x: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none"
) -> Tensor:
    """`scatter_nd` as a kernel, which compares each position with all index tuples.

    Errors: T101, T105, T107, T108.
    """
    name = "scatter_nd"
    depth = _check_slices(name, x.type, indices.type, updates.type, reduction)
    outer = indices.shape[:-1]
    if 0 in outer:
        return te.compute(x.shape, lambda *i: x[i], name)
    over = [te.reduce_axis(size, f"update{n}") for n, size in enumerate(outer)]
    if not over:
        over = [te.reduce_axis(1, "update")]

    def tuple_of(number: Sequence[Scalar]) -> tuple[Scalar, ...]:
        return tuple(number) if outer else ()

    def hits(i: tuple[Scalar, ...], number: Sequence[Scalar]) -> Scalar:
        return te.all_of(
            *(
                index_at(name, indices, (*tuple_of(number), te.as_scalar(k)), k, x.shape[k]).equal(
                    i[k]
                )
                for k in range(depth)
            )
        )

    def update(i: tuple[Scalar, ...], number: Sequence[Scalar]) -> Scalar:
        return updates[(*tuple_of(number), *i[depth:])]

    return _scattered(name, x, reduction, over, hits, update, depth)


@register_op(
    "scatter_nd_many",
    traits=Traits(fits_always=True),
    samples=(*_SLICES_BY_INDEX, *_SLICES_OUTSIDE),
)
def scatter_nd_many(
    x: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none"
) -> Tensor:
    """`scatter_nd` as a kernel that applies one update after another. Index tuples are not empty.

    Errors: T101, T105, T107, T108.
    """
    name = "scatter_nd"
    depth = _check_slices(name, x.type, indices.type, updates.type, reduction)
    if not depth:
        raise GraphTypeError("T108", f"{name}: {indices.type} has empty index tuples")
    outer = indices.shape[:-1]
    if 0 in outer:
        return te.compute(x.shape, lambda *i: x[i], name)
    over = [te.reduce_axis(size, f"update{n}") for n, size in enumerate(outer)]

    def updated(*i: Scalar) -> Scalar:
        found = [
            index_at(name, indices, (*over, te.as_scalar(k)), k, x.shape[k]) for k in range(depth)
        ]
        value = updates[(*over, *i[depth:])]
        combiner = _combiner(reduction, x.dtype)
        return te.scatter(x[i], (*found, *i[depth:]), value, over, combiner=combiner)

    return te.compute(x.shape, updated, name)


@scatter_nd_many.reference
def _scatter_nd_reference(x: Array, indices: Array, updates: Array, *, reduction: str) -> Array:
    if not indices.size and not updates.size:
        return x
    depth = indices.shape[-1]
    if not depth:  # the whole of `x`, once per tuple
        parts = updates.reshape(-1, *x.shape)
        whole: Array = put(x[None], (np.zeros(len(parts), np.int64),), parts, reduction)[0]
        return whole
    wide = indices.astype(np.int64, copy=False)
    if wide.min() >= 0 and (wide < np.array(x.shape[:depth])).all():
        return put(x, tuple(wide[..., n] for n in range(depth)), updates, reduction)
    place = tuple(indices_in("scatter_nd", indices[..., n], n, x.shape[n]) for n in range(depth))
    return put(x, place, updates, reduction)


for _op in (scatter_nd, scatter_nd_few, scatter_nd_many):
    _op.scatter(scatter_nd_many.compute)  # type: ignore[arg-type]
scatter_nd.reference(scatter_nd_many.reference_rule)  # type: ignore[arg-type]
scatter_nd_few.reference(scatter_nd_many.reference_rule)  # type: ignore[arg-type]


# --- slices along an axis ---------------------------------------------------------------------


@register_op(
    "index_copy",
    samples=(
        Sample(f32(2, 5, 3), np.array([3, -5]), f32(2, 2, 3), axis=1),
        Sample(f32(4, 3), np.array([2, 0, 2], "i4"), f32(4, 3), axis=-1),
        Sample(f16(2, 5, 3), np.array([4]), f16(2, 1, 3), axis=1),
        Sample(i32(5), np.array([1, 1]), i32(2), axis=0),
        Sample(f32(2, 5), np.zeros(0, "i8"), f32(2, 0), axis=1),
        Sample(f32(2, 5), np.array([1, 5]), f32(2, 2), axis=1, error="I320"),
        Sample(f32(2, 5), np.array([-6]), f32(2, 1), axis=1, error="I320"),
        Sample(f32(2, 5), i64(2), f32(2, 3), axis=1, error="T108"),
        Sample(f32(2, 5), i64(2), f32(3, 2), axis=1, error="T108"),
        Sample(f32(2, 5), i64(2, 1), f32(2, 2), axis=1, error="T108"),
        Sample(f32(2, 0), i64(1), f32(2, 1), axis=1, error="T110"),
        Sample(f32(2, 5), i64(2), f32(2, 2), axis=2, error="T104"),
        Sample(f32(2, 5), i64(2), i32(2, 2), axis=1, error="T101"),
        Sample(f32(2, 5), f32(2), f32(2, 2), axis=1, error="T105"),
    ),
)
def index_copy(x: Tensor, indices: Tensor, updates: Tensor, *, axis: int) -> Tensor:
    """`x` with slices along an axis replaced by those of `updates`, at `indices`. If an index
    occurs several times, the last update wins. Negative indices count from the end; an index out of
    range raises an error in the run.

    Errors: T101, T104, T105, T108, T110, I320. Source: PyTorch `Tensor.index_copy`.
    """
    name = "index_copy"
    need_integer(name, indices)
    check_reduction(name, "none", x.type, updates.type)
    n = axis_of(name, axis, x.rank)
    fits = updates.rank == x.rank and indices.rank == 1
    if (
        not fits
        or differ(indices.shape[0], updates.shape[n])
        or any(
            k != n and differ(new, old)
            for k, (new, old) in enumerate(zip(updates.shape, x.shape, strict=True))
        )
    ):
        raise GraphTypeError(
            "T108", f"{name}: {updates.type} at {indices.type} does not fit {x.type}"
        )
    if updates.shape[n] == 0:
        return te.compute(x.shape, lambda *i: x[i], name)
    if updates.shape[n] != 1:
        return index_copy.scattered((x, indices, updates), {"axis": axis})

    def body(*i: Scalar) -> Scalar:  # fuses with other operators
        place = index_at(name, indices, (te.as_scalar(0),), n, x.shape[n])
        return te.select(place.equal(i[n]), updates[(*i[:n], 0, *i[n + 1 :])], x[i])

    return te.compute(x.shape, body, name)


@index_copy.scatter
def _index_copied(x: Tensor, indices: Tensor, updates: Tensor, *, axis: int) -> Tensor:
    n = axis % x.rank
    each = te.reduce_axis(updates.shape[n], "update")

    def updated(*i: Scalar) -> Scalar:
        place = index_at("index_copy", indices, (each,), n, x.shape[n])
        value = updates[(*i[:n], each, *i[n + 1 :])]
        alone = updates.shape[n] == 1
        return te.scatter(x[i], (*i[:n], place, *i[n + 1 :]), value, [each], apart=alone)

    return te.compute(x.shape, updated, "index_copy")


@index_copy.reference
def _index_copy_reference(x: Array, indices: Array, updates: Array, *, axis: int) -> Array:
    n = axis % x.ndim
    place = indices_in("index_copy", indices, n, x.shape[n])
    moved = put(np.moveaxis(x, n, 0), (place,), np.moveaxis(updates, n, 0), "none")
    return np.ascontiguousarray(np.moveaxis(moved, 0, n))


# --- slices along an axis, with one position per batch element ------------------------------


@register_op(
    "reverse_sequence",
    samples=(
        Sample(f32(3, 5, 2), np.array([5, 0, 3]), batch_axis=0, time_axis=1),
        Sample(i32(4, 3), np.array([1, 4, 0]), batch_axis=1, time_axis=0),
        Sample(i32(4, 3), np.array([1, 5, 0]), batch_axis=1, time_axis=0, error="I320"),
        Sample(i32(4, 3), np.array([1, 0, -1]), batch_axis=1, time_axis=0, error="I320"),
        Sample(f32(4, 3), i64(3), batch_axis=0, time_axis=0, error="T104"),
        Sample(f32(4, 3), i64(3), batch_axis=2, time_axis=0, error="T104"),
        Sample(f32(4, 3), i64(4), batch_axis=1, time_axis=0, error="T108"),
        Sample(f32(4, 3), f32(3), batch_axis=1, time_axis=0, error="T105"),
    ),
)
def reverse_sequence(x: Tensor, lengths: Tensor, *, batch_axis: int, time_axis: int) -> Tensor:
    """`x` with the first `lengths[n]` elements along `time_axis` reversed for element `n` of
    `batch_axis`; lengths range from 0 to the size of the axis.

    Errors: T104, T105, T108, I320. Source: ONNX ReverseSequence-10.
    """
    name = "reverse_sequence"
    need_integer(name, lengths)
    batch, time = axis_of(name, batch_axis, x.rank), axis_of(name, time_axis, x.rank)
    if batch == time:
        raise GraphTypeError("T104", f"{name}: axis {batch} is both batch and time")
    if lengths.rank != 1 or differ(lengths.shape[0], x.shape[batch]):
        raise GraphTypeError("T108", f"{name}: {lengths.type} for axis {batch} of {x.type}")
    size = x.shape[time]
    places = Places(name, time, size, size + 1, from_end=False, noun="length")

    def body(*i: Scalar) -> Scalar:
        count = te.Checked(te.cast("i64", lengths[i[batch]]), places)
        place = te.select(i[time] < count, count - 1 - i[time], i[time])
        return x[(*i[:time], te.maximum(place, 0), *i[time + 1 :])]

    return te.compute(x.shape, body, name)


@register_op(
    "tensor_scatter",
    samples=(
        Sample(f32(3, 6, 2), f32(3, 2, 2), np.array([0, 4, 1]), axis=1),
        Sample(f32(2, 5), f32(2, 3), np.array([4, -1]), axis=1, circular=True),
        Sample(f32(2, 5), f32(2, 3), np.array([9, -9]), axis=1, circular=True),
        Sample(f32(2, 3, 5), f32(2, 3, 2), np.array([3, 0]), axis=-1),
        Sample(f32(2, 3, 5), f32(2, 3, 2), np.array([4, 0]), axis=-1, error="I320"),
        Sample(f32(2, 3, 5), f32(2, 3, 2), np.array([0, -1]), axis=-1, error="I320"),
        Sample(f32(2, 5), f32(2, 6), i64(2), axis=1, error="T108"),
        Sample(f32(2, 5), f32(3, 2), i64(2), axis=1, error="T108"),
        Sample(f32(2, 5), f32(2, 2), i64(3), axis=1, error="T108"),
        Sample(f32(2, 5), f32(2, 2), i64(2), axis=0, error="T104"),
        Sample(f32(2, 5), i32(2, 2), i64(2), axis=1, error="T101"),
        Sample(f32(2, 5), f32(2, 2), f32(2), axis=1, error="T105"),
    ),
)
def tensor_scatter(
    x: Tensor, updates: Tensor, begin: Tensor, *, axis: int = -2, circular: bool = False
) -> Tensor:
    """`x` with `updates` written along `axis`, starting at `begin[n]` for element `n` of axis 0.
    With `circular`, they wrap around at the end; otherwise all of them must fit, and a start out of
    range is an error or clamped (`bounds`).

    Errors: T101, T104, T105, T108, I320. Source: ONNX TensorScatter-24.
    """
    name = "tensor_scatter"
    need_integer(name, begin)
    check_reduction(name, "none", x.type, updates.type)
    n = axis_of(name, axis, x.rank)
    if n == 0:
        raise GraphTypeError("T104", f"{name}: axis 0 is the batch axis")
    fits = updates.rank == x.rank and begin.rank == 1 and not differ(begin.shape[0], x.shape[0])
    for k, (new, old) in enumerate(zip(updates.shape, x.shape, strict=False)):
        fits = fits and not (exceeds(new, old) if k == n else differ(new, old))
    if not fits:
        raise GraphTypeError(
            "T108", f"{name}: {updates.type} at {begin.type} does not fit {x.type}"
        )
    if updates.shape[n] == 0:
        return te.compute(x.shape, lambda *i: x[i], name)
    size, count = te.size(x.shape[n]), te.size(updates.shape[n])
    places = _first_places(x, updates, n)

    def body(*i: Scalar) -> Scalar:
        first = te.cast("i64", begin[i[0]])
        first = first if circular else te.Checked(first, places)
        place = i[n] - first
        place = place % size if circular else place
        new = (place >= 0) & (place < count)
        held = te.minimum(te.maximum(place, 0), count - 1)
        return te.select(new, updates[(*i[:n], held, *i[n + 1 :])], x[i])

    return te.compute(x.shape, body, name)


@tensor_scatter.scatter
def _tensor_scattered(
    x: Tensor, updates: Tensor, begin: Tensor, *, axis: int, circular: bool
) -> Tensor:
    n = axis % x.rank
    size, each = te.size(x.shape[n]), te.reduce_axis(updates.shape[n], "update")
    places = _first_places(x, updates, n)

    def updated(*i: Scalar) -> Scalar:
        first = te.cast("i64", begin[i[0]])
        place = (first + each) % size if circular else te.Checked(first, places) + each
        value = updates[(*i[:n], each, *i[n + 1 :])]
        return te.scatter(x[i], (*i[:n], place, *i[n + 1 :]), value, [each], apart=True)

    return te.compute(x.shape, updated, "tensor_scatter")


def _first_places(x: Tensor, updates: Tensor, n: int) -> Places:
    """Returns the positions at which all updates fit."""
    room = x.shape[n] - updates.shape[n] + 1
    noun = "place of the first update"
    return Places("tensor_scatter", n, x.shape[n], room, from_end=False, noun=noun)
