"""Pooling over windows, and over all spatial axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from clew import te
from clew.ir.dims import Dim, dim_max, dim_min, product
from clew.ir.expr import Attrs
from clew.ir.types import TensorType, from_numpy
from clew.ops.common import accumulator, f16, f32, i8, need_float, need_number, widen
from clew.ops.convolution.stages import check_pairs, padded, window_size
from clew.ops.convolution.windows import combined
from clew.ops.math.reduce import reduce_over
from clew.ops.movement.layouts import Layout, logical_sizes, parse_layout
from clew.ops.registry import Sample, register_op
from clew.ops.traits import Traits
from clew.support.dataclass import dataclass
from clew.support.errors import GraphTypeError
from clew.te import Scalar, Tensor, roles
from clew.te.expr import Index, unary
from clew.te.interpret import identity_of

Array: TypeAlias = "np.ndarray[Any, Any]"

_WINDOWS = (
    Sample(f32(1, 3, 8, 8), kernel=(2, 2), strides=(2, 2)),
    Sample(f32(2, 3, 9, 7), kernel=(3, 2), strides=(2, 1), padding=(1, 0, 1, 1)),
    Sample(f32(1, 2, 7, 7), kernel=(3, 3), strides=(2, 2), ceil_mode=True),
    Sample(f32(1, 2, 8, 8), kernel=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1), ceil_mode=True),
    Sample(f32(1, 2, 8, 8), kernel=(2, 2), dilation=(2, 3)),
    Sample(f32(1, 2, 5, 5, 4), kernel=(3, 3), padding=(1, 1, 1, 1), layout="NCHW4c"),
    Sample(f32(1, 2, 2, 2), kernel=(3, 3), strides=(2, 2), ceil_mode=True),
    Sample(f32(1, 2, 2, 2), kernel=(3, 3), error="T110"),
    Sample(f32(1, 2, 2, 2), kernel=(3, 3), ceil_mode=True, error="T110"),
    Sample(f32(1, 2, 5), kernel=(3, 3), error="T109"),
    Sample(f32(1, 2, 5, 5), kernel=(3,), error="T107"),
    Sample(f32(1, 2, 5, 5), kernel=(3, 3), strides=(0, 1), error="T107"),
)


def _spatial(name: str, x: Tensor, layout: str) -> tuple[str, list[int], dict[str, Dim]]:
    """Returns the letters and positions of the spatial axes, and all logical sizes.

    Errors: T109.
    """
    parsed = parse_layout(layout)
    sizes = logical_sizes(parsed, x.shape)
    letters = _letters(parsed)
    if not letters or any(parsed.factor(a) != 1 for a in letters):
        raise GraphTypeError("T109", f"{name}: layout {layout} has no plain spatial axes")
    return "".join(letters), [parsed.axes.index(a) for a in letters], sizes


def _letters(layout: Layout) -> list[str]:
    return [a for a in layout.plain if a not in "NC"]


def pooled_size(
    name: str, size: Dim, kernel: int, stride: int, low: Dim, high: Dim, dilation: int, ceil: bool
) -> Dim:
    """Returns the number of windows that fit an axis. With `ceil`, the last window may extend
    beyond the axis (even if it is the only one), but must start inside.

    Errors: T107, T110.
    """
    if not ceil:
        return window_size(name, size, kernel, stride, low, high, dilation)
    # The axis counts as longer by the elements that a window extends beyond it.
    window_size(name, size, kernel, stride, low, high + stride - 1, dilation)
    room = size + low + high - (kernel - 1) * dilation - 1
    count = dim_min((room + stride - 1) // stride + 1, (size + low - 1) // stride + 1)
    if isinstance(count, int) and count < 1:
        raise GraphTypeError("T110", f"{name}: no window of {kernel} starts in {size} elements")
    return count


@dataclass(frozen=True)
class _Window:
    """The attributes of a pooling operator that define its windows."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    ceil_mode: bool
    layout: str

    def axes(self) -> list[int]:
        """Returns the positions of the spatial axes."""
        parsed = parse_layout(self.layout)
        return [n for n, letter in enumerate(parsed.axes) if letter in _letters(parsed)]

    def combined(self, name: str, x: Array, combine: np.ufunc, start: Any) -> Array:
        """Returns the reduction of each window of `x` by `combine`, axis by axis, in the dtype of
        `start`. Elements outside are ignored.
        """
        axes = self.axes()
        for n, axis in enumerate(axes):
            low, high = self.padding[n], self.padding[n + len(axes)]
            kernel, stride, dilation = self.kernel[n], self.strides[n], self.dilation[n]
            count = pooled_size(
                name, x.shape[axis], kernel, stride, low, high, dilation, self.ceil_mode
            )
            assert isinstance(count, int)
            x = combined(x, axis, count, self.taps(n, low), stride, combine, start)
        return x

    def taps(self, n: int, before: int) -> range:
        """Returns the positions of the taps of an axis's first window, which starts at
        `-before`.
        """
        reach = self.kernel[n] * self.dilation[n]
        return range(-before, reach - before, self.dilation[n])

    def place(
        self, i: Sequence[Scalar], axes: Sequence[int], taps: Sequence[Scalar]
    ) -> tuple[Scalar, ...]:
        """Returns the position of a window's tap in the padded input."""
        place = list(i)
        for n, axis in enumerate(axes):
            place[axis] = i[axis] * self.strides[n] + taps[n] * self.dilation[n]
        return tuple(place)


