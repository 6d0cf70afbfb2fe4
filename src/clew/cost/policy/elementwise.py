"""Elementwise kernels: transposes, lanes that lie apart, and vectors computed together."""

from __future__ import annotations

from typing import Final

from clew.cost.policy.facts import Subject

threshold: Final = Subject()

USUAL_TILE: Final = threshold(
    16, "elements", "a side of a tile that is transposed in registers", tunable=True
)
TILES_TO_TRY: Final = threshold(
    (4, 8, 16, 32), "elements", "sides of such a tile to choose from", tunable=True
)
LEAST_TILE: Final = threshold(
    4, "elements", "neighbors in memory, fewer of which are not turned as a tile"
)
NEAR_BYTES: Final = threshold(
    256,
    "bytes",
    "between elements that become neighbors; farther apart, the operand is read in its own order",
)
VECTORS_MOVED: Final = threshold(2, "vectors", "of the result that memory moves at once")
MOST_SELECTED: Final = threshold(
    4, "iterations", "of an axis that only selects between values, to unroll"
)
LEAST_PART_VECTORS: Final = threshold(
    1, "vectors", "of joined operands along the last axis, on average, to copy each on its own",
    measured="Zen 4",
)  # fmt: skip
RUNS_TOGETHER: Final = threshold(
    8, "runs", "moved together, before the next row of the operand is read"
)
MOST_INTERLEAVED: Final = threshold(
    8, "channels", "longer blocks fill a vector by themselves, or use the tiles of a transpose"
)
LEAST_RUN: Final = threshold(4, "pixels", "in a vector of such blocks, at least")
MOST_PATTERN_VECTORS: Final = threshold(
    16, "vectors", "after which the distances of lanes repeat: longer patterns are too much code"
)
MOST_PATTERN_OPERATIONS: Final = threshold(
    4096, "operations", "of all unrolled vectors: more would take long to compile"
)
FEW_PATTERNS: Final = threshold(
    3, "patterns", "unrolled together, which also settles the elements that clamps select"
)
LEAST_LANES: Final = threshold(
    4, "lanes", "below which vectors are not shortened to lanes evenly spaced in all operands"
)
