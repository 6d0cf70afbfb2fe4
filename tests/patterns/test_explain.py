"""Explanations name the deepest goal, the node and its layer, what was wanted and what there is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clew.ops  # noqa: F401
from clew.ir.expr import Constant, Expr, Function, Tuple, TupleGetItem, Var
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.ops.registry import get_op
from clew.patterns import (
    Pattern,
    dominates,
    explain,
    is_composite,
    is_constant,
    is_expr,
    is_function,
    is_if,
    is_op,
    is_splat,
    is_tuple,
    is_tuple_get_item,
    is_var,
    wildcard,
)
from clew.trace.lineage import building
from clew.trace.span import Source, Span

F = TensorType((1, 4, 8, 8), "f32")


def layer(name: str, op: str, *args: Expr, **attrs: Any) -> Expr:
    with building(Span([Source(name)])):
        return get_op(op)(*args, **attrs)


x = Var("x", F)
weight = Constant(np.ones((4, 1, 3, 3), "f4"))
conv = layer("conv1", "nn.conv2d", x, weight, groups=4, padding=(1, 1, 1, 1))
shifted = layer("shift", "add", conv, Constant(np.ones((4, 1, 1), "f4")))
relu = layer("act", "nn.relu", shifted)

bias = is_constant()
plain = is_op("nn.conv2d")(wildcard(), is_constant()).has_attr(groups=1)
block = is_op("nn.relu")(plain + bias)


def test_it_names_the_deepest_goal_and_its_layer() -> None:
    explanation = block.explain(relu)
    assert explanation.match is None
    assert explanation.at is conv
    assert explanation.reached is plain
    assert explanation.wanted == "has_attr(groups=1)"
    assert explanation.found == "groups=4"
    text = str(explanation)
    assert "does not match" in text
    assert "nn.conv2d" in text
    assert "// conv1" in text
    assert "// act" in text


def test_of_a_function_the_nearest_node_is_explained() -> None:
    other = layer("last", "nn.relu", layer("sum", "add", x, x))
    function = Function([x], Tuple([relu, other]), {"outputs": ("a", "b")})
    for target in (function, Module({"main": function})):
        assert explain(block, target).root is relu
    nothing = is_op("nn.conv3")(wildcard()).explain(function)
    assert nothing.root is None
    assert "no operator nn.conv3 is registered" in str(nothing)
    fitting = is_op("nn.relu")(wildcard()).explain(function)
    assert fitting.match is not None
    assert "matches" in str(fitting)


pair = Tuple([x, relu])
function = Function([x], relu, {"composite": "block"})

WANTED: list[tuple[Pattern, Expr, str, str]] = [
    (is_op("add")(wildcard(), wildcard()), relu, "a call of add with 2 inputs", "nn.relu"),
    (is_op("nn.relu")(wildcard(), wildcard()), relu, "with 2 inputs", "1 inputs"),
    (is_constant(), x, "a constant", "the variable x"),
    (is_var(), conv, "a variable", "a call of nn.conv2d"),
    (is_var("y"), x, "named(y)", "the variable x"),
    (is_splat(2.0), Constant(np.float32(3)), "splat(2.0)", "3.0"),
    (is_splat(2.0), weight, "splat(2.0)", "1.0" if weight.is_splat else "several values"),
    (is_tuple([wildcard()]), pair, "a tuple of 1", "a tuple"),
    (is_tuple_get_item(wildcard(), 1), TupleGetItem(pair, 0), "value 1", "value 0"),
    (is_if(), x, "a branch", "the variable x"),
    (is_function(), x, "a function", "the variable x"),
    (is_function(params=[]), function, "a function of 0 parameters", "a function"),
    (is_composite("a"), x, "a call of a function", "the variable x"),
    (is_expr(conv), relu, "the same as", "a call of nn.relu"),
    (wildcard().has_rank(3), x, "has_rank(3)", "f32[1, 4, 8, 8]"),
    (wildcard().has_shape(1, None), x, "has_shape(1, *)", "f32[1, 4, 8, 8]"),
    (wildcard().has_attr(groups=1), x, "has_attr(groups=1)", "no attributes"),
    (wildcard().used_once(), relu, "used_once()", "0 uses"),
    (wildcard().check(lambda n: False, "odd size"), x, "check(odd size)", "does not hold"),
    (wildcard().where(lambda f: False, "both small"), x, "where(both small)", "does not hold"),
]


@pytest.mark.parametrize(("pattern", "node", "wanted", "found"), WANTED, ids=lambda v: repr(v)[:40])
def test_what_was_wanted_and_found(pattern: Pattern, node: Expr, wanted: str, found: str) -> None:
    explanation = pattern.explain(node)
    assert explanation.match is None
    assert wanted in explanation.wanted
    assert found in explanation.found


def test_a_repeated_pattern_tells_the_node_before() -> None:
    a = wildcard()
    explanation = (a * is_op("sigmoid")(a)).explain(
        layer("m", "multiply", x, layer("s", "sigmoid", conv))
    )
    assert "matched before" in explanation.wanted


def test_dominators_tell_what_gets_out() -> None:
    left, right = layer("l", "sin", conv), layer("r", "cos", conv)
    end = layer("end", "add", left, right)
    parent = is_op("nn.conv2d").any_args()
    pattern = dominates(parent, is_op("sin", "cos").any_args(), is_op("add").any_args())
    out = Function([x], Tuple([end, left]))
    explanation = pattern.explain(out)
    assert explanation.at is left
    assert "2 uses, only 1" in explanation.found
    assert "its uses are not known" in pattern.explain(end).found
    assert pattern.explain(end, Function([x], end)).match is not None
    narrow = dominates(parent, is_op("sin").any_args(), is_op("add").any_args())
    assert narrow.explain(Function([x], end)).at is conv
    away = dominates(is_op("exp").any_args(), is_op("sin").any_args(), is_op("add").any_args())
    assert "neither the parent nor on the path" in away.explain(Function([x], end)).found
