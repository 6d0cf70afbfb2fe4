"""Convolutions over signals, which are images of a single line: bands of pixels."""

from __future__ import annotations

import re

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


def convolution(channels: int, filters: int, length: int, window: int, step: int = 1) -> Module:
    graph = Graph()
    signal, weight = graph.x(1, channels, length), graph.w(filters, channels, window)
    found = graph("nn.conv1d", signal, weight, strides=(step,), padding=(window // 2,) * 2)
    return Module({"main": Function(graph.inputs, Tuple([found]), {"outputs": ("y",)})})


def band(module: Module, target: Target) -> int:
    """The default of the choice `band`."""
    manager = PassManager(passes_for(CompileOptions(target)), target=target, trace=False)
    plans = [KernelSource(call.op, target).plan for call in kernel_calls(manager.run(module))]
    found = re.search(r"conv: .*band=(\d+)", " ".join(str(d) for p in plans for d in p.decisions))
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize(("channels", "filters", "window"), [(80, 384, 3), (512, 64, 1)])
def test_long_signals_are_read_in_bands_that_stay_in_cache(
    channels: int, filters: int, window: int
) -> None:
    (target,) = (t for t in targets() if t.name == "cpu-avx2")
    pixels = band(convolution(channels, filters, 3000, window), target)
    assert 0.3 < pixels * channels * 4 / target.l2_bytes < 0.5
    assert band(convolution(channels, filters, 30, window), target) == 30  # all of it stays


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("channels", "filters", "length", "window", "step"),
    [(512, 130, 333, 1, 1), (256, 64, 1001, 3, 1), (256, 128, 900, 5, 2)],
)
def test_bands_of_pixels_give_the_same_sums(
    channels: int, filters: int, length: int, window: int, step: int, threads: int
) -> None:
    module = convolution(channels, filters, length, window, step)
    compiled = clew.compile(module, threads=threads)
    x = np.random.default_rng(length).standard_normal((1, channels, length)).astype(np.float32)
    (y,) = compiled.run({"x0": x}).values()
    (found,) = module.main.body.fields  # type: ignore[attr-defined]
    weight = found.args[1].data
    padded = np.pad(x[0].astype(np.float64), ((0, 0), (window // 2,) * 2))
    windows = np.lib.stride_tricks.sliding_window_view(padded, window, axis=1)[:, ::step]
    want = np.einsum("clk,ock->ol", windows, weight.astype(np.float64))
    assert np.abs(y[0] - want).max() < 1e-4 * np.abs(want).max()


@pytest.mark.parametrize(("name", "tile"), [("cpu-avx2", (3, 4)), ("cpu-avx512", (4, 5))])
def test_register_tiles_have_the_most_products_for_each_load(
    name: str, tile: tuple[int, int]
) -> None:
    (target,) = (t for t in targets() if t.name == name)
    module = convolution(1, 512, 16000, 10, 5)
    manager = PassManager(passes_for(CompileOptions(target)), target=target, trace=False)
    plans = [KernelSource(call.op, target).plan for call in kernel_calls(manager.run(module))]
    found = " ".join(str(d) for p in plans for d in p.decisions)
    chosen = re.search(r"lines: .*vectors=(\d+).*rows=(\d+)", found)
    assert chosen is not None, found
    assert (int(chosen[1]), int(chosen[2])) == tile
