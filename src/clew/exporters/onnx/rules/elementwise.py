"""Elementwise arithmetic and comparisons of two inputs."""

from __future__ import annotations

from typing import Final

import numpy as np

from clew.exporters.onnx.registry import Writing, writes
from clew.ir.types import is_float

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
