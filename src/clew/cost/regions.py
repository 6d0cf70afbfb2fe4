"""Estimates the CPU's time for a part of a graph, to compare it with another backend."""

from __future__ import annotations

from clew.machine.target import Target


def region_seconds(flops: float, moved_bytes: float, target: Target) -> float:
    """Returns a roofline estimate in seconds on one core: the longer of the times for `flops` f32
    operations and for reading or writing `moved_bytes`.
    """
    costs = target.costs
    multiply_adds = costs.vector_multiply_adds * target.vector_lanes("f32")
    arithmetic = flops / (2 * multiply_adds)
    memory = moved_bytes / target.vector_lanes("u8") * costs.move
    return costs.ns(max(arithmetic, memory)) * 1e-9
