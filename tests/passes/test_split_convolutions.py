"""Which 1x1 convolutions become products of parts, and that they give what they gave."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clew.ir.interpret import interpret
from clew.passes.alter_layout import AlterLayout
from clew.passes.fold_constant import FoldConstant
from clew.passes.split_convolutions import SplitConvolutions


def network(
    kit: Any, inner: int, outer: int, size: tuple[int, int], taps: int = 1, **attrs: Any
) -> Any:
    x = kit.var("x", 1, inner, *size)
    weight = kit.const(kit.random(outer, inner, taps, taps, seed=3))
    return kit.module([x], kit.layer("nn.relu", kit.layer("nn.conv2d", x, weight, **attrs)))


def after(kit: Any, module: Any, options: SplitConvolutions | None = None) -> Any:
    passes = [AlterLayout(), options or SplitConvolutions(), FoldConstant()]
    return kit.PassManager(passes, target=kit.Tiles()).run(module)


@pytest.mark.parametrize(
    ("inner", "outer", "size", "attrs", "split"),
    [
        (64, 128, (12, 12), {}, True),
        (64, 128, (24, 23), {"strides": (2, 2)}, True),
        (64, 96, (12, 12), {}, False),  # few filters
        (64, 128, (7, 7), {}, False),  # few pixels
        (48, 128, (12, 12), {}, False),  # half a tile of depth
        (32, 128, (12, 12), {}, False),  # little to sum up
        (64, 128, (14, 14), {"taps": 3}, False),
        (64, 128, (12, 24), {"strides": (1, 2)}, False),
        (128, 128, (12, 12), {"groups": 2}, False),
    ],
)  # fmt: skip
def test_which_convolutions(
    kit: Any, inner: int, outer: int, size: tuple[int, int], attrs: dict[str, Any], *, split: bool
) -> None:
    given = {**attrs}
    if "groups" in given:
        x = kit.var("x", 1, inner, *size)
        weight = kit.const(kit.random(outer, inner // 2, 1, 1, seed=3))
        module = kit.module([x], kit.layer("nn.conv2d", x, weight, **given))
    else:
        module = network(kit, inner, outer, size, **given)
    assert ("nn.pointwise_conv2d" in kit.op_names(after(kit, module))) is split


@pytest.mark.parametrize("stride", [1, 2])
def test_values_are_kept_in_pieces_too(kit: Any, stride: int) -> None:
    options = SplitConvolutions(share_of_cache=0.05, least_piece=64)
    module = network(kit, 192, 144, (15 * stride, 14 * stride), strides=(stride, stride))
    x = kit.random(1, 192, 15 * stride, 14 * stride, seed=5)
    (expected,) = interpret(module, {"x": x}).values()
    changed = after(kit, module, options)
    assert kit.op_names(changed).count("nn.pointwise_conv2d") > 1
    (found,) = interpret(changed, {"x": x}).values()
    assert np.abs(found - expected).max() <= 1e-6 * np.abs(expected).max()
