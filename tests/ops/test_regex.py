"""Automata of patterns against RE2."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import clew.runtime.texts  # noqa: F401 - it provides native code
from clew.ops.data.regex import classes
from clew.ops.data.regex.automaton import automaton
from clew.ops.data.regex.syntax import Unsupported, parsed
from clew.ops.data.text import compiled_pattern
from clew.support.errors import GraphTypeError
from clew.support.native_texts import text_code
from clew.support.text_arrays import TEXT

re2 = pytest.importorskip("re2")
pytestmark = pytest.mark.skipif(text_code() is None, reason="no native code reads texts here")

ATOMS = [
    r"a",
    r"b",
    r"k",
    r"S",
    r"é",
    r"ß",
    r"日",
    r"😀",
    r".",
    r"\d",
    r"\w",
    r"\s",
    r"\D",
    r"\W",
    r"\S",
    r"[a-c]",
    r"[^a-c]",
    r"[^\n]",
    r"[[:alpha:]]",
    r"[a-z\d_-]",
    r"[]a]",
    r"[^]a]",
    r"\x41",
    r"\x{1F600}",
    r"\.",
    r"\-",
    r"^",
    r"$",
    r"\A",
    r"\z",
    r"(?i)",
    r"(?s)",
    r"(?-i)",
    r"(?i:k)",
    r"(?s:.)",
    r"(?P<n>a)",
    r"(?:b)",
    r"{",
    r"}",
    r"]",
    r"a{",
    r"x{,2}",
    r"\n",
    r"\t",
    r"-",
    r",",
    r"[a-é]",
    r"[é-日]",
    r"[\x{800}-\x{10FFF}]",
    r"(?m)",
    r"(?U)",
    r"\b",
    r"[k-s]",
    r"[[:^digit:]]",
    r"[z-]",
    r"[a-c-e]",
    r"\Q",
    r"\C",
    r"\101",
    r"[\b]",
    r"(?i)S",
    r"(?i:[k-t])",
    r"(?i)[^k]",
    r"\v",
    r"[\]]",
    r"(?P<name>",
]
TIMES = [
    "",
    "",
    "",
    "*",
    "+",
    "?",
    "{2}",
    "{1,3}",
    "{0,2}",
    "{2,}",
    "*?",
    "{1}",
    "{0}",
    "**",
    "{2}{2}",
]
PIECES = st.builds(str.__add__, st.sampled_from(ATOMS), st.sampled_from(TIMES))
PATTERNS = st.recursive(
    st.lists(PIECES, max_size=4).map("".join),
    lambda inner: (
        st.builds(
            lambda group, parts, times: f"{group}{'|'.join(parts)}){times}",
            st.sampled_from(["(", "(?:", "(?i:", "(?s-i:"]),
            st.lists(inner, min_size=1, max_size=3),
            st.sampled_from(TIMES),
        )
        | st.builds(str.__add__, inner, inner)
    ),
    max_leaves=6,
)
LETTERS = st.sampled_from(
    list("abckKsSſ\u212aé ß日😀\n\t09_-A.Zz]x,{}\0\x7f\x80\u07ff\u0800\uffff\U00010000\U0010ffff")
)


def by_re2(pattern, texts):
    return [pattern.regex.fullmatch(text.encode()) is not None for text in texts]


@settings(deadline=None, max_examples=400)
@given(PATTERNS, st.lists(st.text(LETTERS, max_size=6), max_size=40))
def test_automata_accept_what_re2_matches(written, texts):
    try:
        pattern = compiled_pattern(written)
    except GraphTypeError:
        return
    array = np.array(["", *texts], TEXT)
    if pattern.automaton is not None:
        assert pattern.automaton.accepted(array).tolist() == by_re2(pattern, array.tolist())
    assert pattern.matched(array).tolist() == by_re2(pattern, array.tolist())


@pytest.mark.parametrize(
    "written",
    [r"[a-z0-9._%+-]+@[a-z0-9.-]+\.[a-z]{2,}", r"(?i)mon\w+|[^b]*", r"\p{Lu}.*",
     r"(?i)straße|ΣΟΦΟΣ", r"\d{4}-\d{2}-\d{2}", "(?s).*", "^$", "a|", "()", r"[\p{Greek}\pN]+"],
)  # fmt: skip
def test_usual_patterns_have_automata(written):
    pattern = compiled_pattern(written)
    assert pattern.automaton is not None
    texts = [
        "ann@x.org",
        "Ann",
        "",
        "σοφος",
        "ΣΟΦΟΣ",
        "STRAßE",
        "straẞe",
        "2020-01-02",
        "a",
        "\n",
        "Ω٣",
    ]
    assert pattern.matched(np.array(texts, TEXT)).tolist() == by_re2(pattern, texts)


@pytest.mark.parametrize(
    "written", [r"\bword\b", "(?m)^a$", r"\Qa.b\E", r"\C+", "(a|b)*a(a|b){12}", r"(\pL|\pN){40,90}",
                "((((a{1,30}){1,30}))){1}", "(" * 100 + "a" + ")" * 100, r"\101"],
)  # fmt: skip
def test_others_are_matched_by_re2(written):
    pattern = compiled_pattern(written)
    assert pattern.automaton is None
    texts = ["word", "a", "a.b", "bb", "ab" * 8, "é" * 50, "A", "\n"]
    assert pattern.matched(np.array(texts * 5, TEXT)).tolist() == by_re2(pattern, texts) * 5


def test_every_class_has_the_characters_that_re2_gives_it():
    options = re2.Options()
    found = classes.Classes(re2, options)
    assert found(r"\d", 0) == ((48, 57),)
    assert found("(?i:k)", 0) == ((75, 75), (107, 107), (0x212A, 0x212A))
    assert found(r"[^\n]", 0) == ((0, 9), (11, classes.LAST))
    assert found(r"\p{Greek}", 0) is None
    full = classes.Classes(re2, options)(r"[^\x{41}]", 1)
    assert full == ((0, 64), (66, classes.LAST))
    assert classes.Classes(re2, options)("[z-a]", 1) is None


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, classes.LAST), min_size=2, max_size=2).map(sorted))
def test_bytes_of_ranges_are_those_of_their_characters(ends):
    low, high = ends
    ranges = classes.byte_ranges(((low, high),))
    edges = {
        low,
        high,
        *(e + d for e in (low, high, 0x80, 0x800, 0xFFFF, 0x10000) for d in (-1, 1)),
    }
    for code in edges:
        if not 0 <= code <= classes.LAST:
            continue
        data = chr(code).encode(errors="surrogatepass")
        inside = [
            all(a <= byte <= b for byte, (a, b) in zip(data, one, strict=True))
            for one in ranges
            if len(one) == len(data)
        ]
        assert sum(inside) == (low <= code <= high)


def test_the_work_on_a_pattern_is_bounded():
    literal = {c: ((ord(c), ord(c)),) for c in "ab"}
    with pytest.raises(Unsupported):
        automaton(parsed("(a|b)*a(a|b){20}", literal.__getitem__))
    for repeated in ("a", ""):
        with pytest.raises(Unsupported):
            automaton(parsed(f"((({repeated}){{1000}}){{1000}}){{1000}}", literal.__getitem__))
