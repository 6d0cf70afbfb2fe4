"""Decoders from GGUF files, compared with the models of transformers that they come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.frontends.gguf.models import file_of

import clew
from clew.frontends.gguf.loader import load
from clew.ir.interpret import interpret
from gguf_files import plain

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

_SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 50, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
_LINEAR = {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0}
_SMALL = {"head_dim": 8, "sliding_window": 3}

# Architecture: the class of transformers, its configuration, and metadata beyond the usual.
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": (
        "Llama",
        {"attention_bias": True, "rope_parameters": _LINEAR},
        {
            "rope__freq_base": 5000.0,
            "rope__scaling__type": "linear",
            "rope__scaling__factor": 4.0,
        },
    ),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}, {}),
    "qwen3": ("Qwen3", {"head_dim": 16}, {}),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 4}, {"rope__freq_base": 2000000.0}),
    "phi3": ("Phi3", {"sliding_window": 4}, {"attention__sliding_window": 4}),
    "gemma": ("Gemma", {"head_dim": 8, "hidden_size": 64}, {}),
    "gemma2": (
        "Gemma2",
        {**_SMALL, "query_pre_attn_scalar": 8, "final_logit_softcapping": 3.0},
        {
            "attention__sliding_window": 3,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma3": (
        "Gemma3",
        {**_SMALL, "query_pre_attn_scalar": 8, "num_hidden_layers": 6},
        {"attention__sliding_window": 3, "rope__freq_base": 1000000.0},
    ),
    "starcoder2": ("Starcoder2", {"sliding_window": 4}, {"attention__sliding_window": 4}),
    "stablelm": (
        "StableLm",
        {"use_qkv_bias": True, "hidden_size": 64},
        {"rope__dimension_count": 4},
    ),
    "gpt2": ("GPT2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16}, {}),
}


def made(architecture: str) -> Any:
    """Returns a model of seeded weights, none of which has its neutral value."""
    name, more, _ = CASES[architecture]
    torch.manual_seed(0)
    kind = "Gemma3Text" if name == "Gemma3" else name
    sizes = {k: v for k, v in _SIZES.items() if name != "GPT2" or k.endswith(("id", "vocab_size"))}
    config = getattr(transformers, f"{kind}Config")(**{**sizes, **more})
    head = "GPT2LMHeadModel" if name == "GPT2" else f"{name}ForCausalLM"
    model = getattr(transformers, head)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0 if parameter.ndim > 1 else 1.0)
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def logits(model: Any, path: Path) -> tuple[Any, Any]:
    """Returns the logits of a file, and those of a model of transformers."""
    ids = np.random.default_rng(0).integers(0, 50, (2, 9))
    with torch.no_grad():
        expected = model(torch.from_numpy(ids)).logits.numpy()
    module = load(path)
    _, groups, _, size = module.main.params[1].tensor.shape
    assert isinstance(groups, int)
    assert isinstance(size, int)
    empty = np.zeros((2, groups, 0, size), np.float32)
    given = {p.name: empty for p in module.main.params if p.name.startswith("past")}
    given |= {"input_ids": ids, "padding": np.zeros(2, "i8"), "unscored": np.zeros(0, bool)}
    return interpret(module, given)["logits"], expected


@pytest.mark.parametrize("architecture", CASES)
def test_logits(architecture: str, tmp_path: Path) -> None:
    model = made(architecture)
    path = tmp_path / "model.gguf"
    path.write_bytes(file_of(model, architecture, **CASES[architecture][2]))
    np.testing.assert_allclose(*logits(model, path), rtol=2e-4, atol=2e-5)


def test_a_session_continues(tmp_path: Path) -> None:
    model = made("llama")
    path = tmp_path / "model"  # recognized by its bytes
    path.write_bytes(file_of(model, "llama", **CASES["llama"][2]))
    ids = np.random.default_rng(1).integers(0, 50, (1, 8))
    with torch.no_grad():
        expected = model(torch.from_numpy(ids)).logits.numpy()
    compiled = clew.compile(path, threads=1, cache=False)
    session = compiled.session()
    found = [session(ids[:, :4]), *(session(ids[:, n : n + 1]) for n in range(4, 8))]
    np.testing.assert_allclose(np.concatenate(found, 1), expected, rtol=2e-4, atol=2e-5)
    assert compiled.trace.layer("blk.1.attn_q")


def test_rotary_factors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of Llama 3 have its scaling as factors of the angles."""
    scaling = {
        "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
    }  # fmt: skip
    monkeypatch.setitem(CASES, "llama", ("Llama", {"rope_parameters": scaling}, {}))
    model = made("llama")
    angles = model.model.rotary_emb.inv_freq.numpy()
    factors = 10000.0 ** (-np.arange(4) / 4) / angles
    assert factors.max() > 7
    path = tmp_path / "model.gguf"
    more = {"rope_freqs.weight": plain(factors.astype(np.float32))}
    path.write_bytes(file_of(model, "llama", more))
    np.testing.assert_allclose(*logits(model, path), rtol=2e-4, atol=2e-5)
