"""Saved models give what compiled ones give, share their pages, and are refused when damaged."""

import mmap
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import clew
import zoo
from clew.api.compiled_model import CompiledModel
from clew.api.loaded_model import load_compiled
from clew.runtime.container import FORMAT_VERSION, HEADER_BYTES, read_container, write_container
from clew.support.addresses import address_of
from clew.support.errors import ClewError

MODELS = ["keyword_spotting", "resnet_tiny", "bert_tiny_dynamic", "if_branches", "loop_recurrence"]
# What reading a damaged file may be refused with.
REFUSALS = {"C050", "C051", "C052", "C053", "C054"}

Saved = tuple[CompiledModel, Path]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Saved]:
    """Returns a network of the zoo, compiled and run once, and the file it is saved in."""
    folder = tmp_path_factory.mktemp("saved")
    made: dict[str, Saved] = {}

    def get(name: str) -> Saved:
        if name not in made:
            compiled = clew.compile(zoo.path(name), threads=1)
            compiled.run(zoo.inputs(name))
            compiled.save(folder / f"{name}.clew")
            made[name] = compiled, folder / f"{name}.clew"
        return made[name]

    return get


def assert_equal(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert given.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(given[name], value, strict=True)


def refusal(path: Path) -> str:
    """Returns the code of the error that loading a file raises; "" when it raises none."""
    try:
        load_compiled(path)
    except ClewError as error:
        return error.code if error.hint else f"{error.code} without a hint"
    return ""


@pytest.mark.parametrize("name", MODELS)
def test_loaded_model_gives_what_the_compiled_one_gives(name: str, saved: Any) -> None:
    compiled, path = saved(name)
    loaded = load_compiled(path, threads=1)
    assert loaded.input_names == compiled.input_names
    assert loaded.output_names == compiled.output_names
    feed = zoo.inputs(name)
    assert_equal(loaded.run(feed), compiled.run(feed))
    results = loaded(*[feed[n] for n in loaded.input_names])
    results = results if isinstance(results, tuple) else (results,)
    assert_equal(dict(zip(loaded.output_names, results, strict=True)), compiled.run(feed))


def test_loaded_branches_are_both_taken(saved: Any) -> None:
    compiled, path = saved("if_branches")
    loaded = load_compiled(path)
    x = zoo.inputs("if_branches")["x"]
    results = [loaded.run({"x": sign * x}) for sign in (1, -1)]
    assert_equal(results[0], compiled.run({"x": x}))
    assert_equal(results[1], compiled.run({"x": -x}))
    name = loaded.output_names[0]
    assert not np.array_equal(results[0][name], results[1][name])


@pytest.mark.parametrize("trips", [0, 1, 5])
def test_loaded_loop_runs_any_number_of_times(trips: int, saved: Any) -> None:
    compiled, path = saved("loop_recurrence")
    feed = zoo.inputs("loop_recurrence") | {"trips": np.array(trips)}
    assert_equal(load_compiled(path).run(feed), compiled.run(feed))


@pytest.mark.parametrize("name", ["keyword_spotting", "bert_tiny_dynamic", "loop_recurrence"])
def test_kernels_keep_names_layers_and_operators(name: str, saved: Any) -> None:
    compiled, path = saved(name)
    loaded = load_compiled(path, threads=1)
    expected = [(k.name, k.layers, k.ops) for k in compiled.kernels]
    assert [(k.name, k.layers, k.ops) for k in loaded.kernels] == expected
    feed = zoo.inputs(name)
    times = loaded.time_kernels(*[feed[n] for n in loaded.input_names], repeats=3)
    assert sorted(t.kernel.name for t in times) == sorted(k.name for k in loaded.kernels)
    assert all(t.median_ns > 0 for t in times)
    assert sum(t.share for t in times) == pytest.approx(1)


def test_constants_are_pages_of_the_file(saved: Any) -> None:
    _, path = saved("keyword_spotting")
    loaded = load_compiled(path)
    spans = [
        [int(end, 16) for end in line.split()[0].split("-")]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if line.endswith(str(path)) and line.split()[1] == "r--s"
    ]
    assert spans
    assert loaded._chain.only is not None
    constants = [c for s in loaded._chain.only.build.segments for c in s.plan.constants]
    assert len(constants) > 5
    for constant in constants:
        address = address_of(constant)
        assert any(start <= address < stop for start, stop in spans)
        assert address % 64 == 0
        assert not constant.flags.writeable


def test_file_holds_each_constant_and_kernel_once(saved: Any, tmp_path: Path) -> None:
    compiled, _ = saved("bert_tiny_dynamic")
    one = clew.compile(compiled.module, threads=1)
    one.run(zoo.inputs("bert_tiny_dynamic", batch=4, sequence=8))
    one.save(tmp_path / "one.clew")
    weights = sum(c.nbytes for s in one.build.segments for c in s.plan.constants)
    objects = sum(len(b.object.data) for b in one.build.binaries.values())
    size_one = (tmp_path / "one.clew").stat().st_size
    assert weights < size_one < 1.1 * (weights + objects) + 100_000
    one.run(zoo.inputs("bert_tiny_dynamic", batch=6, sequence=8))
    one.save(tmp_path / "two.clew")
    assert (tmp_path / "two.clew").stat().st_size - size_one < weights / 2


def test_symbolic_model_runs_at_all_sizes(saved: Any, tmp_path: Path) -> None:
    name = "bert_tiny_dynamic"
    compiled = clew.compile(saved(name)[0].module, threads=1)
    compiled.save(tmp_path / "before.clew")
    feeds = [zoo.inputs(name, batch=b, sequence=s) for b, s in ((1, 5), (2, 9), (3, 7))]
    expected = [compiled.run(feed) for feed in feeds]
    compiled.save(tmp_path / "after.clew")
    for file in ("before.clew", "after.clew"):
        loaded = load_compiled(tmp_path / file, threads=1)
        assert [k.name for k in loaded.kernels] == [k.name for k in compiled.kernels]
        for feed, outputs in zip(feeds, expected, strict=True):
            assert_equal(loaded.run(feed), outputs)


def test_symbolic_model_runs_at_the_other_sizes_it_was_saved_with(tmp_path: Path) -> None:
    """A size of 0 that empties results has a build of its own."""
    text = """
clew 1
def @main(%x: f32[n, m]) -> (f32[n, 1],) with outputs=["y"] {
  %0 = exp(%x)
  %1 = sum(%0, axes=[1])
  %2 = (%1,)
  return %2
}
"""
    compiled = clew.compile(clew.parse(text), threads=1)
    feeds = [{"x": np.ones(shape, np.float32)} for shape in ((2, 3), (2, 0), (5, 4))]
    expected = [compiled.run(feed) for feed in feeds]
    compiled.save(tmp_path / "model.clew")
    loaded = load_compiled(tmp_path / "model.clew", threads=1)
    for feed, outputs in zip(feeds, expected, strict=True):
        assert_equal(loaded.run(feed), outputs)
    with pytest.raises(ClewError, match="I046") as caught:
        loaded.run({"x": np.ones((3, 0), np.float32)})
    assert "no build for inputs of [3, 0]" in caught.value.message
    assert "it has those for other sizes and [2, 0]" in caught.value.message


def test_the_same_build_gives_the_same_bytes(saved: Any, tmp_path: Path) -> None:
    compiled, path = saved("keyword_spotting")
    compiled.save(tmp_path / "again.clew")
    assert (tmp_path / "again.clew").read_bytes() == path.read_bytes()


def test_input_errors_are_those_of_a_compiled_model(saved: Any) -> None:
    loaded = load_compiled(saved("keyword_spotting")[1])
    (name,), array = loaded.input_names, zoo.inputs("keyword_spotting")
    with pytest.raises(ClewError, match="I041"):
        loaded.run({"wrong": array[name]})
    with pytest.raises(ClewError, match="I041"):
        loaded.run({**array, "more": array[name]})
    with pytest.raises(ClewError, match="I042"):
        loaded(array[name][..., :-1])
    with pytest.raises(ClewError, match="I043"):
        loaded(array[name].astype(np.float64))
    with pytest.raises(ClewError, match="I040"):
        loaded()


def test_threads_do_not_change_the_result(saved: Any) -> None:
    _, path = saved("resnet_tiny")
    feed = zoo.inputs("resnet_tiny")
    assert_equal(load_compiled(path, threads=3).run(feed), load_compiled(path, threads=1).run(feed))
    with pytest.raises(ClewError, match="I012"):
        load_compiled(path, threads=0)


# --- host steps ---


def graph(nodes: list[Any], outputs: list[Any]) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 8])
    k = helper.make_tensor("k", TensorProto.INT64, [1], [3])
    made = helper.make_graph(nodes, "g", [x], outputs, [k])
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def test_host_operators_are_saved_by_name(tmp_path: Path) -> None:
    places = helper.make_tensor_value_info("places", TensorProto.INT64, [2, "n"])
    nodes = [
        helper.make_node("Relu", ["x"], ["positive"], "rectify"),
        helper.make_node("NonZero", ["positive"], ["places"], "search"),
    ]
    onnx.save(graph(nodes, [places]), tmp_path / "top.onnx")
    compiled = clew.compile(tmp_path / "top.onnx", threads=1)
    compiled.save(tmp_path / "top.clew")
    x = np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)
    loaded = load_compiled(tmp_path / "top.clew")
    assert_equal(loaded.run({"x": x}), compiled.run({"x": x}))
    np.testing.assert_array_equal(loaded(x), np.array(np.nonzero(x > 0)))

    container = read_container(tmp_path / "top.clew")
    steps = [i for i in container.text["builds"][0]["program"]["instructions"] if i["do"] == "host"]
    steps[0]["step"]["operator"] = "nobody.registers_this"
    write_container(tmp_path / "other.clew", container.text, container.blobs)
    with pytest.raises(ClewError, match=r"C061.*nobody\.registers_this"):
        load_compiled(tmp_path / "other.clew")


