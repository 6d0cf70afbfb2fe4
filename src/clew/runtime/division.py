"""Division of the work of phases into chunks, the ranges of pieces and lines that a thread takes.

A program with free sizes divides its phases again in each call with new sizes, so the division is
computed for all entry points at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from clew.codegen.artifact import EntryPoint
from clew.codegen.driver import driver as native
from clew.machine.costs import DEFAULTS
from clew.support.dataclass import dataclass

# More chunks balance better; fewer chunks have less overhead.
_CHUNKS_PER_THREAD: Final = 6
# Chunks per thread that suffice for threads to finish at about the same time.
_FAIR: Final = 3
# The part of a chunk that threads wait for each other at the end of equal shares, since they start
# at different times.
_WAIT: Final = 0.25
_MOST_CHUNKS: Final = native.MAX_CHUNKS // 2

LineCosts = Sequence[tuple[int, float]]


@dataclass(frozen=True)
class Work:
    """The facts that determine a division: arrays with one element for each entry point, in order.
    `phase` counts phases from 0, `cost` is in nanoseconds, and `repeats` says whether each call
    repeats work on a piece before its lines.
    """

    phase: np.ndarray
    cost: np.ndarray
    pieces: np.ndarray
    lines: np.ndarray
    repeats: np.ndarray

    @staticmethod
    def of(phases: Sequence[Sequence[EntryPoint]]) -> Work:
        """Returns the work of phases at known sizes. A size below 0, as the limits of counts may
        give a kernel that does not run, counts as 0.
        """
        entries = [entry for phase in phases for entry in phase]
        return Work(
            np.repeat(np.arange(len(phases)), list(map(len, phases))),
            np.array([entry.cost for entry in entries], np.float64),
            np.array([max(entry.n_pieces, 0) for entry in entries], np.int64),
            np.array([max(entry.n_lines, 0) for entry in entries], np.int64),
            np.array([entry.repeated > 0 for entry in entries], bool),
        )


@dataclass(frozen=True)
class Division:
    """The chunks of all phases in order. `rows` is i64[n, 5]: for each chunk, the number of its
    entry point, then the ranges of pieces and of lines. `counts` is i64[phases], the number of
    chunks of each phase.
    """

    rows: np.ndarray
    counts: np.ndarray


class _Parts(NamedTuple):
    """Parts of entry points, to divide further into chunks: arrays with one element for each part.

    A part has all pieces, `lines` lines from `first` on, and about `share` chunks. `team` is the
    number of threads that share it, all or one. `thread` is that one, or 0 for all.
    """

    entry: np.ndarray
    thread: np.ndarray
    first: np.ndarray
    lines: np.ndarray
    share: np.ndarray
    team: np.ndarray


def are_shared(work: Work, threads: int, n_phases: int) -> np.ndarray:
    """Returns, for each phase, whether threads share it: it has parts, and enough work."""
    if threads == 1:
        return np.zeros(n_phases, bool)
    entries = np.bincount(work.phase, minlength=n_phases)
    parts = np.bincount(work.phase, work.pieces * work.lines, n_phases)
    cost = np.bincount(work.phase, work.cost, n_phases)
    shared: np.ndarray = (cost >= DEFAULTS.serial_below) & ((entries > 1) | (parts > 1))
    return shared


def divide(
    work: Work, line_costs: Sequence[LineCosts], threads: int, along: Sequence[bool]
) -> Division:
    """Returns the chunks of phases; the caller takes those of a phase from the front, and workers
    from the back.

    In phases for which `along` is true, each thread takes some lines of all pieces rather than all
    lines of some pieces, if there are as many lines as threads. For this, `line_costs` holds the
    number and the cost of the lines in each group of equal lines, by entry point.
    """
    n_phases = len(along)
    shared = are_shared(work, threads, n_phases)
    cost = np.bincount(work.phase, work.cost, n_phases)
    most = np.minimum(threads * _CHUNKS_PER_THREAD, (cost / DEFAULTS.least_chunk).astype(np.int64))
    own = shared[work.phase]
    part = work.cost / np.where(own, cost[work.phase], 1.0)
    share = np.maximum(1, np.rint(most[work.phase] * part)).astype(np.int64)
    share[~own] = 1
    numbers = np.arange(len(work.phase))
    zeros = np.zeros_like(numbers)
    parts = _Parts(numbers, zeros, zeros, work.lines, share, zeros + threads)
    cut = own & np.asarray(along, bool)[work.phase] & (work.lines >= threads)
    if cut.any():
        parts = _by_lines(parts, np.flatnonzero(cut), line_costs, threads)
    rows, thread = _chunks(work, parts, own)
    phase = work.phase[rows[:, 0]]
    if cut.any():
        rows = rows[_in_order(phase, thread)]
    return Division(rows, np.bincount(phase, minlength=n_phases))


def _by_lines(
    parts: _Parts, cut: np.ndarray, line_costs: Sequence[LineCosts], threads: int
) -> _Parts:
    """Returns the parts; those of entry points in `cut` are divided by lines, one per thread."""
    times = np.ones_like(parts.entry)
    times[cut] = threads
    found = _Parts(*(np.repeat(array, times) for array in parts))
    begins = np.cumsum(times) - times
    for number in cut.tolist():
        mine = slice(begins[number], begins[number] + threads)
        cuts = _cuts_of_lines(line_costs[number], threads)
        found.first[mine], found.lines[mine] = cuts[:-1], np.diff(cuts)
        found.thread[mine] = np.arange(threads)
        found.share[mine] = -(-found.share[mine] // threads)
        found.team[mine] = 1
    return found


def _cuts_of_lines(groups: LineCosts, parts: int) -> np.ndarray:
    """Returns the boundaries of `parts` ranges of lines of about equal cost, both ends included."""
    costs = np.repeat([cost for _, cost in groups], [count for count, _ in groups])
    done = np.cumsum(costs)
    middles = done - costs / 2
    cuts = [0]
    for part in range(1, parts):
        cut = int(np.searchsorted(middles, done[-1] * part / parts))
        cuts.append(min(max(cut, cuts[-1] + 1), len(costs)))
    return np.array([*cuts, len(costs)])


def _chunks(work: Work, parts: _Parts, shared: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns rows of chunks in the order of their parts, and the thread of each. If each chunk
    repeats work before its lines, lines are divided into the fewest parts that give all threads
    equal numbers of chunks, or `_FAIR` chunks each.
    """
    pieces = work.pieces[parts.entry]
    size, across, n_lines, beside = _fairest(pieces, parts.lines, parts.share, parts.team)
    for number in np.flatnonzero(work.repeats[parts.entry] & shared[parts.entry]):
        size[number], across[number] = _evenly(pieces[number], parts.share[number])
        if across[number]:
            team, count = int(parts.team[number]), int(across[number])
            along = next(n for n in range(1, team + 1) if _is_fair(n * count, team))
            n_lines[number], beside[number] = _evenly(parts.lines[number], np.array(along))
    times = across * beside
    part = np.repeat(np.arange(len(times)), times)
    within = np.arange(len(part)) - np.repeat(np.cumsum(times) - times, times)
    piece, line = np.divmod(within, beside[part])
    rows = np.empty((len(part), 5), np.int64)
    rows[:, 0] = parts.entry[part]
    rows[:, 1] = begin = piece * size[part]
    rows[:, 2] = np.minimum(begin + size[part], pieces[part])
    rows[:, 3] = first = line * n_lines[part]
    rows[:, 4] = np.minimum(first + n_lines[part], parts.lines[part])
    rows[:, 3:] += parts.first[part, None]
    return rows, parts.thread[part]


