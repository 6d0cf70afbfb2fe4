"""Prefetches operands too large for the caches: the next panel loads while one is in use."""

from __future__ import annotations

import math
from functools import partial

from clew.cost.policy.tiles import MOST_LINES_AT_ONCE, STEPS_OF_REQUEST
from clew.loop.affine import Simplifier
from clew.loop.ir import buffer_loads, loops, reads
from clew.loop.primitives.prefetch import (
    CACHE_LINE_BYTES,
    has_tiles,
    iterations,
    least_iterations,
)
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.library.tile_sizes import passes_caches
from clew.schedules.stages import StageInfo


def stream(
    schedule: Schedule,
    info: StageInfo,
    panel: str,
    levels: list[str],
    target: Target,
    tiles: str = "",
    *,
    of_size: bool = False,
) -> None:
    """Prefetches the next panel of each operand whose panels are contiguous.

    `levels` are the loops inside `panel`, outermost first. The requests go into the outermost of
    them that issues only a few at a time. `tiles` may be the outermost of them: see `prefetch`.
    With `of_size`, the length of a panel may depend on free sizes.
    """
    if schedule.extent(panel) < 2:
        return
    for buffer in {x.source.name: x.source for x in buffer_loads(info.store.value)}.values():
        if buffer.typical_bytes <= target.l1_bytes or not _walks(schedule, panel, buffer.name):
            continue
        lines = buffer.typical_bytes // schedule.extent(panel) // CACHE_LINE_BYTES
        at = _level(schedule, panel, levels, lines)
        counted = tiles if _is_counted_by_run(schedule, tiles) else ""
        # The panels may not be contiguous.
        sized = of_size and not all(isinstance(d, int) for d in buffer.shape[1:])
        schedule.attempt(partial(schedule.prefetch, buffer.name, panel, at, counted, of_size=sized))


def _walks(schedule: Schedule, panel: str, buffer: str) -> bool:
    """Whether the panel loop indexes the first axis of a buffer that is longer than 1."""
    simplifier = Simplifier()
    for loop in loops(schedule.nest.body):
        if loop.name != panel:
            continue
        for _, load in reads(loop.body):
            axis = next((n for n, d in enumerate(load.source.shape) if d != 1), 0)
            if load.source.name != buffer or not load.indices:
                continue
            form = simplifier.flatten(simplifier.linear(load.indices[axis]))
            if form.coefficient(loop.index) == 1:
                return True
    return False


def _level(schedule: Schedule, panel: str, levels: list[str], lines: int) -> str:
    """Returns the loop whose iterations request lines; splits the last reduction loop if needed."""
    body = next(n for n in loops(schedule.nest.body) if n.name == panel).body
    known = isinstance(iterations(body, levels[-1]), int)
    if not known and not has_tiles(body):
        return levels[-1]
    for name in levels:
        steps = least_iterations(body, name)
        if not steps or math.ceil(lines / steps) > MOST_LINES_AT_ONCE:
            continue
        deepest = known and name == levels[-1]
        if deepest and schedule.extent(name) > STEPS_OF_REQUEST and steps >= 4 * lines:
            few = max(1, min(STEPS_OF_REQUEST, steps * MOST_LINES_AT_ONCE // (2 * max(lines, 1))))
            outer, _ = schedule.split(name, few)
            return outer
        return name
    return levels[-1]


def _is_counted_by_run(schedule: Schedule, tiles: str) -> bool:
    """Whether only a run knows the number of iterations of a loop over tiles."""
    found = [loop for loop in loops(schedule.nest.body) if loop.name == tiles]
    return any(not isinstance(loop.size, int) and not has_tiles(loop) for loop in found)


def write_past_caches(schedule: Schedule, info: StageInfo, target: Target) -> None:
    """Writes a large output with nontemporal stores, which do not read its lines first. Outputs of
    free size are excluded: they may fit a cache, and reading them back from memory would cost much
    more.
    """
    buffer = info.store.buffer
    is_known = all(isinstance(size, int) for size in buffer.shape)
    if info.is_output and is_known and passes_caches(target, buffer.typical_bytes):
        schedule.nontemporal(info.name)