def _windows(
    name: str, x: Tensor, window: _Window, fill: float
) -> tuple[Tensor, list[Dim], list[int], list[Index]]:
    """Returns the padded input, the result's shape, the spatial axes' positions and the taps."""
    _, axes, _ = _spatial(name, x, window.layout)
    n_axes = len(axes)
    check_pairs(name, window.strides, window.padding, window.dilation, n_axes)
    if len(window.kernel) != n_axes or any(k < 1 for k in window.kernel):
        raise GraphTypeError("T107", f"{name}: kernel {window.kernel} for {n_axes} spatial axes")
    shape = list(x.shape)
    before: list[Dim] = [0] * x.rank
    after: list[Dim] = [0] * x.rank
    for n, axis in enumerate(axes):
        kernel, stride, dilation = window.kernel[n], window.strides[n], window.dilation[n]
        low, high = window.padding[n], window.padding[n + n_axes]
        size = x.shape[axis]
        shape[axis] = pooled_size(name, size, kernel, stride, low, high, dilation, window.ceil_mode)
        before[axis], after[axis] = low, high
        if window.ceil_mode:
            reach = (shape[axis] - 1) * stride + (kernel - 1) * dilation + 1
            after[axis] = dim_max(reach - size - low, high)
    letters = [f"k{'dhw'[3 - n_axes + n]}" for n in range(n_axes)] if n_axes <= 3 else None
    taps = [
        te.reduce_axis(k, letters[n] if letters else f"k{n}", roles.TAP)
        for n, k in enumerate(window.kernel)
    ]
    return padded(x, before, after, fill, f"{name.rpartition('.')[2]}_pad"), shape, axes, taps


def _wide(x: Tensor, name: str) -> Tensor:
    """Returns a tensor in the accumulator dtype, because each tap is compared with or added to the
    window's result so far.
    """
    if accumulator(x.dtype) == x.dtype:
        return x
    return te.compute(x.shape, lambda *i: widen(x[i]), f"{name}_wide", layout=x.layout)


def _pool_layout(
    attrs: Attrs, types: Sequence[TensorType], layout: str
) -> tuple[tuple[str, ...], Attrs, str] | None:
    block = parse_layout(layout).factor("C")
    channels = types[0].shape[1] if types[0].rank > 1 else None
    if attrs.layout != parse_layout(layout).plain or not isinstance(channels, int):
        return None
    return ((layout,), attrs.with_(layout=layout), layout) if channels % block == 0 else None


@register_op(
    "nn.max_pool2d",
    traits=Traits(keeps_finite=True, selects=True, pools=True),
    samples=(*_WINDOWS, Sample(i8(1, 2, 5, 5), kernel=(3, 3), padding=(1, 1, 1, 1))),
)
def max_pool2d(
    x: Tensor,
    *,
    kernel: tuple[int, ...],
    strides: tuple[int, ...] = (1, 1),
    padding: tuple[int, ...] = (0, 0, 0, 0),
    dilation: tuple[int, ...] = (1, 1),
    ceil_mode: bool = False,
    layout: str = "NCHW",
) -> Tensor:
    """Maximum of each window; padding is never selected. `padding` is (top, left, bottom, right).

    Errors: T107, T109, T110. Source: ONNX MaxPool-22.
    """
    need_number("nn.max_pool2d", x)
    window = _Window(kernel, strides, padding, dilation, ceil_mode, layout)
    wide = _wide(x, "max_pool2d")
    source, shape, axes, taps = _windows(
        "nn.max_pool2d", wide, window, identity_of("max", wide.dtype)
    )
    name = "max_pool2d" if wide is x else "max_pool2d_top"
    top = te.compute(
        shape,
        lambda *i: te.max(source[window.place(i, axes, taps)], taps),
        name,
        layout=x.layout,
        roles=roles.of_layout(layout),
    )
    if wide is x:
        return top
    return te.compute(shape, lambda *i: te.cast(x.dtype, top[i]), "max_pool2d", layout=x.layout)


