"""Register tiles of reductions, and the loops around them that threads share."""

from __future__ import annotations

import math
from collections.abc import Sequence

from clew.cost.policy.tiles import (
    ENOUGH_ACCUMULATORS,
    FEW_UNROLLED,
    ROWS_OF_BAND,
    STEPS_OF_PREFETCH,
)
from clew.ir.types import memory_bytes
from clew.loop.ir import buffer_loads, loops
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.library.tile_sizes import (
    balanced,
    reduction_unroll,
)
from clew.schedules.stages import StageInfo
from clew.support.errors import ScheduleError


def register_tile(
    schedule: Schedule,
    info: StageInfo,
    lanes: int,
    blocks: str | None = None,
    unroll: int = 0,
    apart: int = STEPS_OF_PREFETCH,
) -> list[str]:
    """Orders the loops of an anchor that was moved into registers: the reduction outside, its
    unrolled tile inside. Returns the reduction loops, outermost first.

    `blocks` names the axis over more vectors of the same pixel. It goes innermost, so that all uses
    of a broadcast follow each other. `unroll` is the number of reduction steps to unroll; with 0,
    the tile's size determines it. `apart` is the number of reduction steps between two prefetches
    if only a run knows how many tiles share them.
    """
    return tile_loops(schedule, info.axes, info.reduction_axes, lanes, blocks, unroll, apart)


def tile_loops(
    schedule: Schedule,
    axes: Sequence[str],
    over: Sequence[str],
    lanes: int,
    blocks: str | None = None,
    unroll: int = 0,
    apart: int = STEPS_OF_PREFETCH,
) -> list[str]:
    """Orders the loops of a register tile: the reduction loops `over` outside, and the tile loops
    `axes` inside; see `register_tile`.
    """
    *others, column = axes
    if blocks is not None:
        others = [*(a for a in others if a != blocks), blocks]
    # Peeling copies the loops inside, so reorder before splitting any loop.
    schedule.reorder(*over, *others, column)
    vector, lane = schedule.split(column, lanes, tail="guard")
    deepest = over[-1]
    accumulators = math.prod(schedule.extent(name) for name in (*others, vector))
    steps = unroll or reduction_unroll(accumulators)
    reduction = list(over)
    if 1 < steps < schedule.extent(deepest):
        reduction[-1], inner = schedule.split(deepest, steps)
        schedule.unroll(inner)
    elif steps == 1 and not unroll and not _is_static(schedule):
        reduction[-1] = _unroll_small_copies(schedule, deepest, apart)
    for name in (*others, vector):
        schedule.unroll(name)
    schedule.vectorize(lane)
    return reduction


def _is_static(schedule: Schedule) -> bool:
    """Whether all sizes are known. Tile sizes are then chosen so that no tile is small."""
    return all(isinstance(loop.size, int) for loop in loops(schedule.nest.body))


def _unroll_small_copies(schedule: Schedule, reduction: str, apart: int) -> str:
    """Splits a reduction into chunks that all tiles share, and unrolls a few steps in tiles with
    few accumulators, such as those for remainders known only at run time. Returns the loop over
    chunks.
    """
    outer, inner = reduction, reduction
    if schedule.is_multiple(reduction, apart):
        outer, inner = schedule.split(reduction, apart)
    if schedule.is_multiple(inner, FEW_UNROLLED):

        def unrolled() -> None:
            _, few = schedule.split(inner, FEW_UNROLLED, inside=ENOUGH_ACCUMULATORS)
            schedule.unroll(few)

        schedule.attempt(unrolled)  # the tile may have enough accumulators
    return outer


def split_tiles(
    schedule: Schedule, loop: str, size: int, tail: str = "balance", free: str = "shrink"
) -> tuple[str, str]:
    """Splits a loop into tiles of at most `size` that are then unrolled; returns the names of the
    outer and the inner loop. `tail` is for a number of iterations that is known, `free` for one
    that only a run knows.
    """
    return schedule.split(loop, size, tail=tail if schedule.is_static(loop) else free)


def spread(schedule: Schedule, outer: list[str], lines: str = "") -> None:
    """Fuses the outermost loops, as far as they are perfectly nested, into one parallel loop.

    `lines`, if given, is the loop inside them over image lines or rows. Threads may share it
    instead, so that each reads the values it wrote.
    """
    name = outer[0]
    for following in outer[1:]:
        try:
            name = schedule.fuse(name, following)
        except ScheduleError:
            break
    if lines:
        schedule.parallel(name)
        schedule.attempt(lambda: schedule.parallel(lines))  # other statements may be beside it
    elif schedule.extent(name) > 1:
        schedule.parallel(name)


def split_bands(schedule: Schedule, axes: list[str], rows: int, tail: str) -> tuple[list[str], str]:
    """Splits rows (the second-to-last axis) into bands of `rows`. Returns the loops outside a band,
    outermost first, and the loop over the rows of a band.
    """
    *batch, row, column = axes
    if rows >= schedule.extent(row):
        return batch, row
    schedule.reorder(row, *batch, column)  # outermost: bands may differ in height
    band, row = schedule.split(row, rows, tail=tail)
    return [band, *batch], row


def rows_in_cache(info: StageInfo, target: Target, share: float) -> int:
    """Returns the number of rows of the first operand that fit in `share` of the second-level
    cache, where they stay while panels of the second operand stream by.
    """
    extents = {n.name: n.typical for n in info.loops}
    depth = math.prod(extents[name] for name in info.reduction_axes)
    row_bytes = depth * max(memory_bytes(x.dtype) for x in buffer_loads(info.store.value))
    fitting = int(target.l2_bytes * share) // max(row_bytes, 1)
    extent: int = extents[info.axes[-2]]
    return balanced(extent, max(fitting, ROWS_OF_BAND)) if fitting < extent else extent
