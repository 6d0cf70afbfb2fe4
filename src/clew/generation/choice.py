"""Chooses the tokens of one sequence: greedy, or by drawing; also between a draft's and others.

A drafted token is verified so that tokens have the same distribution as without a draft. One that
the draft drew with probability `q` is accepted with probability `min(1, p / q)`, and a rejected one
is replaced by one drawn in proportion to `max(0, p - q)`. Without drawing, it must be the best
token.

Source: Leviathan, Kalman and Matias, "Fast Inference from Transformers via Speculative Decoding",
2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from clew.generation.options import Options
from clew.generation.scores import (
    Probabilities,
    checked_logits,
    drawn,
    narrowed,
    penalized,
    probabilities,
)


class Choice:
    """Chooses the next token of a sequence after a prompt of `prompt_tokens` tokens."""

    def __init__(self, options: Options, prompt_tokens: int, rng: np.random.Generator) -> None:
        self._options = options
        self._prompt_tokens = prompt_tokens
        self._rng = rng

    def chances(self, logits: Any, tokens: Sequence[int]) -> Probabilities:
        """Returns the probabilities of the token after `tokens`. Errors: I488, I489."""
        options = self._options
        scores = penalized(checked_logits(logits), tokens, self._prompt_tokens, options)
        if options.samples:
            return probabilities(narrowed(scores, options))
        found: Probabilities = np.zeros(len(scores))
        found[np.argmax(scores)] = 1
        return found

    def draw(self, chances: Probabilities) -> int:
        """Returns a token with given probabilities."""
        return drawn(chances, self._rng) if self._options.samples else int(np.argmax(chances))

    def token(self, logits: Any, tokens: Sequence[int]) -> int:
        """Returns the token after `tokens`. Errors: I488, I489."""
        return self.draw(self.chances(logits, tokens))

    def verified(
        self, logits: Any, tokens: Sequence[int], draft: int, draft_chances: Probabilities | None
    ) -> int:
        """Returns the token after `tokens`: the draft's if it is accepted. `draft_chances` are the
        probabilities that it was drawn with; None if it was certain.

        Errors: I488, I489.
        """
        chances = self.chances(logits, tokens)
        if not self._options.samples:
            return int(np.argmax(chances))
        share = 1.0 if draft_chances is None else float(draft_chances[draft])
        if self._rng.random() * share < chances[draft]:
            return draft
        if draft_chances is None:
            rest = chances.copy()
            rest[draft] = 0
        else:
            rest = np.maximum(chances - draft_chances, 0)
        return drawn(rest if rest.any() else chances, self._rng)
