"""The search for the cheapest assignment: exact where it says so, and honest where not."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from clew.placement.search import Found, Problem, solve

NAMES = ("cpu", "a", "b")


def random_problem(seed: int, units: int, reads: float = 0.4) -> Problem:
    """Units with random backends and costs, each reading earlier ones, with random borders."""
    rng = np.random.default_rng(seed)

    def border(table: dict[tuple[str, str], float]) -> Callable[[str, str], float]:
        return lambda start, end: table[start, end]

    choices = [tuple(rng.permutation(NAMES)[: rng.integers(1, 4)]) for _ in range(units)]
    read: list[list[tuple[int, Callable[[str, str], float]]]] = []
    for unit in range(units):
        starts = [s for s in range(unit) if rng.random() < reads]
        tables = [{(a, b): rng.random() for a in NAMES for b in NAMES} for _ in starts]
        read.append([(s, border(t)) for s, t in zip(starts, tables, strict=True)])
    costs = [{name: rng.random() for name in names} for names in choices]
    ends = [{name: 0.1 * rng.random() for name in names} for names in choices]
    return Problem(choices, costs, read, {name: 0.3 * rng.random() for name in NAMES}, ends)


def best_of_all(problem: Problem) -> float:
    return min(problem.cost(names) for names in itertools.product(*problem.choices))


@pytest.mark.parametrize("seed", range(60))
def test_it_finds_what_trying_all_finds(seed: int) -> None:
    problem = random_problem(seed, units=1 + seed % 8)
    found = solve(problem)
    assert found.exact
    assert found.gap == 0
    assert found.cost == pytest.approx(best_of_all(problem))
    assert problem.cost(found.names) == pytest.approx(found.cost)


@pytest.mark.parametrize("seed", range(60))
def test_with_few_states_its_bound_still_holds(seed: int) -> None:
    problem = random_problem(seed, units=8, reads=0.7)
    found = solve(problem, most=2)
    least = best_of_all(problem)
    assert found.bound <= least + 1e-9
    assert least <= found.cost + 1e-9
    assert problem.cost(found.names) == pytest.approx(found.cost)
    assert found.exact == (found.gap == 0)
    assert found.cost <= (1 + found.gap) * least + 1e-9


def test_a_chain_of_hundreds_of_units_needs_few_states() -> None:
    problem = random_problem(1, units=400, reads=0.0)
    chain = [[(u - 1, lambda a, b: 0.5)] if u else [] for u in range(400)]
    found = solve(Problem(problem.choices, problem.costs, chain, problem.starts), most=8)
    assert found.exact


def test_borders_decide() -> None:
    """A faster backend in the middle is not worth two borders."""
    costs = [{"cpu": 1.0}, {"cpu": 1.0, "a": 0.5}, {"cpu": 1.0}]
    choices = [tuple(c) for c in costs]

    def solved(border: float) -> Found:
        reads = [[(u - 1, lambda start, end: border)] if u else [] for u in range(3)]
        return solve(Problem(choices, costs, reads, {"cpu": 0.0, "a": 0.0}))

    assert solved(0.2).names == ("cpu", "a", "cpu")
    assert solved(0.3).names == ("cpu", "cpu", "cpu")
    assert solved(0.3).cost == pytest.approx(3.0)
