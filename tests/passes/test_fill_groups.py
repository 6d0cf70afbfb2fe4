"""Convolutions of integers in groups, and of channels that no block divides: their form, and the
values.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import clew
from clew.ir.dims import SymDim
from clew.ir.expr import Call
from clew.ir.interpret import interpret
from clew.ir.module import Module
from clew.ir.visit import post_order
from clew.machine.target import target_of
from clew.passes.convolution.alter_layout import AlterLayout
from clew.passes.convolution.fill_groups import FillGroups
from clew.passes.convolution.join_columns import JoinColumns

pytestmark = pytest.mark.usefixtures("shared_kernels")

TARGETS = ("cpu-avx2", "cpu-avx512")


def conv(kit: Any, sizes: tuple[int, int, int], dtype: str = "i16", **attrs: Any) -> Module:
    channels, filters, groups = sizes
    size = attrs.pop("size", (7, 9))
    window = attrs.pop("window", (3, 3))
    x = kit.var("x", 2, channels, *size, dtype=dtype)
    drawn = np.random.default_rng(1).integers(-63, 64, (filters, channels // groups, *window))
    weight = kit.const(drawn.astype(np.int16 if dtype == "i16" else np.int8))
    attrs = {"padding": (1, 0, 2, 1), **attrs}
    y = kit.layer("nn.conv2d", x, weight, groups=groups, **attrs)
    return kit.module([x], kit.layer("cast", y, dtype="f32"))  # type: ignore[no-any-return]


def conv_of(module: Module) -> Call:
    calls = [n for n in post_order(module.main.body) if isinstance(n, Call)]
    (found,) = (n for n in calls if n.op_name == "nn.conv2d")
    return found


def drawn(module: Module, size: tuple[int, int] = (7, 9)) -> dict[str, Any]:
    x = module.main.params[0].tensor
    low, high = (0, 128) if x.dtype == "u8" else (-128, 128)
    channels: Any = x.shape[1]
    values = np.random.default_rng(2).integers(low, high, (2, channels, *size))
    return {"x": values.astype(np.uint8 if x.dtype == "u8" else np.int16)}


# channels, filters and groups; then groups, filters and channels of a group
FORMS = [
    ((32, 32, 16), (4, 8, 8)),  # four groups of two
    ((16, 32, 4), (2, 16, 8)),
    ((8, 8, 2), (1, 8, 8)),  # both become an ungrouped convolution
    ((30, 30, 6), (6, 8, 8)),  # five channels: no number of groups fills blocks
    ((36, 72, 6), (6, 16, 8)),
    ((24, 24, 8), (8, 8, 8)),  # joined, they take more products
    ((48, 60, 3), (3, 24, 16)),
    ((32, 64, 2), (2, 32, 16)),  # filled already
    ((16, 16, 16), (16, 1, 1)),  # by channel
]


@pytest.mark.parametrize("dtype", ["i16", "u8"])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("sizes", "form"), FORMS, ids=str)
def test_groups_of_integers(kit: Any, sizes: Any, form: Any, target: str, dtype: str) -> None:
    before = conv(kit, sizes, dtype=dtype)
    manager = kit.PassManager([FillGroups()], target=target_of(target))
    found = conv_of(manager.run(before))
    groups = found.attrs.groups
    filters, inner = found.args[1].tensor.concrete[:2]
    assert (groups, filters // groups, inner) == form
    inputs = drawn(before)
    want = interpret(before, inputs)["y0"]
    np.testing.assert_array_equal(interpret(manager.run(before), inputs)["y0"], want)


@pytest.mark.parametrize("dtype", ["i16", "u8"])
@pytest.mark.parametrize("sizes", [sizes for sizes, _ in FORMS], ids=str)
def test_native_groups(kit: Any, sizes: Any, dtype: str) -> None:
    before = conv(kit, sizes, dtype=dtype)
    inputs = drawn(before)
    want = interpret(before, inputs)["y0"]
    np.testing.assert_array_equal(clew.compile(before, target="cpu-avx2").run(inputs)["y0"], want)


def test_groups_of_free_sizes(kit: Any) -> None:
    before = conv(kit, (30, 30, 6), size=(SymDim.symbol("h"), SymDim.symbol("w")))
    compiled = clew.compile(before, target="cpu-avx2")
    for size in ((7, 9), (12, 5)):
        inputs = drawn(before, size)
        want = interpret(before, inputs)["y0"]
        np.testing.assert_array_equal(compiled.run(inputs)["y0"], want)


def test_pointwise_groups_stay(kit: Any) -> None:
    before = conv(kit, (30, 30, 6), window=(1, 1), padding=(0, 0, 0, 0))
    for target in TARGETS:
        assert kit.PassManager([FillGroups()], target=target_of(target)).run(before) is before


# channels, filters and a window; then the channels that are stored
ODD = [
    ((17, 33), (3, 3), 20),
    ((50, 70), (1, 1), 56),
    ((33, 64), (3, 3), 40),
    ((31, 9), (2, 3), 32),
]


@pytest.mark.parametrize("dtype", ["i16", "u8"])
@pytest.mark.parametrize(("channels", "window", "stored"), ODD, ids=str)
def test_channels_that_no_block_divides(
    kit: Any, channels: Any, window: Any, stored: int, dtype: str
) -> None:
    """Images of integers are padded to blocks, which hold the neighbors that dot products sum."""
    before = conv(kit, (*channels, 1), dtype=dtype, window=window)
    narrowed = conv(kit, (*channels, 1), dtype=dtype, window=window, pairs_fit=dtype == "u8")
    for target in TARGETS:
        found = conv_of(kit.PassManager([AlterLayout()], target=target_of(target)).run(narrowed))
        image = found.args[0].tensor.concrete
        assert len(image) == 5
        assert image[1] * image[-1] == stored
        assert math.prod(found.args[1].tensor.concrete) >= stored * channels[1] * math.prod(window)
    inputs = drawn(before)
    want = interpret(before, inputs)["y0"]
    np.testing.assert_array_equal(clew.compile(before, target="cpu-avx2").run(inputs)["y0"], want)


def test_results_of_joined_columns_are_blocked(kit: Any) -> None:
    """The lanes are filters, if no block divides these either."""
    before = conv(kit, (5, 9, 1))
    for target in TARGETS:
        passes = [JoinColumns(), AlterLayout()]
        found = conv_of(kit.PassManager(passes, target=target_of(target)).run(before))
        assert found.attrs.out_layout in ("NCHW8c", "NCHW16c")
    inputs = drawn(before)
    want = interpret(before, inputs)["y0"]
    np.testing.assert_array_equal(clew.compile(before, target="cpu-avx2").run(inputs)["y0"], want)
