"""The decoder that each `model_type` describes, read from its configuration."""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from dataclasses import replace
from typing import Final, TypeAlias

from clew.frontends.checkpoint.activations import activation_of
from clew.frontends.checkpoint.architectures import Block, Decoder, Experts, Names, StateSpace
from clew.frontends.checkpoint.config import Config, unsupported
from clew.frontends.checkpoint.rotary import rotary_of
from clew.frontends.limits import over
from clew.support.budgets import current

_SPARSELY_CHOSEN: Final = 2  # the number of experts for which PhiMoE defines their weights
_NORMS_IN_PARALLEL: Final = 2  # attention and MLP have a norm each
_MOST_TAPS: Final = 64  # the largest kernel of a convolution over time
_Read: TypeAlias = Callable[[Config], Decoder]


def decoder_of(config: Config) -> Decoder:
    """Returns the decoder that a configuration describes.

    Errors: U009 for an unsupported `model_type`; M071.
    """
    kind = config.text("model_type")
    read = _ARCHITECTURES.get(kind)
    if read is None:
        known = ", ".join(sorted(_ARCHITECTURES))
        raise unsupported(f"the architecture {kind!r:.40}", f"known are {known}")
    decoder = read(config)
    if decoder.heads % decoder.groups:
        config.invalid("num_key_value_heads")
    return decoder


# --- parts ----------------------------------------------------------------------------------------


def _windows(config: Config, layers: int) -> list[int]:
    """Returns the sliding window of each layer, 0 for full attention."""
    if "sliding_window" not in config or not config.flag("use_sliding_window", True):
        return [0] * layers
    window = config.count("sliding_window")
    if "layer_types" in config:
        kinds = config.items("layer_types", layers)
        if not all(kind in ("sliding_attention", "full_attention") for kind in kinds):
            raise unsupported(f"models with layers of kind {sorted(set(map(str, kinds)))!r:.80}")
        return [window if kind == "sliding_attention" else 0 for kind in kinds]
    return [window] * layers


