"""Elementwise functions of one input."""

from __future__ import annotations

import numpy as np

from clew.exporters.onnx.registry import Writing, writes
from clew.ir.types import STORAGE, bits, integer_limits, is_float, is_integer


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
