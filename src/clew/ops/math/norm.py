"""Normalization and softmax."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from clew import te
from clew.ir.dims import Dim, product
from clew.ir.expr import Attrs, Constant, Expr
from clew.ir.types import NARROW_FLOATS, TensorType, to_numpy
from clew.ops.common import (
    axes_of,
    axis_of,
    broadcast_place,
    broadcast_shapes,
    differ,
    divides,
    f16,
    f32,
    f64,
    i32,
    need_float,
    widen,
)
from clew.ops.math.elementwise import add, multiply, subtract
from clew.ops.math.reduce import mean_stages, reduce_over, scaled
from clew.ops.math.unary import rsqrt
from clew.ops.movement.layouts import logical_sizes, parse_layout
from clew.ops.movement.transform import reshape
from clew.ops.registry import Sample, get_op, register_op
from clew.ops.traits import Traits
from clew.support.errors import GraphTypeError
from clew.te import Scalar, Tensor, roles


def _kept(place: Sequence[Scalar], axes: Sequence[int]) -> tuple[Any, ...]:
    """Returns a position in a tensor that was reduced over `axes` and keeps them with size 1."""
    return tuple(te.as_scalar(0) if n in axes else p for n, p in enumerate(place))


_SOFTMAX = (
    Sample(f32(3, 5), axis=-1),
    Sample(f32(2, 3, 17), axis=1),
    Sample(f32(7), axis=0),
    Sample(f16(3, 33)),
    Sample(f64(2, 3)),
    Sample(np.array([[1000.0, 999.0, -1000.0]], "f4")),
    Sample(f32(3, 5), axis=2, error="T104"),
    Sample(i32(3, 5), error="T105"),
)


def _softmax_stages(name: str, x: Tensor, axis: int) -> tuple[int, Callable[..., Scalar]]:
    """Returns the axis, and a function for an element less its row's maximum, which is a stage."""
    need_float(f"nn.{name}", x)
    along = axis_of(f"nn.{name}", axis, x.rank)
    top = reduce_over(x, [along], True, lambda v, over, _: te.max(widen(v), over), f"{name}_max")
    return along, lambda *i: widen(x[i]) - top[_kept(i, [along])]


@register_op("nn.softmax", samples=_SOFTMAX)
def softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    """`exp(x) / sum(exp(x))` along `axis`: maximum, exponential, sum, reciprocal, product.

    Source: ONNX Softmax-13.
    """
    along, shifted = _softmax_stages("softmax", x, axis)
    power = te.compute(x.shape, lambda *i: te.call("exp", shifted(*i)), "softmax_exp")
    total = reduce_over(power, [along], True, lambda v, over, _: te.sum(v, over), "softmax_sum")
    inverse = te.compute(total.shape, lambda *i: 1.0 / total[i], "softmax_inverse")
    return te.compute(
        x.shape, lambda *i: te.cast(x.dtype, power[i] * inverse[_kept(i, [along])]), "softmax"
    )


@register_op("nn.log_softmax", samples=_SOFTMAX)
def log_softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    """Logarithm of the softmax along `axis`. Source: ONNX LogSoftmax-13."""
    along, shifted = _softmax_stages("log_softmax", x, axis)
    power = te.compute(x.shape, lambda *i: te.call("exp", shifted(*i)), "log_softmax_exp")
    total = reduce_over(power, [along], True, lambda v, over, _: te.sum(v, over), "log_softmax_sum")
    log = te.compute(total.shape, lambda *i: te.call("log", total[i]), "log_softmax_log")
    return te.compute(
        x.shape, lambda *i: te.cast(x.dtype, shifted(*i) - log[_kept(i, [along])]), "log_softmax"
    )


def standardized(
    name: str, x: Tensor, axes: Sequence[int], epsilon: float
) -> Callable[..., Scalar]:
    """Returns a function for an element less its mean, divided by its standard deviation, from
    stages for mean and variance.
    """
    mean = mean_stages(f"{name}_mean", x, axes, True)
    squares = reduce_over(
        x,
        axes,
        True,
        lambda v, over, place: te.sum(_square(widen(v) - mean[_kept(place, axes)]), over),
        f"{name}_squares",
    )
    count = te.cast(squares.dtype, te.size(product(tuple(x.shape[n] for n in axes))))
    scale = scaled(squares, lambda v: te.call("rsqrt", v / count + epsilon), f"{name}_rsqrt")
    return lambda *i: (widen(x[i]) - mean[_kept(i, axes)]) * scale[_kept(i, axes)]


