"""clew's advice rules, one per file; importing them registers them, in this order."""

from clew.advice.rules import (
    activations,
    batches,
    block_sparse,
    builds,
    dead_outputs,
    early_pointwise,
    fixed_inputs,
    integers,
    late_selection,
    layout,
    linear_chain,
    low_rank,
    parallel_branches,
    repeated_channels,
    roundtrips,
    widths,
)

__all__ = [
    "activations",
    "batches",
    "block_sparse",
    "builds",
    "dead_outputs",
    "early_pointwise",
    "fixed_inputs",
    "integers",
    "late_selection",
    "layout",
    "linear_chain",
    "low_rank",
    "parallel_branches",
    "repeated_channels",
    "roundtrips",
    "widths",
]
