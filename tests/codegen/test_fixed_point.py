"""Products in fixed point: the vector instructions give LiteRT's codes at every border."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clew
from clew.ir.expr import Constant, Function, Tuple, Var
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.ops.registry import get_op

pytestmark = pytest.mark.usefixtures("shared_kernels")

Array = np.ndarray[Any, Any]
_FACTORS = np.array([1 << 30, (1 << 30) + 1, 1518500250, (1 << 31) - 1, 0, 3 << 29], np.int64)


def _litert(x: int, factor: int, shift: int) -> int:
    """MultiplyByQuantizedMultiplier with its two roundings, in integers of any size."""
    high = (x * factor + (1 << 30)) >> 31
    rest, half = high & ((1 << shift) - 1), ((1 << shift) - 1) >> 1
    return (high >> shift) + (rest > half + (high < 0))


def _borders() -> tuple[Array, Array, Array]:
    """Returns numbers around the ties of the first results, in all pairs of factors and shifts."""
    rows = []
    for factor in _FACTORS.tolist():
        for shift in range(32):
            for code in (-129, -128, -2, -1, 0, 1, 127, 300):
                tie = (2 * code + 1) << (30 + shift)
                at = tie // max(factor, 1)
                near = {at + n for n in (-2, -1, 0, 1, 2)} | {0, -1, 1, (1 << 30) - 1}
                rows += [(n, factor, shift) for n in near if abs(n) < 1 << 30]
    found = np.array(rows, np.int64).astype(np.int32)
    return found[:, 0].copy(), found[:, 1].copy(), found[:, 2].copy()


@pytest.fixture(scope="module")
def borders() -> tuple[Array, Array, Array]:
    return _borders()


def _compiled(factor: Array, shift: Array, **options: Any) -> Any:
    x = Var("x", TensorType(factor.shape, "i32"))
    scaled = get_op("scale_fixed")(x, Constant(factor), Constant(shift), **options)
    module = Module({"main": Function([x], Tuple([scaled]), {"outputs": ("y",)})})
    return clew.compile(module)


@pytest.mark.parametrize("bounded", [True, False])
@pytest.mark.parametrize("cut", [0, 5])  # without and with lanes left over
def test_every_border(borders: tuple[Array, Array, Array], bounded: bool, cut: int) -> None:
    x, factor, shift = (each[: len(each) - cut] for each in borders)
    expected = [
        _litert(*row) for row in zip(*map(np.ndarray.tolist, (x, factor, shift)), strict=True)
    ]
    np.testing.assert_array_equal(_compiled(factor, shift, bounded=bounded)(x), expected)


def test_numbers_of_all_bits_are_rounded_without_the_bound() -> None:
    x = np.array([-(1 << 31), (1 << 31) - 1, -(1 << 31) + 1, 1 << 30] * 4, np.int32)
    factor = np.repeat(np.int32([(1 << 31) - 1, 1 << 30, 1518500250, (1 << 31) - 2]), 4)
    for right in (0, 1, 7, 30, 31):
        shift = np.full(16, right, np.int32)
        expected = [
            _litert(*row) for row in zip(x.tolist(), factor.tolist(), shift.tolist(), strict=True)
        ]
        np.testing.assert_array_equal(_compiled(factor, shift)(x), expected)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6])
def test_few_lanes(count: int) -> None:
    x, factor, shift = np.arange(6) * 1001 - 3000, 1518500250 + np.arange(6), np.arange(6) + 1
    rows = np.int32([x[:count]] * 5)
    parameters = factor[:count].astype(np.int32), shift[:count].astype(np.int32)
    expected = [_litert(*row) for row in zip(*np.array([x, factor, shift]).tolist(), strict=True)]
    given = Var("x", TensorType(rows.shape, "i32"))
    for options in ({"bounded": True}, {"bounded": False}):
        scaled = get_op("scale_fixed")(given, *map(Constant, parameters), **options)
        module = Module({"main": Function([given], Tuple([scaled]), {"outputs": ("y",)})})
        np.testing.assert_array_equal(clew.compile(module)(rows), [expected[:count]] * 5)


@pytest.mark.parametrize("target", ["cpu-avx2", "cpu-avx512"])
@pytest.mark.parametrize("factor", [1518500250, 518500250])  # folded with its rounding, and not
def test_products_stay_in_their_lanes(target: str, factor: int) -> None:
    """x86 multiplies even lanes in place; widening vectors would permute them twice."""
    parameters = np.int32(factor), np.int32(7)
    x = Var("x", TensorType((64,), "i32"))
    scaled = get_op("scale_fixed")(x, *map(Constant, parameters), bounded=True)
    module = Module({"main": Function([x], Tuple([scaled]), {"outputs": ("y",)})})
    (kernel,) = clew.compile(module, target=target).kernels
    assert "vpmuldq" in kernel.asm
    for moved in ("vpermpd", "vpermq", "vpmovsxdq", "vpmovzxdq", "vpmovqd"):
        assert moved not in kernel.asm