def _square(value: Scalar) -> Scalar:
    return value * value


def _affine(
    name: str, x: Tensor, gamma: Tensor, beta: Tensor | None, value: Callable[..., Scalar]
) -> Tensor:
    """Returns `value * gamma + beta`, both of which broadcast to `x`.

    Errors: T100, T101.
    """
    for parameter in (gamma, beta):
        if parameter is None:
            continue
        if parameter.dtype != x.dtype:
            raise GraphTypeError("T101", f"{name}: input is {x.type}, a parameter {parameter.type}")
        shape = broadcast_shapes(name, x.shape, parameter.shape)
        if len(shape) != x.rank or any(map(differ, shape, x.shape)):
            raise GraphTypeError(
                "T100", f"{name}: {parameter.type} does not broadcast to the input {x.type}"
            )

    def body(*i: Scalar) -> Scalar:
        result = value(*i) * widen(gamma[broadcast_place(gamma.shape, x.shape, i)])
        if beta is not None:
            result = result + widen(beta[broadcast_place(beta.shape, x.shape, i)])
        return te.cast(x.dtype, result)

    return te.compute(x.shape, body, name.rpartition(".")[2])


@register_op(
    "nn.layer_norm",
    samples=(
        Sample(f32(2, 3, 8), f32(8), f32(8)),
        Sample(f32(2, 3, 8), f32(3, 8), axis=1),
        Sample(f16(2, 33), f16(33), f16(33)),
        Sample(f32(2, 8), f32(7), error="T100"),
        Sample(f32(2, 8), f64(8), error="T101"),
        Sample(f32(2, 8), f32(8), axis=2, error="T104"),
        Sample(i32(2, 8), i32(8), error="T105"),
    ),
)
def layer_norm(
    x: Tensor, gamma: Tensor, beta: Tensor | None = None, *, axis: int = -1, epsilon: float = 1e-5
) -> Tensor:
    """`x` standardized over the axes from `axis` on, times `gamma`, plus `beta`.

    Errors: T100, T101, T104, T105. Source: ONNX LayerNormalization-17.
    """
    need_float("nn.layer_norm", x)
    axes = range(axis_of("nn.layer_norm", axis, x.rank), x.rank)
    value = standardized("layer_norm", x, axes, epsilon)
    return _affine("nn.layer_norm", x, gamma, beta, value)


@register_op(
    "nn.rms_norm",
    samples=(
        Sample(f32(2, 3, 8), f32(8)),
        Sample(f32(2, 3, 8), f32(3, 8), axis=1, epsilon=1e-6),
        Sample(f32(2, 8), f32(7), error="T100"),
        Sample(f32(2, 8), f32(8), axis=2, error="T104"),
    ),
)
def rms_norm(x: Tensor, gamma: Tensor, *, axis: int = -1, epsilon: float = 1e-5) -> Tensor:
    """`x` divided by its root mean square over the axes from `axis` on, times `gamma`.

    Errors: T100, T101, T104, T105. Source: ONNX RMSNormalization-23.
    """
    need_float("nn.rms_norm", x)
    axes = range(axis_of("nn.rms_norm", axis, x.rank), x.rank)
    squares = reduce_over(
        x, axes, True, lambda v, over, _: te.sum(_square(widen(v)), over), "rms_norm_squares"
    )
    count = te.cast(squares.dtype, te.size(product(tuple(x.shape[n] for n in axes))))
    scale = scaled(squares, lambda v: te.call("rsqrt", v / count + epsilon), "rms_norm_rsqrt")
    return _affine("nn.rms_norm", x, gamma, None, lambda *i: widen(x[i]) * scale[_kept(i, axes)])


def _channels(name: str, x: Tensor, *parameters: Tensor, channels: Dim | None = None) -> None:
    """Checks that parameters are vectors with one element per channel of `x`; its channels are on
    axis 1 unless their number is given.

    Errors: T101, T102, T103.
    """
    need_float(name, x)
    if x.rank < 2:
        raise GraphTypeError("T102", f"{name}: input is {x.type}, expected channels in axis 1")
    channels = x.shape[1] if channels is None else channels
    for p in parameters:
        if p.dtype != x.dtype:
            raise GraphTypeError("T101", f"{name}: input is {x.type}, a parameter {p.type}")
        if p.rank != 1 or differ(p.shape[0], channels):
            raise GraphTypeError(
                "T103", f"{name}: input has {channels} channels, a parameter is {p.type}"
            )


