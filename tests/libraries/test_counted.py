"""Libraries with data-dependent sizes: counts, shapes of results, capacities."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import clew
from clew.libraries import Exported
from clew.runtime.guard import GuardedBuffer, GuardSide

from .c_programs import STRICT, Array, message, needs, pointers, random_inputs, shared_library

pytestmark = needs("gcc", "nm")

_INT = TensorProto.INT64
_THREADS = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
_TASK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


class Table(ctypes.Structure):
    """A row of a table of tensors."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("rank", ctypes.c_int32),
        ("element_bytes", ctypes.c_int32),
        ("bytes", ctypes.c_uint64),
    )


def _node(op: str, inputs: Sequence[str], outputs: Sequence[str], **attrs: Any) -> Any:
    return helper.make_node(op, inputs, outputs, name=op.lower(), **attrs)


def nonzero(rows: Any = 4) -> Any:
    """The positions of positive elements, and these elements."""
    nodes = [
        _node("Relu", ["x"], ["r"]),
        _node("NonZero", ["r"], ["n"]),
        _node("Transpose", ["n"], ["t"], perm=[1, 0]),
        _node("GatherND", ["r", "t"], ["y"]),
    ]
    return message(nodes, {"x": [rows, 5]}, {"n": [2, None], "y": [None]}, kinds={"n": _INT})


def unique() -> Any:
    nodes = [_node("Round", ["x"], ["r"]), _node("Unique", ["r"], ["u", "f", "i", "c"])]
    outputs = {"u": [None], "f": [None], "i": [40], "c": [None]}
    return message(nodes, {"x": [40]}, outputs, kinds=dict.fromkeys("fic", _INT))


def compress() -> Any:
    nodes = [
        _node("ReduceMax", ["x"], ["m"], axes=[1], keepdims=0),
        _node("Greater", ["m", "limit"], ["q"]),
        _node("Compress", ["x", "q"], ["y"], axis=0),
    ]
    weights = {"limit": np.array(1.2, np.float32)}
    return message(nodes, {"x": [9, 5]}, {"y": [None, 5]}, weights)


