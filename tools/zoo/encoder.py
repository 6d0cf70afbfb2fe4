"""A transformer encoder written out with ONNX's own operators, in the size of MiniLM-L6.

Six layers of width 384 with six heads over 128 tokens. Unlike the exported networks it needs no
torch. Post-norm blocks as in BERT.

Source: Devlin et al., BERT, 2018; Wang et al., MiniLM, 2020.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from zoo.entries import Entry, Input, padding_mask, tokens

_SEED = 384
_TOKENS, _WIDTH, _HEADS, _LAYERS, _VOCABULARY = 128, 384, 6, 6, 8_000
_OPSET = [helper.make_opsetid("", 20)]


def entries() -> Iterator[Entry]:
    """Yields the encoder."""
    shape = (1, _TOKENS)
    yield Entry(
        name="encoder_small",
        groups=frozenset({"handmade", "language", "transformer"}),
        build=_build,
        inputs=(
            Input("input_ids", shape, tokens(_VOCABULARY)),
            Input("attention_mask", shape, padding_mask),
        ),
        sources=(Path(__file__),),
    )


class _Builder:
    """Collects nodes and weights; a node's first output is named after it."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.rng = np.random.default_rng(_SEED)

    def node(self, op: str, name: str, inputs: Sequence[str], **attrs: Any) -> str:
        """Adds a node; returns its output's name."""
        self.nodes.append(helper.make_node(op, inputs, [f"{name}.out"], name=name, **attrs))
        return f"{name}.out"

    def weight(self, name: str, value: np.ndarray) -> str:
        """Adds a constant; returns its name."""
        self.weights.append(numpy_helper.from_array(value, name))
        return name

    def drawn(self, name: str, shape: tuple[int, ...], deviation: float) -> str:
        """Adds a weight from the normal distribution; returns its name."""
        value = self.rng.standard_normal(shape, dtype=np.float32) * np.float32(deviation)
        return self.weight(name, value)

    def ints(self, name: str, values: Sequence[int]) -> str:
        """Adds a constant of integers; returns its name."""
        return self.weight(name, np.array(values, np.int64))

    def linear(self, name: str, x: str, size_in: int, size_out: int) -> str:
        """Adds `x · W + b`; returns the output's name."""
        weight = self.drawn(f"{name}.weight", (size_in, size_out), 1 / math.sqrt(size_in))
        bias = self.drawn(f"{name}.bias", (size_out,), 0.1)
        product = self.node("MatMul", f"{name}.matmul", [x, weight])
        return self.node("Add", f"{name}.add", [product, bias])

    def norm(self, name: str, x: str) -> str:
        """Adds a layer normalization over the last axis; returns the output's name."""
        scale = self.rng.uniform(0.5, 1.5, _WIDTH).astype(np.float32)
        scale_name = self.weight(f"{name}.scale", scale)
        shift = self.drawn(f"{name}.shift", (_WIDTH,), 0.1)
        return self.node("LayerNormalization", name, [x, scale_name, shift], axis=-1, epsilon=1e-12)

    def heads(self, name: str, x: str, axes: tuple[int, ...]) -> str:
        """Adds the split of the last axis into heads; returns the output's name."""
        split = self.node("Reshape", f"{name}.split", [x, "split_shape"])
        return self.node("Transpose", f"{name}.transpose", [split], perm=axes)


def _build(path: Path) -> None:
    b = _Builder()
    b.ints("split_shape", (1, _TOKENS, _HEADS, _WIDTH // _HEADS))
    b.ints("merged_shape", (1, _TOKENS, _WIDTH))
    b.ints("mask_axes", (1, 2))
    b.weight("one", np.array(1, np.float32))
    b.weight("lowest", np.array(-1e9, np.float32))
    b.weight("head_scale", np.array(math.sqrt(_WIDTH // _HEADS), np.float32))
    words = b.drawn("embedding.words", (_VOCABULARY, _WIDTH), 1.0)
    places = b.drawn("embedding.places", (1, _TOKENS, _WIDTH), 0.3)
    embedded = b.node("Gather", "embedding.gather", [words, "input_ids"])
    x = b.norm("embedding.norm", b.node("Add", "embedding.add", [embedded, places]))
    mask = _mask(b)
    for layer in range(_LAYERS):
        x = _layer(b, f"layer{layer}", x, mask)
    b.nodes[-1].output[0] = "hidden"
    graph = helper.make_graph(
        b.nodes,
        "encoder",
        [
            helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, _TOKENS]),
            helper.make_tensor_value_info("attention_mask", TensorProto.INT64, [1, _TOKENS]),
        ],
        [helper.make_tensor_value_info("hidden", TensorProto.FLOAT, [1, _TOKENS, _WIDTH])],
        b.weights,
    )
    model = helper.make_model(graph, opset_imports=_OPSET, ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def _mask(b: _Builder) -> str:
    """Adds the mask that is added to the scores: very negative for padding tokens."""
    wide = b.node("Unsqueeze", "mask.unsqueeze", ["attention_mask", "mask_axes"])
    kept = b.node("Cast", "mask.cast", [wide], to=TensorProto.FLOAT)
    dropped = b.node("Sub", "mask.sub", ["one", kept])
    return b.node("Mul", "mask.mul", [dropped, "lowest"])


def _layer(b: _Builder, name: str, x: str, mask: str) -> str:
    """Adds one block: attention and feed-forward, each with a residual and a normalization."""
    attended = _attention(b, f"{name}.attention", x, mask)
    x = b.norm(f"{name}.norm1", b.node("Add", f"{name}.residual1", [attended, x]))
    inner = b.linear(f"{name}.expand", x, _WIDTH, 4 * _WIDTH)
    active = b.node("Gelu", f"{name}.gelu", [inner])
    outer = b.linear(f"{name}.contract", active, 4 * _WIDTH, _WIDTH)
    return b.norm(f"{name}.norm2", b.node("Add", f"{name}.residual2", [outer, x]))


def _attention(b: _Builder, name: str, x: str, mask: str) -> str:
    """Adds multi-head self-attention with its output projection; returns the output's name."""
    query, key, value = (b.linear(f"{name}.{part}", x, _WIDTH, _WIDTH) for part in "qkv")
    q = b.heads(f"{name}.q", query, (0, 2, 1, 3))
    k = b.heads(f"{name}.k", key, (0, 2, 3, 1))
    v = b.heads(f"{name}.v", value, (0, 2, 1, 3))
    scores = b.node("MatMul", f"{name}.scores", [q, k])
    scaled = b.node("Div", f"{name}.scale", [scores, "head_scale"])
    masked = b.node("Add", f"{name}.mask", [scaled, mask])
    weights = b.node("Softmax", f"{name}.softmax", [masked], axis=-1)
    mixed = b.node("MatMul", f"{name}.context", [weights, v])
    back = b.node("Transpose", f"{name}.back", [mixed], perm=(0, 2, 1, 3))
    merged = b.node("Reshape", f"{name}.merge", [back, "merged_shape"])
    return b.linear(f"{name}.output", merged, _WIDTH, _WIDTH)
