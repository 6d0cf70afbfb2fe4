"""A conversation with a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from clew.generation.generating import generate
from clew.generation.language_model import LanguageModel, language_model
from clew.generation.result import Generation
from clew.generation.stream import Stream
from clew.support.shown import Shown, counted


class Chat(Shown):
    """A conversation with a model that has a chat template.

    ```python
    chat = clew.Chat("folder", system="You answer briefly.")
    for piece in chat.say("Why is the sky blue?"):
        print(piece, end="", flush=True)
    chat.messages  # the conversation so far
    ```

    The model reads only what is new in each turn. An answer that is interrupted, by Ctrl-C or the
    end of the loop, stays in the conversation as far as it was generated.
    """

    def __init__(self, model: Any, *, system: str | None = None, **options: Any) -> None:
        """`model` is a `clew.language_model`, or what that takes; `options` are those of
        `clew.generate` for all answers.

        Errors: those of `clew.language_model`.
        """
        self._model = model if isinstance(model, LanguageModel) else language_model(model)
        self._first = [] if system is None else [{"role": "system", "content": system}]
        self._options = options
        self.messages: list[dict[str, str]] = list(self._first)
        """The conversation: `role` and `content` of each message."""
        self.last: Generation | None = None
        """The last answer, with its figures."""

    def _about(self) -> str:
        return counted(len(self.messages), "message")

    def reset(self) -> None:
        """Begins a new conversation."""
        self.messages = list(self._first)

    def say(self, text: str) -> Iterator[str]:
        """Adds a message of the user, and yields the pieces of the answer.

        Errors: those of `clew.generate`; the conversation is then the one before.
        """
        asked = [*self.messages, {"role": "user", "content": text}]
        stream: Stream = generate(self._model, asked, stream=True, **self._options)
        try:
            with stream:
                yield from stream
        finally:
            self.last = stream.result
            if stream.result.ids:
                answer = {"role": "assistant", "content": stream.result.text or ""}
                self.messages = [*asked, answer]
