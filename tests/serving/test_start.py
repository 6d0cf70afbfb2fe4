"""Models that start from the disk cache, without the compiler."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save_model

import clew
from clew.records import Store
from clew.runtime.cache import INDEX, PART, SEEN, START, default_cache
from clew.serving import start as starts
from clew.serving.stored import record_of, warning_of
from clew.support import user_code
from clew.support.errors import ClewWarning, warn

# Large enough that only samples of the file are read each time.
ROWS, COLUMNS = 1024, 2048
X = np.linspace(-1, 1, 4 * ROWS, dtype=np.float32).reshape(4, ROWS)


def weights(seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal((ROWS, COLUMNS)).astype(np.float32)


def expected(values: Any) -> Any:
    return np.maximum(X @ values, 0)


def write(path: Path, values: Any, *, free: bool = False, outside: str = "") -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="project"),
        helper.make_node("Relu", ["h"], ["y"], name="gate"),
    ]
    rows = "rows" if free else 4
    ends = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, ROWS]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, COLUMNS]),
    ]
    graph = helper.make_graph(
        nodes, "g", ends[:1], ends[1:], [numpy_helper.from_array(values, "w")]
    )
    model = helper.make_model(graph)
    if outside:
        save_model(model, path, save_as_external_data=True, location=outside, size_threshold=0)
    else:
        path.write_bytes(model.SerializeToString())


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(user_code, "_CHECKS", [])  # other tests register operators
    monkeypatch.setenv("CLEW_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.onnx"


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Returns the models that the compiler was given."""
    from clew.api import cold  # noqa: PLC0415

    found: list[Any] = []
    made = cold.compiled

    def noted(kind: Any, model: Any, target: Any, **options: Any) -> Any:
        found.append(model)
        return made(kind, model, target, **options)

    monkeypatch.setattr(cold, "compiled", noted)
    return found


def stored() -> None:
    """Waits for what is stored in the background."""
    for thread in threading.enumerate():
        if thread.name == "clew-store":
            thread.join()


def compiled(model: Any, **options: Any) -> Any:
    made = clew.compile(model, **options)
    stored()
    return made


def check(model: Any, values: Any) -> None:
    np.testing.assert_allclose(model(X), expected(values), rtol=1e-4, atol=1e-3)


# --- a model from the cache is what a compiled one is ---


@pytest.mark.parametrize("free", [False, True])
def test_it_is_what_a_compilation_gives(path: Path, loads: list[Any], free: bool) -> None:
    write(path, weights(), free=free)
    first = compiled(path)
    second = compiled(path)
    assert loads == [path]
    assert type(second) is type(first) is clew.CompiledModel
    assert second.from_cache
    assert second.builds_made == 0
    for name in ("inputs", "outputs"):
        assert list(map(repr, getattr(second, name))) == list(map(repr, getattr(first, name)))
    assert second.is_symbolic == first.is_symbolic == free
    np.testing.assert_array_equal(first(X), second(X))
    assert repr(second).startswith(repr(first).rpartition(", ")[0])
    assert second.options.target == first.options.target
    assert [k.name for k in second.kernels] == [k.name for k in first.kernels]
    assert second.kernels[0].object_code == first.kernels[0].object_code
    assert second.trace.accounted().keys() == {"project", "gate"}
    assert second.trace.verify(X).ok
    assert str(second.module) == str(first.module)
    assert repr(second) == repr(first)
    assert second.recompiled(opt_level=1)(X).shape == first(X).shape


def test_a_saved_model_of_one_from_the_cache(path: Path, tmp_path: Path) -> None:
    write(path, weights())
    compiled(path).save(tmp_path / "first.clew")
    compiled(path).save(tmp_path / "second.clew")
    assert (tmp_path / "first.clew").read_bytes() == (tmp_path / "second.clew").read_bytes()


def test_other_sizes_than_those_stored(path: Path) -> None:
    write(path, weights(), free=True)
    compiled(path)(X)
    model = compiled(path)
    check(model, weights())
    assert model(X[:0]).shape == (0, COLUMNS)
    assert model(X[:1]).shape == (1, COLUMNS)
    assert "by the stored build" in str(model.served(X))


def test_bytes_are_models_as_well(path: Path, loads: list[Any]) -> None:
    write(path, weights())
    data = path.read_bytes()
    compiled(data)
    model = compiled(data)
    assert len(loads) == 1
    check(model, weights())
    assert len(model.kernels) == 1


