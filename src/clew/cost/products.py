"""A machine's multiplication rates by dtype."""

from __future__ import annotations

from clew.machine.target import Target


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
        costs.multiply_adds
        * unit.lanes
        * unit.group
        * (costs.short_pairs if unit.short_pairs else 1)
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
