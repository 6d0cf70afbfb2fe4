"""Sampling a grid, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from clew.ops.images.sample import grid_sample


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_grid_sample(mode: str, padding: str, align: bool) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((2, 3, 5, 4)).astype("f4")
    grid = rng.uniform(-2.2, 2.2, (2, 6, 7, 2)).astype("f4")
    node = helper.make_node(
        "GridSample", ["x", "g"], ["y"], mode=mode, padding_mode=padding, align_corners=int(align)
    )
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape),
            helper.make_tensor_value_info("g", TensorProto.FLOAT, grid.shape),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, 3, 6, 7))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    expected = session.run(None, {"x": x, "g": grid})[0]
    attrs = grid_sample.bind({"mode": mode, "padding": padding, "align_corners": align})
    np.testing.assert_allclose(grid_sample.run_reference([x, grid], attrs), expected, atol=2e-5)


def test_integers_beyond_the_range_are_clamped() -> None:
    x = np.zeros((1, 1, 6, 6), "u1")
    x[..., 3:] = 255
    grid = np.linspace(-1, 1, 64).astype("f4")
    grid = np.stack(np.meshgrid(grid, grid), -1)[None]
    attrs = grid_sample.bind({"mode": "cubic", "padding": "border"})
    real = grid_sample.run_reference([x.astype("f4"), grid], attrs)
    assert real.min() < 0
    assert real.max() > 255
    found = grid_sample.run_reference([x, grid], attrs)
    np.testing.assert_array_equal(found, real.clip(0, 255).astype("u1"))
