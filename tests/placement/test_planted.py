"""Backends that are planted: fast at one operator only, with borders that cost little or much."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import clew
from clew.ir.interpret import interpreted
from clew.ir.parser import parse_module
from clew.runtime.spaces import HOST

Array = np.ndarray[Any, Any]

# Each of these operators takes about a millisecond on one core, for a megabyte of values.
MODEL = """
clew 1
def @main(
  %x: f32[1, 64, 64, 64],  // input x
  %k: f32[64, 64, 3, 3],  // input k
  %w: f32[512, 512],  // input w
  %l: f32[64, 64, 5],  // input l
  %d: f32[512, 512]  // input d
) -> (f32[512, 512],) with outputs=["y"] {
  %0 = nn.conv2d(%x, %k, padding=[1, 1, 1, 1])  // conv:Conv#0
  %1 = reshape(%0, shape=[512, 512])  // flat:Reshape#0
  %2 = nn.matmul(%1, %w)  // product:MatMul#0
  %3 = top_k(%2, k=512, axis=1)  // sort:TopK#0
  %4 = %3[0]  // sort:TopK#0
  %5 = reshape(%4, shape=[1, 64, 4096])  // long:Reshape#0
  %6 = nn.conv1d(%5, %l, padding=[2, 2])  // line:Conv#0
  %7 = reshape(%6, shape=[512, 512])  // square:Reshape#0
  %8 = nn.dense(%7, %d)  // dense:Gemm#0
  %9 = (%8,)
  return %9
}
"""
LAYERS = {
    "nn.conv2d": "conv",
    "nn.matmul": "product",
    "top_k": "sort",
    "nn.conv1d": "line",
    "nn.dense": "dense",
}


def but_one_exhaustive(op: str) -> list[Any]:
    """Returns all operators, of which one is in each run of the tests: each takes five seconds.
    Timed on a busy machine, those that take longest tell most clearly.
    """
    return [op, *(pytest.param(o, marks=pytest.mark.exhaustive) for o in LAYERS if o != op)]


class Slow(clew.MemorySpace):
    """A memory whose copies take longer than any operator."""

    name = "far.away"

    def from_host(self, array: Array) -> Any:
        time.sleep(0.02)
        return array.copy()

    def to_host(self, buffer: Any) -> Array:
        time.sleep(0.02)
        return np.asarray(buffer).copy()


class Planted(clew.Backend):
    """Knows the results of one operator for arguments that it has met, and so is fast."""

    name = "planted"
    key = "1"

    def __init__(self, op: str, memory: clew.MemorySpace) -> None:
        self.op = op
        self.memory = memory

    def takes(self, call: Any) -> bool:
        return bool(call.op_name == self.op)

    def compile(self, region: Any, target: Any) -> Callable[..., Any]:
        run, met = interpreted(region), dict[bytes, Any]()

        def known(*arrays: Array) -> Any:
            key = b"".join(a.reshape(-1)[::4099].tobytes() for a in arrays)
            if key not in met:
                met[key] = run(arrays, {})
            return met[key]

        return known


@pytest.fixture(scope="module")
def module() -> clew.Module:
    return parse_module(MODEL)


def placed(module: clew.Module, planted: Planted) -> clew.Placement:
    return clew.place(module, [planted], threads=1, seconds=1.0, tuned=None)


@pytest.mark.parametrize("op", but_one_exhaustive("nn.conv2d"))
def test_it_gets_just_its_operator_where_it_pays(module: clew.Module, op: str) -> None:
    for _ in range(3):  # its costs are measured, perhaps beside other programs
        found = placed(module, Planted(op, HOST))
        if found.regions:
            break
    (region,) = [r for r in found.regions if r.backend == "planted"]
    assert set(region.ops) == {op}
    assert region.layers == (LAYERS[op],)
    ran = {plan.name: plan.seconds for plan in found.plans}
    assert found.best.seconds == min(s for s in ran.values() if s is not None)
    assert found.best.name != "cpu"


@pytest.mark.parametrize("op", but_one_exhaustive("nn.dense"))
def test_it_gets_nothing_where_its_borders_cost_more(module: clew.Module, op: str) -> None:
    found = placed(module, Planted(op, Slow()))
    assert found.backends == ()
    assert found.best.name == "cpu"
    assert clew.compile(module, backends=[Planted(op, Slow())], place=found).regions == []
