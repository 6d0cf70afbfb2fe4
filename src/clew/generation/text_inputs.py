"""Texts as inputs of a model: token ids, and what follows from their number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from clew.generation.companions import Companions
from clew.generation.tokenizer import Tokenizer
from clew.runtime.input_spec import InputSpec
from clew.support.errors import InputError

Array: TypeAlias = "np.ndarray[Any, Any]"
_IDS: Final = "input_ids"
_MASK: Final = "attention_mask"
_FILLED: Final = (_IDS, _MASK, "token_type_ids", "position_ids")


class TextInputs:
    """The inputs of a model that texts give, by the names that transformers uses: `input_ids`,
    `attention_mask`, `token_type_ids`, `position_ids`.

    Texts have no more tokens than the model can read: the tokenizer cuts longer ones. If the model
    has a fixed number of tokens, shorter texts are filled up and masked.
    """

    def __init__(self, companions: Companions, inputs: Sequence[InputSpec]) -> None:
        """Errors: I462 for a model without such inputs, I485 (no tokenizer)."""
        self._specs = {spec.name: spec for spec in inputs if spec.name in _FILLED}
        ids = self._specs.get(_IDS)
        if ids is None or len(ids.shape) != 2:
            raise InputError(
                "I462",
                f"the model has no input {_IDS!r} for token ids",
                hint="the inputs of models that read texts are input_ids and attention_mask",
            )
        if companions.tokenizer is None:
            raise companions.absent
        size = ids.shape[1]
        self._fixed = size if isinstance(size, int) else None
        if self._fixed is not None and _MASK not in self._specs:
            raise InputError(
                "I462",
                f"texts must have {self._fixed} tokens, and the model has no {_MASK!r}",
                hint="export the model with a free number of tokens",
            )
        most = self._fixed or companions.settings.context
        tokenizer = companions.tokenizer
        self._tokenizer: Tokenizer = tokenizer.cutting(most) if most else tokenizer

    @property
    def names(self) -> frozenset[str]:
        """The names of the inputs."""
        return frozenset(self._specs)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of each text: at least one, as models read no empty text."""
        return [self._tokenizer.encode(text) or [0] for text in texts]

    def rows(self, encoded: Sequence[Sequence[int]]) -> dict[str, list[Array]]:
        """Returns the values of each text, whose ids are given, by input."""
        found: dict[str, list[Array]] = {name: [] for name in self._specs}
        for ids in encoded:
            values = {
                _IDS: ids,
                _MASK: [1] * len(ids),
                "token_type_ids": [0] * len(ids),
                "position_ids": range(len(ids)),
            }
            size = self._fixed or len(ids)
            for name, spec in self._specs.items():
                row = np.zeros(size, spec.dtype)
                row[: len(ids)] = values[name]
                found[name].append(row)
        return found
