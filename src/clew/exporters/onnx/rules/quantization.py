"""Quantization: integers that stand for numbers."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clew.exporters.onnx.registry import Writing, writes
from clew.ir.types import NARROW_FLOATS, STORAGE, is_integer

_ARITHMETIC: Final = (*NARROW_FLOATS, "f32")
_SHORT: Final = ("i8", "u8", "i16", "u16")


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
            if shape != (x[along],):
                parameters[n] = w.reshaped(parameters[n], (x[along],))
        else:
            one = w.reshaped(parameters[n], ()) if shape else parameters[n]
            parameters[n] = w.emit("Expand", one, w.integers(x[along]))
    return {} if along < 0 else {"axis": along}


@writes("dequantize")
def dequantize(w: Writing) -> str:
    """`DequantizeLinear` in f32, then the result's dtype."""
    if w.types[1].dtype == "f64":
        w.refuse("a scale is f64")
    if w.types[0].dtype == "i32" and len(w.inputs) > 2:
        w.refuse("ONNX defines no zero point of i32")
    return w.cast(dequantized(w, w.inputs[0], scale=1, first=2), w.type.dtype)


def dequantized(w: Writing, x: str, *, scale: int, first: int) -> str:
    """Returns integers less their zero points, times their scales, in f32. `scale` and `first` are
    the arguments for a scale and, if there is one, a zero point.
    """
    parameters = [w.cast(w.inputs[scale], "f32"), *w.inputs[first:]]
    shapes = [w.shape(n) for n in (scale, *range(first, len(w.inputs)))]
    attrs = _placed(w, parameters, shapes)
    if len(parameters) == 1 and w.dtype(x) in _SHORT:
        # ONNX Runtime joins pairs of nodes only if all have zero points.
        parameters.append(w.constant(np.zeros(_point_shape(w, attrs, shapes)), w.dtype(x)))
    return w.emit("DequantizeLinear", x, *parameters, dtype="f32", **attrs)


def _point_shape(
    w: Writing, placed: dict[str, Any], shapes: list[tuple[int, ...]]
) -> tuple[int, ...]:
    """Returns the shape of a zero point for a scale."""
    if "block_size" in placed:
        return shapes[0]
    return (w.shape()[placed["axis"]],) if placed else ()


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
    shape = _point_shape(w, placed, shapes)
    zero_point = parameters[1] if zero else None
    return _quantized(w, w.cast(x, precision), parameters[0], zero_point, dtype, placed, shape)


def _scaled_to_integers(w: Writing, first: int) -> str:
    """Returns the first argument times the second, in f32, rounded, plus the zero point from
    argument `first` on, clamped. Floats times a known scale are divided by its reciprocal, so that
    engines recognize a quantization.
    """
    x, scale, rank = w.cast(w.inputs[0], "f32"), w.known(1), w.types[0].rank
    axes = {_axis(w.shape(n), rank) for n in (1, *range(first, len(w.inputs)))} - {-1}
    along_one = len(axes) <= 1 and None not in axes
    if w.types[0].dtype == "f32" and scale is not None and along_one and _has_inverse(scale):
        shapes, step = [w.shape(1)], w.inverse(w.inputs[1])
    else:
        x, shapes = w.emit("Mul", x, w.inputs[1]), [()]
        step = w.constant(np.float32(1))
    parameters = [step, *w.inputs[first:]]
    placed = _placed(w, parameters, [*shapes, *(w.shape(n) for n in range(first, len(w.inputs)))])
    shape = _point_shape(w, placed, shapes)
    zero_point = parameters[1] if len(parameters) > 1 else None
    return _quantized(w, x, parameters[0], zero_point, w.attrs.dtype, placed, shape)


def _has_inverse(scale: NDArray[Any]) -> bool:
    with np.errstate(all="ignore"):
        return bool((np.isfinite(1 / scale) & (1 / scale != 0)).all())


@writes("requantize")
def requantize(w: Writing) -> str:
    """`QuantizeLinear` with a step of 1 of the product with the scale."""
    return _scaled_to_integers(w, 2)


@writes("fake_quantize")
def fake_quantize(w: Writing) -> str:
    """`requantize`, then `DequantizeLinear`."""
    return dequantized(w, _scaled_to_integers(w, 3), scale=2, first=3)
