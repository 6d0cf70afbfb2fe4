"""The server's URLs: each a function of a request, all under the token (`security.Guard`).

| | |
|---|---|
| `GET /` | the page |
| `GET /static/NAME` | its files |
| `GET /BUILD/ROUTE` | the page, or JSON with `.json` after the route or unless HTML is accepted |
| `GET /api/start` | `Start` |
| `GET /api/BUILD/ROUTE` | a route of `routes.py`; waits while the build is compiled |
| `POST /api/builds` | `NewBuild`, or a model's file → `BuildInfo` |
| `DELETE /api/builds/BUILD` | closes a build |
| `POST /api/BUILD/actions/NAME` | parameters → `Started` |
| `POST /api/diff` | `NewDiff` → `Started` |
| `GET /api/diff`, `GET /api/diff/A/B` | `Diff`; waits while it is computed |
| `GET /api/jobs/JOB/events` | `JobEvent`s as server-sent events, past ones first |
| `GET /api/jobs/JOB/result` | the job's result |
| `DELETE /api/jobs/JOB` | cancels it |

Errors are `ErrorInfo` as JSON.
"""

from __future__ import annotations

import asyncio
import gzip
import html
from collections.abc import AsyncIterator
from typing import Any, Final
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from clew.explorer import bundle, reading, schema
from clew.explorer.builds.builds import Builds, result_of
from clew.explorer.builds.processes import Answer
from clew.explorer.bundle import Bundle
from clew.explorer.choices import action_params, choices
from clew.explorer.failures import Failure, error_info
from clew.explorer.models import Part
from clew.explorer.wire import to_json
from clew.support.errors import ClewError, InputError
from clew.support.exhausted import exhausted

_MOST_JSON_BYTES: Final = 1 << 20
_BODY_WAIT_S: Final = 10.0
_MOST_FOLLOWERS: Final = 32
_HEARTBEAT_S: Final = 15.0
_LONGEST_ROUTE: Final = 2000
_JSON: Final = "application/json"


