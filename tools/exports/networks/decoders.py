"""Decoders of text, with attention and as state-space models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from exports.entries import Entry
from exports.networks.texts import GROUPED, HEADS_OF_12, SMALL, WORDS, text


def entries() -> Iterator[Entry]:
    """Yields the decoders."""
    yield from _attention()
    yield from _state_space()


def _attention() -> Iterator[Entry]:
    def entry(name: str, model: str, **config: Any) -> Entry:
        return text(name, "decoder", model, **config)

    yield entry(
        "bloom",
        "BloomForCausalLM",
        vocab_size=WORDS,
        hidden_size=48,
        n_layer=2,
        n_head=4,
        use_cache=False,
    )
    yield entry(
        "codegen",
        "CodeGenForCausalLM",
        vocab_size=WORDS,
        n_embd=64,
        n_layer=2,
        n_head=4,
        rotary_dim=8,
        n_positions=64,
        use_cache=False,
    )
    yield entry("cohere", "CohereForCausalLM", **GROUPED)
    yield entry("cohere2", "Cohere2ForCausalLM", **GROUPED, sliding_window=8)
    yield entry(
        "ctrl",
        "CTRLLMHeadModel",
        vocab_size=WORDS,
        n_embd=48,
        n_layer=2,
        n_head=4,
        dff=96,
        use_cache=False,
    )
    yield entry(
        "deepseek_v3",
        "DeepseekV3ForCausalLM",
        **{**GROUPED, "num_key_value_heads": 4},
        moe_intermediate_size=32,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=12,
        first_k_dense_replace=1,
    )
    yield entry(
        "falcon",
        "FalconForCausalLM",
        vocab_size=WORDS,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        use_cache=False,
    )
    yield entry("gemma", "GemmaForCausalLM", **HEADS_OF_12)
    yield entry("gemma2", "Gemma2ForCausalLM", **HEADS_OF_12, sliding_window=8)
    yield entry("gemma3", "Gemma3ForCausalLM", **HEADS_OF_12, sliding_window=8)
    yield entry("glm", "GlmForCausalLM", **HEADS_OF_12)
    yield entry(
        "gpt2_hf",
        "GPT2LMHeadModel",
        vocab_size=WORDS,
        n_embd=48,
        n_layer=2,
        n_head=4,
        use_cache=False,
    )
    yield entry(
        "gpt_bigcode",
        "GPTBigCodeForCausalLM",
        vocab_size=WORDS,
        n_embd=48,
        n_layer=2,
        n_head=4,
        multi_query=True,
        use_cache=False,
    )
    yield entry(
        "gpt_neo",
        "GPTNeoForCausalLM",
        vocab_size=WORDS,
        hidden_size=48,
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        window_size=8,
        use_cache=False,
    )
    yield entry("gpt_neox", "GPTNeoXForCausalLM", **SMALL)
    yield entry(
        "gpt_oss",
        "GptOssForCausalLM",
        **HEADS_OF_12,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=8,
    )
    yield entry(
        "gptj",
        "GPTJForCausalLM",
        vocab_size=WORDS,
        n_embd=48,
        n_layer=2,
        n_head=4,
        rotary_dim=8,
        n_positions=64,
        use_cache=False,
    )
    yield entry("granite", "GraniteForCausalLM", **GROUPED)
    yield entry(
        "granitemoe", "GraniteMoeForCausalLM", **GROUPED, num_local_experts=4, num_experts_per_tok=2
    )
    yield entry("llama", "LlamaForCausalLM", **GROUPED)
    yield entry("mistral", "MistralForCausalLM", **GROUPED, sliding_window=8)
    yield entry(
        "mixtral", "MixtralForCausalLM", **GROUPED, num_local_experts=4, num_experts_per_tok=2
    )
    yield entry(
        "mpt",
        "MptForCausalLM",
        vocab_size=WORDS,
        d_model=48,
        n_layers=2,
        n_heads=4,
        max_seq_len=64,
        use_cache=False,
    )
    yield entry("nemotron", "NemotronForCausalLM", **GROUPED)
    yield entry("olmo2", "Olmo2ForCausalLM", **GROUPED)
    yield entry("olmoe", "OlmoeForCausalLM", **GROUPED, num_experts=4, num_experts_per_tok=2)
    yield entry(
        "openai_gpt", "OpenAIGPTLMHeadModel", vocab_size=WORDS, n_embd=48, n_layer=2, n_head=4
    )
    yield entry(
        "opt",
        "OPTForCausalLM",
        vocab_size=WORDS,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=96,
        word_embed_proj_dim=24,
        max_position_embeddings=64,
        use_cache=False,
    )
    yield entry("persimmon", "PersimmonForCausalLM", **SMALL)
    yield entry("phi", "PhiForCausalLM", **GROUPED)
    yield entry("phi3", "Phi3ForCausalLM", **GROUPED)
    yield entry(
        "phimoe", "PhimoeForCausalLM", **GROUPED, num_local_experts=4, num_experts_per_tok=2
    )
    yield entry("qwen2", "Qwen2ForCausalLM", **GROUPED)
    yield entry(
        "qwen2_moe",
        "Qwen2MoeForCausalLM",
        **GROUPED,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
    )
    yield entry("qwen3", "Qwen3ForCausalLM", **HEADS_OF_12)
    yield entry(
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        **HEADS_OF_12,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
    )
    yield entry("smollm3", "SmolLM3ForCausalLM", **GROUPED)
    yield entry("stablelm", "StableLmForCausalLM", **{**GROUPED, "hidden_size": 64})
    yield entry("starcoder2", "Starcoder2ForCausalLM", **GROUPED, sliding_window=8)
    yield entry(
        "xglm",
        "XGLMForCausalLM",
        vocab_size=WORDS,
        d_model=48,
        num_layers=2,
        attention_heads=4,
        ffn_dim=96,
        max_position_embeddings=64,
        use_cache=False,
    )


def _state_space() -> Iterator[Entry]:
    def entry(name: str, model: str, **config: Any) -> Entry:
        return text(name, "state-space", model, mask=False, **config)

    mamba: dict[str, Any] = {
        "vocab_size": WORDS,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "use_cache": False,
    }
    yield entry("mamba", "MambaForCausalLM", **mamba, state_size=8, use_mambapy=False)
    yield entry(
        "mamba2",
        "Mamba2ForCausalLM",
        **mamba,
        state_size=8,
        head_dim=8,
        num_heads=8,
        n_groups=2,
        chunk_size=8,
    )
    yield entry("falcon_mamba", "FalconMambaForCausalLM", **mamba, state_size=8)
    yield entry("rwkv", "RwkvForCausalLM", **mamba, attention_hidden_size=32, context_length=32)
    yield entry(
        "recurrent_gemma",
        "RecurrentGemmaForCausalLM",
        **{**GROUPED, "num_hidden_layers": 3},
        lru_width=48,
        attention_window_size=8,
    )
    yield entry(
        "jamba",
        "JambaForCausalLM",
        **GROUPED,
        num_experts=2,
        num_experts_per_tok=1,
        mamba_d_state=8,
        attn_layer_period=2,
        attn_layer_offset=1,
        expert_layer_period=2,
        expert_layer_offset=1,
        use_mamba_kernels=False,
    )
    yield entry(
        "bamba",
        "BambaForCausalLM",
        **GROUPED,
        mamba_n_heads=8,
        mamba_d_head=12,
        mamba_n_groups=1,
        mamba_d_state=8,
        mamba_chunk_size=8,
        attn_layer_indices=[1],
    )
    yield entry(
        "xlstm",
        "xLSTMForCausalLM",
        vocab_size=WORDS,
        hidden_size=32,
        num_hidden_layers=2,
        num_heads=2,
        use_cache=False,
        chunk_size=8,
        mode="inference",
    )
    yield entry("lfm2", "Lfm2ForCausalLM", **GROUPED, layer_types=["conv", "full_attention"])
    yield entry(
        "falcon_h1",
        "FalconH1ForCausalLM",
        **HEADS_OF_12,
        mamba_n_heads=8,
        mamba_d_head=12,
        mamba_d_ssm=96,
        mamba_n_groups=1,
        mamba_d_state=8,
        mamba_chunk_size=8,
    )
    yield entry(
        "qwen3_next",
        "Qwen3NextForCausalLM",
        **HEADS_OF_12,
        num_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        layer_types=["linear_attention", "full_attention"],
    )
