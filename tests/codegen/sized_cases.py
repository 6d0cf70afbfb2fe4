"""Kernels with free sizes, a few operators each, as models have them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sized import primitive

from clew.ir.dims import Dim, SymDim
from clew.ir.expr import Expr, Function, Var
from clew.ir.types import TensorType
from clew.ops.registry import get_op

Array = np.ndarray[Any, Any]


class Graph:
    """Builds a function. Dimensions are numbers, or names; `low` and `high` bound the values of
    each input.
    """

    def __init__(self) -> None:
        self.params: list[Var] = []
        self.bounds: list[tuple[float, float]] = []

    def x(
        self, *shape: int | str | Dim, dtype: str = "f32", low: float = -2.0, high: float = 2.0
    ) -> Var:
        dims = tuple(SymDim.symbol(d) if isinstance(d, str) else d for d in shape)
        self.params.append(Var(f"x{len(self.params)}", TensorType(dims, dtype)))
        self.bounds.append((low, high))
        return self.params[-1]

    def __call__(self, op: str, *args: Expr, **attrs: Any) -> Any:
        return get_op(op)(*args, **attrs)


@dataclass(frozen=True)
class Built:
    """A function with free sizes, and the bounds of its inputs' values."""

    function: Function
    bounds: list[tuple[float, float]]


Make = Callable[[Graph], Expr]


def built(make: Make) -> Built:
    graph = Graph()
    body = make(graph)
    return Built(primitive(body, graph.params), graph.bounds)


def _blocks(block: int) -> dict[str, Any]:
    return {
        "data_layout": f"NCHW{block}c",
        "weight_layout": f"OIHW{block}i{block}o",
        "out_layout": f"NCHW{block}c",
    }


def _conv(c: int, o: int, k: int, **attrs: Any) -> Make:
    def make(g: Graph) -> Expr:
        image = g("nn.conv2d", g.x("n", c, "h", "w"), g.x(o, c, k, k), **attrs)
        return g("nn.relu", g("add", image, g.x(o, 1, 1)))  # type: ignore[no-any-return]

    return make


def _conv_blocked(k: int, **attrs: Any) -> Make:
    def make(g: Graph) -> Expr:
        image = g(
            "nn.conv2d", g.x("n", 2, "h", "w", 16), g.x(3, 2, k, k, 16, 16), **_blocks(16), **attrs
        )
        return g("nn.relu", image)  # type: ignore[no-any-return]

    return make


def _depthwise_blocked(k: int, **attrs: Any) -> Make:
    layouts = {"data_layout": "NCHW16c", "weight_layout": "OIHW16o", "groups": 32}

    def make(g: Graph) -> Expr:
        image = g("nn.conv2d", g.x(1, 2, "h", "w", 16), g.x(2, 1, k, k, 16), **layouts, **attrs)
        return g("clip", image, min=0.0, max=6.0)  # type: ignore[no-any-return]

    return make


def _norm(g: Graph) -> Expr:
    x, scale = g.x("m", 96), g.x(96)
    return g("nn.layer_norm", g("add", x, g.x("m", 96)), scale, g.x(96), axis=-1)  # type: ignore[no-any-return]


def _softmax_free(g: Graph) -> Expr:
    return g("nn.softmax", g("multiply", g.x("m", "n"), g.x("n")), axis=-1)  # type: ignore[no-any-return]


def _chain(g: Graph) -> Expr:
    x = g("add", g.x("m", "n"), g.x("n"))
    x = g("multiply", g("tanh", x), g.x("m", 1))
    return g("subtract", x, g.x())  # type: ignore[no-any-return]


def _from_places(stride: int) -> Make:
    """The end of a transposed convolution: blocks of channels, the places of a step among them."""
    h, w, blocks = SymDim.symbol("h"), SymDim.symbol("w"), 2 * stride * stride

    def make(g: Graph) -> Expr:
        x = g.x(1, blocks, "h", "w", 16)
        x = g("layout_transform", x, src_layout="NCHW16c", dst_layout="NCHW")
        x = g("reshape", x, shape=(1, 1, stride, stride, 32, h, w))
        return g("transpose", x, axes=(0, 1, 4, 5, 2, 6, 3))  # type: ignore[no-any-return]

    return make


