"""SplitExtremes: minimum and maximum of large tensors, row by row."""

from __future__ import annotations

import numpy as np
import pytest

import clew
from clew.ir.expr import Call, Expr, Function, Tuple, Var
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.ir.visit import post_order
from clew.ops.registry import get_op
from clew.passes.base import PassContext
from clew.passes.simplify.split_extremes import SplitExtremes
from clew.trace.span import Span


def _module(shape: tuple[int, ...], names: tuple[str, ...], dtype: str = "f32") -> Module:
    x = Var("x", TensorType(shape, dtype), span=Span())
    axes = tuple(range(len(shape)))
    found: list[Expr] = [get_op(n)(x, axes=axes, keepdims=False) for n in names]
    outputs = {"outputs": tuple(f"v{n}" for n in range(len(found)))}
    return Module({"main": Function([x], Tuple(found, span=Span()), outputs, span=Span())})


def _operators(module: Module) -> list[str]:
    nodes = post_order(SplitExtremes().run(module, PassContext()).main.body)
    return [n.op_name for n in nodes if isinstance(n, Call)]


def test_both_extremes_read_rows_once() -> None:
    assert _operators(_module((128, 3072), ("min", "max"))) == ["reshape", "extremes", "min", "max"]


def test_one_extreme_is_split_into_rows() -> None:
    assert _operators(_module((1 << 17,), ("max",))) == ["reshape", "max", "max"]


@pytest.mark.parametrize("shape", [(16, 64), (7, 65537)])  # small; no rows of a useful length
def test_others_stay(shape: tuple[int, ...]) -> None:
    assert _operators(_module(shape, ("min", "max"))) == ["min", "max"]


@pytest.mark.parametrize("dtype", ["f32", "f16", "i8"])
def test_values_with_nan_and_infinities(dtype: str) -> None:
    module = _module((33, 2048), ("min", "max"), dtype)
    rng = np.random.default_rng(0)
    x = rng.integers(-100, 100, (33, 2048)).astype(clew.ir.types.to_numpy(dtype))
    places = [(0, 0), (17, 1000), (32, 2047)]
    compiled = clew.compile(module)
    for value in (-120, 120) if dtype == "i8" else (-1e4, np.inf, -np.inf, np.nan):
        for place in places:
            given = x.copy()
            given[place] = value
            np.testing.assert_array_equal(compiled(given), (given.min(), given.max()))
