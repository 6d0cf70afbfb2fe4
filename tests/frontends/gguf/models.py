"""Models as GGUF files, converted from those of transformers.

Source: llama.cpp, `convert_hf_to_gguf.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from gguf_files import Array, Tensor, plain, written

_PARTS: Final = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "mlp.gate_up_proj": "ffn_up", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm", "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
    "ln_1": "attn_norm", "ln_2": "ffn_norm",
}  # fmt: skip
_GEMMA: Final = {
    "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}  # fmt: skip
_WHOLE: Final = {
    "embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output", "wte": "token_embd",
    "wpe": "position_embd", "ln_f": "output_norm",
}  # fmt: skip
_LAYER: Final = re.compile(r"(?:model\.layers|transformer\.h)\.(\d+)\.(.+)")


def name_of(name: str, architecture: str) -> str:
    """Returns the name of a parameter in a file."""
    module, _, part = name.rpartition(".")
    found = _LAYER.match(module)
    if found is None:
        return f"{_WHOLE[module.rpartition('.')[2]]}.{part}"
    parts = {**_PARTS, **_GEMMA} if architecture in ("gemma2", "gemma3") else _PARTS
    return f"blk.{found[1]}.{parts[found[2]]}.{part}"


def paired(rows: Array, heads: int) -> Array:
    """Returns the rows of queries or keys with those that are rotated together next to each
    other.
    """
    size = len(rows) // heads
    return rows.reshape(heads, 2, size // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def arrays(state: Mapping[str, Array], architecture: str, heads: int, groups: int) -> Any:
    """Returns the arrays of a file from the parameters of a model."""
    found = {}
    for name, values in state.items():
        stored = name_of(name, architecture)
        if architecture in ("llama", "smollm3") and re.search(r"attn_[qk]\.", stored):
            values = paired(values, heads if "attn_q." in stored else groups)
        if architecture.startswith("gemma") and stored.endswith("norm.weight"):
            values = values + np.float32(1)
        if architecture == "gpt2" and re.search(r"blk.*(attn|ffn)_(qkv|output|up|down)", stored):
            values = values.T
        found[stored] = np.ascontiguousarray(values)
    return found


def file_of(
    model: Any, architecture: str, more: Mapping[str, Tensor] | None = None, **changes: Any
) -> bytes:
    """Returns a model of transformers as a file of 32-bit numbers, with `more` tensors. `changes`
    are of its metadata, by the ends of keys.
    """
    config = model.config
    state = {k: v.detach().numpy() for k, v in model.state_dict().items()}
    if config.tie_word_embeddings:
        del state["lm_head.weight"]
    state = {k: v for k, v in state.items() if not k.endswith((".attn.bias", "masked_bias"))}
    heads = config.num_attention_heads
    groups = getattr(config, "num_key_value_heads", None) or heads
    tensors = {n: plain(v) for n, v in arrays(state, architecture, heads, groups).items()}
    return written(metadata_of(config, architecture, **changes), {**tensors, **(more or {})})


def metadata_of(config: Any, architecture: str, **changes: Any) -> dict[str, Any]:
    """Returns the metadata for a configuration of transformers."""
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    values: dict[str, Any] = {
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "attention.head_count": heads,
    }
    if architecture == "gpt2":
        values["feed_forward_length"] = 4 * config.hidden_size
        values["attention.layer_norm_epsilon"] = config.layer_norm_epsilon
    else:
        values |= {
            "feed_forward_length": config.intermediate_size,
            "attention.head_count_kv": config.num_key_value_heads,
            "attention.key_length": size,
            "attention.value_length": size,
            "rope.dimension_count": size,
        }
        if architecture in ("starcoder2", "stablelm"):
            epsilon = "norm_epsilon" if architecture == "starcoder2" else "layer_norm_eps"
            values["attention.layer_norm_epsilon"] = getattr(config, epsilon)
        else:
            values["attention.layer_norm_rms_epsilon"] = config.rms_norm_eps
    values |= {key.replace("__", "."): value for key, value in changes.items()}
    named = {f"{architecture}.{key}": value for key, value in values.items()}
    return {"general.architecture": architecture, **named}
