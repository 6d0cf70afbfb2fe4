"""What code generation hands to the runtime: entry points, kernels and object code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from clew.support.bounds import Places
from clew.support.shown import Brief


@dataclass(frozen=True)
class Access:
    """An argument that a phase reads or writes, by its number, and what the phase's pieces and its
    lines each have of it.

    A *run* is how many bytes in a row are cut into parts, one for each piece, or line, over and
    over: the whole for the outermost axis. 0 where all read the same.
    """

    argument: int
    size_bytes: int
    run_of_pieces: int
    run_of_lines: int


@dataclass(frozen=True)
class EntryPoint:
    """One parallel phase of a kernel: a function
    `void(ptr args, ptr scratch, i64 begin, i64 end, i64 first, i64 last)`.

    `grid` is the number of independent pieces of work; 1 means that a piece has all of it. Each
    piece may have *lines* that are independent as well: `lines` has the number and the cost of each
    of those that are alike, in order, and the function does lines `first` to `last` of pieces
    `begin` to `end`. A phase of neither is serial. One that `joins` may run beside the phase before
    it.

    `cost` is a rough number of nanoseconds one run takes on one core. It and the accesses decide
    threading and chunks, and never the result.
    """

    symbol: str
    grid: int
    cost: float
    lines: tuple[tuple[int, float], ...] = ()
    reads: tuple[Access, ...] = ()
    writes: tuple[Access, ...] = ()
    joins: bool = False

    @property
    def n_lines(self) -> int:
        """How many lines a piece has; 1 without."""
        return sum(count for count, _ in self.lines) or 1

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> EntryPoint:
        """Returns the entry point whose `asdict` went through JSON."""
        lines = tuple((count, cost) for count, cost in record["lines"])
        reads, writes = (tuple(Access(**a) for a in record[key]) for key in ("reads", "writes"))
        known = {**record, "lines": lines, "reads": reads, "writes": writes}
        return cls(**{f.name: known[f.name] for f in fields(cls)})


RECORD_BYTES: Final = 16
"""What a step's checks write to: two 64-bit words, the number from 1 of a check that has found an
index out of range (0: none has), and that index, plus the number of places if it was negative."""


@dataclass(frozen=True)
class IndexCheck:
    """An index that a kernel checks, and the position of its operator among the kernel's."""

    places: Places
    operator: int

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> IndexCheck:
        """Returns the check whose `asdict` went through JSON."""
        places = {f.name: record["places"][f.name] for f in fields(Places)}
        return cls(Places(**places), record["operator"])


@dataclass(frozen=True, repr=False)
class KernelCode(Brief):
    """One compiled kernel: its entry points in the order in which they must run.

    `key` is the hex hash of everything the code depends on. `scratch_bytes` is the per-thread
    scratch memory that each entry point needs; `workspace_bytes` are the kernel-wide temporaries
    passed after the outputs. `in_place` has the inputs whose memory an output may take, as
    positions of both: each of its elements is written after the same element of the input was read
    for the last time. `checks` are the indices that it checks, by number: with any it takes one
    argument more, the address of a record (`RECORD_BYTES`).
    """

    key: str
    entries: tuple[EntryPoint, ...]
    scratch_bytes: int = 0
    workspace_bytes: tuple[int, ...] = ()
    in_place: tuple[tuple[int, int], ...] = ()
    checks: tuple[IndexCheck, ...] = ()


@dataclass(frozen=True, repr=False)
class ObjectCode(Brief):
    """One relocatable object file and the functions it defines."""

    key: str
    data: bytes
    symbols: tuple[str, ...]
