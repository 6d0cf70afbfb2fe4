"""Every file beside a model that a command reads, and every text that it takes as an option,
changed: each command ends with exit code 0, 1 or 2, and says what is wrong in a coded error.

    python -m hostile.doors                  # 200 mutants for each door
    python -m hostile.doors tuned --count 9  # parts of names of doors

A mutant follows from its door and number alone: `--only NUMBER` repeats one. The file is long
because it is one table: for each door, its files, the ways to change them, and the command that
reads them.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import math
import os
import random
import re
import resource
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

import clew
from clew.machine.target import host
from clew.records import Store, Trial
from clew.records.exchange import export_records
from clew.runtime.memory import round_up
from clew.support.writing import npy_bytes
from hostile.codes import OURS
from hostile.corpus import network
from hostile.mutants import FLOATS, INTS, TEXTS, blind
from hostile.side_files import predictor

LIMIT_S: Final = 20
ADDRESS_SPACE_BYTES: Final = 4 << 30
_FOREIGN: Final = "I068"  # blames code of the user, which no door runs
_CODED: Final = re.compile(r"^error\[([A-Z]\d{3})\]", re.MULTILINE)
Files = dict[str, bytes]


@dataclass(frozen=True)
class Door:
    """A command that reads files, or texts. `mutants` changes the good ones."""

    name: str
    words: Sequence[str]
    good: Callable[[Path], Files]
    mutants: Callable[[Files, random.Random], Files]


# --- mutants --------------------------------------------------------------------------------------


def json_mutant(value: Any, draw: random.Random) -> bytes:
    """Returns a JSON value changed in one to three places, as text."""
    made = json.loads(json.dumps(value))
    marks: dict[str, str] = {}
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        made = _changed(made, draw, marks)
    text = json.dumps(made)
    for mark, raw in marks.items():
        text = text.replace(f'"{mark}"', raw)
    return text.encode("utf-8", "surrogatepass")


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _places(inner, (*path, key))
    elif isinstance(value, list):
        for place, inner in enumerate(value[:40]):
            yield from _places(inner, (*path, place))


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def _changed(value: Any, draw: random.Random, marks: dict[str, str]) -> Any:
    path = draw.choice(list(_places(value)))
    if not path:
        return value if draw.random() < 0.8 else _strange(value, draw, marks)
    holder, key = _at(value, path[:-1]), path[-1]
    match draw.randrange(8):
        case 0 if isinstance(holder, dict):
            del holder[key]
        case 1 if isinstance(holder, list):
            holder.insert(key, holder[key])
        case 2 if isinstance(holder, list):
            del holder[key]
        case 3:
            other = _at(value, draw.choice(list(_places(value))))
            holder[key] = json.loads(json.dumps(other))
        case 4 if isinstance(holder, dict):
            holder[draw.choice(TEXTS)] = holder[key]
        case _:
            holder[key] = _strange(holder[key], draw, marks)
    return value


def _strange(value: Any, draw: random.Random, marks: dict[str, str]) -> Any:
    numbers = isinstance(value, int | float)
    kind = draw.randrange(9)
    if numbers and kind < 5:
        near = value + draw.choice((-1, 1)) if math.isfinite(value) else 0
        return draw.choice((draw.choice(INTS), draw.choice(FLOATS), near, -value, value * 64))
    if isinstance(value, str) and kind < 4:
        half = value[: len(value) // 2]
        return draw.choice((value + "x", half, value * 3, draw.choice(TEXTS), "é" * 70_000, ""))
    mark = f"MARK{len(marks)}"
    raws = ("[" * 50_000, "[" * 500 + "]" * 500, "1e999", "-1e999", "NaN", "9" * 5000, "1e-400")
    match kind:
        case 5:
            marks[mark] = draw.choice(raws)
            return mark
        case 6:
            return draw.choice(([], {}, [value], {"a": value}, [[]], [value] * 1000))
        case 7:
            return draw.choice((None, True, False, "", 0, -1, 0.5, "NaN", "\ud800"))
    return draw.choice((*INTS, *FLOATS, *TEXTS))


def of_json(name: str, lines: bool = False) -> Callable[[Files, random.Random], Files]:
    """Returns the mutator of a JSON file among others, or of one line of a file of JSON lines."""

    def change(files: Files, draw: random.Random) -> Files:
        if draw.random() < 0.25:
            return blindly(files, draw)
        if not lines:
            return {**files, name: json_mutant(json.loads(files[name]), draw)}
        rows = files[name].splitlines()
        place = draw.randrange(len(rows))
        rows[place] = json_mutant(json.loads(rows[place]), draw)
        return {**files, name: b"\n".join(rows)}

    return change


def blindly(files: Files, draw: random.Random) -> Files:
    """Returns files of which one is damaged."""
    names = sorted(files)
    name = draw.choice(names)
    return {**files, name: blind(files[name], files[draw.choice(names)], draw)}


def of_texts(files: Files, draw: random.Random) -> Files:
    """Returns a text file with lines and words exchanged, repeated, or replaced."""
    if draw.random() < 0.25:
        return blindly(files, draw)
    name = draw.choice(sorted(files))
    lines = files[name].decode().splitlines() or [""]
    for _ in range(draw.choice((1, 1, 2, 4))):
        place = draw.randrange(len(lines))
        words = re.split(r"(\W)", lines[place])
        word = draw.randrange(len(words))
        match draw.randrange(7):
            case 0:
                lines.insert(place, draw.choice(lines))
            case 1:
                del lines[place]
                lines = lines or [""]
            case 2:
                lines[place] = lines[place] * draw.choice((2, 1000))
            case 3:
                words[word] = draw.choice((*TEXTS, *map(str, INTS), *map(str, FLOATS)))
                lines[place] = "".join(words)
            case 4:
                words[word] = draw.choice(("(" * 20_000, "9" * 5000, "a.b" * 9000, "-" * 9999, "é"))
                lines[place] = "".join(words)
            case 5:
                other = re.split(r"(\W)", draw.choice(lines))
                words[word] = draw.choice(other)
                lines[place] = "".join(words)
            case _:
                draw.shuffle(words)
                lines[place] = "".join(words)
    return {**files, name: "\n".join(lines).encode("utf-8", "surrogatepass")}


_STATEMENTS: Final = (
    "CREATE VIEW endless AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n) "
    "SELECT i FROM n",
    "CREATE TRIGGER t AFTER INSERT ON trials BEGIN DELETE FROM trials; END",
    "CREATE TRIGGER t BEFORE INSERT ON trials BEGIN INSERT INTO trials SELECT * FROM trials; END",
    "DROP TABLE uses", "DROP TABLE sessions", "DROP INDEX by_subject", "DELETE FROM trials",
    "CREATE TABLE more (a)", "CREATE TABLE t(a, b GENERATED ALWAYS AS (a * 2) VIRTUAL)",
    "ALTER TABLE uses RENAME COLUMN layers TO strata", "PRAGMA user_version=9",
    "PRAGMA user_version=-1", "PRAGMA application_id=1", "PRAGMA page_size=65536; VACUUM",
    "PRAGMA encoding='UTF-16'", "PRAGMA journal_mode=DELETE", "PRAGMA auto_vacuum=2; VACUUM",
    "UPDATE uses SET layers='['", "UPDATE uses SET layers='{}'", "UPDATE uses SET layers='[1]'",
    "UPDATE uses SET layers=replace(hex(zeroblob(99999)), '00', '[')",
    "UPDATE uses SET model=replace(hex(zeroblob(9000000)), '00', 'x')",
    "UPDATE sessions SET trials=-9223372036854775808", "UPDATE sessions SET began=9e999",
    "UPDATE sessions SET before_ns=-1, after_ns=0", "UPDATE sessions SET after_ns=0, before_ns=0",
    "UPDATE sessions SET seconds=-9e999",
    "UPDATE sqlite_schema SET sql='CREATE TABLE trials(a)' WHERE name='trials'",
    "UPDATE sqlite_schema SET rootpage=1 WHERE name='trials'",
    "UPDATE sqlite_schema SET rootpage=(SELECT rootpage FROM sqlite_schema WHERE name='uses')",
    "UPDATE sqlite_schema SET rootpage=0", "UPDATE sqlite_schema SET rootpage=99999",
    "UPDATE sqlite_schema SET sql=NULL", "UPDATE sqlite_schema SET type='view'",
)  # fmt: skip
_VALUES: Final = (
    "NULL", "''", "0", "-1", "1", "2", "9e999", "-9e999", "1e-300", "9223372036854775807",
    "-9223372036854775808", "0.0", "'a b c'", "'won'", "'lost'", "'measuring'", "'verifying'",
    "'kernel'", "replace(hex(zeroblob(3000000)), '00', '(')", "char(0)", "char(55296)", "'\n'",
    "uid", "subject", "choices || ' x'", "choices || choices", "replace(choices, '=', '=-')",
    "replace(choices, '1', '0')", "replace(schedule, '1', '4611686018427387904')",
    "substr(schedule, 1, 20)", "'{'", "'[]'", "'{}'", "CAST(x'ff00fe' AS TEXT)",
)  # fmt: skip


def of_database(files: Files, draw: random.Random) -> Files:
    """Returns a database with damaged pages, other tables, or values that records do not have."""
    (name,) = files
    if draw.random() < 0.3:
        return blindly(files, draw)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "d")
        path.write_bytes(files[name])
        made = sqlite3.connect(path, isolation_level=None)
        made.execute("PRAGMA writable_schema=ON")
        for _ in range(draw.choice((1, 1, 2, 4))):
            column = draw.choice([*Trial.__dataclass_fields__, "process"])
            changes = f"UPDATE trials SET {column}={draw.choice(_VALUES)}"
            where = draw.choice(("", f" WHERE kind={draw.choice(('kernel', 'layout'))!r}"))
            statement = draw.choice((changes + where, changes, draw.choice(_STATEMENTS)))
            with contextlib.suppress(sqlite3.Error):
                for one in statement.split("; ") if "PRAGMA" in statement else [statement]:
                    made.execute(one)
        made.close()
        return {name: path.read_bytes()}


def of_archive(member: str = "") -> Callable[[Files, random.Random], Files]:
    """Returns the mutator of an archive of arrays, and of the JSON in its `member`."""

    def change(files: Files, draw: random.Random) -> Files:
        if draw.random() < 0.2:
            return blindly(files, draw)
        name = draw.choice(sorted(n for n in files if zipped(files[n])))
        members = unzipped(files[name])
        if member in members and draw.random() < 0.6:
            members[member] = json_mutant(json.loads(members[member]), draw)
        else:
            inner = draw.choice(sorted(members))
            match draw.randrange(5):
                case 0:
                    del members[inner]
                case 1:
                    members[draw.choice(TEXTS) or "x"] = members[inner]
                case 2 if inner.endswith(".npy"):
                    members[inner] = npy_bytes(_array(draw))
                case 3:
                    members[inner] = members[draw.choice(sorted(members))]
                case _:
                    members[inner] = blind(members[inner], members[inner], draw)
        return {**files, name: archive(members)}

    return change


def _array(draw: random.Random) -> Any:
    shape = draw.choice(((), (0,), (1,), (3,), (2, 3), (1, 3, 8, 8), (1, 0, 8, 8), (1,) * 20))
    dtype = draw.choice(("f4", "f8", "i8", "u1", "?", "c8", "S3", "f2", "i4", "u8"))
    with np.errstate(all="ignore"):
        return np.full(shape, draw.choice((0, 1, 255)), dtype)


def zipped(data: bytes) -> bool:
    """Whether bytes are those of a ZIP file."""
    return data[:4] == b"PK\3\4"


def unzipped(data: bytes) -> Files:
    """Returns the members of an archive."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        with zipfile.ZipFile(file) as found:
            return {name: found.read(name) for name in found.namelist()}


