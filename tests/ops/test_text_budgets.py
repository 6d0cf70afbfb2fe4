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
    assert text_bytes(np.array(["ab", "", "é", "日本"], TEXT)) == 2 + 0 + 2 + 6


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
        ("where", (np.array([""], TEXT),), {}),
        ("lookup", (), {}),
    ],
)
def test_copies_are_counted_before_they_are_made(op, more, attrs):
    """Each place of a result has a copy of its text, however few texts there are."""

    def args(length):
        text = np.array(["x" * length, ""], TEXT)[: 1 if op != "gather" else 2]
        if op == "where":
            return (np.ones((40, 1), bool), text, *more)
        if op == "lookup":
            keys = np.array(["k"], TEXT)
            return np.full(40, "k", TEXT), keys, text, np.array("", TEXT)
        return (text, *more)

    assert refused(op, *args(30 << 10), **attrs) == "I265"
    with in_force(SMALL):
        made = get_op(op).run_reference(args(20 << 10), get_op(op).bind(attrs))
    assert text_bytes(made) == 40 * (20 << 10)


def test_texts_are_counted_by_their_own_lengths():
    """One long text among many short ones is copied once."""
    texts = np.array(["x" * (600 << 10), *["y"] * 20], TEXT)
    with in_force(SMALL):
        made = get_op("gather").run_reference([texts, np.arange(20)], {"axis": 0})
    assert made.tolist() == texts[:20].tolist()
    assert refused("gather", texts, np.array([0, 0]), axis=0) == "I265"


def test_pieces_are_bounded_before_they_are_made():
    words = np.array(["a " * (100 << 10)], TEXT)  # 200 KiB of text, 100 Ki objects
    assert refused("text.split", words, delimiter="", max_splits=-1) == "I265"
    assert refused("text.split", words, delimiter=" ", max_splits=-1) == "I265"
    with in_force(SMALL):
        pieces, counts = get_op("text.split").run_reference([words], {"max_splits": 2})
    assert pieces.shape == (1, 3)
    assert counts.tolist() == [3]


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
