"""Imports a folder saved by transformers as a module."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from clew.frontends.checkpoint.config import Config
from clew.frontends.checkpoint.decoder import DecoderGraph
from clew.frontends.checkpoint.encoder import IDS, MASK, TYPES, EncoderGraph
from clew.frontends.checkpoint.encoders import encoder_of, is_encoder
from clew.frontends.checkpoint.families import decoder_of
from clew.frontends.checkpoint.graph import Origin
from clew.frontends.checkpoint.sizes import Sizes, given_sizes
from clew.frontends.checkpoint.tensors import Tensors
from clew.ir.module import Module
from clew.support.budgets import Budgets, in_force

_ORIGIN: Final = Origin(
    "transformers",
    "the model's folder",
    "config.json and the safetensors files belong to different models, or one is missing",
)


def load(
    source: str | os.PathLike[str],
    *,
    inputs: Mapping[str, Sequence[int | str]] | None = None,
    budgets: Budgets | None = None,
) -> Module:
    """Returns the module of a folder. `inputs` overrides the shapes of inputs, by name.

    Errors: M070 for a damaged file, M071 for a damaged configuration, M072 for weights that are
    missing or have another shape, U009 for an architecture that clew cannot build, I004 for unknown
    inputs and shapes that an input cannot have.
    """
    folder = Path(source)
    with in_force(budgets):
        config = Config.read(folder)
        if is_encoder(config):
            return _encoder(config, folder, inputs or {})
        decoder = decoder_of(config)
        sizes = Sizes.given(decoder, inputs or {})
        return DecoderGraph(decoder, Tensors(folder), sizes, _ORIGIN).module()


def _encoder(config: Config, folder: Path, inputs: Mapping[str, Sequence[int | str]]) -> Module:
    tensors = Tensors(folder)
    encoder = encoder_of(config, folder, tensors)
    names = (IDS, MASK, TYPES) if encoder.types else (IDS, MASK)
    sizes = given_sizes(dict.fromkeys(names, ("batch", "seq")), inputs)
    return EncoderGraph(encoder, tensors, (sizes["batch"], sizes["seq"]), _ORIGIN).module()
