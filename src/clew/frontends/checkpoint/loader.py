"""Reads a folder into a module."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from clew.frontends.checkpoint.architectures import decoder_of
from clew.frontends.checkpoint.config import Config
from clew.frontends.checkpoint.decoder import DecoderGraph
from clew.frontends.checkpoint.tensors import Tensors
from clew.ir.module import Module
from clew.support.budgets import Budgets, in_force


def load(source: str | os.PathLike[str], *, budgets: Budgets | None = None, **_: Any) -> Module:
    """Returns the module of a folder.

    Errors: M070 for a damaged file, M071 for a damaged configuration, M072 for missing weights,
    U009 for an architecture without a graph.
    """
    folder = Path(source)
    with in_force(budgets):
        return DecoderGraph(decoder_of(Config.read(folder)), Tensors(folder)).module()
