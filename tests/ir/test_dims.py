"""Dimensions: what holds for all sizes agrees with arithmetic on numbers."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import operator
import pickle
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from clew.ir.dim_records import of_record, to_record
from clew.ir.dims import (
    Dim,
    Sizes,
    SymDim,
    at_least,
    ceil_div,
    check_size,
    dim_max,
    dim_min,
    exact_quotient,
    expecting,
    is_factor,
    long_quotient,
    numeric_part,
    substitute,
    typical,
    value_at,
)
from clew.support.budgets import Budgets, in_force
from clew.support.errors import ClewError, GraphTypeError

Plain = Callable[[dict[str, int]], int]
NAMES = ("a", "b", "n", "z")
A, B, N = map(SymDim.symbol, NAMES[:3])
Z = SymDim.symbol("z", least=0)


class Undefined(Exception):
    """A divisor is 0."""


def _divided(left: int, right: int, op: Callable[[int, int], int]) -> int:
    if not right:
        raise Undefined
    return op(left, right)


@st.composite
def dims(draw: Any, depth: int = 3) -> tuple[Dim, Plain]:
    """A dimension, and a function that computes its value with numbers only."""
    kind = draw(st.sampled_from(["name", "number", *["+", "-", "*", "//", "%", "min", "max"] * 2]))
    if depth == 0 or kind in ("name", "number"):
        if kind == "number":
            number = draw(st.integers(-9, 9))
            return number, lambda _: number
        name = draw(st.sampled_from(NAMES))
        return SymDim.symbol(name, int(name != "z")), lambda sizes: sizes[name]
    left, left_at = draw(dims(depth - 1))
    if kind in ("//", "%") and draw(st.booleans()):
        number = draw(st.integers(1, 9))
        right, right_at = number, lambda _: number
    else:
        right, right_at = draw(dims(depth - 1))
    if kind in ("//", "%"):
        op = operator.floordiv if kind == "//" else operator.mod
        if right == 0:
            assume(False)
        return op(left, right), lambda sizes: _divided(left_at(sizes), right_at(sizes), op)
    made: dict[str, tuple[Callable[[Any, Any], Dim], Callable[[int, int], int]]] = {
        "+": (operator.add, operator.add),
        "-": (operator.sub, operator.sub),
        "*": (operator.mul, operator.mul),
        "min": (dim_min, min),
        "max": (dim_max, max),
    }
    symbolic, plain = made[kind]
    return symbolic(left, right), lambda sizes: plain(left_at(sizes), right_at(sizes))


_RANDOM = random.Random(0)
_VALUES = (1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 31, 33, 100, 1000)
SIZES = [
    dict(zip(NAMES, [*_RANDOM.choices(_VALUES, k=3), z], strict=True))
    for z in (0, 0, 1, *_VALUES)
    for _ in range(2)
]
WITH_ZERO = [
    *SIZES,
    *(dict(zip(NAMES, c, strict=True)) for c in itertools.product((0, 1, 4), repeat=4)),
]


def _values(plain: Plain, where: list[dict[str, int]]) -> Iterator[tuple[dict[str, int], int]]:
    """Yields sizes and the value of a dimension there by numbers, unless a divisor is 0."""
    for at in where:
        with contextlib.suppress(Undefined):
            yield at, plain(at)


@given(dims())
@settings(max_examples=250, deadline=None)
def test_dimensions_have_the_values_of_plain_arithmetic(made: tuple[Dim, Plain]) -> None:
    dim, plain = made
    again = of_record(json.loads(json.dumps(to_record(dim))))
    assert again == dim
    assert str(again) == str(dim)
    for at, value in _values(plain, WITH_ZERO):
        assert value_at(dim, at) == value, at
        assert substitute(dim, at) == value, at
        partly = substitute(dim, {"a": at["a"]})
        assert substitute(partly, {name: at[name] for name in "bnz"}) == value, at


@given(dims(2), dims(2))
@settings(max_examples=150, deadline=None)
def test_names_are_replaced_by_dimensions(
    outer: tuple[Dim, Plain], inner: tuple[Dim, Plain]
) -> None:
    try:
        replaced = substitute(outer[0], {"n": inner[0]})
    except GraphTypeError:  # a divisor is always 0
        assume(False)
    for at, value in _values(inner[1], WITH_ZERO):
        if value < 0:
            continue  # no size
        for _, expected in _values(outer[1], [{**at, "n": value}]):
            assert value_at(replaced, at) == expected, at


@given(dims())
@settings(max_examples=500, deadline=None)
def test_at_least_is_never_wrong(made: tuple[Dim, Plain]) -> None:
    dim, plain = made
    known = [low for low in range(-6, 7) if at_least(dim, low)]
    if known:
        for at, value in _values(plain, SIZES):
            assert value >= known[-1], at


@given(dims(2), dims(2), dims(1))
@settings(max_examples=400, deadline=None)
def test_at_least_is_never_wrong_where_facts_hold(
    made: tuple[Dim, Plain], fact: tuple[Dim, Plain], other: tuple[Dim, Plain]
) -> None:
    facts = tuple(dim for dim, _ in (fact, other) if isinstance(dim, SymDim))
    assume(len(facts) == 2)
    # The sums are close to the facts, so that the facts matter.
    sums: list[tuple[Dim, Plain]] = [
        made,
        (made[0] + fact[0], lambda s: made[1](s) + fact[1](s)),
        (made[0] + 3 * fact[0] + 2 * other[0],
         lambda s: made[1](s) + 3 * fact[1](s) + 2 * other[1](s)),
    ]  # fmt: skip
    for dim, plain in sums:
        known = [low for low in range(-4, 5) if at_least(dim, low, facts)]
        if known:
            where = [at for at, value in _values(fact[1], SIZES) if value >= 0]
            where = [at for at, value in _values(other[1], where) if value >= 0]
            for at, value in _values(plain, where):
                assert value >= known[-1], at


@pytest.mark.parametrize(
    ("dim", "low", "facts", "known"),
    [
        (N, 1, (), True),
        (N, 2, (), False),
        (N * A - 1, 0, (), True),
        (N - A, 0, (), False),
        (N - A, 0, (N - A,), True),
        (N - A + 3, 3, (N - A,), True),
        (3 * N - 3 * A, 0, (N - A,), True),
        (3 * N - 3 * A + 2 * A - 20, 0, (N - A, A - 10), True),
        (3 * N - 3 * A + 2 * A - 21, 0, (N - A, A - 10), False),
        (A - N, 0, (N - A,), False),
        (N - N // 4 * 4, 0, (), True),
        (N - N // 4 * 4 - 1, 0, (), False),
        ((N + 3) // 4 * 4 - N, 0, (), True),
        (N - dim_min(A, N), 0, (), True),
        (dim_max(N, A) - 1, 0, (), True),
        (N % 4, 0, (), True),
        (N // 4, 1, (), False),
        (N - 3 * (N // 3), 0, (), True),
        (2 * N - 3, 0, (), False),
        (Z, 0, (), True),
        (Z, 1, (), False),
        (Z, 1, (Z - 1,), True),
        (Z + 1, 1, (), True),
        (N * Z, 0, (), True),
        ((Z + N) * N - 1, 0, (), True),
        ((Z + 3) // 4, 1, (), False),
        ((Z + 4) // 4, 1, (), True),
        (Z + 1 - (Z + 1) // 4 * 4, 0, (), True),
        (dim_min(Z, N), 1, (), False),
        (math.inf, 5, (), True),
        (-math.inf, 5, (), False),
    ],
    ids=str,
)
def test_what_at_least_knows(dim: Any, low: int, facts: Any, known: bool) -> None:
    assert at_least(dim, low, facts) == known


def test_whether_a_size_may_be_0_is_a_part_of_it() -> None:
    dim = (Z + N) // 4 * Z
    assert isinstance(dim, SymDim)
    assert dim.symbols == {"n", "z"}
    assert dim.from_zero == {"z"}
    for again in (pickle.loads(pickle.dumps(dim)), substitute(dim, {}), substitute(dim, {"n": N})):
        assert again == dim
        assert isinstance(again, SymDim)
        assert again.from_zero == {"z"}
    assert SymDim.symbol("z") != Z
    assert str(dim) == str(substitute(dim, {"z": SymDim.symbol("z")}))


@given(dims(2), st.one_of(st.integers(1, 9).map(lambda n: (n, lambda _: n)), dims(1)))
@settings(max_examples=200, deadline=None)
def test_exact_quotients_have_no_remainder(
    made: tuple[Dim, Plain], divisor: tuple[Dim, Plain]
) -> None:
    dim, plain = made
    by, by_at = divisor
    assume(by != 0)
    quotient = exact_quotient(dim, by)
    if quotient is not None:
        for at, value in _values(plain, SIZES):
            with contextlib.suppress(Undefined):  # the divisor has no value at these sizes
                divided_by = by_at(at)
                assert not divided_by or value_at(quotient, at) * divided_by == value, at


def test_exact_quotients() -> None:
    assert exact_quotient(12, 4) == 3
    assert exact_quotient(13, 4) is None
    assert exact_quotient(8 * N + 4 * A, 4) == 2 * N + A
    assert exact_quotient(8 * N + 2, 4) is None
    assert exact_quotient(3 * N * A, N) == 3 * A
    assert exact_quotient(N, N) == 1
    assert exact_quotient(0, N) == 0
    assert exact_quotient(N, A) is None


@given(dims(2), st.integers(1, 9))
@settings(max_examples=200, deadline=None)
def test_ceil_div_rounds_up(made: tuple[Dim, Plain], by: int) -> None:
    dim, plain = made
    for at, value in _values(plain, WITH_ZERO):
        assert value_at(ceil_div(dim, by), at) == -(-value // by), at


@pytest.mark.parametrize(
    ("dim", "text"),
    [
        (-N % 7, "7*((n + 6) // 7) - n"),
        ((64 - N % 64) % 64, "64*((n - 1) // 64) + 64 - n"),
        (N + (-N % 7), "7*((n + 6) // 7)"),
        ((N + (-N % 7)) // 7, "((n + 6) // 7)"),
        ((N + (64 - N % 64) % 64) // ((N + (64 - N % 64) % 64) // 64), "64"),
        ((N % 8 + 1) % 4, "((n + 1) % 4)"),
        ((N % 6) % 4, "((n % 6) % 4)"),
        (N % 8 - N, "(n % 8) - n"),
    ],
)
def test_sizes_padded_to_a_multiple_are_the_multiple(dim: Dim, text: str) -> None:
    assert str(dim) == text


def test_what_is_missing_up_to_a_multiple_is_bounded() -> None:
    missing = -(2 * N + 1) % 5
    assert at_least(missing)
    assert at_least(4 - missing)
    assert [value_at(missing, {"n": n}) for n in range(6)] == [4, 2, 0, 3, 1, 4]


def test_constants_are_rounded_in_quotients() -> None:
    assert (4 * N + 5) // 4 == N + 1
    assert (4 * N * Z - 8 * A - 1) // 4 == N * Z - 2 * A - 1
    assert (4 * N + 5) % 4 == 1
    assert (4 * N - 1) % 4 == 3
    assert ceil_div(4 * N + 2, 4) == N + 1


def test_divisions_by_zero_are_coded() -> None:
    for dim in (N // A, N % A, 3 // A, 3 % A, N // (A - 1) * 0 + N // (A - 1)):
        zero = {"n": 3, "a": 1 if "a - 1" in str(dim) else 0}
        for call in (lambda d=dim, s=zero: value_at(d, s), lambda d=dim, s=zero: substitute(d, s)):
            with pytest.raises(ClewError) as caught:
                call()
            assert caught.value.code == "T110"


def test_values_are_computed_once() -> None:
    quotient = (N + 3) // 4
    found = Sizes({"n": 9})
    assert found.value(quotient * 2 + 1) == 7
    found.by_name["n"] = 100  # not read again
    assert found.value(quotient + 1) == 4


def test_typical_sizes() -> None:
    assert typical(5) == 5
    assert typical(N) == typical(A) >= 32
    assert typical(N // 160) >= 32
    assert typical(N - N) == 0
    assert typical(-1 * N) == 1
    assert typical(N // (A - 127)) >= 1  # a divisor of 0 at the first of the sizes


def test_typical_sizes_of_names_with_a_meaning() -> None:
    name = SymDim.symbol("s")
    with expecting((("n", 96),), (("s", (N - 1) // 32 + 1),)):
        assert typical(name) == typical(N // 32) == 3
        assert typical(100 * name) == 300
    with expecting((), (("s", N + 1),)):
        assert typical(dim_max(1 - name, 0)) == 0  # a number, since `s` is at least 1


def test_numeric_part() -> None:
    assert numeric_part(7) == 7
    assert numeric_part(N * 2 - 3) == -3
    assert numeric_part(N * A) == 0


@pytest.mark.parametrize(
    ("dim", "text"),
    [
        (((N + 1) // 2 + 1) % (B // 3), "((((n + 1) // 2) + 1) % (b // 3))"),
        (dim_min(B, N) // 2, "(min(b, n) // 2)"),
        (SymDim.symbol("past_length") // 2, "(past_length // 2)"),
        (SymDim.symbol("past + 1") // 2, "((past + 1) // 2)"),
        (2 * N // B, "((2*n) // b)"),
    ],
)
def test_operands_of_divisions_have_parentheses_where_needed(dim: Dim, text: str) -> None:
    assert str(dim) == text


def test_factors() -> None:
    a, b, c = map(SymDim.symbol, "abc")
    tiles = (a + b + 30) // 32 - (a + b - 1) // 32
    for factor in (a, a + 3 - b, tiles, tiles * (a + 3 - b), 2 * a, a * a):
        assert is_factor(factor, factor * (b - c) * a)
        assert long_quotient(factor * (b - c) * a, factor) == (b - c) * a
        assert is_factor(factor, factor)
        assert not is_factor(factor, factor * b + 1)
        assert not is_factor(factor * (b + 1), factor * b)
    assert is_factor(3, 6 * a + 9)
    assert not is_factor(3, 6 * a + 8)
    assert not is_factor(a, 12)


def test_a_size_has_a_bounded_number_of_terms() -> None:
    """A model of a few bytes asks for a sum of names to the 128th power, or text without end."""

    def squared() -> None:
        total: Dim = A + B + N
        for _ in range(7):
            total = total * total

    def nested() -> None:
        total: Dim = A
        for n in range(400):
            total = dim_min(total * 2, B + n)
        check_size(total)

    def one_name() -> None:
        total: Dim = A
        for _ in range(40):
            total = total * total

    def doubled() -> None:
        total: Dim = A
        for _ in range(70):
            total = total * 2
        check_size(total)

    for grow in (squared, nested, one_name, doubled):
        with pytest.raises(GraphTypeError) as caught:
            grow()
        assert caught.value.code == "T112"


def test_the_budget_of_terms_can_be_raised() -> None:
    long = sum([SymDim.symbol(f"s{n}") for n in range(300)], start=A)
    with pytest.raises(GraphTypeError, match=r"size_terms allows 256") as caught:
        check_size(long)
    assert caught.value.code == "T112"
    with in_force(Budgets(size_terms=1000)):
        check_size(long)


def test_bounds_of_long_sizes_take_little_time() -> None:
    """Expanding a product of thirty names in what each exceeds 1 would take 2^30 terms."""
    product: Dim = 1
    for n in range(30):
        product = product * SymDim.symbol(f"s{n}")
    begun = time.process_time()
    assert at_least(product, 1)
    assert not at_least(product - A * B * N, 0)  # it is, but the proof is too long
    assert time.process_time() - begun < 2


def test_sizes_of_slices_of_slices_stay_short() -> None:
    """What is left of `n` elements after slices, each from some place on."""
    n = SymDim.symbol("n")
    size = n
    for _ in range(200):
        size = size - dim_min(1, size)
    assert size == n - dim_min(200, n)
    for cuts in itertools.product((0, 1, 3, SymDim.symbol("m")), repeat=3):
        left: Any = n
        for cut in cuts:
            left = left - dim_min(cut, left)
        for here, of_m in itertools.product(range(9), range(5)):
            sizes = {"n": here, "m": of_m}
            expected = max(here - sum(c if isinstance(c, int) else of_m for c in cuts), 0)
            assert substitute(left, sizes) == expected, (cuts, sizes)
