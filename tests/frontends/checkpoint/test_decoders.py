"""Decoders from folders, compared with transformers: at once, and with a cache."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clew
from clew.frontends.checkpoint.loader import load
from clew.frontends.checkpoint.tensors import Tensors
from clew.ir.interpret import interpret

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

_SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 50, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
_BASIC = ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id")
_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
}  # fmt: skip
_YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 8.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
_LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0, "factor": 6.0,
    "short_factor": [1.0, 1.1, 1.3, 1.6], "long_factor": [1.0, 2.0, 4.5, 8.0],
    "original_max_position_embeddings": 5,
}  # fmt: skip
_NEAR = {"sliding_window": 3, "head_dim": 8}
_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
_MANY = {"num_local_experts": 8, "num_experts_per_tok": 2}
_HEADS = {"num_heads": 8, "head_dim": 8, "n_groups": 2, "state_size": 6}
_MAMBA2 = {"hidden_size": 32, "num_hidden_layers": 2}
_KINDS = ["sliding_attention", "full_attention"]

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"rope_parameters": _LLAMA3, "attention_bias": True, "mlp_bias": True}),
    "linear": ("Llama", {"rope_parameters": {**_LLAMA3, "rope_type": "linear"}}),
    "mistral": ("Mistral", {"sliding_window": 3, "tie_word_embeddings": True}),
    "qwen2": ("Qwen2", {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "mixtral": ("Mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "qwen2_moe": ("Qwen2Moe", {**_EXPERTS, "shared_expert_intermediate_size": 40}),
    "qwen3_moe": ("Qwen3Moe", {**_EXPERTS, "norm_topk_prob": True, "mlp_only_layers": [1]}),
    "mamba2": ("Mamba2", {**_MAMBA2, **_HEADS}),
    "smollm3": ("SmolLM3", {"no_rope_layers": [1, 0]}),
    "yarn": ("Qwen3", {"head_dim": 16, "rope_parameters": _YARN}),
    "longrope": ("Phi3", {"original_max_position_embeddings": 5, "rope_parameters": _LONGROPE}),
    "short": ("Phi3", {"original_max_position_embeddings": 9, "rope_parameters": _LONGROPE}),
    "phi3": ("Phi3", {"sliding_window": 4}),
    "gemma": ("Gemma", {"head_dim": 8, "hidden_size": 64}),
    "gemma2": ("Gemma2", {**_NEAR, "layer_types": _KINDS, "final_logit_softcapping": 3.0}),
    "gemma3": ("Gemma3", {**_NEAR, "layer_types": _KINDS}),
    "starcoder2": ("Starcoder2", {"sliding_window": 4}),
    "stablelm": ("StableLm", {"use_qkv_bias": True, "hidden_size": 64}),
    "gpt2": ("GPT2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16}),
    "gpt_bigcode": ("GPTBigCode", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16}),
    "olmo3": ("Olmo3", {**_NEAR, "layer_types": _KINDS}),
    "granite": ("Granite", {"logits_scaling": 4.0, "residual_multiplier": 0.4,
                            "attention_multiplier": 0.2, "embedding_multiplier": 3.0}),
    "cohere2": ("Cohere2", {**_NEAR, "layer_types": _KINDS, "logit_scale": 0.25}),
    "exaone4": ("Exaone4", {**_NEAR, "layer_types": _KINDS}),
    "glm": ("Glm", {"head_dim": 8}),
    "nemotron": ("Nemotron", {"head_dim": 8}),
    "phi": ("Phi", {}),
    "phimoe": ("Phimoe", {**_MANY, "rms_norm_eps": 1e-5, "router_jitter_noise": 0.3}),
    "gpt_neox": ("GPTNeoX", {"hidden_size": 64}),
    "falcon": ("Falcon", {"ffn_hidden_size": 48}),
    "falcon_new": ("Falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}),
}  # fmt: skip
_WITH_OWN_SIZES = ("GPT2", "GPTBigCode", "Mamba2")


def saved(folder: Path, case: str, **options: Any) -> Any:
    """Saves a model of seeded weights, none of which has its neutral value, and returns it."""
    name, more = CASES[case]
    torch.manual_seed(0)
    kind = "Gemma3Text" if name == "Gemma3" else name
    sizes = _SIZES if name not in _WITH_OWN_SIZES else {k: _SIZES[k] for k in _BASIC}
    config = getattr(transformers, f"{kind}Config")(**{**sizes, **more})
    head = "GPT2LMHeadModel" if name == "GPT2" else f"{name}ForCausalLM"
    model = getattr(transformers, head)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0 if parameter.ndim > 1 else 1.0)
            parameter.add_(0.05 * torch.randn_like(parameter))
    model.save_pretrained(folder, **options)
    return model


@pytest.mark.parametrize("case", CASES)
def test_logits(case: str, tmp_path: Path) -> None:
    model = saved(tmp_path, case)
    ids = np.random.default_rng(0).integers(0, 50, (2, 9))
    with torch.no_grad():
        expected = model(torch.from_numpy(ids)).logits.numpy()
    module = load(tmp_path)
    names = [p.name for p in module.main.params if p.name.startswith("past")]
    defaults = {"padding": np.zeros(2, "i8"), "unscored": np.zeros(0, bool)}
    _, groups, *_, size = module.main.params[1].tensor.shape
    cache = [np.zeros((2, groups, 0, size), np.float32)] * len(names)
    if case == "mamba2":
        cache = [np.zeros((2, *p.tensor.shape[1:]), np.float32) for p in module.main.params[1:5]]
    found = []
    # Keys have the angles of short texts or long ones by the length of their call.
    for begin, end in ((0, 9),) if case == "longrope" else ((0, 5), (5, 6), (6, 9)):
        given = {"input_ids": ids[:, begin:end], **dict(zip(names, cache, strict=True))}
        given |= {n: v for n, v in defaults.items() if n in module.input_names}
        results = interpret(module, given)
        found.append(results["logits"])
        cache = [results[n.replace("past_key_values", "present")] for n in names]
    np.testing.assert_allclose(np.concatenate(found, 1), expected, rtol=2e-4, atol=2e-5)


def test_a_session_decodes_without_new_builds(tmp_path: Path) -> None:
    model = saved(tmp_path, "qwen3", max_shard_size="8KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    ids = np.random.default_rng(1).integers(0, 50, (1, 8))
    with torch.no_grad():
        expected = model(torch.from_numpy(ids)).logits.numpy()
    compiled = clew.compile(load(tmp_path), threads=1, cache=False)
    session = compiled.session()
    made = compiled.builds_made
    found = [session(ids[:, :4]), *(session(ids[:, n : n + 1]) for n in range(4, 8))]
    np.testing.assert_allclose(np.concatenate(found, 1), expected, rtol=2e-4, atol=2e-5)
    session.rewind(5)
    np.testing.assert_allclose(session(ids[:, 5:]), expected[:, 5:], rtol=2e-4, atol=2e-5)
    assert compiled.builds_made == made
    assert compiled.trace.layer("model.layers.1.self_attn.q_proj")


def test_negative_ids_are_out_of_range(tmp_path: Path) -> None:
    saved(tmp_path, "llama")
    rows = torch.nn.Embedding(50, 4)
    from_torch = clew.from_torch(rows, (torch.zeros((1, 1), dtype=torch.int64),))
    for model in (load(tmp_path), from_torch):
        compiled = clew.compile(model, threads=1)
        run = compiled.session() if len(compiled.inputs) > 1 else compiled
        for token in (-1, 50):
            with pytest.raises(clew.ClewError, match=f"index {token} is out of range") as caught:
                run(np.array([[token]]))
            assert caught.value.code == "I320"
        assert run(np.array([[49]])).shape[:2] == (1, 1)


def test_narrow_weights_are_widened(tmp_path: Path) -> None:
    model = saved(tmp_path, "gemma").to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    ids = np.array([[1, 7, 30]])
    with torch.no_grad():
        expected = model.float()(torch.from_numpy(ids)).logits.numpy()
    empty = np.zeros((1, 2, 0, 8), np.float32)
    module = load(tmp_path)
    given = {p.name: empty for p in module.main.params if p.name.startswith("past")}
    given |= {"input_ids": ids, "padding": np.zeros(1, "i8"), "unscored": np.zeros(0, bool)}
    found = interpret(module, given)["logits"]
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)


def test_sizes_of_inputs(tmp_path: Path) -> None:
    saved(tmp_path, "llama")
    shapes = {"input_ids": [1, "rows"], "past_key_values.1.value": [1, 2, 6, 8]}
    module = clew.load(tmp_path, inputs=shapes)
    assert [str(p.type) for p in module.main.params[:2]] == ["i64[1, rows]", "f32[1, 2, 6, 8]"]
    for name, shape in (("ids", [1, 2]), ("input_ids", [1]), ("input_ids", [0, 2]),
                        ("past_key_values.0.key", [2, 2, 6, 8]),
                        ("past_key_values.0.key", [1, 3, 6, 8])):  # fmt: skip
        with pytest.raises(clew.ClewError) as caught:
            clew.load(tmp_path, inputs={**shapes, name: shape})
        assert caught.value.code == "I004"


# --- what is refused ------------------------------------------------------------------------------


def config_of(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"model_type": "falcon_mamba"}, "U009", "call clew.from_torch"),
        ({"model_type": "falcon", "alibi": True}, "U009", "alibi"),
        ({"model_type": "stablelm", "qk_layernorm": True}, "U009", "qk_layernorm"),
        ({"model_type": "phimoe", **_MANY, "num_experts_per_tok": 3}, "U009", "another router"),
        ({"model_type": "granite", "logits_scaling": 0}, "M071", "logits_scaling"),
        ({"model_type": 3}, "M071", "model_type"),
        ({"hidden_act": "tanhish"}, "U009", "tanhish"),
        ({"rope_parameters": {"rope_type": "ntk"}}, "U009", "ntk"),
        ({"hidden_size": -1}, "M071", "hidden_size"),
        ({"num_hidden_layers": 3}, "M072", "model.layers.2.input_layernorm.weight"),
        ({"vocab_size": 49}, "M072", "model.embed_tokens.weight"),
        ({"num_key_value_heads": 3}, "M071", "num_key_value_heads"),
        ({"rms_norm_eps": 1e999}, "M071", "rms_norm_eps"),
        ({"rms_norm_eps": 10**400}, "M071", "rms_norm_eps"),
        ({"num_hidden_layers": 2**31 - 1}, "M009", "layers in config.json"),
        ({"head_dim": 2**30}, "M071", "partial_rotary_factor"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 0}}, "M071", "factor"),
        ({"rope_parameters": {"rope_theta": 1e-300}}, "M071", "rope_theta"),
        ({"rope_parameters": {**_YARN, "factor": 0}}, "M071", "factor"),
        ({"rope_parameters": {**_YARN, "rope_theta": 1.0}}, "M071", "rope_theta"),
        ({"rope_parameters": {**_YARN, "beta_fast": -1}}, "M071", "beta_fast"),
        ({"rope_parameters": {**_YARN, "beta_fast": 1e-320}}, "M071", "beta_fast"),
        ({"rope_parameters": {**_YARN, "beta_fast": 1e308}}, "M071", "beta_fast"),
        ({"partial_rotary_factor": 1e308}, "M071", "partial_rotary_factor"),
        ({"rope_parameters": {**_LONGROPE, "short_factor": [1.0]}}, "M071", "short_factor"),
        ({"rope_parameters": {**_LONGROPE, "long_factor": [10**400] * 4}}, "M071", "long_factor"),
        ({"rope_parameters": {**_LONGROPE, "long_factor": [0.0] * 4}}, "M071", "long_factor"),
        ({"model_type": "mixtral"}, "M071", "num_local_experts"),
        ({"model_type": "mixtral", **_MANY, "num_experts_per_tok": 9}, "M071", "num_experts_per"),
        ({"model_type": "mixtral", **_MANY}, "M072", "block_sparse_moe.gate.weight"),
        ({"model_type": "mixtral", **_MANY, "num_local_experts": 2**31 - 1}, "M009", "experts"),
        ({"model_type": "qwen3_moe", **_EXPERTS, "mlp_only_layers": "1"}, "M071", "mlp_only_lay"),
        ({"model_type": "mamba2"}, "M071", "num_heads"),
        ({"model_type": "mamba2", "num_heads": 7, "head_dim": 8}, "M071", "num_heads"),
        ({"model_type": "mamba2", **_HEADS, "n_groups": 3}, "M071", "n_groups"),
        ({"model_type": "mamba2", **_HEADS, "conv_kernel": 2**20}, "M071", "conv_kernel"),
        ({"model_type": "mamba2", **_HEADS, "time_step_limit": [0, "1"]}, "M071", "time_step_li"),
        ({"model_type": "mamba2", **_HEADS, "time_step_limit": [0, 10**400]}, "M071", "time_step"),
        ({"model_type": "gemma2", "query_pre_attn_scalar": 0}, "M071", "query_pre_attn_scalar"),
        ({"sliding_window": 3, "layer_types": [[1], [2]]}, "U009", "layers of kind"),
    ],
)
def test_configurations(changes: dict[str, Any], code: str, words: str, tmp_path: Path) -> None:
    saved(tmp_path, "llama")
    config_of(tmp_path, **changes)
    with pytest.raises(clew.ClewError, match=words.replace(".", r"\.")) as caught:
        load(tmp_path)
    assert caught.value.code == code


def damaged(table: dict[str, Any], data: bytes = b"\0" * 16) -> bytes:
    text = json.dumps(table).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 8,
        struct.pack("<Q", 1 << 62) + b"{}",
        struct.pack("<Q", 4) + b"nope",
        damaged({"a": 3}),
        damaged({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 20]}}),
        damaged({"a": {"dtype": "F32", "shape": [4], "data_offsets": [4, 20]}}),
        damaged({"a": {"dtype": "F32", "shape": [-4], "data_offsets": [0, 16]}}),
        damaged({"a": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 16]}}),
        damaged({"a": {"dtype": "Q9", "shape": [4], "data_offsets": [0, 16]}}),
        damaged({"a": {"dtype": ["F32"], "shape": [4], "data_offsets": [0, 16]}}),
        damaged({"a": {"dtype": "F32", "shape": "4", "data_offsets": [0, 16]}}),
        damaged({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0.0, 16]}}),
    ],
)
def test_damaged_files(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(clew.ClewError) as caught:
        Tensors(tmp_path)
    assert caught.value.code in ("M070", "M006")


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/passwd", "..", "a/b", 7])
def test_an_index_leads_nowhere_else(name: Any, tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(clew.ClewError) as caught:
        Tensors(tmp_path)
    assert caught.value.code == "M070"
