"""Candidates are compiled once, timed alone, and measured in a few programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import clew
from clew.ir.module import Module
from clew.records.trial import Outcome
from clew.runtime.cache import Cache
from clew.tuning import workbench
from clew.tuning.screening import CLEARLY_SLOWER, ratios
from clew.tuning.sequential import Demand
from clew.tuning.tunable import Tunable
from clew.tuning.workbench import SLOWER_ALONE, Workbench


@pytest.fixture
def bench(module: Module, tmp_path: Path) -> Workbench:
    compiled = clew.compile(module, threads=1, tuned=None)
    return Workbench(compiled, Cache(tmp_path / "cache"))


def _conv(bench: Workbench) -> Tunable:
    return next(k for k in bench.tunables() if "conv2d" in k.name)


def test_a_kernel_is_timed_alone_with_several_choices(bench: Workbench) -> None:
    kernel = _conv(bench)
    operands = bench._verifier.operands(kernel.subject)
    others = [kernel.default, *list(kernel.neighbors(kernel.default))[:2]]
    found = ratios(
        bench.functions[kernel.subject], operands, ["", *others], bench.options, bench.cache
    )
    assert len(found) == 4
    assert found[0] == 1.0
    assert all(ratio > 0 for ratio in found)
    assert found[1] < 3  # the same code


def test_candidates_that_are_slower_alone_are_not_measured_in_the_program(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = _conv(bench)
    tried = list(kernel.neighbors(kernel.default))
    slow = CLEARLY_SLOWER + 0.1
    lanes_seen: list[dict[str, str]] = []

    def alone(function: Any, operands: Any, choices: Any, options: Any, cache: Any) -> list[float]:
        assert choices[0] == ""  # the incumbent
        return [1.0] + [slow if n % 2 else 0.9 for n in range(len(choices) - 1)]

    def measured(
        self: Workbench, incumbents: Any, lanes: Any, demand: Any, seconds: Any = 0, **_: Any
    ) -> list[Outcome]:
        lanes_seen.extend(lanes)
        return [Outcome(s, c, "lost", ratio=1.0) for lane in lanes for s, c in lane.items()]

    monkeypatch.setattr(workbench, "ratios", alone)
    monkeypatch.setattr(Workbench, "measured", measured)
    monkeypatch.setattr(workbench, "_FINALISTS", 2)
    found = bench.run({}, [(kernel.subject, choices) for choices in tried], Demand())
    slower = [o for o in found if o.reason == SLOWER_ALONE]
    assert slower
    assert all(o.state == "lost" and o.ratio == slow and o.pairs == 0 for o in slower)
    in_program = {c for lane in lanes_seen for c in lane.values()}
    assert len(in_program) == 2
    assert not in_program & {o.choices for o in slower}


def test_the_same_code_is_measured_once(bench: Workbench, lawful: None) -> None:
    kernel = _conv(bench)
    default = (kernel.subject, kernel.default)
    found = bench.run({}, [default], Demand())
    assert [(o.state, o.reason) for o in found] == [
        ("lost", "the same code as the default choices")
    ]
    other = next(iter(kernel.neighbors(kernel.default)))
    first = bench.run({}, [(kernel.subject, other)], Demand())
    assert not first[0].reason


def test_there_are_few_lanes(bench: Workbench) -> None:
    subjects = list(dict.fromkeys(bench._of_use))
    lanes: list[dict[str, str]] = []
    for subject in subjects * 2:
        bench._lane(lanes, subject)[subject] = ""
    assert len(lanes) <= max(workbench._LANES, 2)
    first: list[dict[str, str]] = []
    for subject in subjects[:2]:  # neighbors
        bench._lane(first, subject)[subject] = ""
    assert [len(lane) for lane in first] == [1, 1]