def archive(members: Mapping[str, bytes]) -> bytes:
    """Returns an archive of members."""
    with tempfile.TemporaryFile() as file:
        with zipfile.ZipFile(file, "w") as made:
            for name, data in members.items():
                made.writestr(name, data)
        file.seek(0)
        return file.read()


def of_table(files: Files, draw: random.Random) -> Files:
    """Returns a table of kernels with other values, columns or types of columns."""
    if draw.random() < 0.2:
        return blindly(files, draw)
    import pyarrow as arrow  # noqa: PLC0415
    from pyarrow import parquet  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "t.parquet")
        path.write_bytes(files["t.parquet"])
        table = parquet.read_table(path)
        for _ in range(draw.choice((1, 1, 3, 9))):
            place = draw.randrange(table.num_columns)
            name, rows = table.column_names[place], table.column(place).to_pylist()
            share = draw.choice((0.02, 1.0))
            number = isinstance(rows[0], int | float)
            strange = draw.choice(FLOATS if number else TEXTS)
            if isinstance(rows[0], list):
                strange = draw.choice(([], [strange], None, [None], [strange] * 1000))
            elif not number:
                strange = draw.choice((strange, None, "[" * 9999, "{}", "[]", "[1]", "é" * 9999))
            changed = [strange if draw.random() < share else row for row in rows]
            kind = table.schema.field(place).type
            with contextlib.suppress(arrow.ArrowException, OverflowError, ValueError, TypeError):
                made = arrow.array(changed, kind if draw.random() < 0.7 else None)
                table = table.set_column(place, name, made)
        match draw.randrange(8):
            case 0:
                table = table.slice(0, draw.choice((0, 1, 70)))
            case 1:
                table = table.drop_columns([draw.choice(table.column_names)])
            case 2:
                table = table.append_column(draw.choice(table.column_names), table.column(0))
        parquet.write_table(table, path)
        return {"t.parquet": path.read_bytes()}