def _usual(
    config: Config,
    activation: str = "hidden_act",
    share: float = 1.0,
    base: str = "rope_theta",
) -> Decoder:
    """Returns a decoder with the structure of Llama. `share` and `base` are as in `rotary_of`."""
    heads = config.count("num_attention_heads")
    hidden, layers = config.count("hidden_size"), config.layers("num_hidden_layers")
    head_size = config.count("head_dim", max(hidden // heads, 1))
    rotary = rotary_of(config, head_size, base=base, share=share)
    return Decoder(
        vocabulary=config.count("vocab_size"),
        hidden=hidden,
        heads=heads,
        groups=config.count("num_key_value_heads", heads),
        head_size=head_size,
        inner=config.count("intermediate_size"),
        blocks=tuple(Block(rotary, window) for window in _windows(config, layers)),
        epsilon=config.real("rms_norm_eps", 1e-6),
        activation=activation_of(config, activation),
        tied=config.flag("tie_word_embeddings", False),
    )


_HEAD_NORMS: Final = {"query_norm": "self_attn.q_norm", "key_norm": "self_attn.k_norm"}
_LATE_NORMS: Final = {
    "before_attention": "", "after_attention": "post_attention_layernorm",
    "before_mlp": "", "after_mlp": "post_feedforward_layernorm",
}  # fmt: skip
_GEMMA: Final = {
    "after_attention": "post_attention_layernorm",
    "before_mlp": "pre_feedforward_layernorm",
    "after_mlp": "post_feedforward_layernorm",
}


def _qwen2(config: Config) -> Decoder:
    whole = _usual(config)
    if "layer_types" in config:
        return whole
    if not config.flag("use_sliding_window", False):
        return _without_windows(whole)
    first = config.count("max_window_layers", len(whole.blocks))
    blocks = [replace(b, window=b.window if n >= first else 0) for n, b in enumerate(whole.blocks)]
    return replace(whole, blocks=tuple(blocks))


def _without_windows(decoder: Decoder) -> Decoder:
    return replace(decoder, blocks=tuple(replace(b, window=0) for b in decoder.blocks))


def _qwen3(config: Config) -> Decoder:
    return replace(_qwen2(config), names=Names(**_HEAD_NORMS))


def _mixtral(config: Config) -> Decoder:
    whole = _usual(config)
    below = "block_sparse_moe.experts.{{}}.{}"
    experts = Experts(
        *_chosen(config, "num_local_experts"),
        whole.inner,
        router="block_sparse_moe.gate",
        gate=below.format("w1"),
        up=below.format("w3"),
        down=below.format("w2"),
    )
    names = Names(mlp="block_sparse_moe")
    return replace(_with_experts(whole, experts, range(len(whole.blocks))), names=names)


def _chosen(config: Config, count: str) -> tuple[int, int]:
    """Returns the number of experts, which the field `count` holds, and how many a token uses."""
    number, chosen = config.count(count), config.count("num_experts_per_tok")
    if chosen > number:
        config.invalid("num_experts_per_tok")
    if number > (most := current().nodes):
        raise over("M009", "experts of a layer", number, "nodes", most)
    return number, chosen


def _with_experts(decoder: Decoder, experts: Experts, layers: Container[int]) -> Decoder:
    blocks = enumerate(decoder.blocks)
    return replace(
        decoder,
        blocks=tuple(replace(b, experts=experts if n in layers else None) for n, b in blocks),
    )


def _sparse_qwen(config: Config, whole: Decoder, shared: int) -> Decoder:
    """Returns a Qwen decoder with experts in the layers that the configuration selects."""
    count = "num_experts" if "num_experts" in config else "num_local_experts"
    experts = Experts(
        *_chosen(config, count),
        config.count("moe_intermediate_size"),
        config.flag("norm_topk_prob", False),
        shared,
    )
    step, dense = config.count("decoder_sparse_step", 1), config.numbers("mlp_only_layers")
    layers = set(range(step - 1, len(whole.blocks), step)) - set(dense)
    return _with_experts(whole, experts, layers)


def _qwen2_moe(config: Config) -> Decoder:
    if config.flag("use_sliding_window", False) and "layer_types" not in config:
        raise unsupported("Qwen 2 MoE with sliding windows and no layer_types")
    shared = config.count("shared_expert_intermediate_size")
    return _sparse_qwen(config, _usual(config), shared)


def _qwen3_moe(config: Config) -> Decoder:
    return _sparse_qwen(config, replace(_usual(config), names=Names(**_HEAD_NORMS)), 0)


def _smollm3(config: Config) -> Decoder:
    whole = _without_windows(_usual(config))
    rotated = config.items("no_rope_layers", len(whole.blocks))
    blocks = [b if rotated[n] else replace(b, rotary=None) for n, b in enumerate(whole.blocks)]
    return replace(whole, blocks=tuple(blocks))


def _phi3(config: Config) -> Decoder:
    names = Names(joined="self_attn.qkv_proj", gate_up="mlp.gate_up_proj")
    return replace(_usual(config), names=names)


def _gemma(config: Config) -> Decoder:
    activation = "hidden_activation" if "hidden_activation" in config else "hidden_act"
    whole = _usual(config, activation)
    return replace(
        whole,
        tied=config.flag("tie_word_embeddings", True),
        scale_offset=1.0,
        embedding_scale=math.sqrt(whole.hidden),
    )


def _gemma2(config: Config) -> Decoder:
    whole = replace(_gemma(config), names=Names(**_GEMMA))
    layers = len(whole.blocks)
    if "layer_types" not in config:
        window = config.count("sliding_window", 4096)
        blocks = [replace(whole.blocks[n], window=0 if n % 2 else window) for n in range(layers)]
        whole = replace(whole, blocks=tuple(blocks))
    scalar = config.real("query_pre_attn_scalar", 256)
    if scalar <= 0:
        config.invalid("query_pre_attn_scalar")
    return replace(
        whole,
        scale=scalar**-0.5,
        softcap=config.real("attn_logit_softcapping", 0.0),
        logit_cap=config.real("final_logit_softcapping", 0.0),
    )


def _gemma3(config: Config) -> Decoder:
    whole = replace(_gemma2(config), names=Names(**_GEMMA, **_HEAD_NORMS))
    return _rotated_by_kind(config, whole, "rope_local_base_freq")


def _rotated_by_kind(config: Config, whole: Decoder, base: str = "rope_theta") -> Decoder:
    """Returns the decoder with another rotary embedding in layers with sliding windows, whose
    angles have the base in the field `base`.
    """
    near = rotary_of(config, whole.head_size, "sliding_attention", base)
    far = rotary_of(config, whole.head_size, "full_attention")
    blocks = [replace(b, rotary=near if b.window else far) for b in whole.blocks]
    return replace(whole, blocks=tuple(blocks))


def _mamba2(config: Config) -> Decoder:
    hidden, heads = config.count("hidden_size"), config.count("num_heads")
    head_size, groups = config.count("head_dim"), config.count("n_groups", 8)
    if heads * head_size != hidden * config.count("expand", 2):
        config.invalid("num_heads")
    if heads % groups:
        config.invalid("n_groups")
    shortest, longest = config.bounds("time_step_limit", (0.0, math.inf))
    taps = config.count("conv_kernel", 4)
    if not 2 <= taps <= _MOST_TAPS:
        config.invalid("conv_kernel")
    space = StateSpace(
        heads, head_size, groups, config.count("state_size"), taps, shortest, longest
    )
    return Decoder(
        vocabulary=config.count("vocab_size"),
        hidden=hidden,
        heads=1,
        groups=1,
        head_size=1,
        inner=1,
        blocks=(Block(space=space),) * config.layers("num_hidden_layers"),
        epsilon=config.real("layer_norm_epsilon", 1e-5),
        activation=activation_of(config, "hidden_act"),
        names=Names(
            embedding="backbone.embeddings",
            layer="backbone.layers.{}",
            last_norm="backbone.norm_f",
            before_attention="norm",
        ),
        tied=config.flag("tie_word_embeddings", False),
    )


def _starcoder2(config: Config) -> Decoder:
    return replace(
        _usual(config),
        epsilon=config.real("norm_epsilon", 1e-5),
        names=Names(gate="", up="mlp.c_fc", down="mlp.c_proj"),
        tied=config.flag("tie_word_embeddings", True),
        centered=True,
    )


def _stablelm(config: Config) -> Decoder:
    if config.flag("qk_layernorm", False):
        raise unsupported("StableLM with qk_layernorm")
    whole = replace(_usual(config, share=0.25), centered=True)
    whole = replace(whole, epsilon=config.real("layer_norm_eps", 1e-5))
    return _in_parallel(whole) if config.flag("use_parallel_residual", False) else whole


def _in_parallel(decoder: Decoder) -> Decoder:
    """Returns the decoder with attention and MLP side by side after one norm."""
    return replace(decoder, parallel=True, names=replace(decoder.names, before_mlp=""))


def _interleaved(config: Config, share: float = 1.0) -> Decoder:
    """Returns the structure of Llama with interleaved rotary embedding."""
    whole = _usual(config, share=share)
    blocks = [
        replace(b, rotary=replace(b.rotary, is_interleaved=True)) for b in whole.blocks if b.rotary
    ]
    return replace(whole, blocks=tuple(blocks))


def _glm(config: Config) -> Decoder:
    return replace(_interleaved(config, 0.5), names=Names(gate_up="mlp.gate_up_proj"))


def _cohere(config: Config) -> Decoder:
    if config.flag("use_qk_norm", False):
        raise unsupported("Cohere with use_qk_norm")
    return replace(
        _in_parallel(_interleaved(config)),
        epsilon=config.real("layer_norm_eps", 1e-5),
        centered=True,
        logit_scale=config.real("logit_scale", 0.0625),
        tied=config.flag("tie_word_embeddings", True),
    )


def _cohere2(config: Config) -> Decoder:
    return _rotated_in_windows(_by_pattern(config, _cohere(config)))


def _exaone4(config: Config) -> Decoder:
    whole = replace(_usual(config), names=Names(**_LATE_NORMS, **_HEAD_NORMS))
    if "sliding_window" not in config:
        return whole
    return _rotated_in_windows(_by_pattern(config, whole))


def _by_pattern(config: Config, whole: Decoder) -> Decoder:
    """Returns the decoder with full attention in every layer whose number is a multiple of
    `sliding_window_pattern`, unless the configuration lists the layers.
    """
    if "layer_types" in config:
        return whole
    step = config.count("sliding_window_pattern", 4)
    blocks = [replace(b, window=b.window if n % step else 0) for n, b in enumerate(whole.blocks, 1)]
    return replace(whole, blocks=tuple(blocks))


def _rotated_in_windows(whole: Decoder) -> Decoder:
    """Returns the decoder with rotary embedding in layers with sliding windows only."""
    blocks = [b if b.window else replace(b, rotary=None) for b in whole.blocks]
    return replace(whole, blocks=tuple(blocks))


def _olmo2(config: Config) -> Decoder:
    return replace(_usual(config), names=Names(**_LATE_NORMS, **_HEAD_NORMS), wide_norms=True)


def _olmo3(config: Config) -> Decoder:
    return _rotated_by_kind(config, _by_pattern(config, _olmo2(config)))


def _granite(config: Config) -> Decoder:
    divisor = config.real("logits_scaling", 1.0)
    if divisor <= 0:
        config.invalid("logits_scaling")
    return replace(
        _usual(config),
        scale=config.real("attention_multiplier", 1.0),
        embedding_scale=config.real("embedding_multiplier", 1.0),
        residual_scale=config.real("residual_multiplier", 1.0),
        logit_scale=1 / divisor,
    )


def _nemotron(config: Config) -> Decoder:
    return replace(
        _usual(config, share=0.5),
        epsilon=config.real("norm_eps", 1e-5),
        names=Names(gate=""),
        centered=True,
        scale_offset=1.0,
    )


def _arcee(config: Config) -> Decoder:
    return replace(_usual(config), epsilon=config.real("rms_norm_eps", 1e-5), names=Names(gate=""))


def _phi(config: Config) -> Decoder:
    if config.flag("qk_layernorm", False):
        raise unsupported("Phi with qk_layernorm")
    names = Names(
        last_norm="model.final_layernorm",
        output="self_attn.dense",
        gate="",
        up="mlp.fc1",
        down="mlp.fc2",
    )
    whole = replace(_usual(config, share=0.5), names=names, centered=True)
    return _in_parallel(replace(whole, epsilon=config.real("layer_norm_eps", 1e-5)))


def _phimoe(config: Config) -> Decoder:
    whole = _mixtral(config)
    jitter = config.real("router_jitter_noise", 0.01)
    (experts,) = {block.experts for block in whole.blocks}
    if experts is None or experts.chosen != _SPARSELY_CHOSEN or jitter <= 0:
        raise unsupported("PhiMoE with another router")
    experts = replace(experts, tolerance=2 * jitter)
    whole = _with_experts(whole, experts, range(len(whole.blocks)))
    return replace(whole, centered=True)


def _gpt_neox(config: Config) -> Decoder:
    names = Names(
        embedding="gpt_neox.embed_in",
        layer="gpt_neox.layers.{}",
        last_norm="gpt_neox.final_layer_norm",
        head="embed_out",
        joined="attention.query_key_value",
        output="attention.dense",
        gate="",
        up="mlp.dense_h_to_4h",
        down="mlp.dense_4h_to_h",
        attention="attention",
    )
    whole = _usual(config, share=config.real("rotary_pct", 0.25), base="rotary_emb_base")
    return replace(
        whole,
        groups=whole.heads,
        epsilon=config.real("layer_norm_eps", 1e-5),
        names=names,
        centered=True,
        parallel=config.flag("use_parallel_residual", True),
        by_group=True,
    )


def _falcon(config: Config) -> Decoder:
    if config.flag("alibi", False):
        raise unsupported("Falcon with alibi")
    heads, hidden = config.count("num_attention_heads"), config.count("hidden_size")
    is_new = config.flag("new_decoder_architecture", False)
    norms = config.count("num_ln_in_parallel_attn", 2 if is_new else 1)
    is_parallel = is_new or config.flag("parallel_attn", True)
    if is_new:
        groups = config.count("num_kv_heads", heads)
    else:
        groups = 1 if config.flag("multi_query", True) else heads
    two = is_new and norms == _NORMS_IN_PARALLEL
    late = "" if is_parallel else "post_attention_layernorm"
    names = Names(
        embedding="transformer.word_embeddings",
        layer="transformer.h.{}",
        last_norm="transformer.ln_f",
        before_attention="ln_attn" if two else "input_layernorm",
        before_mlp="ln_mlp" if two else late,
        joined="self_attention.query_key_value",
        output="self_attention.dense",
        gate="",
        up="mlp.dense_h_to_4h",
        down="mlp.dense_4h_to_h",
        attention="self_attention",
    )
    head_size = max(hidden // heads, 1)
    rotary = rotary_of(config, head_size)
    return Decoder(
        vocabulary=config.count("vocab_size"),
        hidden=hidden,
        heads=heads,
        groups=groups,
        head_size=head_size,
        inner=config.count("ffn_hidden_size", 4 * hidden),
        blocks=(Block(rotary),) * config.layers("num_hidden_layers"),
        epsilon=config.real("layer_norm_epsilon", 1e-5),
        activation=activation_of(config, "activation", "gelu"),
        names=names,
        tied=config.flag("tie_word_embeddings", True),
        centered=True,
        parallel=is_parallel,
        by_group=True,
    )


def _gpt2(config: Config) -> Decoder:
    heads, hidden = config.count("n_head"), config.count("n_embd")
    if config.flag("scale_attn_by_inverse_layer_idx", False):
        raise unsupported("GPT-2 with scale_attn_by_inverse_layer_idx")
    return Decoder(
        vocabulary=config.count("vocab_size"),
        hidden=hidden,
        heads=heads,
        groups=heads,
        head_size=max(hidden // heads, 1),
        inner=config.count("n_inner", 4 * hidden),
        blocks=(Block(),) * config.layers("n_layer"),
        epsilon=config.real("layer_norm_epsilon", 1e-5),
        activation=activation_of(config, "activation_function"),
        names=Names(
            embedding="transformer.wte",
            positions="transformer.wpe",
            layer="transformer.h.{}",
            last_norm="transformer.ln_f",
            before_attention="ln_1",
            before_mlp="ln_2",
            joined="attn.c_attn",
            output="attn.c_proj",
            gate="",
            up="mlp.c_fc",
            down="mlp.c_proj",
        ),
        tied=config.flag("tie_word_embeddings", True),
        by_columns=True,
        centered=True,
    )


def _gpt_bigcode(config: Config) -> Decoder:
    if not config.flag("scale_attn_weights", True):
        raise unsupported("GPT BigCode without scale_attn_weights")
    whole = replace(_gpt2(config), by_columns=False)
    if config.flag("multi_query", True):
        return replace(whole, groups=1)
    return replace(whole, by_group=True)


_ARCHITECTURES: Final[dict[str, _Read]] = {
    "llama": _usual,
    "mistral": _usual,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "mamba2": _mamba2,
    "mixtral": _mixtral,
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _qwen3_moe,
    "smollm3": _smollm3,
    "phi3": _phi3,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "gpt2": _gpt2,
    "starcoder2": _starcoder2,
    "stablelm": _stablelm,
    "olmo2": _olmo2,
    "olmo3": _olmo3,
    "granite": _granite,
    "cohere": _cohere,
    "cohere2": _cohere2,
    "exaone4": _exaone4,
    "glm": _glm,
    "helium": _interleaved,
    "ernie4_5": _interleaved,
    "seed_oss": _usual,
    "ministral": _usual,
    "arcee": _arcee,
    "nemotron": _nemotron,
    "phi": _phi,
    "phimoe": _phimoe,
    "gpt_neox": _gpt_neox,
    "falcon": _falcon,
    "gpt_bigcode": _gpt_bigcode,
}
