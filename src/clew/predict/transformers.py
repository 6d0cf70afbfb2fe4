"""Random transformers: encoders, decoders and vision transformers of many widths and lengths."""

from __future__ import annotations

import numpy as np

from clew.frontends.onnx import ModelProto
from clew.predict.network import Network

_MOST_WEIGHTS = 130_000_000
_MOST_PRODUCTS = 5_000_000_000


class Transformer(Network):
    """A transformer and the style of its layers.

    `merged`: one product gives queries, keys and values. `rms`: normalized by the root mean square.
    `gated`: SwiGLU.
    """

    heads = 1
    hidden = 1
    activation = "gelu"
    rms = False
    gated = False
    biased = True
    merged = False
    table = ""


def _linear(net: Transformer, x: str, columns: int, bias: bool = True, scale: float = 1.0) -> str:
    *rows, depth = net.shapes[x]
    weight = net.weight(depth, columns, scale=scale * depth**-0.5)
    y = net.add("MatMul", [x, weight], (*rows, columns))
    return net.binary("Add", y, net.weight(columns, scale=0.1)) if bias else y


def _norm(net: Transformer, x: str) -> str:
    width = net.shapes[x][-1]
    weight = net.weight(width, scale=0.1, mean=1.0)
    if not net.rms:
        parts = [x, weight, net.weight(width, scale=0.1)]
        return net.add("LayerNormalization", parts, net.shapes[x], axis=-1, epsilon=1e-5)
    square = net.binary("Pow", x, net.constant(2.0))
    axes = net.constant([-1], np.int64)
    mean = net.add("ReduceMean", [square, axes], (*net.shapes[x][:-1], 1), keepdims=1)
    root = net.unary("Sqrt", net.binary("Add", mean, net.constant(1e-5)))
    return net.binary("Mul", weight, net.binary("Mul", x, net.unary("Reciprocal", root)))