def of_arguments(files: Files, draw: random.Random) -> Files:
    """Returns an option with a changed text."""
    pieces = re.split(r"([=,:|])", draw.choice(files["texts"].decode().splitlines()))
    flag, text = "".join(pieces).split(" ", 1)
    for _ in range(draw.choice((1, 1, 2))):
        parts = re.split(r"([=,:|])", text)
        place = draw.randrange(len(parts))
        strange = (
            *TEXTS,
            *map(str, INTS),
            *map(str, FLOATS),
            "9" * 5000,
            "[" * 9999,
            "=",
            ",",
            "*",
        )
        parts[place] = draw.choice((draw.choice(strange), parts[place] * 2, "", parts[place] + ","))
        text = "".join(parts)
    return {"texts": f"{flag} {text}".encode("utf-8", "surrogatepass")}


def of_saved(files: Files, draw: random.Random) -> Files:
    """Returns a saved model whose text is changed, with a checksum that fits."""
    (name,) = files
    data = files[name]
    size = int.from_bytes(data[24:32], "little")
    text = json_mutant(json.loads(data[64 : 64 + size]), draw)
    body = data[round_up(64 + size, 64) :]
    padding = bytes(round_up(64 + len(text), 64) - 64 - len(text))
    total = 64 + len(text) + len(padding) + len(body)
    fields = data[:16] + total.to_bytes(8, "little") + len(text).to_bytes(8, "little")
    rest = data[36:64] + text + padding + body
    return {name: fields + zlib.crc32(rest, zlib.crc32(fields)).to_bytes(4, "little") + rest}


