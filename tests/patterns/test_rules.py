from __future__ import annotations

import time
from typing import Any

import pytest

import clew.ops  # noqa: F401
from clew.ir.expr import Call, Expr, Function, Tuple, Var
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.ir.visit import post_order
from clew.ops.registry import get_op
from clew.patterns import (
    Match,
    RuleRewriter,
    is_op,
    rule,
    wildcard,
)
from clew.support.errors import InputError
from clew.trace.lineage import Lineage, building, recording
from clew.trace.span import Source, Span

F = TensorType((4, 4), "f32")


def op(name: str, *args: Expr, **attrs: Any) -> Call:
    with building(Span([Source(f"{name}_layer")])):
        return get_op(name)(*args, **attrs)


@pytest.fixture
def x() -> Var:
    return Var("x", F)


# --- rules ---

_a = wildcard()


@rule(is_op("exp")(is_op("log")(_a)))
def exp_of_log(found: Match) -> Expr | None:
    return found[_a]


@rule(is_op("sin")(_a))
def sin_is_cos_of_log(found: Match) -> Expr | None:
    return get_op("cos")(get_op("exp")(get_op("log")(found[_a])))


def rewritten(rules: Any, x: Var, *outputs: Expr) -> tuple[Module, Lineage]:
    lineage = Lineage()
    module = Module({"main": Function([x], Tuple(outputs))})
    with recording(lineage):
        return RuleRewriter(rules).rewrite_module(module), lineage


def names(module: Module) -> list[str]:
    return [n.op_name for n in post_order(module.main) if isinstance(n, Call)]


def test_what_a_rule_builds_is_offered_to_the_rules(x: Var) -> None:
    after, _ = rewritten([exp_of_log, sin_is_cos_of_log], x, op("sin", op("sin", x)))
    assert names(after) == ["cos", "cos"]


def test_results_come_from_the_whole_match_of_old_nodes(x: Var) -> None:
    gone = op("exp", op("log", x))
    sine = op("sin", gone)
    after, lineage = rewritten([exp_of_log, sin_is_cos_of_log], x, sine)
    (cosine,) = after.main.body.fields  # type: ignore[attr-defined]
    assert tuple(lineage.origins[cosine.id]) == (sine.id,)
    assert cosine.span.layers == ("sin_layer",)
    assert lineage.same[sine.id] == cosine.id
    assert lineage.same[gone.id] == x.id

    @rule(is_op("negative")(is_op("cos")(_a)))
    def fused(found: Match) -> Expr | None:
        return get_op("tanh")(found[_a])

    root = op("negative", op("sin", x))
    after, lineage = rewritten([sin_is_cos_of_log, exp_of_log, fused], x, root)
    (tanh,) = after.main.body.fields  # type: ignore[attr-defined]
    assert tuple(lineage.origins[tanh.id]) == (root.id, root.args[0].id)
    assert set(tanh.span.layers) == {"negative_layer", "sin_layer"}
    assert all(o in {n.id for n in post_order(root)} for o in lineage.origins[tanh.id])


def test_a_long_chain_that_becomes_one_operator_takes_linear_time(x: Var) -> None:
    """Each step has all steps before it as origins, and all their layers."""

    @rule(is_op("negative")(is_op("negative")(_a)))
    def merged(found: Match) -> Expr | None:
        return get_op("negative")(found[_a])

    count = 6000
    root: Expr = x
    layers = []
    for n in range(count):
        with building(Span([Source(f"n{n}")])):
            root = get_op("negative")(root)
        layers.append(root.id)
    begun = time.process_time()
    after, lineage = rewritten([merged], x, root)
    assert time.process_time() - begun < 10  # 0.3 s; pairwise, minutes
    (only,) = after.main.body.fields  # type: ignore[attr-defined]
    assert set(lineage.origins[only.id]) == set(layers)
    assert set(only.span.layers) == {f"n{n}" for n in range(count)}


def test_rules_that_do_not_settle_are_stopped(x: Var) -> None:
    @rule(is_op("cos")(_a))
    def back(found: Match) -> Expr | None:
        return get_op("sin")(found[_a])

    @rule(is_op("sin")(_a))
    def forth(found: Match) -> Expr | None:
        return get_op("cos")(found[_a])

    with pytest.raises(InputError) as caught:
        rewritten([back, forth], x, op("sin", x))
    assert caught.value.code == "I021"
    assert caught.value.layer == "sin_layer"


def test_uses_are_those_of_the_graph(x: Var) -> None:
    @rule(is_op("negative")(is_op("exp")(_a).used_once()))
    def fuse(found: Match) -> Expr | None:
        return get_op("tanh")(found[_a])

    shared, own = op("exp", x), op("exp", op("log", x))
    after, _ = rewritten([fuse], x, op("negative", shared), op("negative", own), shared)
    assert names(after) == ["exp", "negative", "log", "tanh"]


def test_nothing_matched_is_the_same_module(x: Var) -> None:
    module = Module({"main": Function([x], Tuple([op("tanh", x)]))})
    assert RuleRewriter([exp_of_log]).rewrite_module(module) is module


def test_many_rules_on_many_nodes_try_few(x: Var) -> None:
    """Rules are indexed by root operator: what is tried grows with the nodes only."""
    tried = []

    def silent(found: Match) -> Expr | None:
        tried.append(found.root)
        return None

    others = ["exp", "log", "sin", "cos", "tan", "sqrt", "abs", "floor", "ceil", "round", "erf"]
    rules = [rule(is_op(name)(_a))(silent) for name in others]
    y: Expr = x
    for _ in range(3000):
        y = op("negative", y)
    rewriter = RuleRewriter(rules)
    rewriter.rewrite_module(Module({"main": Function([x], Tuple([op("exp", y)]))}))
    assert len(tried) == 1
    assert rewriter.visits == 3001
