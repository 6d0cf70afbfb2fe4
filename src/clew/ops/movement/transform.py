"""Shape, order and repetition of elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from clew import te
from clew.ir.dims import Dim, SymDim, dim_max, dim_min, product
from clew.ir.expr import Attrs
from clew.ir.types import TensorType, Type
from clew.ops.common import (
    assume_either,
    axes_of,
    axis_of,
    boolean,
    broadcast_place,
    broadcast_shapes,
    differ,
    f32,
    held_length,
    i64,
    led_by_ones,
    tensor_type,
    text,
    unknown_tensor,
)
from clew.ops.registry import Sample, register_op
from clew.ops.traits import Traits
from clew.support.errors import GraphTypeError
from clew.support.text_arrays import zeros
from clew.te import Scalar, Tensor

Array = np.ndarray[Any, Any]


def _groups(
    source: Sequence[Dim], target: Sequence[Dim]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Returns groups of source and target axes with equal products, as short as possible."""
    found: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    s, t = 0, 0
    while s < len(source) or t < len(target):
        first_s, first_t = s, t
        left: Dim = 1
        right: Dim = 1
        while True:
            if (s < len(source) and (t >= len(target) or not _larger(left, right))) or t >= len(
                target
            ):
                if s >= len(source):
                    break
                left, s = left * source[s], s + 1
            else:
                right, t = right * target[t], t + 1
            if left == right:
                break
        found.append((tuple(range(first_s, s)), tuple(range(first_t, t))))
    return found


def _larger(left: Dim, right: Dim) -> bool:
    """Whether `left` is known to have more factors than `right` so far."""
    if isinstance(left, int) and isinstance(right, int):
        return left > right
    return isinstance(left, SymDim) and isinstance(right, int)


def reshaped_place(
    source: Sequence[Dim], target: Sequence[Dim], indices: Sequence[Scalar]
) -> tuple[Scalar, ...]:
    """Returns the position in the source shape of the element at `indices` of the target shape."""
    place: list[Scalar] = [te.as_scalar(0)] * len(source)
    for sources, targets in _groups(source, target):
        kept = [n for n in sources if source[n] != 1]
        flat = te.as_scalar(0)
        for n in targets:
            flat = flat * te.size(target[n]) + indices[n] if target[n] != 1 else flat
        for position, n in reversed(list(enumerate(kept))):
            place[n] = flat % te.size(source[n]) if position else flat
            flat = flat // te.size(source[n])
        if not kept and len(sources) == len(targets) == 1:
            place[sources[0]] = indices[targets[0]]
    return tuple(place)


@register_op(
    "reshape",
    traits=Traits(sizes="computed", passes_on=True),
    samples=(
        Sample(f32(2, 3, 4), shape=(6, 4)),
        Sample(f32(2, 12), shape=(2, 3, 4)),
        Sample(f32(6, 4), shape=(3, 8)),
        Sample(f32(1, 5, 1), shape=(5,)),
        Sample(f32(5), shape=(1, 5, 1)),
        Sample(f32(), shape=(1, 1)),
        Sample(f32(1), shape=()),
        Sample(f32(0, 3), shape=(3, 0)),
        Sample(i64(2, 3, 4, 5), shape=(2, 4, 3, 5)),
        Sample(f32(2, 3), shape=(5,), error="T108"),
    ),
)
def reshape(x: Tensor, *, shape: tuple[int, ...]) -> Tensor:
    """The elements in order, in another shape. Source: ONNX Reshape-24."""
    if differ(x.size, product(shape)):
        raise GraphTypeError(
            "T108", f"reshape: {x.type} has {x.size} elements, {text(shape)} has {product(shape)}"
        )
    return te.compute(shape, lambda *i: x[reshaped_place(x.shape, shape, i)], "reshape")


@reshape.reference
def _reshape_reference(x: Array, *, shape: tuple[int, ...]) -> Array:
    return x.reshape(shape)


@reshape.dynamic
def _reshape_dynamic(types: Sequence[Type], attrs: Attrs) -> Type:
    return unknown_tensor("reshape", types[0], held_length("reshape", types, attrs.shape))


