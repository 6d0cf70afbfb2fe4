"""Kernels on which schedule rules are tested, and the targets they are planned for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np

import clew.ops  # noqa: F401
from clew.backends.calls import kernel_calls
from clew.backends.compile_options import CompileOptions
from clew.backends.cpu.lowering import KernelSource
from clew.compiling.compile import passes_for
from clew.ir.dims import Dim, SymDim
from clew.ir.expr import Constant, Expr, Function, Tuple, TupleGetItem, Var
from clew.ir.module import Module
from clew.ir.types import TensorType, to_numpy
from clew.machine.target import Target, target_of
from clew.ops.registry import get_op
from clew.passes.manager import PassManager

_AMX: Final = "+amx-bf16,+amx-int8,+amx-tile,+avx512bf16,+avx512fp16,+avx512vnni"


def targets() -> list[Target]:
    wide = target_of("cpu-avx512")
    tiles = replace(wide, name="cpu-amx", features=f"{wide.features},{_AMX}", l2_bytes=2 << 20)
    return [target_of("cpu-avx2"), wide, tiles, target_of("cpu-neon")]


# ------------------------------------------------------------------------------------------- cases


class Graph:
    """Builds a module: inputs in order of their first use, weights of seeded values."""

    def __init__(self) -> None:
        self.inputs: list[Var] = []
        self.rng = np.random.default_rng(0)

    def x(self, *shape: Dim, dtype: str = "f32") -> Var:
        self.inputs.append(Var(f"x{len(self.inputs)}", TensorType(shape, dtype)))
        return self.inputs[-1]

    def w(self, *shape: int, dtype: str = "f4") -> Constant:
        if dtype == "f4":
            return Constant((self.rng.standard_normal(shape) / shape[-1]).astype(dtype))
        return Constant(self.rng.integers(-9, 9, shape).astype(dtype))

    def __call__(self, op: str, *args: Expr, **attrs: Any) -> Any:
        return get_op(op)(*args, **attrs)


def dense(rows: int, inner: int, outer: int) -> Callable[[Graph], Expr]:
    def make(g: Graph) -> Expr:
        product = g("nn.dense", g.x(rows, inner), g.w(outer, inner))
        return g("nn.relu", g("add", product, g.w(outer)))  # type: ignore[no-any-return]

    return make


def conv(
    channels: int, filters: int, size: int, window: int, **attrs: Any
) -> Callable[[Graph], Expr]:
    def make(g: Graph) -> Expr:
        weight = g.w(filters, channels // attrs.get("groups", 1), window, window)
        image = g("nn.conv2d", g.x(1, channels, size, size), weight, **attrs)
        return g("nn.relu", g("add", image, g.w(filters, 1, 1)))  # type: ignore[no-any-return]

    return make


def block(g: Graph) -> Expr:
    """A depthwise convolution between two of one pixel, as in MobileNets."""
    image = g("clip", g("nn.conv2d", g.x(1, 32, 28, 28), g.w(96, 32, 1, 1)), min=0.0, max=6.0)
    image = g("nn.conv2d", image, g.w(96, 1, 3, 3), groups=96, padding=(1, 1, 1, 1))
    return g("nn.conv2d", g("clip", image, min=0.0, max=6.0), g.w(32, 96, 1, 1))  # type: ignore[no-any-return]


def attention(queries: int, keys: int) -> Callable[[Graph], Expr]:
    def make(g: Graph) -> Expr:
        q, k, v = g.x(1, 4, queries, 64), g.x(1, 4, keys, 64), g.x(1, 4, keys, 64)
        scores = g("nn.matmul", q, g("transpose", k, axes=(0, 1, 3, 2)))
        weights = g("nn.softmax", g("multiply", scores, Constant(np.float32(0.125))), axis=-1)
        return g("nn.matmul", weights, v)  # type: ignore[no-any-return]

    return make


def norm_of_channels(g: Graph) -> Expr:
    image = g("nn.conv2d", g.x(1, 32, 14, 14), g.w(64, 32, 1, 1))
    return g("nn.lrn", image, size=5)  # type: ignore[no-any-return]


def integers(g: Graph) -> Expr:
    return g("nn.dense", g.x(32, 256, dtype="u8"), g.w(128, 256, dtype="i1"))  # type: ignore[no-any-return]


def codes(rows: int, dtype: str) -> Callable[[Graph], Expr]:
    def make(g: Graph) -> Expr:
        weight = Constant(g.rng.integers(-8, 8, (96, 256)).astype(to_numpy(dtype)))
        scales = g.w(96, 8)
        matrix = g("dequantize", weight, scales, axis=1, block=32)
        product = g("nn.dense", g.x(rows, 256), matrix)
        return g("nn.relu", g("add", product, g.w(96)))  # type: ignore[no-any-return]

    return make


def video(data: str, weight: str) -> Callable[[Graph], Expr]:
    def make(g: Graph) -> Expr:
        x, w = g.x(1, 64, 4, 16, 16, dtype=data), g.w(64, 64, 3, 3, 3, dtype=weight)
        found = g("nn.conv3d", x, w, padding=(1,) * 6)
        return g("nn.relu", g("cast", found, dtype="f32"))  # type: ignore[no-any-return]

    return make


def parts_of_26(g: Graph) -> Expr:
    """Convolutions of parts of the channels, as in Res2Net."""
    image = g("nn.relu", g("nn.conv2d", g.x(1, 64, 14, 14), g.w(52, 64, 1, 1)))
    halves = [
        g("slice", image, begin=(n,), end=(n + 26,), axes=(1,), strides=(1,)) for n in (0, 26)
    ]
    parts = [g("nn.conv2d", x, g.w(26, 26, 3, 3), padding=(1, 1, 1, 1)) for x in halves]
    return g("nn.conv2d", g("concatenate", *parts, axis=1), g.w(64, 52, 1, 1))  # type: ignore[no-any-return]


def batch_of_inputs(g: Graph) -> Expr:
    return g("nn.matmul", g.x(12, 128, 64), g("transpose", g.x(12, 200, 64), axes=(0, 2, 1)))  # type: ignore[no-any-return]


def integer_conv(g: Graph) -> Expr:
    image = g.x(1, 64, 16, 16, dtype="u8")
    found = g("nn.conv2d", image, g.w(64, 64, 3, 3, dtype="i1"))
    return g("multiply", g("cast", found, dtype="f32"), Constant(np.float32(0.125)))  # type: ignore[no-any-return]


def updates(g: Graph) -> Expr:
    table, places = g.x(2000, 64), g.x(3000, 1, dtype="i64")
    return g("scatter_nd", table, places, g.x(3000, 64), reduction="add")  # type: ignore[no-any-return]


def largest(g: Graph) -> Expr:
    return TupleGetItem(g("top_k", g.x(8, 9000), k=20), 1)


def best_boxes(g: Graph) -> Expr:
    limits = (Constant(np.array(v)) for v in (300, 0.5, 0.25))
    found = g("best_boxes", g.x(1, 8400, 4), g.x(1, 80, 8400), *limits, room=300)
    return TupleGetItem(found, 0)


def free_conv(g: Graph) -> Expr:
    data = g.x(1, 64, SymDim.symbol("height"), SymDim.symbol("width"))
    found = g("nn.conv2d", data, g.w(128, 64, 3, 3), padding=(1, 1, 1, 1), strides=(2, 2))
    return g("nn.relu", found)  # type: ignore[no-any-return]


def free_dense(g: Graph) -> Expr:
    rows = SymDim.symbol("batch"), SymDim.symbol("seq")
    return g("nn.relu", g("nn.dense", g.x(*rows, 256), g.w(512, 256)))  # type: ignore[no-any-return]


def waveform(filters: int, window: int, stride: int, **attrs: Any) -> Callable[[Graph], Expr]:
    def make(g: Graph) -> Expr:
        x, w = g.x(2, attrs.get("groups", 1), 1003), g.w(filters, 1, window)
        found = g("nn.conv1d", x, w, strides=(stride,), padding=(3, 2), **attrs)
        return g("nn.relu", g("add", found, g.w(filters, 1)))  # type: ignore[no-any-return]

    return make


def dense_of_inputs(rows: int, layout: str) -> Callable[[Graph], Expr]:
    def make(g: Graph) -> Expr:
        x, matrix = g.x(rows, 1024), g.x(1024, 1024)
        return g("nn.dense", x, matrix, weight_layout=layout)  # type: ignore[no-any-return]

    return make


def regions(count: int, **attrs: Any) -> Callable[[Graph], Expr]:
    def make(g: Graph) -> Expr:
        boxes = g.x(count, 4), g.x(count, dtype="i64")
        return g("nn.roi_align", g.x(1, 64, 50, 50), *boxes, out=(7, 7), **attrs)  # type: ignore[no-any-return]

    return make


def largest_of_regions(g: Graph) -> Expr:
    return g("nn.max_roi_pool", g.x(1, 64, 50, 50), g.x(40, 5), out=(7, 7), scale=0.0625)  # type: ignore[no-any-return]


def deep_signal(g: Graph) -> Expr:
    return g("nn.conv1d", g.x(1, 80, 200), g.w(256, 80, 5), padding=(2, 2))  # type: ignore[no-any-return]


CASES: Final[dict[str, tuple[Callable[[Graph], Expr], str]]] = {
    "dense-1-row": (dense(1, 512, 1024), "f32"),
    "dense-8-rows": (dense(8, 512, 512), "f32"),
    "dense-64-rows": (dense(64, 256, 512), "f32"),
    "dense-512-rows": (dense(512, 256, 512), "f32"),
    "dense-crowded-rows": (dense(64, 1024, 256), "f32"),
    "dense-64-rows-bf16": (dense(64, 256, 512), "bf16"),
    "dense-free-rows": (free_dense, "f32"),
    "dense-u8-i8": (integers, "f32"),
    "dense-i4-1-row": (codes(1, "i4"), "auto"),
    "dense-u4-7-rows": (codes(7, "u4"), "f32"),
    "conv-1x1": (conv(64, 128, 14, 1), "f32"),
    "conv-1x1-crowded": (conv(256, 128, 64, 1), "f32"),
    "conv-3x3": (conv(64, 64, 28, 3, padding=(1, 1, 1, 1)), "f32"),
    "conv-3x3-strides": (conv(64, 128, 28, 3, padding=(1, 1, 1, 1), strides=(2, 2)), "f32"),
    "conv-7x7-of-3": (conv(3, 32, 56, 7, padding=(3, 3, 3, 3), strides=(2, 2)), "f32"),
    "dense-of-inputs-1-row": (dense_of_inputs(1, "KN"), "f32"),
    "dense-of-inputs-4-rows": (dense_of_inputs(4, "NK"), "f32"),
    "dense-of-inputs-16-rows": (dense_of_inputs(16, "KN"), "f32"),
    "conv-waveform": (waveform(33, 10, 5), "f32"),
    "conv-waveform-groups": (waveform(18, 9, 4, groups=2), "f32"),
    "conv-deep-signal": (deep_signal, "f32"),
    "conv-free-sizes": (free_conv, "f32"),
    "conv-groups": (conv(64, 64, 14, 3, padding=(1, 1, 1, 1), groups=4), "f32"),
    "conv-depthwise": (conv(64, 64, 28, 3, padding=(1, 1, 1, 1), groups=64), "f32"),
    "conv-bf16": (conv(64, 64, 14, 3, padding=(1, 1, 1, 1)), "bf16"),
    "conv-strides-bf16": (conv(64, 128, 14, 1, strides=(2, 2)), "bf16"),
    "conv-7x7-of-3-bf16": (conv(3, 32, 56, 7, padding=(3, 3, 3, 3), strides=(2, 2)), "bf16"),
    "conv-u8-i8": (integer_conv, "f32"),
    "conv3d-bf16": (video("f32", "f4"), "bf16"),
    "conv3d-u8-i8": (video("u8", "i1"), "f32"),
    "conv-26-channels-bf16": (parts_of_26, "bf16"),
    "batch-of-inputs-bf16": (batch_of_inputs, "bf16"),
    "norm-of-channels": (norm_of_channels, "f32"),
    "separable": (block, "f32"),
    "attention": (attention(128, 128), "f32"),
    "attention-bf16": (attention(128, 128), "bf16"),
    "attention-1-query": (attention(1, 256), "f32"),
    "softmax": (lambda g: g("nn.softmax", g.x(64, 300), axis=-1), "f32"),
    "softmax-of-channels": (lambda g: g("nn.softmax", g.x(2, 21, 30, 40), axis=1), "f32"),
    "layer-norm": (
        lambda g: g("nn.layer_norm", g.x(32, 384), g.w(384), g.w(384)), "f32",
    ),
    "group-norm-in-blocks": (
        lambda g: g(
            "nn.group_norm", g.x(1, 4, 9, 7, 16), g.w(64), g.w(64), groups=2, layout="NCHW16c",
        ),
        "f32",
    ),
    "max-pool": (
        lambda g: g("nn.max_pool2d", g.x(1, 32, 28, 28), kernel=(3, 3), strides=(2, 2)), "f32",
    ),
    "column-sums": (lambda g: g("sum", g.x(256, 192), axes=(0,)), "f32"),
    "gelu": (lambda g: g("nn.gelu", g.x(64, 512)), "f32"),
    "transpose": (lambda g: g("transpose", g.x(60, 100), axes=(1, 0)), "f32"),
    "concatenate": (
        lambda g: g("concatenate", g.x(8, 40), g("exp", g.x(8, 24)), axis=1), "f32",
    ),
    "resize": (
        lambda g: g("resize", g.x(1, 8, 14, 14), shape=(1, 8, 28, 28), mode="linear"), "f32",
    ),
    "gather": (lambda g: g("gather", g.w(500, 64), g.x(16, dtype="i64")), "f32"),
    "scatter": (updates, "f32"),
    "top_k": (largest, "f32"),
    "best_boxes": (best_boxes, "f32"),
    "fourier": (lambda g: g("dft", g.x(6, 400, 1), onesided=True), "f32"),
    "regions": (regions(40, scale=0.0625), "f32"),
    "regions-largest": (largest_of_regions, "f32"),
    "regions-few": (regions(2, samples=2), "f32"),
}  # fmt: skip


def kernels(case: str, target: Target) -> Iterator[KernelSource]:
    """Returns a case's kernels on a target."""
    make, precision = CASES[case]
    return kernels_of(make, target, precision)


def kernels_of(
    make: Callable[[Graph], Expr], target: Target, precision: str = "f32"
) -> Iterator[KernelSource]:
    """Returns the kernels of a graph on a target."""
    graph = Graph()
    result = make(graph)
    main = Function(graph.inputs, Tuple([result]), {"outputs": ("y",)})
    manager = PassManager(
        passes_for(CompileOptions(target, precision=precision)), target=target, trace=False
    )
    for call in kernel_calls(manager.run(Module({"main": main}))):
        assert isinstance(call.op, Function)
        yield KernelSource(call.op, target)
