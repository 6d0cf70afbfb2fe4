"""Layers that a matrix unit computes, of sizes that fill no tiles, next to forbidden pages. Other
machines run them as dot products or multiply-adds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

import clew
from clew.ir.expr import Constant, Expr, Function, Tuple, Var
from clew.ir.interpret import interpret
from clew.ir.module import Module
from clew.ir.types import TensorType, to_numpy
from clew.machine.target import host
from clew.ops.registry import get_op
from clew.runtime.guard import GuardSide

Array = np.ndarray[Any, Any]


class Layers:
    """Builds a module; whole numbers make sums exact."""

    def __init__(self) -> None:
        self.inputs: dict[Var, int] = {}
        self.rng = np.random.default_rng(0)

    def x(self, *shape: int, dtype: str = "bf16", most: int = 3) -> Var:
        found = Var(f"x{len(self.inputs)}", TensorType(shape, dtype))
        self.inputs[found] = most
        return found

    def w(self, *shape: int, dtype: str = "bf16", most: int = 3) -> Constant:
        return Constant(self.rng.integers(-most, most + 1, shape).astype(to_numpy(dtype)))

    def __call__(self, op: str, *args: Expr, **attrs: Any) -> Any:
        return get_op(op)(*args, **attrs)

    def feed(self) -> dict[str, Array]:
        return {
            x.name: self.rng.integers(
                0 if x.tensor.dtype == "u8" else -most, most + 1, x.tensor.concrete
            ).astype(to_numpy(x.tensor.dtype))
            for x, most in self.inputs.items()
        }


def clip(data: str, weight: str, window: tuple[int, ...], **attrs: Any) -> Callable[[Layers], Expr]:
    """A convolution of video: frames, lines and columns, some of which lie outside."""

    def make(g: Layers) -> Expr:
        x = g.x(2, 36, 3, 7, 9, dtype=data, most=9)
        w = g.w(40, 36, *window, dtype=weight, most=9)
        return g("nn.conv3d", x, w, **attrs)  # type: ignore[no-any-return]

    return make


def odd_channels(channels: int) -> Callable[[Layers], Expr]:
    """Convolutions of parts of an image, joined again, as in Res2Net."""

    def make(g: Layers) -> Expr:
        attrs = {"padding": (1, 1, 1, 1), "out_dtype": "f32"}
        image = g.x(1, 2 * channels, 9, 11)
        halves = [
            g("slice", image, begin=(n,), end=(n + channels,), axes=(1,), strides=(1,))
            for n in (0, channels)
        ]
        parts = [g("nn.conv2d", h, g.w(channels, channels, 3, 3), **attrs) for h in halves]
        joined = g("cast", g("nn.relu", g("concatenate", *parts, axis=1)), dtype="bf16")
        return g("nn.conv2d", joined, g.w(48, 2 * channels, 1, 1), out_dtype="f32")  # type: ignore[no-any-return]

    return make


def batch(rows: int, depth: int, columns: int) -> Callable[[Layers], Expr]:
    """Products of matrices, all of which the run brings."""

    def make(g: Layers) -> Expr:
        b = g("transpose", g.x(1, 3, columns, depth), axes=(0, 1, 3, 2))
        return g("nn.matmul", g.x(2, 3, rows, depth), b, out_dtype="f32")  # type: ignore[no-any-return]

    return make


CASES: Final = {
    "video": clip("f32", "f32", (3, 3, 3), padding=(1, 1, 1, 1, 1, 1)),
    "video of strides": clip(
        "f32", "f32", (2, 3, 1), padding=(2, 0, 1, 1, 1, 0), strides=(2, 1, 2)
    ),
    "video of bytes": clip("u8", "i8", (3, 1, 3), padding=(1, 0, 1, 1, 0, 1)),
    "26 channels": odd_channels(26),
    "52 channels": odd_channels(52),
    "batch 33x64x70": batch(33, 64, 70),
    "batch 50x34x130": batch(50, 34, 130),
}
TILED: Final = ("video", "video of bytes", "26 channels", "52 channels", "batch 33x64x70")
"""The cases all of whose products tiles compute."""


def made(case: str) -> tuple[Layers, Module]:
    layers = Layers()
    result = layers("cast", CASES[case](layers), dtype="f32")
    return layers, Module({"main": Function(list(layers.inputs), Tuple((result,)))})


@pytest.mark.parametrize("case", CASES)
def test_values(case: str) -> None:
    layers, module = made(case)
    for number, side in enumerate(GuardSide):
        feed = layers.feed()
        (expected,) = interpret(module, feed).values()
        compiled = clew.compile(
            module,
            precision="bf16",
            threads=1 + number,
            diagnostics=clew.Diagnostics(guard=side),
            cache=False,
        )
        (found,) = compiled.run(feed).values()
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("case", TILED)
def test_tiles_are_used(case: str) -> None:
    if not host().tile_shape("bf16", "bf16") or not host().tile_shape("u8", "i8"):
        pytest.skip("this machine has no matrix tiles")
    compiled = clew.compile(made(case)[1], precision="bf16", threads=1)
    products = [k for k in compiled.kernels if "conv" in k.name or "matmul" in k.name]
    assert products
    assert all("tdp" in str(kernel.asm) for kernel in products)


@pytest.mark.parametrize("heads", [(3, 3), (4, 2)], ids=str)
@pytest.mark.parametrize("sizes", [(40, 67, 32, 40), (33, 150, 80, 24), (5, 9, 16, 33)], ids=str)
def test_attention(sizes: tuple[int, int, int, int], heads: tuple[int, int]) -> None:
    queries, keys, width, depth = sizes
    layers = Layers()
    q, k, v = (
        layers.x(2, heads[n > 0], *shape)
        for n, shape in enumerate(((queries, width), (keys, width), (keys, depth)))
    )
    mask = layers.x(queries, keys, dtype="f32")
    result = layers("nn.attention", q, k, v, mask, out_dtype="f32")
    module = Module({"main": Function(list(layers.inputs), Tuple((result,)))})
    for side in GuardSide:
        feed = {n: (a * 0.25).astype(a.dtype) for n, a in layers.feed().items()}
        (expected,) = interpret(module, feed).values()
        compiled = clew.compile(
            module, threads=2, diagnostics=clew.Diagnostics(guard=side), cache=False
        )
        (found,) = compiled.run(feed).values()
        np.testing.assert_allclose(found, expected, atol=2e-2 * np.abs(expected).max())
