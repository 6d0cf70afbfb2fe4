"""Sizes are drawn and figures are summed up as stated, and the script runs on a small model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import sizes
import zoo
from harness.free_sizes import RANGES, ROWS, AtSize, Range, Served, drawn, spread, summary
from harness.sizes_child import unmatched

MIB = 1 << 20


def at(n: int, **figures: float) -> AtSize:
    return AtSize({"n": n}, **figures)  # type: ignore[arg-type]


def result(*found: AtSize, builds: int = 1) -> sizes.Result:
    return sizes.Result("m", 1, Served(0.5, builds, 90 * MIB, list(found)), [])


def line(made: sizes.Result, figure: str) -> sizes.Line:
    return next(each for each in sizes.lines(made) if each.figure == figure)


def test_free_models_have_ranges_of_their_own() -> None:
    assert set(RANGES) == set(zoo.names("free")) == set(sizes.DEFAULT_MODELS)
    for name, ranges in RANGES.items():
        assert ranges.keys() == zoo.dims(name).keys()
    assert set(ROWS) <= set(RANGES)


def test_sizes_are_different_and_within_their_ranges() -> None:
    found = drawn(RANGES["encoder_free"], 200, seed=1)
    assert len({tuple(each.values()) for each in found}) == 200
    assert found == drawn(RANGES["encoder_free"], 200, seed=1)
    assert found != drawn(RANGES["encoder_free"], 200, seed=2)
    assert {each["batch"] for each in found} == set(range(1, 9))
    lengths = [each["sequence"] for each in found]
    assert min(lengths) >= 1
    assert max(lengths) <= 512
    assert sum(length <= 22 for length in lengths) > 60  # log-uniform


def test_half_of_the_sizes_are_multiples() -> None:
    heights = [each["height"] for each in drawn(RANGES["detector_free"], 200, seed=0)]
    assert 60 < sum(height % 32 == 0 for height in heights) < 150
    assert min(heights) >= 64
    assert max(heights) <= 512


def test_growing_sizes_follow_each_other_to_the_end_of_the_range() -> None:
    grown = drawn({"past": Range(0, 3, grows=True)}, 200, seed=0)
    assert grown == [{"past": n} for n in range(4)]


def test_static_builds_are_spread_from_the_smallest_to_the_largest() -> None:
    found = [{"n": n} for n in (9, 1, 5, 3, 7)]
    assert spread(found, 3) == [0, 1, 2]
    assert spread(found, 1) == [2]
    assert spread(found, 0) == []
    assert spread(found, 9) == [0, 1, 2, 3, 4]


def test_the_worst_figure_has_its_size() -> None:
    figures = [({"n": 1}, 2.0), ({"n": 2}, None), ({"n": 3}, 8.0)]
    low, high = summary(figures, low=True), summary(figures, low=False)
    assert low is not None
    assert high is not None
    assert (low.mean, low.worst, low.dims) == (pytest.approx(4), 2.0, {"n": 1})
    assert (high.worst, high.dims) == (8.0, {"n": 3})
    assert summary([({"n": 1}, None)], low=True) is None


def test_first_calls_have_an_allowance() -> None:
    assert at(1, first_s=0.012, again_s=0.010).first_ratio == pytest.approx(1)
    assert at(1, first_s=0.001, again_s=0.010).first_ratio == 0
    assert at(1).first_ratio is None


def test_limits_are_judged() -> None:
    good = at(1, first_s=0.012, again_s=0.01, peer_ratio=2.0, static_ratio=1.0, error=1e-6)
    slow = at(2, first_s=0.1, again_s=0.01, peer_ratio=0.6, static_ratio=0.33, error=1e-3)
    good.after_bytes, slow.after_bytes = 100 * MIB, 104 * MIB
    fine, bad = result(good), result(good, slow, builds=2)
    assert all(each.met in (True, None) for each in sizes.lines(fine))
    assert not fine.is_wrong
    assert bad.is_wrong
    judged = {each.figure: each.met for each in sizes.lines(bad)}
    failed = {figure for figure, met in judged.items() if met is False}
    assert failed == {
        "builds",
        "(first call − 2 ms) ÷ again",
        "static ÷ free",
        "ORT ÷ free",
        "error",
    }
    assert line(bad, "static ÷ free").worst == "0.33 (2)"
    assert line(bad, "memory growth").value == "+4 %"


def test_a_size_that_fails_is_a_row() -> None:
    failing = result(at(1), AtSize({"n": 2}, failure="ClewError: no"))
    assert failing.is_wrong
    assert line(failing, "sizes that failed").value == "1 of 2"
    assert sizes.sizes_table(failing).row_count == 2
    assert sizes.summary_table([failing]).row_count >= 3


def test_few_rows_may_differ_by_rounding() -> None:
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    assert unmatched(rows, rows[::-1]) == 0
    assert unmatched(rows, rows[:5]) == 1
    assert unmatched(rows[:0], rows[:1]) == 1
    assert not at(1, rows=11, unmatched=1).is_wrong
    assert at(1, rows=11, unmatched=3).is_wrong


def test_two_sizes_are_measured(tmp_path: Path) -> None:
    app, file = typer.Typer(), tmp_path / "figures.json"
    app.command()(sizes.main)
    options = ["--model", "bert_tiny_dynamic", "--count", "2", "--static", "0", "--json", str(file)]
    done = CliRunner().invoke(app, options)
    assert done.exit_code == 0, done.output
    assert "over all sizes" in done.output
    (model,) = json.loads(file.read_text())["models"]
    assert model["cold"]["builds"] >= 1
    for found in model["cold"]["sizes"]:
        assert not found["failure"]
        assert found["error"] < 1e-4
        assert min(found["first_s"], found["again_s"], found["free_s"], found["peer_s"]) > 0
        assert found["peer_ratio"] > 0
        assert found["static_s"] is None
        assert found["static_ratio"] is None
        assert found["after_bytes"] > 0


def test_models_without_free_sizes_are_refused() -> None:
    with pytest.raises(typer.BadParameter, match="no model 'if_branches' with free sizes"):
        sizes.main(["if_branches"])
