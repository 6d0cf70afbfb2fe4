"""Reductions whose results stay in registers, one or several vectors of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clew
from clew.ir.expr import Function, Var
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.ops.registry import get_op


@pytest.mark.parametrize("columns", [4, 8, 16, 24, 32, 64])
@pytest.mark.parametrize(
    ("op", "attrs"), [("argmax", {"axis": 1}), ("argmin", {"axis": 1}), ("sum", {"axes": (1,)})]
)
@pytest.mark.parametrize("dtype", ["f32", "f64", "i8"])
def test_columns(op: str, attrs: dict[str, Any], columns: int, dtype: str) -> None:
    x = Var("x", TensorType((3, 7, columns), dtype))
    body = get_op(op)(x, keepdims=False, **attrs)
    compiled = clew.compile(Module({"main": Function([x], body)}), threads=1, cache=False)
    kinds = {"f32": np.float32, "f64": np.float64, "i8": np.int8}
    value = np.random.default_rng(columns).integers(-9, 9, (3, 7, columns)).astype(kinds[dtype])
    (found,) = compiled.run({"x": value}).values()
    np.testing.assert_array_equal(found, getattr(np, op)(value, axis=1).astype(found.dtype))
