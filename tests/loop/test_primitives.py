"""Whatever primitives are applied to a nest, it computes what it did, or the primitive refuses."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import numpy as np
import pytest
from computations import KINDS, OPENINGS, check_drawn, draw_schedule, plain, same

from clew.loop.interpret import interpret
from clew.loop.ir import Nest
from clew.loop.printer import print_nest
from clew.loop.schedule import Schedule

Array = np.ndarray[Any, Any]


def _check_drawn(seeds: range) -> None:
    applied: Counter[str] = Counter()
    for seed in seeds:
        draw = Random(seed)
        kind = draw.choice(sorted(KINDS))
        nest, arrays, expected = plain(kind, draw.randint(1, 5), draw.randint(1, 7))
        schedule = Schedule(nest)
        made = draw_schedule(draw, kind, schedule)
        assert made, f"seed {seed}: no step was applied"
        _check(schedule, nest, arrays, expected)
        applied.update(made)
    check_drawn(applied)


def test_any_sequence_keeps_the_result() -> None:
    """All primitives and tails are among the steps of the drawn schedules."""
    _check_drawn(range(200))


@pytest.mark.exhaustive
def test_any_of_many_sequences_keeps_the_result() -> None:
    _check_drawn(range(200, 5000))


@pytest.mark.parametrize(
    ("kind", "number"), [(kind, n) for kind in KINDS for n in range(len(OPENINGS[kind]))]
)
def test_openings_are_legal(kind: str, number: int) -> None:
    nest, arrays, expected = plain(kind, 5, 7)
    schedule = Schedule(nest)
    OPENINGS[kind][number](schedule)
    _check(schedule, nest, arrays, expected)


def _check(schedule: Schedule, nest: Nest, arrays: list[Array], expected: list[Array]) -> None:
    """Asserts that a schedule keeps the results of a nest, and replays to the same text."""
    steps = [str(s) for s in schedule.steps]
    assert same(interpret(schedule.nest, arrays), expected), (steps, str(schedule))
    assert same(interpret(schedule.finished(), arrays), expected), (steps, str(schedule))
    again = Schedule.replay(nest, steps)
    assert print_nest(again.finished()).text == print_nest(schedule.finished()).text
