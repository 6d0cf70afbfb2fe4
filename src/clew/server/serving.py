"""Starts and ends the server of a language model."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from clew.generation.embedding import TextEncoder
from clew.generation.language_model import LanguageModel
from clew.server.common import Endpoints, make_app
from clew.server.embeddings import VectorEndpoints
from clew.server.engine import Engine
from clew.server.texts import TextEndpoints
from clew.web.hosting import HEAD_WAIT_S, ended_by_signals, listening, server_of

_TOKEN_BYTES: Final = 24
_MOST_CONNECTIONS: Final = 256
NEW_TOKEN: Final = ""


@dataclass(frozen=True)
class Asked:
    """What to serve, and how. `token` is the key that clients need: `NEW_TOKEN` for a new one, None
    for none. `most_running` generations run at once, `most_waiting` others wait; each has at most
    `most_tokens` new tokens. Caches of earlier prompts have at most `most_prefix_bytes`.
    """

    model: LanguageModel | TextEncoder
    name: str
    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = NEW_TOKEN
    most_running: int = 8
    most_waiting: int = 64
    most_tokens: int = 4096
    most_body_bytes: int = 4 << 20
    most_prefix_bytes: int = 1 << 30


@dataclass(frozen=True)
class Serving:
    """A running server: its base URL, the key that it needs, and the function that ends it."""

    url: str
    token: str | None
    stop: Callable[[], None]


async def serve(asked: Asked, on_ready: Callable[[Serving], None]) -> None:
    """Serves until a signal (interrupt, termination, hang-up) or `Serving.stop`.

    Errors: I225 if the address or port cannot be used, I485 for a model without a tokenizer.
    """
    token = secrets.token_urlsafe(_TOKEN_BYTES) if asked.token == NEW_TOKEN else asked.token
    with _endpoints(asked) as ends, listening(asked.host, asked.port) as opened:
        server = server_of(make_app(ends, token), HEAD_WAIT_S, _MOST_CONNECTIONS)
        host = f"[{asked.host}]" if ":" in asked.host else asked.host
        with ended_by_signals(server.stop):
            running = asyncio.create_task(server.serve(sockets=[opened]))
            url = f"http://{host}:{opened.getsockname()[1]}/v1"
            on_ready(Serving(url, token, server.stop))
            await running


@contextlib.contextmanager
def _endpoints(asked: Asked) -> Iterator[Endpoints]:
    """Yields the handlers for a model. Errors: I485 for one without a tokenizer."""
    model = asked.model
    if isinstance(model, TextEncoder):
        yield VectorEndpoints(model, asked.name, asked.most_waiting, asked.most_body_bytes)
        return
    model.decode([])
    model.prefixes.most_bytes = asked.most_prefix_bytes
    engine = Engine(model, asked.most_running, asked.most_waiting)
    try:
        yield TextEndpoints(engine, asked.name, asked.most_tokens, asked.most_body_bytes)
    finally:
        engine.end()
