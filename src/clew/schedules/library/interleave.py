"""Conversion of plain images to short blocks of channels, in vectors over pixels and channels.

The operands are contiguous along the pixels, the result along the few channels of a block. Vectors
over both axes read a run of pixels from each channel; shuffles interleave them. With a block of 3
channels, a vector holds as many whole pixels as a power of two.
"""

from __future__ import annotations

from clew.cost.policy.elementwise import LEAST_RUN, MOST_INTERLEAVED
from clew.loop.affine import Simplifier, contains
from clew.loop.ir import buffer_loads
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.library.register_tile import spread
from clew.schedules.stages import StageInfo, lane_stride
from clew.te.expr import COMPARISONS, Binary, Select
from clew.te.walk import nodes


def applies(info: StageInfo, axes: list[str], target: Target) -> bool:
    """Whether the last axis is shorter than a vector, and all operands are contiguous along the
    axis before it.
    """
    if len(axes) < 2:
        return False
    *_, pixels, last = axes
    by_name = {n.name: n for n in info.loops}
    lanes = target.vector_lanes(info.store.buffer.dtype)
    block = by_name[last].typical
    short = 1 < block <= min(MOST_INTERLEAVED, lanes // LEAST_RUN)
    if not short or block * by_name[pixels].typical < lanes:
        return False
    simplifier = Simplifier()
    loads = list(buffer_loads(info.store.value))
    along = [lane_stride(x, by_name[pixels].index, LEAST_RUN, simplifier) for x in loads]
    across = [lane_stride(x, by_name[last].index, 2, simplifier) for x in loads]
    return bool(loads) and all(s == 1 for s in along) and 1 not in across


def schedule(schedule: Schedule, info: StageInfo, axes: list[str], target: Target) -> None:
    """Fuses the last two axes and vectorizes them; the interior of the image needs no checks, and
    neither do whole blocks and panels.
    """
    *outer, pixels, last = axes
    parts = _borders_across(info, outer, (pixels, last))
    for axis in parts:
        schedule.partition(axis)
    schedule.partition(pixels)
    block = schedule.extent(last)
    together = schedule.fuse(pixels, last)
    run = 1 << (target.vector_lanes(info.store.buffer.dtype) // block).bit_length() - 1
    _, lane = schedule.split(together, block * run)
    while len(outer) > 1 and outer[1] not in parts:
        outer[:2] = [schedule.fuse(outer[0], outer[1])]
    schedule.vectorize(lane)
    if parts:
        spread(schedule, outer[:1], *outer[1:2])
    elif outer and schedule.extent(outer[0]) > 1:
        schedule.parallel(outer[0])


def _borders_across(info: StageInfo, outer: list[str], inner: tuple[str, str]) -> list[str]:
    """Returns the outer axes whose last block or panel is padded: each is compared with a size
    together with the position of a lane.
    """
    by_name = {n.name: n.index for n in info.loops}
    mixed = [
        test
        for select in nodes(info.store.value)
        if isinstance(select, Select)
        for test in nodes(select.cond)
        if isinstance(test, Binary)
        and test.op in COMPARISONS
        and any(contains(test, by_name[axis]) for axis in inner)
    ]
    return [a for a in outer if any(contains(test, by_name[a]) for test in mixed)]
