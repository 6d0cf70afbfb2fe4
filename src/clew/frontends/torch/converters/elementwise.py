"""Operators on single elements: arithmetic, comparisons, activations, casts."""

from __future__ import annotations

import math
from typing import Final

from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as PROMOTION

from clew.frontends.building import call, cast, cast_wide, reshaped, scalar
from clew.frontends.lowering.angles import angle_of
from clew.frontends.torch.layer import Layer
from clew.frontends.torch.registry import Result, converter
from clew.ir.expr import Expr
from clew.ir.types import NARROW_FLOATS, is_float

_FLOATS: Final = PROMOTION.INT_TO_FLOAT


@converter("sign")
def sign(layer: Layer) -> Result:
    """-1, 0 or 1; 0 for NaN."""
    x = layer.tensor()
    dtype = x.tensor.dtype
    if dtype == "bool":
        return x
    found = call("sign", x)
    if not is_float(dtype):
        return found
    return call("where", call("isnan", x), scalar(0, dtype), found)


# --- arithmetic -----------------------------------------------------------------------------------


def _scaled(layer: Layer, x: Expr, name: str = "alpha") -> Expr:
    value = layer.get(name, 1)
    if value == 1 and not isinstance(value, Expr):
        return x
    if x.tensor.dtype == "bool":
        return call("logical_and", x, layer.scalar(bool(value), x))
    return call("multiply", x, layer.scalar(value, x))


@converter("add")
def add(layer: Layer) -> Result:
    """`self + alpha * other`; of booleans, whether one holds."""
    a, b = layer.promoted("self", "other")
    op = "logical_or" if a.tensor.dtype == "bool" else "add"
    return layer.to_result(call(op, a, _scaled(layer, b)))


@converter("sub")
def subtract(layer: Layer) -> Result:
    """`self - alpha * other`."""
    a, b = layer.promoted("self", "other")
    return layer.to_result(call("subtract", a, _scaled(layer, b)))


@converter("rsub")
def reversed_subtract(layer: Layer) -> Result:
    """`other - alpha * self`."""
    a, b = layer.promoted("self", "other")
    return layer.to_result(call("subtract", b, _scaled(layer, a)))


@converter("div", "true_divide")
def divide(layer: Layer) -> Result:
    """True division, or the quotient rounded to zero (`trunc`) or down (`floor`)."""
    mode = layer.get("rounding_mode")
    if mode is None:
        return layer.to_result(call("divide", *layer.promoted("self", "other", kind=_FLOATS)))
    a, b = layer.promoted("self", "other")
    if is_float(a.tensor.dtype):
        if mode == "trunc":
            return layer.to_result(call("trunc", call("divide", a, b)))
        return layer.to_result(_floor_divided(a, b))
    quotient = call("divide", a, b)
    if mode == "trunc":
        return layer.to_result(quotient)
    rest = call("subtract", a, call("multiply", quotient, b))
    zero = scalar(0, a.tensor.dtype)
    differs = call("not_equal", call("less", rest, zero), call("less", b, zero))
    inexact = call("logical_and", call("not_equal", rest, zero), differs)
    return layer.to_result(call("subtract", quotient, cast(inexact, a.tensor.dtype)))


def _floor_divided(a: Expr, b: Expr) -> Expr:
    """Returns `floor(a / b)` of floats without the rounding error of the quotient, as torch does:
    from the remainder, which is finite if `b` is infinite. Floats of 16 bits are divided in f32.
    """
    dtype = a.tensor.dtype
    if dtype in NARROW_FLOATS:
        return cast(_floor_divided(cast_wide(a), cast_wide(b)), dtype)
    zero = scalar(0, dtype)
    rest = call("mod", a, b)
    differs = call("not_equal", call("less", rest, zero), call("less", b, zero))
    inexact = call("logical_and", call("not_equal", rest, zero), differs)
    quotient = call("divide", call("subtract", a, rest), b)
    quotient = call("subtract", quotient, cast(inexact, dtype))
    down = call("floor", quotient)
    above = call("greater", call("subtract", quotient, down), scalar(0.5, dtype))
    found = call("add", down, cast(above, dtype))
    # A zero has the sign of the plain quotient, which is the result of divisions by zero.
    plain = call("divide", a, b)
    signed = call("multiply", plain, zero)
    found = call("where", call("equal", quotient, zero), signed, found)
    return call("where", call("equal", b, zero), plain, found)


