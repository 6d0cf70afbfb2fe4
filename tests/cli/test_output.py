"""What is printed of values of every kind, and how far they are from a reference."""

from __future__ import annotations

import json

import numpy as np
import pytest

from clew.cli.output import describe, emit_json, flat
from clew.support.difference import relative_error

INF, NAN = float("inf"), float("nan")


def test_sequences_are_spread_out_and_missing_values_left_out() -> None:
    found = flat({"a": 1, "b": [2, (3, None)], "c": None})
    assert found == {"a": 1, "b[0]": 2, "b[1][0]": 3}


@pytest.mark.parametrize("dtype", ["f2", "f4", "i8", "u1", "?"])
def test_numbers_are_described_by_range_and_mean(dtype: str) -> None:
    facts = describe("y", np.array([[0, 1], [1, 1]], dtype))
    assert (facts["shape"], facts["min"], facts["max"], facts["mean"]) == ([2, 2], 0, 1, 0.75)


def test_empty_and_text_outputs_have_no_range() -> None:
    for value in np.zeros((0, 3), np.float32), np.array(["a"]):
        assert "min" not in describe("y", value)


def test_json_has_null_for_what_it_cannot_say(capsys: pytest.CaptureFixture[str]) -> None:
    emit_json({"a": [INF, NAN, np.float32(1.5)], "b": np.array([1, 2])})
    assert json.loads(capsys.readouterr().out) == {"a": [None, None, 1.5], "b": [1, 2]}


@pytest.mark.parametrize(
    ("value", "reference", "error"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.5], [1.0, 2.0], 0.25),
        ([0.5], [0.0], 0.5),
        ([1.0], [1.0, 2.0], INF),
        ([NAN, INF, 1.0], [NAN, INF, 1.0], 0.0),
        ([NAN], [1.0], INF),
        ([1.0], [NAN], INF),
        ([INF], [-INF], INF),
        ([], [], 0.0),
        (["a"], ["a"], 0.0),
        (["a"], ["b"], INF),
        (None, [1.0], INF),
    ],
)
def test_relative_error(value: object, reference: object, error: float) -> None:
    given = None if value is None else np.array(value)
    assert relative_error(given, np.array(reference)) == error
