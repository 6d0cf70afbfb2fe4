"""Starts and ends the explorer's server: socket, temporary folder, signals."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from clew.explorer.app import make_app
from clew.explorer.builds.builds import Builds, Limits
from clew.explorer.builds.jobs import Job, Jobs
from clew.explorer.bundle import Bundle
from clew.explorer.choices import choices
from clew.explorer.models import Models
from clew.explorer.own import Own
from clew.explorer.schema import Options
from clew.explorer.security import TOKEN_BYTES, Guard, Hosts
from clew.support.folders import temporary_folder
from clew.web.hosting import HEAD_WAIT_S, ended_by_signals, listening, server_of

if TYPE_CHECKING:
    from clew.explorer.session import Session

# Paths that only the page may request: other sites may not even trigger such a request.
_OWN: Final = ("/api/", "/static/")
_MOST_CONNECTIONS: Final = 128


@dataclass(frozen=True)
class Asked:
    """The models to serve. `models` are files and how each is built; of two, the difference, too.
    `own` holds for all builds. `session` is a build of this process, which comes before them.
    """

    models: tuple[tuple[Path, Options], ...] = ()
    own: Own = field(default_factory=Own)
    session: Session | None = None
    host: str = "127.0.0.1"
    port: int = 0
    limits: Limits = field(default_factory=Limits)
    most_upload_bytes: int = 512 << 20
    head_wait_s: float = HEAD_WAIT_S
    body_wait_s: float = 10.0
    chunk_wait_s: float = 15.0
    bundle: Path | None = None


@dataclass(frozen=True)
class Serving:
    """A running server: its URL with the token, and the builds started with it."""

    url: str
    builds: Builds
    jobs: tuple[Job, ...]
    stop: Callable[[], None]


async def serve(asked: Asked, on_ready: Callable[[Serving], Awaitable[None] | None]) -> None:
    """Serves until a signal (interrupt, termination, hang-up) or `Serving.stop`; leaves neither
    processes nor files behind.

    Errors: I225.
    """
    with listening(asked.host, asked.port) as opened, _session_folder() as folder:
        port = opened.getsockname()[1]
        token = secrets.token_urlsafe(TOKEN_BYTES)
        models = Models(folder, asked.most_upload_bytes, asked.chunk_wait_s)
        builds = Builds(models, Jobs(), asked.limits, asked.own)
        app = make_app(
            builds,
            Bundle() if asked.bundle is None else Bundle(asked.bundle),
            body_wait_s=asked.body_wait_s,
        )
        guarded = Guard(app, token, Hosts(asked.host, port), _OWN)
        server = server_of(guarded, asked.head_wait_s, _MOST_CONNECTIONS)
        with ended_by_signals(server.stop):
            try:
                host = f"[{asked.host}]" if ":" in asked.host else asked.host
                url = f"http://{host}:{port}/{token}/"
                jobs = _begin(builds, asked)
                offered = asyncio.create_task(asyncio.to_thread(choices))  # the page asks first
                running = asyncio.create_task(server.serve(sockets=[opened]))
                waiting = on_ready(Serving(url, builds, jobs, server.stop))
                if waiting is not None:
                    extra = asyncio.ensure_future(waiting)
                    running.add_done_callback(lambda _: extra.cancel())
                await running
                await offered
            finally:
                await builds.end_all()


def _begin(builds: Builds, asked: Asked) -> tuple[Job, ...]:
    """Starts the requested builds."""
    if asked.session is not None:
        builds.open_local(asked.session)
    made = [builds.open(builds.models.add(path), options) for path, options in asked.models]
    jobs = [build.job for build in made if build.job is not None]
    if len(made) == 2:
        jobs.append(builds.compare(made[0].id, made[1].id, time=True, numerics=True))
    return tuple(jobs)


@contextlib.contextmanager
def _session_folder() -> Iterator[Path]:
    folder = temporary_folder("clew-explore-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
