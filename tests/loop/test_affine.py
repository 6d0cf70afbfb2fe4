"""Simplified index expressions keep their values, which lie within the bounds that are said."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clew.ir.dims import SymDim
from clew.loop.affine import Simplifier, contains
from clew.te.expr import INDEX, Binary, Imm, Index, Scalar, Size, Unary, binary, select, size

_LOOPS = (Index("i", 1), Index("j", 3), Index("k", 8), Index("l", 5))
_LEAVES = st.one_of(st.sampled_from(_LOOPS), st.integers(-9, 9).map(lambda n: Imm(n, INDEX)))


def _binary(inner: st.SearchStrategy[Scalar]) -> st.SearchStrategy[Scalar]:
    divisors = st.integers(1, 9).map(lambda n: Imm(n, INDEX))
    factors = st.integers(-4, 8).map(lambda n: Imm(n, INDEX))
    return st.one_of(
        st.builds(Binary, st.sampled_from(["add", "sub", "min", "max"]), inner, inner),
        st.builds(Binary, st.just("mul"), inner, factors),
        st.builds(Binary, st.sampled_from(["floordiv", "mod"]), inner, divisors),
        st.builds(Unary, st.just("neg"), inner),
    )


_EXPRS = st.recursive(_LEAVES, _binary, max_leaves=12)
_COMPARISONS = st.builds(
    Binary, st.sampled_from(["lt", "le", "gt", "ge", "eq", "ne"]), _EXPRS, _EXPRS
)
_CONDITIONS = st.recursive(
    _COMPARISONS,
    lambda inner: st.one_of(
        st.builds(Binary, st.sampled_from(["and", "or"]), inner, inner),
        st.builds(Unary, st.just("not"), inner),
    ),
    max_leaves=3,
)
_VALUES = st.tuples(*(st.integers(0, int(loop.extent) - 1) for loop in _LOOPS))


def _run(expr: Scalar, values: tuple[int, ...]) -> int:
    """Returns an expression's value in Python's own arithmetic."""
    match expr:
        case Imm():
            return int(expr.value)
        case Index():
            return values[_LOOPS.index(expr)]
        case Unary():
            inner = _run(expr.a, values)
            return -inner if expr.op == "neg" else int(not inner)
    args = [_run(c, values) for c in expr.children]
    if len(args) == 3:
        return args[1] if args[0] else args[2]
    a, b = args
    return int(
        {
            "add": lambda: a + b, "sub": lambda: a - b, "mul": lambda: a * b,
            "floordiv": lambda: a // b, "mod": lambda: a % b, "min": lambda: min(a, b),
            "max": lambda: max(a, b), "lt": lambda: a < b, "le": lambda: a <= b,
            "gt": lambda: a > b, "ge": lambda: a >= b, "eq": lambda: a == b, "ne": lambda: a != b,
            "and": lambda: a and b, "or": lambda: a or b,
        }[expr.op]()  # type: ignore[attr-defined]
    )  # fmt: skip


@settings(max_examples=500, deadline=None)
@given(_EXPRS, _EXPRS, _VALUES)
def test_values_are_kept_and_within_bounds(
    expr: Scalar, other: Scalar, values: tuple[int, ...]
) -> None:
    simplifier = Simplifier()
    simplifier.simplify(other)  # what it has seen before must not matter
    expected = _run(expr, values)
    form = simplifier.linear(expr)
    assert _run(simplifier.rebuild(form), values) == expected
    assert _run(simplifier.rebuild(simplifier.flatten(form)), values) == expected
    assert _run(simplifier.simplify(expr), values) == expected
    low, high = simplifier.bounds(expr)
    assert low <= expected <= high


@settings(max_examples=500, deadline=None)
@given(_CONDITIONS, _EXPRS, _VALUES)
def test_conditions_are_decided_rightly(
    cond: Scalar, expr: Scalar, values: tuple[int, ...]
) -> None:
    simplifier = Simplifier()
    decided = simplifier.decide(cond)
    expected = bool(_run(cond, values))
    assert decided is None or decided is expected
    assert bool(_run(simplifier.simplify(cond), values)) is expected
    chosen = select(cond, expr, Imm(77, INDEX))
    assert _run(simplifier.simplify(chosen), values) == _run(chosen, values)


def test_split_and_fused_positions_become_what_they_were() -> None:
    simplifier = Simplifier()
    outer, inner = Index("o", 4), Index("i", 6)
    position = outer * 6 + inner
    assert simplifier.simplify(position // 6) is outer
    assert simplifier.simplify(position % 6) is inner
    fused = Index("f", 24)
    again = simplifier.linear((fused // 6) * 6 + fused % 6)
    assert simplifier.flatten(again).coefficient(fused) == 1


def test_sizes_are_numbers_of_linear_forms() -> None:
    simplifier = Simplifier()
    n, m = SymDim.symbol("n"), SymDim.symbol("m")
    assert isinstance(binary("mul", size(n), 2), Size)
    rest = binary("sub", binary("add", size(n), size(m)), size(m))
    assert isinstance(rest, Size)
    assert rest.dim == n
    index = Index("i", n)
    whole = simplifier.canonical(Binary("add", Binary("mul", index, size(m)), size(m)), {})
    form = simplifier.linear(whole)
    assert form.const == m
    assert form.coefficient(index) == m


@pytest.mark.parametrize("op", ["lt", "ge"])
@pytest.mark.parametrize(("bound", "whole"), [(8, True), (16, True), (12, False)])
def test_bounds_of_whole_blocks_do_not_depend_on_the_lane(
    op: str, bound: int, *, whole: bool
) -> None:
    _, block, lane, _ = _LOOPS
    cond = Binary(op, block * 8 + lane, Imm(bound, INDEX))
    found = Simplifier().simplify(cond)
    assert contains(found, lane) is not whole
    for values in itertools.product(*(range(int(loop.extent)) for loop in _LOOPS)):
        assert _run(found, values) == _run(cond, values)
