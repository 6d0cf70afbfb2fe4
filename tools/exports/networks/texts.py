"""Entries of networks that take text, and configurations that many of them share."""

from __future__ import annotations

from typing import Any

from exports.entries import Entry, ones
from exports.networks.libraries import named
from zoo.entries import Input, padding_mask, tokens

WORDS = 200
DIMS = {"batch": 1, "sequence": 16}
OTHERS = {"batch": 2, "sequence": 24}
SHAPE = ("batch", "sequence")
SMALL: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "use_cache": False,
}
GROUPED: dict[str, Any] = {
    **SMALL,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "experts_implementation": "eager",  # a loop over experts; exporters know no grouped products
}
HEADS_OF_12: dict[str, Any] = {**GROUPED, "head_dim": 12}


def text(name: str, family: str, model: str, mask: bool = True, **config: Any) -> Entry:
    """Returns an entry of words, and their mask where `mask`.

    `config` is the model's, but for `keep` (the outputs that count, all if left out) and `sequence`
    (the length that the model takes at least, or a multiple of).
    """
    inputs = [Input("input_ids", SHAPE, tokens(WORDS))]
    if mask:
        inputs.append(Input("attention_mask", SHAPE, padding_mask if family == "encoder" else ones))
    keep = config.pop("keep", ())
    dims, others = dict(DIMS), dict(OTHERS)
    if "sequence" in config:  # what a model needs at least, or a multiple of
        length = config.pop("sequence")
        dims["sequence"], others["sequence"] = length, 2 * length
    return Entry(
        name, family, named(model, keep, **config), tuple(inputs), dims, others, by_name=True
    )
