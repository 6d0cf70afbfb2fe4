"""Models over Parquet files: values, order, resumption, and values that do not fit."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.dask_cluster import running_cluster
from tests.generation.folders import write_tokenizer

import clew
from clew.generation.tokenizer import Tokenizer
from clew.runner import DaskRunner
from clew.runtime.batches import Batching, run_rows
from clew.runtime.input_spec import InputSpec

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

_WEIGHT = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)


def _model(path: Path, shape: list[int | str], dtype: int = TensorProto.FLOAT) -> Path:
    """Writes a model: y = x @ weight for each row, with axes in between summed, and n the rows."""
    nodes = [
        helper.make_node("Cast", ["x"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["f", "w"], ["y"]),
    ]
    values = [
        helper.make_tensor_value_info("x", dtype, shape),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [*shape[:-1], 3]),
    ]
    graph = helper.make_graph(
        nodes, "g", values[:1], values[1:], [numpy_helper.from_array(_WEIGHT, "w")]
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path
    )
    return path


def _table(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    pq.write_table(pa.table(columns), path, **options)
    return path


def _rows(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, 4)).astype(np.float32)


@pytest.mark.parametrize("first", ["n", 1, 8])
@pytest.mark.parametrize(
    "column",
    [
        lambda x: pa.array(x.tolist(), pa.list_(pa.float64())),
        lambda x: pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), 4),
        lambda x: pa.FixedShapeTensorArray.from_numpy_ndarray(x),
    ],
    ids=["lists", "fixed lists", "tensors"],
)
def test_values_and_order(
    tmp_path: Path, first: int | str, column: Callable[[np.ndarray], Any]
) -> None:
    model = _model(tmp_path / "m.onnx", [first, 4])
    x = _rows(53)
    whole = pa.table({"id": range(53), "x": column(x)})
    data = [tmp_path / f"{n}.parquet" for n in range(3)]
    for file, (begin, count) in zip(data, [(0, 30), (30, 0), (30, 23)], strict=True):
        pq.write_table(whole.slice(begin, count), file, row_group_size=7)
    report = clew.map_files(model, data, tmp_path / "out", batch=5, part_rows=11)
    assert (report.rows, report.new_rows, report.parts) == (53, 53, 6)
    found = pq.read_table(tmp_path / "out")
    assert found.column_names == ["id", "y"]
    assert found["id"].to_pylist() == list(range(53))
    np.testing.assert_allclose(np.array(found["y"].to_pylist()), x @ _WEIGHT, 1e-5, 1e-6)


def test_rows_of_many_lengths(tmp_path: Path) -> None:
    model = _model(tmp_path / "m.onnx", ["n", "t", 4])
    x = [_rows(n % 4 + (n != 7), n) for n in range(40)]
    nested = pa.array([value.tolist() for value in x], pa.list_(pa.list_(pa.float32())))
    flat = pa.array([value.reshape(-1).tolist() for value in x], pa.large_list(pa.float32()))
    for name, column in (("nested", nested), ("flat", flat)):
        data = _table(tmp_path / f"{name}.parquet", {"value": column, "x": range(40)})
        clew.map_files(
            model, [data], tmp_path / name, columns={"x": "value"}, outputs=["y"], keep=["x"]
        )
        found = pq.read_table(tmp_path / name)
        assert found["x"].to_pylist() == list(range(40))
        for value, result in zip(x, found["y"].to_pylist(), strict=True):
            assert len(result) == len(value)
            if result:
                np.testing.assert_allclose(result, value @ _WEIGHT, 1e-5, 1e-5)


def test_a_run_continues_with_what_is_missing(tmp_path: Path) -> None:
    model, out = _model(tmp_path / "m.onnx", ["n", 4]), tmp_path / "out"
    data = [_table(tmp_path / "a.parquet", {"x": _rows(40).tolist()})]
    clew.map_files(model, data, out, part_rows=10)
    before = {path: path.stat().st_mtime_ns for path in out.glob("part-*")}
    cut, absent = sorted(before)[1:3]
    cut.write_bytes(cut.read_bytes()[:-9])
    absent.unlink()
    said: list[str] = []
    assert clew.map_files(model, data, out, part_rows=10, say=said.append).new_rows == 20
    assert said[0] == "20 of 40 rows were done before"
    assert said[-1].startswith("40 of 40 rows")
    after = {path: path.stat().st_mtime_ns for path in out.glob("part-*")}
    assert {path for path in before if before[path] == after[path]} == {*before} - {cut, absent}
    assert clew.map_files(model, data, out, part_rows=10).new_rows == 0
    assert len(pq.read_table(out)) == 40


def test_a_folder_belongs_to_one_run(tmp_path: Path) -> None:
    model, out = _model(tmp_path / "m.onnx", ["n", 4]), tmp_path / "out"
    data = [_table(tmp_path / "a.parquet", {"x": _rows(9).tolist()})]
    with pytest.raises(clew.ClewError, match="I459"):  # leaves no result, so it may be changed
        clew.map_files(model, data, out, outputs=["z"])
    clew.map_files(model, data, out, options=clew.CompileOptions(threads=1))
    clew.map_files(model, data, out, options=clew.CompileOptions(threads=2))
    for changed in (
        {"part_rows": 5},
        {"options": clew.CompileOptions(precision="bf16")},
        {"outputs": ["y"]},
    ):
        with pytest.raises(clew.ClewError, match="I451"):
            clew.map_files(model, data, out, **changed)  # type: ignore[arg-type]
    _table(tmp_path / "a.parquet", {"x": _rows(9, 1).tolist()})
    with pytest.raises(clew.ClewError, match=r"I451.*data differs"):
        clew.map_files(model, data, out)
    (out / "_manifest.json").write_text("[")
    with pytest.raises(clew.ClewError, match="I452"):
        clew.map_files(model, data, out)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([[1] * 4, None]), "row 1 does not fit: it is missing"),
        (pa.array([[1] * 4, [1] * 3]), r"row 1 does not fit: it has shape \[3\]"),
        (pa.array([[1] * 4, [1, None, 1, 1]]), "row 1 does not fit: it is missing, or a part"),
        (pa.array([[1] * 4, [None] * 4], pa.list_(pa.int8(), 4)), "row 1 does not fit: it is mis"),
        (pa.array([[1.0] * 4]), "row 0 .*list<element: double>, and int8 cannot hold its numbers"),
        (pa.array([[1, 2, 3, 300]]), "row 0 does not fit: .*int8 cannot hold its numbers"),
        (pa.array(["text"]), "row 0 does not fit: it is string, and the model takes int8"),
        (pa.array([[[1, 2], [3]]]), "row 0 does not fit"),
    ],
)
def test_values_that_do_not_fit(tmp_path: Path, column: Any, message: str) -> None:
    model = _model(tmp_path / "m.onnx", ["n", 4], TensorProto.INT8)
    data = _table(tmp_path / "a.parquet", {"x": column})
    with pytest.raises(clew.ClewError, match=f"I454.*{message}"):
        clew.map_files(model, [data], tmp_path / "out")
    assert not list((tmp_path / "out").glob("*part*"))


def test_tables_that_do_not_fit(tmp_path: Path) -> None:
    model = _model(tmp_path / "m.onnx", ["n", 4])
    data = _table(tmp_path / "a.parquet", {"z": [1.0]})
    twice = tmp_path / "b.parquet"
    rows = pa.array([[1.0] * 4])
    pq.write_table(pa.Table.from_arrays([rows, rows], names=["x", "x"]), twice)
    refused: list[tuple[str, list[Path], dict[str, str]]] = [
        ("I453", [], {}),
        ("I453", [model], {}),
        ("I453", [tmp_path / "absent.parquet"], {}),
        ("I457", [data], {}),
        ("I457", [data], {"w": "z"}),
        ("I457.*has 2 columns 'x'", [twice], {}),
    ]
    for number, (code, files, columns) in enumerate(refused):
        with pytest.raises(clew.ClewError, match=code):
            clew.map_files(model, files, tmp_path / str(number), columns=columns)


def test_texts(tmp_path: Path) -> None:
    texts = ["a", "é", "", "a\0", "\0"]
    values = [helper.make_tensor_value_info(n, TensorProto.STRING, ["n"]) for n in ("x", "y")]
    nodes = [helper.make_node("StringConcat", ["x", "x"], ["y"])]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    opsets = [helper.make_opsetid("", 20)]
    model = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), model)
    for n, kind in enumerate((pa.string(), pa.large_string(), pa.dictionary(pa.int8(), "string"))):
        data = _table(tmp_path / f"{n}.parquet", {"x": pa.array(texts, kind)})
        clew.map_files(model, data, tmp_path / str(n))
        found = pq.read_table(tmp_path / str(n))["y"].to_pylist()
        assert found == [text + text for text in texts]


def test_names_of_columns_differ(tmp_path: Path) -> None:
    model, x = _model(tmp_path / "m.onnx", ["n", 4]), _rows(2)
    columns = {"x": x.tolist(), "y": [1, 2], "y_output": [3, 4]}
    data = _table(tmp_path / "a.parquet", columns)
    clew.map_files(model, data, tmp_path / "out", keep=["y", "y_output", "y"])
    found = pq.read_table(tmp_path / "out")
    assert found.column_names == ["y", "y_output", "y_output_output"]
    np.testing.assert_allclose(found["y_output_output"].to_pylist(), x @ _WEIGHT, rtol=1e-5)


def test_sizes_are_checked(tmp_path: Path) -> None:
    model = _model(tmp_path / "m.onnx", ["n", 4])
    for options in ({"batch": 0}, {"batch": -1}, {"part_rows": -5}, {"part_rows": 1.5}):
        with pytest.raises(clew.ClewError, match="I460"):
            clew.map_files(model, [model], tmp_path / "out", **options)  # type: ignore[arg-type]


def test_results_that_are_no_files(tmp_path: Path) -> None:
    """A pipe in the place of a part would block its reader."""
    model, out = _model(tmp_path / "m.onnx", ["n", 4]), tmp_path / "out"
    data = _table(tmp_path / "a.parquet", {"x": _rows(9).tolist()})
    clew.map_files(model, data, out)
    (out / "part-000000.parquet").unlink()
    os.mkfifo(out / "part-000000.parquet")
    with pytest.raises(clew.ClewError, match="I452"):
        clew.map_files(model, data, out)


def test_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    """A run that begins before another has its first part would replace its plan."""
    model, out = _model(tmp_path / "m.onnx", ["n", 4]), tmp_path / "out"
    data = _table(tmp_path / "a.parquet", {"x": _rows(9).tolist()})
    refused = []

    def begin_another(text: str) -> None:
        with pytest.raises(clew.ClewError, match=r"I451.*it is running"):
            clew.map_files(model, data, out, part_rows=4)
        refused.append(text)

    clew.map_files(model, data, out, part_rows=3, say=begin_another)
    assert len(refused) == 3
    assert clew.map_files(model, data, out, part_rows=3).new_rows == 0


def test_models_without_an_axis_for_rows() -> None:
    for shapes in ([[]], [["n", 2], ["m", 2]], [[1, 2], [2, 2]], [["..."]], []):
        specs = [InputSpec(f"x{n}", np.float32, shape) for n, shape in enumerate(shapes)]
        with pytest.raises(clew.ClewError, match="I455"):
            Batching.of(specs, 8)


def test_outputs_without_rows(tmp_path: Path) -> None:
    class Summing:
        output_names = ("y",)

        def run(self, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            return {"y": feed["x"].sum(axis=0)}

    rows = [np.ones(4, np.float32)] * 3
    with pytest.raises(clew.ClewError, match=r"I456.*it is \[4\]"):
        run_rows(Summing(), Batching(8, True), {"x": rows}, 3)


def _encoder(path: Path, tokens: int | str, inputs: Sequence[str]) -> Path:
    """Writes a model of token ids with the folder's tokenizer: for each text, the sum of its ids
    where the mask is 1, and the number of tokens that the model sees.
    """
    path.mkdir()
    write_tokenizer(path)
    (path / "config.json").write_text('{"max_position_embeddings": 16}')
    shape = ["n", tokens]
    given = [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name in inputs]
    masked = "attention_mask" in inputs
    nodes = [
        helper.make_node("Mul" if masked else "Identity", inputs[: 1 + masked], ["seen"]),
        helper.make_node("ReduceSum", ["seen", "axes"], ["y"], keepdims=0),
    ]
    result = helper.make_tensor_value_info("y", TensorProto.INT64, ["n"])
    axes = numpy_helper.from_array(np.array([1]), "axes")
    graph = helper.make_graph(nodes, "g", given, [result], [axes])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, path / "model.onnx")
    return path / "model.onnx"


@pytest.mark.parametrize("tokens", ["t", 12])
def test_texts_as_tokens(tmp_path: Path, tokens: int | str) -> None:
    pytest.importorskip("tokenizers")
    model = _encoder(tmp_path / "m", tokens, ["input_ids", "attention_mask", "token_type_ids"])
    texts = ["hello", "", "he said hello, twice", "ü" * 40, "a"]
    data = _table(tmp_path / "a.parquet", {"id": range(5), "said": texts})
    clew.map_files(model, [data], tmp_path / "out", text="said")
    found = pq.read_table(tmp_path / "out")
    assert found.column_names == ["id", "said", "y"]
    most = 16 if tokens == "t" else 12
    whole = Tokenizer.read(tmp_path / "m" / "tokenizer.json")
    assert found["y"].to_pylist() == [sum(whole.encode(text)[:most]) for text in texts]


def test_texts_that_a_model_cannot_take(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    data = _table(tmp_path / "a.parquet", {"said": ["hello"], "number": [1]})
    plain = _model(tmp_path / "plain.onnx", ["n", 4])
    fixed = _encoder(tmp_path / "fixed", 12, ["input_ids"])
    lone = _encoder(tmp_path / "lone", "t", ["input_ids"])
    for model, text, code in (
        (plain, "said", "I462"),
        (fixed, "said", "I462"),
        (lone, "number", "I454"),
        (lone, "absent", "I457"),
    ):
        with pytest.raises(clew.ClewError, match=code):
            clew.map_files(model, [data], tmp_path / "out", text=text)
    (tmp_path / "lone" / "tokenizer.json").unlink()
    model = lone.rename(tmp_path / "alone.onnx")
    with pytest.raises(clew.ClewError, match="I485"):
        clew.map_files(model, [data], tmp_path / "out", text="said")


def test_workers_that_are_killed(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    model, out = _model(tmp_path / "m.onnx", ["n", 4]), tmp_path / "out"
    x = _rows(4000)
    data = _table(tmp_path / "a.parquet", {"id": range(4000), "x": x.tolist()})
    folder = tmp_path / "cluster"
    folder.mkdir()
    with running_cluster(folder) as cluster:
        for _ in range(3):
            cluster.worker()
        runner = DaskRunner(cluster.address, 120, measures=False)
        runner.client.wait_for_workers(3, timeout=120)
        assert (runner.places, runner.sharing) == (3, 3)
        numbers = list(runner.client.run(os.getpid).values())

        def kill() -> None:
            for count, number in zip((3, 9), numbers, strict=False):
                while len(list(out.glob("part-*"))) < count:
                    time.sleep(0.01)
                os.kill(number, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        report = clew.map_files(model, [data], out, part_rows=100, scheduler=cluster.address)
        killer.join()
        runner.close()
    assert report.new_rows == 4000
    found = pq.read_table(out)
    assert found["id"].to_pylist() == list(range(4000))
    np.testing.assert_allclose(np.array(found["y"].to_pylist()), x @ _WEIGHT, 1e-5, 1e-5)
