"""Softmaxes and norms of short rows: several rows are computed together."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from golden_cases import Graph

import clew
from clew.ir.dims import SymDim
from clew.ir.expr import Expr, Function, Tuple
from clew.ir.interpret import interpret
from clew.ir.module import Module
from clew.runtime.guard import GuardSide
from clew.support.errors import CompileError


def check(graph: Graph, found: Expr, turn: int, target: str) -> Any:
    """Compiles a function, and compares it with its reference, unless this machine cannot run it.
    Returns its only kernel.
    """
    module = Module({"main": Function(graph.inputs, Tuple([found]), {"outputs": ("y",)})})
    compiled = clew.compile(
        module, threads=1 + turn % 2, guard=list(GuardSide)[turn % 2], target=target
    )
    rng = np.random.default_rng(turn)
    inputs = {
        p.name: rng.standard_normal(p.tensor.concrete).astype(np.float32)
        for p in module.main.params
    }
    (kernel,) = compiled.kernels
    try:
        result = compiled.run(inputs)["y"]
    except CompileError as error:
        if error.code != "C057":
            raise
        return kernel
    np.testing.assert_allclose(result, interpret(module, inputs)["y"], rtol=1e-5, atol=1e-6)
    return kernel


def together(kernel: Any) -> bool:
    """Whether a kernel keeps a value of each of eight rows."""
    return re.search(r"scratch \S+: f32\[(1, )?8(, 1)?\]", str(kernel.loops)) is not None


@pytest.mark.parametrize("target", ["cpu-avx2", "cpu-avx512"])
@pytest.mark.parametrize("operator", ["nn.softmax", "nn.log_softmax"])
@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        ((40, 51), True),
        ((3, 21, 64), True),  # the last rows of each image are fewer
        ((37, 512), True),
        ((40, 513), False),
        ((40, 7), False),
        ((30, 51), False),  # too few groups for threads
        ((8, 7, 33), False),
    ],
)
def test_softmaxes(operator: str, shape: tuple[int, ...], wanted: bool, target: str) -> None:
    graph = Graph()
    kernel = check(graph, graph(operator, graph.x(*shape), axis=-1), sum(shape), target)
    assert together(kernel) is wanted


@pytest.mark.parametrize("turn", range(4))
def test_norms(turn: int) -> None:
    rows, columns = ((61, 33), (40, 300), (33, 100), (200, 16))[turn]
    graph = Graph()
    x, scale, bias = graph.x(rows, columns), graph.x(columns), graph.x(columns)
    kernel = check(graph, graph("nn.layer_norm", x, scale, bias), turn, "cpu-avx512")
    assert together(kernel)


@pytest.mark.parametrize("operator", ["nn.softmax", "nn.log_softmax"])
def test_values_of_rows_of_free_sizes(operator: str) -> None:
    """A quotient or logarithm of a row's sum is computed once, not for each of its vectors."""
    graph = Graph()
    x = graph.x(*map(SymDim.symbol, "nm"))
    module = Module(
        {"main": Function(graph.inputs, Tuple([graph(operator, x)]), {"outputs": ("y",)})}
    )
    compiled = clew.compile(module, threads=1)
    (kernel,) = compiled.kernels
    assert re.search(r"register \S+_(log|inverse): f32\[1, 1\]", str(kernel.loops))
    value = np.random.default_rng(0).standard_normal((5, 77)).astype(np.float32)
    given = {p.name: value for p in module.main.params}
    want = interpret(module, given)["y"]
    np.testing.assert_allclose(compiled.run(given)["y"], want, rtol=1e-5, atol=1e-6)
