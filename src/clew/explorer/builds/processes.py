"""The server's end of a worker process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from clew.explorer.builds.protocol import Head, packed, received_async
from clew.explorer.failures import Cancelled, Failure, died
from clew.explorer.schema import ErrorInfo

_ROOT: Final = Path(__file__).parents[2]
_PROGRAM: Final = "from clew.explorer.builds.worker import main; main()"
Say = Callable[[str, float | None], None]


class Died(Failure):
    """The process ended on its own before it answered."""


@dataclass(frozen=True)
class Answer:
    """A worker's answer, perhaps compressed with gzip."""

    body: bytes
    gzip: bool = False


@dataclass
class _Pending:
    future: asyncio.Future[Answer]
    say: Say | None


class WorkerProcess:
    """A running worker. All methods are for the event loop's thread."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._process = process
        self._writer = writer
        self._pending: dict[int, _Pending] = {}
        self._count = 0
        self.alive = True
        self._killed = False
        self._reading = asyncio.create_task(self._read(reader))

    @classmethod
    async def start(cls, memory_bytes: int, folder: Path) -> WorkerProcess:
        """Starts a process that may map `memory_bytes` of memory (0: no limit), with its temporary
        files in `folder`.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            # -P: nothing is imported from the user's current folder.
            program = f"import sys; sys.path.append({str(_ROOT)!r}); {_PROGRAM}"
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-c",
                program,
                *map(str, (theirs.fileno(), memory_bytes, os.getpid(), folder)),
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
                stdout=2,  # printed text is not data
                start_new_session=True,
            )
        reader, writer = await asyncio.open_connection(sock=ours)
        return cls(process, reader, writer)

    @property
    def pid(self) -> int:
        """The process's id, and that of its group."""
        return self._process.pid

    async def ask(self, head: Head, say: Say | None = None) -> Answer:
        """Returns the worker's answer; `say` receives its progress.

        Raises `Failure` with the worker's error, `Died`, or `Cancelled` after `cancel`.
        """
        if not self.alive:
            raise Died(died(self._process.returncode))
        number = self._send(head)
        pending = _Pending(asyncio.get_running_loop().create_future(), say)
        self._pending[number] = pending
        try:
            return await pending.future
        finally:
            self._pending.pop(number, None)

    def cancel(self) -> None:
        """Asks the worker to stop its current work when it next reports progress."""
        for number, pending in self._pending.items():
            if pending.say is not None:
                self._write({"do": "cancel", "id": number})

    def kill(self) -> None:
        """Ends the process and all processes that it started, at once."""
        self._killed = True
        self.alive = False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def closed(self) -> None:
        """Returns when the process has ended."""
        await self._process.wait()
        await self._reading

    def _send(self, head: Head) -> int:
        self._count += 1
        self._write({**head, "id": self._count})
        return self._count

    def _write(self, head: Head) -> None:
        if self.alive and not self._writer.is_closing():
            self._writer.write(packed(head))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while (message := await received_async(reader)) is not None:
            self._take(*message)
        self.alive = False
        self._writer.close()
        self._end_group()
        code = await self._process.wait()
        for pending in self._pending.values():
            if not pending.future.done():
                pending.future.set_exception(Cancelled() if self._killed else Died(died(code), 500))

    def _end_group(self) -> None:
        """Ends the processes that the worker started: its group outlives it."""
        if self._process.returncode is None:
            self.kill_group()

    def kill_group(self) -> None:
        """Ends the group but keeps the worker's own exit status."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _take(self, head: Head, body: bytes) -> None:
        pending = self._pending.get(head.get("id", -1))
        if pending is None or pending.future.done():
            return
        kind = head.get("kind")
        if kind == "progress":
            if pending.say is not None:
                pending.say(str(head.get("text", "")), head.get("fraction"))
        elif kind == "done":
            pending.future.set_result(Answer(body, bool(head.get("gzip"))))
        elif kind == "cancelled":
            pending.future.set_exception(Cancelled())
        else:
            pending.future.set_exception(Failure(_error(body), 404 if head.get("missing") else 422))


def _error(body: bytes) -> ErrorInfo:
    found = json.loads(body)
    return ErrorInfo(**{f.name: str(found.get(f.name, "")) for f in fields(ErrorInfo)})