def test_kernels_compiled_during_a_run_are_compiled_where_they_are_loaded(tmp_path: Path) -> None:
    found = helper.make_tensor_value_info("found", TensorProto.INT64, [2, "n"])
    nodes = [
        helper.make_node("NonZero", ["x"], ["places"], "search"),
        helper.make_node("Neg", ["places"], ["found"], "turn_round"),
    ]
    onnx.save(graph(nodes, [found]), tmp_path / "search.onnx")
    compiled = clew.compile(tmp_path / "search.onnx", threads=1)
    compiled.save(tmp_path / "search.clew")
    loaded = load_compiled(tmp_path / "search.clew", threads=1)
    for x in (np.eye(3, 8, dtype=np.float32), np.ones((3, 8), np.float32)):
        np.testing.assert_array_equal(compiled(x), -np.array(np.nonzero(x)))
        np.testing.assert_array_equal(loaded(x), -np.array(np.nonzero(x)))


def test_values_that_decide_axes_choose_the_build(tmp_path: Path) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 8])
    axis = helper.make_tensor_value_info("axis", TensorProto.INT64, [])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 8])
    nodes = [
        helper.make_node("CumSum", ["x", "axis"], ["summed"], "sum"),
        helper.make_node("Softmax", ["summed"], ["y"], "normalize", axis=1),
    ]
    made = helper.make_graph(nodes, "g", [x, axis], [y])
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, tmp_path / "sum.onnx")
    compiled = clew.compile(tmp_path / "sum.onnx", threads=1)
    feeds = [
        {"x": np.arange(24, dtype=np.float32).reshape(3, 8), "axis": np.array(axis)}
        for axis in (0, 1)
    ]
    expected = [compiled.run(feed) for feed in feeds]
    assert not np.array_equal(expected[0]["y"], expected[1]["y"])
    compiled.save(tmp_path / "sum.clew")
    loaded = load_compiled(tmp_path / "sum.clew")
    for feed, outputs in zip(feeds, expected, strict=True):
        assert_equal(loaded.run(feed), outputs)
    with pytest.raises(ClewError, match="I046"):
        loaded.run({**feeds[0], "axis": np.array(-1)})


