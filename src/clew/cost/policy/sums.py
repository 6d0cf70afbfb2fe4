"""Sums and other reductions that are no products of tiles."""

from __future__ import annotations

from typing import Final

from clew.cost.policy.facts import Subject

threshold: Final = Subject()

MOST_COLUMNS_IN_REGISTERS: Final = threshold(
    4, "vectors", "of a row that a reduction keeps in registers between its passes"
)
PARTIAL_VECTORS: Final = threshold(
    4, "vectors", "of partial results, which hide the latency of additions", tunable=True
)
ROWS_TOGETHER: Final = threshold(
    (1, 8), "rows", "computed together, so that their chains of instructions overlap", tunable=True
)
MOST_SHORT_ROW: Final = threshold(
    512, "elements", "of a row that is computed together with others; longer ones only leave the "
    "first-level cache (0.92 of the speed at 1000)", measured="Zen 4",
)  # fmt: skip
LEAST_COLUMNS: Final = threshold(
    2, "columns", "of reductions along other axes: a single one is no vector"
)
VECTORS_OF_REDUCTIONS: Final = threshold(
    (1, 2, 4), "vectors", "of columns that a reduction along other axes computes together",
    tunable=True,
)  # fmt: skip
PIXELS_COPIED: Final = threshold(
    8, "pixels", "at a time: enough that sums read values that have left the store buffer, few "
    "enough for the first-level cache", tunable=True,
)  # fmt: skip
PLANES_TOGETHER: Final = threshold(
    8, "planes", "of an image read together: the lines of more do not stay in the first-level cache"
)
FEW_ROWS: Final = threshold(
    7, "rows", "up to which products with rows of a matrix have lanes along the depth"
)
LEAST_IN_ROWS: Final = threshold(
    1 << 16, "elements", "of a tensor whose minimum and maximum are found row by row: 1.07 times "
    "as fast as in two passes at 98,000 on one thread, 1.4 times at 800,000",
    measured="Sapphire Rapids",
)  # fmt: skip
EXTREMES_ROW: Final = threshold(
    (512, 1 << 13), "elements", "of a row that is read for its minimum, then its maximum: long "
    "enough for what ends each row, short enough for the first-level cache",
    measured="Sapphire Rapids",
)  # fmt: skip
