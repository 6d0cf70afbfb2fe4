"""FoldOffsets: which products become `rescale` and `rescale_away`, with the same codes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clew
from clew.ir.expr import Call
from clew.ir.interpret import interpret
from clew.ir.visit import post_order
from clew.passes.base import PassContext
from clew.passes.precision.fold_offsets import FoldOffsets

_FACTORS = np.array([1 << 30, (1 << 30) + 1, 1518500250, (1 << 31) - 1, 3 << 29], np.int64)


def _layer(
    kit: Any,
    factor: np.ndarray,
    shift: np.ndarray,
    *,
    bias: int = 0,
    zero: int = -3,
    low: float | None = -3.0,
    **rounding: bool,
) -> Any:
    x = kit.var("x", 1, factor.size, dtype="i32")
    total = kit.layer("subtract", x, kit.const(np.full(factor.size, -bias, np.int32)))
    parameters = kit.const(factor.astype(np.int32)), kit.const(shift.astype(np.int32))
    scaled = kit.layer("scale_fixed", total, *parameters, **rounding)
    scaled = kit.layer("add", kit.const(np.int32(zero)), scaled)
    return kit.module([x], kit.layer("clip", scaled, min=low, max=127.0))


def _form(module: Any) -> str:
    calls = [n.op_name for n in post_order(module.main.body) if isinstance(n, Call)]
    (found,) = (name for name in calls if "scale" in name)
    return found


def _borders(bias: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns numbers around the ties of codes, in all pairs of factors and shifts."""
    rows = []
    for factor in _FACTORS.tolist():
        for shift in range(1, 23):
            for code in (-9, -2, -1, 0, 1, 63, 129, 130):
                at = ((2 * code + 1) << (30 + shift)) // factor
                near = {at + n for n in (-2, -1, 0, 1, 2)} | {
                    0,
                    -1,
                    1,
                    (1 << 30) - 1,
                    1 - (1 << 30),
                }
                rows += [(n - bias, factor, shift) for n in near if abs(n) < 1 << 30]
    found = np.array(rows, np.int64)
    return found[:, 0].astype(np.int32), found[:, 1], found[:, 2]


@pytest.mark.parametrize("bias", [0, 77_777, -(1 << 30)])
@pytest.mark.parametrize(
    ("form", "low"), [("bounded", -3.0), ("once", -3.0), ("bounded", -99.0), ("bounded", None)]
)
@pytest.mark.parametrize("target", ["host", "cpu-avx2"])
def test_every_border(kit: Any, bias: int, form: str, low: float | None, target: str) -> None:
    x, factor, shift = _borders(bias)
    module = _layer(kit, factor, shift, bias=bias, low=low, bounded=True, once=form == "once")
    folded = FoldOffsets().run(module, PassContext())
    assert _form(folded) == ("rescale" if low == -3.0 else "rescale_away")
    feed = {"x": x[None]}
    expected = interpret(module, feed)["y0"]
    np.testing.assert_array_equal(interpret(folded, feed)["y0"], expected)
    if target == "host" or bias:
        model = clew.compile(folded, threads=1, **({} if target == "host" else {"target": target}))
        np.testing.assert_array_equal(model(x[None]), expected)
    assert len(np.unique(expected)) > 5


@pytest.mark.parametrize(
    ("changed", "form"),
    [
        ({}, "rescale"),
        ({"zero": -4}, "rescale"),  # results below -3 become -3
        ({"zero": -2}, "rescale_away"),  # -3 is the code of a negative number
        ({"low": None}, "rescale_away"),
        ({"bounded": False}, "scale_fixed"),
        ({"bias": (1 << 30) + 1}, "scale_fixed"),
        ({"zero": -2, "once": True}, "rescale"),  # ties go up
        ({"zero": -2, "low": None, "once": True}, "rescale"),
    ],
)
def test_what_is_folded(kit: Any, changed: dict[str, Any], form: str) -> None:
    factor, shift = np.array([1 << 30, 1518500250]), np.array([3, 7])
    given = {"bounded": True, **changed}
    module = _layer(kit, factor, shift, **given)
    found = FoldOffsets().run(module, PassContext())
    assert _form(found) == form
    assert form != "scale_fixed" or found is module


@pytest.mark.parametrize(
    ("factor", "shift", "once"),
    [((1 << 30) - 1, 3, False), (1 << 30, 31, False), (1 << 30, 0, True)],
)
def test_products_that_no_constant_rounds(kit: Any, factor: int, shift: int, once: bool) -> None:
    given = {"once": True} if once else {"bounded": True, "low": None}
    module = _layer(kit, np.array([factor]), np.array([shift]), **given)
    assert FoldOffsets().run(module, PassContext()) is module


def test_a_shift_of_zero_has_no_tie(kit: Any) -> None:
    factor, shift = np.array([1 << 30, 1518500250]), np.array([3, 0])
    module = _layer(kit, factor, shift, bounded=True, bias=7)
    found = FoldOffsets().run(module, PassContext())
    assert _form(found) == "rescale_away"
    for x in range(-20, 20):
        feed = {"x": np.int32([[x, x]])}
        expected = interpret(module, feed)["y0"]
        np.testing.assert_array_equal(interpret(found, feed)["y0"], expected)


def test_a_sum_with_another_reader_is_added_once(kit: Any) -> None:
    x = kit.var("x", 1, 4, dtype="i32")
    total = kit.layer("add", x, kit.const(np.int32(5)))
    scaled = kit.layer(
        "scale_fixed", total, kit.const(np.int32(1 << 30)), kit.const(np.int32(3)), bounded=True
    )
    module = kit.module([x], kit.layer("clip", scaled, min=0.0, max=9.0), total)
    found = FoldOffsets().run(module, PassContext())
    calls = [n for n in post_order(found.main.body) if isinstance(n, Call)]
    (rescaled,) = (n for n in calls if n.op_name == "rescale")
    assert rescaled.args[0].op_name == "add"
    feed = {"x": np.int32([[-99, -5, 3, 99]])}
    for name, expected in interpret(module, feed).items():
        np.testing.assert_array_equal(interpret(found, feed)[name], expected)
