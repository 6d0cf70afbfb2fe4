"""Sizes that only a run knows: when kernels are compiled for them, and counts that are rounded."""

from __future__ import annotations

from typing import Final

from clew.cost.policy.facts import Subject

threshold: Final = Subject()

COMPILED_VALUES: Final = threshold(
    8, "values", "of deciding arguments to compile kernels for; references run the others"
)
REFERENCE_ELEMENTS: Final = threshold(
    1 << 18, "elements", "up to which NumPy references take much less time than compiling a kernel"
)
RUNS_BEFORE_COMPILING: Final = threshold(
    16, "runs", "of a shape by references, before a kernel is compiled for it"
)
RUNS_OF_ONLY_SHAPE: Final = threshold(
    2, "runs", "of a function's only shape by references, since it is likely to repeat"
)
LIGHT_SECONDS: Final = threshold(
    0.02, "s", "of a reference: for slower ones, a kernel is compiled at once"
)
REPEATED_ELEMENTS: Final = threshold(
    1 << 14, "elements", "up to which repeated rows cost less than another kernel"
)
LEAST_COUNT: Final = threshold(64, "rows", "that small counts are rounded up to")
COUNT_STEP_BITS: Final = threshold(3, "bits", "between such counts: 64, 512, 4096, and so on")
LEAST_LONG_COUNT: Final = threshold(
    16, "rows", "that counts are rounded up to if 64 rows are too many elements"
)
FEW_COUNT_BITS: Final = threshold(
    2, "bits", "of the least step between counts of rows: kernels have 4, 8, 12, 16, 24, 32, ..."
)
CHANNELS_OF_COUNT: Final = threshold(
    32, "channels", "in one step of the channel counts that kernels take as sizes; at any count, "
    "sums of Winograd products are over blocks of this many channels"
)  # fmt: skip
SUMS_PER_ELEMENT: Final = threshold(
    16, "multiply-adds", "that take as long as one element of other values"
)
COUNTED_BYTES: Final = threshold(
    1 << 22, "bytes", "of memory for the largest counts, up to which counting and what follows is "
    "one native call: with more, the calls take little of the time"
)  # fmt: skip
LEAST_LIMIT: Final = threshold(
    64, "elements", "that tables of counted sizes are prepared for at first"
)
COPIED_BYTES: Final = threshold(
    1 << 15, "bytes", "of a result up to which a copy takes less time than comparing addresses"
)
