"""A model with advice applied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clew.api.compile import compile
from clew.api.compiled_model import CompiledModel
from clew.backends.compile_options import CompileOptions
from clew.exporters.files import SAVES
from clew.ir.module import Module
from clew.ir.textfile import save_module
from clew.support.errors import InputError
from clew.support.shown import Shown, counted

_NOTE = "clew.advice"


@dataclass(frozen=True, repr=False)
class Applied(Shown):
    """The changed module, the options to compile it with, and what was changed."""

    module: Module
    options: CompileOptions = field(repr=False)
    what: tuple[str, ...] = ()

    def _about(self) -> str:
        return counted(len(self.what), "change")

    def compile(self) -> CompiledModel:
        """Returns the changed model, compiled with the options."""
        return compile(self.module, **self.options.values())

    @property
    def settings(self) -> Mapping[str, Any]:
        """The options that differ from the defaults; a file of the model does not hold them."""
        return self.options.values()

    def save(self, path: str | Path) -> None:
        """Writes the changed model as an ONNX file or, if the name ends in `.txt`, as the text of
        the module with its constants in an `.npz` file.

        Errors: I515 for another suffix; U070 and U071 for operators that ONNX does not have. Raises
        `OSError`.
        """
        path = Path(path)
        suffix = path.suffix.lower()
        if suffix == ".txt":
            save_module(self.module, path)
            return
        save = SAVES.get(suffix.removeprefix("."))
        if save is None:
            raise InputError(
                "I515",
                f"{str(path)!r} has an unsupported suffix",
                hint=f"{', '.join(f'.{name}' for name in SAVES)}, or .txt for clew text",
            )
        save(self.module, path, {_NOTE: "\n".join(self.what)})
