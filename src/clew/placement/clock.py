"""Times calls: one function alone, and several in turns. For simulated devices, the time of the
device counts, not that of the simulation.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from clew.profile.interleave import interleaved_ns
from clew.runtime.simulated import now_ns

_LEAST_CALLS: Final = 5
_ALONE_S: Final = 0.02


def alone_seconds(function: Callable[[], Any], *, at_most: float = 1.0) -> float:
    """Returns the seconds of a call: the lower quartile of the calls in about 20 ms, and of at
    least five calls, unless these take longer than `at_most` seconds together. The first call does
    not count.
    """
    began = time.perf_counter()
    function()
    times: list[float] = []
    while True:
        start = now_ns()
        function()
        times.append((now_ns() - start) * 1e-9)
        spent = time.perf_counter() - began
        enough = len(times) >= _LEAST_CALLS and spent > _ALONE_S
        if enough or spent > at_most:
            break
    return sorted(times)[len(times) // 4]


def in_turns(functions: Mapping[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """Returns the median seconds of a call of each function, by name; the functions take turns. The
    measurement takes about `seconds`, or longer if three turns of each do.
    """
    singles = {name: _once(f) for name, f in functions.items()}
    turn = max(0.01, seconds / 12 / len(functions))
    a_round = sum(max(turn, 2 * s) for s in singles.values())
    rounds = max(3, min(24, round(seconds / a_round)))
    times = interleaved_ns(functions, rounds, turn, clock=now_ns)
    return {name: statistics.median(ns) * 1e-9 for name, ns in times.items()}


def _once(function: Callable[[], Any]) -> float:
    function()
    began = time.perf_counter()
    function()
    return time.perf_counter() - began
