"""About how long the CPU takes for a part of a graph, to compare it with another backend."""

from __future__ import annotations

from clew.machine.target import Target


def region_seconds(flops: float, moved_bytes: float, target: Target) -> float:
    """Returns the seconds that one core takes for a number of operations of f32 and a number of
    bytes read or written, whichever takes longer: a roofline.
    """
    costs = target.costs
    multiply_adds = costs.vector_multiply_adds * target.vector_lanes("f32")
    arithmetic = flops / (2 * multiply_adds)
    memory = moved_bytes / target.vector_lanes("u8") * costs.move
    return costs.ns(max(arithmetic, memory)) * 1e-9
