"""A machine's multiplication rates by dtype."""

from __future__ import annotations

from typing import Final

from clew.machine.target import Target

# Of the vectors of products a cycle: such a product takes two multiplications (tiles of 5x2 vectors
# on Zen 3 reach 1.18 times the rate of pairs of `i16`, with twice as many products in a vector).
_SHORT_PAIRS: Final = 0.59


def multiply_adds_per_cycle(
    target: Target, data: str, weight: str, *, pairs_fit: bool = False
) -> float:
    """Returns the maximum number of products that one core multiplies and adds per cycle; 0 if no
    unit supports these operands. `pairs_fit` promises that 16 bits hold the sum of any two.
    """
    costs = target.costs
    rates = [0.0]
    if data == weight == "f32":
        rates.append(costs.multiply_adds * target.vector_lanes("f32"))
    operands = data, weight
    rates += [
        costs.multiply_adds * unit.lanes * unit.group * (_SHORT_PAIRS if unit.short_pairs else 1)
        for unit in target.dot_units
        if unit.multiplies(data, weight, pairs_fit=pairs_fit)
    ]
    rates += [
        unit.rows * unit.columns * unit.depth / costs.tile_step
        for unit in target.tile_units
        if operands == (unit.data, unit.weight)
    ]
    return max(rates)


def fastest_float(target: Target) -> str:
    """Returns the dtype with the fastest float products: `f32` or `bf16`."""
    rates = {dtype: multiply_adds_per_cycle(target, dtype, dtype) for dtype in ("f32", "bf16")}
    return max(rates, key=lambda dtype: rates[dtype])
