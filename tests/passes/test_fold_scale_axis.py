from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clew.ops  # noqa: F401
from clew.passes.convolution.fold_scale_axis import FoldScaleAxis
from clew.passes.simplify.fold_constant import FoldConstant
from clew.passes.simplify.simplify_inference import SimplifyInference


def test_batch_norm_becomes_other_weights_and_one_bias(kit: Any) -> None:
    x = kit.var("x", 1, 4, 6, 6)
    y = kit.layer("nn.conv2d", x, kit.const(kit.random(8, 4, 3, 3)), padding=(1, 1, 1, 1))
    y = kit.layer("add", y, kit.const(kit.random(8, 1, 1)))
    statistics = [kit.const(kit.random(8, seed=n) ** 2 + 0.5) for n in range(4)]
    y = kit.layer("nn.relu", kit.layer("nn.batch_norm", y, *statistics))
    before = kit.module([x], y)
    after = kit.apply(before, SimplifyInference(), FoldConstant(), FoldScaleAxis())
    assert kit.op_names(after) == ["nn.conv2d", "add", "nn.relu"]
    kit.same(before, after)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_a_scale_before_goes_into_the_input_channels(kit: Any, groups: int) -> None:
    x = kit.var("x", 2, 4, 5, 5)
    scaled = kit.layer("multiply", x, kit.const(kit.random(4, 1, 1)))
    weight = kit.const(kit.random(8, 4 // groups, 3, 3))
    y = kit.layer("nn.conv2d", scaled, weight, groups=groups, padding=(1, 1, 1, 1))
    before = kit.module([x], y)
    after = kit.apply(before, FoldScaleAxis())
    assert kit.op_names(after) == ["nn.conv2d"]
    kit.same(before, after)


@pytest.mark.parametrize("layout", ["NK", "KN"])
def test_dense_takes_scales_on_both_sides(kit: Any, layout: str) -> None:
    x = kit.var("x", 2, 3, 6)
    shape = (5, 6) if layout == "NK" else (6, 5)
    y = kit.layer("multiply", x, kit.const(kit.random(6)))
    y = kit.layer("nn.dense", y, kit.const(kit.random(*shape)), weight_layout=layout)
    y = kit.layer(
        "multiply", kit.layer("add", y, kit.const(kit.random(5))), kit.const(np.float32(3))
    )
    before = kit.module([x], y)
    after = kit.apply(before, FoldScaleAxis())
    assert kit.op_names(after) == ["nn.dense", "add"]
    kit.same(before, after)


def test_a_layer_with_other_users_keeps_its_weight(kit: Any) -> None:
    x = kit.var("x", 1, 4, 6, 6)
    y = kit.layer("nn.conv2d", x, kit.const(kit.random(8, 4, 3, 3)))
    scaled = kit.layer("multiply", y, kit.const(kit.random(8, 1, 1)))
    given = kit.module([x], scaled, y)
    assert kit.apply(given, FoldScaleAxis()) is given


@pytest.mark.parametrize("scale", [np.ones((8, 6, 1), "f4"), np.full((8, 1, 1), np.inf, "f4")])
def test_what_is_not_per_channel_or_not_finite_stays(kit: Any, scale: Any) -> None:
    x = kit.var("x", 1, 4, 6, 6)
    y = kit.layer("nn.conv2d", x, kit.const(kit.random(8, 4, 1, 1)))
    given = kit.module([x], kit.layer("multiply", y, kit.const(scale * 2)))
    assert kit.apply(given, FoldScaleAxis()) is given


def _scales(kit: Any, steps: list[tuple[str, Any]]) -> Any:
    y = x = kit.var("x", 2, 4, 5, 6)
    for op, value in steps:
        y = kit.layer(op, y, kit.const(value))
    return kit.module([x], kit.layer("nn.relu", y))


def test_scales_and_shifts_in_a_row_become_one_of_each(kit: Any) -> None:
    """Two batch norms without a layer between them, as in a network of dense blocks."""
    a, b, c, d = (kit.random(4, 1, 1, seed=n) + np.float32(2) for n in range(4))
    chain = [("multiply", a), ("add", b), ("multiply", c), ("add", d)]
    before = _scales(kit, chain)
    after = kit.apply(before, FoldScaleAxis())
    assert kit.op_names(after) == ["multiply", "add", "nn.relu"]
    kit.same(before, after)
    before = _scales(kit, [("multiply", a), ("multiply", np.float32(0.5)), *chain, ("add", b)])
    after = kit.apply(before, FoldScaleAxis())
    assert kit.op_names(after) == ["multiply", "add", "nn.relu"]
    kit.same(before, after)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (np.full((4, 1, 1), 1e30, "f4"), np.full((4, 1, 1), 1e30, "f4")),  # infinite
        (np.full((4, 1, 1), 1e-30, "f4"), np.full((4, 1, 1), 1e-30, "f4")),  # lost
        (np.ones((4, 1, 1), "f4") * 2, np.ones((5, 6), "f4") * 3),  # larger than either
    ],
)
def test_scales_whose_product_is_no_better_stay(kit: Any, first: Any, second: Any) -> None:
    given = _scales(kit, [("multiply", first), ("multiply", second)])
    assert kit.apply(given, FoldScaleAxis()) is given


def test_a_scaled_value_with_other_users_stays(kit: Any) -> None:
    x = kit.var("x", 2, 4)
    once = kit.layer("multiply", x, kit.const(kit.random(4)))
    given = kit.module([x], kit.layer("multiply", once, kit.const(kit.random(4, seed=1))), once)
    assert kit.apply(given, FoldScaleAxis()) is given
