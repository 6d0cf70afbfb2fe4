"""Fakes and limits of the tests of builds for sizes met often."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from clew.runtime.ownership import NOTHING_HELD, Held
from clew.serving import often
from clew.serving.all_sizes import AllSizes
from clew.serving.often import Manners, OwnBuilds, SpecializedSizes

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]
F32 = TensorProto.FLOAT
LIMIT_S = 120.0
CALLS, TRIALS = 3, 3


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Few calls suffice, and every build is good enough. No job outlives its test."""
    settings = {
        "_LEAST_S": 0.0, "_FEWEST_CALLS": CALLS, "_TRIALS": TRIALS, "_NOT_COUNTED": 1,
        "_WORTH": 1e9, "_FIRST_RUNS": 2, "_PATIENCE_S": 0.0,
    }  # fmt: skip
    for name, value in settings.items():
        monkeypatch.setattr(often, name, value)
    monkeypatch.setattr(AllSizes, "_compile_seconds", 0.0)
    yield
    idle()


def until(holds: Callable[[], bool], do: Callable[[], object] = lambda: None) -> None:
    """Does something again and again until a condition holds."""
    end = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < end, "it did not happen in time"
        do()
        time.sleep(0.001)


def idle() -> None:
    """Waits for the end of all jobs."""
    until(lambda: often._worker.thread is None)


# ------------------------------------------------------------------------------- of fake programs


class Clock:
    """A clock that stands still, but for fake programs; it replaces the module `time`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.monotonic, self.sleep = time.monotonic, time.sleep

    def perf_counter(self) -> float:
        return self.now


@dataclass(eq=False)
class Fake:
    """A program that takes some seconds, and returns its name. `seen` are its inputs."""

    name: str
    clock: Clock
    seconds: list[float]  # of each call; the last holds for all later ones
    seen: list[Sequence[Any]] = field(default_factory=list)
    error: Exception | None = None

    def __call__(self, arrays: Sequence[Any], held: Held = NOTHING_HELD) -> list[Any]:
        number = len(self.seen)
        self.seen.append(arrays)
        self.clock.now += self.seconds[min(number, len(self.seconds) - 1)]
        if self.error is not None:
            raise self.error
        return [self.name]


class Faked:
    """Own builds whose programs are fakes."""

    def __init__(self, clock: Clock, *, common: float = 2, worth_s: float = 0) -> None:
        self.clock = clock
        self.common = Fake("common", clock, [common])
        self.own_seconds: list[float] = [1]
        self.built: list[int] = []
        self.last: Fake | None = None
        self.error: Exception | None = None  # of a build
        self.own_error: Exception | None = None  # of a run
        self.gate = threading.Event()
        self.gate.set()
        self.own_builds = OwnBuilds(self.build, worth_s)
        self.records: dict[Any, Any] = {}

    def build(self, sizes: Mapping[str, int], manners: Manners) -> Any:
        self.built.append(sizes["seq"])
        assert self.gate.wait(LIMIT_S)
        if self.error is not None:
            raise self.error
        self.last = Fake("own", self.clock, self.own_seconds, error=self.own_error)
        return self.last

    def call(self, seq: int = 7, arrays: Sequence[Any] = ()) -> str:
        """Returns the name of the program that ran."""
        key = (((seq,),), ())
        record = self.records.get(key)
        if record is None:
            record = self.records[key] = self.own_builds.often(key, {"seq": seq})
        (name,) = record.run(self.common, arrays)  # type: ignore[arg-type]
        return str(name)

    def calls(self, count: int, seq: int = 7) -> list[str]:
        return [self.call(seq) for _ in range(count)]

    def decide(self, seq: int = 7) -> None:
        """Makes a build for a size, and times it."""
        self.calls(CALLS, seq)
        idle()
        self.calls(2 * TRIALS, seq)

    @property
    def told(self) -> dict[int, SpecializedSizes]:
        return {each.sizes["seq"]: each for each in self.own_builds.told()}

    @property
    def states(self) -> dict[int, str]:
        return {seq: each.state for seq, each in self.told.items()}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(often, "time", made)
    return made


@pytest.fixture
def fake(clock: Clock) -> Iterator[Faked]:
    made = Faked(clock)
    yield made
    made.gate.set()
