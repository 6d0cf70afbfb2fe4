"""`compiled.explore()`: the page for a model that this process has compiled."""

from __future__ import annotations

import asyncio
import threading
import webbrowser
from types import TracebackType
from typing import Final

from clew.explorer import server
from clew.explorer.builds.builds import Limits, default_memory_bytes
from clew.explorer.builds.local import options_of
from clew.explorer.own import Own
from clew.explorer.session import Session
from clew.serving.built_model import BuiltModel
from clew.support.errors import InputError
from clew.support.settings import usable_cpus

_NAME: Final = "model"


class Explored:
    """A served page: open `url`, which contains a secret, and call `stop()` when done.

    As a context manager it stops at the end of the block. The page also ends with the process.
    """

    def __init__(self, asked: server.Asked) -> None:
        self._ready = threading.Event()
        self._serving: server.Serving | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(
            target=self._run, args=[asked], name="clew-explore", daemon=True
        )
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            raise self._error

    def __repr__(self) -> str:
        return f"<Explored at {self.url}>" if self.is_served else "<Explored, stopped>"

    @property
    def url(self) -> str:
        """The page's address on this machine. Anyone who knows it can use the page."""
        assert self._serving is not None
        return self._serving.url

    @property
    def is_served(self) -> bool:
        """Whether the page is being served."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Ends the server and the processes started by the page; further calls do nothing."""
        if self._loop is not None and self._serving is not None and self.is_served:
            self._loop.call_soon_threadsafe(self._serving.stop)
        self._thread.join()

    def wait(self) -> None:
        """Returns when the page is stopped; an interrupt (Ctrl-C) stops it."""
        try:
            while self.is_served:
                self._thread.join(0.2)
        except KeyboardInterrupt:
            self.stop()

    def __enter__(self) -> Explored:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.stop()

    def _run(self, asked: server.Asked) -> None:
        def on_ready(serving: server.Serving) -> None:
            self._loop = asyncio.get_running_loop()
            self._serving = serving
            self._ready.set()

        try:
            asyncio.run(server.serve(asked, on_ready))
        except BaseException as error:
            self._error = error
        finally:
            self._ready.set()


def explore(
    compiled: BuiltModel,
    *,
    port: int = 0,
    host: str = "127.0.0.1",
    browser: bool = False,
    block: bool = False,
) -> Explored:
    """Serves the page of a compiled model; see `BuiltModel.explore`."""
    if not 0 <= port < 1 << 16:
        raise InputError("I343", f"the port is {port}", hint="use 0 (a free port) to 65535")
    session = Session(compiled, model=_NAME, options=options_of(compiled))
    session.trace  # noqa: B018 - what is missing is said here, not by the page
    asked = server.Asked(
        session=session,
        own=Own(),
        host=host,
        port=port,
        limits=Limits(memory_bytes=default_memory_bytes(), compile_at_once=usable_cpus()),
    )
    made = Explored(asked)
    if browser:
        threading.Thread(target=webbrowser.open, args=[made.url], daemon=True).start()
    if block:
        try:
            print(made.url, flush=True)
            made.wait()
        except KeyboardInterrupt:
            made.stop()
    return made
