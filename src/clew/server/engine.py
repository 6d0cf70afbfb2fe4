"""Generates texts for several clients at once, in one thread.

Each generation has caches of its own, over one set of weights. The thread gives them turns of one
token each, so that a long answer does not delay a short one.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from clew.generation.generating import generate
from clew.generation.language_model import LanguageModel
from clew.generation.result import Generation
from clew.generation.stream import Stream
from clew.support.errors import ClewError
from clew.support.exhausted import exhausted

_SEED_BITS: Final = 63


class Event(NamedTuple):
    """What happened to a generation: a piece of text, its result, or an error."""

    piece: str = ""
    result: Generation | None = None
    error: Exception | None = None


class Work:
    """A generation that a client waits for. `tell` is called in the engine's thread."""

    def __init__(
        self, prompt: Any, options: Mapping[str, Any], tell: Callable[[Event], None]
    ) -> None:
        self.prompt = prompt
        self.options = dict(options)
        self.tell = tell
        self.is_cancelled = False

    def cancel(self) -> None:
        """Ends the generation at its next turn: nobody waits for it any more."""
        self.is_cancelled = True


class Figures(NamedTuple):
    """The state of an engine, and what it has done so far."""

    running: int
    waiting: int
    finished: int
    cancelled: int
    failed: int
    prompt_tokens: int
    new_tokens: int
    seconds: float


class Engine:
    """The thread that generates. At most `most_running` generations take turns, and at most
    `most_waiting` others wait.
    """

    def __init__(self, model: LanguageModel, most_running: int, most_waiting: int) -> None:
        self.model = model
        self._most_running, self._most_waiting = most_running, most_waiting
        self._changed = threading.Condition()
        self._waiting: deque[Work] = deque()
        self._running: list[tuple[Work, Stream]] = []
        self._ended = False
        self._begin = time.monotonic()
        self._counts = {"finished": 0, "cancelled": 0, "failed": 0, "prompt": 0, "new": 0}
        self._thread = threading.Thread(target=self._run, name="clew-engine", daemon=True)
        self._thread.start()

    @property
    def figures(self) -> Figures:
        """The current figures."""
        counts = self._counts
        return Figures(
            len(self._running),
            len(self._waiting),
            counts["finished"],
            counts["cancelled"],
            counts["failed"],
            counts["prompt"],
            counts["new"],
            time.monotonic() - self._begin,
        )

    @property
    def room(self) -> int:
        """The number of generations that may run or wait at once."""
        return self._most_running + self._most_waiting

    def accept(self, works: list[Work]) -> bool:
        """Takes on generations, and whether there was room for all of them."""
        with self._changed:
            left = [work for work in self._waiting if not work.is_cancelled]
            self._counts["cancelled"] += len(self._waiting) - len(left)
            self._waiting = deque(left)
            if len(self._running) + len(left) + len(works) > self.room or self._ended:
                return False
            self._waiting.extend(works)
            self._changed.notify()
        return True

    def end(self) -> None:
        """Ends all generations and the thread."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._running or self._waiting or self._ended):
                    self._changed.wait()
                if self._ended:
                    break
                arrived: list[Work] = []
                while self._waiting and len(self._running) + len(arrived) < self._most_running:
                    arrived.append(self._waiting.popleft())
            for work in arrived:
                self._start(work)
            for work, stream in list(self._running):
                self._step(work, stream)
        for _, stream in self._running:
            stream.close()

    def _start(self, work: Work) -> None:
        if work.is_cancelled:
            self._counts["cancelled"] += 1
            return
        try:
            stream = generate(self.model, work.prompt, stream=True, **work.options)
        except Exception as error:  # the client's mistake, or one of ours
            self._fail(work, error)
            return
        self._running.append((work, stream))

    def _step(self, work: Work, stream: Stream) -> None:
        """Gives a generation its turn."""
        try:
            if work.is_cancelled:
                stream.close()
                self._end(work, stream, "cancelled")
                return
            piece = stream.advance()
        except Exception as error:
            stream.close()
            self._end(work, stream, "")
            self._fail(work, error)
            return
        if piece is None:
            self._end(work, stream, "finished")
            work.tell(Event(result=stream.result))
        elif piece:
            work.tell(Event(piece=piece))

    def _end(self, work: Work, stream: Stream, how: str) -> None:
        self._running.remove((work, stream))
        result = stream.result
        self._counts["prompt"] += result.prompt_tokens
        self._counts["new"] += len(result.ids)
        if how:
            self._counts[how] += 1

    def _fail(self, work: Work, error: Exception) -> None:
        self._counts["failed"] += 1
        work.tell(Event(error=error if isinstance(error, ClewError) else exhausted(error) or error))


def seeds(seed: int, count: int) -> list[int]:
    """Returns the seeds of several answers to one question."""
    return [(seed + number) % (1 << _SEED_BITS) for number in range(count)]
