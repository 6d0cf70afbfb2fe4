"""Register tiles of reductions, the loops around them, and how threads share these."""

from __future__ import annotations

import contextlib
import math

from clew.loop.ir import buffer_loads
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.library.stages import StageInfo
from clew.schedules.library.tile_sizes import balanced, reduction_unroll
from clew.support.errors import ScheduleError

# Fewer rows would have a panel pass by for too little work.
_LEAST_ROWS = 56


def register_tile(
    schedule: Schedule,
    info: StageInfo,
    lanes: int,
    blocks: str | None = None,
    unroll: int = 0,
) -> list[str]:
    """Orders an anchor that was moved into registers: reduction outside, its tile unrolled inside.
    Returns the reduction's loops, outermost first.

    `blocks` is the axis whose steps are further vectors of the same pixel: it goes innermost, so
    that a broadcast is used up at once. `unroll` steps of the reduction are written out; 0 leaves
    it to the size of the tile.
    """
    *others, column = info.axes
    if blocks is not None:
        others = [*(a for a in others if a != blocks), blocks]
    # Peeling repeats what is inside: the order is set before any loop is split.
    schedule.reorder(*info.reduction_axes, *others, column)
    vector, lane = schedule.split(column, lanes, tail="guard")
    deepest = info.reduction_axes[-1]
    accumulators = math.prod(schedule.extent(name) for name in (*others, vector))
    steps = unroll or reduction_unroll(accumulators)
    reduction = list(info.reduction_axes)
    if 1 < steps < schedule.extent(deepest):
        reduction[-1], inner = schedule.split(deepest, steps)
        schedule.unroll(inner)
    for name in (*others, vector):
        schedule.unroll(name)
    schedule.vectorize(lane)
    return reduction


def spread(schedule: Schedule, outer: list[str], lines: str = "") -> None:
    """Makes the outermost loops, as far as they nest directly, one parallel loop.

    `lines`, if there are any, are the loop inside of them that goes down the image, or the rows:
    threads may share these instead, so that each reads what it has written itself.
    """
    name = outer[0]
    for following in outer[1:]:
        try:
            name = schedule.fuse(name, following)
        except ScheduleError:
            break
    if lines:
        schedule.parallel(name)
        with contextlib.suppress(ScheduleError):  # it may not be all there is inside
            schedule.parallel(lines)
    elif schedule.extent(name) > 1:
        schedule.parallel(name)


def split_bands(schedule: Schedule, axes: list[str], rows: int) -> tuple[list[str], str]:
    """Splits rows (the last axis but one) into bands of `rows`. Returns the loops outside of a
    band, outermost first, and the loop over its rows.
    """
    *batch, row, column = axes
    if rows >= schedule.extent(row):
        return batch, row
    schedule.reorder(row, *batch, column)  # outermost: bands may differ in height
    band, row = schedule.split(row, rows, tail="balance")
    return [band, *batch], row


def rows_in_cache(info: StageInfo, target: Target, share: float) -> int:
    """Returns how many rows of the first operand stay in `share` of the second-level cache while
    panels of the second pass by.
    """
    extents = {n.name: n.extent for n in info.loops}
    depth = math.prod(extents[name] for name in info.reduction_axes)
    row_bytes = depth * max(
        x.source.size_bytes // math.prod(x.source.shape) for x in buffer_loads(info.store.value)
    )
    fitting = int(target.l2_bytes * share) // max(row_bytes, 1)
    extent: int = extents[info.axes[-2]]
    return balanced(extent, max(fitting, _LEAST_ROWS)) if fitting < extent else extent
