"""Describes decoders: their sizes, the names of their weights, and the variants of their parts."""

from __future__ import annotations

import math
from dataclasses import field

from clew.frontends.checkpoint.activations import Activation
from clew.frontends.checkpoint.rotary import Rotary
from clew.support.dataclass import dataclass


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
    for each token, whose weights add up to 1 with `is_normalized`; `tolerance` is that of
    `sparsely_chosen`, 0 for a softmax over all experts. `shared` is the inner size of an expert
    that all tokens use, 0 for none. The other fields are names of modules relative to the
    layer, with `{}` for the number of the expert.
    """

    count: int
    chosen: int
    inner: int
    is_normalized: bool = True
    shared: int = 0
    tolerance: float = 0.0
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
    attention scores, `embedding_scale` the embeddings, `residual_scale` the results of attention
    and MLP, and `logit_scale` the logits. `softcap` and `logit_cap` bound attention scores and
    logits; 0 for no bound.

    With `parallel`, the MLP reads the input of the layer, not the sum of input and attention; it
    shares the norm of attention if it has none. With `by_group`, joined weights have the queries,
    the key and the value of each group together. With `wide_norms`, norms of queries and keys
    extend over all heads.
    """

    vocabulary: int
    hidden: int
    heads: int
    groups: int
    head_size: int
    inner: int
    blocks: tuple[Block, ...]
    epsilon: float
    activation: Activation
    names: Names = field(default_factory=Names)
    tied: bool = False
    by_columns: bool = False
    centered: bool = False
    scale_offset: float = 0.0
    scale: float = 0.0
    softcap: float = 0.0
    logit_cap: float = 0.0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    parallel: bool = False
    by_group: bool = False
    wide_norms: bool = False
