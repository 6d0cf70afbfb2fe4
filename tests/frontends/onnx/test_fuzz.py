"""Models damaged in their structure: what loads is a graph, everything else is a coded error."""

from __future__ import annotations

import random

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from clew.frontends.onnx import load
from clew.ir.module import Module
from clew.support.errors import ClewError

INTS = [-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 7, 100, 2**31, 2**40, 2**63 - 1]


def info(name, dtype=TensorProto.FLOAT, shape=(2, 3, 4)):
    return helper.make_tensor_value_info(name, dtype, shape)


def const(name, *values):
    return numpy_helper.from_array(np.array(values, np.int64), name)


def seed() -> ModelProto:
    """Returns a model with a bit of everything."""
    branch = [helper.make_node("Neg", ["a"], ["r"])]
    other = [helper.make_node("Abs", ["a"], ["r"])]
    out = [info("r", shape=None)]
    weights = [numpy_helper.from_array(np.ones((3, 2, 1), np.float32), "w")]
    weights += [const("shape", 0, 3, -1), const("one", 1), const("axis", 0), const("rows", 1, 1)]
    nodes = [
        helper.make_node("Conv", ["w", "w1"], ["c0"], kernel_shape=[1], group=1),
        helper.make_node("Reshape", ["x", "shape"], ["a"]),
        helper.make_node("If", ["c"], ["b"], then_branch=helper.make_graph(branch, "t", [], out),
                         else_branch=helper.make_graph(other, "e", [], out)),
        helper.make_node("Split", ["b", "rows"], ["s0", "s1"], axis=0),
        helper.make_node("Slice", ["s0", "axis", "one", "axis"], ["d"]),
        helper.make_node("Gather", ["d", "axis"], ["e"], axis=1),
        helper.make_node("Unsqueeze", ["e", "one"], ["f"]),
        helper.make_node("ReduceSum", ["f", "axis"], ["g"], keepdims=0),
        helper.make_node("TopK", ["g", "one"], ["h", "i"], axis=-1),
        helper.make_node("Pad", ["h", "pads"], ["j"]),
        helper.make_node("Softmax", ["j"], ["k"], axis=-1),
        helper.make_node("MaxPool", ["k"], ["y"], kernel_shape=[1], strides=[1]),
    ]  # fmt: skip
    weights += [const("pads", 0, 0, 0, 0, 0, 0)]
    weights.append(numpy_helper.from_array(np.ones((1, 2, 1), np.float32), "w1"))
    inputs = [info("x"), info("c", TensorProto.BOOL, ())]
    graph = helper.make_graph(nodes, "g", inputs, [info("y", shape=None)], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def damage(model: ModelProto, draw: random.Random) -> None:
    graph = model.graph
    node = draw.choice(graph.node)
    names = [n for other in graph.node for n in (*other.input, *other.output)] + ["", "gone"]
    match draw.randrange(8):
        case 0 if node.input:
            node.input[draw.randrange(len(node.input))] = draw.choice(names)
        case 1:
            node.op_type = draw.choice(graph.node).op_type
        case 2 if node.attribute:
            attribute = draw.choice(node.attribute)
            attribute.i = draw.choice(INTS)
            attribute.ints[:] = [draw.choice(INTS) for _ in attribute.ints]
        case 3:
            dims = draw.choice(graph.input).type.tensor_type.shape.dim
            dims.add().dim_value = draw.choice(INTS)
        case 4:
            tensor = draw.choice(graph.initializer)
            if tensor.data_type == TensorProto.INT64:
                size = len(tensor.raw_data) // 8
                values = np.array([draw.choice(INTS) for _ in range(size)], np.int64)
                tensor.raw_data = values.tobytes()
            else:
                tensor.dims[0] = draw.choice(INTS)
        case 5:
            node.input.append(draw.choice(names))
        case 6:
            node.output[draw.randrange(len(node.output))] = draw.choice(names)
        case _:
            model.opset_import[0].version = draw.randrange(5, 29)


def outcome(model: ModelProto) -> Module | ClewError:
    try:
        return load(model)
    except ClewError as error:
        return error


@pytest.mark.parametrize("part", range(4))
def test_damaged_structure(part: int) -> None:
    draw = random.Random(part)
    codes = set()
    for _ in range(150):
        model = seed()
        for _ in range(draw.choice([1, 1, 2])):
            damage(model, draw)
        found = outcome(model)
        codes.add(found.code if isinstance(found, ClewError) else "loaded")
    # The damage is varied enough to mean something.
    assert len(codes) > 5
