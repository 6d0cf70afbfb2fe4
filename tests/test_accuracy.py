"""Rounding errors of whole kernels against f64: sums in blocks, and Winograd's error budget."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clew
from clew.ir.dims import SymDim
from clew.ir.expr import Constant, Expr, Function, Var
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.machine.target import host
from clew.ops.convolution.winograd import transforms
from clew.ops.registry import get_op
from clew.passes.convolution.winograd import error_of_tiles

Array = np.ndarray[Any, Any]


def drawn(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def convolved(x: Array, weight: Array) -> Array:
    """A convolution that keeps the image's size, in f64."""
    around = weight.shape[-1] // 2
    wide = np.pad(x.astype(np.float64), [(0, 0), (0, 0), (around, around), (around, around)])
    view = np.lib.stride_tricks.sliding_window_view(wide, weight.shape[2:], axis=(2, 3))
    return np.asarray(
        np.einsum("nchwij,ocij->nohw", view, weight.astype(np.float64), optimize=True)
    )


def relative(found: Array, wanted: Array) -> float:
    """The root of the mean square of errors, over that of values."""
    return float(np.sqrt(((found - wanted) ** 2).mean() / (wanted**2).mean()))


def compiled(op: str, x: Array, weight: Array, **options: Any) -> Any:
    """Compiles an operator on an image, or rows, and a weight."""
    image = Var("x", TensorType(x.shape, "f32"))
    around = {"padding": (weight.shape[-1] // 2,) * 4} if op == "nn.conv2d" else {}
    result: Expr = get_op(op)(image, Constant(weight), **around)
    return clew.compile(Module({"main": Function([image], result)}), threads=1, **options)


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize(("inner", "outer"), [(4096, 32), (3001, 48), (999, 7)])
def test_long_products_are_summed_in_blocks(inner: int, outer: int, free: bool) -> None:
    x, weight = np.abs(drawn(24, inner)), drawn(outer, inner, seed=1)
    rows: Any = x
    if free:
        image = Var("x", TensorType((SymDim.symbol("n"), inner), "f32"))
        body = get_op("nn.dense")(image, Constant(weight))
        model = clew.compile(Module({"main": Function([image], body)}), threads=1)
    else:
        model = compiled("nn.dense", rows, weight)
    (found,) = model.run({"x": x}).values()
    exact = x.astype(np.float64) @ weight.astype(np.float64).T
    most = 4e-7 if host().tile_shape("bf16", "bf16") is None else 6e-7  # three parts of bf16
    assert relative(found, exact) < most


@pytest.mark.parametrize(("inner", "window"), [(512, 3), (1024, 1), (96, 5), (333, 3)])
def test_direct_convolutions_are_summed_in_blocks(inner: int, window: int) -> None:
    x, weight = np.abs(drawn(1, inner, 9, 11)), drawn(32, inner, window, window, seed=1)
    model = compiled("nn.conv2d", x, weight, passes=clew.Passes(disabled=["SelectConvAlgorithm"]))
    (found,) = model.run({"x": x}).values()
    assert relative(found, convolved(x, weight)) < 4e-7


@pytest.mark.parametrize("inner", [16, 64, 256])
def test_the_selected_algorithm_stays_within_the_budget(inner: int) -> None:
    x = np.maximum(drawn(1, inner, 27, 30), 0)
    weight = drawn(32, inner, 3, 3, seed=1)
    wanted = convolved(x, weight)
    default = compiled("nn.conv2d", x, weight)
    direct = compiled("nn.conv2d", x, weight, passes=clew.Passes(disabled=["SelectConvAlgorithm"]))
    errors = [relative(*model.run({"x": x}).values(), wanted) for model in (default, direct)]
    assert errors[0] <= 2.3 * errors[1]


def test_expected_errors_of_tiles() -> None:
    """Random weights have the errors that docs state; those of a weight with cancelling taps are
    its own.
    """
    weight = drawn(32, 64, 3, 3)
    errors = [error_of_tiles(weight, tile) for tile in (2, 3, 4)]
    np.testing.assert_allclose(errors, [0.91, 1.42, 2.61], rtol=0.05)
    edges = np.array([[0, 1, 0], [1, -4, 1], [0, 1, 0]], np.float32)
    own = [error_of_tiles(np.broadcast_to(edges, weight.shape), tile) for tile in (2, 3, 4)]
    assert all(a < b for a, b in zip(own, errors, strict=True))
    assert error_of_tiles(np.zeros_like(weight), 4) == 0


def test_weights_are_transformed_in_f64() -> None:
    weight = drawn(8, 4, 3, 3)
    transform = get_op("nn.winograd_weight").reference_rule
    assert transform is not None
    for tile in (2, 3, 4):
        found = transform(weight, tile=tile, block=4)
        exact = transform(weight.astype(np.float64), tile=tile, block=4)
        np.testing.assert_array_equal(found, exact.astype(np.float32))


@pytest.mark.parametrize("tile", [2, 3, 4])
def test_transforms_of_images_are_exact_in_f32(tile: int) -> None:
    """Rounded factors would shift all pixels of a channel alike, also in the mean of an image."""
    found = transforms(tile)
    for matrix in (found.data_parts, found.data_rows, found.out_parts, found.out_rows):
        np.testing.assert_array_equal(matrix, matrix.astype(np.float32))


@pytest.mark.parametrize("sides", [(13, 13), (7, 28)])
def test_means_of_images_are_summed_in_blocks(sides: tuple[int, int]) -> None:
    x = np.abs(drawn(1, 64, *sides))
    image = Var("x", TensorType(x.shape, "f32"))
    one = Constant(np.eye(64, dtype=np.float32)[:, :, None, None])
    body = get_op("nn.global_avg_pool2d")(get_op("nn.conv2d")(image, one))
    model = clew.compile(Module({"main": Function([image], body)}), threads=1)
    (found,) = model.run({"x": x}).values()
    assert relative(found, x.astype(np.float64).mean((2, 3), keepdims=True)) < 1e-7


def test_long_products_of_rows_are_summed() -> None:
    x, y = np.abs(drawn(3, 20_001)), np.abs(drawn(3, 20_001, seed=1))
    rows = [Var(name, TensorType(x.shape, "f32")) for name in "xy"]
    body = get_op("sum")(get_op("multiply")(*rows), axes=(1,))
    model = clew.compile(Module({"main": Function(rows, body)}), threads=1)
    (found,) = model.run({"x": x, "y": y}).values()
    assert relative(found.ravel(), (x.astype(np.float64) * y).sum(1)) < 4e-7
