"""The soak's own parts: a short run of each kind, and what it calls growth."""

from __future__ import annotations

import itertools
from pathlib import Path

from soak import Reading, Service, growth, models, reading, watch


def readings(sizes: list[float]) -> list[Reading]:
    return [Reading(n, n, size, 0.0, 10, 2) for n, size in enumerate(sizes)]


def test_growth_is_what_the_second_half_adds() -> None:
    assert growth(readings([50, 90, 100, 100, 100, 100, 100, 100])) == 0
    assert growth(readings([100 + n for n in range(80)])) == 40
    assert growth(readings([100])) == 0


def test_models_are_compiled_run_and_dropped() -> None:
    assert list(models(3, 77_000)) == [1, 2, 3]


def test_a_service_does_each_thing(tmp_path: Path) -> None:
    service = Service(3, tmp_path)
    service.compile_one()
    for do in (
        service.run, service.run_at_once, service.new_size, service.save_and_load, service.look,
        service.refused, service.turn,
    ):  # fmt: skip
        do()
    assert sum(service.turns.values()) == 1


def test_readings_are_taken_at_the_end() -> None:
    found = watch(iter(itertools.chain([1, 2, 3])), every=1000.0)
    assert [r.done for r in found] == [1, 3]
    assert reading(0.0, 5).resident > 10