@max_pool2d.reference
def _max_pool2d_reference(x: Array, **attrs: Any) -> Array:
    start = np.asarray(identity_of("max", from_numpy(x.dtype)), x.dtype)[()]
    return _Window(**attrs).combined("nn.max_pool2d", x, np.maximum, start)


max_pool2d.layout(_pool_layout)


@register_op(
    "nn.max_pool_places",
    samples=(
        Sample(f32(2, 3, 8, 8), kernel=(2, 2), strides=(2, 2)),
        Sample(f32(2, 3, 9, 7), kernel=(3, 2), strides=(2, 1), padding=(1, 0, 1, 1)),
        Sample(i8(1, 2, 7, 7), kernel=(3, 3), strides=(2, 2), ceil_mode=True, column_major=True,
               low=0, high=3),
        Sample(f32(1, 2, 8, 8), kernel=(2, 2), dilation=(2, 3)),
        Sample(f32(2, 2, 9), kernel=(3,), strides=(2,), padding=(1, 1), dilation=(1,)),
        Sample(f32(1, 2, 4, 5, 3), kernel=(2, 2, 2), strides=(1, 1, 1), dilation=(1, 1, 1),
               padding=(0,) * 6, column_major=True),
        Sample(f32(1, 2, 2, 2), kernel=(3, 3), error="T110"),
        Sample(f32(1, 2, 5, 5), kernel=(3,), error="T107"),
        Sample(f32(5), kernel=(3,), error="T102"),
    ),
)  # fmt: skip
def max_pool_places(
    x: Tensor,
    *,
    kernel: tuple[int, ...],
    strides: tuple[int, ...] = (1, 1),
    padding: tuple[int, ...] = (0, 0, 0, 0),
    dilation: tuple[int, ...] = (1, 1),
    ceil_mode: bool = False,
    column_major: bool = False,
) -> Tensor:
    """Position of the largest element of each window as an index into all of `x`, `i64`; of equal
    elements, the first in row-major order. With `column_major`, the first spatial axis is
    innermost.

    Errors: T102, T105, T107, T110. Source: ONNX MaxPool-22, the output Indices.
    """
    name = "nn.max_pool_places"
    need_number(name, x)
    if x.rank < 3:
        raise GraphTypeError("T102", f"{name}: input is {x.type}, expected spatial axes")
    spatial = x.rank - 2
    layout = "NC" + ("DHW"[3 - spatial :] if spatial <= 3 else "ABDEFGHIJKLM"[:spatial])
    window = _Window(kernel, strides, padding, dilation, ceil_mode, layout)
    wide = _wide(x, "max_pool_places")
    source, shape, axes, taps = _windows(name, wide, window, identity_of("max", wide.dtype))
    top = te.compute(
        shape,
        lambda *i: te.max(source[window.place(i, axes, taps)], taps),
        "max_pool_top",
        roles=roles.of_layout(layout),
    )
    sizes = x.shape[2:]
    nowhere = te.size(product(sizes))

    def first(*i: Scalar) -> Scalar:
        place = window.place(i, axes, taps)
        at = [place[axis] - te.size(padding[n]) for n, axis in enumerate(axes)]
        inside, flat = te.as_scalar(True, "bool"), te.as_scalar(0)
        for index, size in zip(at, sizes, strict=True):
            inside = inside & (index >= 0) & (index < te.size(size))
            flat = flat * te.size(size) + index
        best = inside & source[place].equal(top[i])
        return te.min(te.select(best, flat, nowhere), taps)

    found = te.compute(shape, first, "max_pool_first")

    def body(*i: Scalar) -> Scalar:
        # A window of NaNs alone has no largest element.
        flat = te.minimum(found[i], te.maximum(nowhere - 1, 0))
        if column_major:
            rest, flat, weight = flat, te.as_scalar(0), nowhere
            for size in reversed(sizes):
                weight = weight // te.maximum(te.size(size), 1)
                flat = flat + rest % te.maximum(te.size(size), 1) * weight
                rest = rest // te.maximum(te.size(size), 1)
        return (i[0] * te.size(x.shape[1]) + i[1]) * nowhere + flat

    return te.compute(shape, body, "max_pool_places")


