"""Division of vectors of indices by sizes that only a run knows.

No CPU divides vectors of integers, so LLVM divides lane by lane, each for as long as several
vectors take. Instead, lanes are multiplied by the divisor's reciprocal in `f64`, which is exact for
the indices and divisors up to `MOST`:

    n // d = round((n + 1/2) / d - 1/2)

The rounded value differs from the nearest tie by at least 1 / (2 * d). The four roundings of the
computation (of the reciprocal, the product, the constant part and the sum) are off by less than
(3 * |n| / d + 1) * 2^-53 in total, which is smaller for numbers up to `MOST`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from clew.codegen.builder import Builder, Value
from clew.codegen.lanes import literal
from clew.codegen.math import arith
from clew.te.expr import INDEX

MOST: Final = 1 << 49
"""The largest absolute value of an index, and the largest divisor."""
# Added to a number, it leaves an integer in the lowest bits, rounded to nearest. Two instructions
# thus convert between integers and floats, which AVX2 has no instructions for.
_ROUNDER: Final = 1.5 * 2.0**52
_ROUNDER_BITS: Final = 0x4338000000000000


@dataclass(frozen=True)
class Divisor:
    """A divisor as a float, its reciprocal, and what to add to a product with that."""

    number: Value
    reciprocal: Value
    offset: Value


def divisor_of(b: Builder, size: Value, lanes: int) -> Divisor:
    """Returns a divisor, in all lanes. If it is 0, quotients are undefined, as nothing traps."""
    number = b.value(f"sitofp {size.typed} to double", "f64")
    reciprocal = b.value(f"fdiv double {literal(1.0, 'f64').text}, {number.text}", "f64")
    half = literal(0.5, "f64")
    offset = arith.binary(b, "sub", arith.binary(b, "mul", reciprocal, half), half)
    return Divisor(*(b.splat(x, lanes) for x in (number, reciprocal, offset)))


def floor_quotient(b: Builder, indices: Value, by: Divisor) -> Value:
    """Returns the quotients of indices, rounded down."""
    return _integer(b, _quotient(b, _float(b, indices), by))


def floor_remainder(b: Builder, indices: Value, by: Divisor) -> Value:
    """Returns the remainders of indices, at least 0. Products and differences are exact."""
    whole = _float(b, indices)
    quotient = arith.binary(b, "sub", _quotient(b, whole, by), _rounder(indices.lanes))
    rest = arith.binary(b, "sub", whole, arith.binary(b, "mul", quotient, by.number))
    return _integer(b, arith.binary(b, "add", rest, _rounder(indices.lanes)))


def _rounder(lanes: int) -> Value:
    return literal(_ROUNDER, "f64", lanes)


def _float(b: Builder, indices: Value) -> Value:
    bits = arith.binary(b, "add", indices, literal(_ROUNDER_BITS, INDEX, indices.lanes))
    moved = arith.bitcast(b, "f64", bits)
    return arith.binary(b, "sub", moved, _rounder(indices.lanes))


def _quotient(b: Builder, whole: Value, by: Divisor) -> Value:
    """Returns quotients plus `_ROUNDER`."""
    product = arith.binary(b, "mul", whole, by.reciprocal)
    return arith.binary(b, "add", arith.binary(b, "add", product, by.offset), _rounder(whole.lanes))


def _integer(b: Builder, moved: Value) -> Value:
    bits = arith.bitcast(b, INDEX, moved)
    return arith.binary(b, "sub", bits, literal(_ROUNDER_BITS, INDEX, moved.lanes))
