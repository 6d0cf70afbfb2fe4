"""What clew's web servers have in common: a socket, an end by signals, bounds on connections."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any, Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from clew.support.errors import InputError

HEAD_WAIT_S: Final = 10.0
_HEAD_BYTES: Final = 32 << 10
_KEEP_ALIVE_S: Final = 30


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


class Server(uvicorn.Server):
    """A uvicorn server that neither handles signals nor waits for open connections at the end."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to `ended_by_signals`."""
        yield

    def stop(self) -> None:
        """Ends the server, at once."""
        self.should_exit = self.force_exit = True


def server_of(app: Any, head_wait_s: float, most_connections: int) -> Server:
    """Returns a server of an ASGI application, which ends a connection whose request's head does
    not arrive in some seconds.
    """
    return Server(
        uvicorn.Config(
            app,
            http=_protocol(head_wait_s),
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=most_connections,
            h11_max_incomplete_event_size=_HEAD_BYTES,
            timeout_keep_alive=_KEEP_ALIVE_S,
        )
    )


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
def ended_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Calls `stop` at an interrupt, a termination and a hang-up, in the block."""
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