@register_op(
    "nn.avg_pool2d",
    traits=Traits(keeps_finite=True, well_conditioned=True, averages=True, pools=True),
    samples=(
        *_WINDOWS,
        Sample(f32(1, 2, 5, 5), kernel=(3, 3), padding=(1, 1, 1, 1), count_include_pad=True),
        Sample(f32(1, 2, 8, 8), kernel=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1),
               ceil_mode=True, count_include_pad=True),
    ),
)  # fmt: skip
def avg_pool2d(
    x: Tensor,
    *,
    kernel: tuple[int, ...],
    strides: tuple[int, ...] = (1, 1),
    padding: tuple[int, ...] = (0, 0, 0, 0),
    dilation: tuple[int, ...] = (1, 1),
    ceil_mode: bool = False,
    count_include_pad: bool = False,
    layout: str = "NCHW",
) -> Tensor:
    """Mean of the elements of each window inside `x`; with `count_include_pad`, padding counts as
    well. Elements that `ceil_mode` adds beyond the padding never count.

    Errors: T105, T107, T109, T110. Source: ONNX AveragePool-22.
    """
    need_float("nn.avg_pool2d", x)
    window = _Window(kernel, strides, padding, dilation, ceil_mode, layout)
    source, shape, axes, taps = _windows("nn.avg_pool2d", _wide(x, "avg_pool2d"), window, 0.0)
    total = te.compute(
        shape,
        lambda *i: te.sum(source[window.place(i, axes, taps)], taps),
        "avg_pool2d_sum",
        roles=roles.of_layout(layout),
    )
    whole = not ceil_mode and (count_include_pad or not any(p != 0 for p in padding))

    def count(i: Sequence[Scalar]) -> Scalar:
        if whole:
            return te.size(product(kernel))
        points = te.as_scalar(1)
        for n, axis in enumerate(axes):
            low = padding[n] if count_include_pad else 0
            high = padding[n + len(axes)] if count_include_pad else 0
            start = i[axis] * strides[n] - te.size(padding[n])
            points = points * _inside(start, kernel[n], dilation[n], -low, x.shape[axis] + high)
        return points

    return te.compute(
        shape,
        lambda *i: te.cast(x.dtype, total[i] / te.cast(total.dtype, count(i))),
        "avg_pool2d",
        layout=x.layout,
    )


@register_op(
    "nn.lp_pool2d",
    samples=(
        *_WINDOWS,
        Sample(f32(1, 2, 5, 5), kernel=(3, 3), padding=(1, 1, 1, 1), p=1),
        Sample(f32(2, 2, 7), kernel=(3,), strides=(2,), padding=(0, 0), dilation=(2,), p=3,
               layout="NCW"),
        Sample(f16(1, 2, 5, 5), kernel=(2, 2)),
        Sample(i8(1, 2, 5, 5), kernel=(2, 2), error="T105"),
        Sample(f32(1, 2, 5, 5), kernel=(2, 2), p=0, error="T107"),
    ),
)  # fmt: skip
def lp_pool2d(
    x: Tensor,
    *,
    kernel: tuple[int, ...],
    strides: tuple[int, ...] = (1, 1),
    padding: tuple[int, ...] = (0, 0, 0, 0),
    dilation: tuple[int, ...] = (1, 1),
    ceil_mode: bool = False,
    p: int = 2,
    layout: str = "NCHW",
) -> Tensor:
    """Norm of each window: the `p`-th root of the sum of its elements' absolute values to the power
    of `p`. Padding is 0.

    Errors: T105, T107, T109, T110. Source: ONNX LpPool-22.
    """
    need_float("nn.lp_pool2d", x)
    if p < 1:
        raise GraphTypeError("T107", f"nn.lp_pool2d: p={p} must be at least 1")
    window = _Window(kernel, strides, padding, dilation, ceil_mode, layout)
    source, shape, axes, taps = _windows("nn.lp_pool2d", _wide(x, "lp_pool2d"), window, 0.0)

    def powered(value: Scalar) -> Scalar:
        if p == 2:
            return value * value
        size = unary("abs", value)
        return size if p == 1 else te.power(size, float(p))

    total = te.compute(
        shape,
        lambda *i: te.sum(powered(source[window.place(i, axes, taps)]), taps),
        "lp_pool2d_sum",
        roles=roles.of_layout(layout),
    )

    def root(*i: Scalar) -> Scalar:
        value = total[i]
        if p == 2:
            value = te.call("sqrt", value)
        elif p > 2:
            value = te.power(value, 1.0 / p)
        return te.cast(x.dtype, value)

    return te.compute(shape, root, "lp_pool2d", layout=x.layout)


