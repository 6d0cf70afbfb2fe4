"""Convolutions of pairs of integers between transforms, native: exact at any size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clew
import clew.ops
from clew.ir.expr import Constant, Expr, Function, Tuple, Var
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.loop.interpret import interpret
from clew.loop.lower import lower
from clew.machine.target import host
from clew.ops.convolution.stages import convolved
from clew.ops.convolution.winograd import SUM_BITS, transforms
from clew.ops.registry import get_op
from clew.runtime.guard import GuardSide
from clew.schedules import schedule_kernel
from clew.te.tensor import placeholder

pytestmark = pytest.mark.usefixtures("shared_kernels")

Array = np.ndarray[Any, Any]
Pads = tuple[int, int, int, int]
DOT_LANES = host().dot_lanes("i16", "i16")
LANES = 2 * DOT_LANES

# batch, blocks of input and output channels, height and width of the image, padding
SHAPES: list[tuple[int, int, int, int, int, Pads]] = [
    (1, 1, 2, 1, 1, (1, 1, 1, 1)),
    (2, 2, 1, 5, 9, (0, 1, 1, 0)),
    (1, 1, 1, 7, 4, (2, 0, 0, 1)),
    (3, 2, 3, 14, 14, (1, 1, 1, 1)),
    (1, 3, 2, 33, 30, (1, 1, 1, 1)),
]


def _data(
    batch: int, inner: int, outer: int, height: int, width: int, seed: int = 0
) -> tuple[Array, Array]:
    """Pixels of 8 bits less any zero point, and weights of 8 bits."""
    rng = np.random.default_rng(seed)
    image = rng.integers(-255, 256, (batch, inner, height, width, LANES)).astype("i2")
    weight = rng.integers(-128, 128, (outer * LANES, inner * LANES, 3, 3)).astype("i2")
    return image, weight


def _exact(image: Array, weight: Array, padding: Pads) -> Array:
    attrs = {
        "strides": (1, 1), "padding": padding, "dilation": (1, 1), "groups": 1, "channels": 0,
        "data_layout": f"NCHW{image.shape[-1]}c", "weight_layout": "OIHW", "out_layout": "",
    }  # fmt: skip
    return convolved("HW", image, weight, attrs)


def _compile(
    image: Array, weight: Array, tile: int, padding: Pads, tail: Any = None, **options: Any
) -> Any:
    x = Var("x", TensorType(image.shape, "i16", f"NCHW{LANES}c"))
    packed = get_op("nn.winograd_weight")(Constant(weight), tile=tile, block=LANES)
    y: Expr = get_op("nn.conv2d_winograd")(x, packed, tile=tile, padding=padding)
    y = y if tail is None else tail(y)
    main = Function([x], Tuple([y]), {"outputs": ("y",)})
    return clew.compile(Module({"main": main}), cache=False, **options)


@pytest.mark.skipif(not DOT_LANES, reason="no products of pairs")
@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums_are_those_of_integers(shape: Any, tile: int) -> None:
    *sizes, padding = shape
    image, weight = _data(*sizes)
    expected = _exact(image, weight, padding)
    for threads, side in ((1, GuardSide.END), (2, GuardSide.START)):
        compiled = _compile(
            image, weight, tile, padding, threads=threads, diagnostics=clew.Diagnostics(guard=side)
        )
        assert [k.rules for k in compiled.kernels] == [("winograd",)]
        np.testing.assert_array_equal(compiled(image), expected)


@pytest.mark.skipif(not DOT_LANES, reason="no products of pairs")
@pytest.mark.parametrize("tile", [2, 4])
def test_sums_wrap_until_they_are_divided(tile: int) -> None:
    """The largest pixels that the shift leaves. With tiles of 4, sums are 9 times too large for 32
    bits.
    """
    matrices = transforms(tile, "i16")
    most = (1 << (SUM_BITS - 1 - matrices.shift)) - 1
    each = 9 * 255 * 127
    channels = most // each
    blocks = -(-channels // LANES)
    image = np.full((1, blocks, 6, 6, LANES), 255, "i2")
    weight = np.zeros((LANES, blocks * LANES, 3, 3), "i2")
    weight[:, :channels] = 127
    weight[1::2] *= -1
    expected = _exact(image, weight, (1, 1, 1, 1))
    assert most - each < np.abs(expected.astype("i8")).max() <= most
    compiled = _compile(image, weight, tile, (1, 1, 1, 1), threads=1)
    np.testing.assert_array_equal(compiled(image), expected)


@pytest.mark.skipif(not DOT_LANES, reason="no products of pairs")
@pytest.mark.parametrize("tile", [2, 4])
def test_what_follows_is_part_of_the_kernel(tile: int) -> None:
    image, weight = _data(1, 2, 2, 7, 9)
    bias = np.arange(-LANES, LANES, dtype="i4").reshape(1, 2, 1, 1, LANES)

    def tail(y: Expr) -> Expr:
        y = get_op("add")(y, Constant(bias, layout=f"NCHW{LANES}c"))
        return get_op("requantize")(y, Constant(np.float32(2**-16)), dtype="i8")

    compiled = _compile(
        image, weight, tile, (1, 1, 1, 1), tail, threads=1, diagnostics=clew.Diagnostics(guard=True)
    )
    (kernel,) = compiled.kernels
    assert kernel.ops == ("nn.conv2d_winograd", "add", "requantize")
    sums = (_exact(image, weight, (1, 1, 1, 1)) + bias).astype("f4") * np.float32(2**-16)
    np.testing.assert_array_equal(compiled(image), np.clip(np.rint(sums), -128, 127).astype("i1"))


@pytest.mark.parametrize("tile", [2, 4])
def test_the_schedule_keeps_the_values(tile: int) -> None:
    """Interpreted, which asserts that each element is set, inside and read once it is."""
    lanes = LANES or 4
    rng = np.random.default_rng(0)
    image = rng.integers(-255, 256, (1, 1, 5, 6, lanes)).astype("i2")
    weight = rng.integers(-128, 128, (2 * lanes, lanes, 3, 3)).astype("i2")
    moved = get_op("nn.winograd_weight").run_reference([weight], {"tile": tile, "block": lanes})
    op = get_op("nn.conv2d_winograd")
    assert op.compute is not None
    x = placeholder(image.shape, "i16", "x", f"NCHW{lanes}c")
    w = placeholder(moved.shape, "i16", "w")
    out = op.compute(x, w, tile=tile, padding=(1, 0, 1, 1))
    assert not isinstance(out, tuple)
    plan = schedule_kernel(lower("winograd", [x, w], [out]), host())
    assert plan.rules == ("winograd",)
    (found,) = interpret(plan.schedule.finished(), [image, moved])
    np.testing.assert_array_equal(found, _exact(image, weight, (1, 0, 1, 1)))
