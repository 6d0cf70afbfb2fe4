"""Drafts of the next tokens: by a smaller model, or from the text itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from clew.generation.choice import Choice
from clew.generation.decoder import Decoder
from clew.generation.reading import read_again
from clew.generation.scores import Probabilities
from clew.generation.sequence import Growing
from clew.runtime.wiring import Wiring
from clew.support.errors import InputError

_LONGEST: Final = 3
"""Tokens at the end of the text that are looked up in it, then fewer."""


class Lookup:
    """Looks up the last tokens earlier in the text, and guesses that the same tokens follow.

    Source: Saxena, "Prompt Lookup Decoding", 2023.
    """

    def propose(
        self, growing: Growing, most: int
    ) -> tuple[list[int], Sequence[Probabilities | None]]:
        """Returns the tokens after the latest earlier place of the last tokens."""
        tokens = np.array(growing.tokens, np.int64)
        for size in range(min(_LONGEST, len(tokens) - 1), 0, -1):
            windows = np.lib.stride_tricks.sliding_window_view(tokens[:-1], size)
            places = np.flatnonzero((windows == tokens[-size:]).all(1))
            if places.size:
                begin = int(places[-1]) + size
                found = tokens[begin : begin + max(most, 0)].tolist()
                return found, [None] * len(found)
        return [], []


class DraftModel:
    """A model that generates the draft, with the same options. `drawing` are random numbers of its
    own.
    """

    def __init__(self, decoder: Decoder, choice: Choice) -> None:
        self.decoder = decoder
        self._choice = choice

    def propose(
        self, growing: Growing, most: int
    ) -> tuple[list[int], Sequence[Probabilities | None]]:
        """Returns the tokens that the model generates."""
        tokens = list(growing.tokens)
        found: list[Probabilities | None] = []
        if most < 1:
            return [], []
        logits = read_again(self.decoder, tokens)
        while True:
            chances = self._choice.chances(logits, tokens)
            tokens.append(self._choice.draw(chances))
            found.append(chances)
            if len(found) == most:
                return tokens[-most:], found
            logits = self.decoder.feed(np.array([tokens[-1:]]))[0, -1]


def check_vocabularies(model: Wiring, draft: Wiring) -> None:
    """Errors: I490 for a draft model with other tokens."""
    ours, theirs = model.vocabulary, draft.vocabulary
    if ours != theirs:
        raise InputError(
            "I490",
            f"the draft model has {theirs} tokens, the model {ours}",
            hint="a draft model is a smaller one of the same family, with the same tokenizer",
        )
