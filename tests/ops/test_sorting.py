"""Kernels that sort, select and sum up, at sizes that make them work in different ways: behind
guard pages, against NumPy, with known and with free sizes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clew.ir.types import to_numpy

from .one_operator import check

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)


def drawn(shape: tuple[int, ...], dtype: str) -> Array:
    """Returns values with ties; floats also have NaN, infinities and both zeros."""
    values = RNG.integers(0 if dtype[0] == "u" else -40, 40, shape).astype(to_numpy(dtype))
    if dtype[0] in "fb" and dtype != "bool":
        flat = values.reshape(-1)
        flat[RNG.integers(0, flat.size, flat.size // 50)] = np.nan
        flat[RNG.integers(0, flat.size, 4)] = np.array([np.inf, -np.inf, -0.0, 0.0], flat.dtype)
    return values


# Few groups, which are compared; many, which are sorted; no bound; along another axis.
SHAPES = [((3, 700), 5, 1), ((2, 20000), 30, 1), ((2, 5000), 900, 1), ((4000, 3), 20, 0)]
DTYPES = ["f16", "bf16", "f64", "i8", "u8", "i32", "u64"]  # which differ in their keys only
CASES = [(dtype, *case) for dtype in ("f32", "i64") for case in SHAPES]
CASES += [(dtype, *SHAPES[n % 2]) for n, dtype in enumerate(DTYPES)]


@pytest.mark.parametrize(("dtype", "shape", "k", "axis"), CASES)
@pytest.mark.parametrize("largest", [True, False])
def test_top_k(dtype: str, shape: tuple[int, ...], k: int, axis: int, largest: bool) -> None:
    check("top_k", drawn(shape, dtype), k=k, axis=axis, largest=largest)


def test_top_k_of_equal_elements() -> None:
    """All of them reach the bound."""
    check("top_k", np.full((2, 3000), 7.0, np.float32), k=11)


@pytest.mark.parametrize("shape", [(5,), (700,), (40, 3, 50), (1,)])
@pytest.mark.parametrize("share", [0.0, 0.05, 0.7, 1.0])
def test_nonzero(shape: tuple[int, ...], share: float) -> None:
    check("nonzero", (RNG.random(shape) < share).astype(np.float32))


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_compress(axis: int | None, share: float) -> None:
    x = RNG.standard_normal((30, 50)).astype(np.float32)
    size = x.size if axis is None else x.shape[axis]
    check("compress", x, RNG.random(size) < share, axis=axis)


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("count", [7, 47, 1999])
def test_compress_by_another_number_of_conditions(axis: int | None, count: int) -> None:
    x = RNG.standard_normal((30, 40)).astype(np.float32)
    check("compress", x, RNG.random(count) < 0.5, axis=axis)


@pytest.mark.parametrize("dtype", ["f32", "i64", "bool"])
@pytest.mark.parametrize("size", [1, 9, 3000])
@pytest.mark.parametrize("sort", [True, False])
def test_unique(dtype: str, size: int, sort: bool) -> None:
    check("unique", drawn((size,), dtype), sort=sort)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
def test_running_totals(axis: int, name: str, reverse: bool, exclusive: bool) -> None:
    x = RNG.integers(-2, 3, (70, 90, 80))
    check(name, x, axis=axis, reverse=reverse, exclusive=exclusive)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("dtype", ["f32", "i32", "f16", "bool"])
def test_many_updates(reduction: str, dtype: str) -> None:
    rows, count = 300, 4000
    x, updates = drawn((rows, 40), "i32") % 3, drawn((count, 40), "i32") % 3
    places = RNG.integers(-rows, rows, (count, 1))
    table, new = x.astype(to_numpy(dtype)), updates.astype(to_numpy(dtype))
    check("scatter_nd", table, places, new, reduction=reduction)
    check("scatter_elements", table[:, :1], places, new[:, :1], reduction=reduction)
