"""Vectors of texts over HTTP: `/v1/embeddings`."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from clew.generation.embedding import TextEncoder
from clew.server.asked import fields_of, wrong
from clew.server.common import Endpoints, busy, failed
from clew.support.errors import ClewError
from clew.support.exhausted import exhausted

_KNOWN: Final = frozenset(("input", "model", "encoding_format", "user"))
_FORMATS: Final = ("float", "base64")
_MOST_TEXTS: Final = 2048


class VectorEndpoints(Endpoints):
    """The handler of requests for vectors. One is answered after the other, and at most
    `most_waiting` wait.
    """

    def __init__(
        self, encoder: TextEncoder, name: str, most_waiting: int, most_body_bytes: int
    ) -> None:
        super().__init__(name, most_body_bytes)
        self._encoder = encoder
        self._turn = asyncio.Lock()
        self._most_waiting = most_waiting
        self._counts = {"running": 0, "finished": 0, "failed": 0, "prompt_tokens": 0}

    @property
    def own_routes(self) -> Sequence[Route]:
        """The URL of vectors."""
        return (Route("/v1/embeddings", self.vectors, methods=["POST"]),)

    def figures(self) -> Mapping[str, Any]:
        """Returns the numbers of requests, the waiting ones among the running, and of tokens."""
        return self._counts

    async def vectors(self, request: Request) -> Response:
        """The vectors of texts."""
        try:
            body = await self.body(request)
            texts, form = _asked(body)
        except ClewError as error:
            return failed(error)
        refusal = self.of_another(body.get("model"))
        if refusal is not None:
            return refusal
        if self._counts["running"] > self._most_waiting:
            return busy()
        self._counts["running"] += 1
        try:
            async with self._turn:
                found, tokens = await asyncio.to_thread(self._computed, texts, form)
        except Exception as error:  # the client's mistake, or one of ours
            self._counts["failed"] += 1
            return failed(exhausted(error) or error)
        finally:
            self._counts["running"] -= 1
        self._counts["finished"] += 1
        self._counts["prompt_tokens"] += tokens
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        answer = {"object": "list", "data": found, "model": self.name, "usage": usage}
        return JSONResponse(answer)

    def _computed(self, texts: list[str], form: str) -> tuple[list[dict[str, Any]], int]:
        """Returns the vectors of texts, and the number of their tokens."""
        vectors, tokens = self._encoder.embed_counted(texts)
        found = [
            {"object": "embedding", "index": index, "embedding": _shown(vector, form)}
            for index, vector in enumerate(vectors)
        ]
        return found, tokens


def _asked(body: Any) -> tuple[list[str], str]:
    """Returns the texts of a body and the form of the vectors. Errors: I500."""
    fields = fields_of(body, _KNOWN)
    texts = fields.get("input")
    texts = [texts] if isinstance(texts, str) else texts
    if not isinstance(texts, list) or not texts or not all(isinstance(t, str) for t in texts):
        raise wrong("input", "it must be a text or a list of texts")
    if len(texts) > _MOST_TEXTS:
        raise wrong("input", f"it has {len(texts)} texts, more than {_MOST_TEXTS}")
    form = fields.get("encoding_format")
    form = _FORMATS[0] if form is None else form
    if form not in _FORMATS:
        raise wrong("encoding_format", f"it must be {' or '.join(_FORMATS)}")
    return texts, form


def _shown(vector: np.ndarray[Any, Any], form: str) -> Any:
    if form == _FORMATS[0]:
        return vector.tolist()
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