class Endpoints:
    """The request handlers."""

    def __init__(self, builds: Builds, files: Bundle, *, body_wait_s: float = _BODY_WAIT_S) -> None:
        self._builds = builds
        self._files = files
        self._body_wait_s = body_wait_s
        self._followers = 0

    # --- the page ---

    async def page(self, request: Request) -> Response:
        """The page, or instructions to build it."""
        index = self._files.get(bundle.INDEX)
        data = index.read() if index is not None else None
        if data is None:
            return _bundle_missing()
        return Response(data, media_type="text/html", headers={"cache-control": "no-store"})

    async def static(self, request: Request) -> Response:
        """A file of the page."""
        file = self._files.get(request.path_params["name"])
        data = file.read() if file is not None else None
        if file is None or data is None:
            raise Failure(InputError("I211", "no such file"), 404)
        headers = {"cache-control": "no-cache", "content-type": file.media_type}
        return Response(data, headers=headers)

    async def page_route(self, request: Request) -> Response:
        """A route's JSON for programs; for browsers the page, opened at that route."""
        build, route = request.path_params["build"], request.path_params["route"]
        self._builds.get(build)
        if route.endswith(".json"):
            return await self._asked(request, build, route.removesuffix(".json"))
        if "text/html" not in request.headers.get("accept", ""):
            return await self._asked(request, build, route)
        depth = request.scope["raw_path"].count(b"/") - 1  # names may hold encoded slashes
        return RedirectResponse("../" * depth + _place(build, route), 303)

    # --- builds ---

    async def start(self, request: Request) -> Response:
        """The existing builds, and the options for new ones."""
        offered = await asyncio.to_thread(choices)
        models = self._builds.models
        found = schema.Start(
            version=schema.VERSION,
            live=True,
            builds=self._builds.infos,
            diff=self._builds.has_diff,
            choices=schema.Choices(
                **offered,
                max_upload_bytes=models.most_bytes,
                models=models.names,
                extensions=list(self._builds.own.extend),
            ),
        )
        return _json(found)

    async def route(self, request: Request) -> Response:
        """A build's answer to a route."""
        return await self._asked(
            request, request.path_params["build"], request.path_params["route"]
        )

    async def open_build(self, request: Request) -> Response:
        """Starts a build of a known model, or of an uploaded one."""
        if _media_type(request) == "application/octet-stream":
            build = await self._uploaded(request)
        else:
            asked = reading.read(schema.NewBuild, await self._body(request))
            build = self._builds.open(self._builds.models.get(asked.model), asked.options)
        return _json(build.info, 201)

    async def close_build(self, request: Request) -> Response:
        """Ends a build."""
        self._builds.close(request.path_params["build"])
        return Response(status_code=204)

    async def act(self, request: Request) -> Response:
        """Starts an action."""
        build, name = request.path_params["build"], request.path_params["name"]
        self._builds.get(build)
        params = await asyncio.to_thread(action_params, name)
        body = await self._body(request)
        reading.read_object(params, body, "params")
        job = self._builds.act(build, name, body)
        return _json(schema.Started(job.id), 202)

    # --- two builds ---

    async def open_diff(self, request: Request) -> Response:
        """Starts a comparison of two builds."""
        asked = reading.read(schema.NewDiff, await self._body(request))
        job = self._builds.compare(asked.a, asked.b, asked.time, asked.numerics)
        return _json(schema.Started(job.id), 202)

    async def diff(self, request: Request) -> Response:
        """The difference of two builds."""
        pair = request.path_params
        answer = await self._builds.compared(pair.get("a", ""), pair.get("b", ""))
        return await _answered(request, answer)

    # --- jobs ---

    async def events(self, request: Request) -> Response:
        """A job's events, as they come."""
        job = self._builds.jobs.get(request.path_params["job"])
        after = request.headers.get("last-event-id", "0")
        seen = int(after) if after.isdecimal() and len(after) < 10 else 0
        if job.outcome is not None and seen >= job.last:
            return Response(status_code=204)  # tells an EventSource not to reconnect
        if self._followers >= _MOST_FOLLOWERS:
            raise Failure(InputError("I215", f"{_MOST_FOLLOWERS} clients already follow jobs"), 429)

        async def lines() -> AsyncIterator[bytes]:
            self._followers += 1
            try:
                async for found in job.follow(seen, _HEARTBEAT_S):
                    if found is None:
                        yield b": still there\n\n"
                        continue
                    number, event = found
                    yield b"id: %d\ndata: %s\n\n" % (number, to_json(event))
            finally:
                self._followers -= 1

        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(lines(), media_type="text/event-stream", headers=headers)

    async def result(self, request: Request) -> Response:
        """A job's result."""
        job = self._builds.jobs.get(request.path_params["job"])
        return await _answered(request, await result_of(job))

    async def cancel(self, request: Request) -> Response:
        """Cancels a job; its events say when it has stopped."""
        self._builds.jobs.get(request.path_params["job"]).cancel_asked.set()
        return Response(status_code=204)

    # --- reading requests ---

    async def _asked(self, request: Request, build: str, route: str) -> Response:
        if len(route) > _LONGEST_ROUTE:
            raise Failure(InputError("I211", "no such route"), 404)
        return await _answered(request, await self._builds.ask(build, route))

    async def _uploaded(self, request: Request) -> Any:
        query = request.query_params
        asked = reading.parsed(query.get("options", "{}").encode())
        options = reading.read(schema.Options, asked, "options")
        size = request.headers.get("content-length", "")
        announced = int(size) if size.isdecimal() and len(size) < 20 else None
        parts = _parts(query.get("parts", ""))
        model = await self._builds.models.upload(
            query.get("name", ""), announced, request.stream(), parts
        )
        try:
            return self._builds.open(model, options)
        except Failure:
            self._builds.models.drop(model)
            raise

    async def _body(self, request: Request) -> Any:
        if _media_type(request) != _JSON:
            raise Failure(InputError("I214", f"the body must be {_JSON}"), 415)
        data = bytearray()
        try:
            async with asyncio.timeout(self._body_wait_s):
                async for chunk in request.stream():
                    data += chunk
                    if len(data) > _MOST_JSON_BYTES:
                        raise Failure(
                            InputError("I212", f"more than {_MOST_JSON_BYTES} bytes"), 413
                        )
        except TimeoutError:
            raise Failure(InputError("I213", "the request took too long to arrive"), 408) from None
        return reading.parsed(bytes(data))


