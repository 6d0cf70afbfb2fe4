"""Convolutions, pooling, regions, grids, resizing and training layers, compiled, against ONNX
Runtime (or the standard's reference where that has no kernel): forms that the node tests leave out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import clew
from clew.frontends.onnx import load
from clew.support.errors import ClewError

DRAW = np.random.default_rng(11)
ARRAY = np.ndarray[Any, Any]
NONE = np.array([], np.float32)


def draw(*shape: int, dtype: str = "f4") -> ARRAY:
    return DRAW.standard_normal(shape).astype(dtype)


def ints(*values: int) -> ARRAY:
    return np.array(values, np.int64)


def model_of(
    op: str, arrays: list[ARRAY | None], constants: int, opset: int, count: int, attrs: Any
) -> onnx.ModelProto:
    """Returns a model of one node whose last `constants` inputs are parameters."""
    names = [f"x{n}" if a is not None else "" for n, a in enumerate(arrays)]
    first = len(arrays) - constants
    known = [
        numpy_helper.from_array(a, f"x{n}")
        for n, a in enumerate(arrays)
        if a is not None and n >= first
    ]
    inputs = [
        helper.make_tensor_value_info(f"x{n}", helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in enumerate(arrays[:first])
        if a is not None
    ]
    outputs = [onnx.ValueInfoProto(name=f"y{n}") for n in range(count)]
    node = helper.make_node(op, names, [f"y{n}" for n in range(count)], **attrs)
    graph = helper.make_graph([node], "g", inputs, outputs, known)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def run(op: str, *arrays: ARRAY | None, constants: int = 0, opset: int = 21, count: int = 1,
        tolerance: float = 1e-4, off_by_one: float = 0.0, reference: bool = False,
        **attrs: Any) -> list[ARRAY]:  # fmt: skip
    """Compiles a model of one node and compares its results; returns them. Of integers, this share
    may be off by one: what lies next to a whole number, or a half, may go either way.
    """
    model = model_of(op, list(arrays), constants, opset, count, attrs)
    feeds = {f"x{n}": a for n, a in enumerate(arrays[: len(arrays) - constants]) if a is not None}
    found = clew.compile(load(model), threads=1, cache=False).run(feeds)
    if reference:
        wanted = ReferenceEvaluator(model).run(None, feeds)
    else:
        session = ort.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        wanted = session.run(None, feeds)
    results = [np.asarray(found[f"y{n}"]) for n in range(count)]
    for got, want in zip(results, wanted, strict=True):
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        if off_by_one:
            apart = np.abs(got.astype("i8") - want.astype("i8"))
            assert apart.max() <= 1
            assert np.mean(apart != 0) <= off_by_one
            continue
        np.testing.assert_allclose(
            got.astype("f8"), want.astype("f8"), rtol=tolerance, atol=tolerance
        )
    return results


REGIONS = np.array(
    [[0, 0, 7, 7], [1.5, -2, 19, 4.2], [2, 2, 2.5, 2.25], [4, 4, 1, 1], [-30, -30, 50, 50]], "f4"
)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("samples", [0, 2])
@pytest.mark.parametrize(
    ("opset", "more"),
    [
        (10, {}),
        (16, {"coordinate_transformation_mode": "half_pixel"}),
        (16, {"coordinate_transformation_mode": "output_half_pixel"}),
    ],
)
def test_regions_aligned(mode: str, samples: int, opset: int, more: Any) -> None:
    run("RoiAlign", draw(2, 3, 10, 12), REGIONS, ints(0, 1, 1, 0, 1), opset=opset, mode=mode,
        sampling_ratio=samples, output_height=3, output_width=2, spatial_scale=0.7,
        **more)  # fmt: skip


@pytest.mark.parametrize("mode", ["avg", "max"])
def test_regions_that_are_none_read_nothing_outside(mode: str) -> None:
    rois = np.array([[np.nan, np.inf, -np.inf, 1e38], [0, 0, 2, 2]], "f4")
    model = model_of(
        "RoiAlign",
        [draw(1, 1, 5, 5), rois, ints(7, -9)],
        0,
        16,
        1,
        {"output_height": 2, "output_width": 2, "mode": mode},
    )
    inputs = {"x0": draw(1, 1, 5, 5), "x1": rois, "x2": ints(7, -9)}
    options = {"threads": 1, "cache": False, "diagnostics": clew.Diagnostics(guard=True)}
    found = clew.compile(load(model), limits=clew.Limits(bounds="clamp"), **options).run(inputs)
    with pytest.raises(ClewError, match="image -9 is out of range"):
        clew.compile(load(model), **options).run({**inputs, "x2": ints(0, -9)})
    assert np.asarray(found["y0"]).shape == (2, 1, 2, 2)


def test_regions_pooled() -> None:
    batches = np.array([[0], [1], [1], [0], [1]], "f4")
    rois = np.concatenate([batches, np.round(REGIONS)], 1)
    run("MaxRoiPool", draw(2, 3, 10, 12), rois, pooled_shape=[3, 2], spatial_scale=0.5)


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_shape": [2, 3], "strides": [2, 1], "pads": [0, 1, 1, 0]},
        {"kernel_shape": [3, 3], "strides": [2, 2], "dilations": [2, 1], "ceil_mode": 1},
        {"kernel_shape": [3, 2], "auto_pad": "SAME_UPPER"},
    ],
)
@pytest.mark.parametrize("order", [0, 1])
def test_places_of_maxima(options: Any, order: int) -> None:
    for dtype in ("f4", "u1"):
        x = DRAW.integers(0, 9, (2, 3, 8, 6)).astype(dtype)
        run("MaxPool", x, opset=12, count=2, storage_order=order, **options)


def test_places_of_maxima_in_space() -> None:
    for order in (0, 1):
        run("MaxPool", draw(2, 2, 5, 4, 6), count=2, kernel_shape=[3, 2, 2], strides=[2, 1, 2],
            storage_order=order)  # fmt: skip
    run("MaxPool", draw(2, 3, 9), count=2, kernel_shape=[3], strides=[2], pads=[1, 1])


def test_unpooled_as_pooled() -> None:
    x = draw(2, 3, 8, 6)
    top, places = run("MaxPool", x, count=2, kernel_shape=[2, 2], strides=[2, 2])
    run("MaxUnpool", top, places, kernel_shape=[2, 2], strides=[2, 2])
    outside = np.array([[[[99, -5], [2**62, 3]]]])
    model = model_of("MaxUnpool", [draw(1, 1, 2, 2), outside], 0, 11, 1, {"kernel_shape": [2, 2]})
    inputs = {"x0": draw(1, 1, 2, 2), "x1": outside}
    with pytest.raises(ClewError, match="is out of range for axis 0 of size 9"):
        clew.compile(load(model), cache=False, diagnostics=clew.Diagnostics(guard=True)).run(inputs)
    found = clew.compile(
        load(model),
        limits=clew.Limits(bounds="clamp"),
        cache=False,
        diagnostics=clew.Diagnostics(guard=True),
    ).run(inputs)
    assert np.asarray(found["y0"]).shape == (1, 1, 3, 3)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_norms_of_windows(p: int) -> None:
    x = draw(2, 3, 9, 8)
    run("LpPool", x, opset=18, p=p, kernel_shape=[3, 2], strides=[2, 3], ceil_mode=1)
    run("LpPool", x, opset=18, p=p, kernel_shape=[3, 3], pads=[1, 0, 0, 1], dilations=[2, 1])
    run("GlobalLpPool", x, p=p)


def test_average_of_a_version_without_padding() -> None:
    x = draw(1, 2, 7, 7)
    run("AveragePool", x, opset=7, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    run("AveragePool", x, opset=19, kernel_shape=[3, 3], strides=[3, 2], dilations=[2, 1],
        ceil_mode=1, count_include_pad=1, pads=[1, 0, 0, 1])  # fmt: skip


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_a_window_that_sticks_out_of_a_small_image(op: str) -> None:
    x = np.arange(4, dtype="f4").reshape(1, 1, 2, 2)
    options = {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}
    model = model_of(op, [x], 0, 19, 1, options)
    found = np.asarray(clew.compile(load(model), cache=False).run({"x0": x})["y0"])
    np.testing.assert_array_equal(found, [[[[3.0 if op == "MaxPool" else 1.5]]]])


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize(("groups", "offset_groups"), [(1, 1), (2, 2), (1, 4)])
def test_deformable_convolution(mask: bool, groups: int, offset_groups: int) -> None:
    n, taps = (4, 6), 9
    run("DeformConv", draw(2, 4, 6, 7), draw(6, 4 // groups, 3, 3),
        draw(2, offset_groups * taps * 2, *n), draw(6),
        draw(2, offset_groups * taps, *n) if mask else None, opset=19, group=groups,
        offset_group=offset_groups, pads=[0, 1, 0, 2], dilations=[1, 2])  # fmt: skip


def test_deformable_convolution_without_offsets_is_a_convolution() -> None:
    x, weight = draw(1, 2, 3, 4, 5), draw(3, 2, 2, 2, 2)
    offset = np.zeros((1, 24, 2, 3, 4), "f4")
    model = model_of("DeformConv", [x, weight, offset], 0, 19, 1, {})
    feeds = {"x0": x, "x1": weight, "x2": offset}
    found = np.asarray(clew.compile(load(model), cache=False).run(feeds)["y0"])
    (wanted,) = run("Conv", x, weight)
    np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "u1"])
def test_columns_folded(dtype: str) -> None:
    x = DRAW.integers(0, 5, (2, 18, 6)).astype(dtype)
    options = {"strides": [2, 2], "pads": [0, 0, 1, 0]}
    run("Col2Im", x, ints(5, 7), ints(3, 3), constants=2, reference=True, **options)


@pytest.mark.parametrize("weight_dtype", ["u1", "i1"])
@pytest.mark.parametrize("channels", [False, True])
def test_quantized_convolution(weight_dtype: str, channels: bool) -> None:
    x, w = (DRAW.integers(0, 100, s) for s in ((1, 3, 7, 7), (4, 3, 3, 3)))
    x, w = x.astype("u1"), w.astype(weight_dtype)
    scale = DRAW.uniform(0.01, 0.04, 4 if channels else ()).astype("f4")
    zero = np.full(scale.shape, 3, weight_dtype)
    if channels:
        zero[:] = 0  # ONNX Runtime wants one zero point
    factors = [np.array(v, "f4") for v in (0.03, 0.7)]
    run("QLinearConv", x, factors[0], np.array(5, "u1"), w, scale, zero, factors[1],
        np.array(4, "u1"), DRAW.integers(-500, 500, 4).astype("i4"), pads=[1, 1, 1, 1])  # fmt: skip
    run("ConvInteger", x, w, np.array(7, "u1"), np.array(3, weight_dtype), strides=[2, 1],
        pads=[1, 0, 1, 2])  # fmt: skip
    run("ConvInteger", x[..., 0], w[..., 0])


def test_a_zero_point_for_each_filter() -> None:
    x = DRAW.integers(0, 255, (1, 2, 5, 5)).astype("u1")
    w = DRAW.integers(0, 255, (3, 2, 2, 2)).astype("u1")
    zeros = np.array([1, 7, 200], "u1")
    model = model_of("ConvInteger", [x, w, np.array(9, "u1"), zeros], 0, 10, 1, {})
    feeds = {"x0": x, "x1": w, "x2": np.array(9, "u1"), "x3": zeros}
    found = np.asarray(clew.compile(load(model), cache=False).run(feeds)["y0"])
    exact = w.astype("f4") - zeros.reshape(3, 1, 1, 1).astype("f4")
    (wanted,) = run("Conv", x.astype("f4") - np.float32(9), exact)
    np.testing.assert_array_equal(found, wanted.astype("i4"))


@pytest.mark.parametrize(
    "coordinates",
    ["half_pixel", "pytorch_half_pixel", "half_pixel_symmetric", "asymmetric", "align_corners"],
)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resize(coordinates: str, mode: str) -> None:
    options = {"mode": mode, "coordinate_transformation_mode": coordinates}
    scales = np.array([1, 1, 1.75, 0.5], "f4")
    run("Resize", draw(1, 2, 5, 7), NONE, scales, constants=2, opset=19, **options)
    run("Resize", draw(1, 2, 5, 7), NONE, NONE, ints(1, 2, 9, 4), constants=3, opset=19, **options)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("outside", [0, 1])
def test_resize_without_aliases(mode: str, outside: int) -> None:
    for scales in ([1, 1, 0.6, 0.4], [1, 1, 0.3, 1.4]):
        run("Resize", draw(1, 2, 8, 7), None, np.array(scales, "f4"), constants=1, opset=19,
            mode=mode, antialias=1, exclude_outside=outside, reference=True)  # fmt: skip


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("known", [1, 3])
def test_resize_of_a_part(mode: str, known: int) -> None:
    roi = np.array([0, 0, 0.21, -0.33, 1, 1, 0.93, 1.27], "f4")
    options = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 9.0}
    for sizes in (ints(1, 2, 4, 6), ints(1, 2, 1, 6)):
        run("Resize", draw(1, 2, 5, 7), roi, None, sizes, constants=known, opset=19, mode=mode,
            **options)  # fmt: skip


def test_resize_by_what_a_run_tells() -> None:
    x = draw(3, 2, 5, 7)
    run("Resize", x, None, None, ints(3, 2, 9, 9), opset=19, mode="linear")
    run("Resize", x, None, None, ints(9, 4), opset=19, mode="linear", axes=[3, 2])
    run("Resize", x, None, np.array([1, 1, 2, 0.5], "f4"), opset=19, mode="linear")
    run("Resize", x[:0], None, np.array([1, 1, 2, 0.5], "f4"), constants=1, opset=19)


@pytest.mark.parametrize("known", [1, 0])
def test_sizes_of_resize_are_products_in_single_precision(known: int) -> None:
    """In f64, 10 times 0.7 as an f32 would be less than 7."""
    scales = np.array([1, 1, 0.7, 1.3], "f4")
    run("Resize", draw(1, 2, 10, 50), None, scales, constants=known, opset=19, mode="linear")


def test_resize_of_integers() -> None:
    scales = np.array([1, 1, 2, 1.7], "f4")
    for dtype in ("u1", "i1", "i4"):
        x = DRAW.integers(0, 120, (1, 2, 5, 7)).astype(dtype)
        run("Resize", x, NONE, scales, constants=2, opset=13, mode="linear", off_by_one=0.05)
        run("Resize", x, NONE, scales, constants=2, opset=13, mode="cubic", reference=True,
            off_by_one=0.05)  # fmt: skip


def test_resize_of_version_10_takes_the_element_above_when_it_shrinks() -> None:
    run("Resize", draw(1, 1, 7, 9), np.array([1, 1, 0.6, 0.6], "f4"), constants=1, opset=10)
    run("Resize", draw(1, 1, 7, 9), np.array([1, 1, 2, 0.6], "f4"), constants=1, opset=10)


@pytest.mark.parametrize("align", [0, 1])
def test_affine_grid(align: int) -> None:
    run("AffineGrid", draw(2, 2, 3), ints(2, 3, 5, 4), opset=20, align_corners=align)
    run("AffineGrid", draw(2, 3, 4), ints(2, 3, 2, 5, 4), constants=1, opset=20,
        align_corners=align)  # fmt: skip


@pytest.mark.parametrize("dtype", ["f4", "i8", "?"])
def test_center_crop_pad(dtype: str) -> None:
    x = DRAW.integers(0, 2, (4, 7, 3)).astype(dtype)
    run("CenterCropPad", x, ints(6, 4, 3), opset=18, reference=True)
    run("CenterCropPad", x, np.array([5, 4], "i4"), opset=18, axes=[1, -1], reference=True)


def test_batch_normalization_in_training() -> None:
    statistics = [DRAW.uniform(0.5, 1.5, 3).astype("f4") for _ in range(4)]
    run("BatchNormalization", draw(4, 3, 5), *statistics, opset=15, count=3, training_mode=1,
        momentum=0.8)  # fmt: skip
    run("BatchNormalization", draw(4, 3), *statistics, opset=15, count=3, training_mode=1)
    by_element = [DRAW.uniform(0.5, 1.5, (3, 2)).astype("f4") for _ in range(4)]
    run("BatchNormalization", draw(4, 3, 2), *by_element, opset=7, spatial=0)
    run("BatchNormalization", draw(4), *(s[:1] for s in statistics), opset=15)


def test_batch_normalization_of_mixed_dtypes() -> None:
    statistics = [DRAW.uniform(0.5, 1.5, 3).astype("f4") for _ in range(4)]
    run("BatchNormalization", draw(4, 3, 5, dtype="f2"), *statistics, opset=15, tolerance=2e-3,
        reference=True)  # fmt: skip


@pytest.mark.parametrize("constants", [0, 2])
def test_dropout_in_training(constants: int) -> None:
    x, on, off = draw(4, 5), np.array(True), np.array(False)
    ratio = np.array(0.3, "f4")
    run("Dropout", x, ratio, on, constants=constants, opset=13, count=2, seed=3, reference=True)
    run("Dropout", x, ratio, off, constants=constants, opset=13, count=2, reference=True)
    run("Dropout", x, np.array(0, "f4"), on, constants=constants, opset=13, count=2)


def test_dropout_without_a_seed_draws_anew() -> None:
    x = np.ones((8, 64), "f4")
    model = model_of("Dropout", [x, np.array(0.5, "f4"), np.array(True)], 2, 13, 1, {})
    compiled = clew.compile(load(model), threads=1, cache=False)
    first, second = (np.array(compiled.run({"x0": x})["y0"]) for _ in range(2))
    assert set(np.unique(first)) == {0.0, 2.0}
    assert not np.array_equal(first, second)


def test_statistics_of_layer_norm_are_f32() -> None:
    x, scale = draw(2, 3, 4, dtype="f2"), draw(4, dtype="f2")
    run("LayerNormalization", x, scale, opset=17, count=3, tolerance=2e-3)


def test_integers_shrunk_and_bent() -> None:
    x = DRAW.integers(-5, 5, (4, 5)).astype("i4")
    run("Shrink", x, opset=9, lambd=1.5, bias=1.5)
    run("PRelu", x, np.array([1, 2, 3, 0, 2], "i4"), opset=16)


BAD: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("MaxPool", [draw(1, 1, 5, 5)], {"kernel_shape": [0, 2]}),
    ("MaxPool", [draw(1, 1, 5, 5)], {"kernel_shape": [6, 6]}),
    ("MaxPool", [draw(1, 1, 5, 5)], {"kernel_shape": [2, 2], "pads": [-1, 0, 0, 0]}),
    ("AveragePool", [draw(1, 1, 5, 5)], {"kernel_shape": [2, 2], "strides": [0, 1]}),
    ("LpPool", [draw(1, 1, 5, 5)], {"kernel_shape": [2, 2], "p": 0}),
    ("Conv", [draw(1, 4, 5, 5), draw(6, 2, 3, 3)], {"group": 3}),
    ("Conv", [draw(1, 4, 5, 5), draw(6, 4, 3, 3)], {"pads": [-1] * 4}),
    ("ConvTranspose", [draw(1, 4, 5, 5), draw(4, 2, 3, 3)], {"output_shape": [3]}),
    ("ConvTranspose", [draw(1, 4, 5, 5), draw(4, 2, 3, 3)], {"output_padding": [-1, -1]}),
    ("DeformConv", [draw(1, 2, 4, 4), draw(3, 2, 2, 2), draw(1, 8, 3, 3)], {"group": 0}),
    ("DeformConv", [draw(1, 2, 4, 4), draw(3, 2, 2, 2), draw(1, 7, 3, 3)], {}),
    ("Col2Im", [draw(1, 6, 4), ints(5, -1), ints(2, 1)], {}),
    ("RoiAlign", [draw(1, 1, 5, 5), draw(1, 4), ints(0)], {"sampling_ratio": 2**40}),
    ("RoiAlign", [draw(1, 1, 5, 5), draw(1, 4), ints(0)], {"output_height": -2}),
    ("MaxUnpool", [draw(1, 1, 2, 2), ints(0)], {"kernel_shape": [2, 2]}),
    ("Resize", [draw(1, 1, 4, 4), NONE, np.array([1, 1, np.nan, 2], "f4")], {}),
    ("Resize", [draw(1, 1, 4, 4), NONE, np.array([1, 1, np.inf, 2], "f4")], {}),
    ("Resize", [draw(1, 1, 4, 4), NONE, NONE, ints(4, 4)], {"axes": [2, 2]}),
    (
        "Resize",
        [draw(1, 1, 0, 4), NONE, NONE, ints(4, 4)],
        {"axes": [2, 3], "keep_aspect_ratio_policy": "not_larger"},
    ),
    ("Dropout", [draw(2, 3), np.array(1.5, "f4"), np.array(True)], {}),
    ("GridSample", [draw(1, 1, 0, 4), draw(1, 2, 2, 2)], {}),
    ("AffineGrid", [draw(1, 2, 3), ints(1, 1, -2, 3)], {}),
    ("CenterCropPad", [draw(4, 4), ints(-1, 2)], {}),
]


@pytest.mark.parametrize(("op", "arrays", "attrs"), BAD)
def test_hostile_attributes_give_coded_errors(op: str, arrays: list[Any], attrs: Any) -> None:
    model = model_of(op, arrays, len(arrays) - 1, 20, 1, attrs)
    shapes = {"x0": arrays[0].shape} if 0 in arrays[0].shape else None  # 0 would be any size
    with pytest.raises(ClewError) as caught:
        clew.compile(load(model, inputs=shapes), cache=False)
    assert caught.value.code in ("I304", "M012", "T103", "T107", "T108", "T110", "U005")
