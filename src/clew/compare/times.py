"""Times of kernels and layers in both builds, measured alternately, so other load on the machine
slows both alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from clew.compare.state import Side
from clew.profile import modes
from clew.profile.report import Profile
from clew.profile.rows import NO_LAYER
from clew.runtime.timing import Turns

# The approximate time of all turns together, and the minimum time of one: at the start of a turn,
# the caches hold the other build's values and weights.
_SECONDS: Final = 4.0
_TURN_SECONDS: Final = 0.02
_LEAST_ROUNDS: Final = 10
_MOST_ROUNDS: Final = 50
_MOST_A_TURN: Final = 20
_WARMUP: Final = 3
# With this many rounds, an agreement on the slower build is not chance.
_STEADY: Final = 10
# Smaller differences are ignored, however steady: the same code differs this much between
# addresses.
_SMALLEST: Final = 0.03

Series = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Timing:
    """A time in both builds, in microseconds: medians over the rounds.

    `spread` is the interquartile range of the difference B - A per round. `differs` says whether
    the median difference exceeds 3 % of the time, and either exceeds the spread or has the same
    sign in all of ten or more rounds.
    """

    a: float
    b: float
    spread: float = 0.0
    differs: bool = False

    @property
    def ratio(self) -> float:
        """B's time divided by A's; NaN if A's is zero."""
        return self.b / self.a if self.a else float("nan")


def timing(a: Series, b: Series) -> Timing:
    """Returns the medians of two series of rounds, and whether their difference exceeds the
    noise.
    """
    difference = b - a
    low, middle, high = np.quantile(difference, (0.25, 0.5, 0.75))
    spread = float(high - low)
    base, other = float(np.median(a)), float(np.median(b))
    steady = len(a) >= _STEADY and abs(np.sign(difference).sum()) == len(a)
    differs = (abs(middle) > spread or steady) and abs(middle) > _SMALLEST * min(base, other)
    return Timing(base, other, spread, bool(differs))


@dataclass(frozen=True)
class Rounds:
    """One build's times, one per round, in microseconds: of whole runs, and of each kernel (and
    host step) in a run. `shares` are the layers' shares of a kernel's time, from the build's
    profile; `notes` are that profile's notes.
    """

    wall: Series
    kernels: Mapping[str, Series]
    shares: Mapping[str, Mapping[str, float]]
    notes: tuple[str, ...]

    def of_kernels(self, kernels: Sequence[str]) -> Series:
        """Returns the total times of some kernels."""
        found = [self.kernels[k] for k in kernels if k in self.kernels]
        return np.sum(found, axis=0) if found else np.zeros(len(self.wall))

    def of_layer(self, layer: str) -> Series:
        """Returns the times of a layer: the sum of its shares of kernels."""
        total = np.zeros(len(self.wall))
        for kernel, share in self.shares.get(layer, {}).items():
            if kernel in self.kernels:
                total += share * self.kernels[kernel]
        return total


@dataclass(frozen=True)
class Times:
    """The measured times of both builds."""

    a: Rounds
    b: Rounds

    @property
    def rounds(self) -> int:
        """The number of turns per build."""
        return len(self.a.wall)

    @property
    def whole(self) -> Timing:
        """The time of whole runs."""
        return timing(self.a.wall, self.b.wall)

    def of_kernels(self, a: Sequence[str], b: Sequence[str]) -> Timing:
        """Returns the total times of some kernels of A and of some kernels of B."""
        return timing(self.a.of_kernels(a), self.b.of_kernels(b))

    def of_layers(self, a: str, b: str) -> Timing:
        """Returns the times of a layer of A and a layer of B; an empty name means no layer."""
        none = np.zeros(self.rounds)
        return timing(self.a.of_layer(a) if a else none, self.b.of_layer(b) if b else none)


def measure(
    sides: Sequence[Side],
    arrays: Sequence[Sequence[Any]],
    rounds: int | None,
    say: Callable[[str], None],
) -> Times:
    """Returns the times of both builds over rounds with one turn each, A B, B A, A B ...

    Without a number of rounds, measures for a few seconds, at least ten rounds.
    """
    watched = [_Watched(side, given) for side, given in zip(sides, arrays, strict=True)]
    if rounds is None:
        each = sum(one.turn_seconds for one in watched)
        rounds = min(_MOST_ROUNDS, max(_LEAST_ROUNDS, int(_SECONDS / each)))
    for number in range(rounds):
        say(f"timing, round {number + 1} of {rounds}")
        for one in watched if number % 2 == 0 else watched[::-1]:
            one.turn()
    a, b = (one.rounds(say) for one in watched)
    return Times(a, b)


class _Watched:
    """One build with timers on its kernels."""

    def __init__(self, side: Side, arrays: Sequence[Any]) -> None:
        model = self._model = side.compiled
        self._arrays = arrays
        self._ready = model.ready_for(model.checked(arrays))
        self._turns = Turns(
            self._ready.program, self._ready.segments, lambda: model.checked(arrays), _WARMUP
        )
        once = self._turns.round_ns / 1e9
        self._times_a_turn = max(1, min(_MOST_A_TURN, int(_TURN_SECONDS / max(once, 1e-9))))
        self._rounds = 0
        self.turn_seconds = once * (self._times_a_turn + 1)
        """The approximate time of a turn."""

    def turn(self) -> None:
        """Takes a turn, after one uncounted run."""
        self._model(*self._arrays)
        for _ in range(self._times_a_turn):
            self._turns.take()
        self._rounds += 1

    def _by_round(self, values: Any) -> Series:
        """Returns the median of each turn, in microseconds."""
        found: Series = np.median(np.reshape(values, (self._rounds, -1)), axis=1) / 1e3
        return found

    def rounds(self, say: Callable[[str], None]) -> Rounds:
        """Returns the times of its turns."""
        timings = self._turns.timings
        wall = self._by_round(timings.plain_ns)
        numbers = range(len(self._ready.segments))
        segments = {n: timings.kernel_ns(n) for n in numbers if timings.runs(n).any()}
        kernels = {
            kernel.name: np.maximum(self._by_round(segments[segment][:, step]), 0.0)
            for kernel, segment, step in self._ready.uses
            if segment in segments
        }
        profile = modes.profile(
            self._model,
            self._model.checked(self._arrays),
            repeats=1,
            roofline=False,
            on_progress=say,
        )
        hosts = [n for n, runs in enumerate(timings.rounds[0].host_calls) if runs]
        names = [k.name for k in profile.kernels if k.kind != "kernel"]
        for name, n in zip(names, hosts, strict=False):
            kernels[name] = self._by_round([r.hosts[n] for r in timings.rounds])
        return Rounds(wall, kernels, _shares(profile), profile.notes)


def _shares(profile: Profile) -> dict[str, dict[str, float]]:
    """Returns, for each layer, its shares of kernels' times."""
    found: dict[str, dict[str, float]] = {}
    for kernel in profile.kernels:
        for operator in kernel.operators:
            for part in operator.parts:
                if kernel.ns and part.layer != NO_LAYER:
                    shares = found.setdefault(part.layer, {})
                    shares[kernel.name] = shares.get(kernel.name, 0.0) + part.ns / kernel.ns
    return found
