"""Division of vectors of indices.

None of the target CPUs has a division of integer vectors, so LLVM divides lane by lane. The
division of one lane takes as long as other operations on several vectors. Instead, lanes are
multiplied by the divisor's reciprocal in `f64`. The result is exact for indices and divisors up to
`MOST`:

    n // d = round((n + 1/2) / d - 1/2)

The value to round differs from the nearest tie by at least 1 / (2 * d). The total error of the four
floating-point roundings (of the reciprocal, the product, the constant part and the sum) is less
than (3 * |n| / d + 1) * 2^-53, which is smaller than that for numbers up to `MOST`.
"""

from __future__ import annotations

from typing import Final

from clew.codegen.builder import Builder, Value
from clew.codegen.lanes import literal
from clew.codegen.math import arith
from clew.support.dataclass import dataclass
from clew.te.expr import INDEX

MOST: Final = 1 << 49
"""The largest absolute value of an index, and the largest divisor."""
# Adding it to a number rounds the number to the nearest integer, which is then in the lowest bits.
# A conversion between `i64` and `f64` thus takes two instructions; AVX2 has no instruction for it.
_ROUNDER: Final = 1.5 * 2.0**52
_ROUNDER_BITS: Final = 0x4338000000000000


@dataclass(frozen=True)
class Divisor:
    """A divisor as a float, its reciprocal, and the number to add to products with the latter."""

    number: Value
    reciprocal: Value
    offset: Value


def divisor_of(b: Builder, size: Value, lanes: int) -> Divisor:
    """Returns a divisor in all lanes. If it is 0, quotients are undefined, and nothing traps."""
    number = b.value(f"sitofp {size.typed} to double", "f64")
    reciprocal = b.value(f"fdiv double {literal(1.0, 'f64').text}, {number.text}", "f64")
    half = literal(0.5, "f64")
    offset = arith.binary(b, "sub", arith.binary(b, "mul", reciprocal, half), half)
    return Divisor(*(b.splat(x, lanes) for x in (number, reciprocal, offset)))


def literal_divisor(number: int, lanes: int) -> Divisor:
    """Returns a divisor known at compile time, which is not 0, in all lanes."""
    reciprocal = 1.0 / number
    values = (float(number), reciprocal, reciprocal * 0.5 - 0.5)
    return Divisor(*(literal(value, "f64", lanes) for value in values))


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
