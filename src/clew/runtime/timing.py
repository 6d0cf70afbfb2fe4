"""Times of a program's runs: kernels by the native driver's watch, host steps by the clock.

The timed program is the program itself, with a watch in each native segment and a clock around each
host step; nothing else is different. Stamping a kernel takes some nanoseconds, which is too much
for kernels of ten nanoseconds: if all stamps would slow a run down, each run stamps only some
steps, and several runs make up one *round* in which every step has been timed. The time that stamps
add to such kernels is found by comparing their sum with whole runs, and subtracted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Any

import numpy as np

from clew.runtime.driver import driver
from clew.runtime.native_loop import NativeLoop
from clew.runtime.program import (
    Branch,
    Copy,
    Instruction,
    Program,
    Repeat,
    RunHost,
    RunSegment,
    View,
)
from clew.runtime.segment import NativeSegment
from clew.runtime.watch import Watch
from clew.support.dataclass import dataclass
from clew.support.lazy import cached_property

# The share of a run's time that stamps may take; including side effects, it is well below 1%.
_SHARE_OF_STAMPS = 0.004
_HOST_STAMP_NS = 250.0
_MOST_PARTS = 1000
# In runs short enough for it to matter, the cost of a stamp is measured in the program itself:
# between kernels, it may be ten times its cost between empty steps, because a kernel no longer
# begins while the one before it ends.
_SHORT_RUN_NS = 1e6
_MOST_OF_A_STEP = 0.9  # the largest share of a step's time that a stamp takes
_STAMP_RUNS = 31
_OUTSIDE_RUNS = 5


_OUTSIDE = {
    RunSegment: "calls of native code",
    View: "views",
    Copy: "copies between memories",
    Branch: "branches",
    Repeat: "loops",
}


class TimedProgram:
    """A program whose kernels and host steps are timed.

    `segments` are those of the build, in its order. Only one run at a time.
    """

    def __init__(self, program: Program, segments: Sequence[NativeSegment]) -> None:
        self.hosts = [
            i for inner in program.walk() for i in inner.instructions if isinstance(i, RunHost)
        ]
        self.parts = 1
        self.measures_stamps = False
        self._stamp_ns = driver().stamp_ns
        self._program = program
        self._segments = list(segments)
        self._watches = [Watch(s.n_entries) for s in segments]
        # How often a call runs each of the driver's steps: those in loops, several times.
        self._turns = [np.ones(s.n_entries) for s in segments]
        watched = (s.watched(w) for s, w in zip(segments, self._watches, strict=True))
        self._watched = {id(s): w for s, w in zip(segments, watched, strict=True)}
        self._host_ns = [0] * len(self.hosts)
        self._host_calls = [0] * len(self.hosts)
        self._native_ns: list[float] = []
        self._native_before = 0.0
        self._by_part: dict[int, Program] = {}
        self._loops = self._timed_loops()

    def _timed_loops(self) -> dict[int, _TimedLoop]:
        """Returns the native loops of the program, by the id of their instruction's body."""
        hosts = {id(host): (-1, n) for n, host in enumerate(self.hosts)}
        segments = {id(segment): n for n, segment in enumerate(self._segments)}
        found: dict[int, _TimedLoop] = {}
        for part in self._program.walk():
            for loop in part.instructions:
                if not isinstance(loop, Repeat) or loop.native is None:
                    continue
                places = []
                for of_cond, number, step in loop.native.body.origins:
                    whose = (loop.cond if of_cond else loop.body).instructions[number]
                    if isinstance(whose, RunSegment):
                        places.append((segments[id(whose.segment)], step))
                    else:
                        places.append(hosts[id(whose)])
                found[id(loop.body)] = _TimedLoop(loop.native, places)
        return found

    def share_out(self, run: Callable[[Program], float]) -> None:
        """Chooses the number of runs per round. `run` runs a program and returns the
        nanoseconds.
        """
        program = self.part(0)
        self.clear()
        run(program)
        self._turns = [w.counts / max(1, w.calls) for w in self._watches]
        stamps = sum(int(w.counts.sum()) for w in self._all_watches())
        hosts = sum(self._host_calls) * _HOST_STAMP_NS
        least = min(run(self._program) for _ in range(3))
        if stamps and least < _SHORT_RUN_NS:
            self.measures_stamps = True
            self._stamp_ns = self._measured_stamp_ns(stamps, partial(run, program))
        allowed = max(1.0, _SHARE_OF_STAMPS * least)
        self.parts = min(_MOST_PARTS, math.ceil((stamps * self._stamp_ns + hosts) / allowed) or 1)
        self._by_part.clear()

    def _all_watches(self) -> list[Watch]:
        return [*self._watches, *(loop.watch for loop in self._loops.values())]

    def _pairs(self) -> Iterator[tuple[Watch, NativeSegment]]:
        return zip(self._watches, self._segments, strict=True)

    def entries(self, segment: int) -> np.ndarray:
        """Returns f64[steps]: the number of stamps of each kernel of a segment in one call."""
        return self._segments[segment].by_step(self._turns[segment])

    def runs(self, segment: int) -> np.ndarray:
        """Returns f64[steps]: the number of runs of each kernel of a segment in one call."""
        made = self._segments[segment]
        firsts = [made.entries_of(step)[0] for step in range(len(made.plan.steps))]
        return self._turns[segment][firsts]

    def stamps(self, taken: Round) -> float:
        """Returns the number of stamps in a round."""
        return sum(n * float(t.sum()) for n, t in zip(taken.calls, self._turns, strict=True))

    def outside(self, arrays: Sequence[Any]) -> dict[str, tuple[int, float]]:
        """Returns the work of a run outside kernels and host steps: counts and nanoseconds.

        Watching every instruction takes time itself, so only the proportions are meaningful.
        """
        found: dict[str, tuple[int, float]] = {}
        inside = [0.0]  # time inside the active instructions
        now = time.perf_counter_ns

        def native_ns() -> float:
            return sum(watch.whole_ns for watch in self._all_watches())

        def note(
            instruction: Instruction, inputs: Sequence[Any], run: Callable[[], Sequence[Any]]
        ) -> Sequence[Any]:
            before = native_ns() if isinstance(instruction, RunSegment) else 0.0
            inside.append(0.0)
            start = now()
            results = run()
            took = now() - start
            own = took - inside.pop()
            inside[-1] += took
            if isinstance(instruction, RunSegment):
                own -= native_ns() - before
            kind = _OUTSIDE.get(type(instruction))
            if kind is not None:
                count, total = found.get(kind, (0, 0.0))
                found[kind] = count + 1, total + max(0.0, own)
            return results

        program = self.part(0)
        start = now()
        program.observed(arrays, note)
        rest = now() - start - inside[0]
        return {**found, "the call": (1, max(0.0, rest))}

    def _measured_stamp_ns(self, stamps: int, run: Callable[[], float]) -> float:
        """Returns the additional time of a step if all steps are stamped, compared with none."""
        took: tuple[list[float], list[float]] = ([], [])
        for _ in range(_STAMP_RUNS):
            for stamped in (0, 1):
                self.clear()
                for watch, segment in self._pairs():
                    watch.time(0, segment.n_entries * stamped)
                run()
                took[stamped].append(sum(w.whole_ns for w in self._watches))
        found = float(np.median(took[1]) - np.median(took[0])) / stamps
        return max(found, driver().stamp_ns)

    def clear(self) -> None:
        """Begins a round."""
        for watch in self._all_watches():
            watch.clear()
        self._host_ns[:] = [0] * len(self.hosts)
        self._host_calls[:] = [0] * len(self.hosts)
        self._native_ns.clear()
        self._native_before = 0.0

    def ran(self) -> None:
        """Records the time of native code in the part that has just run."""
        whole = sum(watch.whole_ns for watch in self._watches)
        self._native_ns.append(whole - self._native_before)
        self._native_before = whole

    def part(self, number: int) -> Program:
        """Returns the program that times the given part of the round; it must be run at once."""
        for watch, segment in self._pairs():
            count = segment.n_entries
            watch.time(count * number // self.parts, count * (number + 1) // self.parts)
        for loop in self._loops.values():
            count = loop.native.n_entries
            loop.watch.time(count * number // self.parts, count * (number + 1) // self.parts)
        made = self._by_part.get(number)
        if made is None:
            hosts = {id(h): n for n, h in enumerate(self.hosts) if n % self.parts == number}
            made = self._by_part[number] = self._timed(self._program, hosts)
        return made

    def _timed(self, program: Program, hosts: dict[int, int]) -> Program:
        def timed(instruction: Instruction) -> Instruction:
            match instruction:
                case RunSegment(segment=segment):
                    return replace(instruction, segment=self._watched.get(id(segment), segment))
                case RunHost() if id(instruction) in hosts:
                    return replace(instruction, function=self._clocked(instruction, hosts))
                case Branch(then=then, orelse=orelse):
                    inner = self._timed(then, hosts), self._timed(orelse, hosts)
                    return replace(instruction, then=inner[0], orelse=inner[1])
                case Repeat(cond=cond, body=body):
                    loop = self._timed(cond, hosts), self._timed(body, hosts)
                    timed_loop = self._loops.get(id(body))
                    native = None if timed_loop is None else timed_loop.watched
                    return replace(instruction, cond=loop[0], body=loop[1], native=native)
            return instruction

        instructions = [timed(i) for i in program.instructions]
        return program.with_instructions(instructions)

    def _clocked(self, host: RunHost, hosts: dict[int, int]) -> Callable[..., Any]:
        function, number = host.function, hosts[id(host)]
        took, calls, now = self._host_ns, self._host_calls, time.perf_counter_ns

        def run(*arrays: Any) -> Any:
            start = now()
            result = function(*arrays)
            took[number] += now() - start
            calls[number] += 1
            return result

        return run

    def round(self) -> Round:
        """Returns the times of the parts that were run since `clear`."""
        kernels, calls, stamps = [], [], 0.0
        for (watch, segment), turns in zip(self._pairs(), self._turns, strict=True):
            runs = watch.calls / self.parts
            kernels.append(segment.by_step(watch.ns()))
            calls.append(runs)
            stamps += runs * float(turns.sum()) / self.parts
        native = [ns - stamps * self._stamp_ns for ns in self._native_ns]
        hosts, host_calls = list(self._host_ns), list(self._host_calls)
        looped: dict[tuple[int, int], tuple[float, float]] = {}
        for loop in self._loops.values():
            for place, ns, times in loop.times(self._stamp_ns):
                if place[0] < 0:
                    hosts[place[1]] += round(ns)
                    host_calls[place[1]] += round(times)
                else:
                    looped[place] = ns, times
        return Round(kernels, calls, native, hosts, host_calls, looped)


@dataclass(frozen=True)
class Round:
    """Times of one run, combined from the parts of a round.

    `kernels` holds f64[steps] for each segment: nanoseconds in all calls of a run, including
    stamps. `calls` holds the number of calls of each segment, `native_ns` the time of all its calls
    in each of the runs, from first step to last, without stamps; `hosts` and `host_calls` are those
    of the host steps. `looped` has the nanoseconds, without stamps, and the runs of kernels that
    ran in native loops instead, by segment and step.
    """

    kernels: list[np.ndarray]
    calls: list[float]
    native_ns: list[float]
    hosts: list[int]
    host_calls: list[int]
    looped: Mapping[tuple[int, int], tuple[float, float]] = field(default_factory=dict)


class _TimedLoop:
    """A native loop that is timed. `places` has, for each of its steps, the number of a segment
    and a step, or -1 and the number of a host step.
    """

    def __init__(self, native: NativeLoop, places: Sequence[tuple[int, int]]) -> None:
        self.native = native
        self.places = places
        self.watch = Watch(native.n_entries)
        self.watched = native.watched(self.watch)

    def times(self, stamp_ns: float) -> Iterator[tuple[tuple[int, int], float, float]]:
        """Yields the place of each step, its nanoseconds without stamps, and its runs."""
        counts = self.watch.counts
        taken = self.native.by_step(np.maximum(self.watch.ns() - counts * stamp_ns, 0.0))
        runs = self.native.by_step(counts) / np.maximum(
            self.native.by_step(np.ones_like(counts)), 1
        )
        yield from zip(self.places, taken.tolist(), runs.tolist(), strict=True)


@dataclass(frozen=True)
class Timings:
    """Rounds, and the whole times of the runs without and with watches, that took turns."""

    timed: TimedProgram
    rounds: list[Round]
    plain_ns: list[int]
    timed_ns: list[int]

    @cached_property
    def stamp_ns(self) -> float:
        """The time that a stamp adds to its step."""
        counts = self.timed.stamps(self.rounds[0])
        if not self.timed.measures_stamps or not counts:
            return driver().stamp_ns
        # Per step: an interruption affects one step, but nearly every round of many runs has one.
        stamped = sum(float(self._stamped(n).sum()) for n in range(len(self.rounds[0].kernels)))
        native = float(typical([ns for taken in self.rounds for ns in taken.native_ns]))
        found = (stamped - native) / counts
        return min(max(0.0, found), self._least_stamped_ns() * _MOST_OF_A_STEP)

    def _stamped(self, segment: int) -> np.ndarray:
        """Returns f64[steps]: the times of a segment's kernels in a typical run, including
        stamps.
        """
        found: np.ndarray = typical([r.kernels[segment] for r in self.rounds])
        return found

    def _least_stamped_ns(self) -> float:
        """Returns the shortest time of any step in a call, including its stamp: in a typical run,
        or by the median, which is lower if few rounds have an interruption.
        """
        least = math.inf
        for number, calls in enumerate(self.rounds[0].calls):
            entries = self.timed.entries(number)
            ran = entries > 0
            if calls and ran.any():
                median = np.median([r.kernels[number] for r in self.rounds], axis=0)
                usual = np.minimum(self._stamped(number), median)
                least = min(least, float((usual[ran] / entries[ran]).min()) / calls)
        return least

    def kernel_ns(self, segment: int) -> np.ndarray:
        """Returns f64[rounds, steps]: nanoseconds of a segment's kernels in a run."""
        raw = np.array([r.kernels[segment] for r in self.rounds])
        raw -= self.timed.entries(segment) * self.rounds[0].calls[segment] * self.stamp_ns
        for number, taken in enumerate(self.rounds):
            for (own, step), (ns, _) in taken.looped.items():
                if own == segment:
                    raw[number, step] += ns
        return raw

    def runs(self, segment: int) -> np.ndarray:
        """Returns f64[steps]: the number of runs of a segment's kernels in a run of the program."""
        first = self.rounds[0]
        found = first.calls[segment] * self.timed.runs(segment)
        for (own, step), (_, runs) in first.looped.items():
            if own == segment:
                found[step] += runs
        return found


def typical(values: Sequence[Any]) -> Any:
    """Returns the mean of the middle half over the first axis: nearly as robust as the median."""
    ordered = np.sort(np.asarray(values, float), axis=0)
    cut = len(ordered) // 4
    return ordered[cut : len(ordered) - cut].mean(axis=0)


class Turns:
    """Runs a program plain and with watches in turn, and keeps their times."""

    def __init__(
        self,
        program: Program,
        segments: Sequence[NativeSegment],
        arrays: Callable[[], Sequence[Any]],
        warmup: int,
    ) -> None:
        """Runs the program `warmup` times plainly, at least once, then once with watches.

        `arrays` returns the inputs; it is called in each run, and its time is included.
        """
        self._program, self._arrays = program, arrays
        self.timed = TimedProgram(program, segments)
        self.timings = Timings(self.timed, [], [], [])
        for _ in range(max(1, warmup)):
            self._run(program)
        self.timed.share_out(self._run)
        self.run_ns = self._run(program)

    @property
    def round_ns(self) -> float:
        """The approximate duration of `take`."""
        return 2.0 * self.timed.parts * self.run_ns

    def _run(self, program: Program) -> int:
        start = time.perf_counter_ns()
        program(self._arrays())
        return time.perf_counter_ns() - start

    def take(self) -> None:
        """Times one round; the plain run comes first in half of the rounds."""
        self.timed.clear()
        timings = self.timings
        for number in range(self.timed.parts):
            program = self.timed.part(number)
            first = (len(timings.rounds) + number) % 2
            if not first:
                timings.plain_ns.append(self._run(self._program))
            timings.timed_ns.append(self._run(program))
            self.timed.ran()
            if first:
                timings.plain_ns.append(self._run(self._program))
        timings.rounds.append(self.timed.round())

    def outside(self) -> dict[str, tuple[int, float]]:
        """Returns the work of runs outside kernels and host steps: the count per run, and the share
        of the time outside; the median of some runs.
        """
        runs = []
        for _ in range(_OUTSIDE_RUNS):
            self.timed.clear()
            found = self.timed.outside(self._arrays())
            total = sum(ns for _, ns in found.values()) or 1.0
            runs.append({kind: (count, ns / total) for kind, (count, ns) in found.items()})
        return {
            kind: (count, float(np.median([run.get(kind, (0, 0.0))[1] for run in runs])))
            for kind, (count, _) in runs[0].items()
        }
