"""Folding: what is computed once, when a model is compiled, and kept as constants."""

from __future__ import annotations

from typing import Final

from clew.cost.policy.facts import Subject

threshold: Final = Subject()

MOST_GROWN_ELEMENTS: Final = threshold(
    16 << 20, "elements", "of a result larger than its arguments, which is cheap to compute in runs"
)
MOST_WIDENED_BYTES: Final = threshold(
    2 << 30, "bytes", "that narrow weights may grow by; beyond it, large ones are widened in runs"
)
LEAST_WIDENED_BYTES: Final = threshold(
    256 << 10, "bytes", "smaller parameters are widened in any case"
)
OPERATIONS_WORTH_STORING: Final = threshold(
    4, "operations", "per element, from which on a result is stored although it grows"
)
GROWTH_WORTH_STORING: Final = threshold(
    8, "ratio", "bytes of a stored result over its arguments, such as of a transformed weight"
)
MERGED_CONSTANT_ELEMENTS: Final = threshold(
    4096, "elements", "equal constants of more are not searched for"
)
SHARED_CONSTANT_BYTES: Final = threshold(
    4096, "bytes", "smaller equal constants are not worth the search"
)
SHAPE_ELEMENTS: Final = threshold(
    4096, "elements", "of a value that decides shapes, up to which it is computed at compile time"
)
POOLING_GAIN: Final = threshold(
    2, "ratio", "fewer comparisons of a pool in two steps that outweigh storing maxima of lines"
)
ROWS_OF_TEXTS_BYTES: Final = threshold(
    64 << 10, "bytes", "of the one-hot rows of texts, which are looked up instead of computed"
)
SPLIT_PARTS: Final = threshold(
    32, "parts", "of a split, in each run of equal ones, that are moved together by one kernel"
)
