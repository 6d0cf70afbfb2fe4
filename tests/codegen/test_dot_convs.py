"""Convolutions of narrow operands through the whole compiler, next to forbidden pages."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest

import clew
from clew.ir.expr import Constant, Function, Tuple, Var
from clew.ir.interpret import interpret
from clew.ir.module import Module
from clew.ir.types import TensorType, to_numpy
from clew.machine.target import host
from clew.ops.registry import get_op
from clew.runtime.guard import GuardSide

# channels, lines and columns of the image, filters, window, attributes
CONVOLUTIONS: Final[list[tuple[int, tuple[int, int], int, int, dict[str, Any]]]] = [
    (64, (7, 7), 64, 1, {}),
    (48, (9, 11), 80, 3, {"padding": (1, 1, 1, 1)}),  # an odd number of blocks
    (32, (13, 29), 24, 3, {"padding": (0, 2, 1, 0), "strides": (2, 1)}),
    (16, (5, 6), 144, 2, {"strides": (2, 2)}),
    (8, (4, 31), 16, 5, {"padding": (2, 2, 2, 2), "dilation": (1, 2)}),
    (512, (7, 7), 96, 1, {}),
    (64, (14, 14), 64, 3, {"padding": (1, 1, 1, 1)}),  # Winograd's algorithm, if narrow floats
    (64, (8, 9), 64, 3, {"padding": (1, 1, 1, 1), "groups": 4}),
    (48, (6, 17), 96, 3, {"groups": 6, "strides": (2, 2)}),
    (64, (5, 5), 128, 1, {"groups": 4}),
    (40, (9, 8), 40, 3, {"padding": (1, 1, 1, 1), "groups": 40}),
    (3, (17, 20), 33, 7, {"padding": (3, 3, 3, 3), "strides": (2, 2)}),
]
DTYPES: Final = (("bf16", "bf16", 3), ("u8", "i8", 120), ("i16", "i16", 300))


def module_of(case: Any, data: str, weight: str, most: int) -> Module:
    """Returns a convolution of whole numbers, whose sums are exact, with a tail."""
    channels, size, filters, window, attrs = case
    rng = np.random.default_rng(0)
    groups = attrs.get("groups", 1)
    shape = filters, channels // groups, window, window
    w = Constant(rng.integers(-most, most + 1, shape).astype(to_numpy(weight)))
    x = Var("x", TensorType((2, channels, *size), data))
    wide = {"out_dtype": "f32"} if data == "bf16" else {}
    y = get_op("nn.conv2d")(x, w, **attrs, **wide)
    bias = Constant(rng.integers(-9, 9, (1, filters, 1, 1)).astype(to_numpy(y.tensor.dtype)))
    tail = get_op("cast")(get_op("nn.relu")(get_op("add")(y, bias)), dtype="f32")
    return Module({"main": Function([x], Tuple((tail,)), {"outputs": ("y",)})})


@pytest.mark.parametrize("dtypes", DTYPES, ids=lambda d: f"{d[0]}-{d[1]}")
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_values(case: Any, dtypes: tuple[str, str, int]) -> None:
    data, weight, most = dtypes
    module = module_of(case, data, weight, most)
    rng = np.random.default_rng(case[0])
    low, high = {"u8": (0, 256), "i16": (-300, 300), "bf16": (-3, 4)}[data]
    for number, side in enumerate(GuardSide):
        x = rng.integers(low, high, (2, case[0], *case[1])).astype(to_numpy(data))
        expected = interpret(module, {"x": x})["y"]
        compiled = clew.compile(
            module, threads=1 + number, diagnostics=clew.Diagnostics(guard=side), cache=False
        )
        found = compiled.run({"x": x})["y"]
        if any("winograd" in kernel.rules for kernel in compiled.kernels):
            np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())
        else:
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtypes", DTYPES, ids=lambda d: f"{d[0]}-{d[1]}")
@pytest.mark.parametrize("case", CONVOLUTIONS[1:6], ids=str)
def test_dot_products_are_used(case: Any, dtypes: tuple[str, str, int]) -> None:
    data, weight, most = dtypes
    quick = host().has("avx512bf16") if data == "bf16" else host().dot_lanes(data, weight)
    if not quick or host().tile_shape(data, weight):
        pytest.skip("this machine has other instructions for these products")
    compiled = clew.compile(module_of(case, data, weight, most), threads=1)
    assert [k.rules for k in compiled.kernels if "nn.conv2d" in k.ops] == [("dot_conv",)]