# --- good files -----------------------------------------------------------------------------------


def quietly(*words: str | Path) -> None:
    """Runs a command that has to succeed, in this process."""
    from hostile.side_files import command  # noqa: PLC0415

    command(*words)


def _model(folder: Path) -> Path:
    path = folder / "good.onnx"
    path.write_bytes(network().SerializeToString())
    return path


def tuned(folder: Path) -> Files:
    """Returns records of each kernel of the model, all of which won, and of a placement."""
    path, model = folder / "t.sqlite", _model(folder)
    clew.tune(model, minutes=0.5, trials=6, database=path, threads=1)
    quietly("place", model, "--backend", "numpy", "--tuned", path, "--threads", "1",
            "--seconds", "1")  # fmt: skip
    with Store(path) as store:
        won = [t for t in store.trials() if t.state == "lost"]
        store.update(*(t.ended(_won(t), 0.5) for t in won))
    made = sqlite3.connect(path, isolation_level=None)
    made.execute("PRAGMA journal_mode=DELETE")
    made.close()
    return {"t.sqlite": path.read_bytes()}


def _won(trial: Trial) -> Any:
    from dataclasses import replace  # noqa: PLC0415

    return replace(trial, state="won", ratio=0.5)


def lines(folder: Path) -> Files:
    """Returns exported records, few of them."""
    tuned(folder)
    with Store(folder / "t.sqlite") as store:
        export_records(store, folder / "r.jsonl")
    rows = (folder / "r.jsonl").read_bytes().splitlines()
    uses = [row for row in rows if row.startswith(b'{"use"')]
    return {"r.jsonl": b"\n".join([*rows[:2], *uses[:2]])}


