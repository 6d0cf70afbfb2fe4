"""Generates texts for several clients at once, in one thread.

Continuous batching: each call of the model generates a token for every running generation
(`Batch`), and generations join and leave between two calls. Prompts are read in parts in between,
so that a long prompt does not stall the others.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from clew.generation.batch import Batch, Step
from clew.generation.generating import sequence_of
from clew.generation.language_model import LanguageModel
from clew.generation.reading import Reading
from clew.generation.result import Clock, Generation
from clew.generation.sequence import Growing
from clew.support.errors import ClewError
from clew.support.exhausted import exhausted

_SEED_BITS: Final = 63
_READ_BETWEEN: Final = 128
"""The most prompt tokens that are read between two calls of the batch. Smaller parts read the
weights more often; larger ones delay the running generations.
"""


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


class _Turn:
    """A generation that has begun: its work, its sequence, and the progress of its prompt."""

    def __init__(self, work: Work, sequence: Growing, reading: Reading) -> None:
        self.work, self.sequence, self.reading = work, sequence, reading
        self.clock = Clock()
        self.clock.start()

    @property
    def result(self) -> Generation:
        """The result so far."""
        return self.sequence.result(self.reading.cached, self.clock)


class Figures(NamedTuple):
    """The state of an engine, and what it has done so far. `running` of the `slots` are in use:
    `reading` of them read their prompts. `steps` are calls that gave tokens, `cached_tokens` those
    of prompts that were not read again, and `prefixes` texts whose caches are kept.
    """

    slots: int
    running: int
    reading: int
    waiting: int
    finished: int
    cancelled: int
    failed: int
    prompt_tokens: int
    cached_tokens: int
    new_tokens: int
    steps: int
    prefixes: int
    prefix_bytes: int
    seconds: float


class Engine:
    """The thread that generates. At most `most_running` generations run at once, and at most
    `most_waiting` others wait.
    """

    def __init__(self, model: LanguageModel, most_running: int, most_waiting: int) -> None:
        self.model = model
        self._most_running, self._most_waiting = most_running, most_waiting
        self._changed = threading.Condition()
        self._waiting: deque[Work] = deque()
        self._reading: deque[_Turn] = deque()
        self._turns: dict[int, _Turn] = {}
        self._batch = Batch(model)
        self._ended = False
        self._begin = time.monotonic()
        self._counts = dict.fromkeys(
            ("finished", "cancelled", "failed", "prompt", "cached", "new", "steps"), 0
        )
        self._thread = threading.Thread(target=self._run, name="clew-engine", daemon=True)
        self._thread.start()

    @property
    def figures(self) -> Figures:
        """The current figures."""
        counts, prefixes = self._counts, self.model.prefixes
        return Figures(
            slots=self._most_running,
            running=self._running,
            reading=len(self._reading),
            waiting=len(self._waiting),
            finished=counts["finished"],
            cancelled=counts["cancelled"],
            failed=counts["failed"],
            prompt_tokens=counts["prompt"],
            cached_tokens=counts["cached"],
            new_tokens=counts["new"],
            steps=counts["steps"],
            prefixes=len(prefixes),
            prefix_bytes=prefixes.nbytes,
            seconds=time.monotonic() - self._begin,
        )

    @property
    def _running(self) -> int:
        return len(self._reading) + len(self._turns)

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
            if self._running + len(left) + len(works) > self.room or self._ended:
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
                while self._waiting and self._running + len(arrived) < self._most_running:
                    arrived.append(self._waiting.popleft())
            for work in arrived:
                self._start(work)
            try:
                self._advance()
            except Exception as error:  # ours: later requests are answered all the same
                self._fail_all(error)
        self._batch.close()

    def _advance(self) -> None:
        """Reads parts of prompts, and gives each generation its next token."""
        self._drop_cancelled()
        self._read()
        if len(self._batch):
            self._counts["steps"] += 1
            for step in self._batch.step():
                self._tell(step)

    def _fail_all(self, error: Exception) -> None:
        """Ends the generations that have begun."""
        turns = {id(turn): turn for turn in (*self._reading, *self._turns.values())}
        self._reading.clear()
        self._turns.clear()
        self._batch = Batch(self.model)
        for turn in turns.values():
            self._end(turn, "")
            self._fail(turn.work, error)

    def _start(self, work: Work) -> None:
        if work.is_cancelled:
            self._counts["cancelled"] += 1
            return
        try:
            sequence = sequence_of(self.model, work.prompt, **work.options)
            reading = Reading(self.model, sequence.tokens)
        except Exception as error:  # the client's mistake, or one of ours
            self._fail(work, error)
            return
        self._reading.append(_Turn(work, sequence, reading))

    def _drop_cancelled(self) -> None:
        """Ends the generations whose clients are gone."""
        for turn in [t for t in self._reading if t.work.is_cancelled]:
            self._reading.remove(turn)
            self._end(turn, "cancelled")
        for turn in [t for t in self._turns.values() if t.work.is_cancelled]:
            self._batch.leave(turn.sequence)
            del self._turns[id(turn.sequence)]
            self._end(turn, "cancelled")

    def _read(self) -> None:
        """Reads some tokens of prompts in turns. Sequences join the batch once they are read."""
        left = _READ_BETWEEN
        while self._reading and left > 0:
            turn = self._reading[0]
            reading = turn.reading
            most = min(left, reading.left) if self._turns else reading.most
            try:
                is_read = reading.advance(most)
            except Exception as error:
                self._reading.popleft()
                self._end(turn, "")
                self._fail(turn.work, error)
                continue
            left -= most
            if is_read:
                self._join(turn)
                self._reading.popleft()
            else:
                self._reading.rotate(-1)

    def _join(self, turn: _Turn) -> None:
        reading = turn.reading
        assert reading.logits is not None
        if self.model.prefixes.keeps_many:
            self.model.prefixes.keep(reading.decoder.copy())
        self._batch.join(turn.sequence, reading.decoder, reading.logits)
        self._turns[id(turn.sequence)] = turn

    def _tell(self, step: Step) -> None:
        """Tells a client what a step did."""
        turn = self._turns[id(step.sequence)]
        if step.error is None:
            turn.clock.note_first()
            if step.piece:
                turn.work.tell(Event(piece=step.piece))
        if step.sequence.finish:
            turn.clock.pause()
            del self._turns[id(step.sequence)]
            self._end(turn, "" if step.error is not None else "finished")
        if step.error is not None:
            self._fail(turn.work, step.error)
        elif step.sequence.finish:
            turn.work.tell(Event(result=turn.result))

    def _end(self, turn: _Turn, how: str) -> None:
        result = turn.result
        self._counts["prompt"] += result.prompt_tokens
        self._counts["cached"] += result.cached_tokens
        self._counts["new"] += len(result.ids)
        if how:
            self._counts[how] += 1

    def _fail(self, work: Work, error: Exception) -> None:
        self._counts["failed"] += 1
        work.tell(Event(error=error if isinstance(error, ClewError) else exhausted(error) or error))


def seeds(seed: int, count: int) -> list[int]:
    """Returns the seeds of several answers to one question."""
    return [(seed + number) % (1 << _SEED_BITS) for number in range(count)]
