"""Builds for sizes that a model meets often, made in the background.

The common build, which serves all sizes, is usually nearly as fast as one for given sizes alone,
but not always. Once the calls at some sizes have taken as long as the common build took to compile,
a background thread makes a build for these sizes alone, their own build. Calls then run both builds
in turns until their times show which one is faster.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from itertools import count
from types import MethodType
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from clew.runtime.ownership import NOTHING_HELD, Held
from clew.runtime.program import Program
from clew.runtime.sizes_key import KEPT_SIZES, SizesKey
from clew.support.background import start_thread
from clew.support.dataclass import dataclass
from clew.support.errors import ClewError
from clew.support.locks import Lock

State = Literal["counting", "building", "trying", "in use", "not faster", "failed"]

MOST: Final = 4
"""The maximum number of such builds in use at once."""
_IDLE: Final = ("counting", "not faster", "failed")  # states without a program
_FEWEST_CALLS: Final = 16
_TRIALS: Final = 12  # calls of each build; the first `_NOT_COUNTED` are ignored
_NOT_COUNTED: Final = 2
_LEAST_S: Final = 1.0
_WORTH: Final = 0.95  # of the common build's time
_FIRST_RUNS: Final = 8
_PATIENCE_S: Final = 0.05
_PAUSE_S: Final = 0.001
# Of calls that take less than this, in seconds, one of so many is timed.
_SHORT_S, _STRIDE = 5e-5, 16
_calls: Final = count(1)


@dataclass(frozen=True)
class SpecializedSizes:
    """Sizes that a model met often, and the state of their own build.

    `common_s` and `own_s` are the median times of calls, in seconds, with the build for all sizes
    and with their own, measured in turns; None until they are measured. `remark` is a summary.
    """

    sizes: Mapping[str, int]
    state: State
    common_s: float | None
    own_s: float | None
    remark: str

    def __str__(self) -> str:
        return self.remark


class Stopped(Exception):
    """Ends a background build because the process exits."""


@dataclass
class Manners:
    """Makes a background build yield to calls: before each pass and each kernel, it waits a limited
    time until no call runs. It is an instrument of the passes and a listener to the progress.

    The finished program keeps the options of its build, and thus this object, to compile kernels
    whose sizes only a call determines. `end` turns it off, or calls would wait for themselves.
    """

    is_busy: Callable[[], bool] | None

    def before_pass(self, name: str, module: object) -> None:
        """Waits before a pass."""
        self.wait()

    def after_pass(self, name: str, module: object) -> None:
        """Does nothing."""

    def on_progress(self, text: str) -> None:
        """Waits before each kernel. Ends the build if the process exits."""
        if self.is_busy is not None and _worker.is_stopping:
            raise Stopped
        self.wait()

    def wait(self) -> None:
        """Waits until no call runs, but at most `_PATIENCE_S`."""
        is_busy, end = self.is_busy, time.monotonic() + _PATIENCE_S
        while is_busy is not None and is_busy() and time.monotonic() < end:
            if _worker.is_stopping:
                return
            time.sleep(_PAUSE_S)

    def end(self) -> None:
        """Turns waiting off once the build is complete."""
        self.is_busy = None


MakesProgram: TypeAlias = Callable[[Mapping[str, int], Manners], Program]


@dataclass
class _Met:
    """Sizes that the model has met, with their calls and their own build, which is timed while it
    is tried. `used` numbers the latest call that used the build.
    """

    process: int
    key: SizesKey
    sizes: Mapping[str, int]
    state: State = "counting"
    calls: int = 0
    seconds: float = 0.0
    own: Program | None = None
    used: int = 0
    arrays: tuple[Any, ...] = ()  # inputs of a call, for the first runs of the new build
    reason: str = ""
    medians: tuple[float, float] | None = None
    times: tuple[deque[float], ...] = ()

    def chosen(self, common: Program) -> Program:
        """Returns the program for the next call."""
        own, state = self.own, self.state
        if own is None or state == "counting":
            return common
        if state == "trying":
            return common if len(self.times[0]) <= len(self.times[1]) else own
        self.used = next(_calls)
        return own if state == "in use" else common

    def keep(self, arrays: Sequence[Any]) -> None:
        """Copies the inputs of a call, since their owner may change them."""
        self.arrays = tuple(a.copy() if isinstance(a, np.ndarray) else copy(a) for a in arrays)

    def told(self) -> SpecializedSizes:
        """Returns these sizes and the state of their build."""
        common, own = self.medians or (None, None)
        names = ", ".join(f"{name}={size}" for name, size in self.sizes.items())
        text = {
            "building": "its own build is being made",
            "trying": "its own build is being timed",
            "failed": f"its own build failed: {self.reason}",
        }.get(self.state, "")
        if common is not None and own is not None:
            kept = "in use" if self.state == "in use" else "not used"
            text = (
                f"its own build takes {own * 1e3:.3g} ms, the common one {common * 1e3:.3g} ms: "
                f"{kept}"
            )
        return SpecializedSizes(dict(self.sizes), self.state, common, own, f"{names}: {text}")


class Often:
    """Runs the calls at some sizes with the faster of two builds, once there are two.

    `ahead` is the number of calls that run the `chosen` build without this: of very short calls,
    only some are timed.
    """

    __slots__ = ("_builds", "_met", "_stride", "ahead")

    def __init__(self, builds: OwnBuilds, met: _Met) -> None:
        self._builds = builds
        self._met = met
        self._stride = 1  # the calls that the next timed one stands for
        self.ahead = ctypes.c_int64(0)  # native calls count it down

    def chosen(self, common: Program) -> Program:
        """Returns the program of the calls that `ahead` counts."""
        met = self._met
        return met.own if met.state == "in use" and met.own is not None else common

    def run(self, common: Program, arrays: Sequence[Any], held: Held = NOTHING_HELD) -> list[Any]:
        """Returns the outputs of a call; `common` is the program that serves all sizes."""
        # Calls of small models take microseconds: they lock only what changes the state of a build,
        # and calls that threads make at once may be miscounted.
        builds, met = self._builds, self._met
        if met.process != _worker.process:  # a forked child has no worker
            met = self._met = builds.meet(met.key, met.sizes)
        program, before = met.chosen(common), met.state
        if _worker.thread is not None:
            taken, results = builds.timed_beside(program, arrays, held)
        else:
            start = time.perf_counter()
            results = program(arrays, held)
            taken = time.perf_counter() - start
        # Failed calls do not count.
        if met.state == "counting":
            stride = self._stride
            met.calls += stride
            met.seconds += stride * taken
            is_known = met.calls >= _FEWEST_CALLS and _worker.thread is None
            self._stride = _STRIDE if is_known and taken < _SHORT_S else 1
            self.ahead.value = self._stride - 1
            if met.calls >= _FEWEST_CALLS and met.seconds >= builds.worth_s:
                builds.begin(met, arrays)
        elif met.state == "trying":
            builds.note(met, program is not common, taken)
        elif before == met.state != "building" and taken < _SHORT_S:
            # Nothing depends on these times, and native calls run the program chosen here.
            self.ahead.value = _STRIDE - 1
        return results


class OwnBuilds:
    """The builds that a model has for sizes that it meets often.

    `build` makes the program for given sizes and may run in another thread. If it is a method, its
    object is not kept alive. `worth_s` is the total time, in seconds, that calls at some sizes must
    have taken before these sizes get their own build.
    """

    def __init__(self, build: MakesProgram, worth_s: float) -> None:
        # A reference cycle would keep the weights of a dropped model until garbage collection.
        self._build: Callable[[], MakesProgram | None] = (
            weakref.WeakMethod(build) if isinstance(build, MethodType) else lambda: build
        )
        self.worth_s = max(worth_s, _LEAST_S)
        self._begun: dict[SizesKey, _Met] = {}  # sizes that have, or had, a build
        self._lock = Lock()
        self._running: set[object] = set()  # the calls in progress that began during a build

    def often(self, key: SizesKey, sizes: Mapping[str, int]) -> Often:
        """Returns what runs the calls with a key, at sizes given by name."""
        return Often(self, self.meet(key, sizes))

    def meet(self, key: SizesKey, sizes: Mapping[str, int]) -> _Met:
        """Returns the record of sizes, a new one if they have no build."""
        met = self._begun.get(key)
        if met is None or met.process != _worker.process:
            met = _Met(_worker.process, key, sizes)
        return met

    def timed_beside(
        self, program: Program, arrays: Sequence[Any], held: Held
    ) -> tuple[float, list[Any]]:
        """Returns the time and the outputs of a call that builds in progress wait for."""
        call = object()
        try:
            self._running.add(call)
            start = time.perf_counter()
            results = program(arrays, held)
            return time.perf_counter() - start, results
        finally:
            self._running.discard(call)  # first: Ctrl-C cannot prevent it

    def told(self) -> list[SpecializedSizes]:
        """Returns the sizes that were met often and the states of their builds."""
        with self._lock:
            return [met.told() for met in self._begun.values() if met.state != "counting"]

    def begin(self, met: _Met, arrays: Sequence[Any]) -> None:
        """Has the build for some sizes made, given the inputs of a call."""
        with self._lock:
            if met.state != "counting":
                return
            met.keep(arrays)
            _worker.do(_Job(weakref.ref(self), met))
            met.state = "building"
            # What was compiled once is not compiled again because other sizes came.
            self._begun.pop(met.key, None)
            self._begun[met.key] = met
            idle = [key for key, each in self._begun.items() if each.state in _IDLE]
            if idle and len(self._begun) > KEPT_SIZES:
                del self._begun[min(idle, key=lambda key: self._begun[key].state != "counting")]

    def note(self, met: _Met, is_own: bool, taken: float) -> None:
        """Notes the time of a call while a build is tried."""
        with self._lock:
            if met.state == "trying":
                met.times[is_own].append(taken)
                if all(len(times) == _TRIALS for times in met.times):
                    self._decide(met)

    def _decide(self, met: _Met) -> None:
        common, own = (float(np.median(list(times)[_NOT_COUNTED:])) for times in met.times)
        met.medians = common, own
        if own > _WORTH * common:
            met.state, met.own = "not faster", None
            return
        met.state, met.used = "in use", next(_calls)
        others = [m for m in self._begun.values() if m.state == "in use" and m is not met]
        others.sort(key=lambda m: m.used)
        for dropped in others[: max(len(others) - MOST + 1, 0)]:  # the least recently used
            dropped.state, dropped.own, dropped.medians = "counting", None, None
            dropped.calls, dropped.seconds = 0, 0.0

    def make(self, met: _Met) -> None:
        """Makes the build for some sizes; runs in the background."""
        build, manners = self._build(), Manners(lambda: bool(self._running))
        if build is None:
            return
        program, reason = None, ""
        try:
            program = build(met.sizes, manners)
            for _ in range(_FIRST_RUNS):  # they compile and allocate, so later calls need not
                program(met.arrays)
        except Stopped:
            return
        except BaseException as error:  # user code may raise any type; calls keep the common build
            coded = isinstance(error, ClewError)
            program, reason = None, str(error).partition("\n")[0] if coded else repr(error)
        manners.end()
        with self._lock:
            met.own, met.reason, met.arrays = program, reason, ()
            met.times = deque(maxlen=_TRIALS), deque(maxlen=_TRIALS)
            met.state = "failed" if program is None else "trying"


class Specializing:
    """Times the calls of a model, and makes builds for sizes that they have often."""

    def __init__(self, build: MakesProgram) -> None:
        """`build` makes the program for given sizes; see `OwnBuilds`."""
        self._build: Callable[[], MakesProgram | None] = (
            weakref.WeakMethod(build) if isinstance(build, MethodType) else lambda: build
        )
        self._own: OwnBuilds | None = None
        self._lock = Lock()

    def often(
        self, key: SizesKey, sizes: Mapping[str, int], program: Program, compiled_s: float
    ) -> Often | None:
        """Returns what runs the calls with a key; None if a build of their own has nothing to
        compile: calls without elements are short and rare. `compiled_s` is the time that the build
        for all sizes took.
        """
        if program.only_collects:
            return None
        if self._own is None:
            with self._lock:
                build = self._build()
                if build is None:  # the model is gone
                    return None
                self._own = self._own or OwnBuilds(build, compiled_s)
        return self._own.often(key, sizes)

    def told(self) -> Sequence[SpecializedSizes]:
        """Returns the sizes that were met often, and what became of their builds."""
        return () if self._own is None else self._own.told()


@dataclass(frozen=True)
class _Job:
    """A build to make. It does not keep its model alive."""

    builds: weakref.ref[OwnBuilds]
    met: _Met

    def __call__(self) -> None:
        builds = self.builds()
        if builds is not None:
            builds.make(self.met)


class _Worker:
    """Runs jobs one after another in a background thread, which ends when no job is left. A forked
    child starts without jobs.
    """

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)
        atexit.register(self.stop)

    def _renew(self) -> None:
        self._jobs: deque[_Job] = deque()
        # The thread, while there are jobs, and thus builds that calls may disturb.
        self.thread: threading.Thread | None = None
        self._free = Lock()
        self.is_stopping = False
        self.process = os.getpid()

    def do(self, job: _Job) -> None:
        """Queues a job, and starts the thread if it is not running."""
        with self._free:
            self._jobs.append(job)
            # A thread that Ctrl-C or the system kept from starting is not alive either.
            is_alive = self.thread is not None and self.thread.is_alive()
            if not is_alive and not self.is_stopping:
                self.thread = start_thread(self._work, "clew-specialize")

    def _work(self) -> None:
        while True:
            with self._free:
                if not self._jobs or self.is_stopping:
                    if self.thread is threading.current_thread():
                        self.thread = None
                    return
                job = self._jobs.popleft()
            job()

    def stop(self) -> None:
        """Tells the current job to end early, and waits for it."""
        self.is_stopping = True
        thread = self.thread
        if thread is not None:
            thread.join()


_worker: Final = _Worker()
