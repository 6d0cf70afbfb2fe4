"""Generates tokens of one sequence with a draft."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from clew.generation.batch import Step
from clew.generation.decoder import Decoder
from clew.generation.scores import Probabilities
from clew.generation.sequence import Growing

Array: TypeAlias = "np.ndarray[Any, Any]"


class Draft(Protocol):
    """Guesses the next tokens of a sequence."""

    def propose(
        self, growing: Growing, most: int
    ) -> tuple[list[int], Sequence[Probabilities | None]]:
        """Returns at most `most` tokens that may follow, and the probabilities that each was drawn
        with (None: it was certain).
        """
        ...


def with_draft(
    decoder: Decoder, logits: Array, sequence: Growing, draft: Draft, most: int
) -> Iterator[Step]:
    """Generates tokens of a sequence that the decoder has read, given its next logits. At most
    `most` drafted tokens are verified in one call, together with the last token. Greedy tokens are
    those without a draft; drawn ones have the same distribution.
    """
    token = sequence.choice.token(logits, sequence.tokens)
    yield Step(sequence, token, sequence.take(token))
    while not sequence.finish:
        guessed, chances = draft.propose(sequence, min(most, sequence.left - 1))
        sequence.drafted += len(guessed)
        rows = decoder.feed(np.array([[sequence.tokens[-1], *guessed]]))[0]
        read = len(sequence.tokens)
        try:
            for n, row in enumerate(rows):
                if n == len(guessed):
                    token = sequence.choice.token(row, sequence.tokens)
                else:
                    token = sequence.choice.verified(row, sequence.tokens, guessed[n], chances[n])
                accepted = n < len(guessed) and token == guessed[n]
                read += accepted
                sequence.accepted += accepted
                yield Step(sequence, token, sequence.take(token))
                if sequence.finish or not accepted:
                    break
        finally:
            decoder.rewind(read)
