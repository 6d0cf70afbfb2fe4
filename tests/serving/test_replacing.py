"""Initializers that are inputs, too, are defaults that callers may replace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import clew
from clew.cli import app
from clew.support.errors import ClewError

F32 = np.float32
X = np.arange(4, dtype=F32)
W = np.array([10], F32)


def model(ir_version: int = 10, sizes: list[Any] | None = None) -> onnx.ModelProto:
    """Returns `y = reshape(x * w, s)`, with defaults for `w`, which comes first, and `s`."""
    info = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["m"], "mul"),
        helper.make_node("Reshape", ["m", "s"], ["y"], "reshape"),
    ]
    given = [
        info("w", TensorProto.FLOAT, [1] if sizes is None else sizes),
        info("x", TensorProto.FLOAT, ["n"]),
        info("s", TensorProto.INT64, [2]),
    ]
    values = [
        numpy_helper.from_array(np.array([4], F32), "w"),
        numpy_helper.from_array(np.array([1, -1]), "s"),
    ]
    result = info("y", TensorProto.FLOAT, ["a", "b"])
    graph = helper.make_graph(nodes, "g", given, [result], values)
    opsets = [helper.make_opsetid("", 21)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)


def agrees(compiled: clew.CompiledModel, **feed: Any) -> None:
    """Checks a call by name and one in order against ONNX Runtime."""
    session = ort.InferenceSession(model().SerializeToString())
    wanted = session.run(None, feed)[0]
    np.testing.assert_array_equal(compiled.run(feed)["y"], wanted)
    rest = {name: value for name, value in feed.items() if name != "x"}
    np.testing.assert_array_equal(compiled(feed["x"], **rest), wanted)


def test_calls_replace_defaults() -> None:
    compiled = clew.compile(model(), threads=1)
    assert compiled.input_names == ("x",)
    assert compiled.replaceable == ("w", "s")
    agrees(compiled, x=X)
    agrees(compiled, x=X, w=W)
    builds = compiled.builds_made
    agrees(compiled, x=X, w=3 * W)  # another value takes no other build
    assert compiled.builds_made == builds
    agrees(compiled, x=X, s=np.array([2, 2]))  # a value that decides the shape
    agrees(compiled, x=X, s=np.array([4, -1]))
    agrees(compiled, x=X, w=W, s=np.array([2, 2]))
    agrees(compiled, x=X)
    np.testing.assert_array_equal(compiled(X, w=W.astype(">f4")), [10 * X])


def test_values_that_do_not_fit_are_refused() -> None:
    compiled = clew.compile(model(), threads=1)
    for code, given in (
        ("I042", {"w": np.ones(2, F32)}),
        ("I043", {"w": np.ones(1)}),
        ("I041", {"v": W}),
    ):
        with pytest.raises(ClewError, match=code):
            compiled(X, **given)
    for ask in (
        compiled.profile,
        compiled.trace.verify,
        lambda *x, **w: compiled.tap("mul", *x, **w),
    ):
        with pytest.raises(ClewError, match=r"I041.*has a default value[^§]*inputs=\{'w': SHAPE\}"):
            ask(X, w=W)


def test_a_value_or_a_shape_when_compiling() -> None:
    fixed = clew.compile(model(), inputs={"w": W}, threads=1)
    np.testing.assert_array_equal(fixed(X), [10 * X])
    np.testing.assert_array_equal(fixed(X, w=2 * W), [20 * X])
    np.testing.assert_array_equal(
        clew.compile(clew.load(model(), constants={"w": W}), threads=1)(X), [10 * X]
    )
    opened = clew.compile(model(), inputs={"w": [1]}, threads=1)
    assert opened.input_names == ("w", "x")
    np.testing.assert_array_equal(opened(W, X), [10 * X])
    np.testing.assert_array_equal(opened(x=X), [4 * X])  # the default remains one
    for code, inputs in (
        ("I005", {"w": np.ones(3, F32)}),
        ("I005", {"w": np.ones(1)}),
        ("I006", {"x": np.ones(4, F32)}),
        ("I006", {"x": 4}),
        ("I004", {"v": [1]}),
    ):
        with pytest.raises(ClewError, match=code):
            clew.compile(model(), inputs=inputs)  # type: ignore[arg-type]
    assert clew.compile(model(), inputs={"x": np.array([4])}).inputs[0].shape == (4,)


def test_early_ir_versions_have_no_defaults() -> None:
    compiled = clew.compile(model(ir_version=3), threads=1)
    assert compiled.replaceable == ()
    with pytest.raises(ClewError, match="I041"):
        compiled(X, w=W)


def test_a_default_of_another_shape_than_the_given_one_is_no_default() -> None:
    compiled = clew.compile(model(sizes=["k"]), inputs={"w": [4]}, threads=1)
    np.testing.assert_array_equal(compiled(w=X, x=X), [X * X])
    with pytest.raises(ClewError, match="I041"):
        compiled.run({"x": X})


def test_saved_models_and_sessions(tmp_path: Path) -> None:
    compiled = clew.compile(model(), threads=1)
    compiled(X, w=W)
    compiled.save(tmp_path / "constant.clew")
    loaded = clew.load_compiled(tmp_path / "constant.clew")
    np.testing.assert_array_equal(loaded(X), [4 * X])
    with pytest.raises(ClewError, match="I041"):
        loaded(X, w=W)
    with pytest.raises(ClewError, match="I371"):
        compiled.session({"w": "y"})
    opened = clew.compile(model(), inputs={"w": [1]}, threads=1)
    opened.save(tmp_path / "input.clew")
    loaded = clew.load_compiled(tmp_path / "input.clew")
    np.testing.assert_array_equal(loaded.run(x=X)["y"], [4 * X])
    np.testing.assert_array_equal(loaded.run(x=X, w=W)["y"], [10 * X])


def test_modules_hold_their_defaults() -> None:
    module = clew.load(model())
    np.testing.assert_array_equal(clew.compile(module, threads=1)(X, w=W), [10 * X])
    sized = clew.compile(module, sizes={"n": 4}, threads=1)
    np.testing.assert_array_equal(sized(X, w=W), [10 * X])
    with pytest.raises(ClewError, match="I042"):
        sized(X[:2], w=W)
    unfused = clew.compile(module, threads=1).recompiled(opt_level=0)
    np.testing.assert_array_equal(unfused(X, w=W), [10 * X])


def test_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    onnx.save(model(), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", X.astype(">f4"))
    np.save(tmp_path / "w.npy", W)
    given = ["--input", f"x={tmp_path / 'x.npy'}", "--input", f"w={tmp_path / 'w.npy'}"]
    for extra in ([], ["--shape", "w=1"]):
        asked = ["run", str(tmp_path / "m.onnx"), *given, *extra, "--compare-onnxruntime", "--json"]
        with pytest.raises(SystemExit) as left:
            app.main(asked)
        out, err = capsys.readouterr()
        assert left.value.code == 0, err
        assert '"max": 30' in out
