"""Transformer encoders written out with ONNX's own operators: `encoder_small` in the size of
MiniLM-L6, and `encoder_small_free`, smaller and with free batch and sequence.

Post-norm blocks as in BERT. Unlike the exported networks they need no torch. Reshapes of the free
one compute their shapes from `Shape`, as exporters write them.

Source: Devlin et al., BERT, 2018; Wang et al., MiniLM, 2020.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from zoo.builder import Builder
from zoo.entries import Entry, Input, padding_mask, tokens

_SEED = 384
_VOCABULARY = 8_000
_LONGEST = 512
_DIMS = {"batch": 2, "sequence": 24}


@dataclass(frozen=True)
class _Config:
    """Sizes of an encoder; one without a number of tokens has free batch and sequence."""

    width: int
    heads: int
    layers: int
    tokens: int | None = None


def entries() -> Iterator[Entry]:
    """Yields the encoders."""
    yield _entry("encoder_small", _Config(384, 6, 6, tokens=128), "handmade")
    yield _entry("encoder_small_free", _Config(256, 4, 4), "handmade", "dynamic", "free")


def _entry(name: str, config: _Config, *groups: str) -> Entry:
    shape = _tokens_shape(config)
    return Entry(
        name=name,
        groups=frozenset({"language", "transformer", *groups}),
        build=partial(_build, config),
        inputs=(
            Input("input_ids", shape, tokens(_VOCABULARY)),
            Input("attention_mask", shape, padding_mask),
        ),
        sources=(Path(__file__), Path(__file__).with_name("builder.py")),
        dims=_DIMS if config.tokens is None else {},
    )


def _tokens_shape(config: _Config) -> tuple[int | str, int | str]:
    return ("batch", "sequence") if config.tokens is None else (1, config.tokens)


def _build(config: _Config, path: Path) -> None:
    b = Builder(_SEED)
    _shapes(b, config)
    b.ints("mask_axes", (1, 2))
    b.weight("one", np.array(1, np.float32))
    b.weight("lowest", np.array(-1e9, np.float32))
    b.weight("head_scale", np.array(math.sqrt(config.width // config.heads), np.float32))
    words = b.drawn("embedding.words", (_VOCABULARY, config.width), 1.0)
    places = b.drawn("embedding.places", (1, config.tokens or _LONGEST, config.width), 0.3)
    if config.tokens is None:
        places = b.node("Slice", "embedding.slice", [places, "zeros", "sequence.out", "mask_axis"])
    embedded = b.node("Gather", "embedding.gather", [words, "input_ids"])
    added = b.node("Add", "embedding.add", [embedded, places])
    x = b.norm("embedding.norm", added, config.width)
    mask = _mask(b)
    for layer in range(config.layers):
        x = _layer(b, f"layer{layer}", x, mask, config)
    b.nodes[-1].output[0] = "hidden"
    shape = _tokens_shape(config)
    hidden = helper.make_tensor_value_info("hidden", TensorProto.FLOAT, [*shape, config.width])
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, shape)
        for name in ("input_ids", "attention_mask")
    ]
    b.save("encoder", inputs, [hidden], path)


def _shapes(b: Builder, config: _Config) -> None:
    """Adds `split_shape` and `merged_shape`, which split the width into heads and merge them."""
    split, merged = (config.heads, config.width // config.heads), (config.width,)
    if config.tokens is not None:
        b.ints("split_shape", (1, config.tokens, *split))
        b.ints("merged_shape", (1, config.tokens, *merged))
        return
    b.ints("zeros", (0,))
    b.ints("mask_axis", (1,))
    shape = b.node("Shape", "shape", ["input_ids"])
    sizes = [
        b.node("Gather", name, [shape, b.ints(f"{name}.axis", (axis,))])
        for axis, name in enumerate(("batch", "sequence"))
    ]
    for name, rest in (("split", split), ("merged", merged)):
        last = b.ints(f"{name}.rest", rest)
        b.node("Concat", f"{name}_shape", [*sizes, last], axis=0)


def _mask(b: Builder) -> str:
    """Adds the mask that is added to the scores: very negative for padding tokens."""
    wide = b.node("Unsqueeze", "mask.unsqueeze", ["attention_mask", "mask_axes"])
    kept = b.node("Cast", "mask.cast", [wide], to=TensorProto.FLOAT)
    dropped = b.node("Sub", "mask.sub", ["one", kept])
    return b.node("Mul", "mask.mul", [dropped, "lowest"])


def _layer(b: Builder, name: str, x: str, mask: str, config: _Config) -> str:
    """Adds one block: attention and feed-forward, each with a residual and a normalization."""
    width = config.width
    attended = _attention(b, f"{name}.attention", x, mask, config)
    x = b.norm(f"{name}.norm1", b.node("Add", f"{name}.residual1", [attended, x]), width)
    inner = b.linear(f"{name}.expand", x, width, 4 * width)
    active = b.node("Gelu", f"{name}.gelu", [inner])
    outer = b.linear(f"{name}.contract", active, 4 * width, width)
    return b.norm(f"{name}.norm2", b.node("Add", f"{name}.residual2", [outer, x]), width)


def _attention(b: Builder, name: str, x: str, mask: str, config: _Config) -> str:
    """Adds multi-head self-attention with its output projection; returns the output's name."""
    width = config.width
    split, merged = (
        shape if config.tokens is not None else f"{shape}.out"
        for shape in ("split_shape", "merged_shape")
    )

    def heads(part: str, x: str, axes: tuple[int, ...]) -> str:
        parts = b.node("Reshape", f"{name}.{part}.split", [x, split])
        return b.node("Transpose", f"{name}.{part}.transpose", [parts], perm=axes)

    query, key, value = (b.linear(f"{name}.{part}", x, width, width) for part in "qkv")
    q, k, v = (
        heads(part, whole, axes)
        for part, whole, axes in (
            ("q", query, (0, 2, 1, 3)),
            ("k", key, (0, 2, 3, 1)),
            ("v", value, (0, 2, 1, 3)),
        )
    )
    scores = b.node("MatMul", f"{name}.scores", [q, k])
    scaled = b.node("Div", f"{name}.scale", [scores, "head_scale"])
    masked = b.node("Add", f"{name}.mask", [scaled, mask])
    weights = b.node("Softmax", f"{name}.softmax", [masked], axis=-1)
    mixed = b.node("MatMul", f"{name}.context", [weights, v])
    back = b.node("Transpose", f"{name}.back", [mixed], perm=(0, 2, 1, 3))
    joined = b.node("Reshape", f"{name}.merge", [back, merged])
    return b.linear(f"{name}.output", joined, width, width)
