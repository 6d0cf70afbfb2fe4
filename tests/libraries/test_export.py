"""Libraries on this machine: interface, bits, errors, threads."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import clew
from clew.libraries import Exported, place_of
from clew.runtime.guard import GuardedBuffer, GuardSide

from .c_programs import (
    STRICT,
    assert_same_bits,
    call,
    compiled,
    message,
    needs,
    network,
    pointers,
    random_inputs,
    shared_library,
)

pytestmark = needs("gcc", "nm")

_TASK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
_PARALLEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, _TASK, ctypes.c_void_p, ctypes.c_int64)


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Exported, ctypes.CDLL]:
    model, made = compiled(network(), tmp_path_factory.mktemp("net"), threads=1)
    return model, made, shared_library(made)


def test_results_have_the_bits_of_the_compiled_model(net: Any) -> None:
    model, made, library = net
    for seed in range(3):
        feed = random_inputs(model, seed)
        code, found = call(library, made, model, feed)
        assert code == 0
        assert_same_bits(model, feed, found)


def test_the_example_runs(net: Any) -> None:
    model, made, _ = net
    feed = random_inputs(model)
    feed["x"].tofile(made.folder / "x.bin")
    command = ["gcc", *STRICT, "main.c", "libnet.a", "-o", "main"]
    subprocess.run(command, cwd=made.folder, check=True)
    done = subprocess.run(["./main", "x.bin", "y.bin"], cwd=made.folder, check=True, text=True,
                          capture_output=True)  # fmt: skip
    assert done.stdout.splitlines()[0] == "input x: float32[1, 3, 8, 8]"
    found = np.fromfile(made.folder / "y.bin", np.float32).reshape(8, 10)
    assert_same_bits(model, feed, {"y": found})
    short = subprocess.run(["./main", "y.bin", "z.bin"], cwd=made.folder, text=True,
                           capture_output=True, check=False)  # fmt: skip
    assert short.returncode == 1
    assert "y.bin: cannot read or write 768 bytes" in short.stderr


def test_nothing_but_memory_functions_is_undefined(net: Any) -> None:
    _, made, _ = net
    listed = subprocess.run(["nm", "net.o"], cwd=made.folder, check=True, text=True,
                            capture_output=True).stdout.splitlines()  # fmt: skip
    undefined = {line.split()[1] for line in listed if line.split()[0] == "U"}
    visible = {line.split()[2] for line in listed if line.split()[1] in "TDRBCVW"}
    assert undefined <= {"memcpy", "memmove", "memset"}
    names = ("run", "run_with", "error", "fault", "input_table", "output_table")
    assert visible == {f"net_{name}" for name in names}
    writable = {line.split()[1] for line in listed if line.split()[0] != "U"} & set("bBcC")
    assert not writable, "a library has no variables"


def test_the_header_is_valid_in_c_and_cpp(net: Any) -> None:
    _, made, _ = net
    for compiler, standard in (("gcc", "-std=c99"), ("g++", "-std=c++11")):
        if compiler == "g++" and not _has(compiler):
            continue
        language = "c" if compiler == "gcc" else "c++"
        command = [compiler, *STRICT[1:], standard, "-x", language, "-fsyntax-only", "net.h"]
        subprocess.run(command, cwd=made.folder, check=True)


def _has(program: str) -> bool:
    return not needs(program).args[0]


def test_errors_are_codes_with_texts(net: Any) -> None:
    model, made, library = net
    library.net_error.restype = ctypes.c_char_p
    feed = random_inputs(model)
    x, y = feed["x"], np.zeros((8, 10), np.float32)
    work = np.zeros(made.workspace_bytes, np.uint8)
    run = library.net_run
    odd = ctypes.c_void_p(np.zeros(4 * 200, np.uint8).ctypes.data + 1)
    inputs, outputs, workspace = pointers([x]), pointers([y]), ctypes.c_void_p(work.ctypes.data)
    nothing = (ctypes.c_void_p * 1)(None)
    assert run(inputs, outputs, workspace) == 0
    for given in ((None, outputs, workspace), (inputs, None, workspace), (inputs, outputs, None),
                  (nothing, outputs, workspace), (inputs, nothing, workspace)):  # fmt: skip
        assert run(*given) == 1
    assert run((ctypes.c_void_p * 1)(odd.value), outputs, workspace) == 2
    assert library.net_error(0) == b"no error"
    assert library.net_error(1) == b"a pointer is NULL"
    assert library.net_error(2) == b"an input or output is not aligned to its elements"
    assert library.net_error(-1) == library.net_error(99) == b"unknown error code"


def test_an_index_out_of_range_names_its_layer(tmp_path: Path) -> None:
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    model, made = compiled(
        message(
            [helper.make_node("Gather", ["table", "i"], ["y"], name="embedding")],
            {"i": [2]},
            {"y": [2, 3]},
            {"table": table},
            kinds={"i": TensorProto.INT64},
        ),
        tmp_path,
    )
    library = shared_library(made)
    library.net_fault.restype = ctypes.c_char_p
    code, found = call(library, made, model, {"i": np.array([3, -1])})
    assert code == 0
    np.testing.assert_array_equal(found["y"], table[[3, 3]])
    assert library.net_fault(None) is None
    for dirt in (0xAB, 1):  # without a call
        dirty = np.full(made.workspace_bytes, dirt, np.uint8)
        assert library.net_fault(ctypes.c_void_p(dirty.ctypes.data)) is None
    arrays = [np.array([1, 4]), np.zeros((2, 3), np.float32)]
    inputs, outputs = pointers(arrays[:1]), pointers(arrays[1:])
    work = np.zeros(made.workspace_bytes, np.uint8)
    workspace = ctypes.c_void_p(work.ctypes.data)
    assert library.net_fault(workspace) is None
    assert library.net_run(inputs, outputs, workspace) == 3
    assert library.net_fault(workspace) == b"embedding"


def test_results_that_are_inputs_constants_or_each_other_are_copied(tmp_path: Path) -> None:
    constant = np.arange(6, dtype=np.float32).reshape(2, 3)
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Identity", ["a"], ["again"]),
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("Identity", ["k"], ["constant"]),
        helper.make_node("Reshape", ["a", "flat"], ["line"]),
    ]
    shapes = {"a": [2, 3], "again": [2, 3], "same": [2, 3], "constant": [2, 3], "line": [6]}
    model, made = compiled(
        message(nodes, {"x": [2, 3]}, shapes, {"k": constant, "flat": np.array([6])}), tmp_path
    )
    feed = random_inputs(model)
    code, found = call(shared_library(made), made, model, feed)
    assert code == 0
    assert_same_bits(model, feed, found)
    np.testing.assert_array_equal(found["constant"], constant)


def test_threads_of_the_caller_share_the_work(tmp_path: Path) -> None:
    size = 256
    weight = np.random.default_rng(0).standard_normal((size, size)).astype(np.float32)
    model, made = compiled(
        message(
            [helper.make_node("MatMul", ["x", "w"], ["y"], name="dense")],
            {"x": [size, size]},
            {"y": [size, size]},
            {"w": weight},
        ),
        tmp_path,
        threads=2,
    )
    library = shared_library(made)
    counts: list[int] = []
    with ThreadPoolExecutor(2) as pool:
        parallel = _parallel(pool, counts)
        threads = (ctypes.c_void_p * 2)(ctypes.cast(parallel, ctypes.c_void_p).value, None)
        feed = random_inputs(model)
        code, found = call(library, made, model, feed, threads=threads)
    assert code == 0
    assert counts
    assert max(counts) > 1
    assert_same_bits(model, feed, found)


def _parallel(pool: ThreadPoolExecutor, counts: list[int]) -> Any:
    def run(context: int, task: Callable[..., None], work: int, count: int) -> None:
        counts.append(count)

        def every_second(thread: int) -> None:
            for index in range(thread, count, 2):
                task(work, index, thread)

        list(pool.map(every_second, range(2)))

    return _PARALLEL(run)


def test_calls_with_workspaces_of_their_own_run_at_the_same_time(net: Any) -> None:
    model, made, library = net
    feeds = [random_inputs(model, seed) for seed in range(8)]
    wanted = [model.run(feed)["y"].tobytes() for feed in feeds]
    ready = threading.Barrier(8)

    def often(number: int) -> Iterator[bool]:
        ready.wait()
        for _ in range(50):
            code, found = call(library, made, model, feeds[number])
            yield code == 0 and found["y"].tobytes() == wanted[number]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda number: all(often(number)), range(8)))


@pytest.mark.parametrize("side", list(GuardSide))
def test_calls_stay_inside_their_memory(net: Any, side: GuardSide) -> None:
    model, made, library = net
    feed = random_inputs(model)
    given = GuardedBuffer(feed["x"].nbytes, align_bytes=4, side=side)
    given.data[:] = feed["x"].reshape(-1).view(np.uint8)
    result = GuardedBuffer(4 * 80, align_bytes=4, side=side)
    work = GuardedBuffer(made.workspace_bytes, align_bytes=1, side=side)
    inputs, outputs = (ctypes.c_void_p(b.address) for b in (given, result))
    workspace = ctypes.c_void_p(work.address)
    assert library.net_run(ctypes.byref(inputs), ctypes.byref(outputs), workspace) == 0
    for buffer in (given, result, work):
        buffer.check("memory of the caller")
    assert_same_bits(model, feed, {"y": result.data.view(np.float32).reshape(8, 10)})


def test_sanitizers_find_nothing(net: Any) -> None:
    model, made, _ = net
    feed = random_inputs(model)
    feed["x"].tofile(made.folder / "x.bin")
    checks = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    command = ["gcc", *STRICT, *checks, "main.c", "net.o", "-o", "checked"]
    if subprocess.run(command, cwd=made.folder, capture_output=True, check=False).returncode:
        pytest.skip("needs the libraries of gcc's sanitizers")
    subprocess.run(["./checked", "x.bin", "z.bin"], cwd=made.folder, check=True)
    found = np.fromfile(made.folder / "z.bin", np.float32).reshape(8, 10)
    assert_same_bits(model, feed, {"y": found})


@needs("g++")
def test_a_class_of_cpp_owns_the_workspace(net: Any) -> None:
    model, made, _ = net
    feed = random_inputs(model)
    (made.folder / "use.cpp").write_text(
        '#include "net.hpp"\n#include <cstdio>\n#include <cstring>\n'
        "int main() {\n"
        "  static float x[192], y[80];\n"
        "  if (std::fread(x, sizeof x, 1, stdin) != 1) return 1;\n"
        "  net_inputs inputs = {x};\n"
        "  net_outputs outputs = {y};\n"
        "  net_model model;\n"
        "  model.run(inputs, outputs);\n"
        "  try { outputs.y = nullptr; model.run(inputs, outputs); return 2; }\n"
        "  catch (const std::runtime_error &e) {\n"
        "    if (std::strcmp(e.what(), net_error(NET_ERROR_NULL))) return 3;\n"
        "  }\n"
        "  return std::fwrite(y, sizeof y, 1, stdout) != 1;\n"
        "}\n"
    )
    command = ["g++", *STRICT[1:], "-std=c++11", "use.cpp", "libnet.a", "-o", "use"]
    subprocess.run(command, cwd=made.folder, check=True)
    done = subprocess.run(["./use"], cwd=made.folder, input=feed["x"].tobytes(), check=True,
                          capture_output=True)  # fmt: skip
    assert_same_bits(model, feed, {"y": np.frombuffer(done.stdout, np.float32)})


@needs("cmake", "make")
def test_cmake_builds_example_and_shared_library(net: Any, tmp_path: Path) -> None:
    model, made, _ = net
    for step in (["-S", str(made.folder), "-B", "."], ["--build", "."]):
        subprocess.run(["cmake", *step], cwd=tmp_path, check=True, capture_output=True)
    feed = random_inputs(model)
    code, found = call(ctypes.CDLL(str(tmp_path / "libnet.so")), made, model, feed)
    assert code == 0
    assert_same_bits(model, feed, found)
    subprocess.run(["./net_main"], cwd=tmp_path, check=True, capture_output=True)


def test_an_address_leads_to_its_layers(net: Any) -> None:
    _, made, _ = net
    file = made.folder / "net.so"
    listed = subprocess.run(["nm", "-S", file], check=True, text=True, capture_output=True).stdout
    rows = [line.split() for line in listed.splitlines()]
    spans = {row[3]: (int(row[0], 16), int(row[1], 16)) for row in rows if len(row) == 4}
    (name,) = (n for n in spans if n.startswith("conv2d_relu"))
    start, size = spans[name]
    places = [place_of(file, address) for address in range(start, start + size, 4)]
    assert {place.kernels for place in places} == {("conv2d_relu",)}
    assert places[0].layers == ("conv1", "relu1")
    assert {place.layers for place in places} >= {("conv1",), ("relu1",)}
    assert any("max" in place.text for place in places if place.layers == ("relu1",))
    with pytest.raises(clew.ClewError, match=r"I473.*net_run"):
        place_of(file, spans["net_run"][0])
    with pytest.raises(clew.ClewError, match="I473"):
        place_of(file, 1)


def test_what_has_no_addresses_is_refused(net: Any, tmp_path: Path) -> None:
    _, made, _ = net
    for file in ("net.h", "libnet.a", "missing.so", "."):
        with pytest.raises(clew.ClewError, match="I472"):
            place_of(made.folder / file, 1)
    subprocess.run(["strip", "-o", tmp_path / "net.so", made.folder / "net.so"], check=True)
    trace = tmp_path / "net.trace.json"
    shutil.copy(made.folder / trace.name, trace)
    with pytest.raises(clew.ClewError, match=r"I472.*has no symbols"):
        place_of(tmp_path / "net.so", 1)
    shutil.copy(made.folder / "net.so", tmp_path / "net.so")
    for text in ("no JSON", "[]", "{}", '{"version": 1}', '{"version": 1, "functions": [1]}'):
        trace.write_text(text)
        with pytest.raises(clew.ClewError, match=r"I472.*not the trace"):
            place_of(tmp_path / "net.so", 1)


def test_the_readme_has_the_sizes(net: Any) -> None:
    _, made, _ = net
    text = (made.folder / "README.md").read_text()
    assert f"| weights | {made.weights_bytes} |" in text
    assert "µs on the machine that exported it" in text
    assert "library calls: none." in text
    rows = dict(re.findall(r"^\| ([^|]+) \| (\d+) \|$", text, re.MULTILINE))
    parts = ("code", "tables", "weights", "relocations, symbols and debug information")
    assert sum(int(rows[part]) for part in parts) == made.object_bytes
    assert 0 < int(rows["tables"]) < 4096


def test_two_libraries_fit_in_one_program(net: Any, tmp_path: Path) -> None:
    model, made, _ = net
    other = model.export_c(tmp_path, "other")
    (tmp_path / "both.c").write_text(
        f'#include "{made.folder}/net.h"\n#include "other.h"\n'
        "int main(void) { return net_run(0, 0, 0) + other_run(0, 0, 0) - 2; }\n"
    )
    command = ["gcc", *STRICT, "both.c", f"{made.folder}/libnet.a", "libother.a", "-o", "both"]
    subprocess.run(command, cwd=other.folder, check=True)
    subprocess.run(["./both"], cwd=other.folder, check=True)


def test_branches_are_native(tmp_path: Path) -> None:
    def branch(name: str, op: str) -> Any:
        shape = helper.make_tensor_value_info(name, TensorProto.FLOAT, [4])
        return helper.make_graph([helper.make_node(op, ["x"], [name])], name, [], [shape])

    node = helper.make_node(
        "If", ["c"], ["y"], then_branch=branch("t", "Exp"), else_branch=branch("e", "Neg")
    )
    model, made = compiled(
        message([node], {"c": [], "x": [4]}, {"y": [4]}, kinds={"c": TensorProto.BOOL}), tmp_path
    )
    library = shared_library(made)
    for taken in (True, False):
        feed = {"c": np.array(taken), "x": np.arange(4, dtype=np.float32)}
        code, found = call(library, made, model, feed)
        assert code == 0
        assert_same_bits(model, feed, found)


def test_loops_are_native_up_to_their_limit(tmp_path: Path) -> None:
    def value(name: str, kind: int, shape: list[int]) -> Any:
        return helper.make_tensor_value_info(name, kind, shape)

    body = helper.make_graph(
        [
            helper.make_node("Add", ["s", "x"], ["t"], name="add"),
            helper.make_node("Identity", ["c"], ["d"]),
        ],
        "body",
        [value("i", TensorProto.INT64, []), value("c", TensorProto.BOOL, []),
         value("s", TensorProto.FLOAT, [4])],
        [value("d", TensorProto.BOOL, []), value("t", TensorProto.FLOAT, [4])],
    )  # fmt: skip
    node = helper.make_node("Loop", ["n", "", "x"], ["y"], body=body, name="loop")
    model, made = compiled(
        message([node], {"n": [], "x": [4]}, {"y": [4]}, kinds={"n": TensorProto.INT64}),
        tmp_path,
        budgets=clew.Budgets(loop_steps=50),
    )
    library = shared_library(made)
    x = np.array([1.0, 2.5, -3.0, 0.1], np.float32)
    for trips in (0, 1, 7):
        feed = {"n": np.array(trips), "x": x}
        code, found = call(library, made, model, feed)
        assert code == 0
        assert_same_bits(model, feed, found)
    assert call(library, made, model, {"n": np.array(51), "x": x})[0] == 4


def free_network() -> Any:
    """A network with free batch and length: a product, and a result that is a view."""
    nodes = [
        helper.make_node("Relu", ["x"], ["b"], name="relu1"),
        helper.make_node("Transpose", ["b"], ["bt"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["b", "bt"], ["c"], name="scores"),
        helper.make_node("Abs", ["c"], ["y"], name="abs1"),
        helper.make_node("Concat", ["b", "x"], ["z"], axis=1, name="concat1"),
        helper.make_node("Identity", ["x"], ["same"]),
    ]
    outputs = {"y": ["n", "t", "t"], "z": ["n", "s", 16], "same": ["n", "t", 16]}
    return message(nodes, {"x": ["n", "t", 16]}, outputs)


def test_sizes_are_given_with_the_inputs(tmp_path: Path) -> None:
    model, made = compiled(free_network(), tmp_path, sizes={"n": (1, 4), "t": (2, 40)})
    library = shared_library(made)
    command = ["gcc", *STRICT, "-fsyntax-only", "main.c"]
    subprocess.run(command, cwd=tmp_path, check=True)
    random = np.random.default_rng(3)
    work = np.full(made.workspace_bytes, 0xAB, np.uint8)
    workspace = ctypes.c_void_p(work.ctypes.data)
    for n, t in ((1, 2), (4, 40), (3, 17), (1, 1), (5, 2), (2, 41), (-1, 2), (4, 9)):
        x = random.standard_normal((abs(n), t, 16)).astype(np.float32)
        shapes = [(n, t, t), (n, 2 * t, 16), (n, t, 16)]
        outputs = [np.full(np.abs(shape), 77, np.float32) for shape in shapes]
        inputs = (ctypes.c_int64 * 3)(x.ctypes.data, n, t)
        code = library.net_run(inputs, pointers(outputs), workspace)
        if not (1 <= n <= 4 and 2 <= t <= 40):
            assert code == 5
            continue
        assert code == 0
        assert_same_bits(model, {"x": x}, dict(zip(("y", "z", "same"), outputs, strict=True)))


def test_weights_may_be_a_file(net: Any, tmp_path: Path) -> None:
    model = net[0]
    made = model.export_c(tmp_path, "net", weights_file=True)
    assert made.weights_bytes == (tmp_path / "net.weights.bin").stat().st_size
    feed = random_inputs(model)
    feed["x"].tofile(tmp_path / "x.bin")
    command = ["gcc", *STRICT, "main.c", "libnet.a", "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True)
    run = ["./main", "x.bin", "net.weights.bin", "y.bin"]
    subprocess.run(run, cwd=tmp_path, check=True, capture_output=True)
    found = np.fromfile(tmp_path / "y.bin", np.float32).reshape(8, 10)
    assert_same_bits(model, feed, {"y": found})
    weights = (tmp_path / "net.weights.bin").read_bytes()
    for damaged in (weights[:-1], weights + b"0"):
        (tmp_path / "net.weights.bin").write_bytes(damaged)
        assert subprocess.run(run, cwd=tmp_path, capture_output=True, check=False).returncode == 1


def test_refusals(tmp_path: Path) -> None:
    free = clew.compile(
        message([helper.make_node("Exp", ["x"], ["y"])], {"x": ["n"]}, {"y": ["n"]})
    )
    with pytest.raises(clew.ClewError, match=r"U081.*size 'n'"):
        free.export_c(tmp_path)
    decided = clew.compile(
        message(
            [helper.make_node("Expand", ["x", "s"], ["y"], name="expanded")],
            {"x": [1], "s": [2]},
            {"y": ["a", "b"]},
            kinds={"s": TensorProto.INT64},
        )
    )
    with pytest.raises(clew.ClewError, match=r"U081.*input 's' decides") as refused:
        decided.export_c(tmp_path)
    assert refused.value.layer == "expanded"
    model = clew.compile(network())
    with pytest.raises(clew.ClewError, match=r"I470.*'2d'"):
        model.export_c(tmp_path, "2d")
    (tmp_path / "file").write_text("")
    with pytest.raises(clew.ClewError, match="I471"):
        model.export_c(tmp_path / "file" / "inside")
    host = clew.compile(
        message(
            [helper.make_node("Det", ["x"], ["y"], name="determinant")],
            {"x": [64, 64]},
            {"y": []},
        )
    )
    with pytest.raises(clew.ClewError, match=r"(?s)U080.*det.*determinant"):
        host.export_c(tmp_path)


def test_refused_dtypes_name_the_layer(tmp_path: Path) -> None:
    words = message(
        [helper.make_node("StringNormalizer", ["x"], ["y"], name="words")],
        {"x": [3]},
        {"y": [3]},
        kind=TensorProto.STRING,
    )
    with pytest.raises(clew.ClewError, match=r"U082.*input 'x'") as refused:
        clew.compile(words).export_c(tmp_path)
    assert refused.value.layer == "words"
