"""A machine's multiplication rates by dtype, and when products need no packed operand."""

from __future__ import annotations

from clew.cost.policy.caches import SHARE_OF_DOT_ROWS
from clew.cost.policy.layouts import (
    DEPTH_PER_ROW,
    DEPTH_PER_ROW_NEAR,
    STEPS_OF_DOTS,
    STEPS_OF_ONE_DOT,
)
from clew.ir.types import memory_bytes
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


def dots_gain(rows: int, depth: int, columns: int, dtype: str, target: Target) -> bool:
    """Whether products of `rows` rows with the rows of a plain matrix of a run are faster with
    vectors along the depth than with the matrix packed first: packing takes as long for any number
    of rows, and adding up the lanes of sums as long for any depth. One row is faster if several
    rows of the matrix are read at once.
    """
    lanes = target.vector_lanes(dtype)
    if dtype not in ("f32", "f64") or columns < lanes:
        return False
    if rows < 2:  # its matrix is never packed
        return depth >= STEPS_OF_ONE_DOT * lanes
    near = SHARE_OF_DOT_ROWS * target.l2_bytes / memory_bytes(dtype)
    each = DEPTH_PER_ROW_NEAR if columns * depth <= near else DEPTH_PER_ROW
    if depth < STEPS_OF_DOTS * lanes or each * rows > depth:
        return False
    return rows * depth <= near
