"""Serves a language model with Ray Serve: each replica runs its own `clew serve`.

serve run ray_serve:app folder=/models/verse replicas=2
"""

from __future__ import annotations

import ctypes
import signal
import subprocess
from collections.abc import AsyncIterator

import aiohttp
from ray import serve
from starlette.requests import Request
from starlette.responses import StreamingResponse

_PR_SET_PDEATHSIG = 1


def _ends_with_the_replica() -> None:
    """Runs in the server's process: has Linux stop it when the replica ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@serve.deployment(
    max_ongoing_requests=72,  # running and waiting answers of one server, by default
    health_check_period_s=2,
    health_check_timeout_s=5,
    ray_actor_options={"num_cpus": 1},
)
class Replica:
    """Starts a `clew serve` on a free port and forwards requests to it."""

    def __init__(self, folder: str, options: list[str]) -> None:
        command = ["clew", "serve", folder, "--port", "0", "--no-key", *options]
        self._server = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, preexec_fn=_ends_with_the_replica
        )
        assert self._server.stdout is not None
        self._url = self._server.stdout.readline().strip().removesuffix("/v1")
        if not self._url:
            raise RuntimeError(f"clew serve ended with {self._server.wait()}")
        self._client: aiohttp.ClientSession | None = None

    def _session(self) -> aiohttp.ClientSession:
        if self._client is None:  # a client belongs to the event loop that runs the requests
            self._client = aiohttp.ClientSession(self._url)
        return self._client

    async def check_health(self) -> None:
        """Raises an error if the server is gone or unhealthy, so that Ray replaces the replica."""
        async with self._session().get("/health", headers={"Accept": "application/json"}) as answer:
            answer.raise_for_status()

    async def __call__(self, request: Request) -> StreamingResponse:
        """Returns the server's answer, piece by piece."""
        answer = await self._session().request(
            request.method,
            request.url.path,
            data=await request.body(),
            headers={"Content-Type": request.headers.get("content-type", "application/json")},
            timeout=aiohttp.ClientTimeout(total=None),
        )

        async def pieces() -> AsyncIterator[bytes]:
            async with answer:  # stops the answer if the client disconnects
                async for piece in answer.content.iter_any():
                    yield piece

        return StreamingResponse(
            pieces(), answer.status, media_type=answer.headers.get("Content-Type")
        )

    def __del__(self) -> None:
        self._server.terminate()


def app(arguments: dict[str, str]) -> serve.Application:
    """Returns the application. Arguments are the model's `folder`, the number of `replicas`, and
    further `options` of `clew serve`.
    """
    replicas = int(arguments.get("replicas", "2"))
    options = arguments.get("options", "").split()
    deployment: serve.Deployment = Replica
    return deployment.options(num_replicas=replicas).bind(arguments["folder"], options)
