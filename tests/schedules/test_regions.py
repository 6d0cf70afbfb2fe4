"""Regions of a plain image: few of them are read where they lie, plane by plane."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from golden_cases import Graph

import clew
from clew.ir.expr import Function, Tuple
from clew.ir.interpret import interpret
from clew.ir.module import Module
from clew.machine.target import Target
from clew.runtime.guard import GuardSide


def test_maxima_read_an_image_with_its_channels_last_sooner() -> None:
    def turns(mode: str) -> bool:
        graph = Graph()
        inputs = graph.x(1, 16, 30, 30), graph.x(1, 4), graph.x(1, dtype="i64")
        y = graph("nn.roi_align", *inputs, out=(5, 5), samples=2, mode=mode)
        module = Module({"main": Function(graph.inputs, Tuple([y]), {"outputs": ("y",)})})
        return any("transpose" in k.name for k in clew.compile(module, threads=1).kernels)

    assert turns("max")
    assert not turns("avg")


@pytest.mark.parametrize(
    ("channels", "count", "samples", "mode"),
    [(3, 1, 2, "avg"), (8, 2, 0, "avg"), (19, 1, 2, "max"), (17, 2, 1, "avg"), (1, 1, 0, "max")],
)
def test_few_regions_of_a_plain_image(channels: int, count: int, samples: int, mode: str) -> None:
    graph = Graph()
    inputs = graph.x(2, channels, 40, 24), graph.x(count, 4), graph.x(count, dtype="i64")
    y = graph("nn.roi_align", *inputs, out=(2, 3), samples=samples, mode=mode)
    module = Module({"main": Function(graph.inputs, Tuple([y]), {"outputs": ("y",)})})
    options = {} if samples else {"target": "cpu-avx2"}
    compiled = clew.compile(
        module,
        diagnostics=clew.Diagnostics(guard=list(GuardSide)[channels % 2]),
        threads=count,
        **options,
    )
    assert all("transpose" not in kernel.name for kernel in compiled.kernels)
    rng = np.random.default_rng(channels)
    for corner in ((-3.0, -4.0), (1.5, 20.0)):
        boxes = np.float32([[*corner, corner[0] + 9, corner[1] + 30]] * count)
        values = {
            "in0": rng.standard_normal((2, channels, 40, 24), np.float32),
            "in1": boxes, "in2": np.arange(count),
        }  # fmt: skip
        given = {p.name: v for p, v in zip(graph.inputs, values.values(), strict=True)}
        want = interpret(module, given)["y"]
        np.testing.assert_allclose(compiled.run(given)["y"], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("size", "mode", "antialias"),
    [((40, 64), "cubic", False), ((100, 128), "linear", True), ((16, 256), "cubic", False)],
)
def test_one_channel_is_resampled_by_one_rule(
    size: tuple[int, int], mode: str, antialias: bool, runs_here: Callable[[str | Target], None]
) -> None:
    """Long lines of one channel are also products of a row with a matrix."""
    graph = Graph()
    scale = 0.5 if antialias else 2
    shape = (1, 1, int(size[0] * scale), int(size[1] * scale))
    y = graph("resize", graph.x(1, 1, *size), shape=shape, mode=mode, antialias=antialias)
    module = Module({"main": Function(graph.inputs, Tuple([y]), {"outputs": ("y",)})})
    x = np.random.default_rng(0).standard_normal((1, 1, *size), np.float32)
    given = {graph.inputs[0].name: x}
    compiled = clew.compile(module, target="cpu-avx512", threads=1)
    assert "selected" in [rule for kernel in compiled.kernels for rule in kernel.rules]
    runs_here("cpu-avx512")
    want = interpret(module, given)["y"]
    np.testing.assert_allclose(compiled.run(given)["y"], want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("size", "out"), [((1, 3, 9, 300), 513), ((1, 2, 5, 33), 264)])
def test_lines_of_positions_that_no_pattern_repeats(size: tuple[int, ...], out: int) -> None:
    """Such positions are read from tables; a division for each element is slower."""
    graph = Graph()
    x = graph.x(*size)
    y = graph("resize", x, shape=(*size[:3], out), mode="linear")
    module = Module({"main": Function(graph.inputs, Tuple([y]), {"outputs": ("y",)})})
    compiled = clew.compile(module, threads=1)
    (kernel,) = compiled.kernels
    assert ("resize_below" in str(kernel.schedule)) is (out == 513)
    given = {graph.inputs[0].name: np.random.default_rng(0).standard_normal(size, np.float32)}
    want = interpret(module, given)["y"]
    np.testing.assert_allclose(compiled.run(given)["y"], want, rtol=1e-5, atol=1e-5)
