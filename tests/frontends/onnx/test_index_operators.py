"""Scatters, reversals, largest elements, and what else goes by index."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import clew
from clew.runtime.program import RunHost

from .one_node import RNG, agrees, compiled, draw, fails, model, run


@pytest.mark.parametrize("dtype", ["f4", "f2", "f8", "i8", "u1", "i4"])
@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatter(dtype, reduction):
    x, few = (np.arange(20).reshape(4, 5) % 7).astype(dtype), np.array([3, 1, 2, 2], dtype)
    spots = np.array([[0, -1], [3, 1]])
    options = {"opset": 18, "reduction": reduction}
    inputs = {"x": x, "i": spots, "u": few.reshape(2, 2)}
    agrees("ScatterElements", inputs, axis=1, **options)
    agrees("ScatterND", {"x": x, "i": spots[[0, 1, 0]], "u": few[:3]}, **options)


def test_few_and_many_updates_are_kernels():
    made = model("ScatterND", {"x": draw(4, 5), "i": np.array([[1]]), "u": draw(1, 5)}, opset=18)
    small = compiled(made)
    many = {"x": draw(3000, 2), "i": RNG.integers(-3000, 3000, (3000, 1)), "u": draw(3000, 2)}
    large = compiled(model("ScatterND", many, opset=18))
    steps = [*small.build.program.instructions, *large.build.program.instructions]
    assert not any(isinstance(step, RunHost) for step in steps)
    assert [k.name for k in large.kernels] == ["scatter_nd_many"]
    wanted = many["x"].copy()
    for place, row in zip(many["i"][:, 0], many["u"], strict=True):
        wanted[place] = row
    np.testing.assert_array_equal(large.run(many)["y0"], wanted)


def test_indices_out_of_range_write_nothing_elsewhere():
    x, updates = draw(4), draw(2)
    inputs = {"x": x, "i": np.array([2**62, -(2**62)]), "u": updates}
    fails("I320", "ScatterElements", inputs, opset=18)
    found = run("ScatterElements", inputs, opset=18, bounds="clamp")[2][0]
    np.testing.assert_array_equal(found, [updates[1], x[1], x[2], updates[0]])
    cache = {"x": draw(2, 5, 1), "u": draw(2, 2, 1), "i": np.array([4, 2**62])}
    fails("I320", "TensorScatter", cache, opset=24, axis=1)
    found = run("TensorScatter", cache, opset=24, axis=1, bounds="clamp")[2][0]
    np.testing.assert_array_equal(found[:, :3], cache["x"][:, :3])
    np.testing.assert_array_equal(found[:, 3:], cache["u"])


def test_reverse_sequence():
    for dtype in ("f4", "i8", "u1", "?"):
        x = RNG.integers(0, 2, (4, 3, 2)).astype(dtype)
        inputs = {"x": x, "n": np.array([4, 1, 2])}
        agrees("ReverseSequence", inputs, opset=10, time_axis=0, batch_axis=1, by="onnxruntime")
    fails("M012", "ReverseSequence", inputs, opset=10, time_axis=1, batch_axis=1)


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_tensor_scatter(mode):
    start = np.array([5, 7]) if mode == "circular" else np.array([4, 1])
    inputs = {"x": draw(2, 3, 6, 2), "u": draw(2, 3, 2, 2), "i": start}
    agrees("TensorScatter", inputs, opset=24, mode=mode)


@pytest.mark.parametrize("largest", [0, 1])
def test_top_k_takes_nan_for_the_largest(largest):
    x = np.array([[1, np.nan, 3, -np.inf, np.nan, np.inf, 0.0, -0.0]], "f4")
    for known in ((), ("k",)):
        inputs = {"x": x, "k": np.array([6])}
        agrees("TopK", inputs, count=2, largest=largest, known=known)
    agrees("TopK", {"x": np.repeat(x, 100, 1), "k": np.array([9])}, count=2, largest=largest)


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [0, 1])
def test_positions_take_nan_for_the_extreme(op, last):
    x = np.array([[1, np.nan, 3, np.nan], [2, 2, 2, 2], [-np.inf] * 4], "f4")
    agrees(op, {"x": x}, opset=13, axis=1, select_last_index=last)


def test_nonzero_of_a_number_has_no_axes():
    agrees("NonZero", {"x": np.array(3.0, "f4")})
    agrees("NonZero", {"x": np.array(0.0, "f4")})


def test_conditions_after_the_end_are_left_out():
    inputs = {"x": draw(3, 4), "c": np.array([True] * 20)}
    agrees("Compress", inputs, opset=11, by="onnxruntime")
    agrees("Compress", inputs, opset=11, axis=0, by="onnxruntime")


@pytest.mark.parametrize("known", [(), ("start", "limit", "delta")])
@pytest.mark.parametrize("numbers", [(0.0, np.inf, 1.0), (0.0, np.nan, 1.0), (0, 2**62, 1)])
def test_ranges_without_end(numbers, known):
    inputs = dict(zip(("start", "limit", "delta"), map(np.array, numbers), strict=True))
    budgeted = bool(known) and numbers[1] == 2**62
    fails("M006" if budgeted else "T107", "Range", inputs, known=known)


@pytest.mark.parametrize("known", [(), ("most",), ("most", "iou", "least")])
@pytest.mark.parametrize("center", [0, 1])
def test_non_max_suppression(known, center):
    """Limits are inputs or initializers, with one element; some are left out."""
    corners = RNG.random((2, 70, 4)).astype("f4")
    scores = (RNG.integers(0, 9, (2, 3, 70)) / 9).astype("f4")
    limits = {"most": np.array([5]), "iou": np.array([0.3], "f4"), "least": np.array([0.5], "f4")}
    options = {"known": known, "center_point_box": center, "by": "onnxruntime", "opset": 11}
    agrees("NonMaxSuppression", {"boxes": corners, "scores": scores, **limits}, **options)
    for missing in ("iou", "least"):
        given = {"boxes": corners, "scores": scores, **limits, missing: None}
        agrees("NonMaxSuppression", given, **options)
    found = run("NonMaxSuppression", {"boxes": corners, "scores": scores}, opset=11)[2][0]
    assert found.shape == (0, 3)
    fails("M012", "NonMaxSuppression", {
        "boxes": corners, "scores": scores, "most": np.array([1, 2]),
    }, known=("most",), opset=11)  # fmt: skip


def test_limits_of_suppression_are_no_part_of_a_build():
    """They differ from call to call, and nothing is compiled again."""
    shapes = {"boxes": (1, 40, 4), "scores": (1, 2, 40)}
    first = {name: RNG.random(shape).astype("f4") for name, shape in shapes.items()}
    limits = {"most": np.array(5), "iou": np.array(0.3, "f4"), "least": np.array(0.5, "f4")}
    made = compiled(model("NonMaxSuppression", {**first, **limits}, opset=11))
    counts = set()
    for most in (0, 1, 5, 1 << 62):
        for iou in (0.0, 0.4, 1.0):
            values = {"iou": np.array(iou, "f4"), "least": np.array(iou / 2, "f4")}
            counts.add(len(made.run({**first, **values, "most": np.array(most)})["y0"]))
    assert len(counts) > 5
    assert made.builds_made == 1


@pytest.mark.parametrize(
    ("axis", "size", "count", "op"),
    [
        (1, 8, 5, "top_k"), (1, 4000, 1, "ranked"), (-2, 8, 5, "ranked"), (0, 17, 5, "top_k"),
        (0, 17, 1, "ranked"),
    ],
)  # fmt: skip
def test_rows_are_sorted_unless_one_element_is_wanted_or_they_are_strided(
    axis: int, size: int, count: int, op: str
) -> None:
    shape, result = ([size, 3], [count, 3]) if axis != 1 else ([3, size], [3, count])
    made = onnx.helper.make_model(
        onnx.helper.make_graph(
            [onnx.helper.make_node("TopK", ["x", "k"], ["v", "i"], axis=axis)],
            "top",
            [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
            [
                onnx.helper.make_tensor_value_info("v", onnx.TensorProto.FLOAT, result),
                onnx.helper.make_tensor_value_info("i", onnx.TensorProto.INT64, result),
            ],
            [onnx.numpy_helper.from_array(np.array([count]), "k")],
        ),
        opset_imports=[onnx.helper.make_opsetid("", 17)],
        ir_version=8,
    )
    assert ("top_k_ranked(" in str(clew.load(made))) == (op == "ranked")
