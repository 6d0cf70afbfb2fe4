"""Which thread does which part of a phase.

A core reads what another one has just written three times as slowly as what comes from the cache
that all share. So a phase is cut along its pieces or along its lines, whichever leaves each thread
less to read of what the other half reads as well, and threads take their parts in the same order in
every phase: what one has written it mostly reads itself in the next.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from clew.codegen import native
from clew.codegen.artifact import EntryPoint

# Starting a step on spinning workers costs a microsecond, and what moves from one core's cache to
# the other's, then and in the steps around it, some more.
_SERIAL_BELOW_NS = 8_000.0
_CHUNK_AT_LEAST_NS = 1_000.0
# More chunks balance better, fewer start less often.
_CHUNKS_PER_THREAD = 12
# Nanoseconds a byte that another core has written, and a constant's.
_NS_PER_BYTE = 0.1
_NS_PER_CONSTANT_BYTE = 0.035


@dataclass(frozen=True)
class Chunk:
    """Lines `first` to `last` of pieces `begin` to `end` of an entry point's grid."""

    symbol: str
    begin: int
    end: int
    first: int
    last: int

    @property
    def ranges(self) -> tuple[int, int, int, int]:
        """What the function takes after its memory."""
        return self.begin, self.end, self.first, self.last


def phases(entries: Sequence[EntryPoint]) -> list[list[EntryPoint]]:
    """Returns the entry points of a kernel in order, those that may run at once together."""
    found: list[list[EntryPoint]] = []
    for entry in entries:
        if found and entry.joins:
            found[-1].append(entry)
        else:
            found.append([entry])
    return found


def split(
    phase: Sequence[EntryPoint], threads: int, constants: Collection[int] = ()
) -> list[Chunk]:
    """Returns the chunks of entry points that may run at once, those first that the caller should
    do first, and those last that a worker should. `constants` are the arguments whose bytes no
    thread has written.
    """
    cost = sum(entry.cost for entry in phase)
    most = min(threads * _CHUNKS_PER_THREAD, int(cost / _CHUNK_AT_LEAST_NS))
    if threads == 1 or most <= 1 or cost < _SERIAL_BELOW_NS:
        return [_box(entry, (0, entry.grid), (0, entry.n_lines)) for entry in phase]
    by_thread: list[list[Chunk]] = [[] for _ in range(threads)]
    for entry in phase:
        share = max(1, round(most * entry.cost / cost))
        if _along_lines(entry, threads, constants):
            for own, lines in zip(by_thread, _parts_of_lines(entry, threads), strict=True):
                own += _boxes(entry, (0, entry.grid), lines, -(-share // threads))
        else:
            by_thread[0] += _boxes(entry, (0, entry.grid), (0, entry.n_lines), share)
    return _in_order(by_thread)


def _in_order(by_thread: list[list[Chunk]]) -> list[Chunk]:
    """Returns the caller's chunks, then those of the workers, who begin with the last."""
    own, *others = by_thread
    turns = max(map(len, others))
    theirs = [chunks[n] for n in range(turns) for chunks in others if n < len(chunks)]
    return own + theirs[::-1]


def _along_lines(entry: EntryPoint, threads: int, constants: Collection[int]) -> bool:
    """Whether each thread takes some lines of all pieces, rather than all lines of some."""
    if entry.n_lines < threads:
        return False

    def price(operands: Sequence[tuple[int, int]]) -> float:
        return sum(
            size * (_NS_PER_CONSTANT_BYTE if n in constants else _NS_PER_BYTE)
            for n, size in operands
        )

    return price(entry.piece_operands) <= price(entry.line_operands)


def _parts_of_lines(entry: EntryPoint, parts: int) -> list[tuple[int, int]]:
    """Returns the lines in order, cut into parts that take about as long as each other."""
    costs = [cost for count, cost in entry.lines for _ in range(count)]
    total, done, cuts = sum(costs), 0.0, [0]
    for line, cost in enumerate(costs):
        if len(cuts) < parts and done + cost / 2 >= total * len(cuts) / parts and line:
            cuts.append(line)
        done += cost
    cuts += [len(costs)] * (parts + 1 - len(cuts))
    return list(itertools.pairwise(cuts))


def _boxes(
    entry: EntryPoint, pieces: tuple[int, int], lines: tuple[int, int], most: int
) -> list[Chunk]:
    """Returns about so many chunks of pieces and lines, in the order in which one chunk would do
    them.
    """
    across = _ranges(pieces, most)
    along = _ranges(lines, most // max(1, len(across)))
    return [_box(entry, a, b) for a in across for b in along]


def _ranges(whole: tuple[int, int], most: int) -> list[tuple[int, int]]:
    """Returns a range in at most so many parts (or some more: rather smaller ones than fewer)."""
    start, stop = whole
    if stop <= start:
        return []
    size = max(1, (stop - start) // max(1, min(most, native.MAX_CHUNKS // 2)))
    size = max(size, -(-(stop - start) // (native.MAX_CHUNKS // 2)))
    return [(n, min(n + size, stop)) for n in range(start, stop, size)]


def _box(entry: EntryPoint, pieces: tuple[int, int], lines: tuple[int, int]) -> Chunk:
    return Chunk(entry.symbol, *pieces, *lines)
