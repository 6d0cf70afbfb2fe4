"""Blocks folded into images: pixels of a line read several runs of memory in turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from golden_cases import Graph

import clew
from clew.ir.expr import Function, Tuple
from clew.ir.interpret import interpret
from clew.ir.module import Module
from clew.machine.target import Target
from clew.runtime.guard import GuardSide


@pytest.mark.parametrize(
    ("rows", "count", "attrs"),
    [
        (3 * 4, 14 * 20, {"image": (28, 40), "block": (2, 2), "strides": (2, 2)}),
        (2 * 9, 9 * 17, {"image": (17, 33), "block": (3, 3), "strides": (2, 2),
                         "padding": (1, 1, 1, 1)}),
        (2 * 64, 5 * 9, {"image": (24, 40), "block": (8, 8), "strides": (4, 4)}),
        (16, 4 * 6, {"image": (16, 24), "block": (4, 4), "strides": (4, 4)}),
        (3 * 2, 7 * 19, {"image": (7, 37), "block": (1, 2), "strides": (1, 2),
                         "padding": (0, 0, 0, 1)}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("target", ["cpu-avx2", "cpu-avx512"])
def test_blocks_with_strides(
    rows: int,
    count: int,
    attrs: dict[str, Any],
    target: str,
    runs_here: Callable[[str | Target], None],
) -> None:
    runs_here(target)
    graph = Graph()
    y = graph("nn.col2im", graph.x(2, rows, count), **attrs)
    module = Module({"main": Function(graph.inputs, Tuple([y]), {"outputs": ("y",)})})
    guard = list(GuardSide)[rows % 2]
    compiled = clew.compile(
        module, target=target, diagnostics=clew.Diagnostics(guard=guard), threads=1 + rows % 2
    )
    assert [rule for kernel in compiled.kernels for rule in kernel.rules] == ["spatial"]
    x = np.random.default_rng(rows).standard_normal((2, rows, count), np.float32)
    given = {graph.inputs[0].name: x}
    want = interpret(module, given)["y"]
    np.testing.assert_allclose(compiled.run(given)["y"], want, rtol=1e-5, atol=1e-5)