@converter("pow")
def power(layer: Layer) -> Result:
    """Small powers are products."""
    exponent = layer.get("exponent")
    a, b = layer.promoted("self", "exponent")
    if isinstance(exponent, (int, float)) and not isinstance(exponent, bool):
        if exponent == 2:
            return layer.to_result(call("multiply", a, a))
        if exponent == 3:
            return layer.to_result(call("multiply", call("multiply", a, a), a))
        if exponent == 1:
            return layer.to_result(a)
        if is_float(a.tensor.dtype):
            # torch takes roots, except in f16: `pow` of -0 and -inf has no sign, and is no NaN.
            if exponent == 0.5 and a.tensor.dtype != "f16":
                return layer.to_result(call("sqrt", a))
            if exponent == -0.5 and a.tensor.dtype != "f16":
                return layer.to_result(call("rsqrt", a))
            if exponent == -1:
                return layer.to_result(call("reciprocal", a))
    return layer.to_result(call("power", a, b))


@converter("log2", "log10")
def log_of_base(layer: Layer) -> Result:
    """Logarithms to the bases 2 and 10."""
    (x,) = map(cast_wide, layer.promoted("self", kind=_FLOATS))
    base = 2.0 if layer.op.startswith("log2") else 10.0
    return layer.to_result(call("multiply", call("log", x), layer.scalar(1 / math.log(base), x)))


@converter("exp2")
def exp2(layer: Layer) -> Result:
    """Powers of two."""
    (x,) = map(cast_wide, layer.promoted("self", kind=_FLOATS))
    return layer.to_result(call("exp", call("multiply", x, layer.scalar(math.log(2), x))))


@converter("round")
def rounded(layer: Layer) -> Result:
    """To the nearest integer, or to a number of decimals."""
    x, decimals = layer.tensor(), layer.integer("decimals", 0)
    if not is_float(x.tensor.dtype):
        return x
    if not decimals:
        return call("round", x)
    factor = layer.scalar(10.0 ** abs(decimals), x)
    there, back = ("multiply", "divide") if decimals > 0 else ("divide", "multiply")
    return call(back, call("round", call(there, x, factor)), factor)


@converter("atan2")
def atan2(layer: Layer) -> Result:
    """The angle of the point (other, self), by quadrants."""
    return layer.to_result(angle_of(*layer.promoted("self", "other", kind=_FLOATS)))


@converter("expm1")
def expm1(layer: Layer) -> Result:
    """`exp(x) - 1`; near 0 by way of tanh, which loses no digits there."""
    (x,) = map(cast_wide, layer.promoted("self", kind=_FLOATS))
    dtype = x.tensor.dtype
    half = call("tanh", call("multiply", x, scalar(0.5, dtype)))
    one = scalar(1, dtype)
    near = call("divide", call("multiply", scalar(2, dtype), half), call("subtract", one, half))
    small = call("less", call("abs", x), scalar(0.5, dtype))
    return layer.to_result(call("where", small, near, call("subtract", call("exp", x), one)))


@converter("log1p")
def log1p(layer: Layer) -> Result:
    """`log(1 + x)`; near 0 by way of atanh, which loses no digits there."""
    (x,) = map(cast_wide, layer.promoted("self", kind=_FLOATS))
    dtype = x.tensor.dtype
    one, two = scalar(1, dtype), scalar(2, dtype)
    ratio = call("divide", x, call("add", two, x))
    near = call("multiply", two, call("atanh", ratio))
    small = call("less", call("abs", x), scalar(0.5, dtype))
    safe = call("where", small, near, call("log", call("add", one, x)))
    return layer.to_result(safe)


# --- choices --------------------------------------------------------------------------------------


@converter("where")
def where(layer: Layer) -> Result:
    """`self` where the condition holds, else `other`."""
    condition = layer.truth("condition")
    return layer.to_result(call("where", condition, *layer.promoted("self", "other")))


