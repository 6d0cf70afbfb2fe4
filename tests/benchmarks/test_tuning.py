"""The comparison of untuned and tuned models."""

from __future__ import annotations

from pathlib import Path

import pytest

import tuning


def _comparison(model: str, default: float, measured: float, tuned: float) -> tuning.Comparison:
    gain, of_measured = default / tuned, measured / tuned
    return tuning.Comparison(
        model, 1, default, measured, tuned, gain, of_measured, trials=100, minutes=10.0
    )


def test_means_are_geometric() -> None:
    found = [_comparison("a", 8.0, 4.0, 4.0), _comparison("b", 1.0, 1.0, 2.0)]
    *lines, means = tuning.rows(found)
    assert [line[4] for line in lines] == ["2.00", "0.50"]
    assert means[4:6] == ["1.00", "0.71"]
    assert "| a | 8.00 | 4.00 | 4.00 | 2.00 | 1.00 | 100 |" in tuning.section(found)


def test_a_small_network_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "_TURNS", 12)
    found = tuning.compare("keyword_spotting", tmp_path / "none.db", 1, 1, {"ghz": 2.0})
    assert min(found.default_ms, found.measured_ms, found.tuned_ms) > 0
    assert (found.trials, found.minutes) == (0, 0.0)