def test_warnings_are_issued_again(path: Path, loads: list[Any]) -> None:
    write(path, weights())
    for _ in range(2):
        with pytest.warns(ClewWarning, match=r"I307.*'none\*' in keep_f32 fits no layer"):
            compiled(path, precision=clew.Precision(keep_f32=["none*"]))
    assert len(loads) == 1


def test_hints_of_warnings_keep_their_wordings() -> None:
    hint = clew.support.errors.Hint("a", cli="b", page="c")
    again = warning_of(record_of(ClewWarning("I307", "text", hint=hint)))
    assert [again.text(s).rpartition("hint: ")[2] for s in ("python", "cli", "page")] == list("abc")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warn(again)
    assert len(seen) == 1


# --- keys ---


def test_options_that_compare_equal() -> None:
    different = [1, True, 1.0, "1", (1,), (True,), {"a": 1}, {"a": True}, 0.0, -0.0]
    digests = [clew.CompileOptions(inputs={"x": value}).digest() for value in different]  # type: ignore[dict-item]
    assert None not in digests
    assert len(set(digests)) == len(different)
    for live in (np.int64(1), [1, object()], {"a": (1, lambda: None)}):
        assert clew.CompileOptions(inputs={"x": live}).digest() is None  # type: ignore[dict-item]


def test_a_range_of_sizes_is_not_a_list_of_them(path: Path, loads: list[Any]) -> None:
    write(path, weights(), free=True)
    compiled(path, sizes={"rows": (1, 8)})
    compiled(path, sizes={"rows": [1, 8]})
    assert len(loads) == 2
    with pytest.raises(clew.ClewError, match="I317"):
        compiled(path, sizes={"rows": (1, 8)})(np.zeros((9, ROWS), np.float32))
    compiled(path, sizes={"rows": [1, 8]})(np.zeros((9, ROWS), np.float32))
    assert len(loads) == 2


def test_options_that_are_no_plain_values_are_compiled(path: Path, loads: list[Any]) -> None:
    write(path, weights())
    for options in (
        {"passes": clew.pipelines.pipeline()}, {"diagnostics": clew.Diagnostics(guard=True)},
        {"cache": False}, {"limits": clew.Budgets()}, {"backends": ["numpy"]},
    ):  # fmt: skip
        for _ in range(2):
            compiled(path, **options)
    assert len(loads) == 10


def test_users_code_in_a_registry(
    path: Path, loads: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, weights())
    compiled(path)
    monkeypatch.setattr(user_code, "_CHECKS", [lambda: True])
    compiled(path)
    assert len(loads) == 2


def test_clews_own_code_is_no_users_code() -> None:
    program = (
        "import sys, clew\nimport clew.api.cold, clew.frontends.formats\n"
        "from clew.support.user_code import has_user_code, _CHECKS\n"
        "assert _CHECKS and not has_user_code()\n"
        "from clew.ops.registry import get_op\n"
        "get_op('nn.relu').schedule()(lambda *given: False)\n"
        "assert has_user_code()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_records_of_tuning_are_part_of_the_key(
    path: Path, loads: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, weights())
    monkeypatch.setenv("CLEW_TUNING", str(tmp_path / "tuning.db"))
    compiled(path)
    from clew.records import Store  # noqa: PLC0415

    with Store(tmp_path / "tuning.db", write=True):
        pass
    compiled(path)
    assert len(loads) == 2


# --- files that change ---


