"""Small seeded models in folders, as transformers saves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

_SIZES: Final = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 160, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "max_position_embeddings": 128,
}  # fmt: skip
_WINDOW: Final = {"sliding_window": 16, "head_dim": 16}
_EXPERTS: Final = {"num_experts": 12, "num_experts_per_tok": 3, "moe_intermediate_size": 40}
_YARN: Final = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
_LONGROPE: Final = {
    "rope_type": "longrope", "rope_theta": 10000.0, "factor": 4.0,
    "short_factor": [1 + 0.05 * n for n in range(8)], "long_factor": [1 + n for n in range(8)],
    "original_max_position_embeddings": 96,
}  # fmt: skip
KINDS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "llama": ("Llama", {}),
    "mistral": ("Mistral", {"sliding_window": 16}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "mixtral": ("Mixtral", {"num_local_experts": 8, "num_experts_per_tok": 2}),
    "qwen2_moe": ("Qwen2Moe", {**_EXPERTS, "shared_expert_intermediate_size": 80}),
    "qwen3_moe": ("Qwen3Moe", {**_EXPERTS, "norm_topk_prob": True, "head_dim": 16}),
    "mamba2": ("Mamba2", {"num_heads": 8, "head_dim": 16, "n_groups": 2, "state_size": 16}),
    "smollm3": ("SmolLM3", {"no_rope_layers": [1, 0]}),
    "phi3": ("Phi3", {}),
    "yarn": ("Qwen3", {"head_dim": 16, "rope_parameters": _YARN}),
    "longrope": ("Phi3", {"original_max_position_embeddings": 96, "rope_parameters": _LONGROPE}),
    "gemma2": (
        "Gemma2",
        {
            **_WINDOW,
            "layer_types": ["sliding_attention", "full_attention"],
            "tie_word_embeddings": False,
        },
    ),
    "gpt2": ("GPT2", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}),
}


def saved(folder: Path, kind: str, seed: int = 0, **changes: Any) -> Any:
    """Saves a model with seeded weights of the scale of trained ones, and returns it."""
    name, more = KINDS[kind]
    torch.manual_seed(seed)
    sizes = {k: v for k, v in _SIZES.items() if kind != "gpt2" or k.endswith(("id", "vocab_size"))}
    config = getattr(transformers, f"{name}Config")(**{**sizes, **more, **changes})
    head = "GPT2LMHeadModel" if kind == "gpt2" else f"{name}ForCausalLM"
    model = getattr(transformers, head)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:  # activations of about 1, and logits with clear differences
                parameter.normal_(0, 1.5 * parameter.shape[-1] ** -0.5)
            else:
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return model


def prompts(count: int, length: int, seed: int = 0, vocabulary: int = 160) -> Any:
    """Returns random prompts, i64[count, length], without special tokens."""
    return np.random.default_rng(seed).integers(3, vocabulary, (count, length))


def theirs(model: Any, ids: Any, **options: Any) -> list[list[int]]:
    """Returns the new tokens of transformers' `generate`, up to the end of each text."""
    given = torch.from_numpy(np.atleast_2d(np.asarray(ids)))
    options = {"do_sample": False, "use_cache": True, **options}
    found = model.generate(given, attention_mask=torch.ones_like(given), **options)
    ends = model.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    rows = []
    for row in found[:, given.shape[1] :].tolist():
        last = next((n for n, token in enumerate(row) if token in ends), len(row) - 1)
        rows.append(row[: last + 1])
    return rows
