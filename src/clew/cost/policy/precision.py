"""Precision: sums in blocks, rounding errors, and layers that narrower operands make faster."""

from __future__ import annotations

from typing import Final

from clew.cost.policy.facts import Subject

threshold: Final = Subject()

MOST_PRODUCTS: Final = threshold(
    160, "products", "of f32 added one after the other; longer sums are in blocks"
)
MOST_PRODUCTS_OF_WINOGRAD: Final = threshold(
    32, "products", "the same for Winograd's algorithm, whose transforms enlarge rounding errors"
)
MOST_SUMMED: Final = threshold(
    32,
    "values",
    "the same for values of one sign, such as those of a mean, whose errors grow faster",
)
MOST_ERROR_OF_WINOGRAD: Final = threshold(
    2.0, "ratio", "expected rounding error of Winograd's algorithm over that of the direct one"
)
CHANNELS_TO_NARROW: Final = threshold(
    8, "channels", "with fewer, dot products of bf16 do not make a convolution faster"
)
DEPTH_TO_NARROW: Final = threshold(
    8, "elements", "per line of a filter, from which on its columns are summed by dot products"
)
FILTERS_TO_NARROW: Final = threshold(
    16,
    "filters",
    "of a convolution of fewer channels, from which on its columns are summed by dot products",
)
QUERIES_TO_NARROW: Final = threshold(
    16, "queries", "with fewer, rounding the operands of attention takes too much of the time"
)
ROWS_TO_SPLIT: Final = threshold(
    16, "rows", "fewer rows are bound by reading weights, and stay in f32"
)
ROWS_OF_WHOLE_WEIGHTS: Final = threshold(
    100, "rows", "up to which a layer is bound by reading weights, so these are split as it runs"
)
ROWS_TO_SPLIT_FREE: Final = threshold(
    64, "rows", "from which on a layer with a free number of rows multiplies parts"
)
DEPTH_TO_SPLIT: Final = threshold(
    64, "elements", "with less, splitting the rows takes too much of the time"
)
UNITS_TO_SPLIT: Final = threshold(
    32, "columns", "with fewer, splitting the rows serves too few products"
)
LEAST_PIECE_OF_DEPTH: Final = threshold(
    256, "elements", "of a product's depth, if a deep layer becomes several products"
)
ROWS_OF_SPLIT_BAND: Final = threshold(
    192, "rows", "for which a layer with a free number of rows is divided along its depth"
)
ROWS_FOR_MATRIX_UNIT: Final = threshold(
    16, "rows", "fewer use dot products of bytes, which take unsigned data"
)
NEIGHBORS_TO_PAIR: Final = threshold(
    4, "elements", "channels and columns of a filter, with fewer of which pairs stay half empty"
)
ROWS_OF_BYTES: Final = threshold(
    16, "rows", "of pairs of `i16`, up to which kernels widen an `i8` weight as they read it",
    measured="Zen 3",
)  # fmt: skip
CODES_TO_KEEP: Final = threshold(
    1 << 14, "elements", "a smaller weight of few bits is widened when it is compiled"
)
CODES_PACKED_AT_ONCE: Final = threshold(
    1 << 20, "elements", "of a weight are packed at a time, so that little memory holds wide copies"
)
MOST_BLOCK_OF_CODES: Final = threshold(
    128, "elements", "that share a scale; a longer block becomes several with the same scale"
)
ROWS_TO_WIDEN_CODES: Final = threshold(
    64, "rows", "from so many on, a unit that multiplies floats outweighs the larger weight"
)
OPERATIONS_OF_TABLE: Final = threshold(
    32, "operations", "per element: cheaper functions of a byte are faster than a table"
)