@reshape.resolver
def _reshape_resolver(types: Sequence[TensorType], attrs: dict[str, Any]) -> dict[str, Any]:
    """Resolves a size of 0 to the size of `x` in that position, and -1 to the remaining size."""
    source, shape = types[0].shape, list(attrs["shape"])
    for n, size in enumerate(shape):
        if size == 0 and n < len(source):
            shape[n] = source[n]
    if shape.count(-1) == 1 and 0 not in shape:
        shape[shape.index(-1)] = types[0].size // -product(tuple(shape))
    if any(isinstance(size, int) and size < 0 for size in shape):
        raise GraphTypeError("T108", f"reshape: {types[0]} does not reshape to {attrs['shape']}")
    return {"shape": tuple(shape)}


@register_op(
    "transpose",
    traits=Traits(sizes="computed"),
    samples=(
        Sample(f32(2, 3, 4), axes=(2, 0, 1)),
        Sample(f32(5, 7), axes=(1, 0)),
        Sample(f32(), axes=()),
        Sample(f32(2, 3), axes=(0, 0), error="T104"),
        Sample(f32(2, 3), axes=(0,), error="T104"),
    ),
)
def transpose(x: Tensor, *, axes: tuple[int, ...]) -> Tensor:
    """Axis `n` of the result is axis `axes[n]` of `x`. Source: ONNX Transpose-24."""
    inside = all(-x.rank <= a < x.rank for a in axes)
    if not inside or sorted(a % x.rank for a in axes) != list(range(x.rank)):
        raise GraphTypeError(
            "T104", f"transpose: axes {axes} do not permute the {x.rank} axes of {x.type}"
        )
    order = [a % x.rank for a in axes]
    place = [order.index(n) for n in range(x.rank)]
    return te.compute(
        [x.shape[n] for n in order], lambda *i: x[tuple(i[p] for p in place)], "transpose"
    )


@transpose.reference
def _transpose_reference(x: Array, *, axes: tuple[int, ...]) -> Array:
    return x.transpose(axes)


@register_op(
    "broadcast_to",
    traits=Traits(sizes="computed"),
    samples=(
        Sample(f32(3, 1), shape=(2, 3, 4)),
        Sample(f32(), shape=(2, 2)),
        Sample(f32(3), shape=(3,)),
        Sample(f32(2, 3, 1), shape=(1, 4), both=True),
        Sample(f32(3), shape=(4,), error="T100"),
        Sample(f32(2, 3), shape=(3,), error="T100"),
        Sample(f32(2, 3), shape=(0, 3), both=True, error="T100"),
    ),
)
def broadcast_to(x: Tensor, *, shape: tuple[int, ...], both: bool = False) -> Tensor:
    """`x` repeated along axes of size 1 and along new leading axes. With `both`, the shape may have
    fewer axes, and a size of 1 in it leaves an axis of `x` unchanged. Source: ONNX Expand-13.
    """
    if both:
        return _to_both(x, shape)
    result = broadcast_shapes("broadcast_to", x.shape, shape)
    if len(result) != len(shape) or any(map(differ, result, shape)):
        raise GraphTypeError("T100", f"broadcast_to: {x.type} does not broadcast to {text(shape)}")
    return te.compute(shape, lambda *i: x[broadcast_place(x.shape, shape, i)], "broadcast_to")


