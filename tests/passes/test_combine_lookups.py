"""Lookups in parts of the same texts: one lookup, and the values of each."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import clew
from clew.passes.simplify import combine_lookups

CATEGORIES = (["a", "b", "c"], ["b", "ü", "", "a"], ["z"])


def table(encoder: str, columns: tuple[int, ...], width: int) -> onnx.ModelProto:
    """Returns a model that encodes columns of a table of texts."""
    nodes, held, parts = [], [], []
    for n, column in enumerate(columns):
        held.append(helper.make_tensor(f"i{n}", TensorProto.INT64, [1], [column]))
        nodes.append(helper.make_node("Gather", ["x", f"i{n}"], [f"c{n}"], axis=1))
        names = CATEGORIES[n % len(CATEGORIES)]
        if encoder == "OneHotEncoder":
            attrs: dict[str, Any] = {"cats_strings": names, "zeros": 1}
        else:
            values = [float(5 * n - k) for k in range(len(names))]
            attrs = {"keys_strings": names, "values_floats": values, "default_float": -0.5}
        encoded = helper.make_node(encoder, [f"c{n}"], [f"e{n}"], domain="ai.onnx.ml", **attrs)
        nodes.append(encoded)
        parts.append(f"e{n}")
    if len(parts) > 1:
        nodes.append(helper.make_node("Concat", parts, ["y"], axis=-1))
    else:
        nodes.append(helper.make_node("Identity", parts, ["y"]))
    x = helper.make_tensor_value_info("x", TensorProto.STRING, ["rows", width])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "table", [x], [y], held)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


@pytest.fixture
def lookups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list that gets the number of lookups of each group that is combined."""
    found: list[int] = []
    numbered = combine_lookups._Combiner._numbered

    def noted(self: Any, calls: Any, source: Any) -> Any:
        found.append(len(calls))
        return numbered(self, calls, source)

    monkeypatch.setattr(combine_lookups._Combiner, "_numbered", noted)
    return found


@pytest.mark.parametrize(
    ("encoder", "columns", "width", "combined"),
    [
        ("OneHotEncoder", (0, 1, 2), 3, [3]),
        ("LabelEncoder", (2, 0, 1, 0), 3, [4]),
        ("LabelEncoder", (-1, 0), 2, [2]),
        ("LabelEncoder", (1,), 2, []),
        ("LabelEncoder", (1, 0), 30, []),  # most columns are never looked up
    ],
)
def test_they_agree_with_onnx_runtime(
    encoder: str, columns: tuple[int, ...], width: int, combined: list[int], lookups: list[int]
) -> None:
    made = table(encoder, columns, width)
    reference = onnxruntime.InferenceSession(made.SerializeToString())
    compiled = clew.compile(made, threads=1, cache=False)
    rng = np.random.default_rng(len(columns))
    for rows in (1, 2, 40, 0):
        x = rng.choice(np.array(["a", "b", "ü", "", "none", "z"], object), (rows, width))
        (wanted,) = reference.run(None, {"x": x}) if rows else (None,)
        found = compiled.run({"x": x})["y"]
        if rows:
            np.testing.assert_array_equal(found, wanted)
        else:
            assert found.shape[0] == 0
    assert lookups[: len(combined)] == combined
    assert bool(lookups) == bool(combined)
