"""Imports a GGUF file as a module."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from clew.frontends.checkpoint.architectures import Decoder
from clew.frontends.checkpoint.config import unsupported
from clew.frontends.checkpoint.decoder import DecoderGraph
from clew.frontends.checkpoint.graph import Origin
from clew.frontends.checkpoint.sizes import Sizes
from clew.frontends.gguf.container import Container, read_container
from clew.frontends.gguf.settings import read_settings
from clew.frontends.gguf.weights import Stored
from clew.ir.module import Module
from clew.support.budgets import Budgets, in_force


def load(
    source: str | os.PathLike[str],
    *,
    inputs: Mapping[str, Sequence[int | str]] | None = None,
    budgets: Budgets | None = None,
) -> Module:
    """Returns the module of a file. `inputs` overrides shapes of inputs, by name.

    Errors: M070 for a damaged file, M071 for invalid metadata, M072 for missing weights, U009 for
    an architecture without a graph and types of weights that clew does not read, I004 for shapes of
    other inputs.
    """
    with in_force(budgets):
        container = read_container(source)
        parts = container.metadata.get("split.count", 1)
        if parts != 1:
            raise unsupported(
                f"a model in {parts!r:.20} files", "join them: llama-gguf-split --merge"
            )
        decoder, permuted = read_settings(container)
        sizes = Sizes.given(decoder, inputs or {})
        weights = _weights(container, decoder, permuted)
        origin = Origin(
            "gguf",
            repr(container.shown),
            "its metadata and its tensors belong to different models, or one is missing",
        )
        return DecoderGraph(decoder, weights, sizes, origin).module()


def _weights(container: Container, decoder: Decoder, permuted: bool) -> dict[str, Stored]:
    """Returns the tensors as weights, with the rows of queries and keys in the order of the other
    architectures.
    """
    heads: dict[str, int] = {}
    if permuted:
        for n in range(len(decoder.blocks)):
            layer = decoder.names.layer.format(n)
            for part in ("weight", "bias"):
                heads[f"{layer}.{decoder.names.query}.{part}"] = decoder.heads
                heads[f"{layer}.{decoder.names.key}.{part}"] = decoder.groups
    return {name: Stored(t, heads.get(name, 0)) for name, t in container.tensors.items()}
