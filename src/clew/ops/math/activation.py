"""Elementwise activation functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np

from clew import te
from clew.ir.types import bits, is_integer
from clew.ops.common import (
    at,
    boolean,
    broadcast_shapes,
    differ,
    f16,
    f32,
    i32,
    need_float,
    need_number,
    u8,
)
from clew.ops.registry import Sample, register_op
from clew.support.errors import GraphTypeError
from clew.te import Scalar, Tensor
from clew.te.expr import unary

_ANY = (Sample(f32(3, 5)), Sample(f32()), Sample(f16(9)), Sample(i32(3), error="T105"))


def _each(name: str, x: Tensor, body: Callable[[Scalar], Scalar]) -> Tensor:
    """Applies `body` to each element, which must be floats.

    Errors: T105.
    """
    need_float(name, x)
    short = name.rpartition(".")[2]
    return te.compute(x.shape, lambda *i: body(x[i]), short, layout=x.layout)


@register_op("nn.relu", samples=(Sample(f32(3, 5)), Sample(f32()), Sample(f16(9)), Sample(i32(4))))
def relu(x: Tensor) -> Tensor:
    """`max(x, 0)`. Source: ONNX Relu-14."""
    need_number("nn.relu", x)
    return te.compute(x.shape, lambda *i: te.maximum(x[i], 0), "relu", layout=x.layout)


@register_op("nn.leaky_relu", samples=(*_ANY, Sample(f32(4), alpha=0.3)))
def leaky_relu(x: Tensor, *, alpha: float = 0.01) -> Tensor:
    """`x` if not negative, else `alpha * x`. Source: ONNX LeakyRelu-16."""
    return _each("nn.leaky_relu", x, lambda v: te.select(v < 0.0, v * alpha, v))


@register_op(
    "nn.prelu",
    samples=(
        Sample(f32(2, 3, 4), f32(3, 1)),
        Sample(f32(2, 3), f32()),
        Sample(i32(2, 3), i32(3)),
        Sample(f32(2, 3), f32(2), error="T100"),
        Sample(f32(2, 3), f16(3), error="T101"),
    ),
)
def prelu(x: Tensor, slope: Tensor) -> Tensor:
    """`x` if not negative, else `slope * x`; the slope broadcasts to `x`.

    Source: ONNX PRelu-16.
    """
    need_number("nn.prelu", x)
    if x.dtype != slope.dtype:
        raise GraphTypeError("T101", f"nn.prelu: input is {x.type}, slope is {slope.type}")
    shape = broadcast_shapes("nn.prelu", x.shape, slope.shape)
    if len(shape) != x.rank or any(map(differ, shape, x.shape)):
        raise GraphTypeError("T100", f"nn.prelu: slope {slope.type} does not broadcast to {x.type}")
    return te.compute(
        x.shape,
        lambda *i: te.select(x[i] < 0, x[i] * at(slope, x.shape, i), x[i]),
        "prelu",
        layout=x.layout,
    )


@register_op("nn.elu", samples=(*_ANY, Sample(f32(4), alpha=0.3)))
def elu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """`x` if not negative, else `alpha * (exp(x) - 1)`. Source: ONNX Elu-22."""
    return _each("nn.elu", x, lambda v: te.select(v < 0.0, te.call("expm1", v) * alpha, v))


@register_op("nn.selu", samples=_ANY)
def selu(
    x: Tensor, *, alpha: float = 1.6732632423543772, gamma: float = 1.0507009873554805
) -> Tensor:
    """`gamma` times (`x` if positive, else `alpha * (exp(x) - 1)`). Source: ONNX Selu-22."""

    def body(v: Scalar) -> Scalar:
        return te.select(v > 0.0, v, te.call("expm1", v) * alpha) * gamma

    return _each("nn.selu", x, body)


@register_op("nn.celu", samples=(*_ANY, Sample(f32(4), alpha=2.0)))
def celu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """`x` if positive, else `alpha * (exp(x / alpha) - 1)`. Source: ONNX Celu-12."""
    return _each(
        "nn.celu",
        x,
        lambda v: te.select(v > 0.0, v, te.call("expm1", v * (1 / alpha)) * alpha),
    )


# The normal distribution function as `1/2 + x * p(x**2)`, fitted by `tools/fit_gelu.py`; beyond
# this bound it is 0 or 1.
_GELU_BOUND = 4.3
_GELU_BF16 = {
    # error below 3.7e-05
    "none": (
        0.3987843692302704,
        -0.06612759083509445,
        0.009679686278104782,
        -0.001067225937731564,
        8.649680967209861e-05,
        -4.95219137519598e-06,
        1.8750712627024768e-07,
        -4.175716661336537e-09,
        4.115619650635338e-11,
    ),
    # error below 2.4e-05
    "tanh": (
        0.39876431226730347,
        -0.06640563160181046,
        0.009872587397694588,
        -0.0011181581066921353,
        9.360194235341623e-05,
        -5.529466761799995e-06,
        2.1502962965769257e-07,
        -4.89090101751799e-09,
        4.898230085426114e-11,
    ),
}


def _gelu_bf16(v: Scalar, coefficients: tuple[float, ...]) -> Scalar:
    """Returns `v` times a polynomial between 0 and 1."""
    square = te.minimum(v * v, _GELU_BOUND**2)
    total = te.cast(v.dtype, te.as_scalar(coefficients[-1], "f32"))
    for coefficient in reversed(coefficients[:-1]):
        total = te.call("fma", total, square, te.cast(v.dtype, te.as_scalar(coefficient, "f32")))
    share = te.call("fma", v, total, te.cast(v.dtype, te.as_scalar(0.5, "f32")))
    return v * te.minimum(te.maximum(share, 0.0), 1.0)


@register_op(
    "nn.gelu",
    samples=(
        *_ANY,
        Sample(f32(3, 5), approximate="tanh"),
        Sample(f32(3, 5), accuracy="bf16"),
        Sample(f32(3, 5), approximate="tanh", accuracy="bf16"),
        Sample(f32(3), approximate="fast", error="T107"),
        Sample(f32(3), accuracy="f8", error="T107"),
    ),
)
def gelu(x: Tensor, *, approximate: str = "none", accuracy: str = "") -> Tensor:
    """`x` times the normal distribution function of `x`, or approximately by `tanh`.

    `accuracy="bf16"` suffices for results rounded to bf16: the error is within 5e-5, a fraction of
    the last place unless the result is near 0.

    Errors: T105, T107. Source: ONNX Gelu-20.
    """
    if accuracy not in ("", "bf16"):
        raise GraphTypeError("T107", f"nn.gelu: accuracy={accuracy!r}", hint="use '' or bf16")
    if approximate not in ("none", "tanh"):
        raise GraphTypeError(
            "T107", f"nn.gelu: approximate={approximate!r}", hint="use none or tanh"
        )
    if accuracy:
        return _each("nn.gelu", x, lambda v: _gelu_bf16(v, _GELU_BF16[approximate]))
    if approximate == "none":
        return _each("nn.gelu", x, lambda v: v * te.call("normal_cdf", v))
    # (1 + tanh(u)) / 2 is sigmoid(2 * u), which is also exact where tanh is near -1.
    scale = 2 * math.sqrt(2 / math.pi)
    return _each("nn.gelu", x, lambda v: v * te.call("sigmoid", (v + v * v * v * 0.044715) * scale))


@register_op("nn.silu", samples=_ANY)
def silu(x: Tensor) -> Tensor:
    """`x * sigmoid(x)`. Source: Elfwing et al. 2018, arXiv 1702.03118."""
    return _each("nn.silu", x, lambda v: v * te.call("sigmoid", v))


@register_op("nn.swish", samples=(*_ANY, Sample(f32(4), alpha=1.7)))
def swish(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """`x * sigmoid(alpha * x)`. Source: ONNX Swish-24."""
    return _each("nn.swish", x, lambda v: v * te.call("sigmoid", v * alpha))


def _softplus(v: Scalar) -> Scalar:
    """Returns `log(1 + exp(v))` without overflow."""
    return te.maximum(v, 0.0) + te.call("log1p", te.call("exp", -unary("abs", v)))


@register_op("nn.softplus", samples=(*_ANY, Sample(f32(9), low=-200, high=200)))
def softplus(x: Tensor) -> Tensor:
    """`log(1 + exp(x))`. Source: ONNX Softplus-22."""
    return _each("nn.softplus", x, _softplus)


@register_op("nn.mish", samples=_ANY)
def mish(x: Tensor) -> Tensor:
    """`x * tanh(softplus(x))`. Source: ONNX Mish-22."""
    return _each("nn.mish", x, lambda v: v * te.call("tanh", _softplus(v)))


@register_op("nn.softsign", samples=_ANY)
def softsign(x: Tensor) -> Tensor:
    """`x / (1 + |x|)`. Source: ONNX Softsign-22."""
    return _each("nn.softsign", x, lambda v: v / (unary("abs", v) + 1.0))


def _clamp01(v: Scalar) -> Scalar:
    return te.minimum(te.maximum(v, 0.0), 1.0)


@register_op("nn.hard_sigmoid", samples=(*_ANY, Sample(f32(9), alpha=1 / 6, low=-5, high=5)))
def hard_sigmoid(x: Tensor, *, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    """`alpha * x + beta` clamped to [0, 1]. Source: ONNX HardSigmoid-22."""
    return _each("nn.hard_sigmoid", x, lambda v: _clamp01(v * alpha + beta))


# Rounded to f32 like the standard's attribute: f64 shows the difference.
_SIXTH: Final = float(np.float32(1 / 6))


@register_op("nn.hard_swish", samples=(*_ANY, Sample(f32(9), low=-5, high=5)))
def hard_swish(x: Tensor) -> Tensor:
    """`x * hard_sigmoid(x)` with `alpha` 1/6. Source: ONNX HardSwish-22."""
    return _each("nn.hard_swish", x, lambda v: v * _clamp01(v * _SIXTH + 0.5))


@register_op("nn.thresholded_relu", samples=_ANY)
def thresholded_relu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """`x` if above `alpha`, else 0. Source: ONNX ThresholdedRelu-22."""
    return _each("nn.thresholded_relu", x, lambda v: te.select(v > alpha, v, 0.0))


@register_op(
    "nn.shrink",
    samples=(
        Sample(f32(3, 5)),
        Sample(f16(9)),
        Sample(f32(9), lambd=0.7, bias=0.2),
        Sample(i32(9), lambd=1.5, bias=1.5, low=-5, high=5),
        Sample(u8(9), lambd=1.5, bias=1.0, low=0, high=5),
        Sample(boolean(3), error="T105"),
    ),
)
def shrink(x: Tensor, *, lambd: float = 0.5, bias: float = 0.0) -> Tensor:
    """`x` moved by `bias` toward 0 if its magnitude exceeds `lambd`, else 0. Integers are shrunk as
    real numbers and truncated.

    Errors: T105. Source: ONNX Shrink-9.
    """
    need_number("nn.shrink", x)
    wide = x.dtype
    if is_integer(x.dtype):
        wide = "f64" if bits(x.dtype) > 16 else "f32"

    def body(*i: Scalar) -> Scalar:
        v = te.cast(wide, x[i])
        near = te.select(v < -lambd, v + bias, te.select(v > lambd, v - bias, 0.0))
        return te.cast(x.dtype, near)

    return te.compute(x.shape, body, "shrink", layout=x.layout)
