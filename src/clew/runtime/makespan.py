"""The time of a kernel on several threads by its own division of work, without running it."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from clew.codegen.artifact import EntryPoint
from clew.runtime.grid import is_shared, phases, split


class Makespan(NamedTuple):
    """A kernel on several threads: `tasks` is the number of chunks of its longest phase, `share`
    the estimated time until the last thread ends, divided by that of one thread.
    """

    tasks: int
    share: float


def makespan(entries: Sequence[EntryPoint], threads: int) -> Makespan:
    """Returns the makespan of a kernel of known sizes.

    Each thread takes the next chunk as soon as it is free. Waiting for the slowest core, memory
    that threads share, and caches are left out.
    """
    total, span, longest = 0.0, 0.0, (0.0, 1)
    for group in phases(entries):
        cost = sum(entry.cost for entry in group)
        costs = _chunk_costs(group, threads) if is_shared(group, threads) else [cost]
        longest = max(longest, (cost, len(costs)))
        total += cost
        span += _last_end(costs, threads)
    return Makespan(longest[1], span / total if total else 1.0)


def _chunk_costs(phase: Sequence[EntryPoint], threads: int) -> list[float]:
    """Returns the estimated nanoseconds of a phase's chunks, in the order in which they start."""
    by_symbol = {entry.symbol: entry for entry in phase}
    found = []
    for chunk in split(phase, threads):
        entry = by_symbol[chunk.symbol]
        pieces, lines = entry.n_pieces, entry.n_lines
        part = (chunk.end - chunk.begin) / pieces if pieces else 0.0
        repeated = entry.repeated * (chunk.end - chunk.begin)
        once = max(0.0, entry.cost - entry.repeated * pieces)
        found.append(once * part * (chunk.last - chunk.first) / lines + repeated)
    return found


def _last_end(costs: Sequence[float], threads: int) -> float:
    """Returns when the last of `threads` threads ends, each taking the next cost when free."""
    ends = [0.0] * min(threads, max(1, len(costs)))
    for cost in costs:
        heapq.heapreplace(ends, ends[0] + cost)
    return max(ends)
