"""Views that cut an array into equal parts, which are one step of a program."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto
from onnx import helper as H

import clew
from clew.runtime.program import Program, View


def _rows(first: int, *, axes: int) -> ModelProto:
    """The rows of `x[6, 4]` from `first` on, as a list; elements for one axis."""
    x = H.make_tensor_value_info("x", TensorProto.FLOAT, [6, 4] if axes == 2 else [6])
    y = H.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)
    nodes = [
        H.make_node("Constant", [], ["a"], value_ints=[first]),
        H.make_node("Constant", [], ["b"], value_ints=[6]),
        H.make_node("Slice", ["x", "a", "b"], ["part"]),
        H.make_node("SplitToSequence", ["part"], ["y"], axis=0, keepdims=0),
    ]
    graph = H.make_graph(nodes, "rows", [x], [y])
    return H.make_model(graph, opset_imports=[H.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize("first", [0, 3, 5])
@pytest.mark.parametrize("axes", [1, 2])
def test_a_list_of_rows_has_arrays_of_their_own(first: int, axes: int) -> None:
    x = np.random.default_rng(first).standard_normal((6, 4)[:axes]).astype(np.float32)
    kept = x.copy()
    model = clew.compile(_rows(first, axes=axes))
    rows = model(x)
    assert len(rows) == 6 - first
    for number, row in enumerate(rows):
        np.testing.assert_array_equal(row, kept[first + number])
    for row in rows:
        assert type(row) is np.ndarray
        row[...] = -1
        np.testing.assert_array_equal(x, kept)
    for number, row in enumerate(rows):
        row[...] = number
    assert [float(np.max(row)) for row in rows] == list(range(6 - first))


def test_the_views_of_rows_are_one_step() -> None:
    model = clew.compile(_rows(0, axes=2))
    program = model.served_for([np.zeros((6, 4), np.float32)]).program
    assert isinstance(program, Program)
    views = [step for step in program.instructions if isinstance(step, View)]
    assert len(views) == 6
    assert len(program._joined_steps) == len(program.instructions) - 5
    again = program.with_segments(program.instructions)
    assert vars(again)["_joined_steps"] == program._joined_steps  # not cut again at each length