def _heads(net: Transformer, x: str, heads: int) -> str:
    batch, length, width = net.shapes[x]
    x = net.reshape(x, (batch, length, heads, width // heads))
    return net.transpose(x, (0, 2, 1, 3))


def _rotated(net: Transformer, x: str, cosine: str, sine: str) -> str:
    *outer, depth = net.shapes[x]
    half = depth // 2
    axis, one = net.constant([3], np.int64), net.constant([1], np.int64)
    ends = [net.constant([n], np.int64) for n in (0, half, depth)]
    low = net.add("Slice", [x, ends[0], ends[1], axis, one], (*outer, half))
    high = net.add("Slice", [x, ends[1], ends[2], axis, one], (*outer, half))
    turned = net.add("Concat", [net.unary("Neg", high), low], (*outer, depth), axis=-1)
    return net.binary("Add", net.binary("Mul", x, cosine), net.binary("Mul", turned, sine))


def _attention(net: Transformer, x: str, mask: str | None, angles: tuple[str, str] | None) -> str:
    batch, length, width = net.shapes[x]
    heads, depth = net.heads, width // net.heads
    if net.merged:
        whole = _linear(net, x, 3 * width, net.biased)
        name = f"split_{len(net.shapes)}"
        parts = net.split(whole, 3, name)
    else:
        parts = [_linear(net, x, width, net.biased) for _ in range(3)]
    query, key, value = (_heads(net, part, heads) for part in parts)
    if angles:
        query, key = _rotated(net, query, *angles), _rotated(net, key, *angles)
    turned = net.transpose(key, (0, 1, 3, 2))
    scale = net.constant(depth**-0.25)
    query, turned = net.binary("Mul", query, scale), net.binary("Mul", turned, scale)
    scores = net.add("MatMul", [query, turned], (batch, heads, length, length))
    if mask:
        scores = net.binary("Add", scores, mask)
    weights = net.unary("Softmax", scores, axis=-1)
    y = net.add("MatMul", [weights, value], (batch, heads, length, depth))
    y = net.reshape(net.transpose(y, (0, 2, 1, 3)), (batch, length, width))
    return _linear(net, y, width, net.biased, scale=0.5)


def _gelu(net: Transformer, x: str) -> str:
    if net.activation == "gelu":
        return net.unary("Gelu", x)
    if net.activation == "relu":
        return net.unary("Relu", x)
    cube = net.binary("Mul", net.binary("Pow", x, net.constant(3.0)), net.constant(0.044715))
    inner = net.binary("Mul", net.binary("Add", x, cube), net.constant((2 / np.pi) ** 0.5))
    one = net.binary("Add", net.unary("Tanh", inner), net.constant(1.0))
    return net.binary("Mul", net.binary("Mul", x, net.constant(0.5)), one)


def _feed_forward(net: Transformer, x: str) -> str:
    width = net.shapes[x][-1]
    if net.gated:
        gate = _linear(net, x, net.hidden, net.biased)
        gate = net.binary("Mul", gate, net.unary("Sigmoid", gate))
        y = net.binary("Mul", gate, _linear(net, x, net.hidden, net.biased))
    else:
        y = _gelu(net, _linear(net, x, net.hidden, net.biased))
    return _linear(net, y, width, net.biased, scale=0.5)


def transformer(seed: int) -> tuple[str, ModelProto]:
    """Returns a random transformer, and its kind."""
    net = Transformer("transformer", seed)
    draw = net.random
    kind = draw.choice(("encoder", "decoder", "vision", "gated"))
    net.rms = net.gated = kind == "gated"
    net.biased = kind != "gated"
    net.merged = kind in ("decoder", "vision") and draw.random() < 0.6
    net.activation = "tanh" if kind == "decoder" else draw.choice(("gelu", "gelu", "gelu", "relu"))
    depth = draw.choice((32, 64, 64, 64, 64, 80, 96, 128))
    net.heads = draw.choice(
        [h for h in (2, 3, 4, 6, 8, 10, 12, 14, 16) if 128 <= h * depth <= 1280]
    )
    width = net.heads * depth
    net.hidden = draw.choice((int(8 * width / 3) // 32 * 32, 3 * width, 4 * width, 4 * width))
    length = draw.choice((16, 32, 64, 77, 100, 128, 128, 192, 197, 256, 384))
    batch = draw.choice((1,) * 10 + (2, 4))
    layer_elems = (4 * width + (3 if net.gated else 2) * net.hidden) * width
    # All layers have the same kernels; weights of a few exceed the caches as those of many do.
    layers = max(1, min(draw.choice((1, 2, 2, 3, 4, 6)), _MOST_WEIGHTS // layer_elems))
    layers = min(layers, max(1, _MOST_PRODUCTS // (layer_elems * length * batch)))
    x, mask = _embedded(net, kind, batch, length, width)
    length = net.shapes[x][1]
    angles = _angles(net, length, depth) if kind == "gated" else None
    after = kind == "encoder"  # normalized after each residual sum, as in BERT
    for _ in range(layers):
        if after:
            x = _norm(net, net.binary("Add", _attention(net, x, mask, angles), x))
            x = _norm(net, net.binary("Add", _feed_forward(net, x), x))
        else:
            x = net.binary("Add", x, _attention(net, _norm(net, x), mask, angles))
            x = net.binary("Add", x, _feed_forward(net, _norm(net, x)))
    x = x if after else _norm(net, x)
    return kind, net.model(_answer(net, x, kind))


def _angles(net: Transformer, length: int, depth: int) -> tuple[str, str]:
    rates = 10_000.0 ** (-np.arange(0, depth, 2) / depth)
    angles = np.outer(np.arange(length), np.concatenate([rates, rates]))[None, None]
    return net.constant(np.cos(angles)), net.constant(np.sin(angles))


def _embedded(
    net: Transformer, kind: str, batch: int, length: int, width: int
) -> tuple[str, str | None]:
    draw = net.random
    if kind == "vision":
        patch = draw.choice((14, 16, 16, 32))
        side = draw.choice((8, 10, 12, 14, 14, 16))
        image = net.input("image", (batch, 3, patch * side, patch * side))
        weight = net.weight(width, 3, patch, patch, scale=(3 * patch * patch) ** -0.5)
        parts = [image, weight, net.weight(width, scale=0.1)]
        shape = (batch, width, side, side)
        x = net.add("Conv", parts, shape, kernel_shape=[patch] * 2, strides=[patch] * 2)
        x = net.transpose(net.reshape(x, (batch, width, side * side)), (0, 2, 1))
        token = net.weight(batch, 1, width)
        x = net.add("Concat", [token, x], (batch, side * side + 1, width), axis=1)
        return net.binary("Add", x, net.weight(1, side * side + 1, width)), None
    ids = net.input("ids", (batch, length), integers=True)
    vocabulary = draw.choice((1000, 5000, 10_000, 30_000, 50_000))
    table = net.weight(vocabulary, width)
    net.table = table
    x = net.add("Gather", [table, ids], (batch, length, width), axis=0)
    if kind != "gated":
        x = net.binary("Add", x, net.weight(1, length, width))
    if kind == "encoder":
        return _norm(net, x), None
    mask = np.triu(np.full((length, length), -3e38, np.float32), 1)[None, None]
    return x, net.constant(mask)


def _answer(net: Transformer, x: str, kind: str) -> str:
    batch, length, width = net.shapes[x]
    draw = net.random
    if kind in ("decoder", "gated"):
        columns = net.shapes[net.table][0]
        if length * columns * width > 8_000_000_000:
            return x
        return _linear(net, x, columns, bias=False)
    first = net.add("Gather", [x, net.constant(0, np.int64)], (batch, width), axis=1)
    y = _linear(net, first, width if kind == "encoder" else 1000)
    return net.unary("Tanh", y) if kind == "encoder" and draw.random() < 0.7 else y
