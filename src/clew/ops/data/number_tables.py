"""Hash tables of numbers in which each number has one of two slots (cuckoo hashing), so that two
comparisons find it.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from clew import te
from clew.te import Scalar
from clew.te.expr import Imm, binary

Array = np.ndarray[Any, Any]

_BITS: Final = 64
_HALF: Final = 32
_LOAD: Final = 0.4  # numbers over slots: up to 0.5, two choices of a slot are enough
_TRIES: Final = 8  # factors for one size of the table
_ROUNDS: Final = 100  # of placing; tables of this load take about 20
_SEED: Final = 0x9E3779B97F4A7C15


class NumberTable:
    """The slots of distinct numbers, none of which is NaN: s for one slot of each number, and as
    many for the other one. s is a power of two. An empty slot repeats the first number.

    The slots are bits of the number's product with `factor`.

    Source: R. Pagh and F. F. Rodler, "Cuckoo Hashing", 2004, with multiplicative hash functions.
    """

    def __init__(self, keys: Array) -> None:
        bits, slots, seed = bits_of(keys), 2, _SEED
        placed: Array | None = None
        while placed is None:
            if 2 * slots * _LOAD >= keys.size:
                for _ in range(_TRIES):
                    seed = (seed * 6364136223846793005 + 1442695040888963407) % (1 << _BITS)
                    self.factor = seed >> 1 | 1
                    placed = _placed(bits, slots, self.factor)
                    if placed is not None:
                        break
            slots *= 2
        self.positions = np.where(placed < 0, 0, placed)
        """The position of the number in each slot among the given ones, `i64[2s]`."""
        self.keys = keys[self.positions]
        """The number in each slot, `[2s]`."""
        self._places = np.append(keys.size, self.positions)

    def places(self, x: Array) -> Array:
        """Returns the position of each element among the given numbers, `i64` of the shape of `x`;
        their count for an element that equals none.
        """
        return self._places.take(found_slots(x, self.keys, self.factor))


def found_slots(x: Array, keys: Array, factor: int) -> Array:
    """Returns 1 + the slot of each element in a table, 0 for an element that has none."""
    first, second = _slots(bits_of(x), factor, keys.size // 2)
    other = np.where(keys.take(second) == x, second, -1)
    return 1 + np.where(keys.take(first) == x, first, other)


def slots_of(value: Scalar, factor: int, slots: int) -> tuple[Scalar, Scalar]:
    """Returns both possible slots of a number, as indices: the same as `_slots`."""
    bits = _scalar_bits(value)
    product = (bits ^ binary("shr", bits, _HALF)) * Imm(factor, "u64")

    def slot(shift: int, start: int) -> Scalar:
        place = te.Bitcast("i64", binary("shr", product, shift) & Imm(slots - 1, "u64"))
        return te.minimum(te.maximum(place, 0), slots - 1) + start

    return slot(_BITS + 1 - slots.bit_length(), 0), slot(_HALF, slots)


def _slots(bits: Array, factor: int, slots: int) -> tuple[Array, Array]:
    folded = bits ^ bits >> np.uint64(_HALF)
    product = np.multiply(folded, np.uint64(factor))  # an operator would warn for single numbers
    first = product >> np.uint64(_BITS + 1 - slots.bit_length())
    second = product >> np.uint64(_HALF) & np.uint64(slots - 1)
    return first.view(np.int64), second.view(np.int64) + slots


def bits_of(x: Array) -> Array:
    """Returns 64 bits for each number, `u64`, equal for equal numbers."""
    if x.dtype.kind in "iub":
        return x.astype(np.int64).view(np.uint64)
    wide, unsigned = (np.float64, np.uint64) if x.dtype == np.float64 else (np.float32, np.uint32)
    values = np.add(x, 0, dtype=wide)  # -0 equals 0
    return values.view(unsigned).astype(np.uint64)


def _scalar_bits(value: Scalar) -> Scalar:
    if value.dtype[0] in "iu":
        return te.Bitcast("u64", te.cast("i64", value))
    wide, unsigned = ("f64", "u64") if value.dtype == "f64" else ("f32", "u32")
    value, zero = te.cast(wide, value), te.as_scalar(0.0, wide)
    return te.cast("u64", te.Bitcast(unsigned, te.select(value.equal(zero), zero, value)))


def _placed(bits: Array, slots: int, factor: int) -> Array | None:
    """Returns the position of the number in each slot, -1 for none; None if some find no slot.

    All numbers take their first slots at once. Those whose slot another one took go on to their
    other slot.
    """
    wanted = np.stack(_slots(bits, factor, slots))
    table = np.full(2 * slots, -1)
    side = np.zeros(bits.size, np.int64)
    waiting = np.arange(bits.size)
    for _ in range(_ROUNDS):
        if not waiting.size:
            return table
        at = wanted[side[waiting], waiting]
        before = table[at]
        table[at] = waiting
        took = table[at] == waiting
        out = before[took]
        waiting = np.concatenate([waiting[~took], out[out >= 0]])
        side[waiting] ^= 1
    return None
