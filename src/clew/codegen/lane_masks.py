"""Masks of the lanes whose positions fulfill a comparison that only a run decides.

Positions are `i64`, so a vector of positions takes two registers where one holds the data. With
positions of the form `step*lane + rest`, a mask takes one comparison of short integers: multiples
of the lane number, which are literals, and a bound, which is computed in one lane.
"""

from __future__ import annotations

from typing import Final

from clew.codegen.builder import Builder, Value
from clew.codegen.lanes import literal
from clew.codegen.math import arith
from clew.ir.types import bits
from clew.te.expr import INDEX

# The dtype in which to compare, by the most lanes. Mostly, its vectors have the size of the data's.
_COMPARED: Final = ((4, "i64"), (16, "i32"), (32, "i16"), (64, "i8"))
_LONGER: Final = {"i8": "i16", "i16": "i32", "i32": "i64"}


def lanes_at_least_zero(b: Builder, step: int, rest: Value, lanes: int) -> Value:
    """Returns the lanes in which `step*lane + rest` is at least 0; `step` is not 0."""
    most = abs(step) * lanes
    dtype = next(name for end, name in _COMPARED if lanes <= end)
    while most >= 1 << (bits(dtype) - 1):
        dtype = _LONGER[dtype]
    items = ", ".join(f"{dtype} {abs(step) * lane}" for lane in range(lanes))
    multiples = Value(f"<{items}>", dtype, lanes)
    if step > 0:  # step*lane > -1 - rest
        bound = arith.binary(b, "sub", literal(-1, INDEX), rest)
        return arith.binary(b, "gt", multiples, _everywhere(b, bound, -1, most, dtype, lanes))
    bound = arith.binary(b, "add", rest, literal(1, INDEX))  # rest + 1 > -step*lane
    return arith.binary(b, "gt", _everywhere(b, bound, 0, most, dtype, lanes), multiples)


def _everywhere(b: Builder, bound: Value, low: int, high: int, dtype: str, lanes: int) -> Value:
    """Returns a bound in all lanes, as a short integer. Bounds below `low`, and those above `high`,
    give equal results.
    """
    if dtype != INDEX:
        bound = arith.binary(b, "max", bound, literal(low, INDEX))
        bound = arith.binary(b, "min", bound, literal(high, INDEX))
        bound = b.value(f"trunc {bound.typed} to {dtype}", dtype)
    return b.splat(bound, lanes)
