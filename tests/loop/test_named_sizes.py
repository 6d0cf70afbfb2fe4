"""Names of sizes: they stand for the values of their sizes, and keep texts short."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from clew.ir.dims import Dim, SymDim, ceil_div, dim_max, dim_min, value_at
from clew.loop.named_sizes import NamedSizes

BATCH, SEQUENCE = SymDim.symbol("batch"), SymDim.symbol("sequence")
SIZES = {"batch": 3, "sequence": 70}


def _value(text: str, named: NamedSizes) -> Any:
    """Returns the value of a text at `SIZES`; `named` has the sizes that it names."""
    known: dict[str, Any] = {**SIZES, "min": min, "max": max}
    for name, definition in [*named.definitions, ("", text)]:
        python = re.sub(r"%(s\d+)", r"_\1", definition).replace("^", "**")
        known[name.replace("%", "_")] = eval(python, known)
    return known[""]


def test_no_free_dimension_has_the_name_of_a_size() -> None:
    taken = SymDim.symbol("%s0")
    named = NamedSizes([taken * SEQUENCE * BATCH, taken * SEQUENCE * BATCH])
    assert [name for name, _ in named.definitions] == ["%s1"]


def test_the_definitions_of_a_large_size_are_short() -> None:
    """Written out, a polynomial that repeats itself at each level grows exponentially."""
    dim: Dim = BATCH * SEQUENCE
    for number in range(2, 10):
        dim = dim_min(ceil_div(dim * dim + SEQUENCE, number), dim + BATCH)
    named = NamedSizes([dim])
    assert len(named.text(dim)) <= 24
    assert all(len(text) < 80 for _, text in named.definitions)
    assert len(named.definitions) < 60


@st.composite
def _dims(draw: st.DrawFn) -> Dim:
    leaf = st.sampled_from([BATCH, SEQUENCE, BATCH * SEQUENCE, 1, 2, 7])
    grown = st.recursive(
        leaf,
        lambda inner: st.tuples(st.sampled_from("+-*/%<>"), inner, inner),
        max_leaves=10,
    )
    return _built(draw(grown))


def _built(drawn: Any) -> Dim:
    if not isinstance(drawn, tuple):
        return drawn  # type: ignore[no-any-return]
    op, left, right = drawn[0], _built(drawn[1]), _built(drawn[2])
    match op:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "/":
            return left // dim_max(right, 1)
        case "%":
            return left % dim_max(right, 1)
        case "<":
            return dim_min(left, right)
    return dim_max(left, right)


@given(st.lists(_dims(), min_size=1, max_size=4))
@settings(max_examples=200, deadline=None)
def test_names_stand_for_the_values_of_their_sizes(dims: list[Dim]) -> None:
    named = NamedSizes(dims)
    for dim in dims:
        expected = value_at(dim, SIZES)
        assert _value(named.text(dim), named) == expected
        assert _value(f"1 * {named.operand(dim)}", named) == expected
        assert _value(str(dim), named) == expected
    known: set[str] = set()
    for name, text in named.definitions:
        assert set(re.findall(r"%s\d+", text)) <= known
        known.add(name)