@lp_pool2d.reference
def _lp_pool2d_reference(x: Array, *, p: int, **attrs: Any) -> Array:
    powers = np.abs(x.astype(np.float64)) ** p
    total = _Window(**attrs).combined("nn.lp_pool2d", powers, np.add, np.float64(0))
    return np.asarray(total ** (1 / p)).astype(x.dtype)


lp_pool2d.layout(_pool_layout)


def _inside(start: Scalar, kernel: int, dilation: int, low: Dim, high: Dim) -> Scalar:
    """Returns the number of taps `start + n * dilation` in `[low, high)`."""
    first = te.maximum((te.size(low) - start + (dilation - 1)) // dilation, 0)
    last = te.minimum((te.size(high) - start + (dilation - 1)) // dilation, kernel)
    return te.maximum(last - first, 1)


@avg_pool2d.reference
def _avg_pool2d_reference(x: Array, *, count_include_pad: bool, **attrs: Any) -> Array:
    window = _Window(**attrs)
    total = window.combined("nn.avg_pool2d", x, np.add, np.float64(0))
    axes = window.axes()
    for n, axis in enumerate(axes):
        low, high = window.padding[n], window.padding[n + len(axes)]
        outer = (low, high) if count_include_pad else (0, 0)
        counted = np.ones(x.shape[axis] + sum(outer))
        count, taps = total.shape[axis], window.taps(n, low - outer[0])
        held = combined(counted, 0, count, taps, window.strides[n], np.add, 0.0)
        total /= np.maximum(held, 1).reshape([-1] + [1] * (x.ndim - axis - 1))
    return total.astype(x.dtype)


avg_pool2d.layout(_pool_layout)

_GLOBAL = (
    Sample(f32(2, 3, 5, 7)),
    Sample(f32(2, 3, 5, 7, 4), layout="NCHW4c"),
    Sample(f32(2, 3), error="T109"),
)


@register_op(
    "nn.global_avg_pool2d",
    traits=Traits(keeps_finite=True, well_conditioned=True, averages=True),
    samples=_GLOBAL,
)
def global_avg_pool2d(x: Tensor, *, layout: str = "NCHW") -> Tensor:
    """Mean over the spatial axes, kept with size 1. Source: ONNX GlobalAveragePool-22."""
    need_float("nn.global_avg_pool2d", x)
    _, axes, _ = _spatial("nn.global_avg_pool2d", x, layout)
    total = reduce_over(
        x, axes, True, lambda v, over, _: te.sum(widen(v), over), "global_avg_pool2d_sum"
    )
    count = te.cast(total.dtype, te.size(product(tuple(x.shape[n] for n in axes))))
    return te.compute(
        total.shape,
        lambda *i: te.cast(x.dtype, total[i] / count),
        "global_avg_pool2d",
        layout=x.layout,
    )


global_avg_pool2d.layout(_pool_layout)


@register_op(
    "nn.global_max_pool2d", traits=Traits(keeps_finite=True, selects=True), samples=_GLOBAL
)
def global_max_pool2d(x: Tensor, *, layout: str = "NCHW") -> Tensor:
    """Maximum over the spatial axes, kept with size 1. Source: ONNX GlobalMaxPool-22."""
    need_number("nn.global_max_pool2d", x)
    _, axes, _ = _spatial("nn.global_max_pool2d", x, layout)
    best = reduce_over(x, axes, True, lambda v, over, _: te.max(v, over), "global_max_pool2d")
    best.layout = x.layout
    return best


global_max_pool2d.layout(_pool_layout)
