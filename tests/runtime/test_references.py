"""Checks of references that are made once, for all sizes."""

from __future__ import annotations

import pytest
from handmade import ARENA, INPUT, code, ref, step

from clew.codegen.artifact import KernelCode
from clew.runtime.references import References

ADD = code("add")


def test_the_furthest_position_counts() -> None:
    steps = [
        step(ADD, ref(INPUT, 0, 8), ref(ARENA, 1)),
        step(ADD, ref(INPUT, 0, 32), ref(ARENA, 1, 4)),
        step(ADD, ref(INPUT, 0, 16)),
    ]
    references = References(steps, {INPUT: 1, ARENA: 2})
    references.check(INPUT, [32])
    references.check(ARENA, [-1, 4])  # no step uses the first
    with pytest.raises(AssertionError, match=r"add: .* is outside"):
        references.check(INPUT, [31])
    with pytest.raises(AssertionError, match="is outside"):
        references.check(ARENA, [64, 3])


def test_negative_sizes_are_refused() -> None:
    references = References([step(ADD, ref(INPUT))], {INPUT: 1})
    references.check(INPUT, [0])
    with pytest.raises(AssertionError, match="is outside"):
        references.check(INPUT, [-1])


def test_missing_buffers_and_entry_points_are_refused() -> None:
    for wrong in (ref(ARENA, 2), ref(ARENA, -1)):
        with pytest.raises(AssertionError, match="no arena"):
            References([step(ADD, wrong)], {ARENA: 2})
    with pytest.raises(AssertionError, match="is outside"):
        References([step(ADD, ref(ARENA, 0, -4))], {ARENA: 2})
    nothing = step(ADD, ref(ARENA))
    with pytest.raises(AssertionError, match="no entry points"):
        References([type(nothing)(KernelCode("00", ()), nothing.args, "k")], {ARENA: 2})
