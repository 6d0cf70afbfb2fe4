"""The encoder that each `model_type` describes, and how the folder makes vectors of texts."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Final

from clew.frontends.checkpoint.activations import Activation, activation_of
from clew.frontends.checkpoint.config import Config, unsupported
from clew.support.dataclass import dataclass
from clew.support.errors import ModelError
from clew.support.files import read_json_file, reason_of

MODULES: Final = "modules.json"
_POOLINGS: Final = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}


@dataclass(frozen=True)
class EncoderNames:
    """The names of an encoder's modules. Names inside a layer are relative to `layer`."""

    words: str = "embeddings.word_embeddings"
    positions: str = "embeddings.position_embeddings"
    types: str = "embeddings.token_type_embeddings"
    norm: str = "embeddings.LayerNorm"
    layer: str = "encoder.layer.{}"
    attention: str = "attention.self"
    query: str = "attention.self.query"
    key: str = "attention.self.key"
    value: str = "attention.self.value"
    output: str = "attention.output.dense"
    after_attention: str = "attention.output.LayerNorm"
    up: str = "intermediate.dense"
    down: str = "output.dense"
    after_mlp: str = "output.LayerNorm"

    def below(self, prefix: str) -> EncoderNames:
        """Returns the names of an encoder that is a part of another model."""
        whole = ("words", "positions", "types", "norm", "layer")
        return replace(self, **{name: f"{prefix}{getattr(self, name)}" for name in whole})


@dataclass(frozen=True)
class Pooling:
    """How one vector is made of those of the tokens: "cls", the first one, or "mean"."""

    kind: str
    is_normalized: bool = False


@dataclass(frozen=True)
class Encoder:
    """An encoder whose layers normalize their results. `types` is the number of kinds of tokens, 0
    if the model does not take them. Positions begin with `first_position`.
    """

    vocabulary: int
    hidden: int
    heads: int
    inner: int
    layers: int
    positions: int
    epsilon: float
    activation: Activation
    types: int = 0
    first_position: int = 0
    names: EncoderNames = field(default_factory=EncoderNames)
    pooling: Pooling | None = None


_PREFIXES: Final = {"bert": "bert.", "roberta": "roberta.", "xlm-roberta": "roberta.",
                    "camembert": "roberta."}  # fmt: skip


def is_encoder(config: Config) -> bool:
    """Whether a configuration describes an encoder."""
    return config.text("model_type") in _PREFIXES


def encoder_of(config: Config, folder: Path, tensors: Iterable[str]) -> Encoder:
    """Returns the encoder of a folder. `tensors` are the names of its weights.

    Errors: M071; U009 for a variant without a graph.
    """
    kind = config.text("model_type")
    if config.text("position_embedding_type", "absolute") != "absolute":
        raise unsupported("encoders with relative positions")
    if config.flag("is_decoder", False):
        raise unsupported("BERT as a decoder")
    hidden, heads = config.count("hidden_size"), config.count("num_attention_heads")
    if hidden % heads:
        config.invalid("num_attention_heads")
    # RoBERTa's positions follow the number of the token that fills up texts.
    first = 0 if kind == "bert" else config.count("pad_token_id", 1) + 1
    names, prefix = EncoderNames(), _PREFIXES[kind]
    if any(name.startswith(prefix) for name in tensors):
        names = names.below(prefix)
    kinds = config.count("type_vocab_size", 2)
    return Encoder(
        config.count("vocab_size"),
        hidden,
        heads,
        config.count("intermediate_size"),
        config.layers("num_hidden_layers"),
        config.count("max_position_embeddings"),
        config.real("layer_norm_eps", 1e-12),
        activation_of(config, "hidden_act"),
        kinds,
        first,
        names,
        pooling_of(folder),
    )


def pooling_of(folder: Path) -> Pooling | None:
    """Returns how a folder of sentence-transformers makes vectors of texts; None for others.

    Errors: M071 for a damaged file, U009 for other ways.
    """
    if not os.path.isfile(folder / MODULES):
        return None
    kinds = [str(m.get("type", "")).rpartition(".")[2] for m in _list(folder / MODULES)]
    if kinds[:1] == ["Transformer"] and kinds[1:] in (["Pooling"], ["Pooling", "Normalize"]):
        place = _list(folder / MODULES)[1].get("path")
        if place == "1_Pooling":
            modes = _object(folder / place / "config.json")
            chosen = [n for n, v in modes.items() if n.startswith("pooling_mode_") and v is True]
            if len(chosen) == 1 and chosen[0] in _POOLINGS:
                return Pooling(_POOLINGS[chosen[0]], "Normalize" in kinds)
            raise unsupported(f"the pooling {', '.join(chosen)!r:.80}")
    raise unsupported(f"the modules {', '.join(kinds)!r:.80}")


def _list(path: Path) -> list[dict[str, Any]]:
    found = _read(path)
    if not isinstance(found, list) or not all(isinstance(m, dict) for m in found):
        raise _wrong(path, "is not a list of objects")
    return found


def _object(path: Path) -> dict[str, Any]:
    found = _read(path)
    if not isinstance(found, dict):
        raise _wrong(path, "is not an object")
    return found


def _read(path: Path) -> Any:
    try:
        return read_json_file(path)
    except (OSError, ValueError) as error:
        raise _wrong(path, f"cannot be read: {reason_of(error)}") from None


def _wrong(path: Path, what: str) -> ModelError:
    return ModelError("M071", f"{path.name} {what}", hint="save the model again, or download it")
