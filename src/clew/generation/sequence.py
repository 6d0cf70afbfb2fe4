"""One sequence of tokens that grows, with its text and the reason of its end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clew.generation.choice import Choice
from clew.generation.options import Options
from clew.generation.result import Clock, Generation
from clew.generation.text import StopTexts, TextStream
from clew.generation.tokenizer import Tokenizer
from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class Plan:
    """How sequences are generated: options with numbers, the ids that end a text, the tokenizer
    for texts (None: ids only), and the seed of draws.
    """

    options: Options
    ends: tuple[int, ...]
    tokenizer: Tokenizer | None
    seed: int

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The ids that the caller stops at."""
        return tuple(s for s in self._stops if isinstance(s, int))

    @property
    def stop_texts(self) -> tuple[str, ...]:
        """The texts that the caller stops at."""
        return tuple(s for s in self._stops if isinstance(s, str))

    @property
    def _stops(self) -> Sequence[str | int]:
        assert isinstance(self.options.stop, tuple)
        return self.options.stop


class Growing:
    """A prompt and the tokens generated after it, at most `most`. `number` is that of the sequence
    among those of a call: each draws from numbers of its own.
    """

    def __init__(self, prompt: Sequence[int], plan: Plan, most: int, number: int = 0) -> None:
        self.tokens = list(prompt)
        self.prompt_tokens = len(prompt)
        self.most = most
        self._plan = plan
        self._ids = frozenset(plan.stop_ids)
        rng = np.random.Generator(np.random.PCG64([plan.seed, number]))
        self.choice = Choice(plan.options, len(prompt), rng)
        self._stream = None if plan.tokenizer is None else TextStream(plan.tokenizer, prompt)
        self._stops = StopTexts(plan.stop_texts)
        self._text: list[str] = []
        self.finish = ""
        self._stop: str | int | None = None
        self.drafted = self.accepted = 0

    @property
    def new(self) -> list[int]:
        """The generated tokens."""
        return self.tokens[self.prompt_tokens :]

    @property
    def left(self) -> int:
        """How many tokens may still be generated."""
        return self.most - (len(self.tokens) - self.prompt_tokens)

    def take(self, token: int) -> str:
        """Appends a token, and returns the text that is now certain. `finish` is set if it is the
        last one.
        """
        self.tokens.append(token)
        if token in self._ids:
            self.finish, self._stop = "stop", token
        elif token in self._plan.ends:
            self.finish = "eos"
        piece = (
            "" if self.finish or self._stream is None else self._stops.add(self._stream.add(token))
        )
        if self._stops.found is not None:
            self.finish, self._stop = "stop", self._stops.found
        if not self.finish and self.left <= 0:
            self.finish = "length"
        if self.finish:
            piece += self._rest()
        self._text.append(piece)
        return piece

    def interrupt(self) -> None:
        """Ends the sequence before its end."""
        if not self.finish:
            self.finish = "interrupted"
            self._text.append(self._rest())

    def _rest(self) -> str:
        """Returns the text that was held back."""
        if self._stream is None or isinstance(self._stop, str):
            return ""
        found = self._stops.add(self._stream.end())
        if self._stops.found is not None:
            self.finish, self._stop = "stop", self._stops.found
            return found
        return found + self._stops.end()

    def result(self, cached: int, clock: Clock, score: float | None = None) -> Generation:
        """Returns the result. `cached` are the tokens of the prompt that were not read again."""
        return Generation(
            ids=tuple(self.new),
            text=None if self._stream is None else "".join(self._text),
            finish=self.finish,
            stop=self._stop,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=cached,
            first_token_s=clock.first if clock.first is not None else clock.seconds,
            seconds=clock.seconds,
            seed=self._plan.seed if self._plan.options.samples else None,
            score=score,
            drafted=self.drafted,
            accepted=self.accepted,
        )
