"""Times several functions alternately, so all see the same state of the machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

_PAUSE_S = 0.02  # lets another engine's spinning threads go to sleep


def interleaved_ns(
    functions: Mapping[str, Callable[[], Any]],
    rounds: int,
    min_turn_s: float = 0.05,
    on_round: Callable[[], None] = lambda: None,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> dict[str, list[int]]:
    """Returns the times of single calls, in nanoseconds, by name.

    Each round gives every function one turn, in an order that rotates from round to round. A turn
    is a pause, one uncounted call, then calls until `min_turn_s` has passed. `on_round` runs once
    per round, after its own pause. `clock` returns nanoseconds.
    """
    names = list(functions)
    times: dict[str, list[int]] = {name: [] for name in names}
    for turn in range(rounds):
        time.sleep(_PAUSE_S)
        on_round()
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            time.sleep(_PAUSE_S)
            functions[name]()
            times[name] += _turn(functions[name], min_turn_s, clock)
    return times


def _turn(function: Callable[[], Any], min_turn_s: float, clock: Callable[[], int]) -> list[int]:
    times = []
    end = time.perf_counter_ns() + int(min_turn_s * 1e9)
    while True:
        began = clock()
        function()
        times.append(clock() - began)
        if time.perf_counter_ns() >= end:
            return times


def median_ms(times_ns: list[int]) -> float:
    """Returns the median in milliseconds."""
    return statistics.median(times_ns) / 1e6
