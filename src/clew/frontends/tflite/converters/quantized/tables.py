"""Unary functions of codes as tables: of 256 entries for 8 bits, of 65536 for 16 bits.

Source: TFLite's kernels of activations and of elementwise operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clew.frontends.building import call, cast, constant, scalar
from clew.frontends.tflite.converters.quantized.codes import (
    half_away,
    multiplier,
    of_whole,
    operand,
    result,
    scale_of,
    zero_of,
)
from clew.frontends.tflite.file.model import TensorInfo
from clew.frontends.tflite.layer import TfliteLayer
from clew.frontends.tflite.registry import Quantized, on_codes
from clew.ir.expr import Expr
from clew.ir.types import integer_limits, to_numpy

_LONG: Final = "i16"
Codes = NDArray[np.int64]
Floats = NDArray[np.float32]


def fixed(value: Codes, real: Any) -> Codes:
    """Returns integers times a real number, rounded as TFLite does (`scale_fixed`)."""
    factor, shift = (int(part) for part in multiplier(real))
    return divided_by_power(upper_half(value << max(shift, 0), factor), max(-shift, 0))


def upper_half(value: Codes, factor: Any) -> Codes:
    """Returns the doubled upper halves of 32-bit products; ties go up."""
    found: Codes = (value * factor + (1 << 30)) >> 31
    return found


def divided_by_power(value: Codes, exponent: Any) -> Codes:
    """Returns integers divided by powers of two; ties go away from zero."""
    mask = (np.int64(1) << exponent) - 1
    found: Codes = (value >> exponent) + ((value & mask) > (mask >> 1) + (value < 0))
    return found


def table(layer: TfliteLayer, function: Callable[[Codes], Codes]) -> Quantized:
    """Returns the layer as a table of a function of codes, whose results are saturated."""
    x, out = operand(layer, 0), result(layer)
    low, high = integer_limits(x.dtype)
    codes = np.arange(low, high + 1)
    if x.dtype == "i8":
        codes = np.roll(codes, low)  # by the code's bits as an unsigned number
    found = np.clip(function(codes), *integer_limits(out.dtype)).astype(to_numpy(out.dtype))
    if x.dtype != _LONG:
        return call("apply_table", layer.input(0), constant(found))
    return entries(found, call("subtract", cast(layer.input(0), "i32"), scalar(low, "i32")))


def entries(table: NDArray[Any], places: Expr) -> Expr:
    """Returns the entries of a table at indices within its bounds."""
    return call("gather", constant(table), places, axis=0)


def is_short(layer: TfliteLayer, *, long: bool = False) -> bool:
    """Whether operand and result are 8-bit codes with one scale each; or 16-bit, if `long`."""
    x, out = operand(layer, 0), result(layer)
    same = of_whole(x, out) and x.dtype == out.dtype
    return same and (x.dtype in ("i8", "u8") or (long and x.dtype == _LONG))


def numbers(x: TensorInfo, codes: Codes) -> Floats:
    """Returns the real numbers that codes represent."""
    return scale_of(x) * (codes - zero_of(x)).astype(np.float32)


_STEPS: Final = 512  # of a table of a function of 16 bits


def sampled(
    function: Callable[[Any], Any], x: tuple[float, int], out: tuple[float, int], kind: Any
) -> Codes:
    """Returns a 16-bit function at the ends of equal steps, corrected by half of the error in the
    middle of each step. `x` and `out` are a scale and a zero point, `kind` the type of floats.
    """
    low, high = integer_limits(_LONG)
    first, last = (kind(x[0]) * kind(limit - x[1]) for limit in (low, high))
    unit = kind(high - low + 1) / (
        kind(out[0]) * kind(high - out[1]) - kind(out[0]) * kind(low - out[1])
    )
    step = (last - first) / kind(_STEPS)
    places = np.arange(_STEPS).astype(kind)
    with np.errstate(all="ignore"):
        value, middle, following = (
            function(at.astype(kind))
            for at in (
                first + places * step,
                first + places * step + step / kind(2),
                first + (places + kind(1)) * step,
            )
        )
        sample = half_away(value * unit)
        between = half_away((following * unit + sample) / kind(2))
        bias = half_away((between - half_away(middle * unit)) / kind(2))
        end = half_away(function(np.asarray(last, kind)) * unit)
    found = np.append(np.clip(sample - bias, low, high), np.clip(end, low, high))
    return np.asarray(np.nan_to_num(found), np.int64)


def interpolated(samples: Codes) -> Codes:
    """Returns a sampled function for each 16-bit code, from the lowest."""
    codes = np.arange(-(1 << 15), 1 << 15)
    place = 256 + (codes >> 7)
    slope = samples[place + 1] - samples[place]
    found: Codes = samples[place] + ((slope * (codes & 127) + (1 << 6)) >> 7)
    return found


def _of_floats(function: Callable[[Floats], Floats]) -> Callable[[TfliteLayer], Quantized]:
    def convert(layer: TfliteLayer) -> Quantized:
        if not is_short(layer):
            return None
        x, out = operand(layer, 0), result(layer)
        inverse = np.float32(1) / scale_of(out)

        def codes(given: Codes) -> Codes:
            with np.errstate(all="ignore"):
                value = half_away(function(numbers(x, given)) * inverse)
            whole = np.nan_to_num(value, posinf=1e9, neginf=-1e9)
            return np.asarray(whole, np.int64) + zero_of(out)

        return table(layer, codes)

    return convert


def _elu(x: Floats) -> Floats:
    return np.where(x < 0, np.expm1(x), x)


def _exact_gelu(x: Floats) -> Floats:
    wide = np.vectorize(math.erf, otypes=[np.float64])(x * np.float32(math.sqrt(0.5)))
    found: Floats = (np.float32(0.5) * x * (1 + wide.astype(np.float32))).astype(np.float32)
    return found


def _tanh_gelu(x: Floats) -> Floats:
    root, cube = np.float32(math.sqrt(2 / math.pi)), np.float32(0.044715)
    found: Floats = np.float32(0.5) * x * (1 + np.tanh(root * (x + cube * x * x * x)))
    return found


_FUNCTIONS: Final[dict[str, Callable[[Floats], Floats]]] = {
    "TANH": np.tanh,
    "LOGISTIC": lambda x: np.float32(1) / (np.float32(1) + np.exp(-x)),
    "ELU": _elu,
}
for _name, _function in _FUNCTIONS.items():
    if _name not in ("TANH", "LOGISTIC"):
        on_codes(_name)(_of_floats(_function))


@on_codes("TANH", "LOGISTIC")
def squashed(layer: TfliteLayer) -> Quantized:
    """Tanh and the logistic function; for 16 bits, both interpolate a table of the latter."""
    x, out = operand(layer, 0), result(layer)
    if not (of_whole(x, out) and x.dtype == out.dtype == _LONG):
        return _of_floats(_FUNCTIONS[layer.op])(layer)
    factor, shift = _input_factor(scale_of(x))
    bits = 9 if layer.op == "LOGISTIC" else 8

    def codes(given: Codes) -> Codes:
        value = (given * factor + ((1 << shift) >> 1)) >> shift
        size = np.abs(value)
        place = np.minimum(size >> bits, 255)
        low, high = _LOGISTIC[place], _LOGISTIC[np.minimum(place + 1, 255)]
        found = (low << bits) + (size & ((1 << bits) - 1)) * (high - low)
        if bits == 9:
            found = np.where(place == 255, 0x7FFF << 10, found) + (1 << 9)
            return np.where(value >= 0, found, (1 << 25) + (1 << 10) - 1 - found) >> 10
        found = np.where(place == 255, 0xFFFF << 8, found) - (1 << 23)
        return np.where(value >= 0, found + (1 << 7), (1 << 7) - 1 - found) >> 8

    return table(layer, codes)


def _logistic_steps() -> Codes:
    """Returns the logistic function at multiples of 1 / 24 in 16 bits, each raised by about half of
    the error of linear interpolation.
    """
    value = 1 / (1 + np.exp(-np.arange(256) / 24))
    bend = value * (1 - value) * (1 - 2 * value) / 24**2 / 8
    found: Codes = np.rint(65536 * (value - 0.48 * bend)).astype(np.int64)
    found[-1] = 65535
    return found


_LOGISTIC: Final = _logistic_steps()


def _input_factor(scale: np.float32) -> tuple[int, int]:
    """Returns the factor and the right shift that convert 16-bit codes to units of 1 / 4096 / 3."""
    fraction, exponent = math.frexp(float(scale))
    if fraction == 0.5 and 0 <= exponent - 1 + 12 <= 1:
        return 3 << (exponent - 1 + 12), 0
    real, shift = float(scale) * 4096 * 3, 0
    while real <= 32767 / 2 and shift <= 30:
        real, shift = real * 2, shift + 1
    return int(real), shift


@on_codes("EXP", "LOG", "RSQRT")
def power(layer: TfliteLayer) -> Quantized:
    """EXP, LOG and RSQRT; for 16 bits, interpolated between samples. Outside their domain, LOG has
    the lowest code and RSQRT the highest.
    """
    if not is_short(layer, long=True):
        return None
    x, out = operand(layer, 0), result(layer)
    low, high = integer_limits(out.dtype)

    def function(value: Floats) -> Floats:
        if layer.op == "EXP":
            return np.exp(value)
        inside = value > 0
        safe = np.where(inside, value, value.dtype.type(1))
        if layer.op == "LOG":
            return np.where(inside, np.log(safe), numbers(out, np.asarray(low)))
        return np.where(inside, 1 / np.sqrt(safe), numbers(out, np.asarray(high)))

    if x.dtype != _LONG:
        return _of_floats(function)(layer)
    before, after = ((float(scale_of(t)), zero_of(t)) for t in (x, out))
    found = interpolated(sampled(function, before, after, np.float32))
    return table(layer, lambda _: found)


@on_codes("SQRT")
def square_root(layer: TfliteLayer) -> Quantized:
    """Square roots, rounded down."""
    if not is_short(layer, long=True):
        return None
    x, out = operand(layer, 0), result(layer)

    def codes(given: Codes) -> Codes:
        root = np.sqrt(np.maximum(numbers(x, given), 0)) / scale_of(out)
        return np.floor(root).astype(np.int64) + zero_of(out)

    return table(layer, codes)


@on_codes("GELU")
def gelu(layer: TfliteLayer) -> Quantized:
    """Gaussian error linear unit."""
    found = _tanh_gelu if layer.flag("approximate", False) else _exact_gelu
    return _of_floats(found)(layer)


_BOUNDS: Final = {
    "RELU": (0.0, math.inf), "RELU6": (0.0, 6.0), "RELU_N1_TO_1": (-1.0, 1.0),
    "RELU_0_TO_1": (0.0, 1.0),
}  # fmt: skip


@on_codes(*_BOUNDS)
def relu(layer: TfliteLayer) -> Quantized:
    """Requantizes codes and limits them to a range."""
    if not is_short(layer, long=True):
        return None
    x, out = operand(layer, 0), result(layer)
    low, high = (
        bound
        if math.isinf(bound)
        else zero_of(out) + float(half_away(np.float32(bound) / scale_of(out)))
        for bound in _BOUNDS[layer.op]
    )
    real = np.float64(scale_of(x) / scale_of(out))

    def codes(given: Codes) -> Codes:
        value = fixed(given - zero_of(x), real) + zero_of(out)
        return np.clip(value, low, min(high, 1 << 20)).astype(np.int64)

    return table(layer, codes)


@on_codes("LEAKY_RELU")
def leaky_relu(layer: TfliteLayer) -> Quantized:
    """Requantizes codes, with the slope for negative ones."""
    if not is_short(layer, long=True):
        return None
    x, out = operand(layer, 0), result(layer)
    own = np.float64(scale_of(x) / scale_of(out))
    slope = np.float64(scale_of(x) * np.float32(layer.real("alpha", 0)) / scale_of(out))

    def codes(given: Codes) -> Codes:
        value = given - zero_of(x)
        return np.where(value >= 0, fixed(value, own), fixed(value, slope)) + zero_of(out)

    return table(layer, codes)


@on_codes("HARD_SWISH")
def hard_swish(layer: TfliteLayer) -> Quantized:
    """Codes in 16 bits, times a 16-bit factor that is limited to 0 and 1."""
    if not is_short(layer):
        return None
    x, out = operand(layer, 0), result(layer)
    fine = np.float32(1 / 128) * scale_of(x)
    to_out, out_shift = _short_multiplier(fine / scale_of(out))
    to_unit, unit_shift = _short_multiplier(fine / np.float32(3 / 32768))

    def codes(given: Codes) -> Codes:
        value = (given - zero_of(x)) << 7
        prescaled = _short_half(value, to_out)
        unit = value
        if unit_shift > 0:
            unit = _saturated(unit << (unit_shift - 1))
        unit = _short_half(unit, to_unit)
        if unit_shift > 0:
            unit = _saturated(unit << 1)
        elif unit_shift < 0:
            unit = divided_by_power(unit, -unit_shift)
        unit = (unit + (1 << 15)) >> 1
        product = _saturated(np.trunc(unit * prescaled / (1 << 15)).astype(np.int64))
        return divided_by_power(product, -out_shift) + zero_of(out)

    return table(layer, codes) if out_shift <= 0 else None


def _saturated(value: Codes) -> Codes:
    return np.clip(value, -32768, 32767)


def _short_half(value: Codes, factor: int) -> Codes:
    """Returns the doubled upper half of a 16-bit product."""
    return _saturated((value * factor + (1 << 14)) >> 15)


def _short_multiplier(real: Any) -> tuple[int, int]:
    """Returns a real number as a factor with 15 fraction bits, and an exponent of two."""
    factor, shift = (int(part) for part in multiplier(np.float64(real)))
    return min((factor + (1 << 15)) >> 16, 32767), shift


@on_codes("ABS")
def absolute(layer: TfliteLayer) -> Quantized:
    """Requantized absolute values."""
    if not is_short(layer, long=True):
        return None
    x, out = operand(layer, 0), result(layer)
    real = np.float64(scale_of(x) / scale_of(out))
    same = scale_of(x) == scale_of(out)

    def codes(given: Codes) -> Codes:
        value = np.abs(given - zero_of(x))
        return (value if same else fixed(value, real)) + zero_of(out)

    return table(layer, codes)
