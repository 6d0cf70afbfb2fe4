"""`clew machine`: measures once, shows, forgets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from clew.machine.costs import DEFAULTS, Costs
from clew.machine.figures import figures_of
from clew.machine.kept import keep, kept_rates
from clew.machine.rates import DEFAULT_RATES, Rates
from clew.machine.target import describe_host, host

from .test_app import Run, run  # noqa: F401


@pytest.fixture(autouse=True)
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """What was measured: 2 GHz first, then 3, and so on."""
    monkeypatch.setenv("COLUMNS", "160")
    found: list[float] = []

    def measure(say: object) -> Costs:
        found.append(2.0 + len(found))
        return replace(DEFAULTS, ghz=found[-1])

    monkeypatch.setattr("clew.machine.measure.measured_costs", measure)
    with monkeypatch.context() as patched:
        patched.setenv("CLEW_CACHE_DIR", str(tmp_path))
        host.cache_clear()
        yield found
    host.cache_clear()  # with the variable as it was: no other thread may fill it in between


def test_costs_are_measured_once(run: Run, measured: list[float]) -> None:  # noqa: F811
    first = run("machine")
    assert first.code == 0
    row = next(line for line in first.out.splitlines() if line.startswith("ghz"))
    assert row.split()[:5] == ["ghz", "4", "2", "GHz", "measured"]
    assert all(
        any(line.startswith(f.name) for line in first.out.splitlines()) for f in figures_of(Costs)
    )
    assert "machine.json" in first.out
    assert run("machine").out == first.out
    assert measured == [2.0]
    assert host().costs.ghz == 2.0
    assert run("machine", "--again", "--json").json["costs"]["ghz"] == 3.0
    assert host().costs.ghz == 3.0
    forgotten = run("machine", "--forget", "--json").json
    assert (forgotten["measured"], forgotten["costs"]["ghz"]) == (False, DEFAULTS.ghz)
    assert measured == [2.0, 3.0]


def test_rates_are_measured_where_only_costs_are_stored(
    run: Run,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[object] = []

    def measure(say: object) -> Rates:
        asked.append(say)
        return DEFAULT_RATES

    monkeypatch.setattr("clew.machine.measure.measured_rates", measure)
    identity = describe_host().identity
    keep(identity, DEFAULTS)
    assert run("machine").code == 0
    assert len(asked) == 1
    assert kept_rates(identity) == DEFAULT_RATES
    assert run("machine").code == 0
    assert len(asked) == 1


def test_a_named_target_has_the_defaults(run: Run, measured: list[float]) -> None:  # noqa: F811
    shown = run("machine", "--target", "cpu-avx512")
    assert "32 registers of 512 bits" in shown.out
    assert " measured " not in shown.out
    assert not measured
    assert run("machine", "--target", "cpu-avx512", "--again").code == 1
    assert "I293" in run("machine", "--again", "--forget").err
    assert "I010" in run("machine", "--target", "abacus").err
