"""Elementwise and broadcasting operators, and activations."""

from __future__ import annotations

from functools import reduce

from clew.frontends.building import call, cast, cast_saturated, per_channel, reshaped, scalar
from clew.frontends.onnx.file.tensors import dtype_of
from clew.frontends.onnx.layer import Layer
from clew.frontends.onnx.registry import Result, converter
from clew.ir.expr import Expr
from clew.ir.types import NARROW_FLOATS, STORAGE, is_float, is_integer
from clew.ops.data.text import PARSED


def _total(layer: Layer) -> Expr:
    """Returns the sum of all inputs, broadcast. Floats of 16 bits are summed in f32, because the
    operator rounds once.
    """
    inputs = layer.present()
    if inputs[0].tensor.dtype in NARROW_FLOATS:
        inputs = [cast(x, "f32") for x in inputs]
    return reduce(lambda a, b: call("add", a, b), inputs)


@converter("Sum")
def total(layer: Layer) -> Result:
    """The sum of all inputs, broadcast. Two are one addition, which rounds once."""
    inputs = layer.present()
    if len(inputs) <= 2:
        return reduce(lambda a, b: call("add", a, b), inputs)
    return cast(_total(layer), inputs[0].tensor.dtype)


@converter("Mean")
def mean(layer: Layer) -> Result:
    """The mean of all inputs, broadcast."""
    inputs, found = layer.present(), _total(layer)
    found = call("divide", found, scalar(len(inputs), found.tensor.dtype))
    return cast(found, inputs[0].tensor.dtype)


@converter("Pow")
def power(layer: Layer) -> Result:
    """The result has the base's dtype, whatever the exponent's. An integer to the power of a float
    is computed in f64 and truncated.
    """
    base, exponent = layer.input(0), layer.input(1)
    dtype = layer.type(0).dtype
    if is_integer(dtype) and is_float(layer.type(1).dtype):
        wide = "f64"
        return cast(call("power", cast(base, wide), cast(exponent, wide)), dtype)
    return call("power", base, cast(exponent, dtype))


@converter("Erf")
def erf(layer: Layer) -> Result:
    """For integers: computed in f32 and truncated, as in ONNX's reference."""
    x = layer.input(0)
    if is_float(x.tensor.dtype):
        return call("erf", x)
    return cast(call("erf", cast(x, "f32")), x.tensor.dtype)


@converter("Mod")
def modulo(layer: Layer) -> Result:
    """With `fmod` the result has the dividend's sign, as in C; else the divisor's, as in Python."""
    op = "mod" if layer.flag("fmod") else "floor_mod"
    return call(op, layer.input(0), layer.input(1))


@converter("BitShift")
def bit_shift(layer: Layer) -> Result:
    """Shift left or right."""
    op = {"LEFT": "left_shift", "RIGHT": "right_shift"}.get(layer.text("direction"))
    if op is None:
        raise layer.wrong("has a direction that is neither LEFT nor RIGHT")
    return call(op, layer.input(0), layer.input(1))


@converter("Cast")
def cast_to(layer: Layer) -> Result:
    """To the element type of the attribute."""
    return _cast(layer, dtype_of(layer.integer("to"), "the result"))


@converter("CastLike")
def cast_like(layer: Layer) -> Result:
    """To the element type of the second input."""
    return _cast(layer, layer.type(1).dtype)


def _cast(layer: Layer, dtype: str) -> Expr:
    """Returns the input in a dtype; values too large for an 8-bit float saturate by default."""
    x, source = layer.input(0), layer.type(0).dtype
    if dtype == source:
        return x
    if dtype == "str":
        narrow = source in STORAGE or source == "bf16"
        wide = "f32" if is_float(source) else "i32"
        return call("text.from_number", cast(x, wide) if narrow else x)
    if source == "str":
        wide = dtype if dtype in PARSED else "f32" if is_float(dtype) else "i64"
        x = call("text.to_number", x, dtype=wide)
    saturate = "saturate" in layer.schema.attributes and layer.flag("saturate")
    if dtype == "f8e8m0fnu":
        has_mode = "round_mode" in layer.schema.attributes
        mode = layer.text("round_mode") if has_mode else "up"
        return call("to_exponent", x, saturate=saturate, round_mode=mode)
    return cast_saturated(x, dtype) if saturate else cast(x, dtype)


@converter("BitCast", since=26)
def bit_cast(layer: Layer) -> Result:
    """The same bits as another element type."""
    return call("bitcast", layer.input(0), dtype=dtype_of(layer.integer("to"), "the result"))


@converter("Clip")
def clip_by_attributes(layer: Layer) -> Result:
    """Limits as attributes, to version 10."""
    return call("clip", layer.input(0), min=layer.real("min"), max=layer.real("max"))


@converter("Clip", since=11)
def clip(layer: Layer) -> Result:
    """Limits as inputs; known limits become attributes."""
    x, dtype = layer.input(0), layer.type(0).dtype
    limits = {name: layer.optional(n) for n, name in enumerate(("min", "max"), 1)}
    known = {name: layer.known_one(n) for n, name in enumerate(("min", "max"), 1)}
    exact = all(k is None or _fits_float(k, dtype) for k in known.values())
    if exact and all(known[name] is not None for name, limit in limits.items() if limit):
        return call("clip", x, **{n: float(v) for n, v in known.items() if v is not None})
    for op, limit in (("maximum", limits["min"]), ("minimum", limits["max"])):
        if limit is not None:
            x = call(op, x, reshaped(limit, ()))
    return x


def _fits_float(value: object, dtype: str) -> bool:
    """Whether a Python float represents a limit exactly."""
    return is_float(dtype) or (isinstance(value, int) and abs(value) < 1 << 53)


# --- activations ----------------------------------------------------------------------------------


@converter("Swish")
def swish(layer: Layer) -> Result:
    """`x * sigmoid(alpha * x)`."""
    if layer.real("alpha") == 1.0:
        return call("nn.silu", layer.input(0))
    return call("nn.swish", layer.input(0), alpha=layer.real("alpha"))


@converter("PRelu")
def prelu(layer: Layer) -> Result:
    """The slope broadcasts to the input. Before version 7 a vector lies along the channels."""
    slope = layer.input(1)
    if layer.version < 7 and layer.rank(1) == 1:
        one = slope.tensor.shape == (1,)
        slope = reshaped(slope, ()) if one else per_channel(slope, layer.rank())
    return call("nn.prelu", layer.input(0), slope)