def steps(folder: Path) -> Files:
    """Returns the steps of the schedule of a kernel."""
    compiled = clew.compile(_model(folder), threads=1)
    return {"steps": next(k for k in compiled.kernels if "conv" in k.name).schedule.text.encode()}


def recipes(folder: Path) -> Files:
    """Returns a recipe and its weights."""
    path = folder / "recipe.json"
    quietly("quantize", _model(folder), "--weight-only", "--weights", "i8", "--group", "0",
            "--rounding", "gptq", "--calibration", "drawn", "--save-recipe", path)  # fmt: skip
    return {name: (folder / name).read_bytes() for name in ("recipe.json", "recipe.npz")}


def static_recipe(folder: Path) -> Files:
    """Returns a recipe of activations, which is one file."""
    path = folder / "recipe.json"
    quietly("quantize", _model(folder), "--calibration", "drawn", "--save-recipe", path)
    return {"recipe.json": path.read_bytes()}


def scheme(folder: Path) -> Files:
    """Returns all fields of a scheme."""
    return {
        "s.json": json.dumps(json.loads(static_recipe(folder)["recipe.json"])["scheme"]).encode()
    }


def samples(folder: Path) -> Files:
    """Returns calibration data."""
    x = np.linspace(-1, 1, 192, dtype=np.float32).reshape(1, 3, 8, 8)
    return {"c.npz": archive({"x.npy": npy_bytes(np.concatenate([x, 2 * x]))})}


def references(folder: Path) -> Files:
    """Returns the outputs of a run."""
    values = clew.compile(_model(folder), threads=1).run({"x": np.ones((1, 3, 8, 8), np.float32)})
    return {"a.npz": archive({f"{name}.npy": npy_bytes(v) for name, v in values.items()})}


def predictors(folder: Path) -> Files:
    """Returns a predictor of one tree."""
    return {"p.clewp": archive(predictor())}


def table(folder: Path) -> Files:
    """Returns a table of the kernels of eight networks, which differ in their names only."""
    import pyarrow as arrow  # noqa: PLC0415
    from pyarrow import parquet  # noqa: PLC0415

    path = folder / "t.parquet"
    quietly("dataset", _model(folder), "--networks", "0", "-o", path, "--threads", "1")
    found = parquet.read_table(path)
    place = found.column_names.index("network")
    named = [
        found.set_column(place, "network", arrow.array([f"n{n}"] * found.num_rows))
        for n in range(20)
    ]
    parquet.write_table(
        arrow.concat_tables(named).replace_schema_metadata(found.schema.metadata), path
    )
    return {"t.parquet": path.read_bytes()}


