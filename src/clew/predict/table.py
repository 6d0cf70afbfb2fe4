"""The table of measured kernels: its columns, and its Parquet file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from clew.predict.extras import needed
from clew.predict.footprints import RUNS
from clew.predict.instructions import CLASSES, PARTS
from clew.predict.program import AGED, AGES, DISTANCES, KINDS
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
CACHES: Final = 5
"""The number of sizes of caches for which a table has lines: those of `describe.cache_sizes`."""
_PARTS: Final = (
    "multiply-adds", "vector instructions", "shuffles", "loads", "stores", "divisions", "tiles",
    "chains of dependent sums", "instructions issued",
)  # fmt: skip

COLUMNS: Final[dict[str, tuple[str, str]]] = {
    # The origin of the row.
    "network": ("string", "the network that the kernel was measured in"),
    "family": ("string", "the kind of network"),
    "mode": ("string", "`program`: in runs of the program; `alone`: repeatedly by itself"),
    "precision": ("string", "the dtype of operands of products"),
    "fuse": ("string", "`auto`, or `none`: one operator per kernel"),
    "clew": ("string", "version of clew"),
    "target": ("string", "the machine that the kernel was compiled for"),
    "threads": ("int64", "threads of a run"),
    # The kernel.
    "kernel": ("string", "the kernel's name in the network"),
    "key": ("string", "hash of everything its code depends on"),
    "ops": ("list<string>", "operators in order"),
    "operators": ("string", "JSON: facts of each operator: attributes, types, sizes, FLOPs"),
    "types": ("string", "JSON: types and layouts of arguments and results"),
    "layers": ("list<string>", "the network's layers that it serves"),
    "shares": ("string", "JSON: estimated share of each layer in the kernel's time"),
    "rules": ("list<string>", "schedule rules that were applied"),
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
    # Its work.
    **{f"count_{name}": ("double", f"{name}: {_COUNT}") for name in CLASSES},
    "cycles": ("double", "cycles of one core with all operands in its first-level cache"),
    "core_cycles": ("double", "the same from its assembly, with ports, latencies and the window"),
    **{
        f"{name}_cycles": ("double", f"cycles of one core for its {what}")
        for name, what in zip(PARTS[1:], _PARTS, strict=True)
    },
    "iterations": ("double", "iterations of all its loops"),
    "inner_iterations": ("double", "iterations of its innermost loops"),
    **{
        f"lines_{cache}_{run}": ("double", f"cache lines from beyond cache {cache} in runs {run}")
        for cache in range(CACHES)
        for run in range(len(RUNS) + 1)
    },
    "traffic_l1_bytes": ("double", "approximate bytes from beyond the first-level cache"),
    "traffic_l2_bytes": ("double", "approximate bytes from beyond the second-level cache"),
    "loop_depth": ("int64", "nesting depth of loops"),
    "phases": ("int64", "parallel phases"),
    "grid": ("int64", "pieces of work of the largest phase"),
    "chunks": ("int64", "chunks in which threads claim the pieces"),
    "shared": ("double", "share of the work that threads divide"),
    "span": ("double", "share of the work on the critical path, with this number of threads"),
    "estimate_ns": ("double", "the driver's own rough estimate for one core"),
    # The state of the caches in the program.
    "constant_read_bytes": ("int64", "bytes of weights it reads"),
    "written_bytes": ("int64", "bytes of its results and temporaries"),
    **{
        f"{kind}_bytes_{n}": ("int64", f"bytes of {what} at distance class {n}")
        for kind, what in zip(KINDS, ("weights", "other operands", "results"), strict=True)
        for n in _CLASSES
    },
    **{
        f"{kind}_aged_{n}": ("int64", f"bytes of {what} from beyond L2 of age class {n}")
        for kind, what in zip(AGED, ("other operands", "results"), strict=True)
        for n in range(len(AGES) + 1)
    },
    "program_constant_bytes": ("int64", "weights of the whole program"),
    "program_arena_bytes": ("int64", "memory of its intermediate values"),
    "program_bytes": ("int64", "bytes that a run of the program touches"),
    "program_kernels": ("int64", "kernels of the program"),
    "position": ("double", "place in the program, from 0 to 1"),
    # The measurement.
    "latency_ns": ("double", "mean over the middle half of the runs, ranked by their totals"),
    "median_ns": ("double", "median over all counted runs"),
    "q1_ns": ("double", "first quartile"),
    "q3_ns": ("double", "third quartile"),
    "best_ns": ("double", "minimum"),
    "runs": ("int64", "counted runs"),
    "steady": ("bool", "whether the machine had its usual speed throughout"),
    "network_sum_ns": ("double", "sum of the network's kernels in a typical run"),
    "network_call_ns": ("double", "a whole call of the network, median"),
    # The machine's rates during the measurement.
    "fma_gflops": ("double", "GFLOP/s of fused multiply-adds, all threads, in the same turns"),
    "l2_gbps": ("double", "GB/s of an array in the second-level caches, in the same turns"),
    "l3_gbps": ("double", "GB/s of an array beyond them, in the same turns"),
    "memory_gbps": ("double", "GB/s of an array beyond the third, once per session"),
    "seed": ("int64", "seed of a random network; -1 for a model's file"),
}  # fmt: skip
"""The type and meaning of each column. `docs/predict.md` shows this table."""

REQUIRED: Final = tuple(COLUMNS)
# The least value of columns whose least is not 0, and the largest of all.
_LEAST: Final = {"seed": -1.0, "threads": 1.0} | dict.fromkeys(
    ("latency_ns", "network_sum_ns", "network_call_ns"), 1e-3
)
_MOST: Final = float(1 << 62)
# The minimum size of a value in memory.
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
    """Writes rows after those of an Arrow table, atomically, and returns all rows.

    Errors: I180; I189 if the file cannot be written.
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
    """Returns a table as an Arrow table, with some columns or all.

    Errors: I180; I181 if the file is not a Parquet file; I331 if it exceeds a budget; I182 if
    columns are missing, or have other types or impossible values; I184 for a table made by another
    version of clew.
    """
    parquet = needed("pyarrow.parquet")
    arrow = needed("pyarrow")
    wanted = list(REQUIRED if columns is None else columns)
    try:
        with open_plain(path) as stream:
            file = parquet.ParquetFile(stream)
            _check_size(path, file.metadata)
            found = file.schema_arrow
            made_by = (found.metadata or {}).get(b"clew", b"").decode("utf-8", "replace")
            _check_columns(path, found)
            if made_by == VERSION:
                table = file.read(columns=wanted).select(wanted)
                _check_values(path, table)
    except (OSError, ValueError, arrow.ArrowException) as error:
        raise InputError(
            "I181",
            f"{str(path)!r} is not a readable table: {_first_line(error)}",
            hint="clew dataset -o TABLE.parquet measures one",
        ) from None
    if made_by != VERSION:
        raise InputError(
            "I184",
            f"{str(path)!r} was measured with clew {made_by or 'of no version'}; this is {VERSION}",
            hint="kernels differ between versions: measure again with clew dataset",
        )
    return table


