"""Distribution of a phase among threads.

A core reads data that another core has just written at a sixth of the rate of its own second-level
cache. A phase is therefore divided along its pieces or along its lines, whichever leaves each
thread less to read that it has not written itself, and threads take their parts in equal order in
every phase.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from clew.codegen.artifact import Access, EntryPoint
from clew.ir.dims import Dim
from clew.machine.costs import DEFAULTS
from clew.runtime.division import Work, are_shared, divide
from clew.runtime.plan import BufferKind, BufferRef
from clew.support.dataclass import dataclass

# The number of preceding choices that affect a choice.
_REMEMBERED = 4


class Chunk(NamedTuple):
    """Lines `first` to `last` of pieces `begin` to `end` of an entry point's grid."""

    symbol: str
    begin: int
    end: int
    first: int
    last: int


def phases(entries: Sequence[EntryPoint]) -> list[list[EntryPoint]]:
    """Returns the entry points of a kernel in order, grouped by those that may run concurrently."""
    found: list[list[EntryPoint]] = []
    for entry in entries:
        if found and entry.joins:
            found[-1].append(entry)
        else:
            found.append([entry])
    return found


def lines_of(entry: EntryPoint) -> Dim:
    """Returns the number of lines of an entry point; 1 if it has none."""
    total: Dim = 0
    for count, _ in entry.lines:
        total = total + count
    return total if entry.lines else 1


@dataclass(frozen=True)
class Use:
    """A phase of a program, with its arguments."""

    phase: tuple[EntryPoint, ...]
    args: Sequence[BufferRef]


def choose_cuts(uses: Sequence[Use], threads: int) -> list[bool]:
    """Returns, for each phase of a program in order, whether it is divided along its lines.

    A core has its own results in its cache, so phases are divided alike unless this costs more in
    other operands. The search minimizes the time that threads wait for operands over all phases; it
    merges paths that differ only in choices more than `_REMEMBERED` phases ago.
    """
    if threads == 1:
        return [False] * len(uses)
    written: dict[int, tuple[int, Access]] = {}  # by arena buffer: the phase that wrote it, and how
    paths = {0: (0.0, 0)}  # by last choices: the cost of a path, and its choices as bits
    for position, use in enumerate(uses):
        shared = is_shared(use.phase, threads)
        options = [shared and _has_lines(use.phase, threads)] * 2
        options[0] = False
        found: dict[int, tuple[float, int]] = {}
        for total, path in paths.values():
            for along in dict.fromkeys(options):
                price = total + _price(use, along, shared, written, path)
                longer = path | along << position
                recent = longer >> max(0, position + 1 - _REMEMBERED)
                if recent not in found or price < found[recent][0]:
                    found[recent] = price, longer
        paths = found
        for entry in use.phase:
            for access in entry.writes:
                none = Access(access.argument, access.size_bytes, 0, 0)
                written[use.args[access.argument].index] = position, access if shared else none
    _, best = min(paths.values())
    return [bool(best >> n & 1) for n in range(len(uses))]


def _has_lines(phase: Sequence[EntryPoint], threads: int) -> bool:
    return any(entry.n_lines >= threads for entry in phase)


def _price(
    use: Use, along: bool, shared: bool, written: dict[int, tuple[int, Access]], path: int
) -> float:
    """Returns the approximate nanoseconds that a thread loses: it waits for values that another
    thread has written and for constants that several threads read, and repeats work on a piece.
    """
    if not shared:
        return 0.0
    total = 0.0
    for entry in use.phase:
        total += entry.repeated * entry.n_pieces if along else 0.0
        for access in entry.reads:
            ref, run = use.args[access.argument], _run(access, along)
            size_bytes = access.size_bytes
            assert isinstance(size_bytes, int)
            if ref.kind is not BufferKind.ARENA:
                total += 0 if run else size_bytes * DEFAULTS.constant_byte
                continue
            position, writer = written.get(ref.index, (0, access))
            before = _run(writer, bool(path >> position & 1))
            own = run > 0 and run == before
            share = 0.0 if own else 0.5 if run and before else 1.0
            total += share * size_bytes * DEFAULTS.foreign_byte
    return total


def _run(access: Access, along: bool) -> int:
    run = access.run_of_lines if along else access.run_of_pieces
    assert isinstance(run, int)
    return run


def is_shared(phase: Sequence[EntryPoint], threads: int) -> bool:
    """Whether threads share a phase: it has parts, and enough work."""
    return bool(are_shared(Work.of([phase]), threads, 1)[0])


def split(phase: Sequence[EntryPoint], threads: int, along: bool = False) -> list[Chunk]:
    """Returns the chunks of a phase; see `divide`."""
    work = Work.of([phase])
    found = divide(work, [entry.line_costs for entry in phase], threads, [along])
    return [Chunk(phase[number].symbol, *ranges) for number, *ranges in found.rows.tolist()]
