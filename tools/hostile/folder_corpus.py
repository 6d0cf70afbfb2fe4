"""A good folder of a language model to begin with, once for each of its files."""

from __future__ import annotations

import json
import struct
from typing import Any, Final

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from hostile.corpus import Seed

_HIDDEN, _INNER, _VOCABULARY = 16, 16, 260
WEIGHTS: Final = "model.safetensors"
_CONFIG: Final = {
    "model_type": "llama", "hidden_size": _HIDDEN, "intermediate_size": _INNER,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
    "vocab_size": _VOCABULARY, "max_position_embeddings": 64, "hidden_act": "silu",
    "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
}  # fmt: skip
_TEXTS: Final = {
    "bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": True,
    "chat_template": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
}  # fmt: skip
_SETTINGS: Final = {"eos_token_id": [2], "temperature": 0.7, "top_p": 0.9, "do_sample": True}


def seeds() -> list[Seed]:
    """Returns the corpus, always in the same order: in each, another file is changed most."""
    files = good()
    return [Seed(name, "folder", name, files) for name in files]


def good() -> dict[str, bytes]:
    """Returns the files of the folder by their names."""
    values = {
        "config.json": _CONFIG,
        "tokenizer_config.json": _TEXTS,
        "generation_config.json": _SETTINGS,
    }
    return {
        WEIGHTS: _weights(),
        "tokenizer.json": _tokenizer().encode(),
        **{name: json.dumps(value).encode() for name, value in values.items()},
    }


def _weights() -> bytes:
    layer, square, half = "model.layers.0", (_HIDDEN, _HIDDEN), (_HIDDEN // 2, _HIDDEN)
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens": (_VOCABULARY, _HIDDEN), "lm_head": (_VOCABULARY, _HIDDEN),
        f"{layer}.self_attn.q_proj": square, f"{layer}.self_attn.k_proj": half,
        f"{layer}.self_attn.v_proj": half, f"{layer}.self_attn.o_proj": square,
        f"{layer}.mlp.gate_proj": (_INNER, _HIDDEN), f"{layer}.mlp.up_proj": (_INNER, _HIDDEN),
        f"{layer}.mlp.down_proj": (_HIDDEN, _INNER), "model.norm": (_HIDDEN,),
        f"{layer}.input_layernorm": (_HIDDEN,), f"{layer}.post_attention_layernorm": (_HIDDEN,),
    }  # fmt: skip
    draw, table, data = np.random.default_rng(0), dict[str, Any](), b""
    for name, shape in shapes.items():
        begin = len(data)
        data += draw.uniform(-1, 1, shape).astype("<f4").tobytes()
        table[f"{name}.weight"] = {
            "dtype": "F32", "shape": shape, "data_offsets": [begin, len(data)],
        }  # fmt: skip
    text = json.dumps(table).encode()
    return struct.pack("<Q", len(text)) + text + data


def _tokenizer() -> str:
    tokens = ["<pad>", "<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "he"]
    made = Tokenizer(models.BPE({token: n for n, token in enumerate(tokens)}, [("h", "e")]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(tokens[:3])
    text: str = made.to_str()
    return text
