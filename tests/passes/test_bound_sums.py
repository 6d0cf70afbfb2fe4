"""BoundSums: which sums are proven to be small, and that these are scaled to the same codes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clew.ir.expr import Call, Expr
from clew.ir.visit import post_order
from clew.passes.base import PassContext
from clew.passes.integer_bounds import integer_bounds
from clew.passes.precision.bound_sums import BoundSums


def _marked(kit: Any, x: Expr, total: Expr) -> bool:
    scaled = kit.layer("scale_fixed", total, *(kit.const(np.int32(n)) for n in (1 << 30, 3)))
    module = BoundSums().run(kit.module([x], scaled), PassContext())
    (call,) = (
        n
        for n in post_order(module.main.body)
        if isinstance(n, Call) and n.op_name == scaled.op_name
    )
    return bool(call.attrs.bounded)


def _sum(kit: Any, x: Expr, bias: int, factor: int = 1) -> Expr:
    weight = kit.const(np.full((2, 3, 3, 3), 100, np.int32))
    total = kit.layer("nn.conv2d", kit.layer("cast", x, dtype="i32"), weight, padding=[1, 1, 1, 1])
    total = kit.layer("multiply", total, kit.const(np.int32(factor)))
    return kit.layer("add", total, kit.const(np.int32(bias)))


@pytest.mark.parametrize(
    ("bias", "factor", "small"),
    [
        (-7, 1, True),
        ((1 << 30) - 27 * 100 * 127 - 1, 1, True),
        ((1 << 30) - 27 * 100 * 127, 1, False),
        (0, 1 << 12, False),
        (1 << 31 - 1, 1 << 20, False),
    ],
)
def test_only_sums_below_the_limit_are_marked(
    kit: Any, bias: int, factor: int, small: bool
) -> None:
    x = kit.var("x", 1, 3, 6, 6, dtype="i8")
    assert _marked(kit, x, _sum(kit, x, bias, factor)) is small


def test_an_unknown_sum_is_not_marked(kit: Any) -> None:
    x = kit.var("x", 1, 3, 6, 6, dtype="i32")
    assert not _marked(kit, x, x)


def test_bounds_of_sums_of_products(kit: Any) -> None:
    x = kit.var("x", 1, 3, 6, 6, dtype="i8")
    assert integer_bounds(_sum(kit, x, 5)) == (5 - 27 * 100 * 128, 5 + 27 * 100 * 127)
    rows = kit.layer("cast", kit.var("r", 2, 7, dtype="u8"), dtype="i32")
    product = kit.layer("nn.matmul", rows, kit.const(np.full((7, 4), -3, np.int32)))
    assert integer_bounds(product) == (-3 * 7 * 255, 0)
    assert integer_bounds(kit.layer("clip", product, min=-9.0, max=9.0)) == (-9, 0)
    assert integer_bounds(kit.layer("clip", product, min=None, max=-20.0)) == (-3 * 7 * 255, -20)
    scaled = kit.layer("scale_fixed", product, *(kit.const(np.int32(n)) for n in (1 << 30, 3)))
    assert integer_bounds(scaled) == (-3 * 7 * 255, 3 * 7 * 255)