# --- what loading needs ---

PROGRAM = """
import sys
import numpy as np
import clew
loaded = clew.load_compiled({path!r}, threads=1)
feed = dict(np.load({feed!r}))
outputs = loaded.run(feed)
np.savez({out!r}, **outputs)
print(*sorted(sys.modules))
"""


@pytest.mark.parametrize("name", ["bert_tiny_dynamic", "if_branches"])
def test_loading_needs_nothing_that_compiles(
    name: str,
    saved: Any,
    tmp_path: Path,
    run_python: Callable[[str], subprocess.CompletedProcess[str]],
) -> None:
    compiled, path = saved(name)
    feed = zoo.inputs(name)
    np.savez(tmp_path / "feed.npz", **feed)
    out = tmp_path / "out.npz"
    program = PROGRAM.format(path=str(path), feed=str(tmp_path / "feed.npz"), out=str(out))
    ended = run_python(program)
    assert ended.returncode == 0, ended.stderr
    assert_equal(dict(np.load(out)), compiled.run(feed))
    ours = {m for m in ended.stdout.split() if m.startswith("clew.")}
    folders = {m.split(".")[1] for m in ours}
    ends = {"support", "version", "api", "serving"}
    expected = {*ends, "backends", "machine", "runtime", "codegen", "ir"}
    assert folders == expected | ({"cost"} if name == "bert_tiny_dynamic" else set())
    assert all(m.startswith("clew.cost.policy") for m in ours if m.startswith("clew.cost."))
    backends = {m for m in ours if m.startswith("clew.backends.")}
    options = ("compile_options", "option_checks", "option_fields", "option_records")
    assert backends == {f"clew.backends.{name}" for name in options}
    dims = {
        f"clew.ir.{name}"
        for name in (
            "dims", "dim_code", "dim_places", "dim_records", "dim_text", "size_formulas",
            "size_rules",
        )
    }  # fmt: skip
    found = {m for m in ours if m.startswith("clew.ir.")}
    assert found | {"clew.ir.dim_code"} == dims  # which only free sizes need
    codegen = {m for m in ours if m.startswith("clew.codegen.")}
    parts = ("call", "driver", "flow", "library", "pool", "run", "sizes", "system")
    drivers = {f"driver.{name}" for name in parts}
    names = {"artifact", "driver", *drivers}
    assert codegen == {f"clew.codegen.{name}" for name in names}
    assert not {"onnx", "capstone", "elftools"} & set(ended.stdout.split())


