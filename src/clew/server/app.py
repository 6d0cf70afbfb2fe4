"""The server's URLs: those of OpenAI's API, and `/health`."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import html
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from clew.generation.result import Generation
from clew.server.answers import Answer, failure, refused
from clew.server.asked import Limits, Question, chat_question, text_question
from clew.server.engine import Engine, Event, Work
from clew.support.errors import ClewError, InputError
from clew.support.files import json_of

_BODY_WAIT_S: Final = 10.0
_LOOK_S: Final = 0.5
"""Seconds between two looks whether a client that waits for its answer is still there."""
_LEFT: Final = 499


class Endpoints:
    """The handlers of requests. An answer has at most `most_tokens` tokens."""

    def __init__(self, engine: Engine, name: str, most_tokens: int, most_body_bytes: int) -> None:
        self._engine, self._name = engine, name
        self._most_tokens, self._most_body_bytes = most_tokens, most_body_bytes

    async def health(self, request: Request) -> Response:
        """The server's figures, as JSON, or as a page for browsers."""
        figures = self._engine.figures
        found = {"status": "ok", "model": self._name, **figures._asdict()}
        found["seconds"] = round(figures.seconds, 1)
        if "text/html" not in request.headers.get("accept", ""):
            return JSONResponse(found)
        rows = "".join(
            f"<tr><th>{html.escape(name.replace('_', ' '))}<td>{html.escape(str(value))}"
            for name, value in found.items()
        )
        page = f"<!doctype html><meta charset=utf-8><title>clew serve</title><table>{rows}</table>"
        return HTMLResponse(page, headers={"content-security-policy": "default-src 'none'"})

    async def models(self, request: Request) -> Response:
        """The list of models: one."""
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        """The model of a name."""
        if request.path_params["name"] != self._name:
            return JSONResponse(refused("there is no such model"), 404)
        return JSONResponse(self._model())

    def _model(self) -> dict[str, Any]:
        return {"id": self._name, "object": "model", "created": 0, "owned_by": "clew"}

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
            body = await self._body(request)
            question = await asyncio.to_thread(read, body, self._engine.model, most)
        except ClewError as error:
            return _failed(error)
        if question.model not in ("", self._name):
            return JSONResponse(refused(f"the model is {self._name!r}"), 404)
        told: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        works = [
            Work(prompt, options, _teller(told, number))
            for number, (prompt, options) in enumerate(question.works)
        ]
        if not self._engine.accept(works):
            found = refused("too many requests are waiting", "rate_limit_exceeded")
            return JSONResponse(found, 429, headers={"retry-after": "1"})
        answer = Answer(self._name, is_chat)
        if question.streams:
            return await _streamed(request, question, works, told, answer)
        return await _whole(request, question, works, told, answer)

    async def _body(self, request: Request) -> Any:
        """Returns the JSON value of a request. Errors: I501."""
        data = b""
        try:
            async with asyncio.timeout(_BODY_WAIT_S):
                async for chunk in request.stream():
                    data += chunk
                    if len(data) > self._most_body_bytes:
                        raise InputError(
                            "I501", f"the body has more than {self._most_body_bytes} bytes"
                        )
            return json_of(data, finite=True)
        except (TimeoutError, ClientDisconnect, ValueError) as error:
            why = str(error) or "it is incomplete"
            raise InputError("I501", f"the body is not JSON: {why}") from None


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
                return _failed(event.error)
            texts[number] += event.piece
            if event.result is not None:
                results[number] = event.result
    finally:
        _cancel(works)
    ordered = [results[number] for number in range(len(works))]
    return _Json(answer.whole(texts, ordered))


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
            return _failed(first[1].error)
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
        try:
            await super().__call__(scope, receive, send)
        finally:
            _cancel(self._works)


class _Json(JSONResponse):
    """A JSON answer. Texts of a request or a chat template may hold lone surrogates."""

    def render(self, content: Any) -> bytes:
        return _json(content)


def _failed(error: Exception) -> Response:
    status, found = failure(error)
    return _Json(found, status)


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


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _event(value: Any) -> bytes:
    return b"data: " + _json(value) + b"\n\n"


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


def make_app(
    engine: Engine, name: str, token: str | None, most_tokens: int, most_body_bytes: int
) -> Any:
    """Returns the ASGI application. `token` is the key that clients need; None: they need none."""
    ends = Endpoints(engine, name, most_tokens, most_body_bytes)
    app = Starlette(
        routes=[
            Route("/health", ends.health),
            Route("/v1/models", ends.models),
            Route("/v1/models/{name:path}", ends.model),
            Route("/v1/completions", ends.text, methods=["POST"]),
            Route("/v1/chat/completions", ends.chat, methods=["POST"]),
        ],
        exception_handlers={HTTPException: _no_route},
    )
    return _Keyed(app, token)


async def _no_route(request: Request, error: Any) -> Response:
    """Answers requests for URLs and methods that the server does not have."""
    text = f"there is no {request.method} {request.url.path}"
    return _Json(refused(text), error.status_code, headers=error.headers)


class _Keyed:
    """Answers requests with the right key; `/health` needs none."""

    def __init__(self, app: Any, token: str | None) -> None:
        self._app = app
        self._wanted = None if token is None else f"Bearer {token}".encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        if self._wanted is not None and scope["path"] != "/health":
            given = [value for name, value in scope["headers"] if name == b"authorization"]
            if len(given) != 1 or not hmac.compare_digest(given[0], self._wanted):
                response = JSONResponse(
                    refused("the key is wrong or missing", "authentication_error"),
                    401,
                    headers={"www-authenticate": "Bearer"},
                )
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)
