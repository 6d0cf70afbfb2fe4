from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clew.ops  # noqa: F401
from clew.passes.fold_constant import FoldConstant
from clew.passes.fold_scale_axis import FoldScaleAxis
from clew.passes.simplify_inference import SimplifyInference


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
