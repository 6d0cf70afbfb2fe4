"""Reductions over axes before the last: runs of memory, and rows that share elements."""

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
from clew.passes.manager import PassManager

SHAPES = [(64, 128, 96), (8, 50, 200), (6, 40, 13), (2, 300, 512), (3, 4, 5, 70)]


def reduction(op: str, shape: tuple[int, ...]) -> Module:
    graph = Graph()
    found = graph(op, graph.x(*shape), axes=(len(shape) - 2,), keepdims=False)
    return Module({"main": Function(graph.inputs, Tuple([found]), {"outputs": ("y",)})})


def choice(module: Module) -> str:
    (target,) = (t for t in targets() if t.name == "cpu-avx2")
    manager = PassManager(passes_for(CompileOptions(target)), target=target, trace=False)
    (call,) = kernel_calls(manager.run(module))
    return " ".join(str(d) for d in KernelSource(call.op, target).plan.decisions)


def test_a_sum_over_a_middle_axis_reads_whole_rows() -> None:
    assert "vectors=12" in choice(reduction("sum", (64, 128, 96)))  # 96 elements of 8 a vector
    assert "vectors=9" in choice(reduction("sum", (64, 128, 200)))  # 25 vectors in 3 panels


def test_short_rows_share_a_tile() -> None:
    assert "rows=4" in choice(reduction("sum", (64, 49, 8)))  # one sum alone would wait for itself


def test_neighbors_of_windows_share_a_tile() -> None:
    graph = Graph()
    found = graph("nn.lrn", graph.x(1, 64, 27, 27), size=5)
    module = Module({"main": Function(graph.inputs, Tuple([found]), {"outputs": ("y",)})})
    assert "spatial: rows=" in choice(module)


@pytest.mark.parametrize("op", ["sum", "max", "mean"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_results(op: str, shape: tuple[int, ...]) -> None:
    compiled = clew.compile(
        reduction(op, shape), threads=2, diagnostics=clew.Diagnostics(guard=True)
    )
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    (y,) = compiled.run({"x0": x}).values()
    wanted = getattr(np, op)(x.astype(np.float64), axis=len(shape) - 2)
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-4)
