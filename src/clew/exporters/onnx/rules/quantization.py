"""Quantization: integers that stand for numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from clew.exporters.onnx.registry import Writing, writes
from clew.ir.types import STORAGE, is_integer

_ARITHMETIC = ("f16", "bf16", "f32")


def _axis(shape: tuple[int, ...], rank: int) -> int | None:
    """Returns the axis along which a parameter varies, -1 for none; None for several axes."""
    wide = [n for n, size in enumerate(shape) if size != 1]
    if not wide:
        return -1
    return rank - len(shape) + wide[0] if len(wide) == 1 else None


def _placed(w: Writing, parameters: list[str], shapes: list[tuple[int, ...]]) -> dict[str, Any]:
    """Shapes a scale and a zero point as ONNX takes them: one number, or a vector along an axis, or
    blocks. Returns the attributes that say how.
    """
    x, rank = w.shape(), w.types[0].rank
    block = w.attrs.get("block", 0)
    if block and any(shapes):
        axis = w.attrs.axis % rank
        for shape in shapes:
            fits = len(shape) == rank and all(
                a == b for n, (a, b) in enumerate(zip(shape, x, strict=True)) if n != axis
            )
            if not fits:
                w.refuse(f"blocks of shape {shape} do not cover {w.types[0]}")
        return {"axis": axis, "block_size": block}
    axes = {_axis(shape, rank) for shape in shapes}
    if None in axes or len(axes - {-1}) > 1:
        w.refuse("a scale or zero point varies along several axes")
    along = max(a for a in axes if a is not None)
    for n, shape in enumerate(shapes):
        if along < 0:
            parameters[n] = w.reshaped(parameters[n], ()) if shape else parameters[n]
        elif _axis(shape, rank) == along:
            parameters[n] = w.reshaped(parameters[n], (x[along],))
        else:
            one = w.reshaped(parameters[n], ()) if shape else parameters[n]
            parameters[n] = w.emit("Expand", one, w.integers(x[along]))
    return {} if along < 0 else {"axis": along}


@writes("dequantize")
def dequantize(w: Writing) -> str:
    """`DequantizeLinear` in f32, then the result's dtype."""
    x, scale, *zero = w.inputs
    if w.types[1].dtype == "f64":
        w.refuse("a scale is f64")
    if w.types[0].dtype == "i32" and zero:
        w.refuse("ONNX defines no zero point of i32")
    parameters = [w.cast(scale, "f32"), *zero]
    attrs = _placed(w, parameters, [w.shape(n) for n in range(1, len(w.inputs))])
    return w.cast(w.emit("DequantizeLinear", x, *parameters, dtype="f32", **attrs), w.type.dtype)


def _quantized(
    w: Writing, x: str, scale: str, zero: str | None, dtype: str, attrs: dict[str, Any], shape: Any
) -> str:
    """Returns `QuantizeLinear`, with a zero point for its dtype in any case."""
    if zero is None:
        zero = w.constant(np.zeros(shape), dtype)
    return w.emit("QuantizeLinear", x, scale, zero, **attrs)


@writes("quantize")
def quantize(w: Writing) -> str:
    """`QuantizeLinear` of operands in the dtype of the quotient."""
    x, scale, *zero = w.inputs
    dtype, attrs = w.attrs.dtype, w.attrs
    precision = attrs.precision or w.types[1].dtype
    precision = "f32" if precision in STORAGE else precision
    if precision not in _ARITHMETIC:
        w.refuse(f"ONNX does not divide in {precision}")
    if dtype in STORAGE and dtype[0] == "f" and not dtype.startswith("f8"):
        w.refuse(f"ONNX does not define quantization to {dtype} as clew does")
    parameters = [w.cast(scale, precision), *zero]
    shapes = [w.shape(n) for n in range(1, len(w.inputs))]
    placed = _placed(w, parameters, shapes)
    if not is_integer(dtype):
        placed["saturate"] = attrs.saturate
    along = placed.get("axis")
    shape: tuple[int, ...] = ()
    if "block_size" in placed:
        shape = shapes[0]
    elif along is not None:
        shape = (w.shape()[along],)
    zero_point = parameters[1] if zero else None
    return _quantized(w, w.cast(x, precision), parameters[0], zero_point, dtype, placed, shape)


def _scaled_to_integers(w: Writing, zero: list[str], zero_shape: list[tuple[int, ...]]) -> str:
    """Returns the first argument times the second, in f32, rounded, plus a zero point, clamped."""
    x = w.cast(w.inputs[0], "f32")
    product = w.emit("Mul", x, w.inputs[1])
    parameters = [w.constant(np.float32(1)), *zero]
    placed = _placed(w, parameters, [(), *zero_shape])
    shape = (w.shape()[placed["axis"]],) if placed else ()
    zero_point = parameters[1] if zero else None
    return _quantized(w, product, parameters[0], zero_point, w.attrs.dtype, placed, shape)


@writes("requantize")
def requantize(w: Writing) -> str:
    """`QuantizeLinear` with a step of 1 of the product with the scale."""
    shapes = [w.shape(n) for n in range(2, len(w.inputs))]
    return _scaled_to_integers(w, list(w.inputs[2:]), shapes)


@writes("fake_quantize")
def fake_quantize(w: Writing) -> str:
    """`requantize`, then the difference from the zero point times the step."""
    shapes = [w.shape(n) for n in range(3, len(w.inputs))]
    zero = list(w.inputs[3:])
    whole = w.cast(_scaled_to_integers(w, zero, shapes), "f32")
    if zero:
        whole = w.emit("Sub", whole, w.cast(zero[0], "f32"))
    return w.emit("Mul", whole, w.inputs[2])