def _fairest(
    pieces: np.ndarray, lines: np.ndarray, share: np.ndarray, team: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns the pieces of a chunk, the number of such parts of all pieces, the lines of a chunk,
    and the number of such parts of all lines.

    Of `share` chunks and of each multiple of `team` below, those are taken of which a team's last
    thread ends first: each thread takes the next chunk when it is free.
    """
    rounds = np.arange(_CHUNKS_PER_THREAD + 1 if (share > 1).any() else 1)[:, None]
    most = np.where(rounds, np.minimum(rounds * team, share), share)
    size, across = _evenly(pieces, most, exact=rounds > 0)
    n_lines, beside = _evenly(lines, most // np.maximum(1, across), exact=rounds > 0)
    turns = -(-across * beside // team)
    best = np.argmin((turns + _WAIT) * size * n_lines, axis=0)
    picked = best, np.arange(len(best))
    return size[picked], across[picked], n_lines[picked], beside[picked]


def _evenly(
    count: np.ndarray, most: np.ndarray, exact: np.ndarray | bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the size and the number of equal parts, `most` or, unless `exact`, a few more:
    smaller parts are preferred.
    """
    parts = np.maximum(1, np.minimum(most, _MOST_CHUNKS))
    size = np.maximum(1, np.where(exact, -(-count // parts), count // parts))
    size = np.maximum(size, -(-count // _MOST_CHUNKS))
    return size, -(-count // size)


def _is_fair(chunks: int, threads: int) -> bool:
    return chunks % threads == 0 or chunks >= _FAIR * threads


def _in_order(phase: np.ndarray, thread: np.ndarray) -> np.ndarray:
    """Returns the order of chunks: in each phase those of the caller, then those of the workers,
    which start at the end and take turns.
    """
    order = np.lexsort((thread, phase))
    same = (np.diff(phase[order], prepend=-1) == 0) & (np.diff(thread[order], prepend=-1) == 0)
    turn = np.empty_like(order)  # the number of a chunk among those of its thread
    places = np.arange(len(order))
    turn[order] = places - np.maximum.accumulate(np.where(same, 0, places))
    back = np.where(thread > 0, -1, 1)
    return np.lexsort((back * thread, back * turn, thread > 0, phase))
