"""A small language model in a folder, written without other libraries: one layer of Llama."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any, Final

import numpy as np

VOCABULARY: Final = 280
_HIDDEN, _INNER, _HEADS = 32, 48, 2
CONFIG: Final = {
    "model_type": "llama", "hidden_size": _HIDDEN, "intermediate_size": _INNER,
    "num_hidden_layers": 1, "num_attention_heads": _HEADS, "vocab_size": VOCABULARY,
    "hidden_act": "silu", "max_position_embeddings": 96, "eos_token_id": 2,
    "tie_word_embeddings": False,
}  # fmt: skip
TEMPLATE: Final = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_model(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """Writes configuration and weights, and returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    rng = np.random.default_rng(seed)
    layer, square = "model.layers.0", (_HIDDEN, _HIDDEN)
    shapes = {
        "model.embed_tokens": (VOCABULARY, _HIDDEN), "lm_head": (VOCABULARY, _HIDDEN),
        **{f"{layer}.self_attn.{n}_proj": square for n in "qkvo"},
        f"{layer}.mlp.gate_proj": (_INNER, _HIDDEN), f"{layer}.mlp.up_proj": (_INNER, _HIDDEN),
        f"{layer}.mlp.down_proj": (_HIDDEN, _INNER), "model.norm": (_HIDDEN,),
        f"{layer}.input_layernorm": (_HIDDEN,), f"{layer}.post_attention_layernorm": (_HIDDEN,),
    }  # fmt: skip
    table, data, place = {}, b"", 0
    for name, shape in shapes.items():
        scale = 2 * shape[-1] ** -0.5 if len(shape) > 1 else 0.1
        values = scale * rng.standard_normal(shape) + (len(shape) == 1)
        data += values.astype("f4").tobytes()
        table[f"{name}.weight"] = {
            "dtype": "F32", "shape": list(shape), "data_offsets": [place, len(data)],
        }  # fmt: skip
        place = len(data)
    text = json.dumps(table).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    return folder


def write_tokenizer(folder: Path) -> None:
    """Writes a tokenizer with a token for each byte, some words, and a chat template."""
    tokenizers = __import__("tokenizers")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    special = ["<pad>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>"]
    tokens = [*special, *alphabet]
    made = tokenizers.Tokenizer(
        tokenizers.models.BPE({t: n for n, t in enumerate([*tokens, "he", "ll"])},
                              [("h", "e"), ("l", "l")])
    )  # fmt: skip
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(special)
    made.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
