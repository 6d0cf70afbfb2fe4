"""Placement: which operators become one region, and which never do."""

from __future__ import annotations

from typing import Any

import pytest

from clew.ir.expr import Call, Expr, Function
from clew.ir.visit import post_order
from clew.passes.placement.claims import RegionPattern
from clew.patterns import is_op, wildcard
from clew.pipelines import placement


class Taker:
    """Takes operators of some names."""

    key = ""

    def __init__(self, *ops: str, name: str = "taker", patterns: Any = ()) -> None:
        self.name, self.ops, self.patterns = name, ops, patterns

    def takes(self, call: Call) -> bool:
        return call.op_name in self.ops

    def cost(self, region: Function, target: Any) -> float | None:
        return None


def regions_of(kit: Any, result: Expr, params: list[Any], *takers: Taker) -> list[list[str]]:
    """Returns the operators of each region, in the order of the graph."""
    module = kit.module(params, result)
    manager = kit.PassManager(placement(takers), target=kit.tiles())
    main = manager.run(module).main
    called = [n.op for n in post_order(main.body) if isinstance(n, Call)]
    regions = [f for f in called if isinstance(f, Function)]
    assert all(f.is_primitive and f.backend for f in regions)
    return [[n.op_name for n in post_order(f.body) if isinstance(n, Call)] for f in regions]


def test_a_region_is_convex(kit: Any) -> None:
    """`exp` lies on a way from one add to the other: they cannot be one region."""
    x = kit.var("x", 8)
    first = kit.layer("add", x, x)
    second = kit.layer("add", first, kit.layer("exp", first))
    assert regions_of(kit, second, [x], Taker("add")) == [["add"], ["add"]]


def test_a_side_way_that_does_not_come_back_is_no_obstacle(kit: Any) -> None:
    """The second add waits for `exp`, which does not depend on the first."""
    x = kit.var("x", 8)
    first = kit.layer("add", x, x)
    side = kit.layer("exp", kit.layer("add", x, kit.layer("exp", x)))
    result = kit.layer("add", first, side)
    found = regions_of(kit, result, [x], Taker("add"))
    assert sorted(map(len, found)) == [1, 2]


def test_regions_of_two_backends_do_not_wait_for_each_other(kit: Any) -> None:
    """Each of the first backend's calls reads one of the second's, crosswise."""
    x = kit.var("x", 8)
    a, b = kit.layer("add", x, x), kit.layer("exp", x)
    c, d = kit.layer("exp", a), kit.layer("add", b, b)
    both = kit.layer("multiply", kit.layer("add", c, d), kit.layer("exp", kit.layer("add", a, d)))
    found = regions_of(kit, both, [x], Taker("add", name="one"), Taker("exp", name="two"))
    assert sorted(op for ops in found for op in ops) == ["add"] * 4 + ["exp"] * 3


def test_a_match_is_in_one_region_whole(kit: Any) -> None:
    """What the match reads besides comes from outside the backend."""
    x = kit.var("x", 8)
    first = kit.layer("add", x, x)
    inner = kit.layer("multiply", first, x)
    outer = kit.layer("maximum", inner, kit.layer("exp", first))
    product = is_op("multiply")(wildcard(), wildcard())
    both = RegionPattern("both", is_op("maximum")(product, wildcard()))
    found = regions_of(kit, outer, [x], Taker("add", patterns=[both]))
    assert ["multiply", "maximum"] in found


@pytest.mark.parametrize("length", [4_000])
def test_deep_chains_pass(kit: Any, length: int) -> None:
    x = kit.var("x", 8)
    y: Expr = x
    for n in range(length):
        y = kit.layer("add", y, x) if n % 2 else kit.layer("nn.relu", y)
    relu = RegionPattern("relu", is_op("nn.relu")(wildcard()))
    alone = regions_of(kit, y, [x], Taker("add"))
    assert len(alone) == length // 2
    (everything,) = regions_of(kit, y, [x], Taker("add", patterns=[relu]))
    assert len(everything) == length