_PER_CHANNEL = (
    Sample(f32(2, 6, 5, 4), f32(6), f32(6)),
    Sample(f32(2, 6, 5), f32(6), f32(6)),
    Sample(f32(2, 6, 5), f32(5), f32(6), error="T103"),
    Sample(f32(6), f32(6), f32(6), error="T102"),
    Sample(f32(2, 6, 5), f64(6), f64(6), error="T101"),
)


@register_op(
    "nn.batch_norm",
    simplify_inference=True,
    traits=Traits(per_channel=True),
    samples=(
        Sample(f32(2, 3, 5, 4), f32(3), f32(3), f32(3), f32(3), low=0.1),
        Sample(f32(2, 3), f32(3), f32(3), f32(3), f32(3), low=0.1, epsilon=1e-3),
        Sample(f32(2, 3, 5), f32(4), f32(3), f32(3), f32(3), error="T103"),
        Sample(f32(3), f32(3), f32(3), f32(3), f32(3), error="T102"),
    ),
)
def batch_norm(
    x: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, var: Tensor, *, epsilon: float = 1e-5
) -> Tensor:
    """`(x - mean) / sqrt(var + epsilon) * gamma + beta` for each channel (axis 1).

    Errors: T101, T102, T103, T105. Source: ONNX BatchNormalization-15, inference.
    """
    _channels("nn.batch_norm", x, gamma, beta, mean, var)

    def body(*i: Scalar) -> Scalar:
        c = i[1]
        scale = widen(gamma[c]) * te.call("rsqrt", widen(var[c]) + epsilon)
        return te.cast(x.dtype, (widen(x[i]) - widen(mean[c])) * scale + widen(beta[c]))

    return te.compute(x.shape, body, "batch_norm")


@batch_norm.decompose
def _batch_norm_decompose(
    x: Expr, gamma: Expr, beta: Expr, mean: Expr, var: Expr, *, epsilon: float
) -> Expr:
    dtype, rank = x.tensor.dtype, x.tensor.rank
    if dtype in NARROW_FLOATS:
        # A large mean cancels: a rounded shift would not be the mean's.
        wide = [get_op("cast")(value, dtype="f32") for value in (x, gamma, beta, mean, var)]
        result = _batch_norm_decompose(*wide, epsilon=epsilon)
        assert result is not None
        return get_op("cast")(result, dtype=dtype)
    epsilon_value = Constant(np.asarray(epsilon, to_numpy(dtype)))
    scale = multiply(gamma, rsqrt(add(var, epsilon_value)))
    shift = subtract(beta, multiply(mean, scale))
    shape = (*gamma.tensor.shape, *(1,) * (rank - 2))
    if rank > 2:
        scale, shift = reshape(scale, shape=shape), reshape(shift, shape=shape)
    return add(multiply(x, scale), shift)


@register_op(
    "nn.instance_norm",
    traits=Traits(per_channel=True),
    samples=(
        *_PER_CHANNEL,
        Sample(f32(2, 3, 5, 3, 4), f32(12), f32(12), layout="NCHW4c"),
        Sample(f32(1, 1, 1, 9, 16), f32(16), f32(16), layout="NCHW16c"),
        Sample(f32(2, 3, 5, 3, 4), f32(3), f32(12), layout="NCHW4c", error="T103"),
        Sample(f32(2, 4, 5, 3), f32(4), f32(4), layout="NCHW4c", error="T109"),
    ),
)
def instance_norm(
    x: Tensor, gamma: Tensor, beta: Tensor, *, epsilon: float = 1e-5, layout: str = "NCHW"
) -> Tensor:
    """Each channel of each image standardized, times `gamma[C]`, plus `beta[C]`.

    `layout` is the layout of images in blocks of channels; others have their channels on axis 1.

    Errors: T101, T102, T103, T105, T109. Source: ONNX InstanceNormalization-22.
    """
    block = parse_layout(layout).factor("C")
    channels = logical_sizes(parse_layout(layout), x.shape)["C"] if block > 1 else None
    _channels("nn.instance_norm", x, gamma, beta, channels=channels)
    value = standardized("instance_norm", x, range(2, 4 if block > 1 else x.rank), epsilon)

    def body(*i: Scalar) -> Scalar:
        c = i[1] if block == 1 else i[1] * block + i[-1]
        return te.cast(x.dtype, value(*i) * widen(gamma[c]) + widen(beta[c]))

    return te.compute(x.shape, body, "instance_norm", layout=x.layout)


