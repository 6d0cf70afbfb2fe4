"""What holds for each pass of the pipeline: depth, linear work, interpretation, provenance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clew.ops  # noqa: F401
from clew.ir.expr import Expr
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.ir.visit import post_order
from clew.machine.target import target_of
from clew.passes.base import Pass
from clew.pipelines import pipeline

PASSES: list[Pass] = list({p.name: p for p in pipeline(3, "bf16")}.values())


def chain(kit: Any, length: int) -> Module:
    x = kit.var("x", 8)
    y: Expr = x
    constant = kit.const(kit.random(8))
    for n in range(length):
        y = kit.layer("add", y, constant) if n % 2 else kit.layer("nn.relu", y)
    return kit.module([x], y)


@pytest.mark.parametrize("current", PASSES, ids=lambda p: p.name)
def test_deep_chains_pass(kit: Any, current: Pass) -> None:
    """Far deeper than Python recurses."""
    given = chain(kit, 6_000)
    manager = kit.PassManager([current], target=kit.tiles())
    after = manager.run(given)
    assert len(kit.op_names(after)) == 6_000


# Without a call of a function, a list, an empty value, a loop, a branch, a narrow float or a state
# these do not start to rewrite.
IDLE = (
    "InlineComposites", "FoldStructure", "FoldEmpty", "StackAppends", "UnrollLoops",
    "BindConstants", "WidenHalves", "RelateSizes", "StackSequences", "WriteInPlace",
    "FlattenSequences", "CombineLookups", "MapRows",
)  # fmt: skip


@pytest.mark.parametrize("current", PASSES, ids=lambda p: p.name)
def test_work_is_linear(kit: Any, current: Pass, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    visit = Rewriter._visit

    def counted(self: Rewriter, node: Expr) -> Expr:
        counts[-1] += 1
        return visit(self, node)

    monkeypatch.setattr(Rewriter, "_visit", counted)
    for length in (200, 2_000):
        given = chain(kit, length)
        counts.append(0)
        target = target_of("cpu-avx2") if current.name == "FillGroups" else kit.tiles()
        kit.PassManager([current], target=target).run(given)
    assert 0 < counts[1] <= 11 * counts[0] or (current.name in IDLE and not counts[1])


def network(kit: Any) -> Module:
    """A residual block with batch norms and a squeeze gate, and an attention head on its result."""
    x = kit.var("x", 1, 3, 12, 12)
    y = conv(kit, x, 16, 3, seed=1, padding=(1, 1, 1, 1), strides=(2, 2))
    short = y
    y = conv(kit, y, 16, 16, seed=2, padding=(1, 1, 1, 1))
    y = conv(kit, y, 16, 1, seed=3, padding=(1, 1, 1, 1), groups=16)
    gate = kit.layer("mean", y, axes=(2, 3), keepdims=True)
    gate = kit.layer("nn.conv2d", gate, kit.const(kit.random(16, 16, 1, 1)))
    y = kit.layer("multiply", y, kit.layer("sigmoid", gate))
    y = kit.layer("identity", kit.layer("add", y, short))
    y = kit.layer("nn.max_pool2d", y, kernel=(2, 2), strides=(2, 2))
    y = kit.layer("transpose", kit.layer("reshape", y, shape=(1, 16, 9)), axes=(0, 2, 1))
    return kit.module([x], attention(kit, y), y)


def conv(kit: Any, x: Expr, channels: int, inner: int, seed: int, **attrs: Any) -> Expr:
    weight = kit.const(kit.random(channels, inner, 3, 3, seed=seed) * np.float32(0.2))
    y = kit.layer("nn.conv2d", x, weight, **attrs)
    statistics = [kit.const(kit.random(channels, seed=seed + n) ** 2 + 0.5) for n in range(4)]
    y = kit.layer("nn.batch_norm", y, *statistics)
    return kit.layer("multiply", y, kit.layer("sigmoid", y))


def attention(kit: Any, x: Expr) -> Expr:
    heads = []
    for n, axes in enumerate([(0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)]):
        y = kit.layer("nn.matmul", x, kit.const(kit.random(16, 16, seed=n) * np.float32(0.3)))
        y = kit.layer("add", kit.const(kit.random(16, seed=n)), y)
        y = kit.layer("reshape", y, shape=(1, 9, 2, 8))
        heads.append(kit.layer("transpose", y, axes=axes))
    scores = kit.layer("nn.matmul", heads[0], heads[1])
    scores = kit.layer("divide", scores, kit.const(np.float32(np.sqrt(8))))
    y = kit.layer("nn.matmul", kit.layer("nn.softmax", scores, axis=-1), heads[2])
    y = kit.layer("transpose", y, axes=(0, 2, 1, 3))
    return kit.layer("reshape", y, shape=(1, 9, 16))


@pytest.mark.parametrize("current", PASSES, ids=lambda p: p.name)
def test_each_pass_keeps_the_values(kit: Any, current: Pass) -> None:
    given = network(kit)
    rounds = 2e-2 if current.name == "ConvertPrecision" else 2e-5
    kit.same(given, kit.apply(given, current, opt_level=3), rounds)


@pytest.mark.parametrize("level", range(4))
def test_the_pipeline_keeps_the_values(kit: Any, level: int) -> None:
    given = network(kit)
    kit.same(given, kit.apply(given, *pipeline(level), opt_level=level), 1e-4)


def test_a_second_run_changes_nothing_more(kit: Any) -> None:
    passes = [p for p in pipeline(3) if p.name not in ("FuseOps",)]
    once = kit.apply(network(kit), *passes)
    assert kit.op_names(kit.apply(once, *passes)) == kit.op_names(once)


def test_every_same_link_holds(kit: Any) -> None:
    """What a stage says computes an old node's value does, layouts aside."""
    given = network(kit)
    manager = kit.PassManager(
        [p for p in pipeline(3) if p.name not in ("AlterLayout", "FuseOps")], target=kit.lanes()
    )
    manager.run(given)
    data = {"x": kit.random(1, 3, 12, 12)}
    checked = 0
    for stage in manager.stages[1:]:
        olds = {n.id: n for n in post_order(stage.before.module.main.body)}
        news = {n.id: n for n in post_order(stage.module.main.body)}
        pairs = [(olds[a], news[b]) for a, b in stage.same.items() if a in olds and b in news]
        pairs = [p for p in pairs if hasattr(p[0].type, "shape")]
        if not pairs:
            continue
        before, after = (
            kit.interpret(kit.module(stage.module.main.params, *(p[n] for p in pairs)), data)
            for n in range(2)
        )
        for a, b in zip(before, after, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
        checked += len(pairs)
    assert checked > 30
