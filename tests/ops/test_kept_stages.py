"""Operators computed stage by stage on arrays: shapes, dtypes and attributes that come back."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np

from clew.ops.kept_stages import KeptStages, Stages, exact_key
from clew.ops.registry import get_op


def test_what_is_equal_is_not_always_the_same() -> None:
    values = [0.0, -0.0, 0, False, 1, True, 1.0, "1", None, (), (1,), (True,), (1.0,), math.inf]
    assert len({exact_key(value) for value in values}) == len(values)
    assert exact_key(math.nan) == exact_key(math.nan)
    assert exact_key(1, object()) is None
    assert exact_key((1, (np.float32(1),))) is None


def test_calls_of_other_shapes_dtypes_and_attributes() -> None:
    op = get_op("nn.softmax")
    for _ in range(2):
        for shape in ((2, 3), (3, 2), (6, 1)):
            for dtype in ("f4", "f8", ml_dtypes.bfloat16):
                for axis in (0, 1, -1):
                    x = np.arange(6).reshape(shape).astype(dtype)
                    power = np.exp(x.astype("f8"))
                    found = op.run_reference([x], {"axis": axis})
                    assert found.dtype == x.dtype
                    expected = power / power.sum(axis, keepdims=True)
                    unit = float(ml_dtypes.finfo(found.dtype).eps)
                    np.testing.assert_allclose(found.astype("f8"), expected, rtol=2 * unit)


def test_few_are_kept() -> None:
    kept, made = KeptStages(), list[int]()

    def make() -> Stages:
        made.append(1)
        return [], None

    for n in range(1000):
        for _ in range(2):
            kept.of([np.zeros(n)], {}, make)
    assert len(made) == 1000
    assert len(kept._found) <= 64
