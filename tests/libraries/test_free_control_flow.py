"""Loops and branches in libraries with free sizes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import clew

from .c_programs import Array, message, needs, pointers, shared_library

pytestmark = needs("gcc", "nm")

_FLOAT, _INT, _BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def _value(name: str, kind: int, shape: list[Any]) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def _loop() -> Any:
    """Five iterations on `n` rows, which also stack their rows."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["s", "x"], ["t"]),
            helper.make_node("Tanh", ["t"], ["u"]),
            helper.make_node("Identity", ["c"], ["d"]),
            helper.make_node("Neg", ["u"], ["row"]),
        ],
        "body",
        [_value("i", _INT, []), _value("c", _BOOL, []), _value("s", _FLOAT, ["n", 4])],
        [_value("d", _BOOL, []), _value("u", _FLOAT, ["n", 4]), _value("row", _FLOAT, ["n", 4])],
    )
    node = helper.make_node("Loop", ["k", "", "x"], ["y", "rows"], body=body)
    outputs = {"y": ["n", 4], "rows": [5, "n", 4]}
    return message([node], {"x": ["n", 4]}, outputs, {"k": np.array(5)})


def _scan() -> Any:
    """As many iterations as the input has rows."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["s", "r"], ["t"]),
            helper.make_node("Tanh", ["t"], ["u"]),
            helper.make_node("Identity", ["u"], ["o"]),
        ],
        "body",
        [_value("s", _FLOAT, [4]), _value("r", _FLOAT, [4])],
        [_value("u", _FLOAT, [4]), _value("o", _FLOAT, [4])],
    )
    node = helper.make_node("Scan", ["s0", "x"], ["y", "rows"], body=body, num_scan_inputs=1)
    return message([node], {"s0": [4], "x": ["n", 4]}, {"y": [4], "rows": ["n", 4]})


def _lstm() -> Any:
    random = np.random.default_rng(0)
    weights = {
        "w": random.standard_normal((1, 32, 5)).astype(np.float32),
        "r": random.standard_normal((1, 32, 8)).astype(np.float32),
    }
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y", "h"], hidden_size=8)
    outputs = {"y": ["n", 1, 2, 8], "h": [1, 2, 8]}
    return message([node], {"x": ["n", 2, 5]}, outputs, weights)


def _branch() -> Any:
    then, other = (
        helper.make_graph(
            [helper.make_node(op, ["x"], [name])], name, [], [_value(name, _FLOAT, ["n", 4])]
        )
        for op, name in (("Exp", "t"), ("Neg", "e"))
    )
    node = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    return message([node], {"c": [], "x": ["n", 4]}, {"y": ["n", 4]}, kinds={"c": _BOOL})


def _call(
    model: Any, library: ctypes.CDLL, workspace: Array, feed: dict[str, Array], n: int
) -> Any:
    inputs = [feed[name].ctypes.data for name in model.input_names]
    wanted = model.run(feed)
    outputs = [np.full(array.shape, 77, array.dtype) for array in wanted.values()]
    fields = (ctypes.c_int64 * (len(inputs) + 1))(*inputs, n)
    code = library.net_run(fields, pointers(outputs), ctypes.c_void_p(workspace.ctypes.data))
    return code, outputs, list(wanted.values())


@pytest.mark.parametrize(
    ("make", "row"), [(_loop, (4,)), (_scan, (4,)), (_lstm, (2, 5)), (_branch, (4,))]
)
def test_results_have_the_bits_of_the_compiled_model(
    make: Any, row: Sequence[int], tmp_path: Path
) -> None:
    model = clew.compile(make(), sizes={"n": (1, 9)})
    made = model.export_c(tmp_path, "net")
    library = shared_library(made, "-lm")
    workspace = np.full(made.workspace_bytes, 0xAB, np.uint8)
    for n in (1, 9, 4):
        random = np.random.default_rng(n)
        drawn = {
            "x": random.standard_normal((n, *row)).astype(np.float32),
            "s0": random.standard_normal(4).astype(np.float32),
            "c": np.array(n % 2 == 1),
        }
        feed = {name: drawn[name] for name in model.input_names}
        code, found, wanted = _call(model, library, workspace, feed, n)
        assert code == 0
        for ours, theirs in zip(found, wanted, strict=True):
            assert ours.tobytes() == theirs.tobytes()
