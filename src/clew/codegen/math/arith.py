"""Operations of scalar expressions on values in registers, of any dtype and lanes.

Semantics of the operations (those of NumPy, defined for all values):
- Integers wrap. `floordiv` and `mod` floor, `div` truncates; division by zero gives 0. Shifts by
  the width or more equal repeated shifts by one.
- `f16` and `bf16` are computed in `f32` and rounded back after each operation.
- `min` and `max` of floats give NaN if either operand is NaN; of two zeros, either one.
- Floats to integers truncate. Out of range, the result is that of x86 and ONNX Runtime: the lowest
  `i32` or `i64`, also for NaN; shorter integers are the lowest bits of an `i32`, and `u32` those of
  an `i64`. To `bool`, floats are compared with 0.
- Storage-only dtypes (`types.STORAGE`) support conversions only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from clew.codegen.builder import Builder, Value, llvm_type
from clew.codegen.lanes import (
    Lanes,
    at_least,
    at_most,
    check_dtype,
    in_halves,
    literal,
    literal_of,
    narrow,
    pick,
    round_to_odd,
    widen,
)
from clew.codegen.math.vmath import (
    MOST_LANES,
    ROUND_AS_USUAL,
    integer_power,
    intrinsic,
    power,
)
from clew.codegen.storage import decoded, encoded
from clew.ir.types import NARROW_FLOATS, STORAGE, bits, is_float, is_integer
from clew.support.errors import CompileError
from clew.te.expr import ARITHMETIC, BITWISE, COMPARISONS, UNARY

__all__ = [
    "binary",
    "bitcast",
    "bounded",
    "cast",
    "fma",
    "intrinsic",
    "isinf",
    "isnan",
    "literal",
    "literal_of",
    "packed",
    "product_bits",
    "reduce",
    "rounded_integers",
    "select",
    "unary",
    "upper_half",
]


def binary(b: Builder, op: str, x: Value, y: Value) -> Value:
    """Returns `op(x, y)` for an operation of `te.expr`; comparisons give `bool`.

    Errors: C010.
    """
    assert op in ARITHMETIC + BITWISE + COMPARISONS, op
    assert x[1:] == y[1:], f"{op} of {x.typed} and {y.typed}"
    check_dtype(x.dtype)
    left, right = Lanes(b, x), Lanes(b, y)
    if op in COMPARISONS:
        compare: Callable[[Any], Lanes] = getattr(widen(left), f"__{op}__")
        return compare(widen(right)).value
    if is_float(x.dtype):
        assert op in ARITHMETIC, f"{op} of {x.dtype}"
        return _float(op, left, right).value
    if x.dtype == "bool":
        return _BOOL[op](left, right).value
    return _INTEGER[op](left, right).value


def unary(b: Builder, op: str, x: Value) -> Value:
    """Returns `op(x)`: `neg`, `not` (bitwise for integers) or `abs` (the lowest integer is
    unchanged).

    Errors: C010.
    """
    assert op in UNARY, op
    check_dtype(x.dtype)
    lanes = Lanes(b, x)
    if op == "not":
        return (~lanes).value
    if is_float(x.dtype):
        if x.dtype in NARROW_FLOATS:
            raw = lanes.bits()
            raw = raw ^ 0x8000 if op == "neg" else raw & 0x7FFF
            return raw.convert("bitcast", x.dtype).value
        return (-lanes if op == "neg" else lanes.abs()).value
    if op == "neg":
        return (-lanes).value
    return pick(lanes < 0, -lanes, lanes).value if x.dtype[0] == "i" else x


def select(b: Builder, cond: Value, x: Value, y: Value) -> Value:
    """Returns `x` where `cond` holds, else `y`. A scalar condition selects all lanes at once."""
    return pick(Lanes(b, cond), Lanes(b, x), Lanes(b, y)).value


def isnan(b: Builder, x: Value) -> Value:
    """Returns whether each lane is NaN."""
    return intrinsic(b, "isnan", [x])


def isinf(b: Builder, x: Value) -> Value:
    """Returns whether each lane is infinite."""
    return intrinsic(b, "isinf", [x])


def fma(b: Builder, x: Value, y: Value, z: Value) -> Value:
    """Returns `x * y + z`, rounded once (`f16` and `bf16`: once in `f32`, once more at the end)."""
    return intrinsic(b, "fma", [x, y, z])


def bitcast(b: Builder, dtype: str, x: Value) -> Value:
    """Returns the same bits as another dtype of the same width. The bits of a `bool` are 0 or 1;
    any nonzero bits are true.
    """
    assert bits(dtype) == bits(x.dtype), (dtype, x.dtype)
    lanes = Lanes(b, x)
    if x.dtype == "bool" != dtype:
        lanes = lanes.convert("zext", "u8")
    elif dtype == "bool" != x.dtype:
        return (lanes.retyped("u8") != 0).value
    same = llvm_type(dtype) == llvm_type(x.dtype)
    return (lanes.retyped(dtype) if same else lanes.convert("bitcast", dtype)).value


def upper_half(b: Builder, x: Value) -> Value:
    """Returns the upper halves of `u32` as `bf16`: an `f32` truncated to its leading bits."""
    assert x.dtype == "u32"
    if x.lanes == 1:
        return (Lanes(b, x) >> 16).convert("trunc", "u16").convert("bitcast", "bf16").value
    halves = b.value(f"bitcast {x.typed} to {llvm_type('u16', 2 * x.lanes)}", "u16", 2 * x.lanes)
    order = ", ".join(f"i32 {2 * n + 1}" for n in range(x.lanes))
    text = f"shufflevector {halves.typed}, {halves.type} poison, <{x.lanes} x i32> <{order}>"
    cut = b.value(text, "u16", x.lanes)
    return Lanes(b, cut).convert("bitcast", "bf16").value


# ------------------------------------------------------------------------------------------ floats


def _float(op: str, x: Lanes, y: Lanes) -> Lanes:
    if x.dtype in NARROW_FLOATS:
        if op in ("min", "max"):  # nothing to round
            return _extreme(op, x, y)
        return narrow(_float(op, widen(x), widen(y)), x.dtype)
    match op:
        case "add":
            return x + y
        case "sub":
            return x - y
        case "mul":
            return x * y
        case "div":
            return x / y
        case "min" | "max":
            return _extreme(op, x, y)
        case "pow":
            return power(x, y)
    return _floor_remainder(x, y) if op == "mod" else _floor_quotient(x, y)


def bounded(b: Builder, op: str, x: Value, limit: Value) -> Value:
    """Returns the `min` or `max` of `f32` or `f64` with a limit that is not NaN; NaN if `x` is.

    A compare and a select in this order are one instruction on x86, which returns its second
    operand if either is NaN.
    """
    found = at_least if op == "max" else at_most
    return found(Lanes(b, x), Lanes(b, limit)).value


def _extreme(op: str, x: Lanes, y: Lanes) -> Lanes:
    """Returns the larger or smaller operand; NaN if either is NaN."""
    for known, other in ((x, y), (y, x)):
        number = literal_of(known.value)
        if number is not None and number == number:
            if x.dtype not in NARROW_FLOATS:
                return Lanes(x.b, bounded(x.b, op, other.value, known.value))
            limit, wide = widen(known), widen(other)
            return pick(limit > wide if op == "max" else limit < wide, known, other)
    left, right = widen(x), widen(y)
    either = pick(left > right if op == "max" else left < right, x, y)
    return pick(left.is_nan(), x, either)


def _floor_remainder(x: Lanes, y: Lanes) -> Lanes:
    """Returns the remainder with the sign of the divisor."""
    rest = x.remainder(y)
    shifted = pick((rest < 0.0) ^ (y < 0.0), rest + y, rest)
    return pick(rest == 0.0, rest.like(0.0).intrinsic("llvm.copysign", y), shifted)


def _floor_quotient(x: Lanes, y: Lanes) -> Lanes:
    """Returns the floor of the exact quotient, from the exact remainder."""
    rest = x.remainder(y)
    down = (rest != 0.0) & ((rest < 0.0) ^ (y < 0.0))
    truncated = (x - rest) / y
    quotient = pick(down, truncated - 1.0, truncated)
    floor = quotient.intrinsic("llvm.floor")
    near = pick(quotient - floor > 0.5, floor + 1.0, floor)
    signed_zero = quotient.like(0.0).intrinsic("llvm.copysign", x / y)
    return pick(y == 0.0, x / y, pick(quotient == 0.0, signed_zero, near))


# ---------------------------------------------------------------------------------------- integers


def _safe_divisor(x: Lanes, y: Lanes) -> tuple[Lanes, bool]:
    """Returns a divisor that never traps, and whether the result must be 0 where `y` is 0.

    1 replaces 0, and -1 under the lowest number: the quotient then wraps as required.
    """
    number = literal_of(y.value)
    if number is not None and number not in (0, -1):
        return y, False
    safe = pick(y == 0, y.like(1), y)
    if x.dtype[0] == "i":
        lowest = -(1 << (bits(x.dtype) - 1))
        safe = pick((x == lowest) & (y == -1), y.like(1), safe)
    return safe, True


def _or_zero(result: Lanes, divisor: Lanes, guarded: bool) -> Lanes:
    return pick(divisor == 0, result.like(0), result) if guarded else result


def _truncated_quotient(x: Lanes, y: Lanes) -> Lanes:
    """Returns the quotient by a divisor that never traps.

    No target divides vectors of integers, so those of up to 32 bits are divided as floats with
    many more digits: a quotient that is not an integer differs from the nearest one by more than
    its rounding error.
    """
    width = bits(x.dtype)
    if x.value.lanes == 1 or width > 32 or literal_of(y.value) is not None:
        return x / y
    wide, whole = ("f32", "i32") if width <= 16 else ("f64", x.dtype)
    numbers = [_integer_to_float(n, wide) for n in (x, y)]
    kind = "fptosi" if whole[0] == "i" else "fptoui"
    return _resize((numbers[0] / numbers[1]).convert(kind, whole), x.dtype)


def _truncating_quotient(x: Lanes, y: Lanes) -> Lanes:
    safe, guarded = _safe_divisor(x, y)
    return _or_zero(_truncated_quotient(x, safe), y, guarded)


def _positive_literal(y: Lanes) -> int:
    """Returns the value of `y` if it is a positive literal, else 0."""
    number = literal_of(y.value)
    return int(number) if number is not None and number > 0 else 0


def _is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


def _floor_division(x: Lanes, y: Lanes) -> Lanes:
    number = _positive_literal(y)
    if _is_power_of_two(number):
        return x >> (number.bit_length() - 1)
    if x.dtype[0] == "u":
        return _truncating_quotient(x, y)
    safe, guarded = _safe_divisor(x, y)
    quotient = _truncated_quotient(x, safe)
    rest = x - quotient * safe
    if number:
        return quotient + (rest >> (bits(x.dtype) - 1))
    down = (rest != 0) & ((rest ^ safe) < 0)
    return _or_zero(pick(down, quotient - 1, quotient), y, guarded)


def _floor_modulus(x: Lanes, y: Lanes) -> Lanes:
    number = _positive_literal(y)
    if _is_power_of_two(number):
        return x & (number - 1)
    safe, guarded = _safe_divisor(x, y)
    if literal_of(safe.value) is not None or bits(x.dtype) > 32:
        rest = x.remainder(safe)
    else:
        rest = x - _truncated_quotient(x, safe) * safe
    if x.dtype[0] == "u":
        return _or_zero(rest, y, guarded)
    if number:
        return rest + ((rest >> (bits(x.dtype) - 1)) & y)
    up = (rest != 0) & ((rest ^ safe) < 0)
    return _or_zero(pick(up, rest + safe, rest), y, guarded)


def _shift(x: Lanes, y: Lanes, left: bool) -> Lanes:
    width = bits(x.dtype)
    number = literal_of(y.value)
    if number is not None and 0 <= number < width:
        return x << y if left else x >> y
    unsigned = y.retyped(f"u{width}")
    inside = unsigned < width
    count = pick(inside, y, y.like(width - 1))
    if not left and x.dtype[0] == "i":
        return x >> count
    return pick(inside, x << count if left else x >> count, x.like(0))


_INTEGER: Final[dict[str, Callable[[Lanes, Lanes], Lanes]]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": _truncating_quotient,
    "floordiv": _floor_division,
    "mod": _floor_modulus,
    "min": lambda x, y: pick(x < y, x, y),
    "max": lambda x, y: pick(x > y, x, y),
    "pow": integer_power,
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
    "shl": lambda x, y: _shift(x, y, left=True),
    "shr": lambda x, y: _shift(x, y, left=False),
}
_BOOL: Final[dict[str, Callable[[Lanes, Lanes], Lanes]]] = {
    "add": lambda x, y: x | y,
    "mul": lambda x, y: x & y,
    "min": lambda x, y: x & y,
    "max": lambda x, y: x | y,
    "pow": lambda x, y: x | ~y,
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
}

# ------------------------------------------------------------------------------------- conversions


def cast(b: Builder, dtype: str, x: Value) -> Value:
    """Returns the number in another dtype. Integers become `f16` and `bf16` through `f32`.

    Errors: C150 for a cast to `f8e8m0fnu`.
    """
    return _cast(Lanes(b, x), dtype).value


def packed(b: Builder, dtype: str, x: Value, limits: tuple[int, int]) -> Value:
    """Returns `i32`, clamped to limits, as a narrower integer dtype: the lowest bits."""
    lanes = Lanes(b, x)
    for name, limit in zip(("llvm.smax", "llvm.smin"), limits, strict=True):
        lanes = lanes.intrinsic(name, lanes.like(limit))
    return _resize(lanes, dtype).value


def product_bits(b: Builder, x: Value, y: Value, added: Value, right: int) -> Value:
    """Returns the lowest 32 bits of `(x * y + added) >> right` of `i32`, computed in 64 bits;
    `added` is `i64`, `right` from 1 to 32.

    Products of even and of odd lanes are computed in place, where instructions for the products of
    64-bit lanes expect their factors. Widening vectors instead would move lanes twice.
    """
    half, text = x.lanes // 2, llvm_type("i64", x.lanes // 2)
    wide = [Lanes(b, b.value(f"bitcast {v.typed} to {text}", "i64", half)) for v in (x, y)]
    low = [(v << 32) >> 32 for v in wide]
    terms = []
    for first in (0, 1):
        order = ", ".join(f"i32 {n}" for n in range(first, x.lanes, 2))
        taken = f"shufflevector {added.typed}, {added.typed}, <{half} x i32> <{order}>"
        terms.append(Lanes(b, b.value(taken, "i64", half)))
    even, odd = low[0] * low[1] + terms[0], (wide[0] >> 32) * (wide[1] >> 32) + terms[1]
    parts = [even.retyped("u64") >> right, odd << (32 - right)]
    words = [b.value(f"bitcast {p.value.typed} to {x.type}", "i32", x.lanes) for p in parts]
    order = ", ".join(f"i32 {n + n % 2 * x.lanes}" for n in range(x.lanes))
    text = f"shufflevector {words[0].typed}, {words[1].typed}, <{x.lanes} x i32> <{order}>"
    return b.value(text, "i32", x.lanes)


def _cast(x: Lanes, dtype: str) -> Lanes:
    if dtype == x.dtype:
        return x
    if x.dtype in STORAGE:
        return _cast(decoded(x), dtype)
    if dtype == "f8e8m0fnu":
        raise CompileError(
            "C150",
            "code generation has no cast to f8e8m0fnu, because its rounding mode is ambiguous",
            hint="use te.to_exponent",
        )
    if dtype in STORAGE:
        return encoded(_before_encoding(x, dtype), dtype)
    if dtype == "bool":
        return (x.bits() & 0x7FFF) != 0 if x.dtype in NARROW_FLOATS else x != 0
    if is_float(x.dtype):
        return (_float_to_float if is_float(dtype) else _float_to_integer)(x, dtype)
    return (_integer_to_float if is_float(dtype) else _resize)(x, dtype)


def _before_encoding(x: Lanes, dtype: str) -> Lanes:
    """Returns the number in a dtype that `encoded` accepts. Integers may be rounded to `f32`: those
    are too large for all of its formats.
    """
    if is_float(dtype):
        return round_to_odd(x) if x.dtype == "f64" else _cast(x, "f32")
    if is_float(x.dtype):
        return _float_to_integer(x, "i32")
    return _resize(x, "u8") if x.dtype == "bool" else x


def _float_to_float(x: Lanes, dtype: str) -> Lanes:
    wide = widen(x)
    if dtype == "f64":
        return wide.convert("fpext", "f64")
    return narrow(wide, dtype)


def _integer_to_float(x: Lanes, dtype: str) -> Lanes:
    wide = "f32" if dtype in NARROW_FLOATS else dtype
    signed = is_integer(x.dtype) and x.dtype[0] == "i"
    return narrow(x.convert("sitofp" if signed else "uitofp", wide), dtype)


def _float_to_integer(x: Lanes, dtype: str) -> Lanes:
    """Truncates, with this module's semantics out of range; the instruction is undefined there."""
    x = widen(x)
    if dtype == "u64":
        large = x >= 2.0**63
        low = _truncated(pick(large, x - 2.0**63, x), "i64").retyped("u64")
        return pick(large, low ^ (1 << 63), low)
    wide = "i64" if dtype in ("u32", "i64") else "i32"
    return _resize(_truncated(x, wide), dtype)


