"""Every file that a command, or a function, is given the name of: a pipe, a device, a socket, a
folder, nothing, and damage in its place.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import socket
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx

import clew
from clew.machine.target import host
from clew.support.budgets import Budgets, in_force
from clew.support.errors import ClewError
from clew.support.writing import npy_bytes, write_arrays
from hostile.catalog import X, case, each, load, model, node, written
from hostile.codes import OURS
from hostile.mutants import blind

TEXT: Final = (
    "clew 1\ndef @main(\n  %x: f32[2, 3]\n) -> (f32[2, 3],) {\n"
    "  %w: f32[2, 3] = const @c0\n  %0 = add(%x, %w)\n  %1 = (%0,)\n  return %1\n}\n"
)
SMALL: Final = TEXT.replace("  %w: f32[2, 3] = const @c0\n", "").replace("%x, %w", "%x, %x")


def command(*arguments: str | Path) -> None:
    """Runs `clew` without showing its output."""
    from clew.cli.app import app  # noqa: PLC0415  (it loads all that prints)

    quiet = io.StringIO()
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        app([str(a) for a in arguments], standalone_mode=False)


def text_model(folder: Path, text: str = SMALL) -> Path:
    """Returns a text model."""
    path = folder / "model.txt"
    path.write_text(text)
    return path


def network(folder: Path) -> Path:
    """Returns an ONNX model with one layer."""
    return written(folder, model([node("Relu", ["x"], ["y"], name="gate")]), "good.onnx")


def extracted(folder: Path, path: Path) -> None:
    """Reads an extracted part whose values are what a path leads to."""
    text_model(folder, SMALL).rename(path.with_suffix(".txt"))
    clew.load_part(path.with_suffix(".txt"))


def partitioned(folder: Path, path: Path) -> None:
    """Reads a partition whose manifest, or captured values, are what a path leads to."""
    where = folder / "parts"
    where.mkdir(exist_ok=True)
    if path.suffix == ".npz":
        empty = {"format": 1, "parts": [], "outputs": [], "inputs": [{"name": "x", "value": "x"}]}
        (where / "manifest.json").write_text(json.dumps(empty))
    path.rename(where / ("captured.npz" if path.suffix == ".npz" else "manifest.json"))
    clew.load_partition(where)


def reproduced(folder: Path, path: Path) -> None:
    """Runs a reproducer whose report is what a path leads to."""
    from clew.bisection.reproducer import replay  # noqa: PLC0415

    path.rename(folder / "report.json")
    replay(folder)


def trace_read(folder: Path, path: Path) -> None:
    """Reads an exported trace."""
    from clew.trace.export import read_json  # noqa: PLC0415

    read_json(path)


def beside(folder: Path, path: Path) -> None:
    """Runs a text model whose constants are what a path leads to."""
    command("run", text_model(folder, TEXT))


def external(folder: Path, path: Path) -> None:
    """Loads a model whose weights are what a path leads to."""
    made = model([node("Add", ["x", "w"], ["y"])])
    weight = made.graph.initializer.add(name="w", data_type=1, dims=[1000, 1])
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value=path.name)
    clew.load(written(folder, made, "with.onnx"))


def library(folder: Path, path: Path) -> None:
    """Makes an operator of a shared library."""
    clew.extern_op("own.op", path, "f", "(f32[n]) -> f32[n]")


def learned(folder: Path, path: Path) -> None:
    """Predicts from a table."""
    command("predict", network(folder), "--table", path)


READS: Final[dict[str, tuple[str, Callable[[Path, Path], Any]]]] = {
    "onnx": ("f.onnx", lambda folder, path: command("run", path)),
    "text": ("f.txt", lambda folder, path: command("--budget", "strict", "run", path)),
    "saved": ("f.clew", lambda folder, path: command("run", path)),
    "constants": ("model.npz", beside),
    "weights": ("w.bin", external),
    "input": ("f.npy", lambda folder, path: command("run", network(folder), "-i", f"x={path}")),
    "predictor": (
        "f.clewp",
        lambda folder, path: command("predict", network(folder), "--predictor", path),
    ),
    "table": ("f.parquet", learned),
    "training": (
        "f.parquet",
        lambda folder, path: command("predict", "--train", path, "-o", folder / "p.clewp"),
    ),
    "dataset": ("f.onnx", lambda folder, path: clew.load(path)),
    "reference": (
        "f.npz",
        lambda folder, path: command("bisect", network(folder), "--against", path),
    ),
    "extension_of_bisect": (
        "f.py",
        lambda folder, path: command("bisect", network(folder), "--extend", path),
    ),
    "extension_of_diff": (
        "f.py",
        lambda folder, path: command("diff", network(folder), "--extend", "none", path),
    ),
    "pattern": (
        "f.py",
        lambda folder, path: command("extract", network(folder), "--pattern", f"{path}:NAME"),
    ),
    "part": ("f.npz", extracted),
    "manifest": ("f.json", partitioned),
    "captured": ("f.npz", partitioned),
    "reproducer": ("f.json", reproduced),
    "trace": ("f.json", trace_read),
    "library": ("f.so", library),
}
"""Names of files, and the code that reads them."""


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


STRANGE: Final[dict[str, Callable[[Path], Any]]] = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "socket": _socket,
    "folder": lambda path: path.mkdir(),
    "circle": lambda path: path.symlink_to(path.name),
    "empty": lambda path: path.write_bytes(b""),
    "noise": lambda path: path.write_bytes(random.Random(1).randbytes(5000)),
}
"""Things that a name may lead to."""


def coded(action: Callable[[], Any]) -> ClewError:
    """Returns the error that something ends in, which has to have a code."""
    try:
        action()
    except ClewError as error:
        assert error.code not in OURS, error
        return error
    raise AssertionError("no error")


@each("reads", READS, "ok")
def strange_files(folder: Path, given: tuple[str, Callable[[Path, Path], Any]]) -> None:
    name, read = given
    with contextlib.suppress(FileNotFoundError):  # it is put where it is read from
        coded(lambda: read(folder, folder / name))
    for number, (kind, make) in enumerate(STRANGE.items()):
        room = folder / str(number)
        room.mkdir()
        make(room / name)
        try:
            error = coded(lambda room=room: read(room, room / name))  # type: ignore[misc]
        except AssertionError as wrong:
            raise AssertionError(f"{kind}: {wrong}") from wrong
        assert "Traceback" not in str(error)


@case("ok")
def what_is_no_attack(folder: Path) -> None:
    """The text, its arrays and the network of the cases are right by themselves."""
    write_arrays(folder / "model.npz", {"c0.f32": X})
    for text in (TEXT, SMALL):
        assert clew.compile(text_model(folder, text), threads=1, cache=False)(X).shape == (2, 3)
    np.save(folder / "x.npy", X)
    command("run", network(folder), "-i", f"x={folder / 'x.npy'}")


@case("P011")
def a_text_that_is_no_utf_8(folder: Path) -> None:
    path = folder / "m.txt"
    path.write_bytes(SMALL.encode() + b"# \xff\n")
    clew.load(path)


@case("I330")
def a_text_of_a_tebibyte(folder: Path) -> None:
    path = folder / "m.txt"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    clew.load(path)


# --- arrays ---------------------------------------------------------------------------------------


_BLOCK_BYTES: Final = 1 << 24


def bomb(blocks: int) -> tuple[bytes, int]:
    """Returns the deflated bytes of a `.npy` of zeros, 1000 times as large, and its bytes."""
    pack = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    head = npy_bytes(np.zeros(0, np.float32)).replace(b"(0,), }", b"(%d,), }" % (blocks << 22))
    start = pack.compress(head) + pack.flush(zlib.Z_FULL_FLUSH)
    # A block that refers to nothing before it can be there again and again.
    block = pack.compress(bytes(_BLOCK_BYTES)) + pack.flush(zlib.Z_FULL_FLUSH)
    return start + block * blocks + pack.flush(), len(head) + blocks * _BLOCK_BYTES


def packed(folder: Path, name: str, blocks: int) -> Path:
    """Returns a text model, with an archive beside it that contains `c0` and a large array."""
    with zipfile.ZipFile(folder / "model.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        if name != "c0.f32":
            archive.writestr("c0.f32.npy", npy_bytes(X))
    data, size = bomb(blocks)
    small = (folder / "model.npz").read_bytes()
    end = small.rindex(b"PK\5\6")
    count, list_bytes, at = struct.unpack_from("<HLL", small, end + 10)
    file = f"{name}.npy".encode()
    facts = struct.pack("<5H3L2H", 20, 0, 8, 0, 33, 0, len(data), size, len(file), 0)
    entry = b"PK\1\2" + struct.pack("<H", 20) + facts + struct.pack("<3H2L", 0, 0, 0, 0, at) + file
    local = b"PK\3\4" + facts + file + data
    listed = small[at : at + list_bytes] + entry
    last = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, count + 1, count + 1, len(listed),
                       at + len(local), 0)  # fmt: skip
    (folder / "model.npz").write_bytes(small[:at] + local + listed + last)
    return text_model(folder, TEXT)


@case("ok")
def an_unused_array_of_three_gigabytes(folder: Path) -> None:
    path = packed(folder, "unused.f32", 190)
    assert (folder / "model.npz").stat().st_size < 1 << 22
    with in_force(Budgets.strict()):
        made = clew.load(path)
    assert clew.compile(made, threads=1, cache=False)(X).shape == (2, 3)


@case("I331")
def an_array_of_three_gigabytes_in_three_megabytes(folder: Path) -> None:
    with in_force(Budgets.strict()):
        clew.load(packed(folder, "c0.f32", 190))


@case("P011")
def an_array_whose_bytes_are_not_those_of_its_type(folder: Path) -> None:
    with zipfile.ZipFile(folder / "model.npz", "w") as archive:
        archive.writestr("c0.f32.npy", npy_bytes(X.astype(np.float64)))
    clew.load(text_model(folder, TEXT))


@case("ok")
def headers_of_arrays(folder: Path) -> None:
    """Absurd shapes, unclosed brackets and the like, as inputs and in archives."""
    good = npy_bytes(X)
    for old, new in (
        (b"(2, 3)", b"(2, 3"), (b"(2, 3)", b"((((((("), (b"(2, 3)", b"(1<<40,)"),
        (b"(2, 3), }", b"(4611686018427387904, 4), }"), (b"(2, 3), }", b"(0, 99999999999999), }"),
        (b"'<f4'", b"'|O'"), (b"'<f4'", b"'<U99999999'"), (b"False", b"print"),
        (b"\x01\x00v\x00", b"\x02\x00\xff\xff\xff\xff"), (b"\x93NUMPY\x01", b"\x93NUMPY\x07"),
    ):  # fmt: skip
        bad = good.replace(old, new)
        assert bad != good, old
        (folder / "x.npy").write_bytes(bad)
        coded(lambda: command("run", network(folder), "-i", f"x={folder / 'x.npy'}"))
        with zipfile.ZipFile(folder / "model.npz", "w") as archive:
            archive.writestr("c0.f32.npy", bad)
        coded(lambda: clew.load(text_model(folder, TEXT)))


def mutants_of(files: dict[str, bytes], count: int) -> Iterator[dict[str, bytes]]:
    """Yields files of which one is damaged, the same each time."""
    draw = random.Random(7)
    names = sorted(files)
    for _ in range(count):
        name = draw.choice(names)
        yield {**files, name: blind(files[name], files[draw.choice(names)], draw)}


def survived(read: Callable[[], Any], mutants: Iterator[dict[str, bytes]], folder: Path) -> None:
    """Reads mutants, which have to be read, or be refused with a code."""
    for mutant in mutants:
        for name, data in mutant.items():
            (folder / name).write_bytes(data)
        try:
            read()
        except ClewError as error:
            assert error.code not in OURS, error


MUTANTS: Final = 600 * int(os.environ.get("HOSTILE_ROUNDS", "1"))


@case("ok", slow=True)
def mutants_of_texts_and_their_arrays(folder: Path) -> None:
    files = {"m.txt": TEXT.encode()}
    with zipfile.ZipFile(folder / "m.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("c0.f32.npy", npy_bytes(X))
    files["m.npz"] = (folder / "m.npz").read_bytes()
    with in_force(Budgets.strict()):
        survived(lambda: clew.load(folder / "m.txt"), mutants_of(files, MUTANTS), folder)


@case("ok", slow=True)
def mutants_of_inputs(folder: Path) -> None:
    from clew.cli.arguments import read_array  # noqa: PLC0415

    def read() -> None:
        read_array("x", folder / "x.npy")

    with in_force(Budgets.strict()):
        survived(read, mutants_of({"x.npy": npy_bytes(X)}, 4 * MUTANTS), folder)


# --- predictors -----------------------------------------------------------------------------------


def predictor(**changes: Any) -> dict[str, bytes]:
    """Returns the files in a predictor of one tree; `changes` are to what its JSON says, or to its
    arrays.
    """
    from clew.machine.rates import DEFAULT_RATES  # noqa: PLC0415
    from clew.predict.analytic import Analytic  # noqa: PLC0415
    from clew.predict.features import feature_count  # noqa: PLC0415
    from clew.version import VERSION  # noqa: PLC0415

    errors = dict.fromkeys(("kernel", "total", "within_10", "within_10_of_time"), 0.1)
    errors |= dict.fromkeys(("total_mean", "total_worst"), 0.1)
    one: dict[str, Any] = {
        "target": host().key, "threads": 1, "networks": 9, "rows": 99, "rules": [], "ops": [],
        "errors": {**errors, "kernel_by_rule": {}}, "overhead": 100.0, "measured": {},
        "analytic": Analytic(DEFAULT_RATES, 32768, 524288).to_record(),
    }  # fmt: skip
    features = feature_count([], [])
    arrays: dict[str, Any] = {
        "feature": np.array([0, -1, -1], np.int32), "threshold": np.array([1.0, 0, 0]),
        "left": np.array([1, 0, 0]), "right": np.array([2, 0, 0]),
        "value": np.array([0, 0.1, 0.2]), "roots": np.array([0]),
        "constants": np.array([0.0, 1.0]),
        "mean": np.zeros(features), "deviation": np.ones(features),
        "points": np.zeros((1, features)), "weights": np.zeros(1),
    }  # fmt: skip
    arrays |= {n: v for n, v in changes.items() if n in arrays}
    one |= {n: v for n, v in changes.items() if n in one}
    head = {"format": 3, "clew": VERSION, "predictors": [one]}
    made = {f"0/{n}.npy": npy_bytes(a) for n, a in arrays.items()}
    return {**made, "predictors.json": json.dumps(head).encode()}


def predicted(folder: Path, files: dict[str, bytes]) -> None:
    """Predicts a network with a predictor."""
    path = folder / "p.clewp"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    command("predict", network(folder), "--predictor", path, "--threads", "1")


WRONG: Final[dict[str, dict[str, Any]]] = {
    "nan_values": {"value": np.array([0, np.nan, np.nan])},
    "infinite_values": {"value": np.array([0, np.inf, 0.1])},
    "huge_values": {"value": np.array([0, 1e308, 1e308])},
    "nan_thresholds": {"threshold": np.array([np.nan, 0, 0])},
    "nan_overhead": {"overhead": float("nan")},
    "infinite_overhead": {"overhead": float("inf")},
    "text_overhead": {"overhead": "1"},
    "nan_errors": {"errors": {"kernel": float("nan")}},
    "huge_errors": {
        "errors": {
            **dict.fromkeys(("kernel", "total", "within_10", "within_10_of_time"), 1e5),
            **dict.fromkeys(("total_mean", "total_worst"), 0.1), "kernel_by_rule": {},
        }
    },
    "nan_scale": {"constants": np.array([0.0, np.nan])},
    "no_scale": {"constants": np.array([0.0, 0.0])},
    "no_rates": {"analytic": {"l1_bytes": 32768, "l2_bytes": 524288}},
    "negative_rates": {
        "analytic": {"rates": {"ghz": -1.0}, "l1_bytes": 32768, "l2_bytes": 524288}
    },
    "tiny_rates": {"analytic": {"rates": {"ghz": 1e-308}, "l1_bytes": 32768, "l2_bytes": 524288}},
    "no_caches": {"analytic": {"rates": {}, "l1_bytes": 0, "l2_bytes": float("inf")}},
    "a_feature_that_there_is_not": {"feature": np.array([100_000, -1, -1], np.int32)},
    "a_circle": {"left": np.array([0, 0, 0])},
    "roots_outside": {"roots": np.array([7])},
    "a_matrix": {"feature": np.zeros((3, 1), np.int32)},
    "features_of_floats": {"feature": np.array([0.5, -1, -1])},
    "a_deep_tree": {
        "feature": np.r_[np.zeros(9999, np.int32), np.int32(-1)],
        "threshold": np.zeros(10_000), "value": np.zeros(10_000),
        "left": np.r_[1:10_000, 0], "right": np.r_[1:10_000, 0],
    },
    "threads": {"threads": []},
    "rules": {"rules": 3},
}  # fmt: skip


@each("predictor", WRONG, "I186", "I332")
def wrong_predictor(folder: Path, given: dict[str, Any]) -> None:
    predicted(folder, predictor(**given))


@case("ok")
def a_predictor_that_is_right(folder: Path) -> None:
    predicted(folder, predictor())


@case("I186")
def a_predictor_nested_ten_thousand_deep(folder: Path) -> None:
    predicted(folder, {**predictor(), "predictors.json": b"[" * 10_000})


@case("ok", slow=True)
def mutants_of_predictors(folder: Path) -> None:
    from clew.predict import load_predictors  # noqa: PLC0415

    for whole in mutants_of(predictor(), MUTANTS):
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as archive:
            for name, data in whole.items():
                archive.writestr(name, data)
        try:
            load_predictors(stream.getvalue(), "p.clewp")
        except ClewError as error:
            assert error.code not in OURS, error


# --- what is written ------------------------------------------------------------------------------


WRITES: Final[dict[str, tuple[str, Sequence[str]]]] = {
    "compile": ("o.clew", ("compile", "MODEL", "-o", "FILE")),
    "trace": ("o.json", ("trace", "MODEL", "--export", "FILE")),
    "correlate": ("o.json", ("correlate", "MODEL", "-o", "FILE")),
    "profile_json": ("o.json", ("profile", "MODEL", "-o", "FILE", "--repeats", "1")),
    "profile_csv": ("o.csv", ("profile", "MODEL", "-o", "FILE", "--repeats", "1")),
    "profile_parquet": ("o.parquet", ("profile", "MODEL", "-o", "FILE", "--repeats", "1")),
    "profile_trace": ("o.trace.json", ("profile", "MODEL", "-o", "FILE", "--repeats", "1")),
    "tap": ("o.npy", ("tap", "MODEL", "--layer", "gate", "-o", "FILE")),
    "run": ("y.npy", ("run", "MODEL", "--save", "FOLDER")),
    "extract_text": ("o.txt", ("extract", "MODEL", "--layer", "gate", "-o", "FILE")),
    "extract_script": ("o.py", ("extract", "MODEL", "--layer", "gate", "-o", "FILE")),
    "extract_onnx": ("o.onnx", ("extract", "MODEL", "--layer", "gate", "-o", "FILE")),
    "partition": ("manifest.json", ("partition", "MODEL", "--at", "gate", "-o", "FOLDER")),
    "training": ("o.clewp", ("predict", "--train", "FILE", "-o", "FILE")),
    "report": ("o.html", ("report", "MODEL", "--no-profile", "-o", "FILE")),
}
"""Names of files, and the commands that write them."""


@each("writes", WRITES, "ok")
def strange_places(folder: Path, given: tuple[str, Sequence[str]]) -> None:
    name, words = given
    model_file = str(network(folder))
    arguments = {"MODEL": model_file, "FILE": str(folder / name), "FOLDER": str(folder)}
    for kind in ("pipe", "device", "socket", "folder", "circle"):
        STRANGE[kind](folder / name)
        before = os.lstat(folder / name)
        coded(lambda: command(*(arguments.get(word, word) for word in words)))
        assert os.lstat(folder / name).st_ino == before.st_ino, kind
        assert not list(folder.glob(".clew-*")), kind
        (folder / name).rmdir() if kind == "folder" else (folder / name).unlink()


@case("ok")
def a_table_that_is_a_pipe_or_below_one(folder: Path) -> None:
    pipe = folder / "t.parquet"
    os.mkfifo(pipe)
    for path, code in ((pipe, "I181"), (pipe / "below" / "t.parquet", "I189")):
        error = coded(lambda path=path: command("dataset", "--networks", "0", "-o", path))  # type: ignore[misc]
        assert error.code == code


@case("ok")
def saving_to_a_pipe_from_python(folder: Path) -> None:
    path = folder / "o.clew"
    os.mkfifo(path)
    built = clew.compile(load(model([node("Relu", ["x"], ["y"])])), threads=1, cache=False)
    assert coded(lambda: built.save(path)).code == "C050"
    assert coded(lambda: built.graph().write(path)).code == "I120"