def suppression(boxes: int) -> Any:
    nodes = [
        _node("Sigmoid", ["b"], ["corners"]),
        _node("NonMaxSuppression", ["corners", "s", "most", "overlap", "least"], ["y"]),
    ]
    weights = {
        "most": np.array([boxes // 2]),
        "overlap": np.array([0.5], np.float32),
        "least": np.array([0.1], np.float32),
    }
    inputs = {"b": [1, boxes, 4], "s": [1, 3, boxes]}
    return message(nodes, inputs, {"y": [None, 3]}, weights, kinds={"y": _INT})


def top_k() -> Any:
    """The k largest elements, where k is the number of nonzero ones."""
    nodes = [
        _node("Relu", ["x"], ["r"]),
        _node("NonZero", ["r"], ["n"]),
        _node("Shape", ["n"], ["shape"]),
        _node("Slice", ["shape", "one", "two"], ["k"]),
        _node("TopK", ["x", "k"], ["v", "p"]),
    ]
    weights = {"one": np.array([1]), "two": np.array([2])}
    return message(nodes, {"x": [30]}, {"v": [None], "p": [None]}, weights, kinds={"p": _INT})


def cut() -> Any:
    """A slice that ends at a computed place."""
    nodes = [
        _node("ReduceSum", ["x"], ["s"], keepdims=0),
        _node("Cast", ["s"], ["c"], to=_INT),
        _node("Reshape", ["c", "one"], ["end"]),
        _node("Slice", ["x", "one", "end"], ["y"]),
    ]
    return message(nodes, {"x": [12, 3]}, {"y": [None, 3]}, {"one": np.array([1])})


def stacking() -> Any:
    """A loop that stacks a row for each iteration."""

    def value(name: str, kind: int, shape: list[int]) -> Any:
        return helper.make_tensor_value_info(name, kind, shape)

    body = helper.make_graph(
        [
            _node("Add", ["s", "x"], ["t"]),
            _node("Identity", ["c"], ["d"]),
            _node("Neg", ["t"], ["row"]),
        ],
        "body",
        [value("i", _INT, []), value("c", TensorProto.BOOL, []),
         value("s", TensorProto.FLOAT, [4])],
        [value("d", TensorProto.BOOL, []), value("t", TensorProto.FLOAT, [4]),
         value("row", TensorProto.FLOAT, [4])],
    )  # fmt: skip
    node = helper.make_node("Loop", ["n", "", "x"], ["y", "rows"], body=body, name="loop")
    outputs = {"y": [4], "rows": [None, 4]}
    return message([node], {"n": [], "x": [4]}, outputs, kinds={"n": _INT})


def table_of(library: ctypes.CDLL, count: int) -> Any:
    return (Table * count).in_dll(library, "net_output_table")


def run(
    library: ctypes.CDLL, made: Exported, model: Any, inputs: Any, threads: Any = None
) -> tuple[int, dict[str, Array]]:
    """Calls a library; returns the code, and the outputs in the shapes that it finds."""
    rows = table_of(library, len(model.outputs))
    arrays = [
        np.full(row.bytes // row.element_bytes, 77, spec.dtype)
        for row, spec in zip(rows, model.outputs, strict=True)
    ]
    counted = [n for n, row in enumerate(rows) if -2 in row.shape[: row.rank]]
    shapes = {n: np.full(rows[n].rank, -9, np.int64) for n in counted}
    workspace = np.full(made.workspace_bytes + 1, 0xAB, np.uint8)[1:]
    code = library.net_run_with(
        inputs,
        pointers([*arrays, *shapes.values()]),
        ctypes.c_void_p(workspace.ctypes.data),
        threads,
    )
    if code:
        return code, {}
    found = [
        array[: int(np.prod(shapes[n]))].reshape(shapes[n]) if n in shapes
        else array[: int(np.prod(spec.shape))]
        for n, (array, spec) in enumerate(zip(arrays, model.outputs, strict=True))
    ]  # fmt: skip
    return code, dict(zip(model.output_names, found, strict=True))


def assert_same(model: Any, feed: Mapping[str, Array], found: Mapping[str, Array]) -> None:
    for name, array in model.run(feed).items():
        wanted = np.asarray(array)
        assert found[name].size == wanted.size, name
        assert found[name].tobytes() == wanted.tobytes(), name
        if found[name].ndim == wanted.ndim:
            assert found[name].shape == wanted.shape, name


def compiled(source: Any, folder: Path, **options: Any) -> tuple[Any, Exported, ctypes.CDLL]:
    model = clew.compile(source, **{"threads": 1, **options})
    made = model.export_c(folder, "net")
    return model, made, shared_library(made)


def best() -> Any:
    """The largest one of the positive elements, if there is any."""
    nodes = [
        _node("Relu", ["x"], ["r"]),
        _node("NonZero", ["r"], ["n"]),
        _node("Transpose", ["n"], ["t"], perm=[1, 0]),
        _node("GatherND", ["r", "t"], ["v"]),
        _node("Shape", ["v"], ["count"]),
        _node("Min", ["count", "one"], ["k"]),
        _node("TopK", ["v", "k"], ["y", "i"], axis=0),
    ]
    weights = {"one": np.array([1])}
    return message(nodes, {"x": [4, 5]}, {"y": [None], "i": [None]}, weights, kinds={"i": _INT})


def test_sizes_of_at_most_one(tmp_path: Path) -> None:
    model, made, library = compiled(best(), tmp_path)
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((4, 5)).astype(np.float32)
        code, found = run(library, made, model, pointers([x]))
        assert code == 0
        assert found["y"].tolist() == [x.max()]
        assert_same(model, {"x": x}, found)
    assert model.run({"x": -np.ones((4, 5), np.float32)})["y"].shape == (0,)


MODELS = {
    "nonzero": (nonzero, 20),
    "unique": (unique, 40),
    "compress": (compress, 45),
    "few boxes": (lambda: suppression(30), 135),
    "many boxes": (lambda: suppression(400), 1800),
    "top k": (top_k, 30),
    "slice": (cut, 36),
}


@pytest.mark.parametrize("name", MODELS)
def test_results_have_the_bits_and_shapes_of_the_compiled_model(name: str, tmp_path: Path) -> None:
    make, most = MODELS[name]
    model, made, library = compiled(make(), tmp_path)
    counted = [row for row in table_of(library, len(model.outputs)) if -2 in row.shape[: row.rank]]
    assert counted[-1].bytes == most * counted[-1].element_bytes
    sizes = set()
    for seed in range(5):
        feed = random_inputs(model, seed)
        arrays = [np.ascontiguousarray(feed[n]) for n in model.input_names]
        code, found = run(library, made, model, pointers(arrays))
        assert code == 0
        assert_same(model, feed, found)
        sizes.add(next(iter(found.values())).size)
    assert len(sizes) > 1 or name == "few boxes"


@pytest.mark.parametrize("order", ["vx", "xv", "vv", "vxv"])
def test_parts_lie_behind_those_whose_sizes_data_decide(order: str, tmp_path: Path) -> None:
    nodes = [
        _node("ReduceSum", ["x"], ["s"], keepdims=0),
        _node("Cast", ["s"], ["c"], to=_INT),
        _node("Reshape", ["c", "one"], ["end"]),
        _node("Slice", ["x", "zero", "end"], ["v"]),
        _node("Concat", [*order], ["y"], axis=0),
    ]
    weights = {"zero": np.array([0]), "one": np.array([1])}
    source = message(nodes, {"x": [6, 4]}, {"y": [None, 4]}, weights)
    model, made, library = compiled(source, tmp_path)
    for rows in (1, 2, 5):
        x = np.random.default_rng(rows).standard_normal((6, 4)).astype(np.float32)
        x[5] = (rows + 0.5 - x[:5].sum()) / 4
        code, found = run(library, made, model, pointers([x]))
        assert code == 0
        assert found["y"].shape == (6 * order.count("x") + rows * order.count("v"), 4)
        assert_same(model, {"x": x}, found)


def test_nothing_and_everything_may_be_found(tmp_path: Path) -> None:
    model, made, library = compiled(nonzero(), tmp_path)
    for x in (np.full((4, 5), -1, np.float32), np.ones((4, 5), np.float32)):
        code, found = run(library, made, model, pointers([x]))
        assert code == 0
        assert found["n"].shape == (2, 20 * int(x[0, 0] > 0))
        assert_same(model, {"x": x}, found)


def test_a_program_of_the_header_shows_the_sizes(tmp_path: Path) -> None:
    model, _, _ = compiled(nonzero(), tmp_path)
    text = (tmp_path / "net.h").read_text()
    assert 'float *y; /* "y": float32[?], at most 20 elements */' in text
    assert "int64_t *n_shape; /* the shape of n: 2 sizes */" in text
    feed = random_inputs(model)
    feed["x"].tofile(tmp_path / "x.bin")
    checks = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    command = ["gcc", *STRICT, "main.c", "libnet.a", "-o", "main"]
    with_checks = subprocess.run([*command, *checks], cwd=tmp_path, check=False)
    if with_checks.returncode:  # without the sanitizers' libraries
        subprocess.run(command, cwd=tmp_path, check=True)
    done = subprocess.run(["./main", "x.bin", "n.bin", "y.bin"], cwd=tmp_path, check=True,
                          capture_output=True, text=True)  # fmt: skip
    wanted = model.run(feed)
    assert f"n: 2 {wanted['n'].shape[1]}" in done.stdout
    for name in ("n", "y"):
        assert (tmp_path / f"{name}.bin").read_bytes() == wanted[name].tobytes()


@pytest.mark.parametrize("side", list(GuardSide))
def test_calls_stay_inside_their_memory(side: GuardSide, tmp_path: Path) -> None:
    model, made, library = compiled(nonzero(), tmp_path)
    x = np.ones((4, 5), np.float32)
    x[2] = -1
    sizes = ((80, 4), (320, 8), (80, 4), (16, 8), (8, 8), (made.workspace_bytes, 1))
    buffers = [GuardedBuffer(size, align_bytes=align, side=side) for size, align in sizes]
    given, positions, values, *shapes, work = buffers
    given.data[:] = x.reshape(-1).view(np.uint8)
    inputs = (ctypes.c_void_p * 1)(given.address)
    outputs = (ctypes.c_void_p * 4)(*(b.address for b in (positions, values, *shapes)))
    assert library.net_run(inputs, outputs, ctypes.c_void_p(work.address)) == 0
    for buffer in buffers:
        buffer.check("memory of the caller")
    assert shapes[1].data.view(np.int64).tolist() == [15]
    assert positions.data.view(np.int64)[:30].tobytes() == model.run({"x": x})["n"].tobytes()


def test_a_shape_is_needed(tmp_path: Path) -> None:
    _, made, library = compiled(nonzero(), tmp_path)
    x, n, y = np.ones((4, 5), np.float32), np.zeros(40, np.int64), np.zeros(20, np.float32)
    shapes = np.zeros(3, np.int64)
    work = np.zeros(made.workspace_bytes, np.uint8)
    addresses = [a.ctypes.data for a in (n, y, shapes, shapes[2:])]
    for place, wrong, error in ((2, None, 1), (3, None, 1), (3, addresses[3] + 4, 2)):
        fields = (ctypes.c_void_p * 4)(*addresses)
        fields[place] = wrong
        assert library.net_run(pointers([x]), fields, ctypes.c_void_p(work.ctypes.data)) == error


def test_an_operator_without_a_result_for_nothing_is_an_error(tmp_path: Path) -> None:
    nodes = [
        _node("Relu", ["x"], ["r"]),
        _node("NonZero", ["r"], ["n"]),
        _node("ArgMax", ["n"], ["y"], axis=1, keepdims=0),
    ]
    source = message(nodes, {"x": [3, 4]}, {"y": [2]}, kinds={"y": _INT})
    model, made, library = compiled(source, tmp_path)
    y, work = np.zeros(2, np.int64), np.zeros(made.workspace_bytes, np.uint8)
    workspace = ctypes.c_void_p(work.ctypes.data)
    some = np.eye(3, 4, dtype=np.float32)
    assert library.net_run(pointers([some]), pointers([y]), workspace) == 0
    assert y.tolist() == model.run({"x": some})["y"].tolist() == [2, 2]
    assert library.net_run(pointers([-some]), pointers([y]), workspace) == 5
    with pytest.raises(clew.ClewError, match="T170"):
        model.run({"x": -some})


def test_an_empty_selection_is_reduced_as_by_the_compiled_model(tmp_path: Path) -> None:
    """Sums, extremes, products over its axis, and selections from it."""
    nodes = [
        _node("ReduceMax", ["x"], ["m"], axes=[1], keepdims=0),
        _node("Greater", ["m", "limit"], ["q"]),
        _node("Compress", ["x", "q"], ["v"], axis=0),
        _node("ReduceSum", ["v", "zero"], ["sum"], keepdims=0),
        _node("ReduceMax", ["v"], ["max"], axes=[0], keepdims=0),
        _node("Transpose", ["v"], ["t"], perm=[1, 0]),
        _node("MatMul", ["t", "v"], ["gram"]),
        _node("Relu", ["v"], ["r"]),
        _node("NonZero", ["r"], ["places"]),
    ]
    outputs = {"sum": [6], "max": [6], "gram": [6, 6], "places": [2, None]}
    weights = {"limit": np.array(1, np.float32), "zero": np.array([0])}
    source = message(nodes, {"x": [9, 6]}, outputs, weights, kinds={"places": _INT})
    model, made, library = compiled(source, tmp_path)
    for top in (0.5, 2.0):
        x = np.random.default_rng(1).uniform(-1, top, (9, 6)).astype(np.float32)
        code, found = run(library, made, model, pointers([x]))
        assert code == 0
        assert (found["max"] == -np.inf).all() == (top < 1)
        assert_same(model, {"x": x}, found)


def test_free_sizes_and_counts(tmp_path: Path) -> None:
    model, made, library = compiled(nonzero("rows"), tmp_path, sizes={"rows": (1, 8)})
    assert table_of(library, 2)[1].bytes == 4 * 5 * 8
    for rows in (1, 8, 3):
        x = np.random.default_rng(rows).standard_normal((rows, 5)).astype(np.float32)
        inputs = (ctypes.c_int64 * 2)(x.ctypes.data, rows)
        code, found = run(library, made, model, inputs)
        assert code == 0
        assert_same(model, {"x": x}, found)


def test_rows_of_loops(tmp_path: Path) -> None:
    model, made, library = compiled(stacking(), tmp_path, budgets=clew.Budgets(loop_steps=20))
    x = np.array([1.0, 2.5, -3.0, 0.1], np.float32)
    for trips in (0, 1, 7, 20):
        feed = {"n": np.array(trips), "x": x}
        code, found = run(library, made, model, pointers([feed["n"], x]))
        assert code == 0
        assert found["rows"].shape == (trips, 4)
        assert_same(model, feed, found)
    more = np.array(21)
    assert run(library, made, model, pointers([more, x]))[0] == 4


def test_threads_share_counted_and_free_work(tmp_path: Path) -> None:
    nodes = [
        _node("MatMul", ["x", "w"], ["a"]),
        _node("Relu", ["a"], ["r"]),
        _node("NonZero", ["r"], ["n"]),
        _node("Transpose", ["n"], ["t"], perm=[1, 0]),
        _node("GatherND", ["r", "t"], ["y"]),
    ]
    weight = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
    source = message(nodes, {"x": ["rows", 256]}, {"y": [None]}, {"w": weight})
    model, made, library = compiled(source, tmp_path, sizes={"rows": (1, 300)}, threads=2)
    assert "#define NET_MAX_THREADS 2" in (tmp_path / "net.h").read_text()
    counts: list[int] = []

    def parallel(_: int, task: int, work: int, count: int) -> None:
        counts.append(count)
        function = _TASK(task)
        for index in range(count):
            function(work, index, index % 2)

    callback = _THREADS(parallel)
    threads = (ctypes.c_void_p * 2)(ctypes.cast(callback, ctypes.c_void_p).value, None)
    for rows in (1, 300, 37):
        x = np.random.default_rng(rows).standard_normal((rows, 256)).astype(np.float32)
        inputs = (ctypes.c_int64 * 2)(x.ctypes.data, rows)
        code, found = run(library, made, model, inputs, threads)
        assert code == 0
        assert_same(model, {"x": x}, found)
        alone = run(library, made, model, inputs)[1]
        assert alone["y"].tobytes() == found["y"].tobytes()
    assert max(counts) > 1


def test_sizes_without_a_bound_name_the_layer(tmp_path: Path) -> None:
    nodes = [
        _node("ReduceSum", ["x"], ["s"], keepdims=0),
        _node("Cast", ["s"], ["end"], to=_INT),
        helper.make_node("Range", ["zero", "end", "one"], ["y"], name="numbers"),
    ]
    weights = {"zero": np.array(0), "one": np.array(1)}
    source = message(nodes, {"x": [3]}, {"y": [None]}, weights, kinds={"y": _INT})
    with pytest.raises(clew.ClewError, match="U081") as refused:
        clew.compile(source).export_c(tmp_path)
    assert refused.value.layer == "numbers"
