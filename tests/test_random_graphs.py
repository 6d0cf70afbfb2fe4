"""Random graphs: optimized native code agrees with the graph interpreted, behind guard pages."""

from __future__ import annotations

import pytest

import clew
from clew.ir.interpret import interpret
from clew.runtime.guard import GuardSide
from random_graphs import Graph, close

pytestmark = pytest.mark.usefixtures("shared_kernels")


@pytest.mark.parametrize("seed", range(60))
def test_native_code_agrees_with_the_graph(seed: int) -> None:
    graph = Graph(seed)
    for _ in range(8):
        graph.grow()
    module = graph.module()
    expected = interpret(module, graph.arrays)
    compiled = clew.compile(
        module,
        opt_level=(3, 3, 1, 0)[seed % 4],
        threads=1 + seed % 2,
        cache=False,
        diagnostics=clew.Diagnostics(guard=list(GuardSide)[seed % 3 % 2]),
    )
    for name, found in compiled.run(graph.arrays).items():
        close(found, expected[name])
