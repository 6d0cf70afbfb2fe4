"""Convolutions between transforms, native, at sizes that leave uneven tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clew
import clew.ops
from clew.ir.expr import Call, Constant, Expr, Function, Tuple, Var
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.loop.interpret import interpret
from clew.loop.lower import lower
from clew.machine.target import host
from clew.ops.convolution.stages import convolved
from clew.ops.registry import get_op
from clew.runtime.guard import GuardSide
from clew.schedules import schedule_kernel
from clew.te.tensor import placeholder

pytestmark = pytest.mark.usefixtures("shared_kernels")

Array = np.ndarray[Any, Any]
Pads = tuple[int, int, int, int]
LANES = 16
# What the operator's docstring states, relative to the largest magnitude of the result.
BOUNDS = {2: 1e-6, 4: 4e-6}

# batch, input and output channels, height and width of the image, padding
SHAPES: list[tuple[int, int, int, int, int, Pads]] = [
    (1, 32, 32, 7, 7, (1, 1, 1, 1)),
    (1, 16, 16, 5, 9, (1, 1, 1, 1)),
    (2, 16, 48, 5, 9, (0, 1, 1, 0)),
    (1, 48, 32, 3, 3, (0, 0, 0, 0)),
    (1, 16, 32, 1, 1, (1, 1, 1, 1)),
    (2, 32, 16, 13, 30, (2, 0, 0, 1)),
    (1, 64, 64, 56, 28, (1, 1, 1, 1)),
    (1, 16, 32, 33, 61, (1, 1, 1, 1)),
    (3, 128, 64, 14, 14, (1, 1, 1, 1)),
]


def _data(
    batch: int, inner: int, outer: int, height: int, width: int, seed: int = 0
) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    image = rng.standard_normal((batch, inner // LANES, height, width, LANES)).astype("f4")
    weight = rng.standard_normal((outer, inner, 3, 3)).astype("f4")
    return image, weight * np.float32(np.sqrt(2 / (9 * inner)))


def _exact(image: Array, weight: Array, padding: Pads) -> Array:
    """The convolution in float64, before it is rounded."""
    attrs = {
        "strides": (1, 1), "padding": padding, "dilation": (1, 1), "groups": 1, "channels": 0,
        "data_layout": f"NCHW{LANES}c", "weight_layout": "OIHW", "out_layout": "",
    }  # fmt: skip
    return convolved("HW", image, weight, attrs).astype("f8")


def _compile(
    image: Array, weight: Array, tile: int, padding: Pads, tail: Any, **options: Any
) -> Any:
    x = Var("x", TensorType(image.shape, "f32", f"NCHW{LANES}c"))
    panel = 2 * LANES if weight.shape[0] % (2 * LANES) == 0 else LANES
    packed = get_op("nn.winograd_weight")(Constant(weight), tile=tile, block=panel)
    y: Expr = get_op("nn.conv2d_winograd")(x, packed, tile=tile, padding=padding)
    y = tail(y)
    main = Function([x], Tuple([y]), {"outputs": ("y",)})
    return clew.compile(Module({"main": main}), cache=False, **options)


def _none(y: Expr) -> Expr:
    return y


@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_error_is_within_what_is_stated(shape: Any, tile: int) -> None:
    *sizes, padding = shape
    image, weight = _data(*sizes)
    expected = _exact(image, weight, padding)
    for side in GuardSide:
        compiled = _compile(
            image, weight, tile, padding, _none, threads=1, diagnostics=clew.Diagnostics(guard=side)
        )
        assert [k.rules for k in compiled.kernels] == [("winograd",)]
        found = compiled(image)
        assert np.abs(found - expected).max() <= BOUNDS[tile] * np.abs(expected).max()


@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize("size", [(7, 7), (56, 29)])
def test_what_follows_is_part_of_the_kernel(tile: int, size: tuple[int, int]) -> None:
    """Bias, residual and activation at the end, under guards where tiles reach over the edge."""
    padding: Pads = (1, 1, 1, 1)
    image, weight = _data(1, 32, 32, *size)
    bias = np.linspace(-1, 1, 32, dtype="f4").reshape(1, 2, 1, 1, LANES)

    def tail(y: Expr) -> Expr:
        assert isinstance(y, Call)
        y = get_op("add")(y, Constant(bias, layout=f"NCHW{LANES}c"))
        return get_op("nn.relu")(get_op("add")(y, y.args[0].args[0]))

    compiled = _compile(
        image, weight, tile, padding, tail, threads=2, diagnostics=clew.Diagnostics(guard=True)
    )
    (kernel,) = compiled.kernels
    assert kernel.ops == ("nn.conv2d_winograd", "add", "add", "nn.relu")
    expected = np.maximum(_exact(image, weight, padding) + bias + image, 0)
    assert np.abs(compiled(image) - expected).max() <= BOUNDS[tile] * np.abs(expected).max()


def test_rows_too_long_for_the_cache_are_divided() -> None:
    tile, channels, padding = 2, 32, (1, 1, 1, 1)
    tile_bytes = (tile + 2) ** 2 * 2 * channels * 4
    width = tile * (host().l2_bytes // tile_bytes + 3) + 1
    image, weight = _data(1, channels, channels, 5, width)
    expected = _exact(image, weight, padding)
    found = []
    for side, threads in zip(GuardSide, (1, 3), strict=True):
        guarded = clew.Diagnostics(guard=side)
        compiled = _compile(
            image, weight, tile, padding, _none, threads=threads, diagnostics=guarded
        )
        (kernel,) = compiled.kernels
        assert any("once" in str(step) for step in kernel.schedule.steps)  # groups of tiles
        found.append(compiled(image))
        assert np.abs(found[-1] - expected).max() <= BOUNDS[tile] * np.abs(expected).max()
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize("shape", [SHAPES[2], SHAPES[6], SHAPES[8]], ids=str)
def test_any_number_of_threads_gives_the_same_bits(shape: Any, tile: int) -> None:
    *sizes, padding = shape
    image, weight = _data(*sizes)
    found = [
        _compile(image, weight, tile, padding, _none, threads=threads)(image)
        for threads in (1, 2, 3)
    ]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize("size", [(5, 9), (17, 4)])
def test_the_schedule_keeps_the_values(tile: int, size: tuple[int, int]) -> None:
    """Interpreted, which asserts that each element is set, inside and read once it is."""
    lanes, padding = 4, (1, 0, 1, 1)
    rng = np.random.default_rng(0)
    image = rng.standard_normal((1, 1, *size, lanes)).astype("f4")
    pieces = (tile + 2) ** 2
    weight = rng.standard_normal((pieces, lanes, 2 * lanes)).astype("f4")
    op = get_op("nn.conv2d_winograd")
    assert op.compute is not None
    x = placeholder(image.shape, "f32", "x", "NCHW4c")
    w = placeholder(weight.shape, "f32", "w")
    out = op.compute(x, w, tile=tile, padding=padding)
    assert not isinstance(out, tuple)
    plan = schedule_kernel(lower("winograd", [x, w], [out]), host())
    scheduled, rules = plan.schedule, plan.rules
    assert rules == ("winograd",)
    (found,) = interpret(scheduled.finished(), [image, weight])
    expected = op.run_reference([image, weight], {"tile": tile, "padding": padding})
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


def test_infinities_in_the_padding_do_not_arise() -> None:
    """Zeros stand around the image, whatever its values are: only tiles that meet one are hit."""
    image, weight = _data(1, 16, 16, 12, 12)
    image[0, 0, 0, 0, 0] = np.inf
    found = _compile(image, weight, 4, (1, 1, 1, 1), _none, threads=1)(image)
    assert np.isfinite(found[:, :, 4:, 4:]).all()
