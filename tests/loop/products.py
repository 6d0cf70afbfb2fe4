"""Sums of products of narrow operands, packed as instructions take them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from clew import te
from clew.ir.types import to_numpy
from clew.loop.ir import Nest
from clew.loop.lower import lower
from clew.te.tensor import Tensor

Array = np.ndarray[Any, Any]
_GROUPS = {"bf16": 2, "u8": 4, "i8": 4, "f32": 1}
_CHANNELS = 32


@dataclass(frozen=True)
class Product:
    """A dense layer `[m, k] x [k, n]` (height 0), or a convolution of `m` lines of `n` pixels."""

    m: int
    n: int
    k: int
    data: str = "bf16"
    weight: str = "bf16"
    outputs: int = 0
    window: int = 0
    stride: int = 1

    def __str__(self) -> str:
        sizes = "x".join(map(str, (self.m, self.n, self.k)))
        image = f"-{self.outputs}-{self.window}s{self.stride}" if self.window else ""
        return f"{self.data}-{self.weight}-{sizes}{image}"


def dense(m: int, n: int, k: int, data: str = "bf16", weight: str = "bf16") -> Product:
    return Product(m, n, k, data, weight)


def conv(
    m: int, n: int, k: int, outputs: int, window: int, data: str = "bf16", weight: str = "bf16",
    stride: int = 1,
) -> Product:  # fmt: skip
    return Product(m, n, k, data, weight, outputs, window, stride)


def _tensors(p: Product) -> tuple[list[Tensor], Tensor]:
    group = _GROUPS[p.data]
    wide = "i32" if p.weight == "i8" else "f32"
    if not p.window:
        block = 32
        a = te.placeholder((p.m, p.k), p.data, "a")
        shape = (-(-p.n // block), -(-p.k // group), block, group)
        w = te.placeholder(shape, p.weight, "w")
        k = te.reduce_axis(p.k, "k")

        def element(i: Any, j: Any) -> Any:
            packed = w[j // block, k // group, j % block, k % group]
            return te.sum(te.cast(wide, a[i, k]) * te.cast(wide, packed), k)

        return [a, w], te.compute((p.m, p.n), element, "dense", axes=("i", "j"))
    block, given = min(p.outputs, _CHANNELS), min(p.k, _CHANNELS)
    height, width = ((x - 1) * p.stride + p.window for x in (p.m, p.n))
    a = te.placeholder((1, p.k // given, height, width, given), p.data, "a")
    shape = (p.outputs // block, p.window, p.window, p.k // group, block, group)
    w = te.placeholder(shape, p.weight, "w")
    co, kh = te.reduce_axis(p.k // given, "co"), te.reduce_axis(p.window, "kh")
    kw, ci = te.reduce_axis(p.window, "kw"), te.reduce_axis(given, "ci")

    def pixel(n: Any, o: Any, y: Any, x: Any, c: Any) -> Any:
        left = a[n, co, y * p.stride + kh, x * p.stride + kw, ci]
        channel = co * given + ci
        right = w[o, kh, kw, channel // group, c, channel % group]
        return te.sum(te.cast(wide, left) * te.cast(wide, right), [co, kh, kw, ci])

    shape = (1, p.outputs // block, p.m, p.n, block)
    return [a, w], te.compute(shape, pixel, "conv", layout=f"NCHW{shape[-1]}c",
                              axes=("n", "o", "y", "x", "c"))  # fmt: skip


def plain(p: Product, tail: str = "") -> tuple[Nest, list[Array], Array]:
    """Returns a product's nest, inputs of small whole numbers, and the exact result.

    `tail` is a dtype that a stage after the product casts to.
    """
    inputs, result = _tensors(p)
    outputs = [result]
    if tail:
        source = result
        outputs = [te.compute(result.shape, lambda *i: te.cast(tail, source[i]), "tail")]
    rng = np.random.default_rng(0)
    arrays = [
        rng.integers(0 if t.dtype == "u8" else -3, 4, t.type.concrete).astype(to_numpy(t.dtype))
        for t in inputs
    ]
    expected = _exact(p, *(x.astype(np.float64) for x in arrays))
    dtype = to_numpy(outputs[0].dtype)
    return lower("product", inputs, outputs), arrays, expected.astype(dtype)


def _exact(p: Product, a: Array, w: Array) -> Array:
    if not p.window:
        matrix = w.transpose(0, 2, 1, 3).reshape(w.shape[0] * w.shape[2], -1)
        return np.asarray(a @ matrix[: p.n, : p.k].T)
    filters = w.transpose(0, 4, 1, 2, 3, 5).reshape(p.outputs, p.window, p.window, p.k)
    image = a[0].transpose(1, 2, 0, 3).reshape(a.shape[2], a.shape[3], p.k)
    total = np.zeros((p.m, p.n, p.outputs))
    for y in range(p.window):
        for x in range(p.window):
            rows = slice(y, y + (p.m - 1) * p.stride + 1, p.stride)
            columns = slice(x, x + (p.n - 1) * p.stride + 1, p.stride)
            total += image[rows, columns] @ filters[:, y, x].T
    block = min(p.outputs, _CHANNELS)
    blocked = total.reshape(p.m, p.n, p.outputs // block, block).transpose(2, 0, 1, 3)
    return np.asarray(blocked[None])
