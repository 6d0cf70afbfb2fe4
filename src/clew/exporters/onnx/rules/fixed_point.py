"""Integers times numbers that are integers times powers of two."""

from __future__ import annotations

from typing import Final

from clew.exporters.onnx.registry import Writing, writes
from clew.exporters.onnx.rules.elementwise import shifted_right

_FRACTION: Final = 31  # bits of a factor's fraction
_PART: Final = 16


@writes("scale_fixed")
def scale_fixed(w: Writing) -> str:
    """The roundings as arithmetic on integers of 64 bits."""
    x, factor, shift = (w.cast(each, "i64") for each in w.inputs)
    if w.types[0].dtype == "i32" and w.attrs.once:
        half = _left(w, w.scalar(1, x), _plus(w, shift, _FRACTION - 1))
        total = w.emit("Add", w.emit("Mul", x, factor), half)
        found = shifted_right(w, total, _plus(w, shift, _FRACTION))
    elif w.types[0].dtype == "i32":
        found = _in_two_roundings(w, x, factor, shift)
    elif w.attrs.halved:
        found = _by_half(w, x, factor, shift)
    else:
        found = _in_parts(w, x, factor, shift)
    return w.cast(found, "i32")


@writes("rescale")
def rescale(w: Writing) -> str:
    """A product, a sum and a shift of integers of 64 bits."""
    x, factor, offset, shift = (w.cast(each, "i64") for each in w.inputs)
    total = w.emit("Add", w.emit("Mul", x, factor), offset)
    return w.cast(shifted_right(w, total, _plus(w, shift, 32)), "i32")


@writes("rescale_away")
def rescale_away(w: Writing) -> str:
    """As `rescale`; 1 is subtracted from what is below the limit, before the last shift."""
    x, factor, offset, limit, shift = (w.cast(each, "i64") for each in w.inputs)
    total = w.emit("Add", w.emit("Mul", x, _plus(w, factor, 1 << 32)), offset)
    below = w.cast(w.emit("Less", x, limit), "i64")
    high = w.emit("Sub", _right(w, total, 32), below)
    return w.cast(shifted_right(w, high, shift), "i32")


def _in_two_roundings(w: Writing, x: str, factor: str, shift: str) -> str:
    product = _plus(w, w.emit("Mul", x, factor), 1 << (_FRACTION - 1))
    high = _right(w, product, _FRACTION)
    mask = _plus(w, _left(w, w.scalar(1, x), shift), -1)
    below = w.cast(w.emit("Less", high, w.scalar(0, x)), "i64")
    most = w.emit("Add", _right(w, mask, 1), below)
    up = w.emit("Greater", w.emit("BitwiseAnd", high, mask), most)
    return w.emit("Add", shifted_right(w, high, shift), w.cast(up, "i64"))


def _in_parts(w: Writing, x: str, factor: str, shift: str) -> str:
    high = _right(w, factor, _PART)
    low = w.emit("BitwiseAnd", factor, w.scalar((1 << _PART) - 1, x))
    half = _left(w, w.scalar(1, x), _plus(w, shift, _FRACTION - 1))
    carried = _right(w, w.emit("Add", w.emit("Mul", x, low), half), _PART)
    total = w.emit("Add", w.emit("Mul", x, high), carried)
    return shifted_right(w, total, _plus(w, shift, _FRACTION - _PART))


def _by_half(w: Writing, x: str, factor: str, shift: str) -> str:
    rounded = _right(w, _plus(w, factor, 1 << (_PART - 1)), _PART)
    short = w.emit("Min", rounded, w.scalar(0x7FFF, x))
    right = _plus(w, shift, _FRACTION - _PART)
    half = _left(w, w.scalar(1, x), _plus(w, right, -1))
    return shifted_right(w, w.emit("Add", w.emit("Mul", x, short), half), right)


def _plus(w: Writing, x: str, number: int) -> str:
    return w.emit("Add", x, w.scalar(number, x))


def _right(w: Writing, x: str, places: int) -> str:
    return shifted_right(w, x, w.scalar(places, x))


def _left(w: Writing, x: str, places: str) -> str:
    moved = w.emit("BitShift", w.cast(x, "u64"), w.cast(places, "u64"), direction="LEFT")
    return w.cast(moved, "i64")
