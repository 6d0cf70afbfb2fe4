"""Convolutions of few channels as sums over whole lines of a window: which ones, and the values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clew
from clew.ir.dims import SymDim
from clew.ir.expr import Call
from clew.ir.module import Module
from clew.ir.types import to_numpy
from clew.ir.visit import post_order
from clew.passes.convolution.join_columns import JoinColumns
from clew.runtime.guard import GuardSide

# channels and size of the image, filters, window, attributes
CASES: list[tuple[int, tuple[int, int], int, tuple[int, int], dict[str, Any]]] = [
    (3, (15, 14), 16, (7, 7), {"padding": (3, 3, 3, 3), "strides": (2, 2)}),
    (3, (9, 11), 24, (3, 3), {"padding": (1, 1, 1, 1)}),
    (3, (8, 8), 32, (2, 2), {"strides": (2, 2)}),
    (1, (12, 13), 40, (5, 5), {"padding": (2, 0, 1, 3), "strides": (1, 3)}),
    (2, (10, 9), 16, (3, 4), {"padding": (2, 1, 2, 1), "dilation": (2, 1)}),
    (6, (7, 8), 48, (3, 3), {"padding": (0, 1, 0, 0)}),
    (5, (6, 40), 33, (1, 9), {"padding": (0, 4, 0, 4), "strides": (1, 2)}),
]


def image(
    kit: Any, dtype: str, channels: int, size: Any, filters: int, window: Any, attrs: Any
) -> Module:
    x = kit.var("x", 2, channels, *size, dtype=dtype)
    if dtype != "bf16":
        drawn = np.random.default_rng(1).integers(-127, 128, (filters, channels, *window))
        weight = drawn.astype(np.int8 if dtype == "u8" else np.int16)
        y = kit.layer("nn.conv2d", x, kit.const(weight), **attrs)
    else:
        drawn = kit.random(filters, channels, *window) / np.float32(4)
        narrow = kit.const(drawn.astype(to_numpy("bf16")))
        y = kit.layer("nn.conv2d", x, narrow, out_dtype="f32", **attrs)
    return kit.module([x], kit.layer("nn.relu", y))  # type: ignore[no-any-return]


def windows(module: Module) -> list[tuple[int, ...]]:
    nodes = post_order(module.main.body)
    found = [n for n in nodes if isinstance(n, Call) and n.op_name == "nn.conv2d"]
    return [n.args[1].tensor.concrete for n in found]


@pytest.mark.parametrize("dtype", ["u8", "i16", "bf16"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_and_windows(kit: Any, dtype: str, case: Any) -> None:
    channels, _, filters, (lines, columns), _ = case
    before = image(kit, dtype, *case)
    after = kit.apply(before, JoinColumns())
    group = 4 if dtype == "u8" else 2
    if channels * columns < group:
        assert after is before
        return
    depth = -(-channels * columns // group) * group
    assert windows(after) == [(filters, 1, lines, depth)]
    kit.same(before, after)


@pytest.mark.parametrize("dtype", ["u8", "bf16"])
def test_free_sizes(kit: Any, dtype: str) -> None:
    size = SymDim.symbol("height"), SymDim.symbol("width")
    attrs = {"padding": (1, 2, 1, 2), "strides": (1, 2)}
    before = image(kit, dtype, 3, size, 16, (3, 5), attrs)
    kit.same(before, kit.apply(before, JoinColumns()))


@pytest.mark.parametrize("side", GuardSide)
@pytest.mark.parametrize("dtype", ["u8", "i16", "bf16"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernels_stay_inside_the_image(kit: Any, dtype: str, case: Any, side: GuardSide) -> None:
    """The last group of a window's line may hold more elements than the line."""
    given = image(kit, dtype, *case)
    rng = np.random.default_rng(len(str(case)))
    shape = given.main.params[0].tensor.concrete
    if dtype != "bf16":
        x = rng.integers(0, 256, shape).astype(to_numpy(dtype))
    else:
        x = rng.standard_normal(shape).astype(to_numpy("bf16"))
    (expected,) = kit.interpret(given, {"x": x})
    found = clew.compile(
        given, threads=2, diagnostics=clew.Diagnostics(guard=side), cache=False
    ).run({"x": x})["y0"]
    if dtype != "bf16":
        np.testing.assert_array_equal(found, expected)
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("channels", "attrs"),
    [
        (4, {}),  # whole groups
        (12, {}),  # many channels
        (3, {"dilation": (1, 2)}),  # columns that lie apart
    ],
)
def test_others_stay(kit: Any, channels: int, attrs: Any) -> None:
    given = image(kit, "bf16", channels, (8, 8), 16, (3, 3), attrs)
    assert kit.apply(given, JoinColumns()) is given


def test_a_matrix_unit_reads_padded_channels(kit: Any) -> None:
    given = image(kit, "bf16", 3, (8, 8), 16, (3, 3), {})
    assert kit.PassManager([JoinColumns()], target=kit.tiles()).run(given) is given
