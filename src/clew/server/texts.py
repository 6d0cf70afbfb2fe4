"""Texts over HTTP: the URLs of OpenAI's API for completions and conversations."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from clew.generation.result import Generation
from clew.server.answers import Answer, failure
from clew.server.asked import Limits, Question, chat_question, text_question
from clew.server.common import Endpoints, Json, busy, failed, json_bytes
from clew.server.engine import Engine, Event, Work
from clew.support.errors import ClewError

_LOOK_S: Final = 0.5
"""Seconds between two looks whether a client that waits for its answer is still there."""
_LEFT: Final = 499


class TextEndpoints(Endpoints):
    """The handlers of requests for texts. An answer has at most `most_tokens` tokens."""

    def __init__(self, engine: Engine, name: str, most_tokens: int, most_body_bytes: int) -> None:
        super().__init__(name, most_body_bytes)
        self._engine, self._most_tokens = engine, most_tokens

    @property
    def own_routes(self) -> Sequence[Route]:
        """The URLs of completions and conversations."""
        return (
            Route("/v1/completions", self.text, methods=["POST"]),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
        )

    def figures(self) -> Mapping[str, Any]:
        """Returns the figures of the engine."""
        figures = self._engine.figures
        return {**figures._asdict(), "seconds": round(figures.seconds, 1)}

    async def chat(self, request: Request) -> Response:
        """The answer to a conversation."""
        return await self._answered(request, True)

    async def text(self, request: Request) -> Response:
        """The continuation of texts."""
        return await self._answered(request, False)

    async def _answered(self, request: Request, is_chat: bool) -> Response:
        read = chat_question if is_chat else text_question
        most = Limits(self._most_tokens, self._engine.room)
        try:
            body = await self.body(request)
            question = await asyncio.to_thread(read, body, self._engine.model, most)
        except ClewError as error:
            return failed(error)
        refusal = self.of_another(question.model)
        if refusal is not None:
            return refusal
        told: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        works = [
            Work(prompt, options, _teller(told, number))
            for number, (prompt, options) in enumerate(question.works)
        ]
        if not self._engine.accept(works):
            return busy()
        answer = Answer(self.name, is_chat)
        if question.streams:
            return await _streamed(request, question, works, told, answer)
        return await _whole(request, question, works, told, answer)


async def _whole(
    request: Request,
    question: Question,
    works: list[Work],
    told: asyncio.Queue[tuple[int, Event]],
    answer: Answer,
) -> Response:
    texts = list(question.echoes)
    results: dict[int, Generation] = {}
    try:
        while len(results) < len(works):
            found = await _next(request, told)
            if found is None:
                return Response(status_code=_LEFT)
            number, event = found
            if event.error is not None:
                return failed(event.error)
            texts[number] += event.piece
            if event.result is not None:
                results[number] = event.result
    finally:
        _cancel(works)
    ordered = [results[number] for number in range(len(works))]
    return Json(answer.whole(texts, ordered))


async def _streamed(
    request: Request,
    question: Question,
    works: list[Work],
    told: asyncio.Queue[tuple[int, Event]],
    answer: Answer,
) -> Response:
    """Returns the answer as server-sent events. An error before the first text is the status."""
    has_begun = False
    try:
        first = await _next(request, told)
        if first is None:
            return Response(status_code=_LEFT)
        if first[1].error is not None:
            return failed(first[1].error)
        has_begun = True
        return _Events(_events(question, told, answer, first), works)
    finally:
        if not has_begun:
            _cancel(works)


async def _events(
    question: Question,
    told: asyncio.Queue[tuple[int, Event]],
    answer: Answer,
    first: tuple[int, Event],
) -> AsyncIterator[bytes]:
    results: list[Generation] = []
    for number, echo in enumerate(question.echoes):
        if (part := answer.first(number)) is not None:
            yield _event(part)
        if echo:
            yield _event(answer.piece(number, echo))
    number, event = first
    while True:
        if event.error is not None:
            yield _event(failure(event.error)[1])
            return
        if event.piece:
            yield _event(answer.piece(number, event.piece))
        if event.result is not None:
            results.append(event.result)
            yield _event(answer.last(number, event.result))
        if len(results) == len(question.works):
            break
        number, event = await told.get()
    if question.includes_usage:
        yield _event(answer.with_usage(results))
    yield b"data: [DONE]\n\n"


class _Events(StreamingResponse):
    """Server-sent events, and the generations that end with them, also if the client has left
    before the first event.
    """

    def __init__(self, events: AsyncIterator[bytes], works: list[Work]) -> None:
        headers = {"cache-control": "no-store"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._works = works

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def send_in_turn(message: Any) -> None:
            await send(message)
            # A write fails if the client has left, but the server learns of it in the loop only:
            # asyncio logs further writes until then.
            await asyncio.sleep(0)

        try:
            await super().__call__(scope, receive, send_in_turn)
        finally:
            _cancel(self._works)


async def _next(
    request: Request, told: asyncio.Queue[tuple[int, Event]]
) -> tuple[int, Event] | None:
    """Returns the next event, or None if the client has left."""
    while True:
        try:
            return await asyncio.wait_for(told.get(), _LOOK_S)
        except TimeoutError:
            if await request.is_disconnected():
                return None


def _event(value: Any) -> bytes:
    return b"data: " + json_bytes(value) + b"\n\n"


def _cancel(works: list[Work]) -> None:
    for work in works:
        work.cancel()


def _teller(told: asyncio.Queue[tuple[int, Event]], number: int) -> Callable[[Event], None]:
    """Returns a function that another thread may call, which puts events into a queue."""
    loop = asyncio.get_running_loop()

    def tell(event: Event) -> None:
        with contextlib.suppress(RuntimeError):  # the server has ended
            loop.call_soon_threadsafe(told.put_nowait, (number, event))

    return tell
