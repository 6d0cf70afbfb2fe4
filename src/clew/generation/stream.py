"""The text of a generation, piece by piece."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from types import TracebackType
from typing import Any

import numpy as np

from clew.generation.batch import Batch, Step
from clew.generation.choice import Choice
from clew.generation.drafting import with_draft
from clew.generation.drafts import DraftModel, Lookup, check_vocabularies
from clew.generation.language_model import LanguageModel
from clew.generation.reading import Reading
from clew.generation.result import Clock, Generation
from clew.generation.sequence import Growing, Plan
from clew.support.errors import InputError
from clew.support.exhausted import coded_exhaustion
from clew.support.locks import Turn
from clew.support.shown import Shown

_OF_DRAFT = 1 << 32  # numbers a draft's draws among those of a seed


class Stream(Shown):
    """An iterator of the new text's pieces, or of ids if the model has no tokenizer.

    ```python
    with clew.generate(model, prompt, stream=True) as stream:
        for piece in stream:
            print(piece, end="", flush=True)
    print(stream.result.tokens_per_second)
    ```

    Pieces are valid UTF-8 and together the text of the result. `close`, the end of a `with` block,
    or an error end the generation; `result` has what was generated until then, and the model may be
    used again at once.
    """

    def __init__(
        self,
        model: LanguageModel,
        growing: Growing,
        plan: Plan,
        draft: LanguageModel | None,
    ) -> None:
        self._model, self._plan, self._draft = model, plan, draft
        self._growing = growing
        self._clock = Clock()
        self._cached = 0
        self._has_text = plan.tokenizer is not None
        self._steps = self._generated()
        self._turn = Turn()

    def _about(self) -> str:
        return self._growing.finish or f"{len(self._growing.new)} tokens so far"

    @property
    def result(self) -> Generation:
        """The result so far."""
        return self._growing.result(self._cached, self._clock)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        """Returns the next piece.

        Errors: those of `clew.generate`; I374 if another thread is at it.
        """
        while (step := self._step()) is not None:
            if step.piece or not self._has_text:
                return step.piece if self._has_text else step.token
        raise StopIteration

    def close(self) -> None:
        """Ends the generation. Errors: I374 if another thread is at it."""
        holder = object()
        try:
            self._begin(holder)
            self._steps.close()
            self._growing.interrupt()
        finally:
            if 0 in self._turn.held and self._turn.held[0] is holder:
                del self._turn.held[0]

    @coded_exhaustion
    def _step(self) -> Step | None:
        """Generates one token; returns None after the end."""
        holder = object()
        try:
            self._begin(holder)
            self._clock.start()
            try:
                return next(self._steps, None)
            except BaseException:
                self._growing.interrupt()
                raise
            finally:
                self._clock.pause()
        finally:
            if 0 in self._turn.held and self._turn.held[0] is holder:
                del self._turn.held[0]

    def _begin(self, holder: object) -> None:
        """Errors: I374."""
        if not self._turn.begin(holder):
            raise InputError(
                "I374",
                "the stream is generating a token",
                hint="read and close a stream in one thread; each call of clew.generate has its "
                "own stream, and several may run at once",
            )

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _generated(self) -> Generator[Step, None, None]:
        reading = Reading(self._model, self._growing.tokens)
        self._cached = reading.cached
        drafts = self._draft is not None or self._plan.options.lookup > 0
        with closing((self._with_draft if drafts else self._alone)(reading)) as steps:
            for step in steps:
                self._clock.note_first()
                yield step

    def _alone(self, reading: Reading) -> Generator[Step, None, None]:
        batch = Batch(self._model)
        try:
            batch.join(self._growing, reading.decoder, reading.finish())
            while len(batch):
                for step in batch.step():
                    if step.error is not None:
                        raise step.error
                    yield step
        finally:
            batch.close()

    def _with_draft(self, reading: Reading) -> Generator[Step, None, None]:
        options, decoder = self._plan.options, reading.decoder
        if not decoder.wiring.verifies:
            raise InputError(
                "I490",
                "the model verifies no draft: its states cannot be cut to fewer tokens, or it "
                "reads one token at a time",
                hint="leave out draft and lookup: recurrent states do not grow with the tokens",
            )
        try:
            if self._draft is None:
                logits = reading.finish()
                yield from with_draft(decoder, logits, self._growing, Lookup(), options.lookup)
                return
            check_vocabularies(self._model.wiring, self._draft.wiring)
            other = self._draft.prefixes.take(self._growing.tokens)
            try:
                rng = np.random.Generator(np.random.PCG64([self._plan.seed, _OF_DRAFT]))
                draft = DraftModel(other, Choice(options, self._growing.prompt_tokens, rng))
                logits = reading.finish()
                yield from with_draft(decoder, logits, self._growing, draft, options.draft_tokens)
            finally:
                self._draft.prefixes.keep(other)
        finally:
            self._model.prefixes.keep(decoder)
