"""Results of code generation for the runtime: entry points, kernels and object code.

Grids and sizes are dimensions (`ir.dims`). A kernel of sizes that only a run knows is a template:
`KernelCode.at` returns the kernel at given sizes, in which all of them are numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final, TypeVar

from clew.ir.dim_records import of_record, symbolic_of_record, to_record
from clew.ir.dims import (
    Dim,
    Sizes,
    SymDim,
)
from clew.support.bounds import Places
from clew.support.dataclass import dataclass
from clew.support.shown import Brief

T = TypeVar("T")


@dataclass(frozen=True)
class Access:
    """An argument that a phase reads or writes, by number, and the parts of it that the phase's
    pieces and lines access.

    A *run* is the number of consecutive bytes that are divided into parts, one per piece (or line),
    repeatedly; for the outermost axis, it is the whole argument. 0 if all pieces (lines) read the
    same.
    """

    argument: int
    size_bytes: Dim
    run_of_pieces: Dim
    run_of_lines: Dim

    def at(self, sizes: Sizes) -> Access:
        """Returns the access at given sizes."""
        runs = sizes.value(self.run_of_pieces), sizes.value(self.run_of_lines)
        return Access(self.argument, sizes.value(self.size_bytes), *runs)

    @staticmethod
    def of_record(record: Mapping[str, Any]) -> Access:
        """Returns the access from its record after a round trip through JSON."""
        names = ("size_bytes", "run_of_pieces", "run_of_lines")
        return Access(record["argument"], *(of_record(record[name]) for name in names))


@dataclass(frozen=True)
class EntryPoint:
    """One parallel phase of a kernel: a function
    `void(ptr args, ptr scratch, i64 begin, i64 end, i64 first, i64 last)`.

    `grid` is the number of independent pieces of work; 1 means one piece with all of it. Each piece
    may have *lines* that are independent as well: `lines` holds the number and the cost of each
    group of equal lines, in order, and the function executes lines `first` to `last` of pieces
    `begin` to `end`. A phase with neither is serial. A phase that `joins` may run concurrently with
    the phase before it.

    `cost` is an estimate of the nanoseconds of one run on one core, and `repeated` one of the
    nanoseconds that each call spends on each piece before its lines. Costs and accesses determine
    threading and chunks, and never affect the result. The costs of a template are those at typical
    sizes; `cost_fs` and `repeated_fs`, in femtoseconds, give them as functions of sizes.
    """

    symbol: str
    grid: Dim
    cost: float
    lines: tuple[tuple[Dim, float], ...] = ()
    reads: tuple[Access, ...] = ()
    writes: tuple[Access, ...] = ()
    joins: bool = False
    cost_fs: SymDim | None = None
    repeated: float = 0.0
    repeated_fs: SymDim | None = None

    @property
    def n_pieces(self) -> int:
        """The number of pieces of work."""
        assert isinstance(self.grid, int)
        return self.grid

    @property
    def line_costs(self) -> list[tuple[int, float]]:
        """The number and the cost of each group of equal lines."""
        return [(count, cost) for count, cost in self.lines if isinstance(count, int)]

    @property
    def n_lines(self) -> int:
        """The number of lines of a piece; 1 if it has none."""
        return sum(count for count, _ in self.line_costs) or 1

    def at(self, sizes: Sizes, is_shared: bool = True) -> EntryPoint:
        """Returns the entry point at given sizes. If there are no lines at these sizes, it has no
        pieces. With `is_shared=False`, for a single thread, the cost remains that at typical sizes,
        and accesses are left out, since only the division of work needs them.
        """
        lines = tuple([(sizes.value(count), cost) for count, cost in self.lines])
        grid = sizes.value(self.grid)
        if lines and not any(count for count, _ in lines):
            grid = 0
        if not is_shared:
            return EntryPoint(self.symbol, grid, self.cost, lines, (), (), self.joins)
        cost, repeated = (
            number if dim is None else sizes.value(dim) / FS_PER_NS
            for number, dim in ((self.cost, self.cost_fs), (self.repeated, self.repeated_fs))
        )
        reads, writes = (tuple(a.at(sizes) for a in part) for part in (self.reads, self.writes))
        return EntryPoint(
            self.symbol, grid, cost, lines, reads, writes, self.joins, repeated=repeated
        )  # fmt: skip

    def to_record(self) -> dict[str, Any]:
        """Returns the entry point as JSON values."""
        return _record(self)  # type: ignore[no-any-return]

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> EntryPoint:
        """Returns the entry point from its record after a round trip through JSON."""
        lines = tuple((of_record(count), cost) for count, cost in record["lines"])
        reads, writes = (
            tuple(Access.of_record(access) for access in record[key]) for key in ("reads", "writes")
        )
        known = {"repeated": 0.0, **record, "lines": lines, "reads": reads, "writes": writes}
        known["grid"] = of_record(record["grid"])
        for key in ("cost_fs", "repeated_fs"):
            known[key] = of_record(record[key]) if key in record else None
        return cls(**{f.name: known[f.name] for f in fields(cls)})


FS_PER_NS: Final = 1_000_000
"""Costs at given sizes are numbers of nanoseconds; functions of sizes are in femtoseconds."""
_OPTIONAL: Final = ("cost_fs", "repeated", "repeated_fs")


def _record(value: Any) -> Any:
    """Returns a value of dataclasses, tuples and dimensions as JSON values. Costs in `_OPTIONAL`
    are left out if they are None or 0.
    """
    if isinstance(value, SymDim):
        return to_record(value)
    if isinstance(value, tuple):
        return [_record(v) for v in value]
    if is_dataclass(value) and not isinstance(value, type):
        found = {f.name: getattr(value, f.name) for f in fields(value)}
        return {k: _record(v) for k, v in found.items() if v or k not in _OPTIONAL}
    return value


def _over_dims(value: T, change: Callable[[SymDim], Dim]) -> T:
    """Returns a value of dataclasses, tuples and dimensions with its symbolic ones changed."""
    if isinstance(value, SymDim):
        return change(value)  # type: ignore[return-value]
    if isinstance(value, tuple):
        return tuple([_over_dims(v, change) for v in value])  # type: ignore[return-value]
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{f.name: _over_dims(getattr(value, f.name), change) for f in fields(value)}
        )
    return value


def _size_record(size: SymDim) -> Any:
    """Returns a size of a kernel as JSON values: a name, or the terms of a polynomial."""
    return str(size) if str(size) in size.symbols and not size.from_zero else to_record(size)


def _size_of_record(record: Any) -> SymDim:
    return SymDim.symbol(record) if isinstance(record, str) else symbolic_of_record(record)


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

    def at(self, sizes: Sizes) -> IndexCheck:
        """Returns the check at given sizes."""
        places = self.places
        size, count = sizes.value(places.size), sizes.value(places.count)
        return replace(self, places=replace(places, size=size, count=count))

    def to_record(self) -> dict[str, Any]:
        """Returns the check as JSON values."""
        return _record(self)  # type: ignore[no-any-return]

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> IndexCheck:
        """Returns the check from its record after a round trip through JSON."""
        places = {f.name: record["places"][f.name] for f in fields(Places)}
        for name in ("size", "count"):
            places[name] = of_record(places[name])
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

    `sizes` are the dimensions that a call of a template brings, as numbers among its arguments
    after the workspaces; `size_values` holds them in the kernel at given sizes. A template is valid
    only for sizes at which all of `needs` are at least 0, and takes at most `operations` arithmetic
    operations.
    """

    key: str
    entries: tuple[EntryPoint, ...]
    scratch_bytes: Dim = 0
    workspace_bytes: tuple[Dim, ...] = ()
    in_place: tuple[tuple[int, int], ...] = ()
    checks: tuple[IndexCheck, ...] = ()
    sizes: tuple[SymDim, ...] = ()
    size_values: tuple[int, ...] = ()
    needs: tuple[SymDim, ...] = ()
    operations: Dim = 0

    @property
    def scratch(self) -> int:
        """`scratch_bytes` as a number."""
        assert isinstance(self.scratch_bytes, int)
        return self.scratch_bytes

    def at(self, sizes: Sizes, *, is_shared: bool = True) -> KernelCode:
        """Returns the kernel at given sizes; itself if it has none. See `EntryPoint.at`."""
        if not self.sizes:
            return self
        return KernelCode(
            self.key,
            tuple([entry.at(sizes, is_shared) for entry in self.entries]),
            sizes.value(self.scratch_bytes),
            tuple([sizes.value(size) for size in self.workspace_bytes]),
            self.in_place,
            tuple([check.at(sizes) for check in self.checks]),
            size_values=tuple([sizes.value(size) for size in self.sizes]),
        )

    def meaning(self, dims: Mapping[str, SymDim]) -> KernelCode:
        """Returns the code with dimensions in place of names of sizes."""
        return _over_dims(self, lambda dim: dim.substitute(dims)) if dims else self

    def to_record(self) -> dict[str, Any]:
        """Returns the code as JSON values."""
        record = {
            "key": self.key,
            "entries": [e.to_record() for e in self.entries],
            "scratch_bytes": to_record(self.scratch_bytes),
            "workspace_bytes": [to_record(size) for size in self.workspace_bytes],
            "in_place": self.in_place,
            "checks": [check.to_record() for check in self.checks],
        }
        if not self.sizes:
            return record
        return {
            **record,
            "sizes": [_size_record(size) for size in self.sizes],
            "needs": [to_record(need) for need in self.needs],
            "operations": to_record(self.operations),
        }

    @staticmethod
    def of_record(record: Mapping[str, Any]) -> KernelCode:
        """Returns the code from its record after a round trip through JSON."""
        return KernelCode(
            record["key"],
            tuple(map(EntryPoint.of_record, record["entries"])),
            of_record(record["scratch_bytes"]),
            tuple(map(of_record, record["workspace_bytes"])),
            tuple((source, target) for source, target in record["in_place"]),
            tuple(map(IndexCheck.of_record, record["checks"])),
            tuple(map(_size_of_record, record.get("sizes", ()))),
            needs=tuple(map(symbolic_of_record, record.get("needs", ()))),
            operations=of_record(record.get("operations", 0)),
        )


@dataclass(frozen=True, repr=False)
class ObjectCode(Brief):
    """One relocatable object file and the functions it defines."""

    key: str
    data: bytes
    symbols: tuple[str, ...]
