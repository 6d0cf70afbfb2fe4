"""Opens what callers give as a language model: a compiled model, with what belongs to it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import clew.api.compile as compiler
from clew.api.loaded_model import load_compiled
from clew.generation.companions import Companions
from clew.generation.folder import model_in
from clew.serving.model import Model
from clew.support.errors import InputError


def opened(
    source: Any, folder: str | os.PathLike[str] | None, options: Mapping[str, Any]
) -> tuple[Any, Companions]:
    """Returns the compiled model of a folder, a file or a module, or the given one, and what
    belongs to it: that of `folder`, or by default what is in the model's file or next to it.

    Errors: I484 (a folder without a model), M073 to M075 (damaged files), I014 (options of a model
    that is compiled already), and those of `clew.compile`.
    """
    found = None if folder is None else Companions.in_folder(Path(folder))
    if isinstance(source, Model):
        model = source
        if options:
            raise InputError(
                "I014",
                f"the model is already compiled: {', '.join(options)} would have no effect",
                hint="give the options to clew.compile",
            )
    elif isinstance(source, (str, os.PathLike)):
        path = Path(source)
        file = model_in(path)
        saved = file.suffix == ".clew"
        model = load_compiled(file, **options) if saved else compiler.compile(file, **options)
        found = Companions.beside(path) if found is None else found
    else:
        model = compiler.compile(source, **options)
    return model, Companions.none() if found is None else found