def _dense(g: Graph) -> Expr:
    product = g("nn.dense", g.x("m", 48), g.x(80, 48))
    return g("nn.gelu", g("add", product, g.x(80)))  # type: ignore[no-any-return]


def _dense_packed(g: Graph) -> Expr:
    return g("nn.dense", g.x("b", "m", 40), g.x(3, 40, 16), weight_layout="NK16n")  # type: ignore[no-any-return]


def _dense_free(g: Graph) -> Expr:
    return g("nn.dense", g.x("m", "k"), g.x("n", "k"))  # type: ignore[no-any-return]


def _products(g: Graph) -> Expr:
    return g("nn.matmul", g.x(2, "m", "k"), g.x(2, "k", "n"))  # type: ignore[no-any-return]


def _logits(g: Graph) -> Expr:
    """Scores of a decoder whose keys are as many as the run has."""
    scores = g("nn.matmul", g.x(1, 2, 1, 64), g.x(1, 2, 64, "n"))
    return g("add", scores, g.x(1, 1, 1, "n"))  # type: ignore[no-any-return]


def _attention(*mask: Any, d: int = 64, **attrs: Any) -> Make:
    def make(g: Graph) -> Expr:
        q, k, v = g.x("b", 2, "m", d), g.x("b", 2, "n", d), g.x("b", 2, "n", d)
        return g("nn.attention", q, k, v, *([g.x(*mask)] if mask else []), **attrs)  # type: ignore[no-any-return]

    return make


def _self_attention(g: Graph) -> Expr:
    q, k, v = (g.x(1, 2, "n", 32) for _ in range(3))
    return g("nn.attention", q, k, v, causal=True)  # type: ignore[no-any-return]


def _one(op: str, *shapes: tuple[Any, ...], dtypes: str = "", **attrs: Any) -> Make:
    names = [*dtypes.split(), *["f32"] * len(shapes)]

    def make(g: Graph) -> Expr:
        args = [g.x(*shape, dtype=dtype) for shape, dtype in zip(shapes, names, strict=False)]
        return g(op, *args, **attrs)  # type: ignore[no-any-return]

    return make


def _gather(axis: int) -> Make:
    def make(g: Graph) -> Expr:
        # Table rows are fixed, so that indices are valid at all sizes.
        shape: list[Any] = ["n", "n"]
        shape[axis] = 7
        return g("gather", g.x(*shape), g.x("b", "m", dtype="i64", low=-7, high=6), axis=axis)  # type: ignore[no-any-return]

    return make


def _embedding(g: Graph) -> Expr:
    rows = g("gather", g.x(11, 40), g.x("b", "m", dtype="i64", low=0, high=10), axis=0)
    return g(
        "add", rows, g("slice", g.x(1, 64, 40), begin=(0,), end=(SymDim.symbol("m"),), axes=(1,))
    )  # type: ignore[no-any-return]


def _resized(*scales: float, blocked: bool = False, **attrs: Any) -> Make:
    """An image resampled by scales, or to the size of another image, which is then added."""

    def make(g: Graph) -> Expr:
        block = (16,) if blocked else ()
        image = g.x(1, 3, "h", "w", *block)
        if scales:
            return g("resize", image, shape=(), scales=(1.0, 1.0, *scales), **attrs)  # type: ignore[no-any-return]
        height, width = SymDim.symbol("p"), SymDim.symbol("q")
        resized = g("resize", image, shape=(1, 3, height, width, *block), **attrs)
        return g("add", resized, g.x(1, 3, "p", "q", *block))  # type: ignore[no-any-return]

    return make


