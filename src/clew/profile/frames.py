"""A profile as pandas frames, CSV and Parquet."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from clew.profile.files import writing
from clew.profile.rows import KernelProfile, LayerProfile, OperatorProfile, ProfileRows
from clew.support.errors import InputError
from clew.support.libraries import optional_library
from clew.support.writing import replacing, write_text

METADATA: Final = b"clew.profile"
"""The key of the Parquet file metadata that holds everything except the rows, as JSON."""

_ROOF = (
    "flops",
    "bytes",
    "gflops",
    "peak_share",
    "gbps",
    "bandwidth_share",
    "limit",
    "limit_share",
)
_TIMES = ("ns", "median_ns", "q1_ns", "q3_ns", "best_ns", "spread")


class Frames(NamedTuple):
    """A profile as pandas frames; `docs/profile.md` lists their columns."""

    kernels: Any
    layers: Any
    operators: Any


def frames(profile: ProfileRows) -> Frames:
    """Returns the profile's frames.

    Errors: I112.
    """
    pandas = _needed("pandas")
    return Frames(
        pandas.DataFrame([_kernel(k) for k in profile.kernels], columns=KERNEL_COLUMNS),
        pandas.DataFrame([_layer(row) for row in profile.layers], columns=LAYER_COLUMNS),
        pandas.DataFrame([_operator(o) for o in profile.operators], columns=OPERATOR_COLUMNS),
    )


KERNEL_COLUMNS: Final = [
    "kernel", "kind", "layers", "ops", "runs", *_TIMES, "share", "samples", "error", *_ROOF,
]  # fmt: skip
LAYER_COLUMNS: Final = [
    "layer", "op", "ns", "share", "alone_ns", "measured_ns", "estimated_ns", "undivided_ns",
    "kernels",
]  # fmt: skip
OPERATOR_COLUMNS: Final = [
    "kernel", "position", "op", "layers", "ns", "share_of_kernel", "basis", "samples", "measured",
    "by_flops", "by_bytes",
]  # fmt: skip


def _kernel(kernel: KernelProfile) -> dict[str, Any]:
    roof = kernel.roof
    return {
        "kernel": kernel.name,
        "kind": kernel.kind,
        "layers": list(kernel.layers),
        "ops": list(kernel.ops),
        "runs": kernel.runs,
        **{name: getattr(kernel.time, name) for name in _TIMES},
        "share": kernel.share,
        "samples": kernel.samples,
        "error": kernel.error,
        **{name: getattr(roof, name, None) for name in _ROOF},
    }


def _layer(layer: LayerProfile) -> dict[str, Any]:
    row = {name: getattr(layer, name) for name in LAYER_COLUMNS}
    return {**row, "kernels": list(layer.kernels)}


def _operator(operator: OperatorProfile) -> dict[str, Any]:
    return {
        "kernel": operator.kernel,
        "position": operator.position,
        "op": operator.op,
        "layers": list(operator.layers),
        "ns": operator.ns,
        "share_of_kernel": operator.share,
        "basis": operator.basis,
        "samples": operator.samples,
        "measured": operator.measured,
        "by_flops": operator.by_flops,
        "by_bytes": operator.by_bytes,
    }


COLUMNS: Final = tuple(
    dict.fromkeys(("mode", "level", *KERNEL_COLUMNS, *LAYER_COLUMNS, *OPERATOR_COLUMNS))
)
"""The columns of one table of all rows."""


def all_rows(profile: ProfileRows) -> list[Mapping[str, Any]]:
    """Returns all rows as one table. `level` is run, outside, kernel, layer or operator; a row has
    the columns of its level only. In the mode `both`, the unfused rows are included; `mode`
    identifies them.
    """
    return _rows(profile) + (_rows(profile.unfused) if profile.unfused is not None else [])


def whole(profile: ProfileRows) -> Any:
    """Returns one frame of all rows.

    Errors: I112.
    """
    made = _needed("pandas").DataFrame(all_rows(profile), columns=list(COLUMNS))
    # Missing values would turn these counts into floats.
    return made.astype(dict.fromkeys(("position", "flops", "bytes"), "Int64"))


def _rows(profile: ProfileRows) -> list[Mapping[str, Any]]:
    mode = profile.mode
    run = {name: getattr(profile.wall, name) for name in _TIMES}
    rows: list[Mapping[str, Any]] = [
        {"mode": mode, "level": "run", **run, "share": 1.0},
        {
            "mode": mode,
            "level": "outside",
            "ns": profile.outside_ns,
            "share": profile.outside_ns / max(profile.wall.ns, 1.0),
        },
    ]
    rows += [{"mode": mode, "level": "kernel", **_kernel(k)} for k in profile.kernels]
    rows += [{"mode": mode, "level": "layer", **_layer(row)} for row in profile.layers]
    rows += [{"mode": mode, "level": "operator", **_operator(o)} for o in profile.operators]
    return rows


def write_csv(profile: ProfileRows, path: Path) -> None:
    """Writes all rows as one table; lists are joined with `; `.

    Errors: I115.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in all_rows(profile):
        joined = {k: "; ".join(v) if isinstance(v, list) else v for k, v in row.items()}
        writer.writerow(joined)
    with writing(path):
        write_text(path, text.getvalue())


def write_parquet(profile: ProfileRows, path: Path) -> None:
    """Writes the whole frame, and everything else about the profile as the file's metadata.

    Errors: I112, I115.
    """
    made = whole(profile)
    arrow, parquet = _needed("pyarrow"), _needed("pyarrow.parquet")
    table = arrow.Table.from_pandas(made, preserve_index=False)
    about = {k: v for k, v in profile.to_json().items() if k not in _IN_ROWS}
    table = table.replace_schema_metadata(
        {**(table.schema.metadata or {}), METADATA: json.dumps(about).encode()}
    )
    with writing(path), replacing(path) as stream:
        parquet.write_table(table, stream)


_IN_ROWS = ("kernels", "layers", "modules", "unfused", "gains")


def _needed(name: str) -> Any:
    """Imports an optional library.

    Errors: I112.
    """
    library = name.partition(".")[0]
    absent = InputError("I112", f"{library} is not installed", hint="pip install 'clew[profile]'")
    return optional_library(name, absent)
