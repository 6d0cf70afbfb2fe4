"""Runs a model on one part of a table, and writes the results."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import clew.api.compile as api
from clew.api.loaded_model import load_compiled
from clew.backends.compile_options import CompileOptions
from clew.generation.companions import Companions
from clew.generation.text_inputs import TextInputs
from clew.mapping.columns import column_of, rows_of, texts_of
from clew.mapping.plan import Part, arrow
from clew.runtime.batches import Batching, run_rows
from clew.support.alone import alone
from clew.support.errors import InputError
from clew.support.files import open_plain, reason_of
from clew.support.settings import usable_cpus
from clew.support.writing import replacing

_WINDOW_ROWS: Final = 1024
"""Rows that are read, sorted by shape, run and written at once."""


@dataclass(frozen=True)
class Job:
    """What all parts have in common: the model, with its options as a record in JSON, the column of
    each input where it has another name, that of texts, and the outputs to keep (all if there are
    none). `kept` lists columns to copy; None: those that are no inputs. `sharing` is the number of
    parts that one machine works on at once.
    """

    model: str
    options: str
    output: str
    batch: int
    columns: tuple[tuple[str, str], ...] = ()
    text: str = ""
    outputs: tuple[str, ...] = ()
    kept: tuple[str, ...] | None = None
    sharing: int = 1


def run_part(job: Job, part: Part, done: Callable[[int], None] = lambda rows: None) -> int:
    """Writes the results of a part, and returns its number of rows. `done` is told rows as they are
    finished.

    Errors: I453 and I454 (the table), I455 and I456 (the model), I457 (columns), I452 (the results
    cannot be written), and those of compilation and of calls.
    """
    model = _model(job.model, job.options, job.sharing)
    batching = Batching.of(model.inputs, job.batch)
    texts = _texts(job.model, model) if job.text else None
    columns = _columns(job, model, texts)
    read = (*columns.values(), *([job.text] if job.text else ()))
    kept = [name for name in _kept(job, part) if name not in columns.values() or job.kept]
    parquet = arrow("pyarrow.parquet")
    result = part.result(Path(job.output))
    try:
        with replacing(result, sync=True) as stream:
            writer = None
            for first, table in _windows(part, [*dict.fromkeys((*read, *kept))]):
                inputs = {
                    spec.name: rows_of(table[columns[spec.name]], spec, columns[spec.name], first)
                    for spec in model.inputs
                    if spec.name in columns
                }
                if texts is not None:
                    given = texts.encode(texts_of(table[job.text], job.text, first))
                    inputs = texts.rows(given) | inputs
                found = run_rows(model, batching, inputs, table.num_rows, job.outputs)
                made = table.select(kept)
                for name, rows in found.items():
                    made = made.append_column(_free(name, made.column_names), column_of(rows))
                if writer is None:
                    writer = parquet.ParquetWriter(stream, made.schema)
                writer.write(made)
                done(table.num_rows)
            assert writer is not None, "a part has rows"
            writer.close()
    except OSError as error:
        raise InputError("I452", f"cannot write {str(result)!r}: {reason_of(error)}") from None
    return part.rows


@functools.lru_cache(maxsize=2)
def _model(path: str, options: str, sharing: int) -> Any:
    """Returns a compiled model; a worker compiles it once."""
    wanted = CompileOptions.of_record(json.loads(options))
    if wanted.threads is None:
        wanted = wanted.changed(threads=max(1, usable_cpus() // sharing))
    if path.endswith(".clew"):
        return load_compiled(path, wanted.threads)
    with alone():  # the workers of a machine would all compile it; so the others find it cached
        return api.compile(Path(path), **wanted)


@functools.lru_cache(maxsize=2)
def _texts(path: str, model: Any) -> TextInputs:
    return TextInputs(Companions.beside(Path(path)), model.inputs)


def _windows(part: Part, columns: list[str]) -> Iterator[tuple[int, Any]]:
    """Yields tables with consecutive rows of a part, each with the number of its first row.

    Errors: I453, I457.
    """
    pa, parquet = arrow(), arrow("pyarrow.parquet")
    try:
        with open_plain(part.file) as stream:
            file = parquet.ParquetFile(stream)
            names = file.schema_arrow.names
            for name in columns:
                if names.count(name) != 1:
                    raise _no_column(name, part.file, names)
            begin, groups = 0, []
            for number in range(file.num_row_groups):
                end = begin + file.metadata.row_group(number).num_rows
                if end > part.first and begin < part.first + part.rows:
                    groups.append((number, begin))
                begin = end
            at, last = groups[0][1], part.first + part.rows
            batches = file.iter_batches(_WINDOW_ROWS, [n for n, _ in groups], columns)
            for batch in batches:
                low, high = max(part.first - at, 0), min(last - at, batch.num_rows)
                if low < high:
                    yield at + low, pa.Table.from_batches([batch.slice(low, high - low)])
                at += batch.num_rows
                if at >= last:
                    return
    except (OSError, pa.ArrowException) as error:
        raise InputError(
            "I453", f"{part.file!r} is not a readable Parquet file: {reason_of(error)}"
        ) from None


def _columns(job: Job, model: Any, texts: TextInputs | None) -> dict[str, str]:
    """Returns the column of each input that has one.

    Errors: I457 for an input that the model does not have.
    """
    given = dict(job.columns)
    for name in given:
        if name not in model.input_names:
            raise InputError(
                "I457",
                f"the model has no input {name!r}, only {', '.join(map(repr, model.input_names))}",
            )
    filled = frozenset() if texts is None else texts.names - given.keys()
    return {name: given.get(name, name) for name in model.input_names if name not in filled}


def _kept(job: Job, part: Part) -> list[str]:
    """Returns the columns to copy, or those that may be."""
    if job.kept is not None:
        return list(dict.fromkeys(job.kept))
    with open_plain(part.file) as stream:
        return list(arrow("pyarrow.parquet").read_schema(stream).names)


def _free(name: str, taken: list[str]) -> str:
    """Returns a name for the column of an output that differs from those of other columns."""
    while name in taken:
        name = f"{name}_output"
    return name


def _no_column(name: str, file: str, names: list[str]) -> InputError:
    count, hint = names.count(name), "--input NAME=COLUMN says which column an input has"
    if count:
        hint = f"{hint}, --keep which columns are copied"
        return InputError("I457", f"{file!r} has {count} columns {name!r}", hint=hint)
    listed = ", ".join(map(repr, names))
    return InputError("I457", f"{file!r} has no column {name!r}, only {listed}", hint=hint)
