from __future__ import annotations

from typing import Any

import numpy as np

import clew.ops  # noqa: F401
from clew.ir.expr import Expr
from clew.ops.registry import get_op, register_op
from clew.passes.simplify.decompose_ops import DecomposeOps
from clew.passes.simplify.simplify_inference import SimplifyInference
from clew.trace.lineage import building
from clew.trace.span import Source, Span


def test_batch_norm_is_a_multiply_and_an_add(kit: Any) -> None:
    x = kit.var("x", 2, 4, 3, 3)
    statistics = [kit.const(kit.random(4, seed=n) ** 2 + 0.5) for n in range(4)]
    before = kit.module([x], kit.layer("nn.batch_norm", x, *statistics))
    after = kit.apply(before, SimplifyInference())
    assert "nn.batch_norm" not in kit.op_names(after)
    assert kit.op_names(after)[-1] == "add"
    kit.same(before, after)


def test_the_last_node_takes_over_the_layers_mark(kit: Any) -> None:
    x = kit.var("x", 2, 4)
    with building(Span([Source("bn", "BatchNormalization", output=0)])):
        y = get_op("nn.batch_norm")(x, *[kit.const(np.ones(4, "f4"))] * 4)
    after = kit.apply(kit.module([x], y), SimplifyInference())
    (last,) = after.main.body.fields
    assert [s.output for s in last.span.sources if s.layer == "bn"] == [0]
    assert all(s.output is None for a in last.args for s in a.span.sources if s.layer == "bn")


def test_identities_go(kit: Any) -> None:
    x = kit.var("x", 2, 4)
    y = kit.layer("exp", kit.layer("identity", kit.layer("identity", x)))
    after = kit.apply(kit.module([x], y), SimplifyInference())
    assert kit.op_names(after) == ["exp"]


def test_nothing_to_do_is_the_same_object(kit: Any) -> None:
    x = kit.var("x", 2, 4)
    given = kit.module([x], kit.layer("exp", x))
    assert kit.apply(given, SimplifyInference(), DecomposeOps()) is given


def test_operators_declared_by_others_are_expanded(kit: Any) -> None:
    @register_op("test.square", overwrite=True)
    def square(x: Any) -> Any: ...

    @square.types
    def _(x: Any) -> Any:
        return x

    @square.decompose
    def _(x: Expr) -> Expr:
        return get_op("multiply")(x, x)

    @register_op("test.fourth", overwrite=True)
    def fourth(x: Any) -> Any: ...

    @fourth.types
    def _(x: Any) -> Any:
        return x

    @fourth.decompose
    def _(x: Expr) -> Expr:
        return square(square(x))

    x = kit.var("x", 2, 4)
    given = kit.module([x], kit.layer("test.fourth", x))
    after = kit.apply(given, DecomposeOps())
    assert kit.op_names(after) == ["multiply", "multiply"]
    values = kit.random(2, 4)
    (found,) = kit.interpret(after, {"x": values})
    np.testing.assert_allclose(found, values**4, rtol=1e-5)