@instance_norm.layout
def _instance_norm_layout(
    attrs: Attrs, types: Sequence[TensorType], layout: str
) -> tuple[tuple[str, ...], Attrs, str] | None:
    changed = _in_blocks(attrs, types[0], layout)
    return None if changed is None else ((layout, "NCHW", "NCHW"), changed, layout)


def _in_blocks(attrs: Attrs, image: TensorType, layout: str, groups: int = 1) -> Attrs | None:
    """Returns the attributes for an image in blocks of channels; None if they are not all full, or
    if a block has channels of several groups.
    """
    channels = image.shape[1] if image.rank == 4 else None
    if attrs.layout != "NCHW" or not isinstance(channels, int):
        return None
    whole = groups * parse_layout(layout).factor("C")
    return attrs.with_(layout=layout) if channels % whole == 0 else None


@register_op(
    "nn.group_norm",
    samples=(
        *(Sample(*s.args, groups=3, error=s.error) for s in _PER_CHANNEL),
        Sample(f32(2, 6, 5), f32(6), f32(6), groups=4, error="T107"),
        Sample(f32(2, 3, 5, 3, 4), f32(12), f32(12), groups=3, layout="NCHW4c"),
        Sample(f32(1, 4, 2, 9, 16), f32(64), f32(64), groups=2, layout="NCHW16c"),
        Sample(f32(2, 3, 5, 3, 4), f32(12), f32(12), groups=1, layout="NCHW4c"),
        Sample(f32(2, 3, 5, 3, 4), f32(12), f32(12), groups=2, layout="NCHW4c", error="T107"),
        Sample(f32(2, 3, 5, 3, 4), f32(3), f32(12), groups=3, layout="NCHW4c", error="T103"),
        Sample(f32(2, 4, 5, 3), f32(4), f32(4), groups=2, layout="NCHW4c", error="T109"),
    ),
)
def group_norm(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    *,
    groups: int,
    epsilon: float = 1e-5,
    layout: str = "NCHW",
) -> Tensor:
    """Groups of channels of each image standardized together, times `gamma[C]`, plus `beta[C]`.

    `layout` is the layout of images in blocks of channels, each of one group; others have their
    channels on axis 1.

    Errors: T101, T102, T103, T105, T107, T109. Source: ONNX GroupNormalization-21.
    """
    block = parse_layout(layout).factor("C")
    known = logical_sizes(parse_layout(layout), x.shape)["C"] if block > 1 else None
    _channels("nn.group_norm", x, gamma, beta, channels=known)
    channels = x.shape[1] if known is None else known
    if groups < 1 or not divides(groups * block, channels):
        raise GraphTypeError(
            "T107", f"nn.group_norm: {groups} groups do not divide {channels} channels"
        )
    members = x.shape[1] // groups
    split = te.compute(
        (x.shape[0], groups, members, *x.shape[2:]),
        lambda *i: x[(i[0], i[1] * te.size(members) + i[2], *i[3:])],
        "group_norm_groups",
    )
    value = standardized("group_norm", split, range(2, split.rank), epsilon)

    def body(*i: Scalar) -> Scalar:
        place = (i[0], i[1] // te.size(members), i[1] % te.size(members), *i[2:])
        c = i[1] if block == 1 else i[1] * block + i[-1]
        return te.cast(x.dtype, value(*place) * widen(gamma[c]) + widen(beta[c]))

    return te.compute(x.shape, body, "group_norm", layout=x.layout)


@group_norm.layout
def _group_norm_layout(
    attrs: Attrs, types: Sequence[TensorType], layout: str
) -> tuple[tuple[str, ...], Attrs, str] | None:
    changed = _in_blocks(attrs, types[0], layout, attrs.groups)
    return None if changed is None else ((layout, "NCHW", "NCHW"), changed, layout)


# Zeros beside the channels of a pixel: whole vectors, so that copies there are aligned.
_BESIDE = 16


@register_op(
    "nn.lrn",
    samples=(
        Sample(f32(1, 7, 3, 3), size=5),
        Sample(f32(1, 4, 3), size=2, alpha=0.1, beta=0.5, bias=2.0),
        Sample(f32(1, 2, 3, 5, 4), size=5, alpha=0.1, layout="NCHW4c"),
        Sample(f32(2, 2, 3, 9, 32), size=4, alpha=0.1, layout="NCHW32c"),
        Sample(f32(1, 4, 3), size=0, error="T107"),
        Sample(f32(4), size=3, error="T102"),
        Sample(f32(1, 4, 3, 3), size=3, layout="NCHW4c", error="T109"),
    ),
)
def lrn(
    x: Tensor,
    *,
    size: int,
    alpha: float = 1e-4,
    beta: float = 0.75,
    bias: float = 1.0,
    layout: str = "NCHW",
) -> Tensor:
    """`x / (bias + alpha / size * s) ** beta`, `s` the sum of squares of the `size` nearest
    channels.

    `layout` is the layout of images in blocks of channels; others have their channels on axis 1.

    Errors: T102, T105, T107, T109. Source: ONNX LRN-13.
    """
    _channels("nn.lrn", x)
    if size < 1:
        raise GraphTypeError("T107", f"nn.lrn: size {size} must be at least 1")
    blocked = parse_layout(layout).factor("C") > 1
    squares = _squares_of_blocks(x, size, layout) if blocked else _squares_around(x, size)
    return te.compute(
        x.shape,
        lambda *i: te.cast(
            x.dtype, widen(x[i]) / te.power(squares[i] * (alpha / size) + bias, beta)
        ),
        "lrn",
        layout=x.layout,
    )


def _squares_around(x: Tensor, size: int) -> Tensor:
    """Returns the sums of squares of the `size` channels around each element."""
    k = te.reduce_axis(size, "k")

    def window(*i: Scalar) -> Scalar:
        c = i[1] + k - (size - 1) // 2
        inside = (c >= 0) & (c < te.size(x.shape[1]))
        return te.sum(te.select(inside, _square(widen(x[(i[0], c, *i[2:])])), 0.0), k)

    return te.compute(x.shape, window, "lrn_squares")


def _squares_of_blocks(x: Tensor, size: int, layout: str) -> Tensor:
    """`_squares_around` for a blocked image, computed on lines that hold a pixel's squares between
    zeros.

    Errors: T109.
    """
    parsed = parse_layout(layout)
    sizes = logical_sizes(parsed, x.shape)
    channels, block = sizes["C"], parsed.factor("C")
    beside = -(-size // _BESIDE) * _BESIDE
    k = te.reduce_axis(size, "k")

    def line(n: Scalar, h: Scalar, w: Scalar, place: Scalar) -> Scalar:
        c = place - beside
        inside = (c >= 0) & (c < te.size(channels))
        return te.select(inside, _square(widen(x[n, c // block, h, w, c % block])), 0.0)

    shape = (sizes["N"], sizes["H"], sizes["W"], channels + 2 * beside)
    lines = te.compute(shape, line, "lrn_line", role="neighbors.line")
    first = beside - (size - 1) // 2

    def window(n: Scalar, co: Scalar, h: Scalar, w: Scalar, ci: Scalar) -> Scalar:
        return te.sum(lines[n, h, w, co * block + ci + k + first], k)

    stated = roles.of_layout(layout)
    return te.compute(x.shape, window, "lrn_squares", role="neighbors.sums", roles=stated)


@lrn.layout
def _lrn_layout(
    attrs: Attrs, types: Sequence[TensorType], layout: str
) -> tuple[tuple[str, ...], Attrs, str] | None:
    changed = _in_blocks(attrs, types[0], layout)
    return None if changed is None else ((layout,), changed, layout)


@register_op(
    "nn.l2_normalize",
    samples=(
        Sample(f32(3, 5), axes=(1,)),
        Sample(f32(2, 3, 4), axes=(0, 2), epsilon=0.1),
        Sample(f32(3, 5), axes=(2,), error="T104"),
    ),
)
def l2_normalize(x: Tensor, *, axes: tuple[int, ...], epsilon: float = 1e-12) -> Tensor:
    """`x` divided by its Euclidean norm along `axes`, or by `epsilon` if that is larger.

    Source: ONNX LpNormalization-22.
    """
    need_float("nn.l2_normalize", x)
    found = axes_of("nn.l2_normalize", axes, x.rank)
    squares = reduce_over(
        x, found, True, lambda v, over, _: te.sum(_square(widen(v)), over), "l2_normalize_squares"
    )
    norm = scaled(squares, lambda v: te.maximum(te.call("sqrt", v), epsilon), "l2_normalize_norm")
    return te.compute(
        x.shape, lambda *i: te.cast(x.dtype, widen(x[i]) / norm[_kept(i, found)]), "l2_normalize"
    )
