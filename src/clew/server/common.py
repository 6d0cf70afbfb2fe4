"""What the server's URLs have in common: the list of models, `/health`, bodies, keys."""

from __future__ import annotations

import asyncio
import hmac
import html
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from clew.server.answers import failure, refused
from clew.support.errors import InputError
from clew.support.files import json_of

_BODY_WAIT_S: Final = 10.0


class Endpoints(ABC):
    """The handlers of requests for one model."""

    def __init__(self, name: str, most_body_bytes: int) -> None:
        self.name = name
        self._most_body_bytes = most_body_bytes

    @property
    @abstractmethod
    def own_routes(self) -> Sequence[Route]:
        """The URLs of the model's kind."""

    @abstractmethod
    def figures(self) -> Mapping[str, Any]:
        """Returns what the server does and has done."""

    @property
    def routes(self) -> list[Route]:
        """All URLs."""
        return [
            Route("/health", self.health),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.model),
            *self.own_routes,
        ]

    async def health(self, request: Request) -> Response:
        """The server's figures, as JSON, or as a page for browsers."""
        found = {"status": "ok", "model": self.name, **self.figures()}
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
        if request.path_params["name"] != self.name:
            return JSONResponse(refused("there is no such model"), 404)
        return JSONResponse(self._model())

    def _model(self) -> dict[str, Any]:
        return {"id": self.name, "object": "model", "created": 0, "owned_by": "clew"}

    def of_another(self, model: Any) -> Response | None:
        """Returns the refusal of a request for another model; None for this one."""
        if not isinstance(model, str) or model in ("", self.name):
            return None
        return JSONResponse(refused(f"the model is {self.name!r}"), 404)

    async def body(self, request: Request) -> Any:
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


def busy() -> Response:
    """Returns the refusal of a request for which there is no room."""
    found = refused("too many requests are waiting", "rate_limit_exceeded")
    return JSONResponse(found, 429, headers={"retry-after": "1"})


class Json(JSONResponse):
    """A JSON answer. Texts of a request or a chat template may hold lone surrogates."""

    def render(self, content: Any) -> bytes:
        return json_bytes(content)


def failed(error: Exception) -> Response:
    """Returns the answer for an error."""
    status, found = failure(error)
    return Json(found, status)


def json_bytes(value: Any) -> bytes:
    """Returns a value as JSON in UTF-8."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def make_app(ends: Endpoints, token: str | None) -> Any:
    """Returns the ASGI application. `token` is the key that clients need; None: they need none."""
    app = Starlette(routes=ends.routes, exception_handlers={HTTPException: _no_route})
    return _Keyed(app, token)


async def _no_route(request: Request, error: Any) -> Response:
    """Answers requests for URLs and methods that the server does not have."""
    text = f"there is no {request.method} {request.url.path}"
    return Json(refused(text), error.status_code, headers=error.headers)


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
