"""Elementwise operators."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from clew.frontends.building import call, cast, cast_wide, constant, reshaped, scalar
from clew.frontends.lowering.angles import angle_of
from clew.frontends.tflite.layer import TfliteLayer
from clew.frontends.tflite.registry import CONVERTERS, Result, converter
from clew.ir.expr import Expr
from clew.ir.types import bits, integer_limits, is_float, is_integer, to_numpy

_UNARY: Final = {
    "ABS": "abs", "CEIL": "ceil", "COS": "cos", "ELU": "nn.elu", "EXP": "exp", "FLOOR": "floor",
    "HARD_SWISH": "nn.hard_swish", "LOG": "log", "LOGICAL_NOT": "logical_not",
    "LOGISTIC": "sigmoid", "NEG": "negative", "RELU": "nn.relu", "ROUND": "round",
    "RSQRT": "rsqrt", "SIGN": "sign", "SIN": "sin", "SQRT": "sqrt", "TANH": "tanh",
}  # fmt: skip
_BINARY: Final = {
    "ADD": "add", "DIV": "divide", "MUL": "multiply", "SUB": "subtract",
    "MAXIMUM": "maximum", "MINIMUM": "minimum", "POW": "power", "FLOOR_MOD": "floor_mod",
    "EQUAL": "equal", "NOT_EQUAL": "not_equal", "LESS": "less", "LESS_EQUAL": "less_equal",
    "GREATER": "greater", "GREATER_EQUAL": "greater_equal", "LOGICAL_AND": "logical_and",
    "LOGICAL_OR": "logical_or", "BITWISE_XOR": "bitwise_xor", "RIGHT_SHIFT": "right_shift",
}  # fmt: skip
_BOUNDS: Final = {
    "RELU6": (0.0, 6.0), "RELU_N1_TO_1": (-1.0, 1.0), "RELU_0_TO_1": (0.0, 1.0),
}  # fmt: skip


def _unary(op: str) -> Any:
    return lambda layer: call(op, layer.input(0))


def _binary(op: str) -> Any:
    return lambda layer: layer.activated(call(op, layer.input(0), layer.input(1)))


def _bounded(low: float, high: float) -> Any:
    return lambda layer: call("clip", layer.input(0), min=low, max=high)


for _name, _op in _UNARY.items():
    CONVERTERS.register(_name)(_unary(_op))
for _name, _op in _BINARY.items():
    CONVERTERS.register(_name)(_binary(_op))
for _name, _limits in _BOUNDS.items():
    CONVERTERS.register(_name)(_bounded(*_limits))


@converter("ADD_N")
def add_n(layer: TfliteLayer) -> Result:
    """The sum of all operands."""
    first, *others = layer.present()
    for other in others:
        first = call("add", first, other)
    return first


@converter("SQUARE")
def square(layer: TfliteLayer) -> Result:
    """`x * x`."""
    return call("multiply", layer.input(0), layer.input(0))


@converter("SQUARED_DIFFERENCE")
def squared_difference(layer: TfliteLayer) -> Result:
    """`(a - b) ** 2`."""
    difference = call("subtract", layer.input(0), layer.input(1))
    return call("multiply", difference, difference)


@converter("FLOOR_DIV")
def floor_div(layer: TfliteLayer) -> Result:
    """The quotient, rounded down."""
    a, b = layer.input(0), layer.input(1)
    if is_float(a.tensor.dtype):
        return call("floor", call("divide", a, b))
    return call("divide", call("subtract", a, call("floor_mod", a, b)), b)


@converter("ATAN2")
def atan2(layer: TfliteLayer) -> Result:
    """The angle of the point (second, first), by quadrants."""
    return angle_of(layer.input(0), layer.input(1))


@converter("FAKE_QUANT")
def fake_quant(layer: TfliteLayer) -> Result:
    """Rounds to a grid of `num_bits` bits between two limits, shifted so that 0 is on the grid."""
    width, least = layer.integer("num_bits", 0), int(layer.flag("narrow_range", False))
    low, high = np.float32(layer.real("min", 0)), np.float32(layer.real("max", 0))
    if not (2 <= width <= 16 and low <= 0 <= high and low < high):
        raise layer.wrong(f"has {width} bits from {low} to {high}")
    most = (1 << width) - 1
    step = np.float32((high - low) / np.float32(most - least))
    zero = np.float32(np.clip(np.floor(np.float32(least - low / step) + 0.5), least, most))
    begin, end = (np.float32((bound - zero) * step) for bound in (least, most))
    x = call("clip", layer.input(0), min=float(begin), max=float(end))
    steps = call("multiply", call("subtract", x, scalar(begin, "f32")), scalar(1 / step, "f32"))
    whole = call("floor", call("add", steps, scalar(0.5, "f32")))
    return call("add", call("multiply", whole, scalar(step, "f32")), scalar(begin, "f32"))


@converter("BUCKETIZE")
def bucketize(layer: TfliteLayer) -> Result:
    """For each element, the number of ascending boundaries that do not exceed it."""
    x = layer.input(0)
    bounds = np.asarray(layer.given.get("boundaries", ()), np.float32)
    if not bounds.size:
        return call("broadcast_to", scalar(0, "i32"), shape=x.tensor.shape)
    wide = "f64" if x.tensor.dtype != "f32" else "f32"
    each = reshaped(cast(x, wide), (*x.tensor.shape, 1))
    passed = call("greater_equal", each, constant(bounds.astype(to_numpy(wide))))
    return call("sum", cast(passed, "i32"), axes=(x.tensor.rank,), keepdims=False)


@converter("BITCAST")
def bitcast(layer: TfliteLayer) -> Result:
    """Reinterprets bits as another type; another width adds or removes the last axis."""
    x, dtype = layer.input(0), layer.result_dtype()
    own, wanted = bits(x.tensor.dtype), bits(dtype)
    if own == wanted:
        return call("bitcast", x, dtype=dtype)
    if "bool" in (x.tensor.dtype, dtype) or min(own, wanted) < 8:
        raise layer.unsupported(f"{x.tensor.dtype} as {dtype}")
    wide = f"u{max(own, wanted)}"
    shifts = constant(np.arange(0, max(own, wanted), min(own, wanted)).astype(to_numpy(wide)))
    whole = call("bitcast", x, dtype=f"u{own}") if x.tensor.dtype != f"u{own}" else x
    if own > wanted:
        parts = call("right_shift", reshaped(whole, (*x.tensor.shape, 1)), shifts)
        mask = scalar((1 << wanted) - 1, wide)
        narrow = cast(call("bitwise_and", parts, mask), f"u{wanted}")
        return narrow if dtype == f"u{wanted}" else call("bitcast", narrow, dtype=dtype)
    if not x.tensor.rank or x.tensor.shape[-1] != wanted // own:
        raise layer.wrong(f"takes {wanted // own} elements of {own} bits, got {layer.type(0)}")
    parts = call("left_shift", cast(whole, wide), shifts)
    joined = call("sum", parts, axes=(x.tensor.rank - 1,), keepdims=False)
    return joined if dtype == wide else call("bitcast", joined, dtype=dtype)


@converter("LEAKY_RELU")
def leaky_relu(layer: TfliteLayer) -> Result:
    """`x` where positive, else `alpha * x`."""
    return call("nn.leaky_relu", layer.input(0), alpha=layer.real("alpha", 0.0))


@converter("PRELU")
def prelu(layer: TfliteLayer) -> Result:
    """`x` where positive, else `slope * x`; the slope broadcasts from the last axis."""
    return call("nn.prelu", layer.input(0), layer.input(1))


@converter("GELU")
def gelu(layer: TfliteLayer) -> Result:
    """Gaussian error linear unit, exact or by tanh."""
    kind = "tanh" if layer.flag("approximate", False) else "none"
    return call("nn.gelu", layer.input(0), approximate=kind)


@converter("CAST")
def cast_to(layer: TfliteLayer) -> Result:
    """Casts to the type of the result's tensor. Floats saturate in integer types, and NaN becomes
    the largest integer.
    """
    x, dtype = layer.input(0), layer.result_dtype()
    if not is_float(x.tensor.dtype) or not is_integer(dtype):
        return cast(x, dtype)
    x, (low, high) = cast_wide(x), integer_limits(dtype)
    fits = call("less", x, scalar(float(high + 1), x.tensor.dtype))
    found = call("where", fits, cast(x, dtype), scalar(high, dtype))
    below = call("less", x, scalar(float(low), x.tensor.dtype))
    return call("where", below, scalar(low, dtype), found)


@converter("DEQUANTIZE")
def dequantize(layer: TfliteLayer) -> Result:
    """The operand, whose codes are dequantized already; 16-bit floats become 32-bit floats."""
    return cast(layer.input(0), "f32")


@converter("DENSIFY", codes=True)
def densify(layer: TfliteLayer) -> Result:
    """The operand: sparse constants become dense when they are read."""
    return layer.input(0)


@converter("QUANTIZE")
def quantize(layer: TfliteLayer) -> Result:
    """The operand, which is then quantized with the parameters of the result's tensor."""
    return layer.input(0)


@converter("SELECT", "SELECT_V2")
def select(layer: TfliteLayer) -> Result:
    """`a` where the condition holds, else `b`. In SELECT, a vector condition selects rows."""
    condition, a, b = (layer.input(n) for n in range(3))
    if layer.op == "SELECT" and condition.tensor.rank == 1 < a.tensor.rank:
        ones = (1,) * (a.tensor.rank - 1)
        condition = call("reshape", condition, shape=(*condition.tensor.shape, *ones))
    return call("where", condition, a, b)


@converter("ZEROS_LIKE")
def zeros_like(layer: TfliteLayer) -> Result:
    """Zeros in the shape of the operand."""
    x = layer.input(0)
    zero: Expr = scalar(0, x.tensor.dtype)
    return call("broadcast_to", zero, shape=x.tensor.shape)
