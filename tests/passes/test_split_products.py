"""Dense layers of f32 as products of parts: which, in how many pieces, and how exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clew.ir.dims import SymDim, expecting
from clew.ir.interpret import interpret
from clew.ir.types import to_numpy
from clew.ops.math.parts import cut_parts, parts_of
from clew.passes.precision.split_products import SplitProducts


def dense(kit: Any, rows: int, depth: int, units: int, **attrs: Any) -> Any:
    x = kit.var("x", rows, depth)
    weight = kit.const(kit.random(units, depth, seed=3))
    return kit.module([x], kit.layer("nn.dense", x, weight, **attrs))


def names(kit: Any, module: Any, options: SplitProducts, machine: Any) -> list[str]:
    manager = kit.PassManager([options], target=machine)
    return list(kit.op_names(manager.run(module)))


@pytest.mark.parametrize(
    ("rows", "depth", "units", "split"),
    [
        (16, 64, 32, True), (15, 64, 32, False), (16, 32, 32, False), (16, 64, 31, False),
        (16, 72, 32, False),
    ],
)  # fmt: skip
def test_large_layers_are_split(
    kit: Any, rows: int, depth: int, units: int, *, split: bool
) -> None:
    found = names(kit, dense(kit, rows, depth, units), SplitProducts(), kit.tiles())
    assert found == (["split_parts", "nn.dense"] if split else ["nn.dense"])


def test_nothing_is_split_without_a_matrix_unit(kit: Any) -> None:
    module = dense(kit, 64, 64, 64)
    manager = kit.PassManager([SplitProducts()], target=kit.lanes())
    assert manager.run(module) is module


def test_only_finite_weights_are_split(kit: Any) -> None:
    x, values = kit.var("x", 32, 64), kit.random(32, 64, seed=3)
    for value in (np.inf, np.nan):
        values[17, 5] = value
        module = kit.module([x], kit.layer("nn.dense", x, kit.const(values)))
        assert names(kit, module, SplitProducts(), kit.tiles()) == ["nn.dense"]


def test_a_deep_layer_is_several_products(kit: Any) -> None:
    options = SplitProducts(share_of_cache=0.05, least_piece=64)
    found = names(kit, dense(kit, 64, 256, 32), options, kit.tiles())
    assert found.count("nn.dense") == 2
    assert found.count("split_parts") == found.count("add") == 1


def free(kit: Any, depth: int, units: int) -> Any:
    x = kit.var("x", SymDim.symbol("batch"), SymDim.symbol("seq"), depth)
    weight = kit.const(kit.random(units, depth, seed=3))
    return kit.module([x], kit.layer("nn.dense", x, weight))


def test_free_rows_are_products_of_numbers_or_parts(kit: Any) -> None:
    found = names(kit, free(kit, 64, 32), SplitProducts(), kit.tiles())
    assert found == ["nn.dense_by_rows"]
    assert names(kit, free(kit, 72, 32), SplitProducts(), kit.tiles()) == ["nn.dense"]
    assert names(kit, free(kit, 64, 32), SplitProducts(), kit.lanes()) == ["nn.dense"]
    with expecting((("batch", 1), ("seq", 8))):  # few rows are all that is expected
        assert names(kit, free(kit, 64, 32), SplitProducts(), kit.tiles()) == ["nn.dense"]


def test_a_deep_layer_of_free_rows_is_several_products(kit: Any) -> None:
    found = names(kit, free(kit, 4096, 32), SplitProducts(), kit.tiles())
    assert found.count("nn.dense_by_rows") > 1
    assert found.count("add") == found.count("nn.dense_by_rows") - 1


@pytest.mark.parametrize("scale", [1.0, 1e-20, 1e18])
def test_as_exact_as_products_of_f32(kit: Any, scale: float) -> None:
    options = SplitProducts(share_of_cache=0.05, least_piece=64)
    before = dense(kit, 20, 256, 32)
    manager = kit.PassManager([options], target=kit.tiles())
    x = (kit.random(20, 256, seed=5) * scale).astype(np.float32)
    (found,) = interpret(manager.run(before), {"x": x}).values()
    weight = kit.random(32, 256, seed=3).astype(np.float64)
    exact = x.astype(np.float64) @ weight.T
    assert np.abs(found - exact).max() <= 2e-7 * np.abs(exact).max()


def test_parts_that_are_cut_add_up() -> None:
    draw = np.random.default_rng(1)
    x = (draw.standard_normal(4000) * 10.0 ** draw.integers(-25, 30, 4000)).astype(np.float32)
    x = np.concatenate([x, np.array([3.4028235e38, -3.4e38, 0.0], np.float32)])
    pieces = cut_parts(x, 3)
    np.testing.assert_array_equal(sum(p.astype(np.float64) for p in pieces), x)
    for piece in pieces:  # each is a bf16
        np.testing.assert_array_equal(piece.astype(to_numpy("bf16")).astype(np.float32), piece)


def test_parts_add_up() -> None:
    draw = np.random.default_rng(1)
    x = (draw.standard_normal(4000) * 10.0 ** draw.integers(-25, 30, 4000)).astype(np.float32)
    total = sum(p.astype(np.float64) for p in parts_of(x, 3))
    assert (np.abs(total - x) <= np.abs(x) * 2.0**-25).all()
    special = np.array([np.inf, -np.inf, np.nan, 3.4028235e38, -3.4e38, 0.0], np.float32)
    first, second, third = parts_of(special, 3)
    np.testing.assert_array_equal(first[:3].astype(np.float32), special[:3])
    assert not second[:3].any()
    assert not third[:3].any()
    whole = sum(p[3:].astype(np.float64) for p in (first, second, third))
    np.testing.assert_allclose(whole, special[3:], rtol=2.0**-24)