def _check_columns(path: Path, found: Any) -> None:
    """Checks that each column is there once, with its type.

    Errors: I182.
    """
    hint = "clew dataset makes tables"
    missing = [name for name in REQUIRED if name not in found.names]
    if missing:
        raise InputError(
            "I182",
            f"{str(path)!r} lacks the columns {', '.join(missing[:5])}"
            + (f" and {len(missing) - 5} more" if len(missing) > 5 else ""),
            hint=hint,
        )
    for field in schema():
        places = found.get_all_field_indices(field.name)
        types = [found.field(place).type for place in places]
        if types != [field.type]:
            raise InputError(
                "I182",
                f"{str(path)!r} has the column {field.name!r} of type "
                f"{' and '.join(map(str, types))}, not {field.type}",
                hint=hint,
            )


def _check_values(path: Path, table: Any) -> None:
    """Checks that no value is missing, and that numbers are finite and in the range of what they
    count.

    Errors: I182.
    """
    compute = needed("pyarrow.compute")
    for name, column in zip(table.column_names, table.columns, strict=True):
        kind, _ = COLUMNS[name]
        lists = kind.startswith("list")
        wrong = column.null_count or (lists and compute.list_flatten(column).null_count)
        if kind in ("int64", "double") and len(column):
            least = _LEAST.get(name, 0.0)
            numbers = column.to_numpy(zero_copy_only=False) if not wrong else np.array([np.nan])
            wrong = wrong or not ((numbers >= least) & (numbers <= _MOST)).all()
        if wrong:
            raise InputError(
                "I182",
                f"{str(path)!r} has missing or impossible values in the column {name!r}",
                hint="it is damaged: measure again with clew dataset",
            )


def _check_size(path: Path, metadata: Any) -> None:
    """Checks the claimed size of a table against the budgets.

    Errors: I331 if it exceeds `total_bytes`.
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
    """Returns rows as columns: arrays of numbers, lists of other values."""
    made: dict[str, Any] = {}
    for name, (kind, _) in COLUMNS.items():
        values = [row.get(name) for row in rows]
        if kind in ("int64", "double"):
            made[name] = np.array([np.nan if v is None else v for v in values], np.float64)
        else:
            made[name] = values
    return made


def columns_of_table(table: Any) -> dict[str, Any]:
    """Returns the columns of an Arrow table."""
    made: dict[str, Any] = {}
    for name in table.column_names:
        kind, _ = COLUMNS[name]
        column = table.column(name)
        if kind in ("int64", "double"):
            made[name] = column.to_numpy(zero_copy_only=False).astype(np.float64)
        else:
            made[name] = column.to_pylist()
    return made
