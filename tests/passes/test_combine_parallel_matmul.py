from __future__ import annotations

from typing import Any

import pytest

import clew.ops  # noqa: F401
from clew.passes.simplify.combine_parallel_matmul import CombineParallelMatmul
from clew.passes.simplify.fold_constant import FoldConstant


def attention_inputs(kit: Any, layout: str, biased: bool) -> Any:
    x = kit.var("x", 2, 3, 8)
    heads = []
    for n in range(3):
        shape = (6, 8) if layout == "NK" else (8, 6)
        y = kit.layer("nn.dense", x, kit.const(kit.random(*shape, seed=n)), weight_layout=layout)
        if biased:
            y = kit.layer("add", y, kit.const(kit.random(6, seed=n)))
        y = kit.layer("reshape", y, shape=(2, 3, 2, 3))
        heads.append(kit.layer("transpose", y, axes=(0, 2, 1, 3)))
    return kit.module([x], *heads)


@pytest.mark.parametrize("layout", ["NK", "KN"])
@pytest.mark.parametrize("biased", [True, False])
def test_parallel_layers_become_one(kit: Any, layout: str, biased: bool) -> None:
    before = attention_inputs(kit, layout, biased)
    after = kit.apply(before, CombineParallelMatmul(), FoldConstant())
    names = kit.op_names(after)
    assert names.count("nn.dense") == 1
    assert names.count("add") == int(biased)
    assert names.count("slice") == 3
    kit.same(before, after)


def test_layers_with_arithmetic_after_them_stay(kit: Any) -> None:
    x = kit.var("x", 2, 8)
    gate, up = (kit.layer("nn.dense", x, kit.const(kit.random(6, 8, seed=n))) for n in range(2))
    given = kit.module([x], kit.layer("multiply", kit.layer("nn.silu", gate), up))
    manager = kit.PassManager([CombineParallelMatmul()])
    assert manager.run(given) is given
    assert any("nn.silu follows" in r.text for r in manager.stages[-1].remarks)


def test_layers_of_different_data_stay(kit: Any) -> None:
    x, y = kit.var("x", 2, 8), kit.var("y", 2, 8)
    weight = kit.const(kit.random(6, 8))
    outs = [kit.layer("reshape", kit.layer("nn.dense", v, weight), shape=(12,)) for v in (x, y)]
    given = kit.module([x, y], *outs)
    assert kit.apply(given, CombineParallelMatmul()) is given
