"""Dominators: against examples, and against the definition on random graphs."""

from __future__ import annotations

from typing import Any

import numpy as np

from clew.ir.expr import Call, Constant, Expr, Function, Tuple, Var
from clew.ir.types import TensorType
from clew.ir.visit import post_order, users
from clew.ops.registry import get_op
from clew.patterns import (
    Match,
    dominates,
    find_all,
    has_kind,
    is_op,
    match,
    rewrite,
    rule,
    wildcard,
)

PATH = is_op("add", "negative", "abs").any_args()
PARENT = is_op("multiply").any_args()
CHILD = is_op("maximum").any_args()
PATTERN = dominates(PARENT, PATH, CHILD)


def roots(pattern: Any, params: list[Var], *outputs: Expr) -> list[Expr]:
    return [m.root for m in find_all(pattern, Function(params, Tuple(outputs)))]


def test_a_diamond(kit: Any) -> None:
    x, y = Var("x", kit.I), Var("y", kit.I)
    top = kit.op("multiply", x, y)
    left, right = kit.op("abs", top), kit.op("add", kit.op("negative", top), y)
    end = kit.op("maximum", left, right)
    assert roots(PATTERN, [x, y], kit.op("subtract", end, x)) == [end]
    found = match(PATTERN, end, Function([x, y], end))
    assert found is not None
    assert found[PARENT] is top
    assert set(found.inside(PATTERN)) == {left, right, right.args[0]}
    assert set(found.nodes) == {end, top, left, right, right.args[0]}


def test_a_direct_use_is_a_path(kit: Any) -> None:
    x = Var("x", kit.I)
    top = kit.op("multiply", x, x)
    end = kit.op("maximum", top, kit.op("abs", top))
    assert roots(PATTERN, [x], end) == [end]


def test_a_value_that_gets_out_is_not_dominated(kit: Any) -> None:
    x = Var("x", kit.I)
    top = kit.op("multiply", x, x)
    between = kit.op("abs", top)
    end = kit.op("maximum", between, kit.op("negative", top))
    assert roots(PATTERN, [x], end, top) == []
    assert roots(PATTERN, [x], end, kit.op("negative", between)) == []
    assert roots(PATTERN, [x], end) == [end]


def test_a_node_off_the_path_is_refused(kit: Any) -> None:
    x = Var("x", kit.I)
    top = kit.op("multiply", x, x)
    end = kit.op("maximum", kit.op("abs", top), kit.op("subtract", top, x))
    assert roots(PATTERN, [x], end) == []
    below = kit.op("subtract", kit.op("abs", top), x)
    assert roots(PATTERN, [x], kit.op("maximum", kit.op("abs", top), below)) == []


def test_without_uses_nothing_is_known(kit: Any) -> None:
    x = Var("x", kit.I)
    top = kit.op("multiply", x, x)
    end = kit.op("maximum", kit.op("abs", top), top)
    assert match(PATTERN, end) is None
    assert match(PATTERN, end, Function([x], end)) is not None


def test_what_the_parent_binds_is_searched_for(kit: Any) -> None:
    """A parent that fits by itself and not with the rest gives way to one further up."""
    x, y = Var("x", kit.I), Var("y", kit.I)
    far = kit.op("multiply", x, x)
    near = kit.op("multiply", far, y)
    end = kit.op("maximum", kit.op("abs", near), x)
    a, parent = wildcard(), wildcard()
    path = is_op("abs", "multiply").any_args()
    parent = is_op("multiply")(a, a)
    pattern = dominates(parent, path, is_op("maximum")(wildcard(), a))
    found = match(pattern, end, Function([x, y], end))
    assert found is not None
    assert found[parent] is far


def test_rules_see_the_uses_of_the_graph_being_built(kit: Any) -> None:
    for seed in range(300):
        function = kit.graph(seed, 12, outputs=1)
        seen: list[Expr] = []

        @rule(PATTERN)
        def note(found: Match, seen: list[Expr] = seen) -> Expr | None:
            seen.append(found.root)
            return None

        rewrite(function, note)
        assert seen == [m.root for m in find_all(PATTERN, function)], seed


def _by_definition(function: Function, child: Expr) -> set[int]:
    """Ids of the parents of a child: all ways on from them lead to it, through the path alone."""
    using = users(function)
    parents = set()
    for parent in post_order(function.body):
        if parent is child or match(PARENT, parent) is None:
            continue
        reached: dict[int, Expr] = {parent.id: parent}
        stack, arrives, escapes = [parent], False, False
        while stack:
            node = stack.pop()
            for user in using.get(node.id, []):
                if user is child:
                    arrives = True
                elif user is function or match(PATH, user) is None:
                    escapes = True
                elif user.id not in reached:
                    reached[user.id] = user
                    stack.append(user)
        if arrives and not escapes:
            parents.add(parent.id)
    return parents


def test_random_graphs_against_the_definition(kit: Any) -> None:
    found = 0
    for seed in range(1500):
        function = kit.graph(seed, 12, outputs=1)
        matches = {m.root.id: m for m in find_all(PATTERN, function)}
        for node in post_order(function.body):
            if isinstance(node, Call) and node.op_name == "maximum":
                parents = _by_definition(function, node)
                assert (node.id in matches) == bool(parents), seed
                if parents:
                    assert matches[node.id][PARENT].id in parents
                    found += 1
    assert found > 100


def test_a_path_of_any_elementwise_operators() -> None:
    x = Var("x", TensorType((1, 4, 6, 6), "f32"))
    weight = Constant(np.ones((4, 4, 1, 1), "f4"))
    top = get_op("nn.conv2d")(x, weight)
    gate = get_op("sigmoid")(get_op("add")(top, Constant(np.float32(3))))
    end = get_op("multiply")(top, gate)
    path = has_kind("elementwise", "broadcast")
    pattern = dominates(is_op("nn.conv2d").any_args(), path, is_op("multiply").any_args())
    assert roots(pattern, [x], end) == [end]
    moved = get_op("transpose")(gate, axes=(0, 1, 3, 2))
    assert roots(pattern, [x], get_op("multiply")(top, moved)) == []
