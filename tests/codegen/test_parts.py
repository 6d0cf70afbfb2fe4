"""Products of numbers in parts: native code behind guard pages against float64."""

from __future__ import annotations

import numpy as np
import pytest

import clew
import clew.ops
from clew.ir.expr import Constant, Function, Var
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.ops.registry import get_op
from clew.target import host

SIZES = [
    ((16,), 64, 32), ((5,), 32, 16), ((33,), 96, 58), ((1, 37), 64, 33), ((70,), 128, 100),
    ((2, 32), 64, 32), ((3, 17), 64, 40), ((1, 7, 7), 64, 48), ((2, 3, 5), 32, 33),
    ((1, 1, 21), 96, 65), ((2000,), 64, 33), ((100,), 256, 64), ((40,), 352, 32), ((192,), 384, 70),
]  # fmt: skip


def network(
    outer: tuple[int, ...], depth: int, units: int, *, whole: bool = False
) -> tuple[Module, np.ndarray]:
    """A dense layer of parts with a tail, whatever the target would choose; with a `whole` weight
    or its parts.
    """
    draw = np.random.default_rng(depth + units)
    weight = draw.standard_normal((units, depth)).astype(np.float32)
    x = Var("x", TensorType((*outer, depth), "f32"))
    residual = Var("r", TensorType((*outer, units), "f32"))
    stacked = weight if whole else np.concatenate(clew.ops.parts.parts_of(weight, 3), axis=1)
    packed = get_op("layout_transform")(Constant(stacked), src_layout="NK", dst_layout="NK32n2k")
    product = get_op("nn.dense")(
        get_op("split_parts")(x), packed, weight_layout="NK32n2k", units=units, parts=3,
        rows=outer, out_dtype="f32",
    )  # fmt: skip
    result = get_op("nn.relu")(get_op("add")(product, residual))
    return Module({"main": Function([x, residual], result, {"outputs": ("y",)})}), weight


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("side", ["start", "end"])
@pytest.mark.parametrize("whole", [False, True])
def test_native(size: tuple[tuple[int, ...], int, int], side: str, *, whole: bool) -> None:
    outer, depth, units = size
    module, weight = network(*size, whole=whole)
    draw = np.random.default_rng(7)
    x = draw.standard_normal((*outer, depth)).astype(np.float32)
    residual = draw.standard_normal((*outer, units)).astype(np.float32)
    exact = np.maximum(x.astype(np.float64) @ weight.T.astype(np.float64) + residual, 0)
    found = [
        clew.compile(module, threads=threads, guard=side)(x, residual)  # type: ignore[arg-type]
        for threads in (1, 2)
    ]
    np.testing.assert_array_equal(*found)
    assert np.abs(np.asarray(found[0]) - exact).max() <= 1e-6 * np.abs(exact).max()


IMAGES = [(1, 7, 9, 1), (1, 16, 16, 1), (2, 4, 4, 1), (3, 5, 5, 1), (1, 9, 7, 2), (1, 40, 33, 1)]


@pytest.mark.parametrize("size", IMAGES, ids=str)
@pytest.mark.parametrize("filters", [16, 48, 64])
@pytest.mark.parametrize("side", ["start", "end"])
def test_native_images(size: tuple[int, int, int, int], filters: int, side: str) -> None:
    batch, height, width, stride = size
    draw = np.random.default_rng(height)
    weight = draw.standard_normal((filters, 64)).astype(np.float32)
    given = draw.standard_normal((batch, 4, height, width, 16)).astype(np.float32)
    stacked = np.concatenate(list(clew.ops.parts.parts_of(weight, 3)), axis=1)
    packed = get_op("layout_transform")(Constant(stacked), src_layout="NK", dst_layout="NK32n2k")
    x = Var("x", TensorType((batch, 64, height, width), "f32"))
    blocked = get_op("layout_transform")(x, src_layout="NCHW", dst_layout="NCHW16c")
    image = (batch, -(-height // stride), -(-width // stride))
    split = get_op("split_parts")(blocked, layout="NCHW16c", stride=stride)
    product = get_op("nn.pointwise_conv2d")(split, packed, image=image, channels=filters)
    plain = get_op("layout_transform")(
        get_op("nn.relu")(product), src_layout="NCHW16c", dst_layout="NCHW"
    )
    module = Module({"main": Function([x], plain, {"outputs": ("y",)})})
    values = given.transpose(0, 1, 4, 2, 3).reshape(batch, 64, height, width)
    found = [
        clew.compile(module, threads=threads, guard=side)(values)  # type: ignore[arg-type]
        for threads in (1, 2)
    ]
    np.testing.assert_array_equal(*found)
    taken = values[:, :, ::stride, ::stride].astype(np.float64)
    exact = np.maximum(np.einsum("oc,nchw->nohw", weight.astype(np.float64), taken), 0)
    assert np.abs(np.asarray(found[0]) - exact).max() <= 1e-6 * np.abs(exact).max()


@pytest.mark.parametrize(("whole", "rule"), [(False, "parts"), (True, "split_weights")])
def test_the_rule_is_used_where_there_is_a_matrix_unit(*, whole: bool, rule: str) -> None:
    if host().tile_shape("bf16", "bf16") is None:
        pytest.skip("this machine has no matrix tiles")
    for outer in ((40,), (1, 40), (2, 32)):
        compiled = clew.compile(network(outer, 64, 64, whole=whole)[0])
        assert (rule,) in [k.rules for k in compiled.kernels]


@pytest.mark.parametrize("tail", [False, True])
@pytest.mark.parametrize("image", [(1, 14, 14), (2, 4, 8)], ids=str)
def test_the_rule_is_used_for_images(image: tuple[int, int, int], *, tail: bool) -> None:
    if host().tile_shape("bf16", "bf16") is None:
        pytest.skip("this machine has no matrix tiles")
    batch, height, width = image
    x = Var("x", TensorType((batch, 4, height, width, 16), "f32", "NCHW16c"))
    packed = get_op("layout_transform")(
        Constant(np.ones((64, 192), clew.ir.types.to_numpy("bf16"))),
        src_layout="NK",
        dst_layout="NK32n2k",
    )
    split = get_op("split_parts")(x, layout="NCHW16c")
    result = get_op("nn.pointwise_conv2d")(split, packed, image=image, channels=64)
    result = get_op("nn.relu")(result) if tail else result
    plain = get_op("layout_transform")(result, src_layout="NCHW16c", dst_layout="NCHW")
    compiled = clew.compile(Module({"main": Function([x], plain, {"outputs": ("y",)})}))
    assert ("parts",) in [k.rules for k in compiled.kernels]
