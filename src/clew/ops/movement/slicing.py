"""Joining and cutting: concatenate, split, slice, pad."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from clew import te
from clew.ir.dims import Dim, SymDim, dim_max, dim_min, unknown_dim
from clew.ir.expr import ArgRef, Attrs
from clew.ir.types import TensorType, TupleType, Type
from clew.ops.common import (
    assume_at_least,
    axes_of,
    axis_of,
    differ,
    f32,
    held_length,
    i32,
    i64,
    same_dtype,
    tensor_type,
    text,
    unknown_tensor,
)
from clew.ops.registry import Sample, register_op
from clew.ops.traits import Traits
from clew.support.errors import GraphTypeError
from clew.support.text_arrays import TEXT
from clew.te import Scalar, Tensor

Array = np.ndarray[Any, Any]


# Exporters write numbers this large for the end of an axis.
_FAR: Final = 2**31 - 1
# More inputs than this are selected by bisection, so that expressions stay shallow.
_MOST_IN_A_ROW: Final = 32


@register_op(
    "concatenate",
    traits=Traits(sizes="computed"),
    samples=(
        Sample(f32(2, 3), f32(2, 5), axis=1),
        Sample(f32(2, 3), f32(1, 3), f32(4, 3), axis=0),
        Sample(f32(2, 0), f32(2, 2), axis=-1),
        Sample(i64(3), axis=0),
        Sample(f32(2, 3), f32(3, 3), axis=1, error="T108"),
        Sample(f32(2, 3), f32(2), axis=0, error="T102"),
        Sample(f32(2, 3), i32(2, 3), axis=0, error="T101"),
        Sample(f32(2, 3), axis=2, error="T104"),
        Sample(axis=0, error="T010"),
    ),
)
def concatenate(x: Tensor, *xs: Tensor, axis: int) -> Tensor:
    """The inputs one after another along `axis`. Source: ONNX Concat-13."""
    inputs = (x, *xs)
    same_dtype("concatenate", *inputs)
    along = axis_of("concatenate", axis, x.rank)
    shape, offsets = list(x.shape), [0 * x.shape[along]]
    for other in xs:
        if other.rank != x.rank:
            raise GraphTypeError("T102", f"concatenate: {x.type} and {other.type} differ in rank")
        for n, (a, b) in enumerate(zip(x.shape, other.shape, strict=True)):
            if n != along and differ(a, b):
                raise GraphTypeError(
                    "T108", f"concatenate: {x.type} and {other.type} differ in axis {n}"
                )
            if n != along and isinstance(b, int):
                shape[n] = b
        offsets.append(shape[along])
        shape[along] = shape[along] + other.shape[along]

    def body(*i: Scalar) -> Scalar:
        def part(n: int) -> Scalar:
            return inputs[n][(*i[:along], i[along] - te.size(offsets[n]), *i[along + 1 :])]

        def chosen(first: int, last: int) -> Scalar:
            """Returns the element if it belongs to one of the inputs from `first` to before
            `last`.
            """
            if last - first > _MOST_IN_A_ROW:
                middle = (first + last) // 2
                left, right = chosen(first, middle), chosen(middle, last)
                return te.select(i[along] < te.size(offsets[middle]), left, right)
            value = part(last - 1)
            for n in reversed(range(first, last - 1)):
                value = te.select(i[along] < te.size(offsets[n + 1]), part(n), value)
            return value

        return chosen(0, len(inputs))

    layout = x.layout if all(y.layout == x.layout for y in xs) else ""
    return te.compute(shape, body, "concatenate", layout=layout)


@concatenate.reference
def _concatenate_reference(*xs: Array, axis: int) -> Array:
    return np.concatenate(xs, axis)


@register_op(
    "split",
    traits=Traits(sizes="computed"),
    samples=(
        Sample(f32(2, 7), sizes=(3, 4), axis=1),
        Sample(f32(6, 2), sizes=(1, 2, 3), axis=0),
        Sample(f32(2, 7), sizes=(3, 3), axis=1, error="T108"),
        Sample(f32(2, 7), sizes=(7,), axis=2, error="T104"),
    ),
)
def split(x: Tensor, *, sizes: tuple[int, ...], axis: int) -> tuple[Tensor, ...]:
    """Slices of the given sizes along `axis`, as a tuple. Source: ONNX Split-18."""
    along = axis_of("split", axis, x.rank)
    total: Dim = sum(sizes)
    if differ(total, x.shape[along]):
        raise GraphTypeError(
            "T108", f"split: sizes {sizes} do not add up to axis {axis} of {x.type}"
        )
    pieces: list[Tensor] = []
    offset: Dim = 0
    for n, size in enumerate(sizes):
        start = te.size(offset)
        pieces.append(
            te.compute(
                (*x.shape[:along], size, *x.shape[along + 1 :]),
                lambda *i, start=start: x[(*i[:along], i[along] + start, *i[along + 1 :])],
                f"split_{n}",
            )
        )
        offset = offset + size
    return tuple(pieces)


@split.reference
def _split_reference(x: Array, *, sizes: tuple[int, ...], axis: int) -> tuple[Array, ...]:
    return tuple(np.split(x, np.cumsum(sizes)[:-1], axis))


@split.dynamic
def _split_dynamic(types: Sequence[Type], attrs: Attrs) -> Type:
    source = tensor_type("split", types[0])
    axis = axis_of("split", attrs.axis, source.rank)
    pieces = []
    for _ in range(held_length("split", types, attrs.sizes)):
        shape = (*source.shape[:axis], unknown_dim(), *source.shape[axis + 1 :])
        pieces.append(TensorType(shape, source.dtype))
    return TupleType(tuple(pieces))


def from_front(bound: Dim, size: Dim, low: Dim, high: Dim) -> Dim:
    """Returns a bound of an axis of `size` elements, counted from the front if it is negative and
    then clamped to `low` and `high`. The result holds for every size, 0 included (-0 counts from
    the front), also where only a call knows the sign of the bound.
    """
    if size + bound == 0:
        place: Dim = 0
    elif dim_max(bound, 0) == bound:
        place = bound
    elif dim_max(-bound, 1) == -bound:
        place = size + bound
    else:
        is_negative = dim_min(dim_max(-bound, 0), 1)
        place = bound + size * is_negative
    return dim_min(dim_max(place, low), high)


def backward_end(bound: Dim, size: Dim) -> Dim:
    """Returns the end of a slice backwards, for `slice`: counted from the end of the axis. Counted
    from the front, the place before the first element is -1, which means the last one.
    """
    place = from_front(bound, size, -1, size - 1)
    if isinstance(place, int):
        return place if place >= 0 else -_FAR
    return -1 * dim_max(size - place, 1)


def slice_bounds(begin: Dim, end: Dim, stride: int, size: Dim) -> tuple[Dim, Dim]:
    """Returns the first index and the number of elements of a slice of an axis.

    Negative bounds count from the end, and all are clamped, as in Python; a slice backwards begins
    at the first element if its begin lies before it. Symbolic bounds that are never at least 0
    count from the end, too, and others from the front. They are assumed to lie inside the axis
    (`from_front` and `backward_end` make them do so); a slice that takes the last element assumes
    that the axis has one.

    Errors: T107 for a stride of 0.
    """
    if stride == 0:
        raise GraphTypeError("T107", "slice: stride is 0")
    low, high = (0, size) if stride > 0 else (-1, size - 1)
    first, last = _clamped(begin, size, 0, high), _clamped(end, size, low, high)
    for bound, place in ((begin, first), (end, last)):
        if not isinstance(bound, int):
            assume_at_least(place, low)
            assume_at_least(high, place)
    if stride > 0:
        if not isinstance(size, int) and isinstance(end, int) and -_FAR < end < 0:
            last = size + end  # also if it is below 0: there are no elements then
        return first, dim_max((last - first + stride - 1) // stride, 0) if last != size or (
            isinstance(first, int) and isinstance(size, int)
        ) else (last - first + stride - 1) // stride
    if stride == -1 and first - last == size:
        return first, size
    count = dim_max((first - last - stride - 1) // -stride, 0)
    if isinstance(begin, int) and begin < -1 and not isinstance(size, int):
        count = dim_min(count, size)  # an empty axis has no first element
    return first, count


def _clamped(bound: Dim, size: Dim, low: int, high: Dim) -> Dim:
    """Returns a bound, counted from the front, clamped to `low` and `high`."""
    if not isinstance(bound, int):
        return size + bound if dim_max(-bound, 1) == -bound else bound
    if isinstance(size, int) and isinstance(high, int):
        return min(max(bound + size if bound < 0 else bound, low), high)
    if abs(bound) >= _FAR:
        return high if bound > 0 else low
    if bound < -1:
        return size - dim_min(-bound, size - low)
    if bound == -1:
        return size - 1
    return dim_min(bound, high) if bound else 0


@register_op(
    "slice",
    traits=Traits(sizes="computed"),
    samples=(
        Sample(f32(5, 7), begin=(1,), end=(4,), axes=(1,)),
        Sample(f32(5, 7), begin=(-3, 0), end=(2**63 - 1, -1), axes=(0, 1)),
        Sample(f32(5, 7), begin=(4, 6), end=(0, -(2**63)), strides=(-2, -1), axes=(0, 1)),
        Sample(f32(5, 7), begin=(3,), end=(2,), axes=(0,)),
        Sample(f32(2, 7), begin=(-3,), end=(-(2**63),), strides=(-2,), axes=(0,)),
        Sample(f32(9), begin=(1,), end=(9,), strides=(3,), axes=(-1,)),
        Sample(f32(5), begin=(0,), end=(2,), strides=(0,), axes=(0,), error="T107"),
        Sample(f32(5), begin=(0,), end=(2,), axes=(1,), error="T104"),
        Sample(f32(5), begin=(0, 1), end=(2,), axes=(0,), error="T107"),
    ),
)
def slice_(
    x: Tensor,
    *,
    begin: tuple[int, ...],
    end: tuple[int, ...],
    strides: tuple[int, ...] = (),
    axes: tuple[int, ...],
) -> Tensor:
    """Every `strides`-th element from `begin` to before `end` along `axes`. Bounds are as in
    Python, except that a slice backwards begins at the first element if `begin` lies before it.

    Source: ONNX Slice-13.
    """
    strides = strides or (1,) * len(axes)
    if not len(begin) == len(end) == len(strides) == len(axes):
        raise GraphTypeError(
            "T107",
            f"slice: begin={begin}, end={end}, strides={strides}, axes={axes} differ in length",
        )
    axes_of("slice", axes, x.rank)
    shape, rule = list(x.shape), dict[int, tuple[Dim, int]]()
    for axis, low, high, stride in zip(axes, begin, end, strides, strict=True):
        n = axis_of("slice", axis, x.rank)
        first, shape[n] = slice_bounds(low, high, stride, x.shape[n])
        rule[n] = first, stride

    def body(*i: Scalar) -> Scalar:
        place = [
            index * rule[n][1] + te.size(rule[n][0]) if n in rule else index
            for n, index in enumerate(i)
        ]
        return x[tuple(place)]

    return te.compute(shape, body, "slice")


@slice_.reference
def _slice_reference(
    x: Array,
    *,
    begin: tuple[int, ...],
    end: tuple[int, ...],
    strides: tuple[int, ...],
    axes: tuple[int, ...],
) -> Array:
    place: list[Any] = [slice(None)] * x.ndim
    for axis, low, high, stride in zip(axes, begin, end, strides or (1,) * len(axes), strict=True):
        size = x.shape[axis]
        if stride < 0:
            low = 0 if low + size < 0 else low
            place[axis] = slice(low, None if high + size < 0 else high, stride)
        else:
            place[axis] = slice(low, high, stride)
    return np.asarray(x[tuple(place)])


@slice_.dynamic
def _slice_dynamic(types: Sequence[Type], attrs: Attrs) -> Type:
    source = tensor_type("slice", types[0])
    if isinstance(attrs.axes, ArgRef):
        return unknown_tensor("slice", source, source.rank)
    shape = list(source.shape)
    for axis in axes_of("slice", attrs.axes, source.rank):
        shape[axis] = unknown_dim()
    return TensorType(tuple(shape), source.dtype)


_PAD_MODES = ("constant", "edge", "reflect", "wrap")


@register_op(
    "pad",
    traits=Traits(sizes="computed"),
    samples=(
        Sample(f32(3, 4), pads=(1, 0, 2, 3)),
        Sample(f32(3, 4), pads=(1, 1, 1, 1), value=2.5),
        Sample(f32(3, 4), pads=(-1, 2, 1, -2)),
        Sample(f32(3, 4), pads=(2, 3, 2, 3), mode="reflect"),
        Sample(f32(3, 4), pads=(4, 1, 5, 1), mode="edge"),
        Sample(f32(3, 4), pads=(4, 1, 5, 1), mode="wrap"),
        Sample(f32(3, 40), pads=(3, 5, 2, 38), mode="wrap"),
        Sample(f32(3, 40), pads=(-1, 9, 2, 39), mode="reflect"),
        Sample(i64(3), pads=(1, 1), value=7.0),
        Sample(f32(0, 2), pads=(2, 1, 1, 0), value=1.5),
        Sample(f32(), pads=()),
        Sample(f32(3, 4), pads=(1, 1), error="T107"),
        Sample(f32(3, 4), pads=(1, 1, 1, 1), mode="mirror", error="T107"),
        Sample(f32(3, 4), pads=(-2, 0, -2, 0), error="T110"),
        Sample(f32(0, 4), pads=(1, 1, 1, 1), mode="edge", error="T110"),
    ),
)
def pad(x: Tensor, *, pads: tuple[int, ...], mode: str = "constant", value: float = 0.0) -> Tensor:
    """`x` padded by `pads` (before each axis, then after each); negative ones crop.

    `mode` is one of constant (`value`), edge, reflect, wrap. Source: ONNX Pad-24.
    """
    if len(pads) != 2 * x.rank or mode not in _PAD_MODES:
        raise GraphTypeError(
            "T107",
            f"pad: {len(pads)} pads in mode {mode!r} for {x.type}",
            hint=f"give {2 * x.rank} pads and one of {', '.join(_PAD_MODES)}",
        )
    before, after = pads[: x.rank], pads[x.rank :]
    shape = [low + n + high for low, n, high in zip(before, x.shape, after, strict=True)]
    if any(isinstance(n, int) and n < 0 for n in shape):
        raise GraphTypeError("T110", f"pad: {pads} crops {x.type} to {text(shape)}")
    empty = [n == 0 and m != 0 for n, m in zip(x.shape, shape, strict=True)]
    known = all(isinstance(n, int) and n for n in shape)
    if mode != "constant" and any(empty) and known:
        raise GraphTypeError("T110", f"pad: {x.type} has no elements to repeat in mode {mode!r}")

    def body(*i: Scalar) -> Scalar:
        place, inside = [], te.as_scalar(True, "bool")
        for index, low, n, high in zip(i, before, x.shape, after, strict=True):
            p = index - te.size(low)
            if low == 0 and high == 0:
                place.append(p)
            elif mode == "constant":
                inside = inside & (p >= 0) & (p < te.size(n))
                place.append(p)
            else:
                place.append(_folded(p, n, mode, low, high))
        fill = value if x.dtype[0] == "f" or x.dtype == "bf16" else int(value)
        return te.select(inside, x[tuple(place)], te.as_scalar(fill, x.dtype))

    return te.compute(shape, body, "pad", layout=x.layout)


def _folded(p: Scalar, size: Dim, mode: str, low: Dim, high: Dim) -> Scalar:
    """Returns the position inside an axis that replaces a position outside.

    Divisions by the size are avoided if no position is folded twice. At free sizes, this is
    assumed: other sizes are rare.
    """
    n, zero = te.size(size), te.as_scalar(0)
    if mode == "edge":
        return te.minimum(te.maximum(p, 0), n - 1)
    once, first = False, 1 if mode == "reflect" else 0
    if isinstance(low, int) and isinstance(high, int):
        most = max(low, high)
        once = isinstance(size, SymDim) or (isinstance(size, int) and size - first >= most)
        if once:
            assume_at_least(size - first, most)
    if mode == "wrap" and once:
        before, beyond = te.maximum(zero - p, 0), te.maximum(p - (n - 1), 0)
        moved = p + (te.minimum(before, 1) - te.minimum(beyond, 1)) * n
        return te.minimum(te.maximum(moved, 0), n - 1)
    if mode == "wrap":
        return p % n
    if once:
        mirrored = te.maximum(p, zero - p) - te.maximum(p - (n - 1), 0) * 2
        return te.minimum(te.maximum(mirrored, 0), n - 1)
    period = te.maximum(n * 2 - 2, 1)
    phase = p % period
    return te.minimum(phase, period - phase) % n


@pad.reference
def _pad_reference(x: Array, *, pads: tuple[int, ...], mode: str, value: float) -> Array:
    before, after = pads[: x.ndim], pads[x.ndim :]
    if not x.ndim:
        return x
    widths = [(max(a, 0), max(b, 0)) for a, b in zip(before, after, strict=True)]
    fill: Any = np.array("", TEXT) if x.dtype == TEXT else value
    options: dict[str, Any] = {"constant_values": fill} if mode == "constant" else {}
    wide = np.pad(x, widths, mode=mode, **options)  # type: ignore[call-overload]
    crop = tuple(
        slice(max(-a, 0), n - max(-b, 0)) for a, b, n in zip(before, after, wide.shape, strict=True)
    )
    return np.ascontiguousarray(wide[crop])


@pad.dynamic
def _pad_dynamic(types: Sequence[Type], attrs: Attrs) -> Type:
    source = tensor_type("pad", types[0])
    if isinstance(attrs.pads, ArgRef):
        return unknown_tensor("pad", source, source.rank)
    low, high = attrs.pads[: source.rank], attrs.pads[source.rank :]
    shape = tuple(a + n + b for a, n, b in zip(low, source.shape, high, strict=True))
    return TensorType(shape, source.dtype)


@register_op(
    "center_crop_pad",
    samples=(
        Sample(f32(5, 4, 3), shape=(3, 7, 3)),
        Sample(f32(5, 4, 3), shape=(6, 1), axes=(0, -1)),
        Sample(i64(4), shape=(0,)),
        Sample(f32(0, 4), shape=(3, 3)),
        Sample(f32(5, 4), shape=(3,), error="T107"),
        Sample(f32(5, 4), shape=(3, -1), error="T107"),
        Sample(f32(5, 4), shape=(3, 3), axes=(0, 2), error="T104"),
    ),
)
def center_crop_pad(x: Tensor, *, shape: tuple[int, ...], axes: tuple[int, ...] = ()) -> Tensor:
    """The center of `x` along `axes` (none: all) in the sizes of `shape`, zero-padded where these
    are larger. Of odd differences, the larger half is at the end.

    Errors: T104, T107. Source: ONNX CenterCropPad-18.
    """
    name = "center_crop_pad"
    if len(shape) != (len(axes) or x.rank) or any(isinstance(n, int) and n < 0 for n in shape):
        raise GraphTypeError("T107", f"{name}: {x.type} to {text(shape)} along axes {axes}")
    places = [axis_of(name, a, x.rank) for a in axes] or list(range(x.rank))
    if len(set(places)) != len(places):
        raise GraphTypeError("T104", f"{name}: axes {axes} repeat an axis")
    sizes = list(x.shape)
    for n, size in zip(places, shape, strict=True):
        sizes[n] = size

    def body(*i: Scalar) -> Scalar:
        at, inside = list(i), te.as_scalar(True, "bool")
        for n in places:
            old, new = x.shape[n], sizes[n]
            if old == new:
                continue
            # Elements cropped less elements added before the axis.
            crop = te.maximum(te.size(old) - te.size(new), 0) // 2
            add = te.maximum(te.size(new) - te.size(old), 0) // 2
            at[n] = i[n] + crop - add
            inside = inside & (at[n] >= 0) & (at[n] < te.size(old))
        return te.select(inside, x[tuple(at)], te.as_scalar(0, x.dtype))

    return te.compute(sizes, body, name)


@center_crop_pad.dynamic
def _center_crop_pad_dynamic(types: Sequence[Type], attrs: Attrs) -> Type:
    source = tensor_type("center_crop_pad", types[0])
    return unknown_tensor("center_crop_pad", source, source.rank)
