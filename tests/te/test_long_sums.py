"""Rounding errors of sums do not grow with the number of elements, whatever the axes and sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clew
from clew.ir.dims import Dim, SymDim
from clew.ir.expr import Function, Var
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.ops.registry import get_op

N, H, W = map(SymDim.symbol, ("n", "h", "w"))
LONG = 1 << 19

CASES: list[tuple[str, tuple[int, ...], tuple[Dim, ...], dict[str, Any]]] = [
    ("sum", (LONG, 8), (N, 8), {"axes": (0,)}),
    ("sum", (2, LONG // 4, 3), (2, N, 3), {"axes": (1,)}),
    ("sum", (3, LONG), (3, N), {"axes": (1,)}),
    ("mean", (1, 4, 512, 256), (1, 4, H, W), {"axes": (2, 3)}),
    ("cumsum", (LONG,), (N,), {"axis": 0}),
    ("cumsum", (LONG // 4, 5), (N, 5), {"axis": 0}),
    ("nn.global_avg_pool2d", (1, 3, 1024, 512), (1, 3, H, W), {}),
]


@pytest.mark.parametrize("is_free", [False, True])
@pytest.mark.parametrize(("name", "shape", "free", "attrs"), CASES)
def test_long_sums_are_exact(
    name: str, shape: tuple[int, ...], free: tuple[Dim, ...], attrs: dict[str, Any], is_free: bool
) -> None:
    """Elements that are all positive: one `f32` accumulator would be off by 1e-5 and more."""
    op = get_op(name)
    data = np.random.default_rng(0).uniform(1, 2, shape).astype(np.float32)
    param = Var("x", TensorType(free if is_free else shape, "f32"))
    module = Module({"main": Function([param], op(param, **attrs))})
    found = clew.compile(module, threads=1, cache=False, sizes=clew.Sizes(specialize=False))(data)
    wanted = op.run_reference([data.astype(np.float64)], op.bind(attrs))
    np.testing.assert_allclose(found, wanted, rtol=4e-7)