def _to_both(x: Tensor, shape: Sequence[Dim]) -> Tensor:
    """`x` and the given shape, broadcast to each other. If both sizes of an axis are symbolic,
    either may be 1, so the result's size is their maximum (0 if one of them is 0).

    Two named sizes are usually equal, so the kernel assumes that `x` has the result's size; other
    sizes get their own build. A size computed from others (`min(1, n)`) may well be 1 in every
    call; if it is, the kernel multiplies the position by 0.

    Errors: T100 if the shapes do not broadcast.
    """
    rank = max(x.rank, len(shape))
    own, given = (led_by_ones(dims, rank) for dims in (x.shape, shape))
    strides: dict[int, Dim] = {}
    for n, (size, want) in enumerate(zip(own, given, strict=True)):
        if size in (1, want) or not isinstance(want, SymDim):
            continue
        if isinstance(size, SymDim):
            given[n] = dim_max(size, want) * dim_min(1, dim_min(size, want))
            if not (_is_name(size) and _is_name(want)):
                strides[n] = dim_min(1, dim_max(size - 1, 0))
        else:
            given[n] = size
        assume_either(want, 1, given[n])
    pairs = zip(given, own, strict=True)
    kept = [want if n in strides else size for n, (want, size) in enumerate(pairs)]
    result = broadcast_shapes("broadcast_to", given, kept)

    def element(*i: Scalar) -> Scalar:
        place = broadcast_place(own, result, i)
        moved = [p * te.size(strides.get(n, 1)) for n, p in enumerate(place)]
        return x[tuple(moved[rank - x.rank :])]

    return te.compute(result, element, "broadcast_to")


def _is_name(size: SymDim) -> bool:
    return str(size) in size.symbols


@broadcast_to.reference
def _broadcast_to_reference(x: Array, *, shape: tuple[int, ...], both: bool) -> Array:
    return np.broadcast_to(x, np.broadcast_shapes(shape, x.shape) if both else shape)


@broadcast_to.dynamic
def _broadcast_to_dynamic(types: Sequence[Type], attrs: Attrs) -> Type:
    source = tensor_type("broadcast_to", types[0])
    rank = max(source.rank, held_length("broadcast_to", types, attrs.shape))
    return unknown_tensor("broadcast_to", source, rank)


@register_op(
    "tile",
    traits=Traits(sizes="computed"),
    samples=(
        Sample(f32(2, 3), repeats=(2, 3)),
        Sample(f32(2), repeats=(1,)),
        Sample(f32(2, 3), repeats=(2,), error="T107"),
    ),
)
def tile(x: Tensor, *, repeats: tuple[int, ...]) -> Tensor:
    """`x` repeated `repeats` times along the axes. Source: ONNX Tile-13."""
    if len(repeats) != x.rank:
        raise GraphTypeError("T107", f"tile: {len(repeats)} repeats for {x.type}")
    shape = [n * r for n, r in zip(x.shape, repeats, strict=True)]

    def body(*i: Scalar) -> Scalar:
        pairs = zip(i, x.shape, repeats, strict=True)
        return x[tuple(p if r == 1 else p % te.size(n) for p, n, r in pairs)]

    return te.compute(shape, body, "tile")


@tile.reference
def _tile_reference(x: Array, *, repeats: tuple[int, ...]) -> Array:
    return np.tile(x, repeats)


@tile.dynamic
def _tile_dynamic(types: Sequence[Type], attrs: Attrs) -> Type:
    return unknown_tensor("tile", types[0], tensor_type("tile", types[0]).rank)


