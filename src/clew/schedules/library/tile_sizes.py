"""Tile sizes from the registers and caches of the target.

A register tile of `rows x vectors` keeps rows*vectors accumulators, `vectors` operands and one
broadcast in registers. More vectors amortize broadcasts, and more rows amortize loads. With 32
registers, 14x2 and 6x4 reach the FMA limit; with 16 registers, 6x2.
"""

from __future__ import annotations

import math

from clew.cost.policy.caches import LARGE_OUTPUT
from clew.cost.policy.tiles import (
    ENOUGH_ACCUMULATORS,
    FEW_UNROLLED,
    FEWER_TILES,
    MOST_CHAINS,
    MOST_ROWS,
    REGISTERS_OF_BROADCAST,
)
from clew.machine.target import Target


def vectors_of_tile(extent: int, lanes: int) -> int:
    """Returns the width of a register tile in vectors: two if the extent is longer than one."""
    return 2 if extent > lanes else 1


def rows_of_tile(target: Target, vectors: int, taken: int = 0) -> int:
    """Returns the most rows of a register tile that leave registers for its operands, and `taken`
    more.
    """
    registers = target.vector_registers - taken
    rows = (registers - vectors - REGISTERS_OF_BROADCAST) // vectors
    return max(1, min(rows, MOST_ROWS))


def reduction_unroll(accumulators: int) -> int:
    """Returns the number of reduction steps of a tile to unroll.

    A large tile keeps the arithmetic units busy without unrolling; unrolled, LLVM would load the
    operands of several steps together and spill. Unrolling a small tile amortizes loop control and
    prefetches: tiles of 4x2 vectors were up to 1.6 times as fast (16 registers, 8x1024x4096).
    """
    return FEW_UNROLLED if accumulators <= ENOUGH_ACCUMULATORS else 1


def window_tile(target: Target, height: int, width: int) -> tuple[int, int]:
    """Returns the lines and columns of a tile of windows. Its accumulators take less than half of
    the registers; the others hold the elements and weights of a line of taps.
    """
    most = max(2, target.vector_registers // 2 - 2)
    columns = balanced(width, most // 2 if width > most else most)
    return balanced(height, max(1, most // columns)), columns


def image_tile(height: int, width: int, most: int) -> tuple[int, int]:
    """Returns the lines and columns of a tile of at most `most` pixels: a part of a line, whole
    short lines or, where that takes clearly fewer tiles, parts of several lines. Each tile reads
    all weights once.
    """
    columns = balanced(width, most)

    def tile(columns: int) -> tuple[int, int]:
        return balanced(height, max(1, most // columns)), columns

    def count(tile: tuple[int, int]) -> int:
        return -(-height // tile[0]) * -(-width // tile[1])

    usual = tile(columns)
    fewest = min((tile(n) for n in range(columns, 0, -1)), key=count)
    return fewest if count(fewest) <= FEWER_TILES * count(usual) else usual


def passes_caches(target: Target, size_bytes: int) -> bool:
    """Whether an output is so large that little of it would still be in a cache when it is read.

    The size of the last-level cache does not count, because other programs share it.
    """
    return size_bytes >= LARGE_OUTPUT * target.l2_bytes


def balanced(extent: int, most: int) -> int:
    """Returns the tile size that covers `extent` in the fewest tiles, as evenly as possible."""
    tiles = -(-extent // most)
    return -(-extent // tiles)


def vector_factor(target: Target, dtype: str, extent: int) -> int:
    """Returns the lanes to use along an axis: a full vector, or the axis if it is shorter."""
    return min(target.vector_lanes(dtype), extent)


def lanes_of_chains(target: Target, extent: int, lanes: int, *, whole: bool = True) -> int:
    """Returns the lanes to compute together if each of `lanes` needs a long dependent chain of
    instructions: several vectors, if the axis divides into them or, unless they must be `whole`,
    has at least two such groups.

    A core's reorder window holds only one or two more chains as long as a GELU's. If the
    instructions of several vectors alternate, their latencies overlap: with four vectors, a GELU
    took 0.7 of its time and Mish 0.5 (Zen 3, 16 registers, 64 KiB).
    """
    if lanes != target.vector_lanes("f32"):
        return lanes
    most = MOST_CHAINS * lanes
    if not whole and extent >= 2 * most:
        return most
    return math.gcd(extent, most) if extent % lanes == 0 else lanes
