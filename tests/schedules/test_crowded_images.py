"""Convolutions of one pixel over images whose channel blocks compete for places in a cache."""

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


def convolution(
    channels: int, filters: int, height: int, width: int, window: int = 1, batch: int = 1
) -> Module:
    """A convolution with a bias and a ReLU, its weights drawn."""
    graph = Graph()
    image = graph.x(batch, channels, height, width)
    padding = (window // 2,) * 4
    weight = graph.w(filters, channels, window, window)
    found = graph("nn.conv2d", image, weight, padding=padding)
    found = graph("nn.relu", graph("add", found, graph.w(filters, 1, 1)))
    return Module({"main": Function(graph.inputs, Tuple([found]), {"outputs": ("y",)})})


def steps(module: Module, target: Target) -> str:
    """The schedules of the kernels."""
    manager = PassManager(passes_for(CompileOptions(target)), target=target, trace=False)
    sources = (KernelSource(call.op, target) for call in kernel_calls(manager.run(module)))
    return "\n".join(str(step) for source in sources for step in source.plan.schedule.steps)


@pytest.mark.parametrize(
    ("height", "width", "window", "copied"),
    [
        (64, 64, 1, True),  # blocks lie 256 KiB apart
        (32, 128, 1, True),
        (60, 61, 1, False),  # at irregular distances
        (14, 14, 1, False),  # the image fits as a whole
        (64, 64, 3, False),  # neighbors share lines
    ],
)
def test_bands_of_crowded_images_are_copied(
    height: int, width: int, window: int, copied: bool
) -> None:
    (target,) = (t for t in targets() if t.name == "cpu-avx512")
    module = convolution(512, 256, height, width, window)
    assert ("cache_read" in steps(module, target)) == copied


@pytest.mark.parametrize(("channels", "copied"), [(2048, True), (1536, True), (1024, False)])
def test_bands_of_very_many_blocks_are_copied(channels: int, copied: bool) -> None:
    (target,) = (t for t in targets() if t.name == "cpu-avx2")
    module = convolution(channels, 256, 13, 13)
    assert ("cache_read" in steps(module, target)) == copied


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("channels", "filters", "height", "width", "batch"),
    [
        (512, 144, 64, 64, 1),
        (256, 128, 32, 128, 2),
        (1024, 130, 16, 256, 1),
        (512, 256, 61, 64, 1),
        (2048, 130, 7, 7, 1),
    ],
)
def test_copied_bands_give_the_same_sums(
    channels: int, filters: int, height: int, width: int, batch: int, threads: int
) -> None:
    module = convolution(channels, filters, height, width, 1, batch)
    compiled = clew.compile(module, threads=threads)
    rng = np.random.default_rng(channels + filters + height)
    x = rng.standard_normal((batch, channels, height, width), dtype=np.float32)
    (y,) = compiled.run({compiled.input_names[0]: x}).values()
    weight, bias = weights_of(module)
    want = np.einsum("nchw,oc->nohw", x.astype(np.float64), weight[:, :, 0, 0].astype(np.float64))
    want = np.maximum(want + bias, 0)
    assert np.abs(y - want).max() < 1e-4 * np.abs(want).max()


@pytest.mark.parametrize(
    "choices", ["copied=2 flat=0", "copied=2 flat=1", "copied=1 flat=1 shares=4"]
)
def test_bands_are_copied_as_chosen(choices: str) -> None:
    """Pixel by pixel, or a part of a line at a time."""
    module = convolution(2048, 144, 2, 250)
    direct = clew.Passes(disabled=["SelectConvAlgorithm"])  # a matrix unit would multiply parts
    plain = clew.compile(module, threads=1, passes=direct)
    (name,) = (k.name for k in plain.kernels if "conv2d" in k.name)
    asked = clew.schedule_for(name, choose=f"conv: {choices}")
    chosen = clew.compile(module, threads=1, passes=direct, extend=[asked])
    made = [str(step) for k in chosen.kernels if k.name == name for step in k.schedule.steps]
    assert any("cache_read" in step for step in made)
    x = np.random.default_rng(0).standard_normal((1, 2048, 2, 250), dtype=np.float32)
    (want,), (found,) = (c.run({c.input_names[0]: x}).values() for c in (plain, chosen))
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-3)


def weights_of(module: Module) -> tuple[Any, Any]:
    relu = module.main.body.fields[0]  # type: ignore[attr-defined]
    added = relu.args[0]
    return added.args[0].args[1].data, added.args[1].data