def rounded_integers(b: Builder, dtype: str, x: Value) -> Value | None:
    """Returns f32 rounded to even in an integer dtype of up to 32 bits, as one instruction; None if
    there is none.
    """
    if x.dtype != "f32" or not is_integer(dtype) or bits(dtype) > 32 or dtype == "u32":
        return None
    whole = _converted(Lanes(b, x), rounded=True)
    return None if whole is None else _resize(whole, dtype).value


def _converted(x: Lanes, *, rounded: bool) -> Lanes | None:
    """Returns f32 as i32 by the instruction, whose results out of range are this module's."""
    lanes, instructions = x.value.lanes, x.b.module.instructions
    most = instructions.to_integers(MOST_LANES, rounded=rounded)
    if lanes > MOST_LANES and most:
        return in_halves(lambda half: _converted(half, rounded=rounded) or half, (x,))
    function = instructions.to_integers(lanes, rounded=rounded)
    if not function:
        return None
    args = [x.value]
    if lanes == MOST_LANES:
        kept = literal(-1, "i16")
        args += [literal(0, "i32", lanes), kept, literal(ROUND_AS_USUAL, "i32")]
    return Lanes(x.b, x.b.call(function, args, "i32", lanes))


def _truncated(x: Lanes, dtype: str) -> Lanes:
    """Returns `i32` or `i64`: the lowest integer for values out of range and NaN."""
    if (x.dtype, dtype) == ("f32", "i32"):
        converted = _converted(x, rounded=False)
        if converted is not None:
            return converted
    limit = 2.0 ** (bits(dtype) - 1)
    return pick(x.abs() < limit, x, -limit).convert("fptosi", dtype)


