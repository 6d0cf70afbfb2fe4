"""A build in this process: the compiled model that `compiled.explore()` shows.

It has the interface of a worker process (`WorkerProcess`), and uses its own threads: one answers
questions one after the other, another does work one after the other. Threads have limits: memory is
not bounded, and cancelled work that does not notice the cancellation continues in the background.
"""

from __future__ import annotations

import asyncio
import gzip
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from clew.backends.option_records import place_texts
from clew.explorer.actions.table import ACTIONS, act
from clew.explorer.builds.compiling import open_session
from clew.explorer.builds.processes import Answer, Died, Say
from clew.explorer.builds.protocol import Head
from clew.explorer.direct import compare
from clew.explorer.failures import Cancelled, Failure, error_info
from clew.explorer.own import Own
from clew.explorer.reading import read, read_object
from clew.explorer.routes import answer
from clew.explorer.schema import Options
from clew.explorer.session import Session
from clew.explorer.wire import to_json
from clew.ir.textfile import save_module
from clew.passes.fusion.fuse_ops import FuseOps
from clew.passes.placement.annotate_target import AnnotateTarget
from clew.passes.placement.rules import ByLayers
from clew.passes.precision.convert_precision import ConvertPrecision
from clew.support.errors import ClewError, InputError
from clew.support.locks import Lock

_GZIP_FROM_BYTES: Final = 2048


def options_of(compiled: Any) -> Options:
    """Returns the options of a compiled model that the page can express. Additions from Python
    (passes, fusions, schedules) are not among them.
    """
    given = compiled.options
    narrow = [p for p in given.passes if isinstance(p, ConvertPrecision)]
    return Options(
        target=given.target.name,
        threads=given.threads,
        opt_level=given.opt_level,
        precision=narrow[0].dtype if narrow else "f32",
        fuse=not any(isinstance(p, FuseOps) and p.mode == "none" for p in given.passes),
        disabled=list(given.disabled),
        required=list(given.required),
        keep_f32=list(narrow[0].keep_f32) if narrow else [],
        backends=[b.name for b in given.backends],
        place=_place_of(given),
    )


def _place_of(given: Any) -> list[str]:
    """Returns where parts of a model run as the page can express it: by measured costs, or by
    layers. Other rules are left out.
    """
    if given.placement is not None:
        return ["auto"]
    rules = [p.rule for p in given.passes if isinstance(p, AnnotateTarget)]
    if not rules or not isinstance(rules[0], ByLayers):
        return []
    return place_texts(rules[0].layers)


def write_model(session: Session, path: Path) -> None:
    """Writes the model's imported graph, from which other builds are made."""
    save_module(session.trace.stages[0].module, path)


class LocalWorker:
    """The work on one session. All methods are for the event loop's thread."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lanes = {"answer": Lock(), "work": Lock()}
        self._waiting: set[asyncio.Future[Answer]] = set()
        self._stopped: set[asyncio.Future[Answer]] = set()
        self.alive = True

    async def ask(self, head: Head, say: Say | None = None) -> Answer:
        """Returns the result of a request; `say` receives progress.

        Raises `Failure` with the error, `Died` after `kill`, or `Cancelled`.
        """
        if not self.alive:
            raise Died(error_info(InputError("I217", "the work on the model was stopped")))
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        self._waiting.add(future)
        lane = self._lanes["answer" if head["do"] == "answer" else "work"]

        def heard(text: str, fraction: float | None = None) -> None:
            if future in self._stopped or not self.alive:
                raise Cancelled
            if say is not None:
                loop.call_soon_threadsafe(say, text, fraction)

        def work() -> None:
            try:
                with lane:
                    found = self._do(head, heard)
                settle: tuple[Callable[..., None], Any] = (future.set_result, found)
            except BaseException as error:
                settle = (future.set_exception, _failure(head, error))
            if not loop.is_closed():
                loop.call_soon_threadsafe(_unless_done, future, *settle)

        threading.Thread(target=work, name="clew-explore", daemon=True).start()
        try:
            return await future
        finally:
            self._waiting.discard(future)

    def cancel(self) -> None:
        """Asks running work to stop when it next reports progress."""
        self._stopped |= self._waiting

    def kill(self) -> None:
        """Abandons running work."""
        self.alive = False
        for future in self._waiting:
            _unless_done(future, future.set_exception, Cancelled())

    async def closed(self) -> None:
        """Returns at once: there is no process to wait for."""

    def _do(self, head: Head, say: Any) -> Answer:
        session = self._session
        if head["do"] == "compile":
            say("reading the trace", 0.9)
            answer(session, "overview")
            return Answer(b"")
        if head["do"] == "answer":
            body = to_json(answer(session, head["route"]))
            small = len(body) < _GZIP_FROM_BYTES
            return Answer(body if small else gzip.compress(body, 1, mtime=0), not small)
        if head["do"] == "act":
            action = ACTIONS[head["name"]]
            params = read_object(action.params, head["params"], "params")
            return Answer(to_json(act(action, session, params, say)))
        a, b = (self._opened(head[name], say) for name in ("a", "b"))
        names = head["a"]["id"], head["b"]["id"]
        return Answer(
            to_json(compare(a, b, say, names=names, time=head["time"], numerics=head["numerics"]))
        )

    def _opened(self, head: Head, say: Any) -> Session:
        """Returns the session of a build to compare: this one, or another one made here."""
        if head["local"]:
            return self._session
        options, own = read(Options, head["options"], "options"), Own(**head["own"])
        return open_session(Path(head["path"]), head["model"], options, say, own=own)


def _unless_done(future: asyncio.Future[Any], settle: Callable[..., None], value: Any) -> None:
    if not future.done():
        settle(value)


def _failure(head: Head, error: BaseException) -> BaseException:
    if isinstance(error, (Cancelled, Failure)):
        return error
    if not isinstance(error, (ClewError, MemoryError)):
        traceback.print_exception(error)  # for the user of Python, not of the page
    missing = head["do"] == "answer" and isinstance(error, InputError)
    return Failure(error_info(error), 404 if missing else 422)
