"""Products with weights of a few bits."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clew.exporters.onnx.joins import Join, Site, called, joins
from clew.exporters.onnx.registry import Writing, writes
from clew.ir.expr import Call, Constant
from clew.ops.math.dense_codes import rows_of_panels, unpack_codes

_MOST: Final = 32767.0
_PART: Final = 32768.0
_LEAST: Final = 2.0**-126
_DTYPES: Final = {2: "i4", 4: "i4", 8: "i8"}
"""The dtype of codes in a model: ONNX has no integers of 2 bits in this opset."""


def _blocks(w: Writing, x: str, block: int) -> str:
    """Returns `[..., K]` as `[..., K / block, block]`."""
    *outer, depth = w.shape()
    return w.emit("Reshape", x, w.integers(*outer, depth // block, block))


@writes("block_steps")
def block_steps(w: Writing) -> str:
    """The largest magnitude of each block over 32767."""
    magnitudes = w.emit("Abs", _blocks(w, w.inputs[0], w.attrs.block))
    largest = w.emit("ReduceMax", magnitudes, w.integers(-1), keepdims=0)
    return w.emit(
        "Max", w.emit("Mul", largest, w.scalar(1 / _MOST, largest)), w.scalar(_LEAST, largest)
    )


@writes("round_blocks")
def round_blocks(w: Writing) -> str:
    """Rounded quotients, and their remainders."""
    *outer, depth = w.shape()
    steps = w.emit("Reshape", w.inputs[1], w.integers(*w.shape(1), 1))
    ratio = w.emit("Div", _blocks(w, w.inputs[0], w.attrs.block), steps)
    low, high = w.scalar(-_MOST, ratio), w.scalar(_MOST, ratio)
    pieces = [w.emit("Round", w.emit("Clip", ratio, low, high))]
    if w.attrs.parts > 1:
        rest = w.emit("Mul", w.emit("Sub", ratio, pieces[0]), w.scalar(_PART, ratio))
        pieces.append(w.emit("Round", w.emit("Clip", rest, low, high)))
    rows = [w.emit("Reshape", p, w.integers(*outer, 1, depth)) for p in pieces]
    whole = w.emit("Concat", *rows, axis=-2) if len(rows) > 1 else rows[0]
    return w.cast(whole, "i16")


@writes("nn.dense_codes")
def dense_codes(w: Writing) -> str:
    """A product of floats: the data times their steps, by the codes times their scales. The sums of
    the data times the scaled zero points are subtracted.
    """
    matrix, zeros = _weight(w)
    data = _numbers(w, w.inputs[0], w.attrs.block)
    result = w.emit("MatMul", data, matrix)
    if len(w.inputs) == 4:
        return result
    sums = _numbers(w, w.inputs[4], 1)
    if zeros is None:
        return w.emit("Add", result, w.emit("MatMul", sums, _columns(w, 5, "f32")))
    scaled = w.emit("Mul", w.cast(zeros, "f32"), _scales(w))
    return w.emit("Sub", result, w.emit("MatMul", sums, scaled))


def _numbers(w: Writing, parts: str, block: int) -> str:
    """Returns numbers, `f32[..., n]`, from integers `[..., parts, n]` in steps of blocks."""
    *outer, count, depth = w.shape()
    blocks = w.shape(1)[-1]
    depth = depth if block > 1 else blocks
    wide = w.cast(parts, "f32")
    total = w.emit("Gather", wide, w.constant(np.int64(0)), axis=-2)
    if count > 1:
        rest = w.emit("Gather", wide, w.constant(np.int64(1)), axis=-2)
        total = w.emit("Add", total, w.emit("Mul", rest, w.scalar(1 / _PART, rest)))
    if block == 1:
        return w.emit("Mul", total, w.inputs[1])
    apart = w.emit("Reshape", total, w.integers(*outer, blocks, block))
    steps = w.emit("Reshape", w.inputs[1], w.integers(*outer, blocks, 1))
    return w.emit("Reshape", w.emit("Mul", apart, steps), w.integers(*outer, depth))


def _need_constants(w: Writing) -> None:
    for n in (2, 3, 5):
        if n < len(w.call.args) and not isinstance(w.call.args[n], Constant):
            w.refuse("codes, scales or zero points are not constants")


def _units(w: Writing) -> int:
    panels, _, width, _ = w.shape(2)
    return w.attrs.units or panels * width


def _columns(w: Writing, n: int, dtype: str) -> str:
    """Returns scales or zero points as `[blocks, N]` in a dtype."""
    units = _units(w)

    def change(x: NDArray[Any]) -> NDArray[Any]:
        return np.ascontiguousarray(rows_of_panels(x)[:units].T)

    return w.derived(w.inputs[n], f"columns {units}", change, dtype)


def _scales(w: Writing) -> str:
    return _columns(w, 3, "f32")


def _weight(w: Writing, zero_points: bool = False) -> tuple[str, str | None]:
    """Returns the weight `f32[K, N]`, dequantized in blocks, and its zero points `[blocks, N]`,
    which are subtracted from the codes if `zero_points` is set.
    """
    _need_constants(w)
    bits, units, dtype = w.attrs.bits, _units(w), _DTYPES[w.attrs.bits]

    def change(x: NDArray[Any]) -> NDArray[Any]:
        return np.ascontiguousarray(unpack_codes(x, bits)[:units].T)

    codes = w.derived(w.inputs[2], f"codes {bits} {units}", change, dtype)
    has_zeros = len(w.inputs) > 4 and w.call.args[5].tensor.dtype == "i8"
    zeros = _columns(w, 5, dtype) if has_zeros else None
    given = [zeros] if zero_points and zeros else []
    matrix = w.emit(
        "DequantizeLinear",
        codes,
        _scales(w),
        *given,
        dtype="f32",
        axis=0,
        block_size=w.attrs.block,
    )
    return matrix, zeros


@joins("nn.dense_codes")
def unrounded(call: Call) -> Join | None:
    """A product of data that have been rounded to integers: that of the data as they were. They
    keep the precision of `f32` in two parts, and are more accurate than one.
    """
    rounded = called(call.args[0], "round_blocks")
    if rounded is None or not isinstance(call.args[2], Constant):
        return None
    steps = called(rounded.args[1], "block_steps")
    same = steps is not None and steps.args[0] is rounded.args[0]
    if not same or call.args[1] is not steps or not _fits(call):
        return None

    def write(site: Site) -> str:
        w = site.at(call)
        matrix, _ = _weight(w, zero_points=True)
        return w.emit("MatMul", site.name(rounded.args[0]), matrix)

    return Join((), write)


def _fits(call: Call) -> bool:
    """Whether codes have no zero points, or those of sums of the data, in the range of codes."""
    if len(call.args) == 4:
        return True
    zeros = call.args[5]
    if not isinstance(zeros, Constant) or zeros.tensor.dtype != "i8":
        return False
    half = 1 << (8 if _DTYPES[call.attrs.bits] == "i8" else 4) - 1
    within = -half <= int(zeros.data.min(initial=0)) <= int(zeros.data.max(initial=0)) < half
    return within and _sums_of(call)


def _sums_of(call: Call) -> bool:
    """Whether the sums of blocks are computed from the data."""
    total = called(call.args[4], "sum")
    inner = called(total.args[0], "reshape", "cast") if total is not None else None
    while inner is not None:
        if inner.args[0] is call.args[0]:
            return True
        inner = called(inner.args[0], "reshape", "cast")
    return False
