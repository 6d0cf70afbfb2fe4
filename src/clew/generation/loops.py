"""The loops that generate tokens: one by one for one or several sequences, or with a draft."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from clew.generation.decoder import Decoder
from clew.generation.scores import Probabilities
from clew.generation.sequence import Growing

Array: TypeAlias = "np.ndarray[Any, Any]"
Step: TypeAlias = "tuple[int, int, str]"
"""The number of a sequence, its new token, and the text that is certain with it."""


class Draft(Protocol):
    """Guesses the next tokens of a sequence."""

    def propose(
        self, growing: Growing, most: int
    ) -> tuple[list[int], Sequence[Probabilities | None]]:
        """Returns at most `most` tokens that may follow, and the probabilities that each was drawn
        with (None: it was certain).
        """
        ...


def prefill(decoder: Decoder, prompts: Array) -> tuple[Array, int]:
    """Reads prompts, i64[batch, tokens], as far as the decoder does not have them, and returns the
    logits after them, f32[batch, vocabulary], and how many tokens it had.
    """
    known = decoder.tokens
    shared = min(prompts.shape[1] - 1, decoder.length)
    if len(known) != len(prompts):
        shared = 0
    else:
        differ = np.flatnonzero((known[:, :shared] != prompts[:, :shared]).any(0))
        shared = int(differ[0]) if differ.size else shared
    if not decoder.rewind(shared):
        decoder.rewind(0)
        shared = 0
    return decoder.read(prompts[:, shared:]), shared


def one_by_one(decoder: Decoder, logits: Array, sequences: Sequence[Growing]) -> Iterator[Step]:
    """Generates tokens of sequences that the decoder has read, whose next logits are given."""
    running = list(range(len(sequences)))
    while True:
        for row, number in enumerate(running):
            sequence = sequences[number]
            token = sequence.choice.token(logits[row], sequence.tokens)
            yield number, token, sequence.take(token)
        rows = [row for row, number in enumerate(running) if not sequences[number].finish]
        running = [running[row] for row in rows]
        if not running:
            return
        decoder.select(rows)
        last = np.array([[sequences[number].tokens[-1]] for number in running])
        logits = decoder.feed(last)[:, -1]


def with_draft(
    decoder: Decoder, logits: Array, sequence: Growing, draft: Draft, most: int
) -> Iterator[Step]:
    """Generates tokens of a sequence, reading those of a draft with the last one, at most `most`
    at a time. The tokens are those of `one_by_one`, or have the same distribution.
    """
    token = sequence.choice.token(logits[0], sequence.tokens)
    yield 0, token, sequence.take(token)
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
                yield 0, token, sequence.take(token)
                if sequence.finish or not accepted:
                    break
        finally:
            decoder.rewind(read)
