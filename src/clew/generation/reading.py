"""Reads prompts, except for prefixes whose caches exist already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from clew.generation.decoder import Decoder
from clew.generation.language_model import LanguageModel
from clew.generation.prefixes import common

Array: TypeAlias = "np.ndarray[Any, Any]"


class Reading:
    """A prompt that is being read, into the caches of an earlier prompt with a common prefix, or
    into new ones. `cached` is the number of tokens that are not read again.
    """

    def __init__(self, model: LanguageModel, tokens: Sequence[int]) -> None:
        self._tokens = list(tokens)
        self.decoder = model.prefixes.take(self._tokens)
        self.cached = len(self.decoder.rows[0]) if self.decoder.count else 0
        self._read = self.cached
        self.logits: Array | None = None
        """The logits of the next token, f32[vocabulary], once the whole prompt is read."""

    @property
    def most(self) -> int:
        """The most tokens that the next call reads."""
        return self.decoder.wiring.most(self._read)

    @property
    def left(self) -> int:
        """The number of tokens that are not read yet."""
        return len(self._tokens) - self._read

    def advance(self, most: int) -> bool:
        """Reads at most `most` more tokens, and returns whether the whole prompt is read. Models
        without caches read it in one call.

        Errors: those of a call of the model.
        """
        end = len(self._tokens)
        if self.decoder.wiring.states:
            end = min(end, self._read + min(most, self.most))
        logits = self.decoder.feed(np.array([self._tokens[self._read : end]]), 1)
        self._read = end
        if end < len(self._tokens):
            return False
        self.logits = logits[0, -1]
        return True

    def finish(self) -> Array:
        """Reads the rest, and returns the logits of the next token. Errors: those of `advance`."""
        while not self.advance(self.most):
            pass
        assert self.logits is not None
        return self.logits


def read_together(model: LanguageModel, prompts: Sequence[Sequence[int]]) -> tuple[Decoder, Array]:
    """Reads prompts of equal length at once, and returns the decoder, with a row for each, and
    their next logits, f32[prompts, vocabulary].

    Errors: those of a call of the model.
    """
    decoder = Decoder(model.wiring)
    return decoder, decoder.read(np.array(prompts))


def read_again(decoder: Decoder, tokens: Sequence[int]) -> Array:
    """Reads a text with a decoder that has read another one, from their first difference on, and
    returns the next logits, f32[vocabulary].
    """
    known = decoder.rows[0] if decoder.count else ()
    shared = common(known, tokens[: len(tokens) - 1])
    if not decoder.rewind(shared):
        decoder.rewind(0)
        shared = 0
    found: Array = decoder.read(np.array([tokens[shared:]]))[0]
    return found
