"""Rules of CanonicalizeOps that restore blocks which exporters decompose."""

from __future__ import annotations

import math
from functools import partial
from typing import Final

import numpy as np

from clew.ir.expr import Constant, Expr
from clew.ir.types import TensorType, is_float
from clew.ops.registry import get_op
from clew.patterns import Match, Rule, is_constant, is_op, is_splat, rule, wildcard
from clew.patterns.exactness import ROUNDED, ROUNDED_ONCE
from clew.patterns.pattern import Pattern

_x = wildcard()
_gamma, _beta = wildcard(), is_constant()
_epsilon = is_splat()


# The last digits of a dtype, in which constants of exporters may differ.
_DIGITS: Final = {"f64": 2.0**-50, "f32": 2.0**-21, "f16": 2.0**-10, "bf16": 2.0**-7}


def _is_near(value: float, constant: Expr) -> bool:
    if not isinstance(constant, Constant) or not constant.is_splat or not constant.tensor.size:
        return False
    digits = _DIGITS.get(constant.tensor.dtype, 0.0)
    return math.isclose(float(constant.splat_value), value, rel_tol=digits)


def _near(value: float) -> Pattern:
    """Returns the pattern of constants that equal a number up to the last digits of their dtype."""
    return is_constant().check(partial(_is_near, value))


def _halved_product(x: Pattern, factor: Pattern) -> Pattern:
    """Returns the pattern of `0.5 * x * factor`, with the factors in any order."""
    return x * factor * 0.5


# --- activations ---

_over_root2 = is_op("divide")(_x, _near(math.sqrt(2))) | is_op("multiply")(
    _x, _near(math.sqrt(0.5))
)


@rule(_halved_product(_x, is_op("add")(is_op("erf")(_over_root2), is_splat(1))), ROUNDED)
def gelu(found: Match) -> Expr | None:
    """`0.5 x (1 + erf(x / sqrt 2))`."""
    return get_op("nn.gelu")(found[_x])


_square = is_op("multiply")(_x, _x)
_cube = is_op("power")(_x, is_splat(3)) | is_op("multiply")(_square, _x)
_cubic = is_op("add")(_x, is_op("multiply")(_cube, _near(0.044715)))
_tanh = is_op("tanh")(is_op("multiply")(_cubic, _near(math.sqrt(2 / math.pi))))


@rule(_halved_product(_x, is_op("add")(_tanh, is_splat(1))), ROUNDED)
def gelu_by_tanh(found: Match) -> Expr | None:
    """`0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`."""
    return get_op("nn.gelu")(found[_x], approximate="tanh")


@rule(is_op("multiply")(_x, is_op("sigmoid")(_x)), ROUNDED_ONCE)
def silu(found: Match) -> Expr | None:
    """`x sigmoid(x)`."""
    return get_op("nn.silu")(found[_x])


_three_up = is_op("clip")(is_op("add")(_x, is_splat(3))).has_attr(min=0.0, max=6.0)
# `nn.hard_swish` has a sixth of f32 also for f64, as ONNX does.
_F32_SIXTH: Final = float(np.float32(1 / 6))
_hard_sigmoid = is_op("nn.hard_sigmoid")(_x).has_attr(
    alpha=lambda alpha: math.isclose(alpha, _F32_SIXTH, rel_tol=_DIGITS["f32"]), beta=0.5
)
_sixth = _near(1 / 6)


@rule(
    is_op("multiply")(_x, _hard_sigmoid)
    | is_op("divide")(is_op("multiply")(_x, _three_up), is_splat(6))
    | is_op("multiply")(is_op("multiply")(_x, _three_up), _sixth)
    | is_op("multiply")(_x, is_op("divide")(_three_up, is_splat(6))),
    ROUNDED,
)
def hard_swish(found: Match) -> Expr | None:
    """`x clip(x + 3, 0, 6) / 6`."""
    dtype = found[_x].tensor.dtype
    if not is_float(dtype) or (dtype == "f64" and not _has_f32_sixth(found)):
        return None
    return get_op("nn.hard_swish")(found[_x])


def _has_f32_sixth(found: Match) -> bool:
    return _hard_sigmoid in found and found.call(_hard_sigmoid).attrs.alpha == _F32_SIXTH


@rule(is_op("multiply")(_x, is_op("tanh")(is_op("nn.softplus")(_x))), ROUNDED_ONCE)
def mish(found: Match) -> Expr | None:
    """`x tanh(softplus(x))`."""
    return get_op("nn.mish")(found[_x])


# --- softmax ---

_top = is_op("max")(_x).has_attr(keepdims=True)
_power = is_op("exp")(is_op("subtract")(_x, _top))
_total = is_op("sum")(_power).has_attr(keepdims=True)


@rule(is_op("divide")(_power, _total), ROUNDED)
def softmax(found: Match) -> Expr | None:
    """`exp(x - max x) / sum(exp(x - max x))`."""
    top, total = found.call(_top).attrs.axes, found.call(_total).attrs.axes
    if top != total or len(top) != 1:
        return None
    return get_op("nn.softmax")(found[_x], axis=top[0])


# --- normalization ---


def _mean(value: Pattern) -> Pattern:
    return is_op("mean")(value).has_attr(keepdims=True)


def _trailing(axes: tuple[int, ...], rank: int) -> int | None:
    """Returns the first axis, counted from the back, if the axes are all from it on; else None."""
    places = sorted(a % rank for a in axes)
    return places[0] - rank if places and places == list(range(places[0], rank)) else None


