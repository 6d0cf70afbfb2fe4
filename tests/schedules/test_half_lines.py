"""What targets with vectors of 256 bits choose otherwise than those with longer ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from golden_cases import Graph, targets

import clew
from clew.backends.calls import kernel_calls
from clew.backends.compile_options import CompileOptions
from clew.backends.cpu.lowering import KernelSource
from clew.compiling.compile import passes_for
from clew.ir.expr import Expr, Function, Tuple
from clew.ir.interpret import interpret
from clew.ir.module import Module
from clew.ir.visit import post_order
from clew.passes.convolution.fill_groups import FillGroups
from clew.passes.manager import PassManager


def module(graph: Graph, found: Expr) -> Module:
    return Module({"main": Function(graph.inputs, Tuple([found]), {"outputs": ("y",)})})


def sources(given: Module, name: str) -> list[KernelSource]:
    """The kernels of a module for a target."""
    (target,) = (t for t in targets() if t.name == name)
    manager = PassManager(passes_for(CompileOptions(target)), target=target, trace=False)
    return [KernelSource(call.op, target) for call in kernel_calls(manager.run(given))]


def check(given: Module) -> None:
    """Compares a module, compiled for AVX2, with its references."""
    rng = np.random.default_rng(0)
    inputs = {p.name: rng.standard_normal(p.tensor.concrete).astype(np.float32)
              for p in given.main.params}  # fmt: skip
    want = interpret(given, inputs)["y"]
    found = clew.compile(given, target="cpu-avx2", threads=2).run(inputs)["y"]
    np.testing.assert_allclose(found, want, rtol=1e-3, atol=1e-3 * np.abs(want).max())


def product(batch: tuple[int, ...], rows: int, columns: int, depth: int) -> Module:
    graph = Graph()
    x, y = graph.x(*batch, rows, depth), graph.x(*batch, depth, columns)
    return module(graph, graph("nn.matmul", x, y))


@pytest.mark.parametrize(
    ("batch", "rows", "columns", "depth", "wanted"),
    [
        ((1,), 20, 300, 200, 4),  # the last panel and the last group are shorter
        ((3,), 17, 272, 128, 8),
        ((1,), 8, 300, 200, 0),  # few rows read the copy
        ((1,), 20, 60, 60, 0),  # the matrix stays in the cache
    ],
)
def test_panels_of_a_matrix_of_the_run_are_copied(
    batch: tuple[int, ...], rows: int, columns: int, depth: int, wanted: int
) -> None:
    given = product(batch, rows, columns, depth)

    def copies(name: str) -> int:
        (source,) = sources(given, name)
        (decision,) = source.plan.decisions
        return int(decision.settings.get("packed") or 0)

    assert copies("cpu-avx2") == wanted
    assert copies("cpu-avx512") == 0  # a panel takes two lines of each row
    if wanted:
        check(given)


@pytest.mark.parametrize(
    ("channels", "filters", "groups", "filled"),
    [(20, 20, 2, 32), (10, 15, 5, 20), (24, 48, 2, 48), (12, 36, 3, 48), (6, 4, 2, 4)],
)
def test_groups_are_filled_up(channels: int, filters: int, groups: int, filled: int) -> None:
    graph = Graph()
    weight: Any = graph.w(filters, channels // groups, 3, 3)
    y = graph("nn.conv2d", graph.x(2, channels, 7, 9), weight, padding=(1,) * 4, groups=groups)
    given = module(graph, graph("nn.relu", y))

    def stored(name: str) -> int:
        (target,) = (t for t in targets() if t.name == name)
        changed = PassManager([FillGroups()], target=target, trace=False).run(given)
        (found,) = (
            e for e in post_order(changed.main.body) if getattr(e, "op_name", "") == "nn.conv2d"
        )
        return int(found.tensor.concrete[1])

    assert stored("cpu-avx2") == filled
    assert stored("cpu-avx512") == filters  # it has masks for the ends of lines
    check(given)
