"""Logic, bit operations and selection."""

from __future__ import annotations

from clew.exporters.onnx.registry import Writing, writes
from clew.ir.types import bits


@writes("left_shift")
def left_shift(w: Writing) -> str:
    """`BitShift`, of which ONNX has only unsigned forms."""
    a, b = w.inputs
    return _shifted(w, a, b, "LEFT")


@writes("right_shift")
def right_shift(w: Writing) -> str:
    """`BitShift`; negative integers are shifted as their complements, which keeps their sign."""
    a, b = w.inputs
    if w.types[0].dtype[0] == "u":
        return _shifted(w, a, b, "RIGHT")
    below = w.emit("Less", a, w.scalar(0, a))
    moved = _shifted(w, w.emit("Where", below, w.emit("BitwiseNot", a), a), b, "RIGHT")
    return w.emit("Where", below, w.emit("BitwiseNot", moved), moved)


def _shifted(w: Writing, a: str, b: str, direction: str) -> str:
    dtype = w.dtype(a)
    wide = f"u{bits(dtype)}"
    moved = w.emit("BitShift", w.cast(a, wide), w.cast(b, wide), direction=direction)
    return w.cast(moved, dtype)
