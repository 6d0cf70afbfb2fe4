"""`clew.text_encoder`: vectors of texts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from clew.generation.companions import Companions
from clew.generation.language_model import LanguageModel
from clew.generation.opening import opened
from clew.generation.text_inputs import TextInputs
from clew.runtime.batches import Batching, check_count, run_rows
from clew.support.errors import InputError
from clew.support.shown import Shown

Array: TypeAlias = "np.ndarray[Any, Any]"
RESULT: Final = "sentence_embedding"
BATCH: Final = 32


class TextEncoder(Shown):
    """A compiled model that turns texts into vectors, from `clew.text_encoder`."""

    def __init__(self, model: Any, companions: Companions) -> None:
        """Errors: I462 for a model that reads no texts, I461 for one without vectors of texts, I485
        (no tokenizer).
        """
        self.model = model
        self._texts = TextInputs(companions, model.inputs)
        found = [o for o in model.outputs if o.name == RESULT]
        if not found:
            raise InputError(
                "I461",
                f"the model has no output {RESULT!r}, only {', '.join(model.output_names)}",
                hint="save the model with sentence-transformers: its folder says how one vector is "
                "made of those of the tokens",
            )
        self._size = found[0].shape[-1] if found[0].shape else 0

    def _about(self) -> str:
        return repr(self.model)

    def embed(self, texts: str | Sequence[str], *, batch: int = BATCH) -> Array:
        """Returns the vectors of texts: f32[texts, size], or f32[size] for one text.

        Texts of equal length run together, `batch` at once, or as many as the model takes. Longer
        texts than the model can read are cut.

        Errors: I460 (`batch`), I480 (not a text), and those of a call of the model.
        """
        if isinstance(texts, str):
            found: Array = self.embed([texts], batch=batch)[0]
            return found
        return self.embed_counted(texts, batch=batch)[0]

    def embed_counted(self, texts: Sequence[str], *, batch: int = BATCH) -> tuple[Array, int]:
        """Returns the vectors of texts, f32[texts, size], and the number of tokens that were read.

        Errors: those of `embed`.
        """
        check_count("batch", batch)
        for text in texts:
            if not isinstance(text, str):
                raise InputError("I480", f"{text!r:.60} is not a text")
        if not texts:
            return np.zeros((0, self._size if isinstance(self._size, int) else 0), np.float32), 0
        encoded = self._texts.encode(texts)
        batching = Batching.of(self.model.inputs, batch)
        rows = self._texts.rows(encoded)
        found = run_rows(self.model, batching, rows, len(texts), [RESULT])[RESULT]
        return np.stack(found), sum(map(len, encoded))


def text_encoder(
    source: Any, *, folder: str | os.PathLike[str] | None = None, **options: Any
) -> TextEncoder:
    """Returns a model that turns texts into vectors.

    `source` is a folder that `sentence-transformers` saved, an ONNX or `.clew` file with a
    tokenizer next to it, or a compiled model. `folder` has the tokenizer if it is elsewhere.
    Options are those of `clew.compile`.

    Errors: I462 for a model that reads no texts, I461 for one without vectors of texts, I485 (no
    tokenizer), and those of `clew.language_model`.
    """
    return TextEncoder(*opened(source, folder, options))


def text_model(
    source: Any, *, prefix_cache: str | os.PathLike[str] | None = None, **options: Any
) -> LanguageModel | TextEncoder:
    """Returns a model that makes vectors of texts if it has such an output, else one that generates
    text. Errors: those of `language_model` and `text_encoder`.
    """
    model, companions = opened(source, None, options)
    if RESULT in model.output_names:
        return TextEncoder(model, companions)
    made = LanguageModel(model, companions)
    made.keep_prefixes(source, prefix_cache)
    return made