CASES: dict[str, Make] = {
    "chain": _chain,
    "cast": _one("cast", ("m", "n"), dtypes="f32", dtype="f16"),
    "softmax_static": _one("nn.softmax", ("m", 100), axis=-1),
    "softmax_free": _softmax_free,
    "softmax_middle": _one("nn.softmax", (3, "n", 20), axis=1),
    "layer_norm": _norm,
    "layer_norm_free": _one("nn.layer_norm", ("m", "n"), ("n",), ("n",), axis=-1),
    "sum_last": _one("sum", ("m", "n"), axes=(1,)),
    "sum_first": _one("sum", ("m", "n"), axes=(0,), keepdims=False),
    "sum_all": _one("sum", ("m", "n"), axes=(0, 1), keepdims=False),
    "max": _one("max", ("b", "m", "n"), axes=(1,)),
    "max_bytes": _one("max", ("m", "n"), dtypes="i8", axes=(1,)),
    "mean": _one("mean", ("b", "m", "n"), axes=(0, 2)),
    "prod": _one("prod", ("m", "n"), axes=(1,), dtypes="f64"),
    "argmax": _one("argmax", ("m", "n"), axis=1),
    "argmax_first": _one("argmax", ("m", "n"), axis=0),
    "dense": _dense,
    "dense_packed": _dense_packed,
    "dense_free": _dense_free,
    "dense_bf16": _one("nn.dense", ("m", 40), (24, 40), dtypes="bf16 bf16"),
    "dense_pairs": _one("nn.dense", ("m", 40), (24, 40), dtypes="i16 i16", out_dtype="i32"),
    "dense_pairs_packed": _one(
        "nn.dense", ("m", 40), (2, 20, 16, 2), dtypes="i16 i16", weight_layout="NK16n2k", units=24
    ),
    "dense_bytes": _one("nn.dense", ("m", 40), (24, 40), dtypes="u8 i8", out_dtype="i32"),
    "matmul": _products,
    "matvec": _one("nn.matmul", ("n",), ("n", 40)),
    "logits": _logits,
    "attention": _attention(),
    "attention_bias": _attention("b", 1, "m", "n"),
    "attention_keys": _attention("b", 1, 1, "n", d=16),
    "attention_causal": _self_attention,
    "gather_rows": _gather(0),
    "gather_columns": _gather(1),
    "embedding": _embedding,
    "gather_elements": _one("gather_elements", (5, "n"), (5, "n"), dtypes="f32 i64", axis=0),
    "pad": _one("pad", ("m", "n"), pads=(1, 2, 0, 3)),
    "pad_edge": _one("pad", ("m", "n"), pads=(1, 2, 3, 0), mode="edge"),
    "pad_reflect": _one("pad", ("m", "n"), pads=(1, 2, 3, 0), mode="reflect"),
    "pad_reflect_cropped": _one("pad", ("m", "n"), pads=(-1, 2, 1, -2), mode="reflect"),
    "slice": _one("slice", ("m", "n"), begin=(1,), end=(1 << 40,), strides=(2,), axes=(1,)),
    "slice_back": _one("slice", ("m", "n"), begin=(-1,), end=(-(1 << 40),), strides=(-1,),
        axes=(0,)),
    "concatenate": _one("concatenate", ("m", "n"), ("m", 5), axis=1),
    "concatenate_two": _one("concatenate", ("m", "n"), ("k", "n"), axis=0),
    "transpose": _one("transpose", ("m", "n"), axes=(1, 0)),
    "transpose_last": _one("transpose", (2, "m", "n"), axes=(0, 2, 1)),
    "transpose_channels": _one("transpose", (1, 32, "h", "w"), axes=(0, 2, 3, 1)),
    "transpose_doubles": _one("transpose", ("m", "n"), dtypes="f64", axes=(1, 0)),
    "from_places": _from_places(2),
    "from_places_of_3": _from_places(3),
    "depth_to_space": _one("depth_to_space", (1, 16, "h", "w"), block=2),
    "depth_to_space_of_3": _one("depth_to_space", (2, 18, "h", "w"), block=3, mode="CRD"),
    "depth_to_space_bytes": _one("depth_to_space", (1, 8, "h", "w"), dtypes="u8", block=2),
    "transpose_heads": _one("transpose", ("b", "m", 2, 32), axes=(0, 2, 1, 3)),
    "transpose_bytes": _one("transpose", ("b", "m", "n"), dtypes="u8", axes=(2, 0, 1)),
    "tile": _one("tile", ("m", "n"), repeats=(2, 3)),
    "flip": _one("flip", ("m", "n"), axes=(1,)),
    "where": _one("where", ("m", 1), ("m", "n"), ("n",), dtypes="bool"),
    "conv": _conv(3, 20, 3, padding=(1, 1, 1, 1)),
    "conv_stride": _conv(3, 20, 3, padding=(1, 1, 1, 1), strides=(2, 2)),
    "conv_pixel": _conv(5, 20, 1),
    "conv_blocked": _conv_blocked(3, padding=(1, 1, 1, 1)),
    "conv_blocked_stride": _conv_blocked(3, padding=(0, 1, 1, 0), strides=(2, 2)),
    "conv_blocked_pixel": _conv_blocked(1),
    "depthwise": _one("nn.conv2d", ("n", 6, "h", "w"), (6, 1, 3, 3), groups=6, padding=(1, 1, 1,
        1)),
    "depthwise_blocked": _depthwise_blocked(3, padding=(1, 1, 1, 1)),
    "depthwise_blocked_stride": _depthwise_blocked(5, padding=(2, 2, 2, 2), strides=(2, 2)),
    "conv1d": _one("nn.conv1d", ("b", 6, "n"), (8, 6, 3), padding=(1, 1)),
    "conv_transpose": _one("nn.conv2d_transpose", (1, 4, "h", "w"), (4, 6, 2, 2), strides=(2, 2)),
    "max_pool": _one("nn.max_pool2d", ("n", 3, "h", "w"), kernel=(3, 3), padding=(1, 1, 1, 1),
        strides=(2, 2)),
    "max_pool_blocked": _one("nn.max_pool2d", (1, 2, "h", "w", 16), kernel=(3, 3), padding=(1, 1,
        1, 1), layout="NCHW16c"),
    "avg_pool": _one("nn.avg_pool2d", (1, 3, "h", "w"), kernel=(2, 2), strides=(2, 2)),
    "avg_pool_blocked": _one("nn.avg_pool2d", (1, 2, "h", "w", 16), kernel=(3, 3), padding=(1, 1,
        1, 1), layout="NCHW16c"),
    "global_pool": _one("nn.global_avg_pool2d", ("n", 5, "h", "w")),
    "global_pool_blocked": _one("nn.global_avg_pool2d", ("n", 2, "h", "w", 16), layout="NCHW16c"),
    "to_blocks": _one("layout_transform", (1, 32, "h", "w"), src_layout="NCHW",
        dst_layout="NCHW16c"),
    "from_blocks": _one("layout_transform", (1, 2, "h", "w", 16), src_layout="NCHW16c",
        dst_layout="NCHW"),
    "resize": _one("resize", (1, 3, "h", "w"), shape=(1, 3, SymDim.symbol("h") * 2,
        SymDim.symbol("w") * 2), mode="nearest", scales=(1.0, 1.0, 2.0, 2.0)),
    "resize_linear_double": _one("resize", (1, 3, "h", "w"), shape=(1, 3, SymDim.symbol("h") * 2,
        SymDim.symbol("w") * 2), mode="linear", scales=(1.0, 1.0, 2.0, 2.0)),
    "resize_cubic_double": _one("resize", (1, 3, "h", "w"), shape=(1, 3, SymDim.symbol("h") * 2,
        SymDim.symbol("w") * 2), mode="cubic", scales=(1.0, 1.0, 2.0, 2.0)),
    "resize_linear": _one("resize", (1, 3, "h", "w"), shape=(1, 3, 9, 11), mode="linear"),
    "resize_like": _resized(mode="nearest", coordinates="asymmetric", rounding="floor"),
    "resize_like_nearest_half": _resized(mode="nearest"),
    "resize_like_blocked": _resized(blocked=True, mode="nearest"),
    "resize_like_linear": _resized(mode="linear"),
    "resize_like_linear_corners": _resized(mode="linear", coordinates="align_corners"),
    "resize_like_linear_blocked": _resized(blocked=True, mode="linear"),
    "resize_like_cubic": _resized(mode="cubic", exclude_outside=True),
    "concatenate_lines": _one("concatenate", (2, "h", "w"), (2, 3, "w"), axis=1),
    "pad_wrap": _one("pad", (2, "h", "w"), pads=(0, 1, 1, 0, 1, 1), mode="wrap"),
    "add_outer": _one("add", ("h", "w", 1, 16), ("h", 1, "w", 16)),
    "transpose_back": _one("transpose", ("b", 3, "m", 16), axes=(0, 2, 1, 3)),
    "cumsum": _one("cumsum", ("m", "n"), axis=1),
    "cumsum_first": _one("cumsum", ("m", "n"), axis=0, exclusive=True),
    "top_k": _one("top_k_ranked", ("m", "n"), k=1, axis=-1),
    "one_hot": _one("one_hot", ("m",), (2,), dtypes="i64", depth=5),
    "trilu": _one("trilu", ("m", "n"), k=1),
}  # fmt: skip
