"""The decoder that each `model_type` describes, read from its configuration."""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from dataclasses import field, replace
from typing import Final, TypeAlias

from clew.frontends.checkpoint.config import Config, unsupported
from clew.frontends.checkpoint.rotary import Rotary, rotary_of
from clew.frontends.limits import over
from clew.support.budgets import current
from clew.support.dataclass import dataclass

_ACTIVATIONS: Final = {
    "silu": ("nn.silu", ""), "swish": ("nn.silu", ""), "relu": ("nn.relu", ""),
    "gelu": ("nn.gelu", "none"), "gelu_new": ("nn.gelu", "tanh"),
    "gelu_pytorch_tanh": ("nn.gelu", "tanh"),
}  # fmt: skip
_MOST_TAPS: Final = 64  # the largest kernel of a convolution over time


@dataclass(frozen=True)
class Names:
    """The names of a decoder's modules. Names inside a layer are relative to `layer`; "" stands for
    an absent module.
    """

    embedding: str = "model.embed_tokens"
    positions: str = ""
    layer: str = "model.layers.{}"
    last_norm: str = "model.norm"
    head: str = "lm_head"
    before_attention: str = "input_layernorm"
    after_attention: str = ""
    before_mlp: str = "post_attention_layernorm"
    after_mlp: str = ""
    joined: str = ""
    query: str = "self_attn.q_proj"
    key: str = "self_attn.k_proj"
    value: str = "self_attn.v_proj"
    output: str = "self_attn.o_proj"
    query_norm: str = ""
    key_norm: str = ""
    gate: str = "mlp.gate_proj"
    gate_up: str = ""
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"
    attention: str = "self_attn"
    mlp: str = "mlp"


@dataclass(frozen=True)
class Experts:
    """A mixture of `count` experts with the inner size `inner`. A router chooses `chosen` of them
    for each token, whose weights add up to 1 with `is_normalized`. `shared` is the inner size of an
    expert that all tokens use, 0 for none. The other fields are names of modules relative to the
    layer, with `{}` for the number of the expert.
    """

    count: int
    chosen: int
    inner: int
    is_normalized: bool = True
    shared: int = 0
    router: str = "mlp.gate"
    gate: str = "mlp.experts.{}.gate_proj"
    up: str = "mlp.experts.{}.up_proj"
    down: str = "mlp.experts.{}.down_proj"
    shared_gate: str = "mlp.shared_expert_gate"
    shared_mlp: str = "mlp.shared_expert"


@dataclass(frozen=True)
class StateSpace:
    """A recurrence over time in place of attention and MLP. Each of `heads` has `head_size`
    elements, and a state of `size` numbers for each of these; the heads of each of `groups` share
    the projections of the state. A convolution over `taps` steps comes first. Step lengths are
    clipped to `shortest` to `longest`.
    """

    heads: int
    head_size: int
    groups: int
    size: int
    taps: int
    shortest: float = 0.0
    longest: float = math.inf
    module: str = "mixer"

    @property
    def inner(self) -> int:
        """The number of elements of all heads."""
        return self.heads * self.head_size

    @property
    def channels(self) -> int:
        """The number of channels of the convolution: those of the inputs and both projections."""
        return self.inner + 2 * self.groups * self.size


@dataclass(frozen=True)
class Block:
    """The properties that may differ between layers of a decoder: the rotary embedding, the sliding
    window in keys (0 for full attention), a mixture of experts in place of the MLP, and a
    recurrence in place of both attention and MLP.
    """

    rotary: Rotary | None = None
    window: int = 0
    experts: Experts | None = None
    space: StateSpace | None = None


@dataclass(frozen=True)
class Decoder:
    """A decoder: its sizes, the names of its weights, and the variants of its parts.

    With `by_columns`, weights of products are stored as `[in, out]`. With `centered`, norms
    subtract the mean. The scale of a norm is `scale_offset` plus the stored one. `scale` multiplies
    attention scores, and `embedding_scale` the embeddings. `softcap` and `logit_cap` bound
    attention scores and logits; 0 for no bound.
    """

    vocabulary: int
    hidden: int
    heads: int
    groups: int
    head_size: int
    inner: int
    blocks: tuple[Block, ...]
    epsilon: float
    activation: tuple[str, str]
    names: Names = field(default_factory=Names)
    tied: bool = False
    by_columns: bool = False
    centered: bool = False
    scale_offset: float = 0.0
    scale: float = 0.0
    softcap: float = 0.0
    logit_cap: float = 0.0
    embedding_scale: float = 1.0


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


def activation_of(config: Config, name: str) -> tuple[str, str]:
    """Returns the operator of an activation, and its attribute `approximate` ("" for none)."""
    found = config.text(name)
    if found not in _ACTIVATIONS:
        raise unsupported(f"models with the activation {found!r:.40}")
    return _ACTIVATIONS[found]


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


def _usual(config: Config, activation: str = "hidden_act", share: float = 1.0) -> Decoder:
    """Returns a decoder with the structure of Llama. `share` is as in `rotary_of`."""
    heads = config.count("num_attention_heads")
    hidden, layers = config.count("hidden_size"), config.layers("num_hidden_layers")
    head_size = config.count("head_dim", max(hidden // heads, 1))
    rotary = rotary_of(config, head_size, share=share)
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
    near = rotary_of(config, whole.head_size, "sliding_attention", "rope_local_base_freq")
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
    for field_ in ("use_parallel_residual", "qk_layernorm"):
        if config.flag(field_, False):
            raise unsupported(f"StableLM with {field_}")
    whole = _usual(config, share=0.25)
    return replace(whole, epsilon=config.real("layer_norm_eps", 1e-5), centered=True)


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
}
