"""Answers in the form of OpenAI's API: whole ones, pieces of streams, errors."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any, Final

from clew.generation.result import Generation
from clew.support.errors import ClewError

_ENDS: Final = {"eos": "stop", "stop": "stop", "length": "length"}
_WHOLE, _PART = 0, 1
_OBJECTS: Final = {
    True: ("chat.completion", "chat.completion.chunk"),
    False: ("text_completion", "text_completion"),
}


class Answer:
    """The answer to one request. `is_chat` says which of the two forms it has."""

    def __init__(self, model: str, is_chat: bool) -> None:
        self._is_chat = is_chat
        self._model = model
        self._id = f"{'chatcmpl' if is_chat else 'cmpl'}-{secrets.token_hex(12)}"
        self._created = int(time.time())

    def _frame(self, form: int, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": _OBJECTS[self._is_chat][form],
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }

    def whole(self, texts: Sequence[str], results: Sequence[Generation]) -> dict[str, Any]:
        """Returns the answer as one value. `texts` are those of the results."""
        choices = []
        for index, (text, result) in enumerate(zip(texts, results, strict=True)):
            said = (
                {"message": {"role": "assistant", "content": text}}
                if self._is_chat
                else {"text": text}
            )
            choices.append(_choice(index, said, _end(result)))
        return {**self._frame(_WHOLE, choices), "usage": usage(results)}

    def first(self, index: int) -> dict[str, Any] | None:
        """Returns the part before the first text of a choice, if the form has one."""
        if not self._is_chat:
            return None
        return self._part(index, {"delta": {"role": "assistant", "content": ""}}, None)

    def piece(self, index: int, text: str) -> dict[str, Any]:
        """Returns a part with more text of a choice."""
        said = {"delta": {"content": text}} if self._is_chat else {"text": text}
        return self._part(index, said, None)

    def last(self, index: int, result: Generation) -> dict[str, Any]:
        """Returns the part that ends a choice."""
        said: dict[str, Any] = {"delta": {}} if self._is_chat else {"text": ""}
        return self._part(index, said, _end(result))

    def with_usage(self, results: Sequence[Generation]) -> dict[str, Any]:
        """Returns the part with the numbers of tokens."""
        return {**self._frame(_PART, []), "usage": usage(results)}

    def _part(self, index: int, said: dict[str, Any], end: str | None) -> dict[str, Any]:
        return self._frame(_PART, [_choice(index, said, end)])


def _choice(index: int, said: dict[str, Any], end: str | None) -> dict[str, Any]:
    return {"index": index, **said, "logprobs": None, "finish_reason": end}


def usage(results: Sequence[Generation]) -> dict[str, Any]:
    """Returns the numbers of tokens of results."""
    prompt = sum(result.prompt_tokens for result in results)
    new = sum(len(result.ids) for result in results)
    cached = sum(result.cached_tokens for result in results)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": new,
        "total_tokens": prompt + new,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def failure(error: Exception) -> tuple[int, dict[str, Any]]:
    """Returns the HTTP status and the body for an error."""
    if not isinstance(error, ClewError):
        return 500, _error("the server failed", "server_error", None)
    is_asked = error.code.startswith("I")
    kind = "invalid_request_error" if is_asked else "server_error"
    message = f"{error.message} ({error.hint})" if error.hint else error.message
    return (400 if is_asked else 500), _error(message, kind, error.code)


def _error(message: str, kind: str, code: str | None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def refused(message: str, kind: str = "invalid_request_error") -> dict[str, Any]:
    """Returns the body of a refusal."""
    return _error(message, kind, None)


def _end(result: Generation) -> str:
    return _ENDS.get(result.finish, "stop")
