"""Lanes that are not evenly spaced in an operand, but in a pattern that repeats, such as those of
an image that is resampled by 3/2.
"""

from __future__ import annotations

import math

from clew.loop.affine import Simplifier, divisor, indices_in
from clew.loop.ir import buffer_loads, reads
from clew.schedules.stages import StageInfo, lane_stride
from clew.te.expr import Index, Load
from clew.te.walk import nodes


def vectors_of_pattern(info: StageInfo, axis: str, lanes: int) -> int | None:
    """Returns the number of vectors along a loop after which the pattern of the lanes repeats.

    If that many are unrolled, the distances of all lanes are known, so that shuffles of loaded
    vectors replace gathers. It is 1 if the lanes of all operands are evenly spaced except where
    positions are clamped, and 0 if the pattern does not repeat. None if it depends on more than
    the position along the loop.
    """
    simplifier = Simplifier()
    index = next(n.index for n in info.loops if n.name == axis)
    found = 1
    for _, load in reads(info.store):
        if lane_stride(load, index, lanes, simplifier) is None:
            period = _period(load, index, lanes, simplifier)
            if period is None:
                return None
            found = math.lcm(found, period)
    return found


def _period(load: Load, index: Index, lanes: int, simplifier: Simplifier) -> int | None:
    found = 1
    for position in load.indices:
        if any(simplifier.uses(within, index) for within in buffer_loads(position)):
            return None
        for node in nodes(position):
            by = divisor(node, "floordiv") or divisor(node, "mod")
            if by is None or index not in indices_in(node):
                continue
            if not isinstance(by, int) or indices_in(node) != {index}:
                return None
            form = simplifier.linear(node.children[0])
            step = form.coefficient(index)
            rest = form.without(index)
            if not isinstance(step, int) or rest.depends_on(index):
                return 0
            found = math.lcm(found, by // math.gcd(by, step * lanes))
    return found
