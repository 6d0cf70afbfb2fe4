"""Good GGUF files to begin with: architectures, types of weights, and a tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from gguf_files import Tensor, blocks, metadata_of_llama, plain, tensors_of_llama, written
from hostile.corpus import Seed

_SIZES: Final = (32, 32, 1, 2, 1)
_LARGE: Final = (256, 256, 1, 4, 2)
_TOKENIZER: Final = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": ["a", "b", "ab", "é"],
    "tokenizer.ggml.token_type": [1, 1, 1, 3],
    "tokenizer.ggml.scores": [0.0, -1.0, -2.0, 0.0],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.eos_token_id": 3,
    "tokenizer.chat_template": "{{ messages }}",
}


def seeds() -> list[Seed]:
    """Returns the corpus, always in the same order."""
    return [
        Seed(name, "gguf", "model.gguf", {"model.gguf": data}, _inputs(*cache))
        for name, data, cache in _files()
    ]


def _inputs(groups: int, size: int) -> dict[str, Any]:
    """Returns two tokens, and an empty cache."""
    empty = np.zeros((1, groups, 0, size), np.float32)
    cache = {f"past_key_values.0.{name}": empty for name in ("key", "value")}
    return {"input_ids": np.array([[1, 2]]), **cache}


def _files() -> Iterator[tuple[str, bytes, tuple[int, int]]]:
    """Yields names, files, and the groups and sizes of their caches."""
    for kind in ("F32", "Q4_0", "Q4_1", "Q5_0", "Q8_0"):
        yield f"llama_{kind}", _llama(kind, _SIZES), (1, 16)
    for kind in ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"):
        yield f"llama_{kind}", _llama(kind, _LARGE), (2, 64)
    for name in ("qwen2", "qwen3", "gemma", "gemma2", "gemma3", "smollm3"):
        yield name, _like_llama(name), (1, 16)
    yield "gpt2", _gpt2(), (2, 8)


def _numbers(*shape: int) -> Tensor:
    draw = np.random.default_rng(len(shape))
    return plain(draw.uniform(-1, 1, shape).astype(np.float32))


def _llama(kind: str, sizes: tuple[int, int, int, int, int]) -> bytes:
    draw = np.random.default_rng(0)

    def make(_: str, shape: tuple[int, int]) -> Tensor:
        return _numbers(*shape) if kind == "F32" else blocks(kind, shape, draw)

    metadata: dict[str, Any] = {**metadata_of_llama(*sizes), **_TOKENIZER}
    tensors = tensors_of_llama(make, *sizes, 16)
    if kind == "F32":
        tensors["rope_freqs.weight"] = plain(np.linspace(1, 2, 8, dtype=np.float32))
    return written(metadata, tensors)


def _like_llama(name: str) -> bytes:
    """Returns a file of another architecture, with the further norms that some of them have."""
    metadata: dict[str, Any] = {
        key.replace("llama.", f"{name}."): value
        for key, value in metadata_of_llama(*_SIZES).items()
    }
    metadata |= {
        "general.architecture": name,
        f"{name}.attention.key_length": 16,
        f"{name}.attention.sliding_window": 2,
        f"{name}.attn_logit_softcapping": 30.0,
        f"{name}.rope.scaling.type": "linear",
        f"{name}.rope.scaling.factor": 2.0,
        f"{name}.attention.head_count_kv": [1],
    }
    tensors = tensors_of_llama(lambda _, shape: _numbers(*shape), *_SIZES, 16)
    for part, size in (
        ("attn_q_norm", 16), ("attn_k_norm", 16), ("post_attention_norm", 32),
        ("post_ffw_norm", 32),
    ):  # fmt: skip
        tensors[f"blk.0.{part}.weight"] = _numbers(size)
    return written(metadata, tensors)


def _gpt2() -> bytes:
    metadata = {
        "general.architecture": "gpt2", "gpt2.embedding_length": 16, "gpt2.block_count": 1,
        "gpt2.attention.head_count": 2, "gpt2.feed_forward_length": 24,
        "gpt2.attention.layer_norm_epsilon": 1e-5, "general.alignment": 64,
    }  # fmt: skip
    shapes = {
        "token_embd.weight": (12, 16), "position_embd.weight": (8, 16),
        "blk.0.attn_qkv.weight": (48, 16), "blk.0.attn_qkv.bias": (48,),
        "blk.0.attn_output.weight": (16, 16), "blk.0.attn_output.bias": (16,),
        "blk.0.ffn_up.weight": (24, 16), "blk.0.ffn_up.bias": (24,),
        "blk.0.ffn_down.weight": (16, 24), "blk.0.ffn_down.bias": (16,),
    }  # fmt: skip
    for norm in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        shapes |= {f"{norm}.weight": (16,), f"{norm}.bias": (16,)}
    return written(metadata, {n: _numbers(*shape) for n, shape in shapes.items()}, 64)
