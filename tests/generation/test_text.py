"""Pieces of text: complete characters, and nothing of a stop text."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from clew.generation.text import StopTexts, TextStream


class Bytes:
    """A tokenizer whose tokens are bytes."""

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode("utf-8", "replace")


class Words:
    """A tokenizer that drops the space before the first word, as SentencePiece does."""

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(f" w{i}" for i in ids).removeprefix(" ")


@given(st.text("ab é€😀", max_size=20), st.text("a€😀", max_size=6))
def test_characters_come_whole(text: str, prompt: str) -> None:
    stream = TextStream(Bytes(), list(prompt.encode()))
    pieces = [stream.add(byte) for byte in text.encode()]
    assert all("\ufffd" not in piece for piece in pieces)
    assert "".join(pieces) + stream.end() == text


def test_bytes_that_are_no_text_come_at_the_end() -> None:
    stream = TextStream(Bytes(), [])
    assert [stream.add(b) for b in (0x61, 0xE2, 0x82)] == ["a", "", ""]
    assert stream.end() == "\ufffd"
    stream = TextStream(Bytes(), [0xE2, 0x82])  # the prompt ends inside a character
    assert stream.add(0xAC) == "€"


def test_words_after_a_prompt_keep_their_space() -> None:
    stream = TextStream(Words(), [7])
    assert [stream.add(1), stream.add(2)] == [" w1", " w2"]
    assert TextStream(Words(), []).add(1) == "w1"


@given(
    st.text("abc", max_size=30),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    st.integers(1, 5),
)
def test_text_ends_before_the_first_stop(text: str, stops: list[str], size: int) -> None:
    found = StopTexts(stops)
    pieces = [found.add(text[n : n + size]) for n in range(0, len(text), size)]
    given_out = "".join(pieces)
    assert all(stop not in given_out for stop in stops)
    if found.found is None:
        assert given_out + found.end() == text
        assert all(stop not in text for stop in stops)
    else:
        assert text.startswith(given_out + found.found)
