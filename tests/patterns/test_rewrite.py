"""Rewriting: classes, several outputs, errors, random graphs, and how much work it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clew.ops  # noqa: F401
from clew.ir.expr import Call, Constant, Expr, Function, If, Tuple, TupleGetItem, Var
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.ir.visit import post_order
from clew.ops.registry import get_op
from clew.patterns import (
    Match,
    Rewrite,
    RuleRewriter,
    is_composite,
    is_if,
    is_op,
    is_splat,
    is_tuple,
    is_var,
    rewrite,
    rule,
    wildcard,
)
from clew.support.errors import InputError

a, b = wildcard(), wildcard()


def names(function: Function) -> list[str]:
    return [n.op_name for n in post_order(function) if isinstance(n, Call)]


class NegateTwice(Rewrite):
    pattern = is_op("negative")(-a)

    def rewrite(self, found: Match) -> Expr | None:
        return found[a]


class Difference(Rewrite):
    pattern = a - b

    def rewrite(self, found: Match) -> Expr | None:
        return get_op("add")(found[a], get_op("negative")(found[b]))


@rule(a * 2)
def doubled(found: Match) -> Expr | None:
    return get_op("add")(found[a], found[a])


@rule(-(a + b))
def negated_sum(found: Match) -> Expr | None:
    return get_op("add")(get_op("negative")(found[a]), get_op("negative")(found[b]))


@rule(is_op("maximum")(a, a))
def larger_of_one(found: Match) -> Expr | None:
    return found[a]


@rule(a + is_splat(0) | a * is_splat(1))
def nothing_done(found: Match) -> Expr | None:
    return found[a]


@rule(is_op("split")(a))
def parts(found: Match) -> Expr | None:
    """Several outputs: users of one get that field."""
    fields, begin = [], 0
    for size in found.attrs.sizes:
        part = get_op("slice")(found[a], begin=(begin,), end=(begin + size,), axes=(0,))
        fields.append(part)
        begin += size
    return Tuple(fields)


_left, _right = wildcard(), wildcard()
_shared = (_left * a) + (_right * a)


@rule(_shared)
def common_factor(found: Match) -> Expr | None:
    return get_op("multiply")(get_op("add")(found[_left], found[_right]), found[a])


RULES = (NegateTwice, Difference(), doubled, negated_sum, larger_of_one, nothing_done, parts)


def test_rules_and_classes_on_functions_and_modules(kit: Any) -> None:
    x = Var("x", kit.I)
    function = Function(
        [x], Tuple([kit.op("negative", kit.op("negative", x))]), {"outputs": ("z",)}
    )
    after = rewrite(function, NegateTwice)
    assert after.body.fields == (x,)  # type: ignore[attr-defined]
    module = rewrite(Module({"main": function}), NegateTwice())
    assert names(module.main) == []
    assert rewrite(after, *RULES) is after


def test_a_class_may_refuse_matches_within_the_search(kit: Any) -> None:
    class VariableFirst(Rewrite):
        pattern = a + b

        def accepts(self, found: Match) -> bool:
            return isinstance(found[a], Var) and not isinstance(found[b], Var)

        def rewrite(self, found: Match) -> Expr | None:
            return get_op("subtract")(found[a], found[b])

    x = Var("x", kit.I)
    node = kit.op("add", kit.op("abs", x), x)
    after = rewrite(Function([x], node), VariableFirst)
    assert names(after) == ["abs", "subtract"]
    assert after.body.args[0] is x  # type: ignore[attr-defined]


def test_users_of_several_outputs_get_the_fields(kit: Any) -> None:
    x = Var("x", kit.I)
    halves = kit.op("split", x, sizes=(1, 3), axis=0)
    ends = [TupleGetItem(halves, n) for n in (1, 0, 1)]
    function = Function([x], Tuple([*ends, halves]))
    after = rewrite(function, parts)
    one, zero, again, both = after.body.fields  # type: ignore[attr-defined]
    assert one is again
    assert isinstance(both, Tuple)
    assert both.fields == (zero, one)
    assert names(after) == ["slice", "slice"]


def test_random_graphs_keep_their_values(kit: Any) -> None:
    changed = 0
    for seed in range(400):
        function = kit.graph(seed, 14)
        after = rewrite(function, *RULES, common_factor)
        assert kit.equal(function, after), seed
        assert not {"subtract", "split"} & set(names(after))
        changed += after is not function
    assert changed > 350


def test_branches_and_tuples_are_roots_too(kit: Any) -> None:
    x, cond = Var("x", kit.I), Var("c", TensorType((), "bool"))
    p = Var("p", kit.I)
    side = Function([p], kit.op("abs", p))
    node = If(cond, side, side, [x])

    @rule(is_if(is_var("c"), is_op("abs")(wildcard()), is_op("abs")(wildcard()), [a]))
    def same_sides(found: Match) -> Expr | None:
        return get_op("abs")(found[a])

    @rule(is_tuple([a, b]))
    def swapped(found: Match) -> Expr | None:
        return None if isinstance(found[a], Var) else Tuple([found[b], found[a]])

    after = rewrite(Function([cond, x], Tuple([node, x])), same_sides, swapped)
    first, second = after.body.fields  # type: ignore[attr-defined]
    assert first is x
    assert second.op_name == "abs"


def test_calls_of_composites_are_rewritten(kit: Any) -> None:
    x, p = Var("x", kit.I), Var("p", kit.I)
    function = Function([p], kit.op("abs", p), {"composite": "size", "name": "size"})

    @rule(is_composite("size", a))
    def maximum(found: Match) -> Expr | None:
        return get_op("maximum")(found[a], get_op("negative")(found[a]))

    after = rewrite(Function([x], Tuple([Call(function, [x])]), {"outputs": ("z",)}), maximum)
    assert names(after) == ["negative", "maximum"]


# --- what goes wrong ---


@rule(is_op("sin")(a))
def to_cos(found: Match) -> Expr | None:
    return get_op("cos")(found[a])


@rule(is_op("cos")(a))
def to_tan(found: Match) -> Expr | None:
    return get_op("tan")(found[a])


@rule(is_op("tan")(a))
def to_sin(found: Match) -> Expr | None:
    return get_op("sin")(found[a])


def test_rules_that_go_round_are_shown(kit: Any) -> None:
    x = Var("x", TensorType((4,), "f32"))
    function = Function([x], kit.op("sin", kit.op("exp", x), layer="wave"))
    with pytest.raises(InputError) as caught:
        rewrite(function, to_cos, to_tan, to_sin)
    assert caught.value.code == "I021"
    assert caught.value.layer == "wave"
    text = str(caught.value)
    for name in ("to_cos", "to_tan", "to_sin"):
        assert name in text
    assert "sin(exp(%x))  ->  cos(exp(%x))" in text
    assert text.count("->") == 3


def test_a_rule_that_grows_is_shown_shortened(kit: Any) -> None:
    @rule(is_op("exp")(a))
    def longer(found: Match) -> Expr | None:
        return get_op("exp")(get_op("negative")(get_op("negative")(found[a])))

    x = Var("x", TensorType((4,), "f32"))
    with pytest.raises(InputError) as caught:
        rewrite(Function([x], kit.op("exp", x)), longer)
    assert "longer" in caught.value.message
    assert "..." in caught.value.message
    assert all(len(line) < 200 for line in str(caught.value).splitlines())


def test_a_result_of_another_type_is_refused(kit: Any) -> None:
    @rule(is_op("abs")(a))
    def shorter(found: Match) -> Expr | None:
        return get_op("sum")(found[a], axes=(0,))

    x = Var("x", kit.I)
    with pytest.raises(InputError) as caught:
        rewrite(Function([x], kit.op("abs", x, layer="size")), shorter)
    assert caught.value.code == "I024"
    assert caught.value.layer == "size"
    assert "shorter" in caught.value.message


def test_what_is_no_rule_is_refused(kit: Any) -> None:
    class Without(Rewrite):
        pass

    x = Var("x", kit.I)
    for wrong in (Without, lambda found: None, wildcard()):
        with pytest.raises(InputError) as caught:
            rewrite(Function([x], x), wrong)  # type: ignore[type-var]
        assert caught.value.code == "I025"


# --- work ---


def test_twenty_rules_on_ten_thousand_nodes_are_linear(kit: Any) -> None:
    """Steps of the matcher, not seconds: two sizes, and a bound for each node."""
    others = [
        rule(is_op(name)(is_op("exp")(a)))(lambda found: None)
        for name in ("sin", "cos", "tan", "log", "sqrt", "abs", "floor", "ceil", "erf", "tanh")
    ]
    bias = Constant(np.ones(4, "f4"))
    blocks = [
        rule(is_op("multiply")(a, is_op("sigmoid")(a)))(lambda found: None),
        rule(is_op("add")(is_op("add")(a, b), is_op("exp")(a)))(lambda found: None),
        rule(is_op("nn.relu")(a + is_splat(7)).used_once())(lambda found: None),
    ]
    rules = [*others, *blocks, *RULES]
    assert len(rules) == 20
    steps = []
    for length in (1_000, 10_000):
        x: Expr = Var("x", TensorType((4,), "f32"))
        y = x
        for n in range(length):
            if n % 3 == 0:
                y = get_op("add")(y, bias)
            else:
                y = get_op("nn.relu" if n % 3 == 1 else "sin")(y)
        rewriter = RuleRewriter(rules)
        function = Function([x], Tuple([y]))  # type: ignore[list-item]
        assert rewriter.rewrite_function(function) is function
        assert rewriter.visits == length
        steps.append(rewriter.steps)
    assert steps[1] <= 10.1 * steps[0]
    assert steps[1] < 15 * 10_000
