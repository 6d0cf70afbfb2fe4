"""The model format GGUF."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clew.frontends.format import Format
from clew.frontends.texts import ModelTexts
from clew.ir.module import Module
from clew.support.recognize import Head


class Gguf(Format):
    """A file with the settings and the weights of a language model. The reader is imported with the
    first file, because few models need it.
    """

    name = "gguf"
    title = "GGUF"
    what = "a GGUF model"
    suffix = ".gguf"

    def recognizes(self, head: Head) -> bool:
        """Whether the file begins as one of any version."""
        return head.start.startswith(b"GGUF")

    def texts(self, path: Path) -> ModelTexts:
        """Returns what the file says about texts. Errors: M070, M071."""
        from clew.frontends.gguf.texts import texts_of  # noqa: PLC0415 - see above

        return texts_of(path)

    def load(self, source: Any, **options: Any) -> Module:
        """Returns the module. Errors: see `clew.frontends.gguf.load`."""
        from clew.frontends.gguf.loader import load  # noqa: PLC0415 - see above

        return load(source, **options)