def make_app(builds: Builds, files: Bundle, *, body_wait_s: float = _BODY_WAIT_S) -> Starlette:
    """Returns the application, without its guard."""
    register_url_convertor("any", _AnyPath())
    on = Endpoints(builds, files, body_wait_s=body_wait_s)
    routes = [
        Route("/", on.page),
        Route("/static/{name:path}", on.static),
        Route("/api/start", on.start),
        Route("/api/builds", on.open_build, methods=["POST"]),
        Route("/api/builds/{build}", on.close_build, methods=["DELETE"]),
        Route("/api/diff", on.open_diff, methods=["POST"]),
        Route("/api/diff", on.diff),
        Route("/api/diff/{a}/{b}", on.diff),
        Route("/api/jobs/{job}", on.cancel, methods=["DELETE"]),
        Route("/api/jobs/{job}/events", on.events),
        Route("/api/jobs/{job}/result", on.result),
        Route("/api/{build}/actions/{name}", on.act, methods=["POST"]),
        Route("/api/{build}/{route:any}", on.route),
        Route("/{build}/{route:any}", on.page_route),
    ]
    handlers: dict[Any, Any] = {
        Failure: _failed,
        ClewError: _refused,
        HTTPException: _http_error,
        ClientDisconnect: _gone,
        OSError: _exhausted,
        RuntimeError: _exhausted,
        Exception: _broken,
    }
    return Starlette(routes=routes, exception_handlers=handlers)


# The pane that shows a route.
_PANES: Final = {
    "stage": "stage",
    "code": "loops",
    "schedule": "schedule",
    "source": "model",
    "roofline": "roofline",
    "timeline": "timeline",
}


def _place(build: str, route: str) -> str:
    """Returns the page's hash for a route, as `frontend/src/url.ts` reads it."""
    head, _, rest = route.partition("/")
    query = [] if build == "a" else [("build", build)]
    if head in _PANES:
        query.append(("p", f"{build}/{_PANES[head]}:{rest if rest.isdecimal() else 0}"))
    elif head == "story":
        query.append(("at", f"{build}/{rest}"))
    elif head == "heat":
        query.append(("heat", rest))
    return f"#{urlencode(query)}"


class _AnyPath(Convertor[str]):
    """The rest of a path, line breaks included: layer names may contain any character."""

    regex = "(?s:.*)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


def _parts(text: str) -> list[Part]:
    """Returns the files of an upload, from `[["m.onnx", 12], ["m.data", 345]]`."""
    if not text:
        return []
    found = reading.parsed(text.encode())
    rows = reading.read(list[list[str | int]], found, "parts")
    if not all(len(row) == 2 for row in rows):
        raise InputError("I210", "malformed request: parts are pairs of name and bytes")
    return [
        Part(reading.read(str, name, "a part's name"), reading.read(int, count, "a part's number"))
        for name, count in rows
    ]


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _json(value: Any, status: int = 200) -> Response:
    headers = {"cache-control": "no-store"}
    return Response(to_json(value), status, media_type=_JSON, headers=headers)


async def _answered(request: Request, answer: Answer) -> Response:
    headers = {"cache-control": "no-store", "vary": "accept-encoding"}
    body = answer.body
    if answer.gzip and "gzip" in request.headers.get("accept-encoding", ""):
        headers["content-encoding"] = "gzip"
    elif answer.gzip:
        body = await asyncio.to_thread(gzip.decompress, body)
    return Response(body or b"null", media_type=_JSON, headers=headers)


async def _failed(request: Request, failure: Exception) -> Response:
    assert isinstance(failure, Failure)
    return _json(failure.info, failure.status)


async def _refused(request: Request, error: Exception) -> Response:
    return _json(error_info(error), 400)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _json(error_info(InputError("I211", "no such URL")), error.status_code)


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=400)


async def _exhausted(request: Request, error: Exception) -> Response:
    """Answers where the disk is full, or no file, thread or process can be opened or started."""
    coded = exhausted(error)
    if coded is None:
        raise error
    return _json(error_info(coded), 507)


async def _broken(request: Request, error: Exception) -> Response:
    return _json(error_info(error), 500)


def _bundle_missing() -> Response:
    error = InputError(
        "I222", "the page has not been built", hint=f"to build it: {bundle.HOW_TO_BUILD}"
    )
    text = html.escape(str(error))
    page = f"<!doctype html><html lang=en><title>clew</title><pre>{text}</pre></html>"
    return Response(page, 503, media_type="text/html", headers={"cache-control": "no-store"})
