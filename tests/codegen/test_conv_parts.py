"""Convolutions of numbers in parts: native code behind guard pages against float64."""

from __future__ import annotations

import numpy as np
import pytest

import clew
import clew.ops
from clew.ir.expr import Constant, Function, Var
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.machine.target import host
from clew.ops.convolution.conv_parts import packed_weight
from clew.ops.convolution.stages import convolved
from clew.ops.registry import get_op

# batch, channels, height, width, filters, taps, stride, padding, dilation
SHAPES = [
    (1, 64, 56, 56, 64, 1, 1, 0, 1), (1, 32, 9, 7, 48, 3, 1, 1, 1), (2, 64, 14, 14, 64, 3, 2, 1, 1),
    (1, 96, 40, 33, 16, 3, 1, 1, 1), (1, 64, 7, 7, 80, 3, 1, 1, 1), (1, 48, 20, 20, 80, 5, 1, 2, 1),
    (1, 64, 16, 16, 64, 3, 1, 2, 2), (5, 32, 4, 6, 32, 1, 2, 0, 1), (1, 32, 1, 5, 32, 3, 1, 1, 1),
    (1, 32, 11, 70, 32, 3, 3, 1, 1), (1, 32, 12, 12, 32, 3, 2, 2, 2), (1, 16, 5, 5, 16, 3, 1, 0, 1),
    (1, 512, 14, 13, 224, 3, 1, 1, 1), (1, 128, 60, 60, 32, 3, 1, 1, 1),
]  # fmt: skip


def network(
    shape: tuple[int, ...], *, apart: bool = False
) -> tuple[Module, np.ndarray, np.ndarray, dict[str, tuple[int, ...]]]:
    """A convolution of parts with a tail, and its weight and attributes; with `apart`, the image in
    parts is a result as well, so that it is a kernel of its own.
    """
    batch, inner, height, width, filters, taps, stride, pad, dilation = shape
    draw = np.random.default_rng(inner + filters)
    weight = draw.standard_normal((filters, inner, taps, taps)).astype(np.float32)
    given = draw.standard_normal((batch, inner, height, width)).astype(np.float32)
    attrs = {
        "strides": (stride, stride),
        "padding": (pad, pad, pad, pad),
        "dilation": (dilation, dilation),
    }
    packed = Constant(np.ascontiguousarray(packed_weight(weight, 3)))
    x = Var("x", TensorType((batch, inner, height, width), "f32"))
    blocked = get_op("layout_transform")(x, src_layout="NCHW", dst_layout="NCHW16c")
    split = get_op("split_image")(get_op("nn.relu")(blocked), kernel=(taps, taps), **attrs)
    product = get_op("nn.conv2d_parts")(
        split, packed, image=(height, width), channels=filters, kernel=(taps, taps), **attrs
    )
    result = get_op("layout_transform")(
        get_op("nn.relu")(product), src_layout="NCHW16c", dst_layout="NCHW"
    )
    if apart:
        seen = get_op("cast")(split, dtype="f32")
        both = clew.ir.expr.Tuple([result, seen])
        return Module({"main": Function([x], both, {"outputs": ("y", "s")})}), weight, given, attrs
    return Module({"main": Function([x], result, {"outputs": ("y",)})}), weight, given, attrs


def exact(given: np.ndarray, weight: np.ndarray, attrs: dict[str, tuple[int, ...]]) -> np.ndarray:
    whole = {
        **attrs, "groups": 1, "channels": 0, "data_layout": "NCHW", "weight_layout": "OIHW",
        "out_layout": "",
    }  # fmt: skip
    data = np.maximum(given, 0).astype(np.float64)
    return np.maximum(convolved("HW", data, weight.astype(np.float64), whole), 0)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("side", ["start", "end"])
def test_native(shape: tuple[int, ...], side: str) -> None:
    module, weight, given, attrs = network(shape)
    found = [
        clew.compile(module, threads=threads, guard=side)(given)  # type: ignore[arg-type]
        for threads in (1, 2)
    ]
    np.testing.assert_array_equal(*found)
    wanted = exact(given, weight, attrs)
    assert np.abs(np.asarray(found[0]) - wanted).max() <= 1.5e-6 * np.abs(wanted).max()


def test_an_image_that_others_read_too_is_split_apart() -> None:
    module, weight, given, attrs = network(SHAPES[1], apart=True)
    compiled = clew.compile(module)
    assert not [k.name for k in compiled.kernels if "split_image_conv2d" in k.name]
    wanted = exact(given, weight, attrs)
    assert np.abs(compiled(given)[0] - wanted).max() <= 1.5e-6 * np.abs(wanted).max()


def test_an_image_changes_its_layout_before() -> None:
    compiled = clew.compile(network(SHAPES[0])[0])
    (ops,) = (k.ops for k in compiled.kernels if "split_image" in k.ops)
    assert "layout_transform" not in ops[: ops.index("split_image")]


def test_parts_of_an_image_are_the_image() -> None:
    draw = np.random.default_rng(5)
    image = (draw.standard_normal((1, 2, 3, 5, 16)) * 10.0 ** draw.integers(-9, 9)).astype("f4")
    image[0, 0, 0, 0, :4] = 3.4028235e38, -3.4028235e38, 0.0, np.nan
    x = Var("x", TensorType(image.shape, "f32"))
    split = get_op("cast")(get_op("split_image")(x, kernel=(1, 1)), dtype="f32")
    module = Module({"main": Function([x], split, {"outputs": ("y",)})})
    whole = np.asarray(clew.compile(module)(image)).sum(axis=5)[0, 0, 0, 0]
    pixels = image[0].transpose(1, 2, 0, 3).reshape(15, 32)
    np.testing.assert_array_equal(whole, pixels)


@pytest.mark.parametrize("shape", SHAPES[:4] + SHAPES[-2:], ids=str)
def test_the_rule_is_used_where_there_is_a_matrix_unit(shape: tuple[int, ...]) -> None:
    if host().tile_shape("bf16", "bf16") is None:
        pytest.skip("this machine has no matrix tiles")
    compiled = clew.compile(network(shape)[0])
    assert ("conv_parts",) in [k.rules for k in compiled.kernels]