# --- files that are refused ---


def sections(path: Path) -> dict[str, tuple[int, int]]:
    """Returns the parts of a file by name: where each begins and ends."""
    container = read_container(path)
    text_bytes = int.from_bytes(path.read_bytes()[24:32], "little")
    parts = {
        "magic": (0, 8),
        "version": (8, 12),
        "header size": (12, 16),
        "file size": (16, 24),
        "text size": (24, 32),
        "checksum": (32, 36),
        "reserved": (36, HEADER_BYTES),
        "text": (HEADER_BYTES, HEADER_BYTES + text_bytes),
    }
    base = -(-(HEADER_BYTES + text_bytes) // 64) * 64
    for number, (start, size) in enumerate(container.text["blobs"]):
        parts[f"blob {number}"] = (base + start, base + start + size)
    return parts


def test_a_flipped_bit_is_found_in_every_section(saved: Any, tmp_path: Path) -> None:
    _, path = saved("if_branches")
    content = path.read_bytes()
    broken = tmp_path / "broken.clew"
    rng = random.Random(0)
    parts = sections(path)
    assert len(parts) > 10
    for name, (start, stop) in parts.items():
        for place in {start, stop - 1, rng.randrange(start, stop)}:
            damaged = bytearray(content)
            damaged[place] ^= 1 << rng.randrange(8)
            broken.write_bytes(damaged)
            assert refusal(broken) in REFUSALS, (name, place)


def test_random_damage_is_refused(saved: Any, tmp_path: Path) -> None:
    content = saved("if_branches")[1].read_bytes()
    broken = tmp_path / "broken.clew"
    rng = random.Random(1)
    for turn in range(200):
        damaged = bytearray(content)
        match turn % 4:
            case 0:
                del damaged[rng.randrange(len(content)) :]
            case 1:
                for _ in range(rng.randrange(1, 20)):
                    damaged[rng.randrange(len(content))] ^= rng.randrange(1, 256)
            case 2:
                start = rng.randrange(len(content))
                del damaged[start : start + rng.randrange(1, 100)]
            case 3:
                damaged += rng.randbytes(rng.randrange(1, 100))
        broken.write_bytes(damaged)
        assert refusal(broken) in REFUSALS, turn


def test_other_files_are_refused(tmp_path: Path) -> None:
    cases = {"empty": b"", "text": b"hello, world" * 100, "onnx": b"\x08\x08\x12\x07" * 50}
    for name, content in cases.items():
        (tmp_path / name).write_bytes(content)
        assert refusal(tmp_path / name) == "C051"
    assert refusal(tmp_path / "absent") == "C050"
    assert refusal(tmp_path) == "C050"


def resealed(path: Path, target: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Writes the file anew with a changed text and a checksum that fits."""
    container = read_container(path)
    change(container.text)
    write_container(target, container.text, container.blobs)
    return target


def test_other_versions_and_machines_are_refused(saved: Any, tmp_path: Path) -> None:
    _, path = saved("if_branches")
    container = read_container(path)
    other = tmp_path / "other.clew"
    write_container(other, container.text, container.blobs, FORMAT_VERSION + 1)
    assert refusal(other) == "C052"
    changes: list[tuple[str, dict[str, Any]]] = [
        ("C056", {"triple": "riscv64-unknown-linux-gnu"}),
        ("C056", {"triple": container.text["machine"]["triple"].replace("linux", "windows")}),
        ("C057", {"features": ["no-such-feature"]}),
        ("C057", {"same_cpu": True, "cpu": "another"}),
        ("", {"cpu": "another"}),
    ]
    for code, change in changes:
        resealed(path, other, lambda text, change=change: text["machine"].update(change))
        assert refusal(other) == code, change


def fields(value: Any) -> list[tuple[Any, Any]]:
    """Returns owner and key of everything in a JSON value."""
    found: list[tuple[Any, Any]] = []
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        found.append((value, key))
        if isinstance(inner, (dict, list)):
            found += fields(inner)
    return found


def test_a_missing_field_is_refused(saved: Any, tmp_path: Path) -> None:
    _, path = saved("if_branches")
    count = len(fields(read_container(path).text))
    for place in random.Random(2).sample(range(count), 80):
        name: Any = None

        def drop(text: dict[str, Any], place: int = place) -> None:
            nonlocal name
            owner, name = fields(text)[place]
            if isinstance(owner, dict):
                del owner[name]
            else:
                owner[name] = None

        code = refusal(resealed(path, tmp_path / "other.clew", drop))
        # What is written anew, what only people read, and what older files do not have.
        may_miss = {"clew", "blobs", "code_bytes", "is_stack", "output_types", "rules"}
        assert code in {"C054", "C055"} or name in may_miss or isinstance(name, int), name


def test_nonsense_behind_a_good_checksum_gives_coded_errors(saved: Any, tmp_path: Path) -> None:
    _, path = saved("if_branches")
    rng = random.Random(3)
    codes = set()
    for _ in range(150):

        def spoil(text: dict[str, Any]) -> None:
            owner, key = rng.choice(fields(text))
            owner[key] = rng.choice([None, -1, 0, 7, 1 << 40, 1 << 70, "x", [], {}, True, 1.5])

        codes.add(refusal(resealed(path, tmp_path / "other.clew", spoil)))
    assert "C055" in codes
    assert codes <= {"", "C003", "C054", "C055", "C056", "C057", "C061", "C140"}


# --- writing ---


def test_writing_replaces_the_file_as_a_whole(saved: Any, tmp_path: Path) -> None:
    compiled, _ = saved("keyword_spotting")
    path = tmp_path / "model.clew"
    compiled.save(path)
    loaded = load_compiled(path)
    feed = zoo.inputs("keyword_spotting")
    before = loaded.run(feed)
    saved("if_branches")[0].save(path)
    assert_equal(loaded.run(feed), before)
    assert load_compiled(path).input_names == ("x",)
    assert [p.name for p in tmp_path.iterdir()] == ["model.clew"]


def test_a_place_that_cannot_be_written_is_an_error(saved: Any, tmp_path: Path) -> None:
    compiled, _ = saved("if_branches")
    with pytest.raises(ClewError, match="C050"):
        compiled.save(tmp_path / "no" / "such" / "folder.clew")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ClewError, match="C050"):
        compiled.save(tmp_path / "folder")
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_blobs_of_a_container_come_back(tmp_path: Path) -> None:
    blobs = [np.arange(n, dtype=np.uint8) for n in (0, 1, 64, 65, mmap.PAGESIZE % 251)]
    write_container(tmp_path / "c", {"a": [1, "ü"]}, blobs)
    container = read_container(tmp_path / "c")
    assert container.text["a"] == [1, "ü"]
    for given, expected in zip(container.blobs, blobs, strict=True):
        np.testing.assert_array_equal(given, expected)
        assert not given.size or address_of(given) % 64 == 0
    write_container(tmp_path / "none", {}, [])
    assert read_container(tmp_path / "none").blobs == []
