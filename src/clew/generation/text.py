"""Text from tokens, piece by piece: complete characters only, and nothing of a stop text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

_INCOMPLETE: Final = "\ufffd"
_CONTEXT: Final = 8  # tokens before the text, on which the form of its first token may depend


class Detokenizer(Protocol):
    """What turns ids into text."""

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of ids, without special tokens."""
        ...


class TextStream:
    """Turns ids into pieces of text that follow a prompt. Bytes of an incomplete character are held
    back until the tokens that complete it.
    """

    def __init__(self, tokenizer: Detokenizer, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        # Tokens that may still change the form of the next ones, and how many were given out.
        self._window = list(prompt[-_CONTEXT:])
        self._given = len(self._window)

    def add(self, token: int) -> str:
        """Returns the text that a token completes, which may be empty."""
        self._window.append(token)
        return self._next(last=False)

    def end(self) -> str:
        """Returns the rest of the text; an incomplete character becomes U+FFFD."""
        return self._next(last=True)

    def _next(self, last: bool) -> str:
        before = self._tokenizer.decode(self._window[: self._given]).rstrip(_INCOMPLETE)
        whole = self._tokenizer.decode(self._window)
        if not whole.startswith(before):
            before = whole[: len(before)]
        piece = whole[len(before) :]
        if not last and (not piece or piece.endswith(_INCOMPLETE)):
            return ""
        self._window = self._window[max(0, self._given - _CONTEXT) :]
        self._given = len(self._window)
        return piece


class StopTexts:
    """Looks for stop texts in pieces of text, and holds back what may be the beginning of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found: str | None = None

    def add(self, piece: str) -> str:
        """Returns the text that is certainly before any stop text. `found` is the first stop text,
        once the text contains it.
        """
        if self.found is not None:
            return ""
        text = self._held + piece
        places = [(text.find(stop), stop) for stop in self._stops if stop in text]
        if places:
            place, self.found = min(places, key=lambda p: (p[0], -len(p[1])))
            self._held = ""
            return text[:place]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def end(self) -> str:
        """Returns the text that was held back."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Returns the length of the longest end of a text that begins a stop text."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
