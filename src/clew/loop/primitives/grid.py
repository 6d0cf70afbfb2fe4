"""The primitive that binds loops to the grid of a device."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from clew.loop.affine import Simplifier
from clew.loop.ir import Axis, For, Kind, Nest
from clew.loop.primitives.common import primitive, rewrite_loops
from clew.support.errors import ScheduleError

_KINDS: Final[tuple[Kind, ...]] = ("block", "thread")
_AXES: Final[tuple[Axis, ...]] = ("x", "y", "z")
AXES: Final[dict[str, tuple[Kind, Axis]]] = {f"{k}.{a}": (k, a) for k in _KINDS for a in _AXES}


@primitive
def bind(nest: Nest, simplifier: Simplifier, *, loop: str, axis: str) -> Nest:
    """`for i in n` becomes `block.x i in n`: each iteration is a block of the device's grid, or a
    thread of a block. Block loops are bound from the outermost inwards, then thread loops.

    Errors: S001; S014 for an unknown axis; S006 for a loop that is not serial; S009 for iterations
    that write the same elements; S015 if the grid does not allow it.
    """
    if axis not in AXES:
        raise ScheduleError("S014", f"unknown axis {axis!r}", hint=f"axes: {', '.join(AXES)}")
    kind, along = AXES[axis]

    def rewrite(found: For) -> For:
        if found.kind != "serial":
            raise ScheduleError(
                "S006",
                f"loop {loop} is already {found.kind}",
                hint="bind the loop before other primitives change its kind",
            )
        return replace(found, kind=kind, axis=along)

    return rewrite_loops(nest, loop, rewrite)
