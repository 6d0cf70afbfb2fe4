"""Inputs that do not fit a model are at fault themselves; a file is, where it is without them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import clew
from clew.explorer.failures import error_info
from clew.support.errors import ClewError

F32, I64 = TensorProto.FLOAT, TensorProto.INT64


def model(nodes: Any, inputs: Any, constants: Any = ()) -> ModelProto:
    infos = [helper.make_tensor_value_info(n, kind, shape) for n, kind, shape in inputs]
    result = helper.make_tensor_value_info("y", F32, None)
    graph = helper.make_graph(nodes, "g", infos, [result], list(constants))
    opset = helper.make_opsetid("", 18)
    return helper.make_model(graph, opset_imports=[opset], ir_version=9)


def node(op: str, inputs: list[str], **attributes: Any) -> Any:
    return helper.make_node(op, inputs, ["y"], name="layer", **attributes)


SHAPE = numpy_helper.from_array(np.array([2, 3]), "s")
RESHAPE = model([node("Reshape", ["x", "s"])], [("x", F32, ["n"])], [SHAPE])
RESHAPE_TO = model([node("Reshape", ["x", "s"])], [("x", F32, ["n"]), ("s", I64, [2])])
UNSQUEEZE = model([node("Unsqueeze", ["x", "axes"])], [("x", F32, None), ("axes", I64, [1])])
BAD = model([node("Relu", ["x"], alpha=1.0)], [("x", F32, ["n"])])


def failure(make: Any) -> ClewError:
    with pytest.raises(ClewError) as caught:
        make()
    assert caught.value.layer == "layer"
    return caught.value


def test_a_value_given_for_an_input_is_at_fault() -> None:
    error = failure(lambda: clew.load(RESHAPE_TO, constants={"s": np.array([2, -3])}))
    assert error.code == "I304"
    assert "the given inputs do not fit: Reshape has the size -3" in error.message
    assert error.inputs == "s [2] = [2, -3]"
    assert "constants={...}" in error.text()
    assert "--shape" in error.text("cli")
    assert "input shapes" in error_info(error).hint
    assert "export it again" not in str(error)


def test_the_value_of_a_run_is_at_fault() -> None:
    compiled = clew.compile(UNSQUEEZE, threads=1)
    error = failure(lambda: compiled(np.ones(5, np.float32), np.array([7])))
    assert error.code == "I304"
    assert "Unsqueeze axis 7 is out of range" in error.message
    assert "x [5] (declared [...])" in error.inputs
    assert "axes [1] = [7]" in error.inputs
    assert "export it again" not in str(error)
    assert compiled(np.ones(5, np.float32), np.array([1])).shape == (5, 1)


def test_a_shape_given_for_an_input_is_named() -> None:
    error = failure(lambda: clew.load(RESHAPE, inputs={"x": [5]}))
    assert error.code == "T108"
    assert error.inputs == "x [5] (declared [n])"
    assert "inputs={...} has shapes" in error.hint


def test_a_file_that_is_invalid_stays_so() -> None:
    for given in ({}, {"inputs": {"x": [5]}}):
        error = failure(lambda given=given: clew.load(BAD, **given))
        assert error.code == "M012"
        assert "export it again" in error.hint
