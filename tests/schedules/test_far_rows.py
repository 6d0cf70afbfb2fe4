"""Attention over many keys whose rows lie apart in memory: they are copied once."""

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
from clew.ir.expr import Function, Tuple
from clew.ir.module import Module
from clew.machine.target import Target
from clew.passes.manager import PassManager
from clew.runtime.guard import GuardSide


def attention(queries: int, keys: int, heads: int, own: int, width: int, layout: str) -> Module:
    """Attention of `heads` heads, of which `own` have keys and values of their own."""
    graph = Graph()

    def given(length: int, count: int) -> Any:
        sizes = {"B": 2, "H": count, "S": length, "D": width}
        return graph.x(*(sizes[axis] for axis in layout))

    operands = [given(queries, heads), given(keys, own), given(keys, own)]
    orders = {f"{name}_layout": layout for name in "qkv"}
    found = graph("nn.attention", *operands, **orders)
    return Module({"main": Function(graph.inputs, Tuple([found]), {"outputs": ("y",)})})


def copies(module: Module, target: Target) -> int:
    """The number of inputs that the kernel copies."""
    manager = PassManager(passes_for(CompileOptions(target)), target=target, trace=False)
    sources = (KernelSource(call.op, target) for call in kernel_calls(manager.run(module)))
    return sum(str(s).startswith("cache_read") for x in sources for s in x.plan.schedule.steps)


@pytest.mark.parametrize(
    ("queries", "keys", "layout", "wanted"),
    [
        (1500, 1500, "BSHD", 2),
        (1500, 1500, "BHSD", 0),  # the rows of a head are neighbors
        (1500, 128, "BSHD", 0),  # they stay in the cache
        (1, 1500, "BSHD", 0),  # each is read once
    ],
)
def test_many_rows_that_lie_apart_are_copied(
    queries: int, keys: int, layout: str, wanted: int
) -> None:
    (target,) = (t for t in targets() if t.name == "cpu-avx2")
    assert copies(attention(queries, keys, 6, 6, 64, layout), target) == wanted


def test_rows_that_are_read_twice_are_not_copied() -> None:
    """Such as those of rotary embeddings, if they are computed where the scores are."""
    graph = Graph()
    q, k, v = (graph.x(1, 1500, 4, 64) for _ in "qkv")
    turned = graph("add", graph("multiply", k, k), k)
    orders = {f"{name}_layout": "BSHD" for name in "qkv"}
    kernel = Function(graph.inputs, graph("nn.attention", q, turned, v, **orders), {"name": "k"})
    (target,) = (t for t in targets() if t.name == "cpu-avx2")
    plan = KernelSource(kernel, target).plan
    copied = [str(s) for s in plan.schedule.steps if str(s).startswith("cache_read")]
    assert plan.rules == ("attention",)
    assert len(copied) == 1
    assert "weighted" in copied[0]


@pytest.mark.parametrize(("threads", "guard"), [(1, GuardSide.END), (2, GuardSide.START)])
@pytest.mark.parametrize(
    ("queries", "keys", "heads", "own", "width"),
    [(300, 1100, 2, 2, 64), (257, 2050, 4, 2, 40), (256, 1030, 6, 3, 65)],
)
def test_copied_rows_give_the_same_results(
    queries: int, keys: int, heads: int, own: int, width: int, threads: int, guard: GuardSide
) -> None:
    module = attention(queries, keys, heads, own, width, "BSHD")
    compiled = clew.compile(
        module, "cpu-avx2", threads=threads, diagnostics=clew.Diagnostics(guard=guard)
    )
    assert any("@" in str(kernel.loops) for kernel in compiled.kernels)
    rng = np.random.default_rng(keys)
    q, k, v = (
        rng.standard_normal(t.shape, dtype=np.float32)
        for t in (p.tensor for p in module.main.params)
    )
    (found,) = compiled.run(dict(zip(compiled.input_names, (q, k, v), strict=True))).values()
    k, v = (np.repeat(x, heads // own, axis=2) for x in (k, v))
    scores = np.einsum("bmhd,bnhd->bhmn", q.astype(np.float64), k) / np.sqrt(width)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    wanted = np.einsum("bhmn,bnhd->bhmd", weights / weights.sum(axis=-1, keepdims=True), v)
    assert np.abs(found - wanted).max() < 1e-5 * np.abs(wanted).max()