def parts(folder: Path) -> Files:
    """Returns the files of a partition."""
    where = folder / "parts"
    quietly("partition", _model(folder), "--at", "Relu_1", "-o", where)
    return {p.name: p.read_bytes() for p in where.iterdir() if p.suffix != ".py"}


def traced(folder: Path) -> Files:
    """Returns an exported trace."""
    path = folder / "trace.json"
    quietly("trace", _model(folder), "--export", path, "--threads", "1")
    return {"trace.json": path.read_bytes()}


def sizes(folder: Path) -> Files:
    """Returns a configuration of VTA."""
    from clew.backends.vta.config import DEFAULT_FILE  # noqa: PLC0415

    return {"v.json": Path(DEFAULT_FILE).read_bytes()}


def costs(folder: Path) -> Files:
    """Returns costs of this machine."""
    from clew.machine.costs import DEFAULTS  # noqa: PLC0415

    return {"machine.json": json.dumps({host().identity: DEFAULTS.to_record()}).encode()}


def saved(folder: Path) -> Files:
    """Returns a saved model."""
    path = folder / "m.clew"
    clew.compile(_model(folder), threads=1).save(path)
    return {"m.clew": path.read_bytes()}


def texts(folder: Path) -> Files:
    """Returns options whose values are texts."""
    _model(folder)
    return {
        "texts": b"\n".join([
            b"--budget nodes=1000000", b"--budget strict", b"--budget run_bytes=1g,nodes=5",
            b"--shape x=1,3,8,8", b"--sizes n=1:512|1,8|128", b"--keep-f32 Conv_0,Mat*",
            b"--required FoldConstant,numpy", b"--disabled FuseOps,FoldConstant",
            b"--choose conv*=matmul: tile=4 unroll=2", b"--choose dense=vector: width=8",
            b"--backend numpy,torch", b"--place numpy=Conv_0,Relu*", b"--place auto",
            b"--tuned none", b"--schedule conv*=steps", b"--input x=a.npy", b"--target cpu",
            b"--target x86_64,avx2", b"--precision bf16", b"--opt-level 2", b"--threads 1",
            b"--bounds clamp", b"--links snapshot", b"--seed 3", b"--repeat 1", b"--tolerance 0.1",
        ])
    }  # fmt: skip


# --- doors ----------------------------------------------------------------------------------------


def partition_read(folder: Path) -> None:
    """Loads a partition and runs it."""
    clew.load_partition(folder).check(threads=1)


def trace_read(folder: Path) -> None:
    """Reads a trace and shows it."""
    from clew.trace.export import read_json  # noqa: PLC0415

    str(read_json(folder / "trace.json"))


def vta_read(folder: Path) -> None:
    """Compiles for a configuration of VTA."""
    from clew.backends.vta.backend import Vta  # noqa: PLC0415
    from clew.backends.vta.config import Config  # noqa: PLC0415

    made = Vta(Config.from_json(folder / "v.json"))
    clew.compile(folder / "good.onnx", threads=1, backends=[made])


