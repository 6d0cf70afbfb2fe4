"""Chooses a backend for each unit such that the sum of the costs is least.

The units are visited in order. A state names the backends of the units whose values later units
still read; of several states that agree in this, the search keeps the cheapest. The search is exact
as long as it keeps one state for each combination. Most graphs are nearly chains, in which few
values are live at a time, so there are few states. If there are more than `most`, the search keeps
the cheapest ones, and the *gap* says by how much the result may exceed the optimum: no assignment
that was given up costs less than the cheapest state given up plus the least that the remaining
units cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

MOST_STATES: Final = 4096


@dataclass(frozen=True)
class Problem:
    """The costs of placement, in seconds.

    `choices[u]` are the backends that may run unit `u`, and `costs[u]` their times for it.
    `reads[u]` are the units that it reads, all before it, each with the cost of the border between
    two backends: `border(start's backend, end's backend)`. `starts[b]` is the cost of entering a
    region of a backend. `ends[u]` is the cost, by backend, of copying the inputs of the model that
    the unit reads, and the outputs that it computes.
    """

    choices: Sequence[Sequence[str]]
    costs: Sequence[Mapping[str, float]]
    reads: Sequence[Sequence[tuple[int, Callable[[str, str], float]]]]
    starts: Mapping[str, float]
    ends: Sequence[Mapping[str, float]] = ()

    def cost(self, names: Sequence[str]) -> float:
        """Returns the seconds of an assignment, a backend for each unit."""
        return sum(self._step(u, name, names.__getitem__) for u, name in enumerate(names))

    def _step(self, unit: int, name: str, of: Callable[[int], str]) -> float:
        """Returns the cost of a unit on a backend, with the borders to the units that it reads."""
        total = self.costs[unit][name]
        entered = True
        for start, border in self.reads[unit]:
            other = of(start)
            if other == name:
                entered = False
            else:
                total += border(other, name)
        if entered:
            total += self.starts.get(name, 0.0)
        if self.ends:
            total += self.ends[unit].get(name, 0.0)
        return total


@dataclass(frozen=True)
class Found:
    """An assignment: the backend of each unit, and the cost in seconds. No assignment costs less
    than `bound`, in seconds.
    """

    names: tuple[str, ...]
    cost: float
    bound: float

    @property
    def exact(self) -> bool:
        """Whether no assignment costs less."""
        return self.bound >= self.cost

    @property
    def gap(self) -> float:
        """The most by which the cost may exceed the optimum, relative to the optimum."""
        return 0.0 if self.exact or self.bound <= 0 else self.cost / self.bound - 1


@dataclass(frozen=True, slots=True)
class _State:
    cost: float
    waiting: tuple[str, ...]  # the backends of the units whose values later units read
    last: _State | None
    name: str


def solve(problem: Problem, most: int = MOST_STATES) -> Found:
    """Returns the cheapest assignment that the search finds, with at most `most` states at a time.

    Ties go to the first backend in `choices`.
    """
    count = len(problem.choices)
    last_read = list(range(count))
    for unit, reads in enumerate(problem.reads):
        for start, _ in reads:
            last_read[start] = unit
    least = _least_after(problem)
    states = [_State(0.0, (), None, "")]
    waiting: list[int] = []
    given_up = math.inf
    for unit in range(count):
        places = {u: n for n, u in enumerate(waiting)}
        after = [u for u in waiting if last_read[u] > unit]
        kept = [places[u] for u in after]
        stays = last_read[unit] > unit
        best: dict[tuple[str, ...], _State] = {}
        for state in states:
            for name in problem.choices[unit]:
                of = dict(zip(waiting, state.waiting, strict=True)).__getitem__
                cost = state.cost + problem._step(unit, name, of)
                key = (*[state.waiting[p] for p in kept], *([name] if stays else []))
                known = best.get(key)
                if known is None or cost < known.cost:
                    best[key] = _State(cost, key, state, name)
        states = sorted(best.values(), key=lambda s: s.cost)
        if len(states) > most:
            given_up = min(given_up, states[most].cost + least[unit + 1])
            states = states[:most]
        waiting = [*after, *([unit] if stays else [])]
    found = min(states, key=lambda s: s.cost)
    return Found(_names(found), found.cost, min(found.cost, given_up))


def _least_after(problem: Problem) -> list[float]:
    """Returns, for each unit, the least that it and all after it cost, without borders."""
    least = [0.0] * (len(problem.costs) + 1)
    for unit in reversed(range(len(problem.costs))):
        options = [problem.costs[unit][name] for name in problem.choices[unit]]
        least[unit] = least[unit + 1] + min(options)
    return least


def _names(state: _State) -> tuple[str, ...]:
    names = []
    node: _State | None = state
    while node is not None and node.last is not None:
        names.append(node.name)
        node = node.last
    return tuple(reversed(names))