def _over_deviation(value: Pattern, variance: Pattern) -> Pattern:
    """Returns the pattern of `value / sqrt(variance + epsilon)`."""
    widened = is_op("add")(variance, _epsilon)
    inverse = is_op("rsqrt")(widened) | is_op("reciprocal")(is_op("sqrt")(widened))
    return is_op("divide")(value, is_op("sqrt")(widened)) | is_op("multiply")(value, inverse)


_average = _mean(_x)
_centered = is_op("subtract")(_x, _average)
_squares = is_op("multiply")(_centered, _centered) | is_op("power")(_centered, is_splat(2))
_variance = _mean(_squares)


@rule(is_op("multiply")(_over_deviation(_centered, _variance), _gamma), ROUNDED)
def layer_norm(found: Match) -> Expr | None:
    """`(x - mean) / sqrt(var + epsilon) * gamma`, over the last axes."""
    x, gamma = found[_x], found[_gamma]
    axes = found.call(_average).attrs.axes
    axis = _trailing(axes, x.tensor.rank)
    if axis is None or found.call(_variance).attrs.axes != axes or not _fits(found, gamma):
        return None
    epsilon = float(found.constant(_epsilon).splat_value)
    return get_op("nn.layer_norm")(x, gamma, axis=axis, epsilon=epsilon)


_norm_without_beta = is_op("nn.layer_norm")(_x, _gamma)


@rule(is_op("add")(_norm_without_beta.used_once(), _beta), ROUNDED)
def layer_norm_beta(found: Match) -> Expr | None:
    """Adds a bias after a layer norm to the layer norm."""
    beta, norm = found[_beta], found.call(_norm_without_beta)
    if not _fits(found, beta):
        return None
    return get_op("nn.layer_norm")(found[_x], found[_gamma], beta, **norm.attrs)


_mean_square = _mean(is_op("multiply")(_x, _x) | is_op("power")(_x, is_splat(2)))


@rule(is_op("multiply")(_over_deviation(_x, _mean_square), _gamma), ROUNDED)
def rms_norm(found: Match) -> Expr | None:
    """`x / sqrt(mean(x^2) + epsilon) * gamma`, over the last axes."""
    x, gamma = found[_x], found[_gamma]
    axis = _trailing(found.call(_mean_square).attrs.axes, x.tensor.rank)
    if axis is None or not _fits(found, gamma):
        return None
    epsilon = float(found.constant(_epsilon).splat_value)
    return get_op("nn.rms_norm")(x, gamma, axis=axis, epsilon=epsilon)


def _is_all(number: int, constant: Expr) -> bool:
    return isinstance(constant, Constant) and bool((constant.data == number).all())


_ones, _zeros = (is_constant().check(partial(_is_all, n)) for n in (1, 0))
_in_groups = is_op("nn.instance_norm")(is_op("reshape")(_x), _ones, _zeros)


@rule(is_op("reshape")(_in_groups.used_once()), ROUNDED)
def group_norm(found: Match) -> Expr | None:
    """Groups of channels that a reshape makes channels of an instance norm."""
    x, norm = found[_x], found.call(_in_groups)
    if found.root.type != x.type or x.tensor.rank < 3:
        return None
    (batch, channels), (rows, groups) = x.tensor.shape[:2], norm.tensor.shape[:2]
    if rows != batch or not isinstance(channels, int) or not isinstance(groups, int):
        return None
    if channels % groups:
        return None
    gamma, beta = (Constant.splat(n, TensorType((channels,), x.tensor.dtype)) for n in (1, 0))
    epsilon = norm.attrs.epsilon
    return get_op("nn.group_norm")(x, gamma, beta, groups=groups, epsilon=epsilon)


_plain_groups = is_op("nn.group_norm")(_x, _ones, _zeros)
_scaled_groups = is_op("nn.group_norm")(_x, _gamma, _zeros)
_factor = is_constant()


@rule(is_op("multiply")(_plain_groups.used_once(), _factor), ROUNDED)
def group_norm_gamma(found: Match) -> Expr | None:
    """Multiplies the scale of a group norm by a factor after it."""
    norm = found.call(_plain_groups)
    factor = _by_channel(found.constant(_factor), norm)
    if factor is None:
        return None
    return get_op("nn.group_norm")(found[_x], factor, norm.args[2], **norm.attrs)


@rule(is_op("add")(_scaled_groups.used_once(), _beta), ROUNDED)
def group_norm_beta(found: Match) -> Expr | None:
    """Adds a bias after a group norm to the group norm."""
    norm = found.call(_scaled_groups)
    beta = _by_channel(found.constant(_beta), norm)
    if beta is None:
        return None
    return get_op("nn.group_norm")(found[_x], found[_gamma], beta, **norm.attrs)


def _by_channel(parameter: Constant, norm: Expr) -> Expr | None:
    """Returns a constant that differs only between channels as a vector; None if it is another."""
    shape, (_, channels, *rest) = parameter.tensor.shape, norm.tensor.shape
    if shape != (channels, *(1,) * len(rest)) and shape != (1, channels, *(1,) * len(rest)):
        return None
    return get_op("reshape")(parameter, shape=(channels,))


def _fits(found: Match, parameter: Expr) -> bool:
    """Whether a parameter of a normalization is constant and broadcasts to its input."""
    return isinstance(parameter, Constant) and found.root.type == found[_x].type


BLOCK_RULES: Final[tuple[Rule, ...]] = (
    gelu,
    gelu_by_tanh,
    silu,
    hard_swish,
    mish,
    softmax,
    layer_norm,
    layer_norm_beta,
    rms_norm,
    group_norm,
    group_norm_gamma,
    group_norm_beta,
)
