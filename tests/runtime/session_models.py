"""Models with state, and how the tests of sessions call them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import clew
from clew.support.errors import InputError

WIDTH, HEADS = 8, 2
HEAD = WIDTH // HEADS
KEY, VALUE = "past_key_values.0.key", "past_key_values.0.value"
Array = np.ndarray[Any, Any]


def weight(name: str, *shape: int) -> onnx.TensorProto:
    rng = np.random.default_rng(len(name) + sum(shape))
    return numpy_helper.from_array((0.3 * rng.standard_normal(shape)).astype(np.float32), name)


def ints(name: str, *values: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def floats(name: str, shape: list[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    weights: list[onnx.TensorProto],
    opset: int = 20,
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "graph", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def decoder() -> onnx.ModelProto:
    """A decoder step: attention over a cache that grows by the new positions."""
    node = helper.make_node
    nodes = []
    for part in "qkv":
        nodes += [
            node("MatMul", ["x", f"w{part}"], [f"{part}0"]),
            node("Reshape", [f"{part}0", "heads"], [f"{part}1"]),
            node("Transpose", [f"{part}1"], [part], perm=[0, 2, 1, 3]),
        ]
    nodes += [
        node("Concat", [KEY, "k"], ["present.0.key"], axis=2),
        node("Concat", [VALUE, "v"], ["present.0.value"], axis=2),
        node("Transpose", ["present.0.key"], ["turned"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "turned"], ["scores"]),
        node("Softmax", ["scores"], ["shares"], axis=-1),
        node("MatMul", ["shares", "present.0.value"], ["mixed"]),
        node("Transpose", ["mixed"], ["together"], perm=[0, 2, 1, 3]),
        node("Reshape", ["together", "flat"], ["rows"]),
        node("MatMul", ["rows", "wo"], ["logits"]),
    ]
    cache: list[int | str] = ["batch", HEADS, "past_seq", HEAD]
    longer: list[int | str] = ["batch", HEADS, "total_seq", HEAD]
    return model(
        nodes,
        [floats("x", ["batch", "seq", WIDTH]), floats(KEY, cache), floats(VALUE, cache)],
        [
            floats("logits", ["batch", "seq", 5]),
            floats("present.0.key", longer),
            floats("present.0.value", longer),
        ],
        [
            *(weight(f"w{part}", WIDTH, WIDTH) for part in "qkv"),
            weight("wo", WIDTH, 5),
            ints("heads", 0, 0, HEADS, HEAD),
            ints("flat", 0, 0, WIDTH),
        ],
    )


def cell(batch: int | str = 2) -> onnx.ModelProto:
    """A recurrent cell: `hn = tanh(x w + h u)`, `y = hn v`."""
    node = helper.make_node
    return model(
        [
            node("MatMul", ["x", "w"], ["a"]),
            node("MatMul", ["h", "u"], ["b"]),
            node("Add", ["a", "b"], ["c"]),
            node("Tanh", ["c"], ["hn"]),
            node("MatMul", ["hn", "v"], ["y"]),
        ],
        [floats("x", [batch, 3]), floats("h", [batch, 4])],
        [floats("y", [batch, 2]), floats("hn", [batch, 4])],
        [weight("w", 3, 4), weight("u", 4, 4), weight("v", 4, 2)],
    )


def stream() -> onnx.ModelProto:
    """A filter over a stream of blocks of 4 samples: it keeps the last 3 in a buffer."""
    node = helper.make_node
    return model(
        [
            node("Concat", ["buffer_in", "block"], ["all"], axis=2),
            node("Conv", ["all", "taps"], ["filtered"]),
            node("Slice", ["all", "first", "last", "axis"], ["buffer_out"]),
        ],
        [floats("block", [1, 1, 4]), floats("buffer_in", [1, 1, 3])],
        [floats("buffer_out", [1, 1, 3]), floats("filtered", [1, 1, 4])],
        [weight("taps", 1, 1, 4), ints("first", 4), ints("last", 7), ints("axis", 2)],
    )


def elementwise(
    inputs: dict[str, list[int | str]], outputs: dict[str, tuple[str, str]]
) -> onnx.ModelProto:
    """A model whose outputs are elementwise operators of an input: `{"y": ("Relu", "x")}`."""
    nodes = [helper.make_node(op, [given], [name]) for name, (op, given) in outputs.items()]
    return model(
        nodes,
        [floats(name, shape) for name, shape in inputs.items()],
        [floats(name, inputs[given]) for name, (_, given) in outputs.items()],
        [],
    )


def passing() -> onnx.ModelProto:
    """A model that passes values through: `kept` and `shown` are `x`, `seen` is `h`."""
    shape: list[int | str] = [2, 3]
    node = helper.make_node
    return model(
        [
            node("Reshape", ["x", "as_is"], ["kept"]),
            node("Reshape", ["x", "as_is"], ["shown"]),
            node("Reshape", ["h", "turned"], ["seen"]),
        ],
        [floats("x", shape), floats("h", shape)],
        [floats("kept", shape), floats("shown", shape), floats("seen", [3, 2])],
        [ints("as_is", 2, 3), ints("turned", 3, 2)],
    )


def growing() -> onnx.ModelProto:
    """`next` is `x` without zeros: as long as the data say."""
    node = helper.make_node
    return model(
        [
            node("NonZero", ["x"], ["places"]),
            node("Reshape", ["places", "flat"], ["row"]),
            node("Gather", ["x", "row"], ["next_m"]),
            node("Add", ["m", "x"], ["y"]),
        ],
        [floats("x", [3]), floats("m", [3])],
        [floats("y", [3]), floats("next_m", ["some"])],
        [ints("flat", -1)],
    )


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "decoder": decoder,
    "cell": cell,
    "cells": lambda: cell("batch"),
    "stream": stream,
}
_compiled: dict[str, clew.CompiledModel] = {}


def compiled(name: str) -> clew.CompiledModel:
    if name not in _compiled:
        _compiled[name] = clew.compile(MODELS[name](), threads=1)
    return _compiled[name]


def loaded(name: str, folder: Path, *calls: tuple[Array, ...]) -> clew.LoadedModel:
    """Returns the model, saved after calls in a session, and loaded again."""
    session = compiled(name).session()
    for call in calls:
        session(*call)
    compiled(name).save(folder / f"{name}.clew")
    return clew.load_compiled(folder / f"{name}.clew", threads=1)


def failing(code: str, work: Callable[[], object]) -> str:
    with pytest.raises(InputError) as caught:
        work()
    assert caught.value.code == code
    return str(caught.value)
