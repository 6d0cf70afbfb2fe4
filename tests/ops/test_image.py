"""Resampling, against ONNX Runtime."""

from __future__ import annotations

import itertools
import math

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import clew
from clew.ops.images.image import resize
from clew.ops.registry import Op


def _expected(x: np.ndarray, sizes: tuple[int, ...], **attributes: object) -> np.ndarray:
    node = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, sizes)],
        [helper.make_tensor("sizes", TensorProto.INT64, [4], sizes)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"x": x})[0]


_COORDINATES = ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")
_SIZES = ((1, 2, 8, 12), (1, 2, 3, 5), (1, 2, 1, 7), (1, 2, 4, 6))


def _actual(op: Op, x: np.ndarray, **attrs: object) -> np.ndarray:
    return op.run_reference([x], op.bind(attrs))


@pytest.mark.parametrize(("coordinates", "sizes"), list(itertools.product(_COORDINATES, _SIZES)))
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_interpolation(mode: str, coordinates: str, sizes: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal((1, 2, 4, 6)).astype("f4")
    expected = _expected(x, sizes, mode=mode, coordinate_transformation_mode=coordinates)
    actual = _actual(resize, x, shape=sizes, mode=mode, coordinates=coordinates)
    np.testing.assert_allclose(actual, expected, atol=2e-5)


@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize("sizes", [(1, 2, 8, 12), (1, 2, 12, 3)])
@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric"])
def test_nearest(coordinates: str, sizes: tuple[int, ...], rounding: str) -> None:
    x = np.random.default_rng(0).standard_normal((1, 2, 4, 6)).astype("f4")
    expected = _expected(
        x, sizes, mode="nearest", coordinate_transformation_mode=coordinates, nearest_mode=rounding
    )
    actual = _actual(resize, x, shape=sizes, coordinates=coordinates, rounding=rounding)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("scale", [6e-7, 1.5e-6, 3e-4, 0.7])
def test_scales_of_any_size(scale: float) -> None:
    """A scale is taken as it is given, however small."""
    size = math.ceil(3 / scale)
    x = np.arange(size, dtype="i4")
    actual = _actual(resize, x, shape=(3,), scales=(scale,), rounding="floor")
    expected = (np.arange(3) + 0.5) / scale - 0.5
    np.testing.assert_allclose(actual, np.floor(expected), atol=1 + 1e-6 * size)


@pytest.mark.parametrize("dtype", ["u1", "i1", "i4"])
@pytest.mark.parametrize("shape", [(22, 22), (57, 33), (13, 29)])
def test_images_of_one_color_keep_it(shape: tuple[int, int], dtype: str) -> None:
    """Sums are truncated: an error of rounding must not make them lower."""
    x = np.repeat(np.arange(100, dtype=dtype), 20 * 30).reshape(100, 20, 30)
    actual = _actual(resize, x, shape=(100, *shape), mode="linear")
    np.testing.assert_array_equal(actual, np.broadcast_to(x[:, :1, :1], actual.shape))


@pytest.mark.parametrize("dims", [("n", "h", "w", "c"), ("n", "h", "w", 3)])
@pytest.mark.parametrize("antialias", [0, 1])
def test_free_sizes_of_channels_last(dims: tuple[int | str, ...], antialias: int) -> None:
    """The lines of an image with its channels, which are short, are resampled as one axis."""
    attrs = {"mode": "linear", "axes": [1, 2], "antialias": antialias}
    node = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], **attrs)
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, dims),
            helper.make_tensor_value_info("sizes", TensorProto.INT64, [2]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    compiled = clew.compile(model)
    for sizes in ((10, 37), (9, 18), (5, 11)):
        x = np.random.default_rng(sizes).standard_normal((2, 9, 18, 3)).astype("f4")
        actual = compiled.run(x, np.array(sizes))["y"]
        moved = x.transpose(0, 3, 1, 2).copy()
        expected = _expected(moved, (2, 3, *sizes), mode="linear", antialias=antialias)
        np.testing.assert_allclose(actual, expected.transpose(0, 2, 3, 1), atol=2e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_free_sizes(mode: str) -> None:
    node = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], mode=mode)
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "c", "h", "w"]),
            helper.make_tensor_value_info("sizes", TensorProto.INT64, [4]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    compiled = clew.compile(model)
    # The last sizes change the number of channels or images, which are then resampled, too.
    for sizes in (*_SIZES, (1, 2, 9, 41), (1, 3, 8, 12), (3, 2, 5, 9)):
        x = np.random.default_rng(sizes).standard_normal((1, 2, 4, 6)).astype("f4")
        actual = compiled.run(x, np.array(sizes))["y"]
        if sizes[:2] == x.shape[:2]:
            expected = _expected(x, sizes, mode=mode)
        else:
            expected = _actual(resize, x, shape=sizes, mode=mode)
        np.testing.assert_allclose(actual, expected, atol=2e-5)