_M: Final = ("{good}", "--threads", "1")
_LINES: Final = of_json("r.jsonl", lines=True)
_RECIPE: Final = of_json("recipe.json")
_ONE: Final = ("--threads", "1", "--random")
DOORS: Final = [
    Door("tuned", ("run", *_M, "--tuned", "{t.sqlite}"), tuned, of_database),
    Door("tune_report", ("tune", *_M, "--report", "--database", "{t.sqlite}"), tuned, of_database),
    Door("tune_database", ("tune", *_M, "--trials", "1", "--minutes", "0.01", "--database",
         "{t.sqlite}"), tuned, of_database),
    Door("tune_export", ("tune", "--export", "{out}", "--database", "{t.sqlite}"), tuned,
         of_database),
    Door("tune_import", ("tune", "--import", "{r.jsonl}", "--database", "{new}"), lines, _LINES),
    Door("placed", ("run", *_M, "--place", "auto", "--backend", "numpy", "--tuned", "{t.sqlite}"),
         tuned, of_database),
    Door("schedule", ("run", *_M, "--schedule", "conv*={steps}"), steps, of_texts),
    Door("recipe", ("quantize", "{good}", "--recipe", "{recipe.json}", "-o", "{out.onnx}"), recipes,
         lambda files, draw: draw.choice((_RECIPE, _RECIPE, of_archive()))(files, draw)),
    Door("static_recipe", ("quantize", "{good}", "--recipe", "{recipe.json}", "-o", "{out.onnx}"),
         static_recipe, _RECIPE),
    Door("scheme", ("quantize", "{good}", "--scheme", "{s.json}", "--calibration", "drawn"), scheme,
         of_json("s.json")),
    Door("calibration", ("quantize", "{good}", "--calibration", "{c.npz}"), samples, of_archive()),
    Door("against", ("bisect", *_M, "--against", "{a.npz}", "--seconds", "0"), references,
         of_archive()),
    Door("predictor", ("predict", *_M, "--predictor", "{p.clewp}"), predictors,
         of_archive("predictors.json")),
    Door("table", ("predict", *_M, "--table", "{t.parquet}"), table, of_table),
    Door("training", ("predict", "--train", "{t.parquet}", "-o", "{p.clewp}"), table, of_table),
    Door("dataset", ("dataset", "{good}", "--networks", "0", "-o", "{t.parquet}", "--threads", "1"),
         table, of_table),
    Door("partition", (), parts, of_json("manifest.json")),
    Door("trace", (), traced, of_json("trace.json")),
    Door("vta", (), sizes, of_json("v.json")),
    Door("costs", ("machine",), costs, of_json("machine.json")),
    Door("saved", ("run", "{m.clew}"), saved, of_saved),
    Door("texts", ("run", "{good}", "{texts}"), texts, of_arguments),
]  # fmt: skip
_READS: Final = {"partition": partition_read, "trace": trace_read, "vta": vta_read}


# --- running --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class End:
    """How a command ended: "" if as it should, and what it wrote to stderr."""

    wrong: str
    code: str
    said: str
    seconds: float


def words_of(door: Door, folder: Path, files: Files) -> list[str]:
    """Returns the arguments of a command whose files are in a folder."""
    found: list[str] = []
    for word in door.words:
        if word == "{texts}":
            first = files["texts"].decode("utf-8", "surrogatepass")
            found += (first if first.count("--") < 9 else first.splitlines()[0]).split(" ", 1)
            continue
        found.append(re.sub(r"\{([\w.]+)\}", lambda m: str(folder / _file(m[1])), word))
    return found


def _file(name: str) -> str:
    return {"good": "good.onnx"}.get(name, name)


def tried(door: Door, folder: Path, files: Files) -> End:
    """Runs a command on files, in a process of its own that is limited in time and memory."""
    for name, data in files.items():
        if name != "texts":
            (folder / name).write_bytes(data)
    (folder / "good.onnx").write_bytes(network().SerializeToString())
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        _in_child(door, folder, files)
    status, usage = _waited(child, 10 * LIMIT_S)
    seconds = usage.ru_utime + usage.ru_stime
    said = (folder / "stderr").read_text(errors="replace")
    code = (_CODED.findall(said) or [""])[-1]
    if status is None or os.waitstatus_to_exitcode(status) == -signal.SIGXCPU:
        wrong = f"no end after {time.monotonic() - start:.0f} s"
    else:
        wrong = complaint(os.waitstatus_to_exitcode(status), code, said)
    return End(wrong, code, said, seconds)


