"""Results of code generation for the runtime: entry points, kernels and object code.

Grids and sizes are dimensions (`ir.dims`). A kernel of sizes that only a run knows is a template:
`KernelCode.at` returns the kernel at given sizes, in which all of them are numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final, TypeVar

from clew.ir.dim_records import DimRows, DimTable
from clew.ir.dims import Atom, Dim, Sizes, SymDim
from clew.machine.costs import FS_PER_NS
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
    def of_record(record: Mapping[str, Any], dims: DimRows) -> Access:
        """Returns the access from its record after a round trip through JSON."""
        names = ("size_bytes", "run_of_pieces", "run_of_lines")
        return Access(record["argument"], *(dims.dim(record[name]) for name in names))


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
    cost_fs: Dim | None = None
    repeated: float = 0.0
    repeated_fs: Dim | None = None

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

    @staticmethod
    def of_record(record: Mapping[str, Any], dims: DimRows) -> EntryPoint:
        """Returns the entry point from its record after a round trip through JSON."""
        cost_fs, repeated_fs = record.get("cost_fs"), record.get("repeated_fs")
        return EntryPoint(
            record["symbol"],
            dims.dim(record["grid"]),
            record["cost"],
            tuple([(dims.dim(count), cost) for count, cost in record["lines"]]),
            tuple([Access.of_record(access, dims) for access in record["reads"]]),
            tuple([Access.of_record(access, dims) for access in record["writes"]]),
            record["joins"],
            None if cost_fs is None else dims.dim(cost_fs),
            record.get("repeated", 0.0),
            None if repeated_fs is None else dims.dim(repeated_fs),
        )


_OPTIONAL: Final = ("cost_fs", "repeated", "repeated_fs")


def _record(value: Any, dims: DimTable) -> Any:
    """Returns a value of dataclasses, tuples and dimensions as JSON values. Costs in `_OPTIONAL`
    are left out if they are None or 0.
    """
    if isinstance(value, SymDim):
        return dims.record(value)
    if isinstance(value, tuple):
        return [_record(v, dims) for v in value]
    if is_dataclass(value) and not isinstance(value, type):
        found = {f.name: getattr(value, f.name) for f in fields(value)}
        return {k: _record(v, dims) for k, v in found.items() if v or k not in _OPTIONAL}
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

    @classmethod
    def of_record(cls, record: Mapping[str, Any], dims: DimRows) -> IndexCheck:
        """Returns the check from its record after a round trip through JSON."""
        places = {f.name: record["places"][f.name] for f in fields(Places)}
        for name in ("size", "count"):
            places[name] = dims.dim(places[name])
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
    sizes: tuple[Dim, ...] = ()
    size_values: tuple[int, ...] = ()
    needs: tuple[SymDim, ...] = ()
    operations: Dim = 0

    @property
    def scratch(self) -> int:
        """`scratch_bytes` as a number."""
        assert isinstance(self.scratch_bytes, int)
        return self.scratch_bytes

    @property
    def is_static(self) -> bool:
        """Whether the kernel is the same at all sizes. One that takes no sizes may still run or not
        run, depending on them.
        """
        return not self.sizes and all(isinstance(entry.grid, int) for entry in self.entries)

    def at(self, sizes: Sizes, *, is_shared: bool = True) -> KernelCode:
        """Returns the kernel at given sizes; itself if it has none. See `EntryPoint.at`."""
        if self.is_static:
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

    def meaning(self, dims: Mapping[str, Dim]) -> KernelCode:
        """Returns the code with dimensions in place of names of sizes."""
        values: dict[Atom, Dim] = {}
        return _over_dims(self, lambda dim: dim.substitute(dims, values)) if dims else self

    def to_record(self) -> dict[str, Any]:
        """Returns the code as JSON values."""
        dims = DimTable()
        names = ["entries", "scratch_bytes", "workspace_bytes", "in_place", "checks"]
        names += ["sizes", "needs", "operations"] if self.sizes else []
        record = {name: _record(getattr(self, name), dims) for name in names}
        return {"key": self.key, **record, **({"dims": dims.rows} if dims.rows else {})}

    @staticmethod
    def of_record(record: Mapping[str, Any]) -> KernelCode:
        """Returns the code from its record after a round trip through JSON."""
        dims = DimRows(record.get("dims", ()))
        return KernelCode(
            record["key"],
            tuple([EntryPoint.of_record(entry, dims) for entry in record["entries"]]),
            dims.dim(record["scratch_bytes"]),
            tuple(map(dims.dim, record["workspace_bytes"])),
            tuple([(source, target) for source, target in record["in_place"]]),
            tuple([IndexCheck.of_record(check, dims) for check in record["checks"]]),
            tuple(map(dims.dim, record.get("sizes", ()))),
            needs=tuple(map(dims.symbolic, record.get("needs", ()))),
            operations=dims.dim(record.get("operations", 0)),
        )


@dataclass(frozen=True, repr=False)
class ObjectCode(Brief):
    """One relocatable object file and the functions it defines."""

    key: str
    data: bytes
    symbols: tuple[str, ...]
