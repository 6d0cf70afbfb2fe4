"""Sizes that only a run knows, as large as 64 bits hold: coded errors or empty results, never wrong
values.
"""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import clew

BOUNDED = clew.Budgets(run_bytes=1 << 24, tensor_bytes=1 << 24, run_operations=1 << 24)
NODES = {
    "Tile": [helper.make_node("Tile", ["x", "k"], ["t"])],
    "Expand": [helper.make_node("Expand", ["x", "k"], ["t"])],
    "ConstantOfShape": [helper.make_node("ConstantOfShape", ["k"], ["t"])],
    "Pad": [
        helper.make_node("Concat", ["zero", "k", "zero"], ["pads"], axis=0),
        helper.make_node("Pad", ["x", "pads"], ["t"]),
    ],
}
TOO_LARGE = [
    (2**62, 2**62),
    (2**63 - 1, 2),
    (2**62 + 1, 1),
    (2**62, 0),
    (2**32, 2**32),
    (2**31, 2**33),
    (0, 2**62),
]


def compiled(op):
    """Returns a model that sums the values of an operator, which its kernel never stores."""
    value = helper.make_tensor_value_info
    nodes = [*NODES[op], helper.make_node("ReduceSum", ["t"], ["y"], keepdims=0)]
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, [2, 1]), value("k", TensorProto.INT64, [2])],
        [value("y", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(np.array([0]), "zero")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    return clew.compile(model, threads=1, limits=BOUNDED)


@pytest.mark.parametrize("op", NODES)
def test_sizes_beyond_64_bits(op):
    model = compiled(op)
    x = np.ones((2, 1), np.float32)
    for k in TOO_LARGE:
        with pytest.raises(clew.ClewError) as caught:
            model(x, np.array(k))
        assert caught.value.code in ("T100", "T110", "C141"), (k, str(caught.value))
        assert "bug" not in str(caught.value)


@pytest.mark.parametrize("op", ["Tile", "ConstantOfShape"])
def test_a_long_axis_beside_an_empty_one(op):
    model = compiled(op)
    for k in [(2**40, 0), (0, 2**40), (2**31, 0)]:
        assert model(np.ones((2, 1), np.float32), np.array(k)) == 0


def test_more_elements_than_an_axis_has():
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("TopK", ["x", "k"], ["y", "places"])],
        "g",
        [value("x", TensorProto.FLOAT, [2, 3]), value("k", TensorProto.INT64, [1])],
        [value("y", TensorProto.FLOAT, None)],
    )
    opset = [helper.make_opsetid("", 17)]
    model = clew.compile(helper.make_model(graph, opset_imports=opset, ir_version=8), threads=1)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(model(x, np.array([2])), [[2, 1], [5, 4]])
    for k in (4, -1):
        with pytest.raises(clew.ClewError, match="T107"):
            model(x, np.array([k]))
