"""Data that stay in a core's caches, and the benefit of keeping them there."""

from __future__ import annotations

import math

from clew.cost.policy.caches import SHARE_OF_BAND, SHARE_OF_PIECE, SHARE_OF_TENSOR, SHARE_OF_WEIGHTS
from clew.machine.target import Target


def stays_near(size_bytes: float, target: Target) -> bool:
    """Whether a tensor is still in the second-level cache when the next kernel reads it."""
    return size_bytes <= target.l2_bytes * SHARE_OF_TENSOR


def weights_stay_near(size_bytes: float, target: Target) -> bool:
    """Whether weights stay in the second-level cache while bands of an image are processed."""
    return size_bytes <= target.l2_bytes * SHARE_OF_WEIGHTS


def lines_in_band(
    line_bytes: float, read_line_bytes: float, taps: int, stride: int, target: Target
) -> int:
    """Returns the number of result lines of a band that stays in the second-level cache, together
    with the lines its windows read; 0 if not even one fits.
    """
    room = target.l2_bytes * SHARE_OF_BAND - taps * read_line_bytes
    return max(0, int(room / (line_bytes + stride * read_line_bytes)))


def is_small_piece(size_bytes: float, target: Target) -> bool:
    """Whether a piece selected by an index is small enough for its readers to fetch it element by
    element; a larger one is faster in memory order.
    """
    return size_bytes <= target.l2_bytes * SHARE_OF_PIECE


def products_worth_a_move(target: Target) -> float:
    """Returns how many multiply-adds take as long as writing a value beyond the second-level cache
    and reading it again.
    """
    return 2 * target.costs.move * target.costs.multiply_adds


def recomputed_products(overlap: int, lines: int, stride: int, depth: int) -> float:
    """Returns how many multiply-adds are repeated per value if bands of `lines` result lines
    recompute the `overlap` lines they share, where each value is a sum of `depth` products.
    """
    return overlap / (lines * stride) * depth if lines else math.inf
