"""Beam search: the sequences of the highest probability, several at a time.

Source: `GenerationMixin._beam_search` of transformers 5, with its scores, length penalty and early
stopping.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from clew.generation.decoder import Decoder
from clew.generation.options import Options
from clew.generation.scores import (
    checked_logits,
    log_probabilities,
    narrowed,
    penalized,
    probabilities,
)
from clew.support.dataclass import dataclass

Array: TypeAlias = "np.ndarray[Any, Any]"
_NEVER: Final = -1e9  # the score of what cannot be chosen, as in transformers


@dataclass(frozen=True)
class Beam:
    """Tokens with the prompt, their score, and whether they have ended."""

    tokens: tuple[int, ...]
    score: float
    ended: bool = False


class BeamSearch:
    """A search with `count` beams for at most `most` tokens after a prompt. `ends` tells whether a
    sequence ends with its last token, and `end_ids` counts the ids that end one.
    """

    def __init__(
        self,
        options: Options,
        prompt: Sequence[int],
        most: int,
        ends: Callable[[Sequence[int]], bool],
        end_ids: int,
        rng: np.random.Generator,
    ) -> None:
        self._options = options
        self._count = options.beams or 1
        self._kept = max(2, 1 + end_ids) * self._count
        self._least = end_ids + 1 if end_ids else 2
        self._penalty = 1.0 if options.length_penalty is None else options.length_penalty
        self._early = options.early_stopping or False
        self._prompt_tokens, self._most = len(prompt), most
        self._ends, self._rng = ends, rng
        start = tuple(prompt)
        self._running = [Beam(start, 0.0 if n == 0 else _NEVER) for n in range(self._count)]
        self._finished = [Beam(start, _NEVER)] * self._count

    def run(self, decoder: Decoder, logits: Array) -> Beam:
        """Returns the best beam. The decoder has read the prompt, f32[vocabulary] follow it."""
        decoder.select([0] * self._count)
        logits = np.repeat(logits[None], self._count, 0)
        improvable = True
        while True:
            found = self._candidates(logits)
            ended = [self._ends(beam.tokens) or self._is_full(beam) for _, beam in found]
            rows = self._advance(found, ended)
            self._finish([beam for _, beam in found], ended, improvable)
            length = len(self._running[0].tokens) - self._prompt_tokens
            improvable = improvable and self._can_improve(length)
            full = self._early is True and all(beam.ended for beam in self._finished)
            if not improvable or full or all(ended):
                return self._finished[0]
            decoder.select(rows)
            last = np.array([beam.tokens[-1:] for beam in self._running])
            logits = decoder.feed(last)[:, -1]

    def _is_full(self, beam: Beam) -> bool:
        return len(beam.tokens) - self._prompt_tokens >= self._most

    def _candidates(self, logits: Array) -> list[tuple[int, Beam]]:
        """Returns the best continuations, best first, with the beams that they continue."""
        options, rows = self._options, []
        for row, beam in zip(logits, self._running, strict=True):
            scores = log_probabilities(checked_logits(row))
            scores = penalized(scores, beam.tokens, self._prompt_tokens, options)
            if options.samples:
                scores = narrowed(scores, options, self._least)
            rows.append(scores + np.float32(beam.score))
        flat = np.concatenate(rows)
        if options.samples:
            chances = probabilities(flat)
            count = min(self._kept, int(np.count_nonzero(chances)))
            best = self._rng.choice(len(flat), count, replace=False, p=chances)
        else:
            best = np.argpartition(-flat, min(self._kept, len(flat)) - 1)[: self._kept]
        best = best[np.lexsort((best, -flat[best]))]
        size = len(rows[0])
        return [
            (int(n) // size, self._continued(int(n) // size, int(n) % size, float(flat[n])))
            for n in best
        ]

    def _continued(self, row: int, token: int, score: float) -> Beam:
        return Beam((*self._running[row].tokens, token), score)

    def _advance(self, found: list[tuple[int, Beam]], ended: Sequence[bool]) -> list[int]:
        """Chooses the beams that run on, and returns those that they continue."""
        scored = [
            (beam.score + (_NEVER if over else 0.0), row, beam)
            for (row, beam), over in zip(found, ended, strict=True)
        ]
        chosen = sorted(scored, key=lambda each: -each[0])[: self._count]
        chosen += [chosen[-1]] * (self._count - len(chosen))
        self._running = [Beam(beam.tokens, score) for score, _, beam in chosen]
        return [row for _, row, _ in chosen]

    def _finish(self, found: Sequence[Beam], ended: Sequence[bool], improvable: bool) -> None:
        """Keeps the best of the finished beams and the candidates that have ended."""
        full = self._early is True and all(beam.ended for beam in self._finished)
        candidates = list(self._finished)
        for n, (beam, over) in enumerate(zip(found, ended, strict=True)):
            ends = over and n < self._count
            length = len(beam.tokens) - self._prompt_tokens
            score = beam.score / length**self._penalty
            score += (full + (not improvable) + (not ends)) * _NEVER
            candidates.append(Beam(beam.tokens, score, ends))
        self._finished = sorted(candidates, key=lambda beam: -beam.score)[: self._count]

    def _can_improve(self, length: int) -> bool:
        """Whether a running beam may become better than the worst finished one."""
        if self._early == "never" and self._penalty > 0:
            length = self._most
        best = self._running[0].score / length**self._penalty
        worst = min(beam.score for beam in self._finished)
        return any(best > (worst if beam.ended else _NEVER) for beam in self._finished)
