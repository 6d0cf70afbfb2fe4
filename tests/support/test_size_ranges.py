"""Ranges of free dimensions: the forms in which they are given, and their answers."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from clew.support.errors import ClewError, InputError
from clew.support.size_ranges import SizeRange, SizeRanges, read_size_text, read_sizes


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (128, SizeRange(128, 128, (), empty=False)),
        (0, SizeRange(1, 0, (), empty=True)),
        (np.int64(3), SizeRange(3, 3, (), empty=False)),
        ((1, 512), SizeRange(1, 512, (), empty=False)),
        ((0, 512), SizeRange(1, 512)),
        ((4, None), SizeRange(4, None, (), empty=False)),
        ((None, 4), SizeRange(1, 4)),
        ((None, None), SizeRange()),
        (range(2, 9), SizeRange(2, 8, (), empty=False)),
        ([8, 1, 8], SizeRange(1, None, (1, 8))),
        ({"range": (1, 9), "likely": [4]}, SizeRange(1, 9, (4,), empty=False)),
        ({"range": range(1, 10)}, SizeRange(1, 9, (), empty=False)),
        ({"likely": (4,)}, SizeRange(1, None, (4,))),
        (SizeRange(2, 3), SizeRange(2, 3)),
    ],
)
def test_forms_in_python(given: Any, expected: SizeRange) -> None:
    assert read_sizes({"n": given})["n"] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("128", SizeRange(128, 128, (), empty=False)),
        ("1:512", SizeRange(1, 512, (), empty=False)),
        (":512", SizeRange(1, 512)),
        ("4:", SizeRange(4, None, (), empty=False)),
        (":", SizeRange()),
        ("8, 1", SizeRange(1, None, (1, 8))),
        ("1:512,64,128", SizeRange(1, 512, (64, 128), empty=False)),
        (":,128", SizeRange(1, None, (128,))),
    ],
)
def test_forms_on_the_command_line(text: str, expected: SizeRange) -> None:
    assert read_size_text("n", text) == expected


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ((9, 4), "the range from 9 to 4 has no sizes"),
        (range(4, 4), "the range from 4 to 3 has no sizes"),
        (range(0, 9, 2), "range(0, 9, 2) has a step"),
        ((1, 2, 3), "the range is (1, 2, 3), not a pair of sizes"),
        ((-1, 4), "-1 is not a size"),
        (-4, "-4 is not a size"),
        (1 << 63, f"{1 << 63} is not a size"),
        (1.0, "1.0 is not a size"),
        (True, "True is not a size"),
        ("1:4", "'1:4' is not a size"),
        (None, "None is not a size"),
        ([], "the list of likely sizes is empty"),
        ([1, "8"], "'8' is not a size"),
        ([0, 8], "the likely size 0 is not in the range of 1 or more"),
        ({"range": (1, 4), "likely": [8]}, "the likely size 8 is not in the range of 1 to 4"),
        ({"range": (1, 4), "likely": 4}, "likely is 4, not a list of sizes"),
        ({"range": [1, 4]}, "the range is [1, 4], not a pair of sizes"),
        ({"low": 1}, "the dict has the keys ['low'], expected range and likely"),
        ({}, "the dict has the keys [], expected range and likely"),
    ],
)
def test_wrong_forms_in_python(given: Any, why: str) -> None:
    with pytest.raises(InputError) as caught:
        read_sizes({"n": given})
    assert caught.value.code == "I315"
    assert caught.value.message == f"the sizes given for 'n': {why}"
    assert "(1, 512) is a range" in caught.value.hint


@pytest.mark.parametrize(
    "text", ["", ",", "x", "-1", "1:2:3", "1:2,3:4", "1.5", "1,,2", "²", "9" * 40, "1;2"]
)
def test_wrong_forms_on_the_command_line(text: str) -> None:
    with pytest.raises(InputError) as caught:
        read_size_text("n", text)
    assert caught.value.code == "I315"
    assert caught.value.message.startswith(f"the sizes given for 'n': {text!r} has none of")
    assert "1:512 is a range" in caught.value.text("cli")


def test_what_is_no_mapping_or_has_no_names() -> None:
    for given, message in (
        ([("n", 4)], "sizes is a list, not a mapping"),
        ({4: 4}, "the sizes given for 4: a dimension has a name"),
    ):
        with pytest.raises(InputError) as caught:
            read_sizes(given)  # type: ignore[arg-type]
        assert (caught.value.code, caught.value.message) == ("I315", message)


def test_size_zero_is_in_a_range_that_names_it_or_has_no_lower_end() -> None:
    ranges = read_sizes({"a": (1, 4), "b": (0, 4), "c": [2], "d": (None, 4)})
    assert {name: 0 in one for name, one in ranges.items()} == {
        "a": False, "b": True, "c": True, "d": True
    }  # fmt: skip
    assert [n for n in range(8) if n in ranges["a"]] == [1, 2, 3, 4]
    assert 1 << 40 in ranges["c"]
    assert all(one.low == 1 for one in ranges.values())


def test_typical_sizes() -> None:
    ranges = read_sizes(
        {"a": [1, 8, 64], "b": (1, 512), "c": (1, 12), "d": (500, None), "e": [1, 8]}
    )
    assert [ranges.typical(name) for name in "abcdef"] == [8, 127, 12, 500, 8, 127]


def test_fixed_sizes() -> None:
    ranges = read_sizes({"a": 4, "b": (4, 4), "c": 0, "d": (0, 1), "e": (1, 2), "f": [4]})
    assert ranges.fixed == {"a": 4, "b": 4, "c": 0}
    assert list(ranges.without(ranges.fixed)) == ["d", "e", "f"]
    assert ranges.of("d").fixed is None


def test_ranges_are_equal_whatever_their_order() -> None:
    given = {"b": (1, 4), "a": [1, 8]}
    ranges = read_sizes(given)
    same = read_sizes(dict(reversed(given.items())))
    assert (ranges, hash(ranges), repr(ranges)) == (same, hash(same), repr(same))
    assert str(ranges) == "a 0 or more, likely 1, 8, b 1 to 4"
    assert pickle.loads(pickle.dumps(ranges)) == ranges
    assert read_sizes(ranges) == ranges
    assert ranges != SizeRanges()
    assert ranges.of("c") == SizeRange()


def test_a_range_as_json() -> None:
    for one in read_sizes({"a": (2, 4), "b": [1, 8], "c": 4}).values():
        assert SizeRange.from_json(one.to_json()) == one
    with pytest.raises(AssertionError):
        SizeRange.from_json({"low": "1", "high": 4, "likely": [], "empty": False})


def test_ranges_inside_those_of_the_model() -> None:
    ranges = read_sizes({"n": (1, 9), "m": [4]}).within({"n": (2, 64), "k": (0, 3)})
    assert str(ranges) == "k 0 to 3, m 0 or more, likely 4, n 2 to 9"
    assert (ranges["n"].own, ranges["m"].own) == ((2, 64), None)
    assert ranges["n"].excludes_itself(1)
    assert not ranges["n"].excludes_itself(10)
    assert SizeRange.from_json(ranges["n"].to_json()) == ranges["n"]
    assert ranges.expected == (("k", 3), ("m", 4), ("n", 9))
    for given in ({"n": 1}, {"n": [65]}, {"n": (70, None)}):
        with pytest.raises(ClewError, match=r"I315.*itself has the range 2 to 64"):
            read_sizes(given).within({"n": (2, 64)})
