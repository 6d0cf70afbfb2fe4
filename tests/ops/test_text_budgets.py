"""Texts and patterns stay within the budgets of a run."""

from __future__ import annotations

import resource

import numpy as np
import pytest

from clew.ops.registry import get_op
from clew.support.budgets import Budgets, in_force
from clew.support.errors import ClewError
from clew.support.text_arrays import TEXT, text_bytes

SMALL = Budgets(run_bytes=1 << 20)


def refused(op, *args, **attrs):
    """Returns the code of the error of an operator on these arguments, with small budgets."""
    with in_force(SMALL), pytest.raises(ClewError) as caught:
        get_op(op).run_reference(args, get_op(op).bind(attrs))
    return caught.value.code


def test_the_bytes_of_texts():
    """A text takes as many bytes for each character as its widest one needs, at most four."""
    assert text_bytes(np.array(["ab", ""], TEXT)) == 2
    assert text_bytes(np.array(["ab", "", "é", "日本"], TEXT)) == 4 * 5


def test_results_are_bounded_before_they_are_made():
    long = np.array(["x" * (600 << 10)], TEXT)
    assert refused("text.concat", long, long) == "I265"
    wide = np.array(["日" * (200 << 10)], TEXT)  # 600 KiB in UTF-8
    assert refused("text.concat", wide, wide) == "I265"


@pytest.mark.parametrize(
    ("op", "more", "attrs"),
    [
        ("broadcast_to", (), {"shape": (40, 1)}),
        ("tile", (), {"repeats": (40,)}),
        ("repeat", (), {"repeats": 40, "axis": 0, "size": 40}),
        ("gather", (np.zeros(40, np.int64),), {"axis": 0}),
        ("gather_elements", (np.zeros(40, np.int64),), {"axis": 0}),
    ],
)
def test_moved_texts_are_not_copied(op, more, attrs):
    """Each place of a result refers to its text, however long that is."""
    text = np.array(["x" * (600 << 10)], TEXT)
    with in_force(SMALL):
        made = get_op(op).run_reference((text, *more), get_op(op).bind(attrs))
    assert {id(item) for item in made.flat} == {id(text[0])}


def test_references_are_counted_before_they_are_made():
    assert refused("broadcast_to", np.array(["x"], TEXT), shape=(200_000,)) == "I265"
    with in_force(SMALL):
        op = get_op("broadcast_to")
        made = op.run_reference([np.array(["x"], TEXT)], op.bind({"shape": (100_000,)}))
    assert made.shape == (100_000,)


def test_joined_texts_take_the_width_of_the_wider_one():
    plain, wide = np.array(["x" * (200 << 10)], TEXT), np.array(["日"], TEXT)
    with in_force(SMALL):
        get_op("text.concat").run_reference([plain, plain], {})
    assert refused("text.concat", np.array(["x" * (300 << 10)], TEXT), wide) == "I265"


def test_pieces_are_bounded_before_they_are_made():
    words = np.array(["a " * (100 << 10)], TEXT)  # 200 KiB of text, 100 Ki objects
    assert refused("text.split", words, delimiter="", max_splits=-1) == "I265"
    assert refused("text.split", words, delimiter=" ", max_splits=-1) == "I265"
    with in_force(SMALL):
        pieces, counts = get_op("text.split").run_reference([words], {"max_splits": 2})
    assert pieces.shape == (1, 3)
    assert counts.tolist() == [3]


def test_characters_of_pieces_are_counted():
    texts = np.array(["x" * 1000] * 1000, TEXT)
    assert refused("text.split", texts, delimiter=",", max_splits=-1) == "I265"


@pytest.mark.parametrize("attrs", [{"case": "UPPER"}, {"stopwords": ("y",)}])
def test_texts_in_another_case_are_bounded_before_they_are_made(attrs):
    texts = np.array(["x" * 1000] * 1000, TEXT)
    assert refused("text.normalize", texts, **attrs) == "I265"
    with in_force(SMALL):  # refers to the texts
        attrs = {"stopwords": ("y",), "case_sensitive": True}
        (kept,) = get_op("text.normalize").run_reference([texts[:1]], attrs)
        get_op("text.normalize").run_reference([texts], attrs)
    assert kept is texts[0]


def test_deep_groups_take_no_memory_for_captures():
    pytest.importorskip("re2")
    pattern = "(" * 10_000 + "a" + ")" * 10_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = get_op("text.full_match").run_reference(
        [np.array(["a", "b"], TEXT)], {"pattern": pattern}
    )
    assert found.tolist() == [True, False]
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 200 << 10  # KiB; 1.5 GiB with captures


def test_long_patterns_are_refused():
    pytest.importorskip("re2")
    text = np.array(["a"], TEXT)
    assert refused("text.full_match", text, pattern="a" * (1 << 17)) == "T162"
