"""Plain nests of computations with sizes of 0."""

from __future__ import annotations

import math

import numpy as np
import pytest

from clew import te
from clew.loop.interpret import interpret
from clew.loop.ir import Nest, loops
from clew.loop.lower import lower
from clew.te import Tensor


def _nest(tensor: Tensor, *inputs: Tensor) -> Nest:
    nest = lower("empty", inputs, [tensor])
    assert all(loop.extent for stmt in nest.body.stmts for loop in loops(stmt))
    return nest


@pytest.mark.parametrize(
    ("combine", "identity"),
    [(te.sum, 0.0), (te.prod, 1.0), (te.max, -math.inf), (te.min, math.inf)],
)
def test_a_reduction_of_nothing_stores_its_identity(combine: object, identity: float) -> None:
    x, k = te.placeholder((3, 0), "f32", "x"), te.reduce_axis(0, "k")
    nest = _nest(te.compute((3,), lambda i: combine(x[i, k], k), "reduced"), x)  # type: ignore[operator]
    (found,) = interpret(nest, [np.zeros((3, 0), np.float32)])
    assert found.tolist() == [identity] * 3
    assert "x[" not in str(nest)


def test_nothing_is_loaded_from_what_has_no_elements() -> None:
    """A pad, whose rows before and after those of `x` are all that there is."""
    x = te.placeholder((0, 4), "f32", "x")
    twice = te.compute((0, 4), lambda i, j: x[i, j] * 2.0, "twice")
    inside = te.compute(
        (2, 4), lambda i, j: te.select((i >= 1) & (i < 1), twice[i - 1, j], 5.0), "padded"
    )
    nest = _nest(inside, x)
    (found,) = interpret(nest, [np.zeros((0, 4), np.float32)])
    assert found.tolist() == [[5.0] * 4] * 2


def test_a_result_without_elements_has_no_loops() -> None:
    x = te.placeholder((0, 4), "f32", "x")
    nest = _nest(te.compute((4, 0), lambda i, j: x[j, i], "turned"), x)
    assert not nest.body.stmts
    assert interpret(nest, [np.zeros((0, 4), np.float32)])[0].shape == (4, 0)
