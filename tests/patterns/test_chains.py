"""Nested calls of associative operators match in any bracketing, and order if commutative."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from clew.ir.expr import Constant, Expr, Var
from clew.ir.types import TensorType
from clew.ops.registry import all_ops, get_op
from clew.patterns import Pattern, is_constant, is_op, is_var, match, wildcard

ASSOCIATIVE = [op.name for op in all_ops() if op.associative]


def bracketed(name: str, terms: list[Any], rng: random.Random, build: Any) -> Any:
    """The terms put together in a random way, left to right."""
    if len(terms) == 1:
        return terms[0]
    cut = rng.randrange(1, len(terms))
    return build(bracketed(name, terms[:cut], rng, build), bracketed(name, terms[cut:], rng, build))


def operand(name: str, n: int) -> Var:
    dtype = "bool" if name.startswith("logical") else "i32"
    return Var(f"v{n}", TensorType((3,), dtype))


@pytest.mark.parametrize("name", ASSOCIATIVE)
def test_any_bracketing_and_order(name: str) -> None:
    rng = random.Random(name)
    for count in (3, 4, 5):
        terms = [operand(name, n) for n in range(count)]
        for _ in range(20):
            order = list(range(count))
            rng.shuffle(order)
            leaves = [is_var(f"v{n}") for n in range(count)]
            pattern = bracketed(name, leaves, rng, is_op(name))
            node = bracketed(name, [terms[n] for n in order], rng, get_op(name))
            found = match(pattern, node)
            assert found is not None, (pattern, order)
            assert [found[leaf] for leaf in leaves] == terms
            assert len([n for n in found.nodes if n not in terms]) == count - 1
            wrong = bracketed(name, [*leaves[:-1], is_var("other")], rng, is_op(name))
            assert match(wrong, node) is None


def test_all_orders_of_three() -> None:
    x, y = (Var(n, TensorType((3,), "f32")) for n in "xy")
    c = Constant(np.float32(2))
    a, k = wildcard(), is_constant()
    pattern = is_op("add")(is_op("add")(a, is_op("exp")(wildcard())), k)
    exp, add = get_op("exp")(y), get_op("add")
    for p, q, r in permutations([x, exp, c]):
        for node in (add(add(p, q), r), add(p, add(q, r))):
            found = match(pattern, node)
            assert found is not None
            assert (found[a], found[k]) == (x, c)


def test_a_long_sum_has_partial_sums_for_operands() -> None:
    terms: list[Expr] = [Var(f"v{n}", TensorType((3,), "f32")) for n in range(6)]
    total = terms[0]
    for term in terms[1:]:
        total = get_op("add")(total, term)
    a, last = wildcard(), is_var("v2")
    found = match(a + is_var("v5") + last, total)
    assert found is None  # v2 and v5 are not next to the root together with one rest
    found = match(a + is_var("v5") + is_var("v4"), total)
    assert found is not None
    assert found[a] is total.args[0].args[0]  # type: ignore[attr-defined]


def test_operands_that_repeat_are_one_node() -> None:
    x, y = (Var(n, TensorType((3,), "f32")) for n in "xy")
    times = get_op("multiply")
    a = wildcard()
    cube = a * a * a
    assert match(cube, times(x, times(x, x))) is not None
    assert match(cube, times(times(x, x), x)) is not None
    assert match(cube, times(times(x, x), y)) is None


def test_a_constrained_part_stands_as_written() -> None:
    """What asks something of an inner sum asks it of a node that is there."""
    x, y, z = (Var(n, TensorType((3,), "f32")) for n in "xyz")
    add = get_op("add")
    inner = (is_var("y") + is_var("z")).has_dtype("f32")
    assert match(is_op("add")(is_var("x"), inner), add(x, add(z, y))) is not None
    assert match(is_op("add")(is_var("x"), inner), add(add(x, y), z)) is None


def test_operators_that_are_only_commutative_keep_their_bracketing() -> None:
    x, y = (Var(n, TensorType((3,), "i32")) for n in "xy")
    equal = get_op("equal")
    pattern: Pattern = is_op("equal")(is_op("equal")(is_var("x"), is_var("y")), wildcard())
    flag = Var("z", TensorType((3,), "bool"))
    assert match(pattern, equal(equal(y, x), flag)) is not None
    assert match(pattern, equal(flag, equal(flag, flag))) is None


def test_an_operator_that_is_only_associative_keeps_its_order() -> None:
    first = replace(get_op("subtract"), associative=True)
    x, y, z = (Var(n, TensorType((3,), "f32")) for n in "xyz")
    a, b, c = is_var("x"), is_var("y"), is_var("z")
    pattern = is_op("subtract")(is_op("subtract")(a, b), c)
    assert match(pattern, first(x, first(y, z))) is not None
    assert match(pattern, first(first(x, y), z)) is not None
    assert match(pattern, first(first(y, x), z)) is None
    assert match(pattern, first(x, first(z, y))) is None
