from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clew.ops  # noqa: F401
from clew.ir.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem, Var
from clew.ir.types import TensorType
from clew.ir.visit import post_order
from clew.ops.registry import get_op
from clew.patterns import (
    find_all,
    is_call,
    is_constant,
    is_op,
    is_splat,
    is_tuple_get_item,
    is_var,
    match,
    wildcard,
)
from clew.trace.lineage import building
from clew.trace.span import Source, Span

F = TensorType((4, 4), "f32")


def op(name: str, *args: Expr, **attrs: Any) -> Call:
    with building(Span([Source(f"{name}_layer")])):
        return get_op(name)(*args, **attrs)


@pytest.fixture
def x() -> Var:
    return Var("x", F)


@pytest.fixture
def y() -> Var:
    return Var("y", F)


def test_calls_match_by_name_and_arguments(x: Var, y: Var) -> None:
    a, b = wildcard(), wildcard()
    pattern = is_op("subtract")(a, b)
    found = match(pattern, op("subtract", x, y))
    assert found is not None
    assert (found[a], found[b]) == (x, y)
    assert match(pattern, op("add", x, y)) is None
    assert match(pattern, x) is None
    assert match(is_op("subtract")(a), op("subtract", x, y)) is None
    assert match(is_op("subtract").any_args(), op("subtract", x, y)) is not None
    assert match(is_op("add", "subtract")(a, b), op("subtract", x, y)) is not None


def test_commutative_operands_match_in_either_order(x: Var) -> None:
    a, c = wildcard(), is_constant()
    three = Constant(np.float32(3))
    for call in (op("add", x, three), op("add", three, x)):
        found = match(is_op("add")(a, c), call)
        assert found is not None
        assert found[a] is x
    assert match(is_op("subtract")(a, c), op("subtract", three, x)) is None


def test_a_repeated_pattern_is_the_same_node(x: Var, y: Var) -> None:
    a = wildcard()
    pattern = is_op("multiply")(a, is_op("sigmoid")(a))
    assert match(pattern, op("multiply", x, op("sigmoid", x))) is not None
    assert match(pattern, op("multiply", op("sigmoid", x), x)) is not None
    assert match(pattern, op("multiply", y, op("sigmoid", x))) is None


def test_matching_backtracks_over_both_operands(x: Var, y: Var) -> None:
    """The first order that fits an inner node may be the wrong one for what comes after."""
    a, b = wildcard(), wildcard()
    pattern = is_op("subtract")(is_op("add")(a, b), is_op("multiply")(b, a).check(
        lambda node: isinstance(node, Call) and node.args[0] is y
    )).where(lambda found: found[b] is x)  # fmt: skip
    call = op("subtract", op("add", x, y), op("multiply", y, x))
    found = match(pattern, call)
    assert found is not None
    assert (found[a], found[b]) == (y, x)


def test_alternatives_are_tried_in_order(x: Var) -> None:
    inner = wildcard()
    either = is_op("exp")(inner) | is_op("log")(inner)
    outer = is_op("negative")(either)
    for name in ("exp", "log"):
        found = match(outer, op("negative", op(name, x)))
        assert found is not None
        assert found[inner] is x
        assert isinstance(found[either], Call)
    assert match(outer, op("negative", op("sin", x))) is None


def test_optional_parts(x: Var) -> None:
    bias = is_constant()
    base = is_op("nn.dense").any_args()
    pattern = is_op("nn.relu")(base.optional(lambda p: is_op("add")(p, bias)))
    dense = op("nn.dense", x, Constant(np.eye(4, dtype="f4")))
    with_bias = match(pattern, op("nn.relu", op("add", dense, Constant(np.ones(4, "f4")))))
    without = match(pattern, op("nn.relu", dense))
    assert with_bias is not None
    assert bias in with_bias
    assert without is not None
    assert bias not in without


def test_constraints(x: Var) -> None:
    total = op("sum", x, axes=(1,), keepdims=True)
    any_sum = is_op("sum").any_args()
    assert match(any_sum.has_attr(keepdims=True, axes=[1]), total) is not None
    assert match(any_sum.has_attr(keepdims=False), total) is None
    assert match(any_sum.has_attr(axes=lambda axes: 1 in axes), total) is not None
    assert match(any_sum.has_attr(nothing=1), total) is None
    assert match(any_sum.has_shape(4, 1), total) is not None
    assert match(any_sum.has_shape(None, 1), total) is not None
    assert match(any_sum.has_shape(4), total) is None
    assert match(any_sum.has_rank(2), total) is not None
    assert match(any_sum.has_dtype("f16", "f32"), total) is not None
    assert match(any_sum.has_dtype("f16"), total) is None
    assert match(any_sum.has_type(TensorType((4, 1), "f32")), total) is not None
    assert match(any_sum.has_type(F), total) is None


def test_leaves(x: Var) -> None:
    splat = Constant.splat(0.5, F)
    assert match(is_var(), x) is not None
    assert match(is_var(), splat) is None
    assert match(is_call(), x) is None
    assert match(is_splat(0.5), splat) is not None
    assert match(is_splat(1), splat) is None
    assert match(is_splat(lambda v: v < 1), splat) is not None
    assert match(is_splat(), Constant(np.eye(2))) is None


def test_projections(x: Var) -> None:
    halves = op("split", x, sizes=(1, 3), axis=0)
    second = TupleGetItem(halves, 1)
    of = is_op("split").any_args()
    assert match(is_tuple_get_item(of, 1), second) is not None
    assert match(is_tuple_get_item(of), second) is not None
    assert match(is_tuple_get_item(of, 0), second) is None


def test_nodes_are_what_the_pattern_names_root_first(x: Var) -> None:
    c = Constant(np.float32(2))
    product = op("multiply", op("exp", x), c)
    pattern = is_op("multiply")(is_op("exp")(wildcard()), is_constant())
    found = match(pattern, product)
    assert found is not None
    assert found.nodes == (product, product.args[0], c)
    assert found.root is product


def test_find_all_counts_uses(x: Var) -> None:
    once, twice = op("exp", x), op("exp", op("log", x))
    body = Tuple([op("negative", once), op("sin", twice), op("cos", twice)])
    function = Function([x], body)
    pattern = is_op("exp").any_args()
    assert [m.root for m in find_all(pattern, function)] == [once, twice]
    assert [m.root for m in find_all(pattern.used_once(), function)] == [once]
    assert len(find_all(wildcard(), function)) == len(post_order(body))
