"""A worker process: one build, or the comparison of two.

It leads its own process group, so that it can be killed together with the processes that it starts,
and it ends with the server's process. The main thread compiles and measures, another thread answers
questions meanwhile, a third one reads messages.

| message | body of its answer |
|---|---|
| `{do: compile, id, path, model, options, own}` | nothing |
| `{do: answer, id, route}` | the route's JSON; `gzip` is set if it is compressed |
| `{do: act, id, name, params}` | the action's result |
| `{do: diff, id, a, b, time, numerics}` | a `schema.Diff`; `a`, `b` as for `compile` |
| `{do: cancel, id}` | none: the work itself answers |

Answers are `{id, kind}` with kind `progress` (with `text`, `fraction`), `done`, `failed` (the body
is an `ErrorInfo`; `missing` is set if the object of a route does not exist) or `cancelled`.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gzip
import os
import queue
import resource
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from clew.explorer.builds.protocol import Head, packed, received
from clew.explorer.failures import Cancelled, error_info
from clew.explorer.own import Own
from clew.explorer.reading import read, read_object
from clew.explorer.schema import Options
from clew.explorer.wire import to_json
from clew.support.errors import ClewError, CompileError, InputError
from clew.support.folders import temporaries_in
from clew.support.locks import Lock

# Smaller answers are not worth compressing; level 1 is several times as fast as the default level.
_GZIP_FROM_BYTES: Final = 2048
_GZIP_LEVEL: Final = 1
# Least seconds between progress messages: repainting the page would disturb measurements.
_SAY_EVERY_S: Final = 0.25
_DEATH_SIGNAL: Final = 1  # PR_SET_PDEATHSIG of prctl(2)


class Worker:
    """The work of one process, which `connection` leads to."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = Lock()
        self._work: queue.SimpleQueue[Head] = queue.SimpleQueue()
        self._questions: queue.SimpleQueue[Head] = queue.SimpleQueue()
        self._cancelled: set[int] = set()
        self._session: Any = None
        self._folders: list[Path] = []
        self._does: dict[str, Callable[[Head, _Speaker], bytes]] = {
            "compile": self._compile,
            "act": self._act,
            "diff": self._diff,
        }

    def serve(self) -> None:
        """Works until the process is ended."""
        for target in (self._listen, self._answer_questions):
            threading.Thread(target=target, daemon=True).start()
        while True:
            self._perform(self._work.get(), self._do)

    def _listen(self) -> None:
        while (message := received(self._connection)) is not None:
            head, _ = message
            if head["do"] == "cancel":
                self._cancelled.add(head["id"])
            elif head["do"] == "answer":
                self._questions.put(head)
            else:
                self._work.put(head)
        end_group()

    def _answer_questions(self) -> None:
        while True:
            self._perform(self._questions.get(), self._answer)

    def _perform(self, head: Head, work: Callable[[Head], None]) -> None:
        try:
            work(head)
        except Cancelled:
            self._send({"id": head["id"], "kind": "cancelled"})
        except BaseException as error:
            if not isinstance(error, (ClewError, MemoryError)) or _is_ours(error):
                traceback.print_exc()  # to the terminal, not to the page
            # A malformed question: the requested object does not exist.
            missing = head["do"] == "answer" and isinstance(error, InputError)
            info = to_json(error_info(error, self._folders))
            self._send({"id": head["id"], "kind": "failed", "missing": missing}, info)

    def _send(self, head: Head, body: bytes = b"") -> None:
        with self._sending:
            try:
                self._connection.sendall(packed(head, body))
            except OSError:
                end_group()

    def _do(self, head: Head) -> None:
        speaker = _Speaker(head["id"], self._send, self._cancelled)
        body = self._does[head["do"]](head, speaker)
        self._send({"id": head["id"], "kind": "done"}, body)

    def _open(self, head: Head, say: Callable[[str, float | None], None]) -> Any:
        from clew.explorer.builds.compiling import open_session  # noqa: PLC0415 - loads the compiler

        path = Path(head["path"])
        self._folders.append(path.parent)
        options = read(Options, head["options"], "options")
        own = Own(**head["own"])
        return open_session(path, head["model"], options, say, own=own)

    def _compile(self, head: Head, speaker: _Speaker) -> bytes:
        from clew.explorer.routes import answer  # noqa: PLC0415 - loads the compiler

        session = self._open(head, speaker.say)
        answer(session, "overview")  # while the page still shows progress
        self._session = session
        return b""

    def _answer(self, head: Head) -> None:
        from clew.explorer.routes import answer  # noqa: PLC0415 - loads the compiler

        body = to_json(answer(self._session, head["route"]))
        small = len(body) < _GZIP_FROM_BYTES
        if not small:
            body = gzip.compress(body, _GZIP_LEVEL, mtime=0)
        self._send({"id": head["id"], "kind": "done", "gzip": not small}, body)

    def _act(self, head: Head, speaker: _Speaker) -> bytes:
        from clew.explorer.actions.table import ACTIONS, act  # noqa: PLC0415 - loads the compiler

        action = ACTIONS[head["name"]]
        params = read_object(action.params, head["params"], "params")
        return to_json(act(action, self._session, params, speaker.say))

    def _diff(self, head: Head, speaker: _Speaker) -> bytes:
        from clew.explorer.direct import compare  # noqa: PLC0415 - loads the compiler

        names = head["a"]["id"], head["b"]["id"]
        a, b = (self._open(head[n], speaker.within(f"{head[n]['id']}: ")) for n in ("a", "b"))
        found = compare(
            a, b, speaker.say, names=names, time=head["time"], numerics=head["numerics"]
        )
        return to_json(found)


class _Speaker:
    """Reports the progress of a piece of work, and stops it if it was cancelled."""

    def __init__(
        self, number: int, send: Callable[[Head], None], cancelled: set[int], head: str = ""
    ) -> None:
        self._number = number
        self._send = send
        self._cancelled = cancelled
        self._head = head
        self._last = 0.0

    def within(self, head: str) -> Callable[[str, float | None], None]:
        """Returns a `say` that puts `head` in front."""
        return _Speaker(self._number, self._send, self._cancelled, head).say

    def say(self, text: str, fraction: float | None = None) -> None:
        """Reports progress.

        Raises `Cancelled` if the work was cancelled.
        """
        if self._number in self._cancelled:
            raise Cancelled
        now = time.monotonic()
        if now - self._last < _SAY_EVERY_S:
            return
        self._last = now
        text = self._head + text
        self._send({"id": self._number, "kind": "progress", "text": text, "fraction": fraction})


def _is_ours(error: BaseException) -> bool:
    """Whether a coded error indicates a bug in clew."""
    return isinstance(error, CompileError) and isinstance(error.__cause__, Exception)


def end_group() -> None:
    """Ends this process and those it started, if it leads a group."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def limit_process(memory_bytes: int, parent: int) -> None:
    """Ties this process to its parent, and limits the memory that it may map."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_bytes:
        most = resource.getrlimit(resource.RLIMIT_AS)[1]
        if most != resource.RLIM_INFINITY:
            memory_bytes = min(memory_bytes, most)
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the line above
        end_group()


def main() -> None:
    """Runs a worker. The arguments are the connection's number, bytes of memory, the parent's id,
    and the folder for temporary files.
    """
    descriptor, memory_bytes, parent = map(int, sys.argv[1:4])
    limit_process(memory_bytes, parent)
    temporaries_in(sys.argv[4])
    faulthandler.enable()
    Worker(socket.socket(fileno=descriptor)).serve()
