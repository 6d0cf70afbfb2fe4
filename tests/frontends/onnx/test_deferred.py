"""Models whose inputs decide axes, counts or shapes: imported when they are called."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

import clew
from clew.cli.app import app
from clew.support.errors import ClewError, InputError, UnsupportedError

F32, I64 = TensorProto.FLOAT, TensorProto.INT64


def info(name, shape, kind=F32):
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes, inputs, outputs=("y",), opset=21):
    results = [helper.make_tensor_value_info(n, F32, None) for n in outputs]
    graph = helper.make_graph(nodes, "g", inputs, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def node(op, inputs, outputs=("y",), **attributes):
    return helper.make_node(op, inputs, list(outputs), name=op, **attributes)


X = np.arange(12, dtype=np.float32).reshape(3, 4)
SUM = model(
    [node("ReduceSum", ["x", "axes"], keepdims=0)], [info("x", [3, 4]), info("axes", [1], I64)]
)

# The number of axes that a late Squeeze leaves is known, which of them is not: what follows cannot
# be typed.
Z = X.reshape(1, 3, 1, 4)
SQUEEZE = model([node("Squeeze", ["x", "axes"])], [info("x", [1, 3, 1, 4]), info("axes", [1], I64)])


def test_an_axis_is_an_input():
    compiled = clew.compile(SUM, threads=1)
    for axis in (0, 1, -1, 0):
        np.testing.assert_allclose(compiled(X, np.array([axis])), X.sum(axis))
    assert len(compiled._chain.kept) == 3


def test_inputs_say_which_of_them_decide():
    compiled = clew.compile(SUM, threads=1)
    assert [i.decides for i in compiled.inputs] == [False, True]
    assert repr(compiled.inputs[1]) == "<axes: int64[1], its value decides sizes>"
    assert compiled.input_names == ("x", "axes")


def test_further_inputs_are_found_to_decide_when_the_first_is_known():
    made = model(
        [
            node("ReduceSum", ["x", "axes"], ["s"], keepdims=1),
            node("Tile", ["s", "n"], ["t"]),
            node("ReduceMax", ["t", "more"], keepdims=0),
        ],
        [info("x", [3, 4]), info("axes", [1], I64), info("n", [2], I64), info("more", [1], I64)],
    )
    compiled = clew.compile(made, threads=1)
    first = compiled(X, np.array([0]), np.array([2, 1]), np.array([0]))
    np.testing.assert_allclose(first, X.sum(0))
    assert [i.decides for i in compiled.inputs] == [False, True, True, True]
    second = compiled(X, np.array([1]), np.array([1, 5]), np.array([1]))
    np.testing.assert_allclose(second, X.sum(1))
    again = compiled(X, np.array([1]), np.array([2, 5]), np.array([0]))
    np.testing.assert_allclose(
        again, X.sum(1).max() * 0 + np.tile(X.sum(1, keepdims=True), (2, 5)).max(0)
    )


def test_module_and_kernels_come_with_the_first_call():
    compiled = clew.compile(SQUEEZE, threads=1)
    for ask in (lambda: compiled.module, lambda: compiled.kernels, lambda: compiled.trace.layers):
        with pytest.raises(InputError) as caught:
            ask()
        assert caught.value.code == "I044"
    assert compiled(Z, np.array([2])).shape == (1, 3, 4)
    assert compiled(Z, np.array([0])).shape == (3, 1, 4)
    assert compiled.module.input_names == ("x", "axes")
    assert compiled.trace.layer("Squeeze")


def test_load_refuses_and_says_what_to_do():
    with pytest.raises(UnsupportedError) as caught:
        clew.load(SQUEEZE)
    assert caught.value.code == "U002"
    assert "constants={'axes': ...}" in caught.value.hint
    module = clew.load(SQUEEZE, constants={"axes": np.array([2])})
    np.testing.assert_array_equal(clew.compile(module, threads=1)(Z), Z[:, :, 0])


def test_a_bad_value_is_refused_when_the_model_is_called():
    for made, given, good in ((SUM, X, 1), (SQUEEZE, Z, 2)):
        compiled = clew.compile(made, threads=1)
        with pytest.raises(ClewError):
            compiled(given, np.array([7]))
        assert compiled(given, np.array([good])) is not None


def test_an_input_without_a_shape():
    made = model([node("Relu", ["x"])], [helper.make_tensor_value_info("x", F32, None)])
    compiled = clew.compile(made, threads=1)
    for value in (X - 5, (X - 5).reshape(-1), np.float32(-1)):
        np.testing.assert_array_equal(compiled(value), np.maximum(value, 0))
    with pytest.raises(InputError) as caught:
        compiled(X.astype(np.float64))
    assert caught.value.code == "I043"


def test_data_do_not_decide():
    """A value that a run computes is nobody's input."""
    made = model(
        [node("NonZero", ["x"], ["n"]), node("Shape", ["n"], ["s"]),
         node("ReduceSum", ["x", "s"])], [info("x", [3, 4])]
    )  # fmt: skip
    compiled = clew.compile(made, threads=1)  # the layer waits for it within the run
    assert not any(i.decides for i in compiled.inputs)
    with pytest.raises(ClewError) as caught:
        compiled(np.ones((3, 4), np.float32))  # axes 2 and 12 of 2
    assert caught.value.code == "M012"


def test_unsupported_forms_are_refused_at_once():
    made = model(
        [node("Resize", ["x", "", "s"], mode="no such")], [info("x", [1, 1, 4, 4]), info("s", [4])]
    )
    with pytest.raises(ClewError):
        clew.compile(made)(np.zeros((1, 1, 4, 4), np.float32), np.ones(4, np.float32))


def test_saved_with_its_builds(tmp_path):
    compiled = clew.compile(SUM, threads=1)
    compiled(X, np.array([1]))
    compiled.save(tmp_path / "sum.clew")
    loaded = clew.load_compiled(tmp_path / "sum.clew")
    assert [i.decides for i in loaded.inputs] == [False, True]
    np.testing.assert_allclose(loaded(X, np.array([1])), X.sum(1))
    with pytest.raises(InputError) as caught:
        loaded(X, np.array([0]))
    assert caught.value.code == "I046"


def test_the_command_line_asks_for_the_value(tmp_path):
    path = tmp_path / "sum.onnx"
    path.write_bytes(SUM.SerializeToString())
    runner = CliRunner()
    result = runner.invoke(app, ["run", str(path), "--random"])
    assert result.exit_code != 0
    assert isinstance(result.exception, InputError)
    assert result.exception.code == "I061"
    np.save(tmp_path / "axes.npy", np.array([1]))
    given = ["run", str(path), "--random", "--input", f"axes={tmp_path / 'axes.npy'}"]
    assert runner.invoke(app, given).exit_code == 0
