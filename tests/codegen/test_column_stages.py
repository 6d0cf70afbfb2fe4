"""Softmax, norms and argmax along axes before the last, computed by columns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from guarded import Array, run

from clew import te
from clew.ir.types import from_numpy
from clew.loop.interpret import interpret
from clew.loop.lower import lower
from clew.machine.target import Target, host, target_of
from clew.ops.registry import get_op
from clew.runtime.guard import GuardSide
from clew.schedules.plan import schedule_kernel

SHAPES = [
    ((2, 21, 7, 9), 1),
    ((1, 3, 16, 20), 1),
    ((1, 40, 33), 1),
    ((5, 2, 3, 5), 2),
    ((19, 130), 0),
    ((2, 300, 20), 1),
    ((4, 6, 2), 1),
]
OPERATORS = {
    "nn.softmax": {"axis": 1},
    "nn.log_softmax": {"axis": 1},
    "argmax": {"axis": 1, "keepdims": True},
    "nn.l2_normalize": {"axes": (1,)},
}


def machine(name: str) -> Target:
    return host() if name == "cpu" else replace(target_of(name), triple=host().triple)


def rules_of(
    op: str, shape: tuple[int, ...], attrs: dict[str, object], x: Array, target: Target
) -> tuple[str, ...]:
    """Checks native code behind guard pages; returns the rules that scheduled it."""
    given = te.placeholder(shape, from_numpy(x.dtype), "x")
    nest = lower("stages", [given], [get_op(op).compute(given, **attrs)])
    plan = schedule_kernel(nest, target)
    wanted = interpret(nest, [x])[0]
    for side, threads in ((GuardSide.START, 1), (GuardSide.END, 2)):
        found = run(plan.schedule.finished(), [x], target, side, threads)
        np.testing.assert_allclose(found.reshape(wanted.shape), wanted, rtol=2e-6, atol=1e-7)
    return plan.rules


@pytest.mark.parametrize("name", ["cpu", "cpu-avx2"])
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
@pytest.mark.parametrize("op", OPERATORS)
def test_stages_along_an_axis(op: str, shape: tuple[int, ...], axis: int, name: str) -> None:
    attrs = {k: (axis,) if k == "axes" else axis if k == "axis" else v
             for k, v in OPERATORS[op].items()}  # fmt: skip
    rng = np.random.default_rng(len(shape) + axis)
    for dtype in (np.float32, np.float64):
        x = rng.standard_normal(shape).astype(dtype)
        assert rules_of(op, shape, attrs, x, machine(name)) == ("columns",)


def test_not_a_number_is_the_largest() -> None:
    x = np.random.default_rng(0).standard_normal((2, 9, 37)).astype(np.float32)
    x[0, 4, 3] = x[0, 7, 3] = x[1, 0, 36] = np.nan
    x[1, :, 5] = -np.inf
    rules_of("argmax", x.shape, {"axis": 1, "keepdims": True}, x, host())
