"""Fusion: what one kernel computes, and what it computes again."""

from __future__ import annotations

from typing import Final

from clew.cost.policy.facts import Subject

threshold: Final = Subject()

MOST_OPERATORS: Final = threshold(64, "operators", "of a kernel, which bounds the size of its code")
MOST_INPUTS: Final = threshold(30, "inputs", "of a kernel, which bounds its arguments")
PRODUCTS_TO_COMBINE: Final = threshold(
    2, "products", "of the same data that become one, whose kernel uses threads better"
)
SHARE_WRITTEN_IN_PLACE: Final = threshold(
    0.5, "share", "of a concatenation that kernels must write in place to save its copy"
)
PIXELS_PER_WEIGHT: Final = threshold(
    96, "pixels", "of a band that use a weight while it is cached: with fewer, loading dominates"
)
MOST_COMPUTED_AGAIN: Final = threshold(
    1.5, "ratio", "times that a value is computed on average, as tiles may overlap"
)
OPERATIONS_OF_TABLES: Final = threshold(
    16, "operations", "of a stage: cheaper values are computed again in their reader"
)
READS_OF_TABLES: Final = threshold(
    64, "reads", "of a value: one that is read less often is computed again in its reader"
)
STATE_BYTES: Final = threshold(
    256 << 10,
    "bytes",
    "of all states of fixed capacity together, from which a session writes them in place: copying "
    "less takes less time than Python needs to start such a call",
    measured="Zen 3",
)
