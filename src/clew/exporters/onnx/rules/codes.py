"""Products with weights of a few bits."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clew.exporters.onnx.joins import Join, Site, called, joins
from clew.exporters.onnx.registry import Writing, writes
from clew.ir.expr import Call, Constant
from clew.ir.types import integer_limits
from clew.ops.math.dense_codes import most_of_first, rows_of_panels, unpack_codes

_BASE: Final = {"i16": 32768.0, "i8": 256.0}
"""The weight of a digit over that of the next one, by the dtype of digits."""
_LEAST: Final = 2.0**-126


def _dtype(call: Call) -> str:
    """Returns the dtype of codes in a model: ONNX has no integers of 2 bits in this opset."""
    kind = "u" if call.args[2].tensor.dtype == "u8" else "i"
    return f"{kind}{max(call.attrs.bits, 4)}"


def _blocks(w: Writing, x: str, block: int) -> str:
    """Returns `[..., K]` as `[..., K / block, block]`."""
    *outer, depth = w.shape()
    return w.emit("Reshape", x, w.integers(*outer, depth // block, block))


@writes("block_steps")
def block_steps(w: Writing) -> str:
    """The largest magnitude of each block over that of the first digit."""
    most = most_of_first(w.attrs.dtype, w.attrs.parts)
    magnitudes = w.emit("Abs", _blocks(w, w.inputs[0], w.attrs.block))
    largest = w.emit("ReduceMax", magnitudes, w.integers(-1), keepdims=0)
    return w.emit(
        "Max", w.emit("Mul", largest, w.scalar(1 / most, largest)), w.scalar(_LEAST, largest)
    )


@writes("round_blocks")
def round_blocks(w: Writing) -> str:
    """Rounded quotients, and their remainders."""
    *outer, depth = w.shape()
    steps = w.emit("Reshape", w.inputs[1], w.integers(*w.shape(1), 1))
    ratio = w.emit("Div", _blocks(w, w.inputs[0], w.attrs.block), steps)
    parts, dtype = w.attrs.parts, w.attrs.dtype
    base, most = _BASE[dtype], most_of_first(dtype, parts)

    def clipped(value: str) -> str:
        return w.emit("Clip", value, w.scalar(-most, value), w.scalar(most, value))

    rest = clipped(ratio)
    if dtype == "i8":
        pieces = _digits(w, rest, parts)
    else:
        pieces = [w.emit("Round", rest)]
        if parts > 1:
            rest = w.emit("Mul", w.emit("Sub", ratio, pieces[0]), w.scalar(base, ratio))
            pieces.append(w.emit("Round", clipped(rest)))
    rows = [w.emit("Reshape", p, w.integers(*outer, 1, depth)) for p in pieces]
    whole = w.emit("Concat", *rows, axis=-2) if len(rows) > 1 else rows[0]
    return w.cast(whole, dtype)


def _digits(w: Writing, value: str, count: int) -> list[str]:
    """Returns the signed digits of a number that is rounded at the last one, the highest first.
    Floats hold these integers exactly.
    """
    base = _BASE["i8"]
    rest = w.emit("Round", w.emit("Mul", value, w.scalar(base ** (count - 1), value)))
    digits: list[str] = []
    for _ in range(count - 1):
        # (rest + 128) // 256 is what remains of a number less its last digit.
        shifted = w.emit("Add", rest, w.scalar(base / 2, value))
        higher = w.emit("Floor", w.emit("Mul", shifted, w.scalar(1 / base, value)))
        digits.append(w.emit("Sub", rest, w.emit("Mul", higher, w.scalar(base, value))))
        rest = higher
    return [rest, *reversed(digits)]


@writes("nn.dense_codes")
def dense_codes(w: Writing) -> str:
    """A product of floats: the data times their steps, by the codes times their scales. The sums of
    the data times the scaled zero points are subtracted.
    """
    matrix = _weight(w)
    data = _numbers(w, w.inputs[0], w.attrs.block)
    result = w.emit("MatMul", data, matrix)
    at = _sums_at(w.call)
    if at == len(w.inputs):
        return result
    sums, scales = _numbers(w, w.inputs[at], 1), _scales(w)
    if w.attrs.zero:
        scaled = w.emit("Mul", scales, w.scalar(float(w.attrs.zero), scales))
        result = w.emit("Sub", result, w.emit("MatMul", sums, scaled))
    if at + 1 == len(w.inputs):
        return result
    if w.call.args[at + 1].tensor.dtype != "i8":
        return w.emit("Add", result, w.emit("MatMul", sums, _factored(w, at + 1)))
    scaled = w.emit("Mul", _columns(w, at + 1, "f32"), scales)
    return w.emit("Sub", result, w.emit("MatMul", sums, scaled))


def _sums_at(call: Call) -> int:
    """Returns the place of the sums of data among the operands."""
    return 4 + bool(call.attrs.fold)


def _numbers(w: Writing, parts: str, block: int) -> str:
    """Returns numbers, `f32[..., n]`, from integers `[..., parts, n]` in steps of blocks."""
    *outer, count, depth = w.shape()
    blocks = w.shape(1)[-1]
    depth = depth if block > 1 else blocks
    wide = w.cast(parts, "f32")
    total = w.emit("Gather", wide, w.constant(np.int64(0)), axis=-2)
    base = _BASE[w.call.args[0].tensor.dtype]
    for n in range(1, count):
        rest = w.emit("Gather", wide, w.constant(np.int64(n)), axis=-2)
        total = w.emit("Add", total, w.emit("Mul", rest, w.scalar(base**-n, rest)))
    if block == 1:
        return w.emit("Mul", total, w.inputs[1])
    apart = w.emit("Reshape", total, w.integers(*outer, blocks, block))
    steps = w.emit("Reshape", w.inputs[1], w.integers(*outer, blocks, 1))
    return w.emit("Reshape", w.emit("Mul", apart, steps), w.integers(*outer, depth))


def _need_constants(w: Writing) -> None:
    for n in range(2, len(w.call.args)):
        if n != _sums_at(w.call) and not isinstance(w.call.args[n], Constant):
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


def _points(w: Writing) -> list[str]:
    """Returns the zero points of all codes as `[blocks, N]` in the dtype of codes, or nothing."""
    at, units, zero = _sums_at(w.call) + 1, _units(w), w.attrs.zero
    by_block = at < len(w.inputs)
    if not by_block and not zero:
        return []

    def change(x: NDArray[Any]) -> NDArray[Any]:
        own = rows_of_panels(x)[:units].T.astype(np.int16) if by_block else np.int16(0)
        return np.broadcast_to(own + np.int16(zero), (x.shape[1], units)).copy()

    given = w.inputs[at if by_block else 3]
    return [w.derived(given, f"points {units} {zero}", change, _dtype(w.call))]


def _factored(w: Writing, n: int) -> str:
    """Returns numbers, `[blocks, N]`, times the factors that follow them if there are any."""
    numbers = _columns(w, n, "f32")
    fold, units = w.attrs.fold, _units(w)
    if not fold:
        return numbers

    def change(x: NDArray[Any]) -> NDArray[Any]:
        return np.ascontiguousarray(np.repeat(rows_of_panels(x)[:units].T, fold, axis=0))

    factors = w.derived(w.inputs[n + 1], f"factors {units} {fold}", change, "f32")
    return w.emit("Mul", numbers, factors)


def _scales(w: Writing) -> str:
    return _factored(w, 3)


def _weight(w: Writing, *points: str) -> str:
    """Returns the weight `f32[K, N]`, dequantized in blocks, less zero points if they are given."""
    _need_constants(w)
    bits, units = w.attrs.bits, _units(w)

    def change(x: NDArray[Any]) -> NDArray[Any]:
        return np.ascontiguousarray(unpack_codes(x, bits)[:units].T)

    codes = w.derived(w.inputs[2], f"codes {bits} {units}", change, _dtype(w.call))
    block = w.attrs.block
    return w.emit(
        "DequantizeLinear", codes, _scales(w), *points, dtype="f32", axis=0, block_size=block
    )


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
        matrix = _weight(w, *_points(w))
        return w.emit("MatMul", site.name(rounded.args[0]), matrix)

    return Join((), write)


def _fits(call: Call) -> bool:
    """Whether codes have no zero points, or those of sums of the data, in the range of codes."""
    at, dtype = _sums_at(call), _dtype(call)
    if len(call.args) == at:
        return True
    points = np.full(1, call.attrs.zero)
    if len(call.args) > at + 1:
        zeros = call.args[at + 1]
        if not isinstance(zeros, Constant) or zeros.tensor.dtype != "i8":
            return False
        points = zeros.data.astype(np.int16) + call.attrs.zero
    low, high = integer_limits(dtype)
    within = low <= int(points.min(initial=0)) <= int(points.max(initial=0)) <= high
    return within and _sums_of(call)


def _sums_of(call: Call) -> bool:
    """Whether the sums of blocks are computed from the data."""
    total = called(call.args[_sums_at(call)], "sum")
    inner = called(total.args[0], "reshape", "cast") if total is not None else None
    while inner is not None:
        if inner.args[0] is call.args[0]:
            return True
        inner = called(inner.args[0], "reshape", "cast")
    return False
