"""clew's advice rules, one per file; importing them registers them, in this order."""

from clew.advice.rules import (
    activations,
    early_pointwise,
    late_selection,
    linear_chain,
    low_rank,
    parallel_branches,
    repeated_channels,
)

__all__ = [
    "activations",
    "early_pointwise",
    "late_selection",
    "linear_chain",
    "low_rank",
    "parallel_branches",
    "repeated_channels",
]
