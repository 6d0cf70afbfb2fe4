"""The units of a CPU, as facts: what each multiplies, in which shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from clew.ir.types import bits

TILES: Final = 8
"""Tile registers of a matrix unit (Intel AMX): sums and operands together."""
TILE_ROWS: Final = 16
"""Rows of a tile register."""
TILE_ROW_BYTES: Final = 64
"""Bytes in a row of a tile register."""


def tile_depth(dtype: str) -> int:
    """Returns how many elements of a dtype a row of a tile register holds."""
    return TILE_ROW_BYTES * 8 // bits(dtype)


@dataclass(frozen=True)
class VectorUnit:
    """Vector registers: their width in bits, their number, and whether memory accesses take masks
    for free.
    """

    bits: int
    registers: int
    masks: bool


@dataclass(frozen=True)
class DotUnit:
    """An instruction that adds to each 32-bit lane the products of a *group* of neighboring
    elements of `data` and `weight`.
    """

    data: str
    weight: str
    lanes: int

    @property
    def group(self) -> int:
        """Elements of an operand in a lane."""
        return 32 // bits(self.data)


@dataclass(frozen=True)
class TileUnit:
    """A matrix unit's product of two tiles: `rows` by `depth` elements of `data`, `depth` by
    `columns` of `weight`.
    """

    data: str
    weight: str
    rows: int
    columns: int
    depth: int


@dataclass(frozen=True)
class CacheLevel:
    """A cache: its capacity, and whether other cores use it, too."""

    name: str
    capacity_bytes: int
    shared: bool
