"""Elementwise arithmetic and comparisons of two inputs."""

from __future__ import annotations

from typing import Final

import numpy as np

from clew.exporters.onnx.registry import Writing, writes
from clew.ir.types import STORAGE, bits, integer_limits, is_float, is_integer

# The largest known exponent of an integer power that becomes products.
_MOST_FACTORS: Final = 16


@writes("not_equal")
def not_equal(w: Writing) -> str:
    """The negation of `Equal`."""
    return w.emit("Not", w.emit("Equal", *w.inputs))


def _unsafe(w: Writing) -> str | None:
    """Returns where an integer divisor is 0 or -1, for which ONNX defines no quotient (of the
    least integer, for -1); None if it is known to be neither.
    """
    known, b = w.known(1), w.inputs[1]
    signed = w.types[1].dtype[0] == "i"
    if known is not None and not np.isin(known, [0, -1] if signed else [0]).any():
        return None
    zero = w.emit("Equal", b, w.scalar(0, b))
    return w.emit("Or", zero, w.emit("Equal", b, w.scalar(-1, b))) if signed else zero


def _held(w: Writing, unsafe: str) -> str:
    b = w.inputs[1]
    return w.emit("Where", unsafe, w.scalar(1, b), b)


@writes("divide")
def divide(w: Writing) -> str:
    """`Div`; integers are divided by 1 instead of 0 and -1, and negated for the latter."""
    a, b = w.inputs
    unsafe = None if is_float(w.types[1].dtype) else _unsafe(w)
    if unsafe is None:
        return w.emit("Div", a, b)
    quotient = w.emit("Div", a, _held(w, unsafe))
    if w.types[1].dtype[0] == "u":
        return quotient
    return w.emit("Where", w.emit("Equal", b, w.scalar(-1, b)), w.emit("Neg", a), quotient)


@writes("mod")
def mod(w: Writing) -> str:
    """`Mod` as C's `fmod`; the remainder by 0 and -1 is that by 1, which is 0."""
    a, b = w.inputs
    unsafe = None if is_float(w.types[1].dtype) else _unsafe(w)
    return w.emit("Mod", a, b if unsafe is None else _held(w, unsafe), fmod=1)


@writes("floor_mod")
def floor_mod(w: Writing) -> str:
    """`Mod` for integers. For floats, the divisor is added to `fmod`s of the other sign."""
    a, b = w.inputs
    if not is_float(w.types[0].dtype):
        unsafe = _unsafe(w)
        return w.emit("Mod", a, b if unsafe is None else _held(w, unsafe), fmod=0)
    rest, zero = w.emit("Mod", a, b, fmod=1), w.scalar(0, a)
    signs = w.emit("Xor", w.emit("Less", rest, zero), w.emit("Less", b, zero))
    wrong = w.emit("And", w.emit("Not", w.emit("Equal", rest, zero)), signs)
    return w.emit("Where", wrong, w.emit("Add", rest, b), rest)


@writes("power")
def power(w: Writing) -> str:
    """`Pow` for floats. An integer power is exact and wraps, which ONNX does not define; known
    small exponents become products.
    """
    a, b = w.inputs
    if is_float(w.types[0].dtype):
        return w.emit("Pow", a, b)
    known = w.known(1)
    fits = known is not None and known.size == 1 and w.types[1].rank <= w.types[0].rank
    exponent = int(known.reshape(-1)[0]) if known is not None and fits else 0
    if not 1 <= exponent <= _MOST_FACTORS:
        w.refuse("integer powers are exact and wrap, which ONNX does not define")
    result = w.emit("Identity", a) if exponent == 1 else a
    for _ in range(exponent - 1):
        result = w.emit("Mul", result, a)
    return result


@writes("negative")
def negative(w: Writing) -> str:
    """`Neg`, which is not defined for unsigned integers: these wrap."""
    (x,) = w.inputs
    if w.types[0].dtype[0] == "u":
        return w.emit("Sub", w.scalar(0, x), x)
    return w.emit("Neg", x)


@writes("rsqrt")
def rsqrt(w: Writing) -> str:
    """The reciprocal of the root."""
    return w.emit("Reciprocal", w.emit("Sqrt", *w.inputs))


@writes("trunc")
def trunc(w: Writing) -> str:
    """Rounded up below 0, else down."""
    (x,) = w.inputs
    below = w.emit("Less", x, w.scalar(0, x))
    return w.emit("Where", below, w.emit("Ceil", x), w.emit("Floor", x))