@converter("clamp", "clamp_min", "clamp_max", "hardtanh")
def clamp(layer: Layer) -> Result:
    """Limits are numbers or tensors; a NaN stays."""
    low, high = ("min_val", "max_val") if layer.op.startswith("hardtanh") else ("min", "max")
    given = [n for n in (low, high) if layer.has(n)]
    x, *limits = layer.promoted("self", *given)
    values = {n: layer.get(n) for n in given}
    plain = all(isinstance(v, (int, float)) for v in values.values())
    if plain and is_float(x.tensor.dtype):
        return layer.to_result(call("clip", x, min=values.get(low), max=values.get(high)))
    ops = ("maximum", "minimum")
    if x.tensor.dtype == "bool":
        ops = ("logical_or", "logical_and")
    for name, limit in zip(given, limits, strict=True):
        x = call(ops[0] if name == low else ops[1], x, limit)
    return layer.to_result(x)


# --- activations ----------------------------------------------------------------------------------


@converter("elu")
def elu(layer: Layer) -> Result:
    """`scale * (max(0, x) + min(0, alpha * (exp(input_scale * x) - 1)))`."""
    x = layer.tensor()
    alpha, scale = layer.number("alpha", 1), layer.number("scale", 1)
    inner = layer.number("input_scale", 1)
    if inner == 1:
        found: Expr = call("nn.elu", x, alpha=float(alpha))
    else:
        low = call("nn.elu", call("multiply", x, layer.scalar(inner, x)), alpha=float(alpha))
        found = call("where", call("greater", x, layer.scalar(0, x)), x, low)
    return found if scale == 1 else call("multiply", found, layer.scalar(scale, x))


@converter("hardswish")
def hardswish(layer: Layer) -> Result:
    """`x * relu6(x + 3) / 6`."""
    x = layer.tensor()
    if x.tensor.dtype == "f64":  # the operator's sixth is one of f32
        return call("multiply", x, call("nn.hard_sigmoid", x, alpha=1 / 6, beta=0.5))
    return call("nn.hard_swish", x)


@converter("hardsigmoid")
def hardsigmoid(layer: Layer) -> Result:
    """`relu6(x + 3) / 6`."""
    return call("nn.hard_sigmoid", layer.tensor(), alpha=1 / 6, beta=0.5)


@converter("softplus")
def softplus(layer: Layer) -> Result:
    """`log(1 + exp(beta x)) / beta`; the number itself above the threshold."""
    x = layer.tensor()
    beta, threshold = layer.number("beta", 1), layer.number("threshold", 20)
    scaled = x if beta == 1 else call("multiply", x, layer.scalar(beta, x))
    found: Expr = call("nn.softplus", scaled)
    if beta != 1:
        found = call("divide", found, layer.scalar(beta, x))
    return call("where", call("greater", scaled, layer.scalar(threshold, x)), x, found)


@converter("prelu", "_prelu_kernel")
def prelu(layer: Layer) -> Result:
    """Negative numbers times a slope of their channel."""
    x, weight = layer.tensor(), layer.tensor("weight")
    if weight.tensor.rank == 1 and x.tensor.rank > 1:
        weight = reshaped(weight, (weight.tensor.shape[0], *(1,) * (x.tensor.rank - 2)))
    if x.tensor.rank == 0:
        weight = reshaped(weight, ())
    return call("nn.prelu", x, weight)


# --- dtypes ---------------------------------------------------------------------------------------


@converter("_to_copy", "to", "prims.convert_element_type")
def to_copy(layer: Layer) -> Result:
    """A cast; devices and memory formats are torch's matter."""
    return layer.to_result(layer.tensor("a" if "a" in layer.arguments else "self"))


@converter("clone", "alias", "detach", "lift_fresh_copy", "contiguous", "_conj_physical")
def clone(layer: Layer) -> Result:
    """The same values."""
    return layer.tensor()


@converter("copy")
def copy(layer: Layer) -> Result:
    """The values of `src`, in the shape and dtype of `self`."""
    wanted = layer.result()
    found = cast(layer.tensor("src"), wanted.dtype)
    return found if found.tensor.shape == wanted.shape else _spread(found, layer)


def _spread(x: Expr, layer: Layer) -> Expr:
    return call("broadcast_to", x, shape=layer.result().shape)
