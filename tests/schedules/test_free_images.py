"""Schedules for images of free size: few remainders, and tiles of several lines."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import clew
from clew.ir.dims import Dim, SymDim
from clew.ir.expr import Constant, Function, Var
from clew.ir.interpret import interpret
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.ops.registry import get_op

H, W = SymDim.symbol("h"), SymDim.symbol("w")


def loops_of(op: str, shape: tuple[Dim, ...], **attrs: Any) -> str:
    x = Var("x", TensorType(shape, "f32"))
    module = Module({"main": Function([x], get_op(op)(x, **attrs))})
    compiled = clew.compile(
        module, threads=1, target="cpu-avx2", cache=False, sizes=clew.Sizes(specialize=False)
    )
    (kernel,) = compiled.kernels
    return kernel.loops


@pytest.mark.parametrize(("axes", "joined"), [((2, 3), "k2+k3"), ((1, 3), "k3")])
def test_sums_walk_lines_as_one(axes: tuple[int, ...], joined: str) -> None:
    loops = loops_of("sum", (8, 4, H, W), axes=axes, keepdims=False)
    assert set(re.findall(r"for sum\.([k0-9+]*)\.o in", loops)) == {joined}
    # The remainder adds to the same partial results.
    assert loops.count("register sum.rf") == 1


def test_known_lines_are_one_loop() -> None:
    loops = loops_of("sum", (8, 4, 33, 34), axes=(2, 3), keepdims=False)
    assert set(re.findall(r"for sum\.([k0-9+]*)\.o in", loops)) == {"k2+k3"}


@pytest.mark.parametrize(("shape", "lines"), [((1, 4, H, W), 3), ((1, 4, H, 300), 2)])
def test_windows_of_several_lines(shape: tuple[Dim, ...], lines: int) -> None:
    loops = loops_of("nn.avg_pool2d", shape, kernel=(3, 3))
    found = re.findall(r"unroll \S*\.i2(?:\.i)? in (\d+)", loops)
    assert max(map(int, found)) == lines


def test_one_kernel_convolves_images_of_all_enlarged_sizes() -> None:
    """The numbers of tiles are quotients of quotients, which are 0 for some sizes."""
    x = Var("x", TensorType((1, 128, H, W), "f32"))
    rng = np.random.default_rng(0)
    weight = Constant(rng.standard_normal((32, 32, 3, 3)).astype(np.float32))
    pooled = get_op("nn.max_pool2d")(x, kernel=(2, 2), strides=(2, 2))
    enlarged = get_op("depth_to_space")(pooled, block=2)
    convolved = get_op("nn.conv2d")(enlarged, weight, padding=(1, 1, 1, 1))
    module = Module({"main": Function([x], convolved)})
    compiled = clew.compile(
        module, threads=1, target="cpu-avx2", cache=False, sizes=clew.Sizes(specialize=False)
    )
    assert "conv2d_by_size" in [kernel.name for kernel in compiled.kernels]
    for height, width in ((2, 3), (7, 34), (60, 40)):
        image = rng.standard_normal((1, 128, height, width)).astype(np.float32)
        (expected,) = interpret(module, {"x": image}).values()
        np.testing.assert_allclose(compiled(image), expected, rtol=1e-3, atol=1e-3)


def test_taps_at_edges_of_free_size_are_loops() -> None:
    """A branch for each tap would take most of the code; taps inside the image have none."""
    x = Var("x", TensorType((1, 8, H, W), "f32"))
    pooled = get_op("nn.max_pool2d")(x, kernel=(3, 3), padding=(1, 1, 1, 1))
    module = Module({"main": Function([x], pooled)})
    compiled = clew.compile(
        module, threads=1, target="cpu-avx2", cache=False, sizes=clew.Sizes(specialize=False)
    )
    (kernel,) = compiled.kernels
    assert "windows" in kernel.rules
    copies = re.split(r"\n(?= +(?:for|unroll) \S*\.kh in 3:)", kernel.loops)[1:]
    inside = [taps for taps in copies if taps.lstrip().startswith("unroll")]
    assert 0 < len(inside) < len(copies)
    assert not any(re.search(r"\.kh in 3:\n.*\n +if ", taps) for taps in inside)
    rng = np.random.default_rng(0)
    for height, width in ((1, 1), (2, 9), (7, 33), (20, 16)):
        image = rng.standard_normal((1, 8, height, width)).astype(np.float32)
        (expected,) = interpret(module, {"x": image}).values()
        np.testing.assert_array_equal(compiled(image), expected)


def test_taps_at_edges_of_large_windows_are_loops() -> None:
    """Lines of taps are loops everywhere; within a line, taps inside the image are unrolled."""
    rng = np.random.default_rng(0)
    x = Var("x", TensorType((1, 8, H, W), "f32"))
    weight = Constant(rng.standard_normal((8, 1, 7, 7)).astype(np.float32))
    edges = {"padding": (3, 3, 3, 3), "groups": 8}
    module = Module({"main": Function([x], get_op("nn.conv2d")(x, weight, **edges))})
    compiled = clew.compile(
        module, threads=1, target="cpu-avx2", cache=False, sizes=clew.Sizes(specialize=False)
    )
    (kernel,) = (k for k in compiled.kernels if "windows" in k.rules)
    assert set(re.findall(r"(for|unroll) \S*\.kh in 7:", kernel.loops)) == {"for"}
    copies = re.split(r"\n(?= +(?:for|unroll) \S*\.kw in 7:)", kernel.loops)[1:]
    inside = [taps for taps in copies if taps.lstrip().startswith("unroll")]
    assert 0 < len(inside) < len(copies)
    assert not any(re.search(r"\.kw in 7:\n.*\n +if ", taps) for taps in inside)
    for height, width in ((1, 1), (2, 9), (7, 33), (20, 16)):
        image = rng.standard_normal((1, 8, height, width)).astype(np.float32)
        (expected,) = interpret(module, {"x": image}).values()
        np.testing.assert_allclose(compiled(image), expected, rtol=1e-5, atol=1e-5)


def test_taps_at_edges_of_known_size_are_unrolled() -> None:
    loops = loops_of("nn.max_pool2d", (1, 8, 20, 40), kernel=(3, 3), padding=(1, 1, 1, 1))
    assert set(re.findall(r"(for|unroll) \S*\.kh in 3:", loops)) == {"unroll"}