@writes("cast")
def cast(w: Writing) -> str:
    """`Cast` without saturation. Where the standard leaves a result open (floats out of an
    integer's range), so does the model.
    """
    (x,), source, dtype = w.inputs, w.types[0].dtype, w.attrs.dtype
    if dtype == source:
        return w.emit("Identity", x)
    if dtype in STORAGE and bits(dtype) < 8:
        w.refuse(f"ONNX does not define numbers beyond the range of {dtype}")
    if dtype == "f8e8m0fnu":
        return w.emit("Cast", x, dtype=dtype, to=w.number(dtype), saturate=0, round_mode="nearest")
    saturate = 0 if dtype in STORAGE else None
    return w.emit("Cast", x, dtype=dtype, to=w.number(dtype), saturate=saturate)


@writes("to_exponent")
def to_exponent(w: Writing) -> str:
    """`Cast` of magnitudes to powers of two."""
    (x,), dtype = w.inputs, "f8e8m0fnu"
    return w.emit(
        "Cast",
        w.emit("Abs", x),
        dtype=dtype,
        to=w.number(dtype),
        saturate=w.attrs.saturate,
        round_mode=w.attrs.round_mode,
    )


@writes("bitcast")
def bitcast(w: Writing) -> str:
    """Integers wrap between signed and unsigned; ONNX has no other bit casts in this opset."""
    source, dtype = w.types[0].dtype, w.attrs.dtype
    if dtype == source:
        return w.emit("Identity", *w.inputs)
    whole = (is_integer(source) or source == "bool") and (is_integer(dtype) or dtype == "bool")
    if not whole or bits(source) < 8:
        w.refuse(f"ONNX has no cast of bits from {source} to {dtype} before opset 26")
    return w.cast(w.inputs[0], dtype)


@writes("clip")
def clip(w: Writing) -> str:
    """`Clip` with limits in the dtype of the input."""
    (x,), dtype = w.inputs, w.types[0].dtype
    limits: list[str | None] = []
    for value in (w.attrs.min, w.attrs.max):
        if value is None:
            limits.append(None)
            continue
        if not is_float(dtype):
            low, high = integer_limits(dtype)
            value = low if value <= low else high if value >= high else int(value)
        limits.append(w.constant(np.asarray(value), dtype))
    if limits == [None, None]:
        return w.emit("Identity", x)
    return w.emit("Clip", x, *limits)


@writes("nn.relu")
def relu(w: Writing) -> str:
    """`Relu`, which is not defined for unsigned integers: these do not change."""
    return w.emit("Identity" if w.types[0].dtype[0] == "u" else "Relu", *w.inputs)


@writes("nn.silu")
def silu(w: Writing) -> str:
    """`Swish` with `alpha` 1."""
    return w.emit("Swish", *w.inputs, alpha=1.0)


@writes("nn.celu")
def celu(w: Writing) -> str:
    """`alpha * Elu(x / alpha)`: `Celu` is defined for f32 only."""
    (x,), alpha = w.inputs, w.real("alpha")
    if w.types[0].dtype == "f32":
        return w.emit("Celu", x, alpha=alpha)
    if alpha == 1.0:
        return w.emit("Elu", x, alpha=1.0)
    if alpha <= 0:
        w.refuse(f"alpha={alpha}")
    factor = w.constant(np.asarray(alpha), w.types[0].dtype)
    return w.emit("Mul", w.emit("Elu", w.emit("Div", x, factor), alpha=1.0), factor)


@writes("left_shift")
def left_shift(w: Writing) -> str:
    """`BitShift`, of which ONNX has only unsigned forms."""
    a, b = w.inputs
    return _shifted(w, a, b, "LEFT")


@writes("right_shift")
def right_shift(w: Writing) -> str:
    """`BitShift`; negative integers are shifted as their complements, which keeps their sign."""
    a, b = w.inputs
    return _shifted(w, a, b, "RIGHT") if w.types[0].dtype[0] == "u" else shifted_right(w, a, b)


def shifted_right(w: Writing, a: str, b: str) -> str:
    """Returns signed integers shifted to the right."""
    below = w.emit("Less", a, w.scalar(0, a))
    moved = _shifted(w, w.emit("Where", below, w.emit("BitwiseNot", a), a), b, "RIGHT")
    return w.emit("Where", below, w.emit("BitwiseNot", moved), moved)


def _shifted(w: Writing, a: str, b: str, direction: str) -> str:
    dtype = w.dtype(a)
    wide = f"u{bits(dtype)}"
    moved = w.emit("BitShift", w.cast(a, wide), w.cast(b, wide), direction=direction)
    return w.cast(moved, dtype)