def complaint(status: int, code: str, said: str) -> str:
    """Returns the complaint about a command that ended: its exit code, and its error's."""
    if "Traceback" in said or "internal error" in said:
        return "a traceback"
    if status < 0:
        return f"killed by signal {-status}"
    if status not in (0, 1, 2):
        return f"exit code {status}"
    if status == 1 and not code:
        return "no coded error"
    if code == _FOREIGN:
        return "blames code of the user"
    return f"blames clew: {code}" if code in OURS else ""


def _waited(child: int, limit_s: float) -> tuple[int | None, Any]:
    until = time.monotonic() + limit_s
    while True:
        found, status, usage = os.wait4(child, os.WNOHANG)
        if found:
            return status, usage
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            return None, os.wait4(child, 0)[2]
        time.sleep(0.01)


def _in_child(door: Door, folder: Path, files: Files) -> None:
    os.dup2(os.open(folder / "stderr", os.O_CREAT | os.O_WRONLY | os.O_TRUNC), 2)
    os.dup2(os.open(folder / "stdout", os.O_CREAT | os.O_WRONLY | os.O_TRUNC), 1)
    os.chdir(folder)
    if door.name == "costs":
        os.environ["CLEW_CACHE_DIR"] = str(folder)
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S + 1))
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os._exit(_ended(door, folder, files))


def _ended(door: Door, folder: Path, files: Files) -> int:
    import traceback  # noqa: PLC0415

    from clew.cli.app import main  # noqa: PLC0415
    from clew.support.errors import ClewError  # noqa: PLC0415

    try:
        if door.words:
            main(words_of(door, folder, files))
        _READS[door.name](folder)
    except SystemExit as error:
        sys.stdout.flush()
        sys.stderr.flush()
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except ClewError as error:
        print(error, file=sys.stderr, flush=True)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def run(door: Door, numbers: Sequence[int], good: Files, keep: Path | None) -> Iterator[Any]:
    """Yields the number and end of each mutant of a door."""
    for number in numbers:
        draw = random.Random(f"{door.name} {number}")
        files = good if number == 0 else door.mutants(good, draw)
        folder = Path(tempfile.mkdtemp(prefix="door-"))
        try:
            end = tried(door, folder, files)
            if end.wrong and keep is not None:
                shutil.copytree(folder, keep / f"{door.name}-{number}", dirs_exist_ok=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        yield number, end


def main(arguments: Sequence[str]) -> int:
    """Attacks the doors, and writes a JSON line for each fault and each door. Returns 1 if there
    was a fault.
    """
    from clew.api import compile  # noqa: F401, PLC0415
    from clew.cli import app  # noqa: F401, PLC0415

    parser = argparse.ArgumentParser(prog="hostile.doors", description=main.__doc__)
    parser.add_argument("names", nargs="*", help="parts of the names of doors (default: all)")
    parser.add_argument("--count", type=int, default=200, help="mutants of each door")
    parser.add_argument("--first", type=int, default=0, help="number of the first mutant")
    parser.add_argument("--only", type=int, help="number of the only mutant")
    parser.add_argument("--keep", type=Path, help="folder for the files of faults")
    asked = parser.parse_args(arguments)
    numbers = range(asked.first, asked.first + asked.count) if asked.only is None else [asked.only]
    faults = 0
    for door in DOORS:
        if asked.names and not any(name in door.name for name in asked.names):
            continue
        with tempfile.TemporaryDirectory() as made:
            good = door.good(Path(made))
        gc.freeze()
        codes: dict[str, int] = {}
        slowest = 0.0
        for number, end in run(door, numbers, good, asked.keep):
            codes[end.code or "ok"] = codes.get(end.code or "ok", 0) + 1
            slowest = max(slowest, end.seconds)
            if end.wrong:
                faults += 1
                fault = {"door": door.name, "number": number, "wrong": end.wrong}
                print(json.dumps({**fault, "said": end.said[-1500:]}), flush=True)
        done = {"door": door.name, "mutants": len(numbers), "slowest_s": round(slowest, 1)}
        print(json.dumps({**done, "ends": codes}), flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
