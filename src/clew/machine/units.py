"""The units of a CPU, as facts: the operands and shapes of their products."""

from __future__ import annotations

from typing import Final

from clew.ir.types import bits
from clew.support.dataclass import dataclass

TILES: Final = 8
"""The number of tile registers of a matrix unit (Intel AMX): sums and operands together."""
TILE_ROWS: Final = 16
"""The number of rows of a tile register."""
TILE_ROW_BYTES: Final = 64
"""The number of bytes in a row of a tile register."""
PAGE_BYTES: Final = 4096
"""The number of bytes in a page of memory; lines on as many pages take as many entries of the TLB.
"""


def tile_depth(dtype: str) -> int:
    """Returns the number of elements of a dtype in a row of a tile register."""
    return TILE_ROW_BYTES * 8 // bits(dtype)


def depth_of_tile(whole: int, most: int, group: int) -> int:
    """Returns the depth of a tile: the largest number of whole groups, at most `most` elements,
    that divides the depth of a product; 0 if none does.
    """
    return next((d for d in range(most, 0, -group) if whole % d == 0), 0)


@dataclass(frozen=True)
class VectorUnit:
    """Vector registers: their width in bits, their number, and whether masks on memory accesses are
    free.
    """

    bits: int
    registers: int
    masks: bool


@dataclass(frozen=True)
class DotUnit:
    """An instruction that adds to each 32-bit lane the products of a *group* of neighboring
    elements of `data` and `weight`. With `short_pairs`, it adds products in pairs of 16 bits first,
    which must hold these sums.
    """

    data: str
    weight: str
    lanes: int
    short_pairs: bool = False

    def multiplies(self, data: str, weight: str, *, pairs_fit: bool = False) -> bool:
        """Whether the instruction sums products of these operands; `pairs_fit` promises that 16
        bits hold the sum of any two. Weights of `i8` are widened to `i16` when they are loaded.
        """
        if (data, weight) == ("i16", "i8"):
            weight = data
        return (data, weight) == (self.data, self.weight) and (pairs_fit or not self.short_pairs)

    @property
    def group(self) -> int:
        """The number of elements of an operand per lane."""
        return 32 // bits(self.data)


@dataclass(frozen=True)
class TileUnit:
    """The product of two tiles on a matrix unit: `rows` by `depth` elements of `data`, `depth` by
    `columns` of `weight`.
    """

    data: str
    weight: str
    rows: int
    columns: int
    depth: int


@dataclass(frozen=True)
class CacheLevel:
    """A cache: its capacity, and whether other cores share it."""

    name: str
    capacity_bytes: int
    shared: bool
