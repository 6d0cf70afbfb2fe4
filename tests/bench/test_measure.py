from __future__ import annotations

import math

import numpy as np
import pytest

from clew.bench.engines import Feed, Outputs, Runner
from clew.bench.measure import Figures, Measured, flat, geometric_mean, measure
from clew.machine.probes.peak import FmaPeak


class Constant(FmaPeak):
    """A machine of 2 GFLOP/s."""

    def __init__(self) -> None:
        pass

    def gflops(self, threads: int, runs: int = 3) -> float:
        return 2.0


FEEDS = [{"x": np.full(1, n, np.float32)} for n in range(3)]


def gives(*values: float) -> Runner:
    return Runner(lambda feed: [np.array(values, np.float32)])


def fails(message: str) -> Runner:
    raise RuntimeError(message)


def test_engines_are_compared_with_the_reference() -> None:
    prepares = {
        "clew": lambda: gives(1.0, 2.5),
        "onnxruntime": lambda: gives(1.0, 2.0),
        "openvino": lambda: gives(1.0),
    }
    found = measure(prepares, 10, 1, 1, Constant(), FEEDS, min_turn_s=0)
    assert [f.engine for f in found.figures] == list(prepares)
    assert [f.error for f in found.figures] == [0.25, 0.0, math.inf]
    assert found.peak_gflops == 2.0
    clew = found.of("clew")
    assert clew is not None
    assert clew.gflops == pytest.approx(10 / clew.median_ms / 1e6)
    assert clew.peak_share == pytest.approx(clew.gflops / 2)


def test_what_an_engine_raises_is_a_row_and_ends_nothing() -> None:
    def raises_later() -> Runner:
        return Runner(lambda feed: fails("no kernel\nmore").run(feed))

    prepares = {"clew": lambda: gives(1.0), "a": lambda: fails("no op"), "b": raises_later}
    found = measure(prepares, 0, 1, 1, Constant(), FEEDS, min_turn_s=0)
    assert [f.failure for f in found.figures] == [
        "",
        "RuntimeError: no op",
        "RuntimeError: no kernel",
    ]
    assert math.isnan(found.figures[0].error)
    assert found.lead("clew") is None


def test_inputs_take_turns() -> None:
    seen: list[float] = []

    def run(feed: Feed) -> Outputs:
        seen.append(float(feed["x"][0]))
        return []

    measure({"clew": lambda: Runner(run)}, 0, 1, 3, Constant(), FEEDS, min_turn_s=0)
    assert seen[:8] == [0, 1, 2, 0, 1, 2, 0, 1]


def test_a_build_for_new_values_is_a_failure() -> None:
    """Times of one input again and again would hide it."""
    built: set[float] = set()

    def run(feed: Feed) -> Outputs:
        built.add(float(feed["x"][0]))
        return []

    prepares = {"clew": lambda: Runner(run, lambda: len(built))}
    (found,) = measure(prepares, 0, 1, 1, Constant(), FEEDS, min_turn_s=0).figures
    assert "error[C095] 3 inputs that differ only in their values took 3 builds" in found.failure


def test_a_model_that_nobody_runs_has_failures_only() -> None:
    found = measure({"clew": lambda: fails("x")}, 0, 1, 1, Constant(), FEEDS)
    assert found.figures == (Figures("clew", "RuntimeError: x"),)
    assert (found.peaks, found.peak_gflops, found.lead("clew")) == ((), 0.0, None)


def test_the_lead_is_over_the_fastest_that_ran() -> None:
    rows = (
        Figures("clew", median_ms=2.0),
        Figures("a", median_ms=3.0),
        Figures("b", median_ms=2.5),
        Figures("c", failure="no"),
        Figures("wrong", median_ms=1.0, error=80.0),
    )
    assert Measured(rows, (1.0,)).lead("clew") == (1.25, "b")
    assert Measured(rows, (1.0,)).lead("c") is None


def test_means_of_ratios_are_geometric() -> None:
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1.0)
    assert geometric_mean([8.0, 1.0, 1.0]) == pytest.approx(2.0)


def test_outputs_are_copied_and_spread_out() -> None:
    array = np.zeros(2)
    first, second = flat([array, None, [array]])
    array[0] = 1
    assert not first.any()
    assert not second.any()
