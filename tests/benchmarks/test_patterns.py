"""The graph of the patterns' benchmark, and that its work finds something in it."""

from __future__ import annotations

import patterns
from clew.ir.expr import Call
from clew.ir.visit import post_order


def test_each_work_finds_something() -> None:
    function = patterns.graph(100)
    assert sum(isinstance(n, Call) for n in post_order(function)) == 100
    assert len(patterns.TWENTY) == 20
    visits, steps = patterns.rewritten(function)
    assert visits >= 100
    assert steps > visits
    assert len(patterns.find_all(patterns.GATED, function)) == 20
    assert len(patterns.WORK["find_all, dominators"](function)) == 20  # type: ignore[arg-type]
    assert patterns.WORK["partition"](function) is not function
