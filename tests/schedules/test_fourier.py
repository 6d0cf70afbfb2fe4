"""Fast Fourier transforms: lengths of every factor, real signals, and where products remain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from golden_cases import Graph

import clew
from clew.ir.dims import SymDim
from clew.ir.expr import Function, Tuple
from clew.ir.module import Module
from clew.ops.math.fourier import sides


def compiled(shape: tuple[Any, ...], dtype: str, **attrs: Any) -> clew.CompiledModel:
    graph = Graph()
    body = Tuple((graph("dft", graph.x(*shape, dtype=dtype), **attrs),))
    return clew.compile(Module({"main": Function(tuple(graph.inputs), body)}), threads=1)


def spectrum(x: np.ndarray, inverse: bool) -> np.ndarray:
    numbers = x[..., 0] if x.shape[-1] == 1 else x[..., 0] + 1j * x[..., 1].astype("f8")
    found = (np.fft.ifft if inverse else np.fft.fft)(numbers, axis=1)
    return np.stack([found.real, found.imag], -1)


@pytest.mark.parametrize(
    ("length", "inverse", "dtype"),
    [
        (32, False, "f32"),
        (49, True, "f32"),
        (105, False, "f32"),
        (250, True, "f32"),
        (1024, False, "f32"),
        (60, False, "f64"),
        (128, True, "f64"),
    ],
)
def test_complex_numbers(length: int, inverse: bool, dtype: str) -> None:
    model = compiled((3, length, 2), dtype, axis=1, inverse=inverse)
    (kernel,) = model.kernels
    assert kernel.rules == ("fourier",)
    x = (
        np.random.default_rng(0)
        .standard_normal((3, length, 2))
        .astype({"f32": "f4", "f64": "f8"}[dtype])
    )
    expected = spectrum(x, inverse)
    (found,) = model.run(x).values()
    limit = 1e-6 if dtype == "f32" else 1e-14
    assert np.abs(found - expected).max() <= limit * np.abs(expected).max()


@pytest.mark.parametrize("length", [64, 70, 200, 400, 512])
def test_real_numbers_take_half_the_length(length: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, length, 1)).astype("f4")
    there = compiled((3, length, 1), "f32", axis=1, onesided=True)
    (found,) = there.run(x).values()
    expected = np.fft.rfft(x[..., 0].astype("f8"))
    np.testing.assert_allclose(found[..., 0] + 1j * found[..., 1], expected, rtol=0, atol=1e-4)
    assert not found[:, [0, -1], 1].any()
    # Imaginary parts of the ends are ignored.
    found = found + np.eye(length // 2 + 1, dtype="f4")[0][:, None] * np.array([0, 9], "f4")
    back = compiled((3, length // 2 + 1, 2), "f32", axis=1, onesided=True, inverse=True)
    (again,) = back.run(found).values()
    np.testing.assert_allclose(again, x, rtol=0, atol=1e-5)
    assert [k.rules for model in (there, back) for k in model.kernels] == [("fourier",)] * 2


def test_any_number_of_rows() -> None:
    model = compiled((SymDim.symbol("rows"), 64, 2), "f32", axis=1)
    for rows in (1, 5, 40):
        x = np.random.default_rng(rows).standard_normal((rows, 64, 2)).astype("f4")
        (found,) = model.run(x).values()
        np.testing.assert_allclose(found, spectrum(x, inverse=False), rtol=0, atol=1e-4)


@pytest.mark.parametrize("length", [16, 31, 44, 67])
def test_products_remain(length: int) -> None:
    (kernel,) = compiled((8, length, 2), "f32", axis=1).kernels
    assert "fourier" not in kernel.ops


def test_sides_leave_few_lanes_empty() -> None:
    assert sides(256) == (16, 16)
    assert sides(1000) == (20, 50)
    assert sides(22) is None
    assert sides(64 * 64 * 2) is None
