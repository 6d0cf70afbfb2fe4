"""Results of code generation for the runtime: entry points, kernels and object code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from clew.support.bounds import Places
from clew.support.shown import Brief


@dataclass(frozen=True)
class Access:
    """An argument that a phase reads or writes, by number, and the parts of it that the phase's
    pieces and lines access.

    A *run* is the number of consecutive bytes that are divided into parts, one per piece (or line),
    repeatedly; for the outermost axis, it is the whole argument. 0 if all pieces (lines) read the
    same.
    """

    argument: int
    size_bytes: int
    run_of_pieces: int
    run_of_lines: int


@dataclass(frozen=True)
class EntryPoint:
    """One parallel phase of a kernel: a function
    `void(ptr args, ptr scratch, i64 begin, i64 end, i64 first, i64 last)`.

    `grid` is the number of independent pieces of work; 1 means one piece with all of it. Each piece
    may have *lines* that are independent as well: `lines` holds the number and the cost of each
    group of equal lines, in order, and the function executes lines `first` to `last` of pieces
    `begin` to `end`. A phase with neither is serial. A phase that `joins` may run concurrently with
    the phase before it.
    it.

    `cost` is an estimate of the nanoseconds of one run on one core. Cost and accesses determine
    threading and chunks, and never affect the result.
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
        """The number of lines of a piece; 1 if it has none."""
        return sum(count for count, _ in self.lines) or 1

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> EntryPoint:
        """Returns the entry point from its `asdict` after a round trip through JSON."""
        lines = tuple((count, cost) for count, cost in record["lines"])
        reads, writes = (tuple(Access(**a) for a in record[key]) for key in ("reads", "writes"))
        known = {**record, "lines": lines, "reads": reads, "writes": writes}
        return cls(**{f.name: known[f.name] for f in fields(cls)})


RECORD_BYTES: Final = 16
"""The size of the record that a step's checks write: two 64-bit words, the number from 1 of a check
that found an index out of range (0: none has), and that index, plus the number of places if it was
negative.
"""


@dataclass(frozen=True)
class IndexCheck:
    """An index that a kernel checks, and the position of its operator among the kernel's."""

    places: Places
    operator: int

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> IndexCheck:
        """Returns the check from its `asdict` after a round trip through JSON."""
        places = {f.name: record["places"][f.name] for f in fields(Places)}
        return cls(Places(**places), record["operator"])


@dataclass(frozen=True, repr=False)
class KernelCode(Brief):
    """One compiled kernel: its entry points in execution order.

    `key` is the hex hash of everything the code depends on. `scratch_bytes` is the per-thread
    scratch memory of each entry point; `workspace_bytes` are the kernel-wide temporaries passed
    after the outputs. `in_place` holds the inputs whose memory an output may use, as positions of
    both: each element of the output is written after the last read of the same element of the
    input. `checks` are the indices that it checks, by number. If there are any, the kernel takes
    one more argument, the address of a record (`RECORD_BYTES`).
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
