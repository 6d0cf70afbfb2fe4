"""Reductions over groups of channels, whose results all channels of the group read."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import clew
from clew import te
from clew.loop.interpret import interpret
from clew.loop.ir import loops
from clew.loop.lower import lower
from clew.machine.target import target_of
from clew.schedules import NO_REQUEST, RULES, schedule_kernel

WIDE = target_of("cpu-avx512")
F32 = TensorProto.FLOAT


def less_mean(x: te.Tensor, groups: int) -> te.Tensor:
    """Takes the mean of its group from each channel."""
    count, pixels = x.shape[1] // groups, x.shape[2]
    m, p = te.reduce_axis(count, "m"), te.reduce_axis(pixels, "p")
    total = te.compute(
        (x.shape[0], groups),
        lambda n, g: te.sum(x[n, g * te.size(count) + m, p], (m, p)),
        "total",
    )
    mean = te.compute(total.shape, lambda *i: te.call("tanh", total[i]), "mean")
    return te.compute(x.shape, lambda n, c, q: x[n, c, q] - mean[n, c // te.size(count)], "less")


@pytest.mark.parametrize(("channels", "groups", "pixels"), [(12, 3, 40), (8, 2, 1), (6, 6, 5)])
def test_groups_are_rows(channels: int, groups: int, pixels: int) -> None:
    x = te.placeholder((2, channels, pixels), "f32", "x")
    nest = lower("groups", [x], [less_mean(x, groups)])
    finished = schedule_kernel(nest, WIDE, RULES, NO_REQUEST).schedule.finished()
    (outer,) = (n for n in loops(finished.body) if n.kind == "parallel")
    assert outer.size == 2 * groups
    data = np.random.default_rng(0).standard_normal((2, channels, pixels)).astype(np.float32)
    total = data.reshape(2, groups, -1).sum(-1, dtype=np.float64)
    wanted = data - np.repeat(np.tanh(total), channels // groups, 1)[..., None]
    (found,) = interpret(finished, [data])
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def normalized(shape: tuple[Any, ...], groups: int) -> bytes:
    ones, zeros = (np.full(shape[1], value, np.float32) for value in (1, 0))
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("GroupNormalization", ["r", "s", "b"], ["y"], num_groups=groups),
    ]
    graph = helper.make_graph(
        nodes,
        "groups",
        [helper.make_tensor_value_info("x", F32, shape)],
        [helper.make_tensor_value_info("y", F32, None)],
        [onnx.numpy_helper.from_array(ones, "s"), onnx.numpy_helper.from_array(zeros, "b")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]).SerializeToString()


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("sizes", [(128, 64), ("h", "w"), (8192, 1)])
def test_long_sums_are_exact(groups: int, sizes: tuple[Any, Any]) -> None:
    """A chain of a million additions has an error of 4e-4."""
    x = np.random.default_rng(1).standard_normal((1, 128, 128, 64)).astype(np.float32)
    x = x.reshape(1, 128, *(size for size in sizes)) if sizes == (8192, 1) else x
    model = clew.compile(normalized((1, 128, *sizes), groups), threads=1)
    rows = np.maximum(x, 0).reshape(groups, -1).astype(np.float64)
    wanted = (rows - rows.mean(1, keepdims=True)) / np.sqrt(rows.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(model(x).reshape(groups, -1), wanted, atol=5e-6)
