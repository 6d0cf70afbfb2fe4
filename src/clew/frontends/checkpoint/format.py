"""The model format of folders saved by transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clew.frontends.checkpoint.files import CONFIGURATION, INDEX, WEIGHTS
from clew.frontends.format import Format
from clew.ir.module import Module
from clew.support.recognize import Head


class Checkpoint(Format):
    """A folder with the configuration and the weights of a language model."""

    name = "checkpoint"
    title = "transformers"
    what = "a model saved by transformers"
    suffix = ""

    def recognizes(self, head: Head) -> bool:
        """False: no single file is such a model."""
        return False

    def recognizes_folder(self, names: Sequence[str]) -> bool:
        """Whether the folder has a configuration and weights."""
        return CONFIGURATION in names and (WEIGHTS in names or INDEX in names)

    def load(self, source: Any, **options: Any) -> Module:
        """Returns the module. Errors: see `clew.frontends.checkpoint.loader.load`."""
        from clew.frontends.checkpoint.loader import load  # noqa: PLC0415 - few models need it

        return load(source, **options)