def _resize(x: Lanes, dtype: str) -> Lanes:
    if dtype == x.dtype:
        return x
    if x.dtype == "bool" or bits(dtype) > bits(x.dtype):
        signed = x.dtype[0] == "i"
        return x.convert("sext" if signed else "zext", dtype)
    if bits(dtype) == bits(x.dtype):
        return x.retyped(dtype)
    return x.convert("trunc", dtype)


# -------------------------------------------------------------------------------------- reductions

_COMBINE: Final = {
    "sum": "add", "prod": "mul", "max": "max", "min": "min", "and": "and", "or": "or",
}  # fmt: skip


def reduce(b: Builder, combiner: str, vector: Value) -> Value:
    """Returns all lanes combined (`sum`, `prod`, `max`, `min`, `and`, `or`), as a tree of halves.

    `f16` and `bf16` are rounded once, at the end.

    Errors: C010.
    """
    check_dtype(vector.dtype)
    op = _COMBINE[combiner]
    if vector.dtype == "bool" and op in ("and", "or") and vector.lanes > 1:
        mask = b.pointer(f"bitcast {vector.typed} to i{vector.lanes}")
        test = f"ne i{vector.lanes} {mask}, 0" if op == "or" else f"eq i{vector.lanes} {mask}, -1"
        return b.value(f"icmp {test}", "bool")
    value = widen(Lanes(b, vector)).value
    rest: Value | None = None
    while value.lanes > 1:
        half = value.lanes // 2
        if value.lanes % 2:
            last = b.value(f"extractelement {value.typed}, i64 {value.lanes - 1}", value.dtype)
            rest = last if rest is None else binary(b, op, last, rest)
        value = binary(b, op, _part(b, value, 0, half), _part(b, value, half, half))
    if rest is not None:
        value = binary(b, op, value, rest)
    return narrow(Lanes(b, value), vector.dtype).value if is_float(vector.dtype) else value


def _part(b: Builder, vector: Value, first: int, count: int) -> Value:
    """Returns lanes `[first, first + count)`."""
    if count == 1:
        return b.value(f"extractelement {vector.typed}, i64 {first}", vector.dtype)
    mask = ", ".join(f"i32 {i}" for i in range(first, first + count))
    text = f"shufflevector {vector.typed}, {vector.type} poison, <{count} x i32> <{mask}>"
    return b.value(text, vector.dtype, count)
