"""Partitioning: what becomes a function, what is refused and why, and never a cycle."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import clew.ops  # noqa: F401
from clew.ir.expr import Call, Constant, Expr, Function, If, Tuple, TupleGetItem, Var
from clew.ir.module import Module
from clew.ir.structural import structural_equal
from clew.ir.types import TensorType
from clew.ir.visit import post_order
from clew.passes.base import PassContext
from clew.passes.simplify.inline_composites import InlineComposites
from clew.passes.verify import verify
from clew.patterns import (
    Pattern,
    dominates,
    is_constant,
    is_if,
    is_op,
    is_tuple_get_item,
    partition,
    wildcard,
)

NEGATIVE = is_op("negative")


def composites(function: Function) -> list[Call]:
    nodes = post_order(function.body)
    return [n for n in nodes if isinstance(n, Call) and isinstance(n.op, Function)]


def inside(call: Call) -> list[str]:
    assert isinstance(call.op, Function)
    return [n.op_name for n in post_order(call.op.body) if isinstance(n, Call)]


def divided(pattern: Pattern, function: Function, **options: Any) -> tuple[Function, list[str]]:
    reasons: list[str] = []
    after = partition(
        function, pattern, "part", on_refusal=lambda node, why: reasons.append(why), **options
    )
    return after, reasons


@pytest.fixture
def x(kit: Any) -> Var:
    return Var("x", kit.I)


def test_a_match_becomes_a_composite(kit: Any, x: Var) -> None:
    named, given = Constant.splat(2, kit.I), Constant.splat(3, kit.I)
    body = kit.op("add", kit.op("multiply", kit.op("abs", x), named), given)
    function = Function([x], Tuple([kit.op("negative", body)]), {"outputs": ("z",)})
    pattern = (wildcard() * is_constant()) + wildcard()
    after, reasons = divided(pattern, function, attrs={"unit": 3})
    (call,) = composites(after)
    assert reasons == []
    assert inside(call) == ["multiply", "add"]
    assert call.op.attrs["composite"] == "part"  # type: ignore[union-attr]
    assert call.op.attrs["unit"] == 3  # type: ignore[union-attr]
    assert call.op_name == "part"
    # A constant that the pattern names is inside; what a wildcard matched is an argument.
    assert [a.op_name if isinstance(a, Call) else a for a in call.args] == ["abs", given]
    assert any(n is named for n in post_order(call.op.body))  # type: ignore[union-attr]
    assert kit.equal(function, after)
    verify(Module({"main": after}))
    assert partition(after, pattern, "again") is after


def test_a_module_is_divided_with_its_branches(kit: Any, x: Var) -> None:
    cond, p = Var("c", TensorType((), "bool")), Var("p", kit.I)
    pattern = is_op("abs")(-wildcard())
    side = Function([p], kit.op("abs", kit.op("negative", p)))
    other = Function([p], p)
    node = kit.op("abs", kit.op("negative", If(cond, side, other, [x])))
    module = Module({"main": Function([cond, x], Tuple([node]), {"outputs": ("z",)})})
    after = partition(module, pattern, "part")
    verify(after)
    (call,) = composites(after.main)
    (branch,) = [n for n in post_order(after.main.body) if isinstance(n, If)]
    assert inside(call) == ["negative", "abs"]
    assert len(composites(branch.then)) == 1
    assert composites(branch.orelse) == []
    whole = is_op("abs")(-is_if())
    (call,) = composites(partition(module, whole, "whole").main)
    assert any(isinstance(n, If) for n in post_order(call.op.body))  # type: ignore[union-attr]


def test_a_value_used_outside_is_refused_or_becomes_an_output(kit: Any, x: Var) -> None:
    inner = kit.op("negative", x, layer="flip")
    root = kit.op("abs", inner)
    function = Function(
        [x], Tuple([kit.op("maximum", root, kit.op("add", inner, x))]), {"outputs": ("z",)}
    )
    pattern = is_op("abs")(-wildcard())
    after, reasons = divided(pattern, function)
    assert after is function
    assert len(reasons) == 1
    assert "flip" in reasons[0]
    assert "used outside" in reasons[0]
    after, reasons = divided(pattern, function, extra_outputs=True)
    (call,) = composites(after)
    assert reasons == []
    assert isinstance(call.op.body, Tuple)  # type: ignore[union-attr]
    assert inside(call) == ["negative", "abs"]
    picked = [n.index for n in post_order(after.body) if isinstance(n, TupleGetItem)]
    assert sorted(picked) == [0, 1]
    assert kit.equal(function, after)


def test_a_way_out_and_back_is_a_cycle(kit: Any, x: Var) -> None:
    inner = kit.op("negative", x)
    detour = kit.op("multiply", inner, x, layer="detour")
    function = Function([x], Tuple([kit.op("maximum", inner, detour)]), {"outputs": ("z",)})
    pattern = is_op("maximum")(-wildcard(), wildcard())
    after, reasons = divided(pattern, function, extra_outputs=True)
    assert after is function
    assert "cycle" in reasons[0]
    assert "detour" in reasons[0]


def test_two_parts_that_need_each_other_are_not_both_made(kit: Any, x: Var) -> None:
    """Each alone makes no cycle; together they would."""
    first, second = kit.op("negative", x), kit.op("abs", x)
    across = kit.op("negative", second)
    back = kit.op("abs", first)
    one = kit.op("maximum", kit.op("add", first, x), across)
    two = kit.op("multiply", kit.op("add", second, x), back)
    function = Function([x], Tuple([one, two]), {"outputs": ("a", "b")})
    # One holds `first` and `across`, the other `second` and `back`.
    ones = is_op("maximum")(is_op("add")(-wildcard(), wildcard()), -wildcard())
    twos = is_op("multiply")(
        is_op("add")(is_op("abs")(wildcard()), wildcard()), is_op("abs")(wildcard())
    )
    for pattern in (ones, twos):
        after, _ = divided(pattern, function, extra_outputs=True)
        assert len(composites(after)) == 1
    after, reasons = divided(ones | twos, function, extra_outputs=True)
    assert len(composites(after)) == 1
    assert any("cycle" in reason for reason in reasons)
    assert kit.equal(function, after)


def test_of_overlapping_matches_the_first_wins(kit: Any, x: Var) -> None:
    y = x
    for _ in range(5):
        y = kit.op("negative", y)
    function = Function([x], Tuple([y]), {"outputs": ("z",)})
    after, reasons = divided(NEGATIVE(NEGATIVE(wildcard())), function)
    assert [inside(c) for c in composites(after)] == [["negative"] * 2] * 2
    assert isinstance(after.body.fields[0], Call)  # type: ignore[attr-defined]
    assert after.body.fields[0].op_name == "negative"  # type: ignore[attr-defined]
    assert any("overlaps" in reason for reason in reasons)


def test_a_match_inside_a_larger_one_gives_way(kit: Any, x: Var) -> None:
    pattern = (-wildcard()).optional(lambda p: is_op("abs")(p))
    y = kit.op("negative", kit.op("abs", kit.op("negative", x)))
    after, _ = divided(pattern, Function([x], Tuple([y])))
    assert [inside(c) for c in composites(after)] == [["negative", "abs"], ["negative"]]


def test_where_a_larger_match_is_refused_the_smaller_stands(kit: Any, x: Var) -> None:
    """A refusal is part of the search: another alternative at the node may do."""
    inner = kit.op("abs", x)
    root = kit.op("negative", inner)
    function = Function([x], Tuple([root, inner]))
    pattern = -is_op("abs")(wildcard()) | -wildcard()
    after, reasons = divided(pattern, function)
    assert [inside(c) for c in composites(after)] == [["negative"]]
    assert reasons == []


def test_projections_and_several_results_are_inside(kit: Any, x: Var) -> None:
    halves = kit.op("split", x, sizes=(1, 3), axis=0)
    joined = kit.op("concatenate", TupleGetItem(halves, 1), TupleGetItem(halves, 0), axis=0)
    function = Function([x], Tuple([joined]), {"outputs": ("z",)})
    split = is_op("split")(wildcard())
    pattern = is_op("concatenate")(is_tuple_get_item(split, 1), is_tuple_get_item(split, 0))
    after, _ = divided(pattern, function)
    (call,) = composites(after)
    assert call.args == (x,)
    assert kit.equal(function, after)


def test_what_dominators_and_other_bracketings_cover_is_inside(kit: Any, x: Var) -> None:
    top = kit.op("multiply", x, x)
    end = kit.op("maximum", kit.op("abs", top), kit.op("negative", top))
    pattern = dominates(
        is_op("multiply").any_args(),
        is_op("abs", "negative").any_args(),
        is_op("maximum").any_args(),
    )
    after, _ = divided(pattern, Function([x], Tuple([end])))
    assert sorted(inside(composites(after)[0])) == ["abs", "maximum", "multiply", "negative"]
    total = kit.op("add", kit.op("abs", x), kit.op("add", x, kit.op("negative", x)))
    pattern = (wildcard() + is_op("abs")(wildcard())) + (-wildcard())
    after, _ = divided(pattern, Function([x], Tuple([total])))
    assert sorted(inside(composites(after)[0])) == ["abs", "add", "add", "negative"]


def test_a_pattern_of_inputs_alone_is_no_part(kit: Any, x: Var) -> None:
    function = Function([x], Tuple([kit.op("abs", x), Constant(np.arange(4))]))
    after, reasons = divided(wildcard().check(lambda n: isinstance(n, Var)), function)
    assert after is function
    assert "no operator" in reasons[0]


def test_nothing_in_a_composite_is_divided_again(kit: Any, x: Var) -> None:
    node = kit.op("abs", kit.op("negative", x))
    once = partition(Function([x], Tuple([node])), is_op("abs")(-wildcard()), "outer")
    assert partition(once, -wildcard(), "inner") is once


def test_random_graphs_never_get_a_cycle(kit: Any) -> None:
    """Inlined again, the graph is the one it was: nothing lost, doubled, or out of order."""
    made = several = cycles = 0
    for seed in range(1600):
        rng = random.Random(seed)
        wide = seed % 4 == 0
        function = kit.graph(seed, 20, 4, near=0.1) if wide else kit.graph(seed, 8)
        calls = [n for n in post_order(function.body) if isinstance(n, Call)]
        chosen = rng.sample(calls, min(2, len(calls)))
        pattern = kit.pattern_of(chosen[0], rng, rng.randint(2, 3), loose=seed % 4 < 2)
        if len(chosen) > 1:
            pattern = pattern | kit.pattern_of(chosen[1], rng, rng.randint(1, 4), loose=wide)
        after, reasons = divided(pattern, function, extra_outputs=seed % 4 != 3)
        cycles += any("cycle" in reason for reason in reasons)
        parts = composites(after)
        if parts:
            made += 1
            several += sum(isinstance(c.op.body, Tuple) for c in parts) > 1
            module = Module({"main": after})
            verify(module)
            inlined = InlineComposites().run(module, PassContext())
            assert structural_equal(inlined.main, function), seed
    assert made > 1000
    assert several > 16
    assert cycles > 64


def test_random_graphs_keep_their_values_in_parts(kit: Any) -> None:
    for seed in range(300):
        rng = random.Random(seed)
        function = kit.graph(seed, 12)
        calls = [n for n in post_order(function.body) if isinstance(n, Call)]
        pattern = kit.pattern_of(rng.choice(calls), rng, 3)
        after = partition(function, pattern, "part", extra_outputs=True)
        assert kit.equal(function, after), seed


def test_work_is_linear(kit: Any) -> None:
    """A pattern of large span, with extra outputs: the search for cycles stays near."""
    pattern = is_op("abs")(-wildcard())
    for length in (300, 6000):
        y: Expr = Var("x", kit.I)
        x = y
        for _ in range(length):
            inner = kit.op("negative", y)
            y = kit.op("maximum", kit.op("abs", inner), inner)
        function = Function([x], Tuple([y]))  # type: ignore[list-item]
        after = partition(function, pattern, "part", extra_outputs=True)
        assert len(composites(after)) == length
