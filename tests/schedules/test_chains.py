"""Rows of long chains of instructions, such as softmax: several vectors at a time."""

from __future__ import annotations

import numpy as np
import pytest
from golden_cases import Graph, targets

import clew
from clew.backends.calls import kernel_calls
from clew.backends.compile_options import CompileOptions
from clew.backends.cpu.lowering import KernelSource
from clew.compiling.compile import passes_for
from clew.ir.expr import Function, Tuple
from clew.ir.module import Module
from clew.loop.ir import Store, loops, walk
from clew.passes.manager import PassManager


def normalized(op: str, rows: int, columns: int) -> Module:
    graph = Graph()
    found = graph(op, graph.x(rows, columns), axis=-1)
    return Module({"main": Function(graph.inputs, Tuple([found]), {"outputs": ("y",)})})


def lanes_of_exponentials(module: Module, name: str) -> list[int]:
    """The lengths of the vectors in which a target computes exponentials."""
    (target,) = (t for t in targets() if t.name == name)
    manager = PassManager(passes_for(CompileOptions(target)), target=target, trace=False)
    found = []
    for call in kernel_calls(manager.run(module)):
        nest = KernelSource(call.op, target).plan.schedule.finished()
        for loop in loops(nest.body):
            stores = [s for s in walk(loop.body) if isinstance(s, Store)]
            if loop.kind == "vector" and any("exp(" in str(s.value) for s in stores):
                found.append(loop.typical)
    return found


@pytest.mark.parametrize(
    ("columns", "lanes"),
    [(512, [32]), (197, [32, 5]), (100, [32, 4]), (63, [8, 7]), (48, [16]), (7, [7])],
)
def test_exponentials_of_several_vectors_alternate(columns: int, lanes: list[int]) -> None:
    assert lanes_of_exponentials(normalized("nn.softmax", 48, columns), "cpu-avx2") == lanes


@pytest.mark.parametrize(("name", "lanes"), [("cpu-avx2", [32, 8]), ("cpu-avx512", [64, 40])])
def test_sums_of_exponentials_are_one_long_vector(name: str, lanes: list[int]) -> None:
    assert lanes_of_exponentials(normalized("nn.log_softmax", 9, 1000), name) == lanes


@pytest.mark.parametrize("columns", [100, 197, 1000])
@pytest.mark.parametrize("op", ["nn.softmax", "nn.log_softmax"])
def test_rows_of_uneven_length(op: str, columns: int) -> None:
    x = np.random.default_rng(columns).normal(scale=9, size=(5, columns)).astype(np.float32)
    x[1, 3], x[2] = -np.inf, x[2, 0]
    (y,) = clew.compile(normalized(op, 5, columns)).run({"x0": x}).values()
    wide = x.astype(np.float64) - x.max(axis=1, keepdims=True)
    with np.errstate(divide="ignore"):
        want = wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(y, np.exp(want) if op == "nn.softmax" else want, 2e-5, 1e-6)
