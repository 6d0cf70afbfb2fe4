"""Convolutions of numbers in parts: native code behind guard pages against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clew
import clew.ops
from clew.ir.dims import SymDim
from clew.ir.expr import Constant, Function, Var
from clew.ir.module import Module
from clew.ir.types import TensorType, to_numpy
from clew.machine.target import host
from clew.ops.convolution.conv_parts import packed_weight
from clew.ops.convolution.stages import convolved
from clew.ops.registry import get_op
from clew.runtime.guard import GuardSide
from clew.runtime.makespan import makespan

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
    packed = Constant(packed_weight(weight, 3).astype(to_numpy("bf16")))
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
@pytest.mark.parametrize("side", GuardSide)
def test_native(shape: tuple[int, ...], side: GuardSide) -> None:
    module, weight, given, attrs = network(shape)
    found = [
        clew.compile(module, threads=threads, diagnostics=clew.Diagnostics(guard=side))(given)
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


def test_a_signal_has_work_for_many_threads() -> None:
    if host().tile_shape("bf16", "bf16") is None:
        pytest.skip("this machine has no matrix tiles")
    draw = np.random.default_rng(3)
    weight = (draw.standard_normal((96, 80, 1, 3)) / 16).astype(np.float32)
    given = draw.standard_normal((1, 80, 1, 1500)).astype(np.float32)
    x = Var("x", TensorType(given.shape, "f32"))
    attrs = {"strides": (1, 1), "padding": (0, 1, 0, 1), "dilation": (1, 1)}
    product = get_op("nn.relu")(
        get_op("nn.conv2d")(get_op("nn.relu")(x), Constant(weight), **attrs)
    )
    module = Module({"main": Function([x], product, {"outputs": ("y",)})})
    found = []
    for side, threads in zip(GuardSide, (1, 3), strict=True):
        compiled = clew.compile(module, threads=threads, diagnostics=clew.Diagnostics(guard=side))
        found.append(np.asarray(compiled(given)))
    (kernel,) = (k for k in compiled.kernels if "conv_parts" in k.rules)
    assert makespan(kernel.code.entries, 8).tasks >= 8
    np.testing.assert_array_equal(*found)
    wanted = exact(given, weight, attrs)
    assert np.abs(found[0] - wanted).max() <= 1.5e-6 * np.abs(wanted).max()


# channels, filters, taps, stride, padding (top, left, bottom, right), dilation
FREE = [
    (64, 64, 1, 1, (0, 0, 0, 0), 1), (48, 80, 1, 2, (0, 0, 0, 0), 1),
    (32, 16, 3, 1, (1, 1, 1, 1), 1), (64, 48, 3, 2, (1, 1, 1, 1), 1),
    (16, 32, 3, 2, (0, 0, 1, 1), 1), (32, 32, 3, 2, (1, 0, 2, 3), 1),
    (32, 64, 3, 1, (2, 2, 2, 2), 2), (32, 32, 3, 2, (3, 3, 3, 3), 3),
    (32, 32, 5, 3, (2, 2, 2, 2), 1), (32, 32, 2, 1, (0, 1, 0, 0), 1),
    (32, 32, 3, 3, (1, 1, 1, 1), 1), (32, 32, 3, 1, (0, 0, 0, 0), 1),
]  # fmt: skip
IMAGES = [(1, 1), (2, 1), (1, 3), (5, 4), (7, 40), (40, 7), (33, 31), (64, 65), (90, 130)]


def free_network(
    case: tuple[Any, ...], *, images: int | str = 1, residual: bool = False, sides: Any = ("h", "w")
) -> tuple[Module, np.ndarray, dict[str, tuple[int, ...]]]:
    """A convolution whose sizes are free, with costs that make it one of parts at all sizes."""
    inner, filters, taps, stride, padding, dilation = case
    draw = np.random.default_rng(inner + filters)
    weight = draw.standard_normal((filters, inner, taps, taps)).astype(np.float32)
    attrs = {"strides": (stride, stride), "padding": padding, "dilation": (dilation, dilation)}
    shape = tuple(SymDim.symbol(n) if isinstance(n, str) else n for n in (images, *sides))
    x = Var("x", TensorType((shape[0], inner, *shape[1:]), "f32"))
    blocked = get_op("layout_transform")(x, src_layout="NCHW", dst_layout="NCHW16c")
    panel = 32 if filters % 32 == 0 else 16
    packed = get_op("layout_transform")(
        Constant(weight), src_layout="OIHW", dst_layout=f"OIHW16i{panel}o"
    )
    in_parts = Constant(packed_weight(weight, 3).astype(to_numpy("bf16")))
    product = get_op("nn.conv2d_by_size")(
        get_op("nn.relu")(blocked), packed, in_parts,
        direct=(1 << 20, 1 << 20), split=(0, 0, 0, 0), channels=filters,
        weight_layout=f"OIHW16i{panel}o", **attrs,
    )  # fmt: skip
    if residual:
        product = get_op("add")(get_op("nn.relu")(product), product)
    result = get_op("layout_transform")(
        get_op("nn.relu")(product), src_layout="NCHW16c", dst_layout="NCHW"
    )
    return Module({"main": Function([x], result, {"outputs": ("y",)})}), weight, attrs


def fits(case: tuple[Any, ...], image: tuple[int, int]) -> bool:
    """Whether a window fits the padded image."""
    _, _, taps, _, (top, left, bottom, right), dilation = case
    reach = (taps - 1) * dilation + 1
    return image[0] + top + bottom >= reach and image[1] + left + right >= reach


def check_free(case: tuple[Any, ...], compiled: Any, images: int, weight: Any, attrs: Any) -> None:
    for image in IMAGES:
        if not fits(case, image):
            continue
        given = np.random.default_rng(3).standard_normal((images, case[0], *image))
        given = given.astype(np.float32)
        wanted, found = exact(given, weight, attrs), np.asarray(compiled(given))
        assert found.shape == wanted.shape
        assert np.abs(found - wanted).max() <= 1.5e-6 * np.abs(wanted).max(), image
    assert compiled.builds_made == 1


@pytest.mark.parametrize("case", FREE, ids=str)
@pytest.mark.parametrize("side", GuardSide)
def test_free_sizes(case: tuple[Any, ...], side: GuardSide) -> None:
    module, weight, attrs = free_network(case)
    for threads in (1, 2):
        compiled = clew.compile(
            module,
            threads=threads,
            diagnostics=clew.Diagnostics(guard=side),
            sizes=clew.Sizes(specialize=False),
        )
        check_free(case, compiled, 1, weight, attrs)


@pytest.mark.parametrize("images", [3, "n"])
@pytest.mark.parametrize("case", FREE[2:4], ids=str)
def test_several_images_of_free_sizes(case: tuple[Any, ...], images: int | str) -> None:
    module, weight, attrs = free_network(case, images=images)
    compiled = clew.compile(
        module,
        threads=2,
        diagnostics=clew.Diagnostics(guard=GuardSide.END),
        sizes=clew.Sizes(specialize=False),
    )
    for number in (3,) if images == 3 else (1, 3):
        check_free(case, compiled, number, weight, attrs)


@pytest.mark.parametrize("sides", [("h", 40), (33, "w"), (1, "w"), (20, 17)], ids=str)
def test_one_side_is_free(sides: tuple[Any, Any]) -> None:
    case = FREE[3]
    module, weight, attrs = free_network(case, images="n", sides=sides)
    compiled = clew.compile(
        module,
        threads=1,
        diagnostics=clew.Diagnostics(guard=GuardSide.END),
        sizes=clew.Sizes(specialize=False),
    )
    for side in (1, 6, 45):
        image = tuple(side if isinstance(n, str) else n for n in sides)
        given = np.random.default_rng(3).standard_normal((2, case[0], *image)).astype(np.float32)
        wanted, found = exact(given, weight, attrs), np.asarray(compiled(given))
        assert np.abs(found - wanted).max() <= 1.5e-6 * np.abs(wanted).max()
    assert compiled.builds_made == 1


@pytest.mark.parametrize(("taps", "stride"), [(1, 1), (3, 2)])
def test_free_sizes_use_tiles(taps: int, stride: int) -> None:
    if host().tile_shape("bf16", "bf16") is None:
        pytest.skip("this machine has no matrix tiles")
    x = Var("x", TensorType((1, 64, SymDim.symbol("h"), SymDim.symbol("w")), "f32"))
    weight = np.random.default_rng(0).standard_normal((64, 64, taps, taps)).astype(np.float32)
    around = {"padding": (taps // 2,) * 4, "strides": (stride, stride)}
    body = get_op("nn.relu")(get_op("nn.conv2d")(x, Constant(weight), **around))
    module = Module({"main": Function([x], body, {"outputs": ("y",)})})
    compiled = clew.compile(module, sizes=clew.Sizes(specialize=False))
    (kernel,) = (k for k in compiled.kernels if "by_size" in k.name)
    assert "conv_parts_rows" in kernel.rules
    assert "tiles conv2d_by_size" in str(kernel.loops)
