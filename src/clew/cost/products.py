"""How fast a machine multiplies elements of each dtype."""

from __future__ import annotations

from clew.machine.target import Target


def multiply_adds_per_cycle(target: Target, data: str, weight: str) -> float:
    """Returns how many products of elements one core adds up per cycle, at best; 0 where no unit
    takes these operands.
    """
    costs = target.costs
    rates = [0.0]
    if data == weight == "f32":
        rates.append(costs.multiply_adds * target.vector_lanes("f32"))
    operands = data, weight
    rates += [
        costs.multiply_adds * unit.lanes * unit.group
        for unit in target.dot_units
        if operands == (unit.data, unit.weight)
    ]
    rates += [
        unit.rows * unit.columns * unit.depth / costs.tile_step
        for unit in target.tile_units
        if operands == (unit.data, unit.weight)
    ]
    return max(rates)


def fastest_float(target: Target) -> str:
    """Returns the dtype that a machine multiplies floats fastest in: `f32` or `bf16`."""
    rates = {dtype: multiply_adds_per_cycle(target, dtype, dtype) for dtype in ("f32", "bf16")}
    return max(rates, key=lambda dtype: rates[dtype])
