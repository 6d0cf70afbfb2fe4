"""The configuration of a model from the metadata of its file, with the names of `config.json`.

Source: ggml, `docs/gguf.md`; llama.cpp, `llama-model.cpp` (defaults that files leave out).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeAlias

from clew.frontends.checkpoint.architectures import Decoder, Names
from clew.frontends.checkpoint.config import Config, unsupported
from clew.frontends.checkpoint.families import decoder_of
from clew.frontends.checkpoint.rotary import Rotary
from clew.frontends.gguf.container import Container, Items
from clew.support.dataclass import dataclass

_ARCHITECTURE: Final = "general.architecture"
_EMBEDDING: Final = "token_embd"
_FACTORS: Final = "rope_freqs.weight"
_LONG_FACTORS: Final = "rope_factors_long.weight"
_MOST_LAYERS: Final = 1 << 16  # whose settings are listed

# Fields of all architectures by the ends of their keys.
_FIELDS: Final = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "intermediate_size": "feed_forward_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "sliding_window": "attention.sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "rope_theta": "rope.freq_base",
}
_GPT2_FIELDS: Final = {
    "n_embd": "embedding_length",
    "n_layer": "block_count",
    "n_head": "attention.head_count",
    "n_inner": "feed_forward_length",
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
}
_CENTERED_FIELDS: Final = {**_FIELDS, "norm_epsilon": "attention.layer_norm_epsilon"}
_STABLELM_FIELDS: Final = {**_FIELDS, "layer_norm_eps": "attention.layer_norm_epsilon"}
_NAMES: Final = Names(
    embedding=_EMBEDDING,
    layer="blk.{}",
    last_norm="output_norm",
    head="output",
    before_attention="attn_norm",
    before_mlp="ffn_norm",
    query="attn_q",
    key="attn_k",
    value="attn_v",
    output="attn_output",
    gate="ffn_gate",
    up="ffn_up",
    down="ffn_down",
    attention="attn",
    mlp="ffn",
)
_JOINED: Final = replace(_NAMES, joined="attn_qkv")
_HEAD_NORMS: Final = replace(_NAMES, query_norm="attn_q_norm", key_norm="attn_k_norm")
_GEMMA2: Final = replace(_NAMES, after_attention="post_attention_norm", after_mlp="post_ffw_norm")


class Settings:
    """The metadata of a file: `architecture`, and values by the ends of its keys."""

    def __init__(self, container: Container) -> None:
        self.container: Final = container
        self._metadata = container.metadata
        whole = Config(self._metadata, repr(container.shown))
        self.architecture: Final = whole.text(_ARCHITECTURE)

    def key(self, end: str) -> str:
        """Returns the whole key of a setting."""
        return f"{self.architecture}.{end}"

    def get(self, end: str, default: Any = None) -> Any:
        """Returns a value, and a list for an array of numbers. One number for each layer is
        returned once if all are equal.

        Errors: U009 if they differ.
        """
        found = self._metadata.get(self.key(end), default)
        if not isinstance(found, Items):
            return found
        values = self.listed(end)
        if values is None or len(set(values)) != 1:
            raise unsupported(f"models in which layers differ in {self.key(end)}")
        return values[0]

    def listed(self, end: str) -> list[Any] | None:
        """Returns the numbers of an array; None for anything else."""
        found = self._metadata.get(self.key(end))
        if not isinstance(found, Items) or not found.are_numbers or found.count > _MOST_LAYERS:
            return None
        values: list[Any] = found.numbers().tolist()
        return values

    def config(self, kind: str, names: Mapping[str, str], more: Mapping[str, Any]) -> Config:
        """Returns the fields that `names` lists, and further ones."""
        fields = {name: self.get(end) for name, end in names.items()}
        if not fields.get("sliding_window"):
            fields.pop("sliding_window", None)  # files say 0 for none
        keys = {name: self.key(end) for name, end in names.items()}
        fields |= {"model_type": kind, "vocab_size": self._vocabulary()}
        fields["tie_word_embeddings"] = "output.weight" not in self.container.tensors
        return Config({**fields, **more}, repr(self.container.shown), keys)

    def _vocabulary(self) -> int | None:
        table = self.container.tensors.get(f"{_EMBEDDING}.weight")
        return None if table is None else table.shape[0]


_More: TypeAlias = Callable[[Settings], Mapping[str, Any]]


@dataclass(frozen=True)
class _Architecture:
    """How files of an architecture differ: the `model_type` with the same structure, the names of
    their weights, the keys of their fields, and fields that the files leave out. With `permuted`,
    rows of the weights of queries and keys are stored in pairs.
    """

    kind: str
    names: Names
    more: _More
    fields: Mapping[str, str] = _FIELDS
    permuted: bool = False


def _scaling(settings: Settings) -> dict[str, Any]:
    rule = settings.get("rope.scaling.type", "none")
    if rule == "none":
        return {}
    if rule in ("yarn", "longrope"):  # llama.cpp has rules of its own for their factors
        raise unsupported(f"files with rotary scaling {rule!r}")
    return {"rope_type": rule, "factor": settings.get("rope.scaling.factor", 1.0)}


def _usual(settings: Settings) -> dict[str, Any]:
    """Returns fields of decoders with rotary embedding and `silu`."""
    if settings.get("expert_count", 0):
        raise unsupported("models with a mixture of experts")
    fields: dict[str, Any] = {"hidden_act": "silu", "rope_scaling": _scaling(settings)}
    whole = settings.get("attention.key_length")
    if whole is None:
        width, heads = settings.get("embedding_length"), settings.get("attention.head_count")
        sizes = type(width) is type(heads) is int and heads > 0
        whole = width // heads if sizes else None
    rotated = settings.get("rope.dimension_count", whole)
    if type(rotated) is type(whole) is int and 0 < rotated < whole:
        fields["partial_rotary_factor"] = rotated / whole
    return fields


def _smollm3(settings: Settings) -> dict[str, Any]:
    layers = settings.get("block_count")
    count = layers if type(layers) is int and 0 < layers <= _MOST_LAYERS else 0
    return {**_usual(settings), "no_rope_layers": [int((n + 1) % 4 != 0) for n in range(count)]}


def _with_gelu(settings: Settings) -> dict[str, Any]:
    return {**_usual(settings), "hidden_act": "gelu_pytorch_tanh"}


def _score_scale(settings: Settings, largest: int) -> dict[str, Any]:
    """Returns the scale of scores, which files lack. llama.cpp recognizes the largest model by its
    number of layers: it divides by a head's share of the embedding, others by the size of a key.
    """
    width, heads = settings.get("embedding_length"), settings.get("attention.head_count")
    size = settings.get("attention.key_length")
    if settings.get("block_count") == largest or size is None:
        sizes = type(width) is type(heads) is int and heads > 0
        size = width / heads if sizes else None
    return {"query_pre_attn_scalar": size}


def _gemma2(settings: Settings) -> dict[str, Any]:
    window = settings.get("attention.sliding_window", 4096)
    return {**_with_gelu(settings), **_score_scale(settings, 46), "sliding_window": window}


def _gemma3(settings: Settings) -> dict[str, Any]:
    """Returns fields of Gemma 3: one layer of six attends to all keys, unless the file says which
    layers do.
    """
    layers = settings.get("block_count")
    count = layers if type(layers) is int and 0 < layers <= _MOST_LAYERS else 0
    near = settings.listed("attention.sliding_window_pattern")
    if near is None:
        every = settings.get("attention.sliding_window_pattern", 6)
        every = every if type(every) is int and every > 0 else 6
        near = [(n + 1) % every != 0 for n in range(count)]
    kinds = ["sliding_attention" if each else "full_attention" for each in near]
    fields = _with_gelu(settings)
    theta = settings.get("rope.freq_base", 1e6)
    far = {"rope_type": "default", "rope_theta": theta, **fields.pop("rope_scaling")}
    local = {"rope_type": "default", "rope_theta": settings.get("rope.freq_base_swa", 10000.0)}
    fields["rope_parameters"] = {"sliding_attention": local, "full_attention": far}
    return {**fields, **_score_scale(settings, 62), "layer_types": kinds}


def _stablelm(settings: Settings) -> dict[str, Any]:
    """Returns fields of StableLM, of which llama.cpp tells some by the tensors."""
    tensors = settings.container.tensors
    return {
        **_usual(settings),
        "use_parallel_residual": "blk.0.ffn_norm.weight" not in tensors,
        "qk_layernorm": "blk.0.attn_q_norm.weight" in tensors,
    }


def _gpt2(_: Settings) -> dict[str, Any]:
    return {"activation_function": "gelu_new"}


_ARCHITECTURES: Final = {
    "llama": _Architecture("llama", _NAMES, _usual, permuted=True),
    "qwen2": _Architecture("qwen2", _NAMES, _usual),
    "qwen3": _Architecture("qwen3", _HEAD_NORMS, _usual),
    "smollm3": _Architecture("smollm3", _NAMES, _smollm3, permuted=True),
    "phi3": _Architecture("phi3", replace(_JOINED, gate_up="ffn_up"), _usual),
    "gemma": _Architecture("gemma", _NAMES, _with_gelu),
    "gemma2": _Architecture("gemma2", _GEMMA2, _gemma2),
    "gemma3": _Architecture(
        "gemma3_text",
        replace(_GEMMA2, query_norm="attn_q_norm", key_norm="attn_k_norm"),
        _gemma3,
    ),
    "starcoder2": _Architecture(
        "starcoder2", replace(_NAMES, gate=""), _with_gelu, _CENTERED_FIELDS
    ),
    "stablelm": _Architecture("stablelm", _NAMES, _stablelm, _STABLELM_FIELDS),
    "gpt2": _Architecture(
        "gpt2", replace(_JOINED, positions="position_embd", gate=""), _gpt2, _GPT2_FIELDS
    ),
}


def read_settings(container: Container) -> tuple[Decoder, bool]:
    """Returns the decoder that a file describes, and whether rows of its queries and keys are
    stored in pairs.

    Errors: U009 for architectures without a graph, M071 for invalid metadata.
    """
    settings = Settings(container)
    form = _ARCHITECTURES.get(settings.architecture)
    if form is None:
        known = ", ".join(sorted(_ARCHITECTURES))
        raise unsupported(f"the architecture {settings.architecture!r:.40}", f"known are {known}")
    if _LONG_FACTORS in container.tensors:
        raise unsupported("models with rotary scaling 'longrope'")
    decoder = decoder_of(settings.config(form.kind, form.fields, form.more(settings)))
    # Files hold norms as they are applied, and all products by rows.
    decoder = replace(decoder, names=form.names, scale_offset=0.0, by_columns=False)
    scale = settings.get("attention.scale")
    if isinstance(scale, float):
        decoder = replace(decoder, scale=scale)
    return _rescaled(decoder, container), form.permuted


def _rescaled(decoder: Decoder, container: Container) -> Decoder:
    """Returns the decoder with its rotary angles divided by the factors in the file."""
    found = container.tensors.get(_FACTORS)
    if found is None:
        return decoder
    rotary = {len(b.rotary.angles) for b in decoder.blocks if b.rotary}
    if found.kind.dtype != "f32" or rotary - set(found.shape) or len(found.shape) != 1:
        raise unsupported(f"models with {_FACTORS} of another form")
    factors = found.part.read().view("<f4").tolist()
    if not all(0 < factor < float("inf") for factor in factors):
        Config({_FACTORS: factors}, repr(container.shown)).invalid(_FACTORS)

    def divided(rotary: Rotary | None) -> Rotary | None:
        if rotary is None:
            return None
        angles = tuple(a / f for a, f in zip(rotary.angles, factors, strict=True))
        return replace(rotary, angles=angles)

    blocks = tuple(replace(b, rotary=divided(b.rotary)) for b in decoder.blocks)
    return replace(decoder, blocks=blocks)
