"""The table of measured kernels: its columns, and the Parquet file it is kept in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from clew.predict.extras import needed
from clew.predict.instructions import CLASSES
from clew.predict.program import DISTANCES, KINDS
from clew.support.budgets import current, exceeded
from clew.support.errors import InputError
from clew.support.files import open_plain, reason_of
from clew.support.writing import replacing
from clew.version import VERSION

Row = Mapping[str, Any]

_COUNT: Final = (
    "instructions of this class in one run; those of vectors count the target's registers"
)
_CLASSES: Final = range(len(DISTANCES) + 1)

COLUMNS: Final[dict[str, tuple[str, str]]] = {
    # Where the row is from.
    "network": ("string", "the network that the kernel was measured in"),
    "family": ("string", "what kind of network that is"),
    "mode": ("string", "`program`: in runs of the program; `alone`: again and again by itself"),
    "precision": ("string", "what products multiply in"),
    "fuse": ("string", "`auto`, or `none`: one operator per kernel"),
    "clew": ("string", "version of clew"),
    "target": ("string", "the machine that the kernel was compiled for"),
    "threads": ("int64", "threads of a run"),
    # What the kernel is.
    "kernel": ("string", "the kernel's name in the network"),
    "key": ("string", "hash of all that its code depends on"),
    "ops": ("list<string>", "operators in order"),
    "operators": ("string", "JSON: facts of each operator: attributes, types, sizes, FLOPs"),
    "types": ("string", "JSON: types and layouts of arguments and results"),
    "layers": ("list<string>", "the network's layers that it works for"),
    "shares": ("string", "JSON: estimated share of each layer in the kernel's time"),
    "rules": ("list<string>", "schedule rules that were chosen"),
    "schedule": ("string", "the recorded steps of the schedule"),
    "fusion": ("string", "how several anchors share the kernel, if they do"),
    "layout": ("string", "layout of the first argument that has one"),
    "dtype": ("string", "element type of the first result"),
    "flops": ("int64", "arithmetic operations of its expressions"),
    "product_flops": ("int64", "those of sums of products"),
    "bytes": ("int64", "bytes that must move: each operand once"),
    "argument_bytes": ("int64", "size of the arguments"),
    "result_bytes": ("int64", "size of the results"),
    "workspace_bytes": ("int64", "size of temporaries that threads share"),
    "scratch_bytes": ("int64", "size of temporaries of each thread"),
    "text_lines": ("int64", "lines of LLVM text"),
    # What it will execute.
    **{f"count_{name}": ("double", f"{name}: {_COUNT}") for name in CLASSES},
    "cycles": ("double", "cycles of one core, were all operands in its first-level cache"),
    "latency_cycles": ("double", "cycles of its chains of dependent sums"),
    "iterations": ("double", "iterations of all its loops"),
    "traffic_l1_bytes": ("double", "bytes from behind the first-level cache, about"),
    "traffic_l2_bytes": ("double", "bytes from behind the second-level cache, about"),
    "loop_depth": ("int64", "loops in each other"),
    "phases": ("int64", "parallel phases"),
    "grid": ("int64", "pieces of work of the largest phase"),
    "chunks": ("int64", "parts that the pieces are handed out in"),
    "shared": ("double", "share of the work that threads divide"),
    "span": ("double", "share of the work on the longest way, with this number of threads"),
    "estimate_ns": ("double", "what the driver's own rough estimate says of one core"),
    # What the program around it leaves.
    "constant_read_bytes": ("int64", "bytes of weights it reads"),
    "written_bytes": ("int64", "bytes of its results and temporaries"),
    **{
        f"{kind}_bytes_{n}": ("int64", f"bytes of {what} at distance class {n}")
        for kind, what in zip(KINDS, ("weights", "other operands", "results"), strict=True)
        for n in _CLASSES
    },
    "program_constant_bytes": ("int64", "weights of the whole program"),
    "program_arena_bytes": ("int64", "memory of its intermediate values"),
    "program_bytes": ("int64", "bytes that a run of the program touches"),
    "program_kernels": ("int64", "kernels of the program"),
    "position": ("double", "place in the program, from 0 to 1"),
    # What was measured.
    "latency_ns": ("double", "mean over the middle half of the runs, as their totals rank them"),
    "median_ns": ("double", "median over all runs that count"),
    "q1_ns": ("double", "first quartile"),
    "q3_ns": ("double", "third quartile"),
    "min_ns": ("double", "least"),
    "runs": ("int64", "runs that count"),
    "steady": ("bool", "whether the machine gave its usual speed throughout"),
    "network_sum_ns": ("double", "sum of the network's kernels in a typical run"),
    "network_call_ns": ("double", "a whole call of the network, median"),
    # What the machine gave meanwhile.
    "fma_gflops": ("double", "GFLOP/s of fused multiply-adds, all threads, in the same turns"),
    "l2_gbps": ("double", "GB/s of an array in the second-level caches, in the same turns"),
    "l3_gbps": ("double", "GB/s of an array behind them, in the same turns"),
    "memory_gbps": ("double", "GB/s of an array beyond the third, once a session"),
    "seed": ("int64", "seed of a drawn network; -1 for a model's file"),
}  # fmt: skip
"""For each column its type and what it says. `docs/predict.md` shows this table."""

REQUIRED: Final = tuple(COLUMNS)
# What a value takes in memory, at least.
_LEAST_BYTES: Final = 8


def schema() -> Any:
    """Returns the Arrow schema.

    Errors: I180.
    """
    arrow = needed("pyarrow")
    kinds = {
        "string": arrow.string(),
        "list<string>": arrow.list_(arrow.string()),
        "int64": arrow.int64(),
        "double": arrow.float64(),
        "bool": arrow.bool_(),
    }
    fields = [arrow.field(name, kinds[kind]) for name, (kind, _) in COLUMNS.items()]
    return arrow.schema(fields, metadata={"clew": VERSION})


def write_table(path: Path, rows: Sequence[Row], before: Any = None) -> Any:
    """Writes rows after those of an Arrow table, whole or not at all, and returns all.

    Errors: I180; I189 where the file cannot be written.
    """
    arrow = needed("pyarrow")
    parquet = needed("pyarrow.parquet")
    made = arrow.Table.from_pylist([dict(row) for row in rows], schema=schema())
    table = made if before is None else arrow.concat_tables([before, made])
    try:
        with replacing(path) as stream:
            parquet.write_table(table, stream, compression="zstd")
    except OSError as error:
        raise InputError("I189", f"cannot write to {str(path)!r}: {reason_of(error)}") from None
    return table


def read_table(path: Path, columns: Sequence[str] | None = None) -> Any:
    """Returns a table as Arrow's, of some columns or all.

    Errors: I180; I181 for a file that is no Parquet file; I331 for one that exceeds a budget; I182
    where columns are missing; I184 for a table that another version of clew made.
    """
    parquet = needed("pyarrow.parquet")
    arrow = needed("pyarrow")
    try:
        with open_plain(path) as stream:
            file = parquet.ParquetFile(stream)
            _check_size(path, file.metadata)
            found = file.schema_arrow
            missing = [name for name in REQUIRED if name not in found.names]
            made_by = (found.metadata or {}).get(b"clew", b"").decode("utf-8", "replace")
            wanted = None if columns is None else list(columns)
            table = None if missing else file.read(columns=wanted)
    except (OSError, ValueError, arrow.ArrowException) as error:
        raise InputError(
            "I181",
            f"{str(path)!r} is no table that can be read: {_first_line(error)}",
            hint="clew dataset -o TABLE.parquet measures one",
        ) from None
    if missing:
        raise InputError(
            "I182",
            f"{str(path)!r} lacks the columns {', '.join(missing[:5])}"
            + (f" and {len(missing) - 5} more" if len(missing) > 5 else ""),
            hint="a table comes from clew dataset",
        )
    if made_by != VERSION:
        raise InputError(
            "I184",
            f"{str(path)!r} was measured with clew {made_by or 'of no version'}, this is {VERSION}",
            hint="kernels differ between versions: measure again with clew dataset",
        )
    return table


def _check_size(path: Path, metadata: Any) -> None:
    """Compares what a table claims to hold with the budgets.

    Errors: I331 for more bytes than `total_bytes`.
    """
    groups = range(metadata.num_row_groups)
    claimed = max(
        sum(max(0, metadata.row_group(n).total_byte_size) for n in groups),
        metadata.num_rows * metadata.num_columns * _LEAST_BYTES,
    )
    most = current().total_bytes
    if claimed > most:
        raise exceeded(
            InputError, "I331", f"bytes of the table {str(path)!r}", claimed, "total_bytes", most
        )


def _first_line(error: Exception) -> str:
    return (reason_of(error).splitlines() or [""])[0]


def columns_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Returns rows as columns: arrays of numbers, lists of all else."""
    made: dict[str, Any] = {}
    for name, (kind, _) in COLUMNS.items():
        values = [row.get(name) for row in rows]
        if kind in ("int64", "double"):
            made[name] = np.array([np.nan if v is None else v for v in values], np.float64)
        else:
            made[name] = values
    return made


def columns_of_table(table: Any) -> dict[str, Any]:
    """Returns an Arrow table as columns, those that it has."""
    made: dict[str, Any] = {}
    for name in table.column_names:
        kind, _ = COLUMNS[name]
        column = table.column(name)
        if kind in ("int64", "double"):
            made[name] = column.to_numpy(zero_copy_only=False).astype(np.float64)
        else:
            made[name] = column.to_pylist()
    return made