def test_a_file_that_is_written_over_in_place(path: Path, loads: list[Any]) -> None:
    """With the same size, and with its time of writing put back."""
    write(path, weights(0))
    check(compiled(path), weights(0))
    status = path.stat()
    content = bytearray(path.read_bytes())
    at = len(content) // 2 + 100  # between samples
    content[at : at + 4] = np.float32(3e4).tobytes()
    with path.open("r+b") as file:
        file.write(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    model = compiled(path)
    assert len(loads) == 2
    assert not np.allclose(model(X), expected(weights(0)), atol=1.0)


def test_a_file_that_has_just_changed_is_not_known_by_its_times(path: Path, cache: Path) -> None:
    write(path, weights())
    compiled(path)
    known = [p for p in cache.rglob(f"*{SEEN}") if b"sampled" in p.read_bytes()]
    assert not known
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(starts, "_SETTLED_NS", -(10**12))
        compiled(path)
        kept = [p for p in cache.rglob(f"*{SEEN}") if b"sampled" in p.read_bytes()]
    assert len(kept) == 1


def test_a_known_file_is_not_read_as_a_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(path, weights())
    monkeypatch.setattr(starts, "_SETTLED_NS", -(10**12))
    compiled(path)
    monkeypatch.setattr(starts, "_BLOCK_BYTES", -1)  # reading would fail
    assert compiled(path).from_cache


@pytest.mark.parametrize("swapped", ["other", "gone", "link", "twice"])
def test_external_data_that_is_swapped(
    path: Path, tmp_path: Path, loads: list[Any], swapped: str
) -> None:
    write(path, weights(0), outside="w.data")
    check(compiled(path), weights(0))
    check(compiled(path), weights(0))
    assert len(loads) == 1
    data = tmp_path / "w.data"
    status = data.stat()
    if swapped == "other":
        data.write_bytes(weights(1).tobytes())
        os.utime(data, ns=(status.st_atime_ns, status.st_mtime_ns))
        check(compiled(path), weights(1))
        assert len(loads) == 2
        return
    if swapped == "twice":
        os.link(data, tmp_path / "again")
    else:
        data.rename(tmp_path / "moved")
    if swapped == "link":
        data.symlink_to(tmp_path / "moved")
    with pytest.raises(clew.ClewError, match="M005"):
        compiled(path)


def test_external_data_that_is_swapped_while_the_model_is_in_use(
    path: Path, tmp_path: Path
) -> None:
    write(path, weights(0), outside="w.data")
    compiled(path)
    model = compiled(path)
    (tmp_path / "w.data").write_bytes(weights(1).tobytes())
    check(model, weights(0))
    with pytest.raises(clew.ClewError, match=r"C164.*has changed since it was compiled"):
        model.kernels  # noqa: B018
    check(model, weights(0))


def test_a_file_that_is_gone_when_it_is_read_again(path: Path) -> None:
    write(path, weights())
    compiled(path)
    model = compiled(path)
    path.unlink()
    check(model, weights())
    for _ in range(2):
        with pytest.raises(clew.ClewError, match="C164"):
            model.trace  # noqa: B018
    write(path, weights())
    assert len(model.kernels) == 1


def test_links_to_a_model(path: Path, tmp_path: Path, loads: list[Any]) -> None:
    """External data is searched next to the link, as ever."""
    write(path, weights(0), outside="w.data")
    compiled(path)
    other = tmp_path / "other"
    other.mkdir()
    link = other / "link.onnx"
    link.symlink_to(path)
    with pytest.raises(clew.ClewError, match="M005"):
        compiled(link)
    (other / "w.data").write_bytes(weights(1).tobytes())
    check(compiled(link), weights(1))
    check(compiled(path), weights(0))
    link.unlink()
    write(path, weights(2))
    link.symlink_to(path)
    check(compiled(link), weights(2))


def test_a_copy_of_a_model_starts_as_well(path: Path, tmp_path: Path, loads: list[Any]) -> None:
    write(path, weights(), outside="w.data")
    compiled(path)
    other = tmp_path / "other"
    other.mkdir()
    for name in ("model.onnx", "w.data"):
        (other / name).write_bytes((tmp_path / name).read_bytes())
    check(compiled(other / "model.onnx"), weights())
    assert len(loads) == 1


def test_a_relative_path_after_a_change_of_folder(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, weights())
    compiled(path)
    monkeypatch.chdir(tmp_path)
    model = compiled("model.onnx")
    monkeypatch.chdir("/")
    assert len(model.kernels) == 1


# --- entries that are damaged, foreign, or in the way of others ---


def files(cache: Path, suffix: str) -> list[Path]:
    return [p for p in cache.rglob(f"*{suffix}") if p.is_file()]


@pytest.mark.parametrize("suffix", [START, INDEX, PART])
@pytest.mark.parametrize("how", ["bit", "truncated", "empty", "gone", "folder", "swapped"])
def test_damaged_entries_cost_a_compilation(
    path: Path, cache: Path, loads: list[Any], suffix: str, how: str
) -> None:
    write(path, weights())
    compiled(path)
    for entry in files(cache, suffix):
        data = bytearray(entry.read_bytes())
        data[len(data) // 2] ^= 0x10
        entry.unlink()
        if how == "folder":
            entry.mkdir()
        elif how != "gone":
            cut = {"truncated": len(data) // 2, "empty": 0}.get(how, len(data))
            entry.write_bytes(data[:cut])
            entry.chmod(0o600)
    if how == "swapped":
        for entry in files(cache, suffix):
            entry.write_bytes(files(cache, SEEN)[0].read_bytes())
    check(compiled(path), weights())
    if how != "folder":
        check(compiled(path), weights())
        assert len(loads) == 2


def test_a_start_that_names_another_models_build(
    path: Path, tmp_path: Path, cache: Path, loads: list[Any]
) -> None:
    """Starts are told apart by their keys, which their checksums cover."""
    write(path, weights(0))
    compiled(path)
    (one,) = files(cache, START)
    write(tmp_path / "other.onnx", weights(1))
    compiled(tmp_path / "other.onnx")
    (two,) = (entry for entry in files(cache, START) if entry != one)
    data = two.read_bytes()
    two.write_bytes(one.read_bytes())
    one.write_bytes(data)
    check(compiled(path), weights(0))
    check(compiled(tmp_path / "other.onnx"), weights(1))
    assert len(loads) == 4


def test_several_options_store_the_weights_once(path: Path, cache: Path) -> None:
    write(path, weights())
    compiled(path)
    before = sum(p.stat().st_size for p in files(cache, PART))
    compiled(path, limits=clew.Limits(bounds="clamp"))
    compiled(path, passes=clew.Passes(disabled=["CanonicalizeOps"]))
    assert len(files(cache, INDEX)) == 3
    assert sum(p.stat().st_size for p in files(cache, PART)) < 1.05 * before


def test_a_cache_that_may_not_be_written(path: Path, cache: Path, loads: list[Any]) -> None:
    write(path, weights())
    compiled(path)
    folders = [cache, *(p for p in cache.iterdir() if p.is_dir())]
    for folder in folders:
        folder.chmod(0o500)
    try:
        check(compiled(path), weights())
    finally:
        for folder in folders:
            folder.chmod(0o700)
    assert len(loads) == 1


def test_a_missing_cache_folder_is_made(path: Path, cache: Path) -> None:
    write(path, weights())
    compiled(path)
    assert default_cache().stats().entries > 4
    assert cache.stat().st_mode & 0o777 == 0o700


# --- processes ---

START_PROGRAM = """
import sys
import numpy as np
import clew
model = clew.compile(sys.argv[1])
x = np.load(sys.argv[2])
y = model(x)
print("modules", *sorted(sys.modules))
np.save(sys.argv[3], y)
assert model.from_cache or "cold" in sys.argv
"""


def run(path: Path, tmp_path: Path, *more: str) -> list[str]:
    np.save(tmp_path / "x.npy", X)
    command = [sys.executable, "-c", START_PROGRAM, str(path), str(tmp_path / "x.npy")]
    done = subprocess.run(
        [*command, str(tmp_path / "y.npy"), *more], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("modules"))
    return line.split()[1:]


@pytest.mark.parametrize("free", [False, True])
def test_a_start_imports_the_run_time_alone(path: Path, tmp_path: Path, free: bool) -> None:
    write(path, weights(), free=free)
    run(path, tmp_path, "cold")
    modules = run(path, tmp_path)
    np.testing.assert_allclose(
        np.load(tmp_path / "y.npy"), expected(weights()), rtol=1e-4, atol=1e-3
    )
    ours = [m for m in modules if m.startswith("clew.")]
    folders = {m.split(".")[1] for m in ours}
    assert folders == {
        "api", "backends", "codegen", "ir", "machine", "runtime", "serving", "support", "version",
        *(["cost"] if free else []),  # thresholds of the run time
    }  # fmt: skip
    options = ("compile_options", "option_checks", "option_fields", "option_records")
    backends = {f"clew.backends.{name}" for name in options}
    assert {m for m in ours if m.startswith("clew.backends.")} == backends
    assert len(ours) < (133 if free else 123)
    heavy = {
        "onnx", "llvmlite", "ml_dtypes", "rich", "typer", "asyncio", "sqlite3", "tempfile",
        "statistics", "secrets",
    }  # fmt: skip
    assert not heavy & set(modules)
    unused = {
        "runtime.drawing", "runtime.session", "runtime.state", "runtime.timing", "runtime.regions",
        "runtime.native_loop", "runtime.texts", "support.call_form", "support.native_texts",
    }  # fmt: skip
    sized = {"serving.often", "runtime.sized_segment", "runtime.template", "ir.dim_code"}
    unused |= set() if free else sized
    assert not {f"clew.{name}" for name in unused} & set(ours)


def test_a_compilation_imports_sqlite_only_for_a_tuning_file(
    path: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, weights())
    monkeypatch.setenv("CLEW_TUNING", str(tmp_path / "tuning.db"))
    without = run(path, tmp_path, "cold")
    assert "clew.compiling.compile" in without
    assert not {"sqlite3", "clew.records"} & set(without)
    Store(tmp_path / "tuning.db").close()
    shutil.rmtree(cache)
    assert {"sqlite3", "clew.records"} <= set(run(path, tmp_path, "cold"))


def test_import_clew_imports_little() -> None:
    program = (
        "import sys; before = set(sys.modules); import clew; print(*set(sys.modules) - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    names = done.stdout.split()
    assert not {"numpy", "llvmlite", "rich", "typer", "dataclasses", "json"} & set(names)
    assert len([n for n in names if n.startswith("clew")]) <= 10


def test_processes_that_compile_the_same_model(path: Path, tmp_path: Path) -> None:
    write(path, weights())
    np.save(tmp_path / "x.npy", X)
    command = [sys.executable, "-c", START_PROGRAM, str(path), str(tmp_path / "x.npy")]
    begun = [
        subprocess.Popen([*command, str(tmp_path / f"{n}.npy"), "cold"], stdout=subprocess.DEVNULL)
        for n in range(3)
    ]
    for number, process in enumerate(begun):
        assert process.wait() == 0
        np.testing.assert_allclose(
            np.load(tmp_path / f"{number}.npy"), expected(weights()), rtol=1e-4, atol=1e-3
        )
    run(path, tmp_path)


@pytest.mark.parametrize("delay_s", [0.6, 1.2, 1.8])
def test_a_process_that_is_killed_while_it_stores(
    path: Path, tmp_path: Path, delay_s: float
) -> None:
    write(path, weights())
    np.save(tmp_path / "x.npy", X)
    command = [sys.executable, "-c", START_PROGRAM, str(path), str(tmp_path / "x.npy")]
    process = subprocess.Popen(
        [*command, str(tmp_path / "y.npy"), "cold"], stdout=subprocess.DEVNULL
    )
    time.sleep(delay_s)
    process.send_signal(signal.SIGKILL)
    process.wait()
    check(compiled(path), weights())
    check(compiled(path), weights())


def test_a_child_of_a_started_model(path: Path) -> None:
    write(path, weights(), free=True)
    compiled(path)
    model = compiled(path)

    def child(queue: Any) -> None:
        check(model, weights())
        queue.put(len(model.kernels))

    context = multiprocessing.get_context("fork")
    for called in (False, True):
        if called:
            model(X)
        queue = context.Queue()
        process = context.Process(target=child, args=(queue,))
        process.start()
        assert queue.get(timeout=60) == 1
        process.join()
        assert process.exitcode == 0


def test_threads_at_the_first_call(path: Path) -> None:
    write(path, weights(), free=True)
    compiled(path)
    model = compiled(path)
    results: list[Any] = []

    def call(rows: int) -> Callable[[], None]:
        def work() -> None:
            results.append((rows, model(X[:rows]), len(model.kernels)))

        return work

    threads = [threading.Thread(target=call(1 + n % 4)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    for rows, result, kernels in results:
        np.testing.assert_allclose(result, expected(weights())[:rows], rtol=1e-4, atol=1e-3)
        assert kernels == 1


def test_a_start_is_readable(path: Path, cache: Path) -> None:
    """It names the files, with their content, and the options that differ from the defaults."""
    write(path, weights(), outside="w.data")
    compiled(path, limits=clew.Limits(bounds="clamp"))
    (entry,) = files(cache, START)
    data = default_cache().peek(entry.parent.name + entry.name)
    assert data is not None
    record = json.loads(data)
    assert [name or below for below, name, _ in record["files"]] == [[], ["w.data"]]
    assert record["about"]["options"] == {"bounds": "clamp"}
