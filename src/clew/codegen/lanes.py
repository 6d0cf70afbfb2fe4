"""Values in registers as Python objects: literals, instructions and conversions, on any lanes.

`Lanes` wraps a `Value` so that code reads like a formula. Every operation is one LLVM instruction
with LLVM's semantics (a division by zero traps). `arith` implements the semantics of tensor
expressions, and `vmath` functions. Nothing here depends on the target.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import ml_dtypes
import numpy as np

from clew.codegen.builder import Builder, Value, llvm_type
from clew.ir.types import DTYPES, NARROW_FLOATS, STORAGE, bits, is_float, is_integer, to_numpy
from clew.support.caches import bounded_cache
from clew.support.errors import CompileError

_INTEGER_OF: Final = {"f16": "i16", "bf16": "i16", "f32": "i32", "f64": "i64"}
_FLOAT_OF: Final = {"i32": "f32", "i64": "f64"}


def check_dtype(dtype: str) -> None:
    """Rejects dtypes that can only be stored, moved and converted.

    Errors: C010 for integers of less than 8 bits, and floats of up to 8 bits.
    """
    assert dtype in DTYPES, dtype
    if dtype in STORAGE:
        raise CompileError(
            "C010",
            f"code generation has no arithmetic on {dtype}",
            hint="cast or dequantize the tensor first, or store it as i8 or f16",
        )


def literal(value: Any, dtype: str, lanes: int = 1) -> Value:
    """Returns a literal, in every lane. Floats are rounded to the dtype, integers wrap."""
    text = _literal_text(value, dtype)
    if lanes > 1:
        text = f"splat ({llvm_type(dtype)} {text})"
    return Value(text, dtype, lanes)


def _literal_text(value: Any, dtype: str) -> str:
    if dtype == "bool":
        return "true" if value else "false"
    if dtype in STORAGE:
        low = int(value) % (1 << bits(dtype)) if is_integer(dtype) else value
        with np.errstate(over="ignore", invalid="ignore"):
            return str(int(np.asarray(low).astype(to_numpy(dtype)).view(np.int8)))
    if is_integer(dtype):
        half = 1 << (bits(dtype) - 1)
        return str((int(value) + half) % (2 * half) - half)
    with np.errstate(over="ignore"):
        if dtype == "bf16":  # bits, as in registers
            return str(int(np.asarray(value, ml_dtypes.bfloat16).view(np.int16)))
        if value != value:
            return "0xH7E00" if dtype == "f16" else "0x7FF8000000000000"
        if dtype == "f16":
            return f"0xH{np.float16(value).view(np.uint16):04X}"
        exact = float(np.float32(value)) if dtype == "f32" else float(value)
    return f"0x{struct.unpack('>Q', struct.pack('>d', exact))[0]:016X}"


def literal_of(value: Value) -> float | int | bool | None:
    """Returns the number of a literal value, else None."""
    return None if value.text[0] == "%" else _parse_literal(value.text, value.dtype)


@bounded_cache(1 << 20)
def _parse_literal(text: str, dtype: str) -> float | int | bool | None:
    if text.startswith("splat ("):
        text = text[len("splat (") : -1].split(" ", 1)[1]
    if text == "zeroinitializer":
        text = "false" if dtype == "bool" else "0"
    if dtype == "bool":
        return {"true": True, "false": False}.get(text)
    if dtype in STORAGE:
        number = np.array([int(text)], np.int8).view(to_numpy(dtype))[0]
        return int(number) if is_integer(dtype) else float(number)
    if is_integer(dtype):
        try:
            number = int(text)
        except ValueError:
            return None
        return number + (1 << bits(dtype)) if dtype[0] == "u" and number < 0 else number
    if dtype == "bf16":
        return float(np.array([int(text)], np.int16).view(ml_dtypes.bfloat16)[0])
    if text == "0":
        return 0.0
    kind, digits = text[:3], text[3:]
    if kind == "0xH":
        return float(np.array([int(digits, 16)], np.uint16).view(np.float16)[0])
    if text.startswith("0x"):
        number_of: float = struct.unpack(">d", struct.pack(">Q", int(text, 16)))[0]
        return number_of
    return None


Number: TypeAlias = "Lanes | int | float | bool"


class Lanes:
    """A value, and the builder that receives its instructions.

    Arithmetic and comparisons are the dtype's (signed, unsigned, float); integers wrap; comparisons
    with NaN are false, `!=` true. Python numbers become literals of the other operand's dtype.
    """

    __slots__ = ("b", "value")

    def __init__(self, b: Builder, value: Value) -> None:
        self.b = b
        self.value = value

    __hash__ = None  # type: ignore[assignment]

    @property
    def dtype(self) -> str:
        """The dtype of each lane."""
        return self.value.dtype

    def like(self, number: Number, dtype: str = "") -> Lanes:
        """Returns a number as a literal of this dtype (or `dtype`) and lanes."""
        if isinstance(number, Lanes):
            return number
        return Lanes(self.b, literal(number, dtype or self.dtype, self.value.lanes))

    def _instruction(self, name: str, other: Lanes, dtype: str = "") -> Lanes:
        x, y = self.value, other.value
        assert (x.dtype, x.lanes) == (y.dtype, y.lanes), f"{name} of {x.typed} and {y.typed}"
        text = f"{name} {x.typed}, {y.text}"
        return Lanes(self.b, self.b.value(text, dtype or x.dtype, x.lanes))

    def _by_kind(self, floats: str, signed: str, unsigned: str, other: Number) -> Lanes:
        kind = self.dtype[0]
        name = floats if is_float(self.dtype) else signed if kind == "i" else unsigned
        return self._instruction(name, self.like(other))

    def __add__(self, other: Number) -> Lanes:
        return self._by_kind("fadd", "add", "add", other)

    def __sub__(self, other: Number) -> Lanes:
        return self._by_kind("fsub", "sub", "sub", other)

    def __mul__(self, other: Number) -> Lanes:
        return self._by_kind("fmul", "mul", "mul", other)

    def __truediv__(self, other: Number) -> Lanes:
        """The quotient, truncated for integers. Traps when the instruction does."""
        return self._by_kind("fdiv", "sdiv", "udiv", other)

    def remainder(self, other: Number) -> Lanes:
        """The remainder with the sign of the dividend."""
        return self._by_kind("frem", "srem", "urem", other)

    def __radd__(self, other: Number) -> Lanes:
        return self.like(other) + self

    def __rsub__(self, other: Number) -> Lanes:
        return self.like(other) - self

    def __rmul__(self, other: Number) -> Lanes:
        return self.like(other) * self

    def __rtruediv__(self, other: Number) -> Lanes:
        return self.like(other) / self

    def __and__(self, other: Number) -> Lanes:
        return self._instruction("and", self.like(other))

    def __or__(self, other: Number) -> Lanes:
        return self._instruction("or", self.like(other))

    def __xor__(self, other: Number) -> Lanes:
        return self._instruction("xor", self.like(other))

    def __lshift__(self, other: Number) -> Lanes:
        return self._instruction("shl", self.like(other))

    def __rshift__(self, other: Number) -> Lanes:
        return self._instruction("ashr" if self.dtype[0] == "i" else "lshr", self.like(other))

    def __neg__(self) -> Lanes:
        if is_float(self.dtype):
            return Lanes(self.b, self.b.value(f"fneg {self.value.typed}", *self.value[1:]))
        return self.like(0) - self

    def __invert__(self) -> Lanes:
        return self ^ (True if self.dtype == "bool" else -1)

    def _compare(self, name: str, other: Number) -> Lanes:
        if is_float(self.dtype):
            prefix = "fcmp u" if name == "ne" else "fcmp o"
        elif name in ("eq", "ne"):
            prefix = "icmp "
        else:
            prefix = "icmp s" if self.dtype[0] == "i" else "icmp u"
        return self._instruction(prefix + name, self.like(other), "bool")

    def __lt__(self, other: Number) -> Lanes:
        return self._compare("lt", other)

    def __le__(self, other: Number) -> Lanes:
        return self._compare("le", other)

    def __gt__(self, other: Number) -> Lanes:
        return self._compare("gt", other)

    def __ge__(self, other: Number) -> Lanes:
        return self._compare("ge", other)

    def __eq__(self, other: Number) -> Lanes:  # type: ignore[override]
        return self._compare("eq", other)

    def __ne__(self, other: Number) -> Lanes:  # type: ignore[override]
        return self._compare("ne", other)

    def is_nan(self) -> Lanes:
        """Whether each lane is NaN."""
        return self._instruction("fcmp uno", self, "bool")

    def intrinsic(self, name: str, *others: Lanes) -> Lanes:
        """Returns a number as a literal with these lanes and this dtype (or `dtype`)."""
        lanes = f"v{self.value.lanes}" if self.value.lanes > 1 else ""
        kind = self.dtype if is_float(self.dtype) else f"i{bits(self.dtype)}"
        args = [self.value, *(o.value for o in others)]
        function = f"{name}.{lanes}{kind}"
        return Lanes(self.b, self.b.call(function, args, self.dtype, self.value.lanes))

    def abs(self) -> Lanes:
        """The absolute value of floats."""
        return self.intrinsic("llvm.fabs")

    def convert(self, instruction: str, dtype: str) -> Lanes:
        """Applies a conversion instruction of LLVM such as `sitofp`."""
        lanes = self.value.lanes
        text = f"{instruction} {self.value.typed} to {llvm_type(dtype, lanes)}"
        return Lanes(self.b, self.b.value(text, dtype, lanes))

    def retyped(self, dtype: str) -> Lanes:
        """The same register with another dtype of the same LLVM type (`i8` and `u8`)."""
        assert llvm_type(dtype) == llvm_type(self.dtype), (self.dtype, dtype)
        return Lanes(self.b, self.value._replace(dtype=dtype))

    def bits(self) -> Lanes:
        """The bits of floats as signed integers."""
        return self.convert("bitcast", _INTEGER_OF[self.dtype])

    def from_bits(self) -> Lanes:
        """The `f32` or `f64` with the bits of `i32` or `i64`."""
        return self.convert("bitcast", _FLOAT_OF[self.dtype])


def in_halves(function: Callable[..., Lanes], args: Sequence[Lanes]) -> Lanes:
    """Applies a function to the two halves of the arguments' lanes, and joins the results."""
    count = args[0].value.lanes
    parts = [range(count // 2), range(count // 2, count)]
    low, high = (function(*(_lanes_at(x, x, part) for x in args)) for part in parts)
    return _lanes_at(low, high, range(count))


def _lanes_at(x: Lanes, y: Lanes, places: Sequence[int]) -> Lanes:
    order = ", ".join(f"i32 {n}" for n in places)
    text = f"shufflevector {x.value.typed}, {y.value.typed}, <{len(places)} x i32> <{order}>"
    return Lanes(x.b, x.b.value(text, x.dtype, len(places)))


def fma(x: Lanes, y: Number, z: Number) -> Lanes:
    """Returns `x * y + z`, rounded once."""
    return x.intrinsic("llvm.fma", x.like(y), x.like(z))


def pick(cond: Lanes, x: Lanes, y: Number) -> Lanes:
    """Returns `x` where `cond` holds, else `y`."""
    a, c = x.value, cond.value
    other = x.like(y).value
    assert (a.dtype, a.lanes) == (other.dtype, other.lanes), f"{a.typed} or {other.typed}"
    return Lanes(x.b, x.b.value(f"select {c.typed}, {a.typed}, {other.typed}", a.dtype, a.lanes))


def at_most(x: Lanes, bound: Number) -> Lanes:
    """Returns the smaller of `x` and a bound that is not NaN; NaN is preserved (one
    instruction).
    """
    limit = x.like(bound)
    return pick(limit < x, limit, x)


def at_least(x: Lanes, bound: Number) -> Lanes:
    """Returns the larger of `x` and a bound that is not NaN; NaN is preserved (one instruction)."""
    limit = x.like(bound)
    return pick(limit > x, limit, x)


def horner(x: Lanes, coefficients: Sequence[float]) -> Lanes:
    """Returns a polynomial of `x`, with coefficients from the constant upwards."""
    result = x.like(coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        result = fma(result, x, coefficient)
    return result


def widen(x: Lanes) -> Lanes:
    """Returns `f16` or `bf16` as `f32`, exactly; literals stay literals, other values are
    unchanged.
    """
    if x.dtype not in NARROW_FLOATS:
        return x
    number = literal_of(x.value)
    if number is not None:
        return x.like(number, "f32")
    if x.dtype == "f16":
        return x.convert("fpext", "f32")
    # Uses shifts, because not every target has the instruction.
    return (x.bits().convert("zext", "i32") << 16).from_bits()


def narrow(x: Lanes, dtype: str) -> Lanes:
    """Returns `f32` or `f64` in a shorter float dtype, rounded once to nearest even."""
    if x.dtype == dtype:
        return x
    if x.dtype == "f64":
        if dtype == "f32":
            return x.convert("fptrunc", "f32")
        x = round_to_odd(x)
    if dtype == "f16":
        return x.convert("fptrunc", "f16")
    assert dtype == "bf16", dtype
    if x.b.module.instructions.rounds_to_bf16:  # this treats denormals as zeros
        lanes = x.value.lanes
        type_ = "bfloat" if lanes == 1 else f"<{lanes} x bfloat>"
        rounded = x.b.pointer(f"fptrunc {x.value.typed} to {type_}")
        text = f"bitcast {type_} {rounded} to {llvm_type('bf16', lanes)}"
        return Lanes(x.b, x.b.value(text, "bf16", lanes))
    pattern = x.bits()
    odd = (pattern >> 16) & 1
    quiet = pick(x.is_nan(), pattern | 0x400000, pattern + (odd + 0x7FFF))
    return (quiet >> 16).convert("trunc", "i16").convert("bitcast", "bf16")


def round_to_odd(x: Lanes) -> Lanes:
    """Returns `f64` as `f32`, rounded to odd, so that a second rounding equals a single one."""
    near = x.convert("fptrunc", "f32")
    back = near.convert("fpext", "f64")
    away = (back.abs() > x.abs()).convert("zext", "i32")
    inexact = (back != x).convert("zext", "i32")
    return ((near.bits() - away) | inexact).from_bits()
