"""A profile as pandas frames, CSV and Parquet."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from clew.profile import flat
from clew.profile.files import writing
from clew.profile.rows import KernelProfile, LayerProfile, OperatorProfile, ProfileRows
from clew.support.errors import InputError
from clew.support.libraries import optional_library
from clew.support.writing import replacing, write_text

Row: TypeAlias = Mapping[str, Any]
By: TypeAlias = Literal["kernel", "layer", "operator", "module"]

METADATA: Final = b"clew.profile"
"""The key of the Parquet file metadata that holds everything except the rows, as JSON."""

_ROOF = ("gflops", "peak_share", "gbps", "bandwidth_share", "limit", "limit_share")
_TIMES = ("ns", "median_ns", "q1_ns", "q3_ns", "best_ns", "spread")
# The work of one execution: bytes that must move, and the sizes of all operands and results.
_WORK = ("flops", "product_flops", "bytes", "argument_bytes", "result_bytes")
_LEVELS: Final[tuple[By, ...]] = ("kernel", "layer", "operator")


class Frames(NamedTuple):
    """A profile as pandas frames; `docs/profile.md` lists their columns."""

    kernels: Any
    layers: Any
    operators: Any


KERNEL_COLUMNS: Final = [
    "kernel", "kind", "layers", "ops", "operators", "key", "runs", *_TIMES, "share", "samples",
    "error", *_WORK, *_ROOF, "anchor", *flat.COLUMNS,
]  # fmt: skip
LAYER_COLUMNS: Final = [
    "layer", "op", "ns", "share", "alone_ns", "measured_ns", "estimated_ns", "undivided_ns",
    "kernels", "ops", "operators", "anchor", *flat.COLUMNS,
]  # fmt: skip
OPERATOR_COLUMNS: Final = [
    "kernel", "position", "op", "layers", "operators", "runs", "ns", "share_of_kernel", "basis",
    "samples", "measured", "by_flops", "by_bytes", "flops", "product_flops", "argument_bytes",
    "result_bytes", *flat.COLUMNS,
]  # fmt: skip
MODULE_COLUMNS: Final = ["module", "kind", "ns", "share", "layers", "kernels"]
COLUMNS: Final = tuple(
    dict.fromkeys(("mode", "level", *KERNEL_COLUMNS, *LAYER_COLUMNS, *OPERATOR_COLUMNS))
)
"""The columns of one table of all rows."""
_COLUMNS: Final[dict[By, Sequence[str]]] = {
    "kernel": KERNEL_COLUMNS,
    "layer": LAYER_COLUMNS,
    "operator": OPERATOR_COLUMNS,
    "module": MODULE_COLUMNS,
}
_INTEGERS: Final = frozenset(("position", *_WORK, *flat.NUMBERS))


def frames(profile: ProfileRows) -> Frames:
    """Returns the profile's frames.

    Errors: I112.
    """
    return Frames(*(_frame(_rows_of(profile, by), _COLUMNS[by]) for by in _LEVELS))


def _frame(rows: Sequence[Row], columns: Sequence[str]) -> Any:
    made = _needed("pandas").DataFrame(rows, columns=list(columns))
    # Missing values would turn these counts into floats.
    return made.astype({name: "Int64" for name in columns if name in _INTEGERS})


def _rows_of(profile: ProfileRows, by: By) -> list[Row]:
    """Returns the rows of one level."""
    match by:
        case "kernel":
            model = {layer.layer: layer.facts for layer in profile.layers}
            return [_kernel(kernel, model) for kernel in profile.kernels]
        case "layer":
            known = {(o.kernel, o.position): o for o in profile.operators}
            return [_layer(layer, known) for layer in profile.layers]
        case "operator":
            runs = {kernel.name: kernel.runs for kernel in profile.kernels}
            model = {layer.layer: layer.facts for layer in profile.layers}
            return [_operator(o, runs[o.kernel], model) for o in profile.operators]
        case "module":
            return [asdict(module) for module in profile.modules]


def _kernel(kernel: KernelProfile, model: Mapping[str, Row]) -> Row:
    return {
        "kernel": kernel.name,
        "kind": kernel.kind,
        "layers": kernel.layers,
        "ops": kernel.ops,
        "key": kernel.facts.get("key"),
        "runs": kernel.runs,
        **{name: getattr(kernel.time, name) for name in _TIMES},
        "share": kernel.share,
        "samples": kernel.samples,
        "error": kernel.error,
        **{name: kernel.facts.get(name) for name in _WORK},
        **{name: getattr(kernel.roof, name, None) for name in _ROOF},
        **_described(kernel.operators, model),
    }


def _layer(layer: LayerProfile, known: Mapping[tuple[str, int], OperatorProfile]) -> Row:
    operators = [known[part.kernel, part.position] for part in layer.parts]
    row = {name: getattr(layer, name) for name in LAYER_COLUMNS if hasattr(layer, name)}
    described = {**_described(operators, {}), **flat.flat(layer.facts)}
    ops = [operator.op for operator in operators]
    return {**row, "ops": ops, **described, "anchor": layer.facts.get("op")}


def _operator(operator: OperatorProfile, runs: float, model: Mapping[str, Row]) -> Row:
    facts = operator.facts
    sizes = {
        f"{name}_bytes": sum(value.get("bytes", 0) for value in facts[f"{plural}s"])
        for name, plural in (("argument", "input"), ("result", "output"))
        if facts
    }
    row = {name: getattr(operator, name) for name in OPERATOR_COLUMNS if hasattr(operator, name)}
    work = {name: _whole(facts.get(name)) for name in ("flops", "product_flops")}
    described = {k: v for k, v in _described([operator], model).items() if k != "anchor"}
    return {**row, "runs": runs, "share_of_kernel": operator.share, **work, **sizes, **described}


def _described(operators: Sequence[OperatorProfile], model: Mapping[str, Row]) -> Row:
    """Returns the operators' facts as JSON, and those of the anchor as columns: if its algorithm
    has no window, with the window of the layer in the model.
    """
    if not operators or not all(operator.facts for operator in operators):
        return {}
    facts = [{"op": operator.op, **operator.facts} for operator in operators]
    anchor = flat.anchor_of(facts)
    windows = [flat.window(model.get(layer, {})) for layer in operators[anchor].layers]
    window = next(filter(None, windows), {}) if "product_flops" in facts[anchor] else {}
    return {
        "operators": json.dumps(facts, separators=(",", ":")),
        "anchor": operators[anchor].op,
        **flat.flat({**window, **facts[anchor]}),
    }


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def table_of(profile: ProfileRows, by: By | None) -> tuple[list[Row], list[str]]:
    """Returns the rows and columns of one table: of one level, or of all (`level` is then run,
    outside, kernel, layer or operator; a row has the columns of its level only). In the mode
    `both`, the unfused rows are included; `mode` identifies them.
    """
    every = [profile] if profile.unfused is None else [profile, profile.unfused]
    if by is not None:
        rows: list[Row] = [{"mode": one.mode, **row} for one in every for row in _rows_of(one, by)]
        return rows, ["mode", *_COLUMNS[by]]
    return [row for one in every for row in _all_rows(one)], list(COLUMNS)


def _all_rows(profile: ProfileRows) -> list[Row]:
    mode = profile.mode
    run = {name: getattr(profile.wall, name) for name in _TIMES}
    outside = profile.outside_ns
    share = outside / max(profile.wall.ns, 1.0)
    rows: list[Row] = [
        {"mode": mode, "level": "run", **run, "share": 1.0},
        {"mode": mode, "level": "outside", "ns": outside, "share": share},
    ]
    for by in _LEVELS:
        rows += [{"mode": mode, "level": by, **row} for row in _rows_of(profile, by)]
    return rows


def write_csv(profile: ProfileRows, path: Path, by: By | None = None) -> None:
    """Writes one table as CSV; lists are joined with `; `.

    Errors: I115.
    """
    rows, columns = table_of(profile, by)
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        joined = {k: "; ".join(v) if isinstance(v, (list, tuple)) else v for k, v in row.items()}
        writer.writerow(joined)
    with writing(path):
        write_text(path, text.getvalue())


def write_parquet(profile: ProfileRows, path: Path, by: By | None = None) -> None:
    """Writes one table as Parquet, and everything else about the profile as the file's metadata.

    Errors: I112, I115.
    """
    made = _frame(*table_of(profile, by))
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
