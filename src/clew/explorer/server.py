"""Starts and ends the explorer's server: socket, temporary folder, signals."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import secrets
import shutil
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from clew.explorer.app import make_app
from clew.explorer.builds.builds import Builds, Limits
from clew.explorer.builds.jobs import Job, Jobs
from clew.explorer.bundle import Bundle
from clew.explorer.choices import choices
from clew.explorer.models import Models
from clew.explorer.own import Own
from clew.explorer.schema import Options
from clew.explorer.security import TOKEN_BYTES, Guard, Hosts
from clew.support.errors import InputError
from clew.support.folders import temporary_folder

if TYPE_CHECKING:
    from clew.explorer.session import Session

# Paths that only the page may request: other sites may not even trigger such a request.
_OWN: Final = ("/api/", "/static/")
_MOST_CONNECTIONS: Final = 128
_HEAD_BYTES: Final = 32 << 10
_HEAD_WAIT_S: Final = 10.0
_KEEP_ALIVE_S: Final = 30


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
    head_wait_s: float = _HEAD_WAIT_S
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


def listening(host: str, port: int) -> socket.socket:
    """Returns a listening socket; port 0 takes a free one.

    Errors: I225 if the address or port cannot be used.
    """
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        opened = socket.socket(family, kind, proto)
        try:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            opened.bind(address)
            opened.listen(128)
        except OSError:
            opened.close()
            raise
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a host name"
        raise InputError(
            "I225",
            f"cannot listen at {host!r}, port {port}: {reason}",
            hint="--port 0 uses a free port, --host 127.0.0.1 is this machine",
        ) from None
    return opened


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


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
        server = _Server(
            uvicorn.Config(
                Guard(app, token, Hosts(asked.host, port), _OWN),
                http=_protocol(asked.head_wait_s),
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="critical",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=_MOST_CONNECTIONS,
                h11_max_incomplete_event_size=_HEAD_BYTES,
                timeout_keep_alive=_KEEP_ALIVE_S,
            )
        )
        with _signals(server.stop):
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


class _Server(uvicorn.Server):
    """A uvicorn server that neither handles signals nor waits for open connections at the end."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to `serve`."""
        yield

    def stop(self) -> None:
        """Ends the server, at once."""
        self.should_exit = self.force_exit = True


def _protocol(head_wait_s: float) -> type[asyncio.Protocol]:
    class Impatient(H11Protocol):
        """A connection that must send the head of its request within some seconds."""

        _waiting: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            if self._waiting is not None:
                self._waiting.cancel()
            super().connection_lost(exc)

        def _watch(self) -> None:
            """Starts the timer while the head of a request is incomplete, and stops it when it is
            complete.
            """
            if self.conn.their_state is not h11.IDLE:
                if self._waiting is not None:
                    self._waiting.cancel()
                self._waiting = None
            elif self._waiting is None:
                self._waiting = self.loop.call_later(head_wait_s, self.transport.close)

    return Impatient


@contextlib.contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    handled = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        with contextlib.suppress(ValueError, RuntimeError):  # only the main thread may
            loop.add_signal_handler(number, stop)
            handled.append(number)
    try:
        yield
    finally:
        for number in handled:
            loop.remove_signal_handler(number)


@contextlib.contextmanager
def _session_folder() -> Iterator[Path]:
    folder = temporary_folder("clew-explore-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