@register_op(
    "repeat",
    samples=(
        Sample(f32(2, 3), axis=1, repeats=4, size=10),
        Sample(f32(5), axis=-1, repeats=1, size=5),
        Sample(i64(2, 3, 4), axis=0, repeats=17, size=33),
        Sample(f32(2, 3), axis=1, repeats=4, size=13, error="T142"),
        Sample(f32(2, 3), axis=1, repeats=0, size=0, error="T142"),
        Sample(f32(2, 3), axis=2, repeats=1, size=3, error="T104"),
    ),
)
def repeat(x: Tensor, *, axis: int, repeats: int, size: int) -> Tensor:
    """Each element of an axis repeated `repeats` times in place, cropped to `size`: scales of
    blocks become scales of elements. Source: ONNX QuantizeLinear-21 (`block_size`); NumPy's
    `repeat`.
    """
    axis = axis_of("repeat", axis, x.rank)
    blocks = x.shape[axis]
    short = isinstance(size, int) and isinstance(blocks, int) and size > blocks * repeats
    if repeats < 1 or short:
        raise GraphTypeError(
            "T142", f"repeat: {blocks} elements, {repeats} times each, do not give {size}"
        )
    shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
    return te.compute(
        shape, lambda *i: x[(*i[:axis], i[axis] // repeats, *i[axis + 1 :])], "repeat"
    )


@repeat.reference
def _repeat_reference(x: Array, *, axis: int, repeats: int, size: int) -> Array:
    return np.repeat(x, repeats, axis).take(range(size), axis)


@register_op(
    "flip",
    traits=Traits(sizes="computed"),
    samples=(Sample(f32(2, 3), axes=(1,)), Sample(f32(2, 3), axes=(2,), error="T104")),
)
def flip(x: Tensor, *, axes: tuple[int, ...]) -> Tensor:
    """`x` in reverse order along `axes`."""
    found = axes_of("flip", axes, x.rank)
    return te.compute(
        x.shape,
        lambda *i: x[
            tuple(te.size(x.shape[n] - 1) - p if n in found else p for n, p in enumerate(i))
        ],
        "flip",
    )


@flip.reference
def _flip_reference(x: Array, *, axes: tuple[int, ...]) -> Array:
    return np.flip(x, axes)


@register_op(
    "trilu",
    samples=(
        Sample(f32(4, 5)),
        Sample(f32(2, 4, 5), upper=False, k=1),
        Sample(boolean(4, 4), k=-1),
        Sample(f32(4), error="T102"),
    ),
)
def trilu(x: Tensor, *, k: Dim = 0, upper: bool = True) -> Tensor:
    """The part of matrices on and above (or below) diagonal `k`, else 0. Source: ONNX Trilu-14."""
    if x.rank < 2:
        raise GraphTypeError("T102", f"trilu: input is {x.type}, expected at least two axes")

    def body(*i: Scalar) -> Scalar:
        row, column = i[-2] + te.size(k), i[-1]
        return te.select(column >= row if upper else column <= row, x[i], 0)

    return te.compute(x.shape, body, "trilu")


@trilu.reference
def _trilu_reference(x: Array, *, k: int, upper: bool) -> Array:
    row, column = np.indices(x.shape[-2:])
    kept = column >= row + k if upper else column <= row + k
    return np.where(kept, x, zeros((), x.dtype))


@trilu.dynamic
def _trilu_dynamic(types: Sequence[Type], attrs: Attrs) -> Type:
    return types[0]


@register_op(
    "identity",
    traits=Traits(sizes="computed"),
    samples=(Sample(f32(2, 3)), Sample(i64()), Sample(boolean(4))),
)
def identity(x: Tensor) -> Tensor:
    """`x`. Source: ONNX Identity-24."""
    return te.compute(x.shape, lambda *i: x[i], "identity", layout=x.layout)


@identity.reference
def _identity_reference(x: Array) -> Array:
    return x


@register_op(
    "diagonal",
    samples=(
        Sample(f32(3, 3)),
        Sample(f32(4, 2, 4, 5), first=2, second=0),
        Sample(i64(0, 0)),
        Sample(f32(3, 4), error="T108"),
        Sample(f32(3, 3), first=1, error="T104"),
        Sample(f32(3, 3), second=2, error="T104"),
    ),
)
def diagonal(x: Tensor, *, first: int = 0, second: int = 1) -> Tensor:
    """The elements whose indices on two axes of one size are equal. The axis `second` is dropped.

    Errors: T104, T108.
    """
    a, b = axis_of("diagonal", first, x.rank), axis_of("diagonal", second, x.rank)
    if a == b:
        raise GraphTypeError("T104", f"diagonal: axis {a} is named twice")
    if differ(x.shape[a], x.shape[b]):
        raise GraphTypeError("T108", f"diagonal: axes {a} and {b} of {x.type} differ in size")

    def body(*i: Scalar) -> Scalar:
        place = i[a - 1] if a > b else i[a]
        return x[(*i[:b], place, *i[b:])]

    return te.compute(tuple(d for n, d in enumerate(x.shape) if n != b), body, "diagonal")


@diagonal.reference
def _diagonal_reference(x: Array, *, first: int, second: int) -> Array:
    moved = np.moveaxis(np.diagonal(x, 0, first, second), -1, 0)
    a, b = first % x.ndim, second % x.ndim
    return np.moveaxis(moved, 0, a - 1 if a > b else a)
