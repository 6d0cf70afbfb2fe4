"""Schedules for images of free size: few remainders, and tiles of several lines."""

from __future__ import annotations

from typing import Any

import pytest

import clew
from clew.ir.dims import Dim, SymDim
from clew.ir.expr import Function, Var
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.loop.ir import loops
from clew.ops.registry import get_op

H, W = SymDim.symbol("h"), SymDim.symbol("w")


def nest_of(op: str, shape: tuple[Dim, ...], **attrs: Any) -> Any:
    x = Var("x", TensorType(shape, "f32"))
    module = Module({"main": Function([x], get_op(op)(x, **attrs))})
    compiled = clew.compile(module, threads=1, target="cpu-avx2", cache=False, specialize=False)
    (kernel,) = compiled.kernels
    return kernel.nest


@pytest.mark.parametrize(
    ("axes", "joined"), [((2, 3), "k2+k3"), ((1, 2, 3), "k1+k2+k3"), ((1, 3), "")]
)
def test_sums_walk_lines_as_one(axes: tuple[int, ...], joined: str) -> None:
    nest = nest_of("sum", (8, 4, H, W), axes=axes, keepdims=False)
    names = [loop.name for loop in loops(nest.body)]
    assert any(f".{joined}." in name for name in names) is bool(joined)
    assert any(".k3." in name for name in names) is not bool(joined)


def test_known_lines_are_separate_loops() -> None:
    nest = nest_of("sum", (8, 4, 33, 34), axes=(2, 3), keepdims=False)
    assert not any("+k3" in loop.name for loop in loops(nest.body))


@pytest.mark.parametrize(("shape", "lines"), [((1, 4, H, W), 3), ((1, 4, H, 300), 1)])
def test_windows_of_several_lines(shape: tuple[Dim, ...], lines: int) -> None:
    nest = nest_of("nn.avg_pool2d", shape, kernel_size=(3, 3), strides=(1, 1))
    found = [loop.size for loop in loops(nest.body) if loop.name.endswith("i2.i")]
    assert max(found) == lines
