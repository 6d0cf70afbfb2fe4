"""Images of short lines: register tiles of several lines, and vectors of repeated elements."""

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
from clew.ir.interpret import interpret
from clew.ir.module import Module
from clew.passes.manager import PassManager
from clew.schedules.library.tile_sizes import image_tile


@pytest.mark.parametrize(
    ("height", "width", "most", "tile"),
    [
        (7, 7, 6, (2, 3)),
        (8, 8, 6, (2, 3)),
        (28, 28, 6, (1, 6)),
        (5, 6, 6, (1, 6)),
        (7, 7, 14, (2, 7)),
        (14, 14, 14, (1, 14)),
        (1, 49, 6, (1, 6)),
        (3, 1, 6, (3, 1)),
    ],
)
def test_tiles_of_several_lines(height: int, width: int, most: int, tile: tuple[int, int]) -> None:
    assert image_tile(height, width, most) == tile


@pytest.mark.parametrize(
    ("channels", "size", "window", "settings"),
    [
        (512, 14, 3, "columns=4 lines=1 band=7 unroll=0 prefetch=1 chunk=2"),  # of 9 MB of weights
        (64, 14, 3, "columns=4 lines=1 band=7"),  # the weights of a tile stay in the cache
        (1024, 14, 1, "columns=4 lines=1 band=1"),
    ],
)
def test_tiles_and_bands_of_large_weights(
    channels: int, size: int, window: int, settings: str
) -> None:
    (target,) = (t for t in targets() if t.name == "cpu-avx2")
    graph = Graph()
    weight = graph.w(512, channels, window, window)
    found = graph("nn.conv2d", graph.x(1, channels, size, size), weight, strides=(2, 2),
                  padding=(window // 2,) * 4)  # fmt: skip
    module = Module({"main": Function(graph.inputs, Tuple([found]), {"outputs": ("y",)})})
    manager = PassManager(passes_for(CompileOptions(target)), target=target, trace=False)
    sources = [KernelSource(call.op, target) for call in kernel_calls(manager.run(module))]
    decisions = [str(d) for source in sources for d in source.plan.decisions]
    assert any(d.startswith("conv: ") and settings in d for d in decisions), decisions


@pytest.mark.parametrize(("size", "shape"), [((4, 5), (9, 40)), ((3, 8), (24, 64))])
def test_vectors_of_repeated_elements(size: tuple[int, int], shape: tuple[int, int]) -> None:
    graph = Graph()
    found = graph("resize", graph.x(1, 3, *size), shape=(1, 3, *shape), mode="linear")
    module = Module({"main": Function(graph.inputs, Tuple([found]), {"outputs": ("y",)})})
    compiled = clew.compile(
        module, target="cpu-avx2", threads=1, diagnostics=clew.Diagnostics(guard=True)
    )
    assert "in 8:" in compiled.kernels[0].loops
    x = np.random.default_rng(0).standard_normal((1, 3, *size), dtype=np.float32)
    (result,) = compiled.run({"x0": x}).values()
    (expected,) = interpret(module, {"x0": x}).values()
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
