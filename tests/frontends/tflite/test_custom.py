"""Custom operators: MediaPipe's, in NumPy as their kernels compute them, and those of users."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import clew
from clew import te
from clew.frontends.tflite.file.flatbuffer import Damaged
from clew.frontends.tflite.file.flexbuffer import flexible as read
from clew.frontends.tflite.loader import load
from clew.ir.interpret import interpret
from clew.ir.types import from_numpy
from clew.ops import registry
from clew.support.errors import ClewError
from tflite_files import Graph
from tflite_suite.flexbuffers import flexible

from .litert import draw


def run(
    op: str,
    values: Sequence[np.ndarray],
    results: Sequence[Sequence[int]],
    options: bytes = b"",
    version: int = 1,
) -> list[np.ndarray]:
    """Returns the results of one operator."""
    graph = Graph()
    operands = [graph.input(f"x{n}", v.shape, from_numpy(v.dtype)) for n, v in enumerate(values)]
    named = [(f"y{n}", shape, "f32") for n, shape in enumerate(results)]
    outputs = graph.operator(op, operands, named, version=version, custom=options)
    feed = {f"x{n}": v for n, v in enumerate(values)}
    return list(interpret(load(graph.file(outputs)), feed).values())


@pytest.mark.parametrize("padding", [1, 2])
def test_transposed_convolution_with_a_bias(padding: int) -> None:
    image, weight, bias = draw(1, 1, 3, 4, 2), draw(2, 3, 3, 3, 2), draw(3, 3)
    total = [max(0, 3 - (n - 1) % 2 - 1) if padding == 1 else 0 for n in (3, 4)]
    sides = [2 * (n - 1) + 3 - t for n, t in zip((3, 4), total, strict=True)]
    expected = np.zeros((1, *sides, 3)) + bias
    for y, x, ky, kx in np.ndindex(3, 4, 3, 3):
        row, column = 2 * y - total[0] // 2 + ky, 2 * x - total[1] // 2 + kx
        if 0 <= row < sides[0] and 0 <= column < sides[1]:
            expected[0, row, column] += weight[:, ky, kx] @ image[0, y, x]
    options = struct.pack("<4i", padding, 2, 2, 0)
    (found,) = run("Convolution2DTransposeBias", [image, weight, bias], [()], options)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_pools_with_places_and_back() -> None:
    image = draw(1, 1, 4, 6, 2)
    options = struct.pack("<6i", 1, 2, 2, 2, 2, 0)
    best, place = run("MaxPoolingWithArgmax2D", [image], [(), ()], options)
    blocks = image.reshape(1, 2, 2, 3, 2, 2).transpose(0, 1, 3, 5, 2, 4).reshape(1, 2, 3, 2, 4)
    np.testing.assert_array_equal(best, blocks.max(-1))
    np.testing.assert_allclose(place, blocks.argmax(-1) + 0.1, rtol=1e-6)
    (back,) = run("MaxUnpooling2D", [best, place], [()], options)
    spread = best.repeat(2, axis=1).repeat(2, axis=2)
    np.testing.assert_array_equal(back, np.where(spread == image, image, 0))


def _matrix(points: np.ndarray, options: Mapping[str, Any]) -> np.ndarray:
    """Returns Landmarks2TransformMatrix in f64."""
    left, right = (points[options[f"{side}_rotation_idx"], :2] for side in ("left", "right"))
    turn = options["target_rotation_radians"] - np.arctan2(*(right - left)[::-1])

    def rotation(angle: float) -> np.ndarray:
        made = np.eye(4)
        made[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
        return made

    chosen = points[list(options["subset_idxs"]), :2] @ rotation(turn)[:2, :2].T
    size, middle = np.ptp(chosen, axis=0), (chosen.max(0) + chosen.min(0)) / 2
    wanted = np.array([options["output_width"], options["output_height"]])
    shift, scale, back = np.eye(4), np.eye(4), np.eye(4)
    shift[:2, 3] = rotation(-turn)[:2, :2] @ middle
    scale[0, 0], scale[1, 1] = np.array([options["scale_x"], options["scale_y"]]) * size / wanted
    back[:2, 3] = -wanted / 2
    return shift @ rotation(-turn) @ scale @ back


def test_attention_on_parts_of_a_face() -> None:
    points, image = draw(1, 1, 5, 3, low=0, high=8), draw(2, 1, 9, 8, 2)
    given = {
        "left_rotation_idx": 0, "right_rotation_idx": 3, "target_rotation_radians": 0.2,
        "subset_idxs": [0, 1, 2, 4], "output_width": 4, "output_height": 3, "scale_x": 1.2,
        "scale_y": 1.1,
    }  # fmt: skip
    options = flexible(given)
    (matrix,) = run("Landmarks2TransformMatrix", [points], [(1, 4, 4)], options, 2)
    expected = _matrix(points[0].astype(float), given)
    np.testing.assert_allclose(matrix[0], expected, rtol=1e-4, atol=1e-4)
    (moved,) = run("TransformLandmarks", [points, matrix], [()], flexible({"dimensions": 3}), 2)
    places = points[0, :, :2] @ matrix[0, :2, :2].T + matrix[0, :2, 3]
    np.testing.assert_allclose(moved[0, :, :2], places, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(moved[..., 2], points[..., 2])
    flat = np.ascontiguousarray(points[..., :2])
    (moved,) = run("TransformLandmarks", [flat, matrix], [()], flexible({}), 2)
    np.testing.assert_allclose(moved[0], places, rtol=1e-4, atol=1e-4)
    (part,) = run("TransformTensorBilinear", [image, matrix], [(1, 3, 4, 2)], b"", 2)
    for row, column in np.ndindex(3, 4):
        x, y = matrix[0, :2, :2] @ [column + 0.5, row + 0.5] + matrix[0, :2, 3] - 0.5
        wanted = np.zeros(2)
        if 0 <= x <= 7 and 0 <= y <= 8:
            for dy, dx in np.ndindex(2, 2):
                at = min(int(y) + dy, 8), min(int(x) + dx, 7)
                wanted += image[0, at[0], at[1]] * abs(1 - dy - y % 1) * abs(1 - dx - x % 1)
        np.testing.assert_allclose(part[0, row, column], wanted, rtol=1e-3, atol=1e-4)


def test_operators_of_users() -> None:
    try:

        @clew.register_op("user.scaled_silu", tflite="ScaledSiLU")
        def scaled_silu(x: te.Tensor, *, scale: float = 1.0) -> te.Tensor:
            """`scale * x * sigmoid(x)`."""
            return te.compute(x.shape, lambda *i: scale * x[i] / (1.0 + te.call("exp", -x[i])))

        x = draw(1, 2, 3)
        (found,) = run("ScaledSiLU", [x], [(2, 3)], flexible({"scale": 1.5}))
        np.testing.assert_allclose(found, 1.5 * x / (1 + np.exp(-x)), rtol=1e-5)
        with pytest.raises(ClewError, match="already bound") as error:
            clew.register_op("user.other", tflite="ScaledSiLU")(lambda x: x)
        assert error.value.code == "T015"
    finally:
        registry._REGISTRY.pop("user.scaled_silu", None)


@pytest.mark.parametrize(("op", "hint"), [("FlexErf", "SELECT_TF_OPS"), ("Mine", "tflite='Mine'")])
def test_unknown_operators_are_named(op: str, hint: str) -> None:
    with pytest.raises(ClewError) as error:
        run(op, [draw(1, 2)], [(2,)])
    assert error.value.code == "U001"
    assert op in error.value.message
    assert hint in str(error.value.hint)


def test_options_by_name() -> None:
    given = {"a": 3, "b": 2.5, "c": True, "d": "text", "e": [1, -2, 300]}
    assert read(flexible(given)) == {**given, "e": (1, -2, 300)}
    data = flexible(given)
    rng = np.random.default_rng(0)
    for _ in range(300):
        damaged = bytearray(data)
        damaged[rng.integers(len(data))] = rng.integers(256)
        with suppress(Damaged):
            read(bytes(damaged))
