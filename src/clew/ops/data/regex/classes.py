"""Characters of classes, as RE2 defines them, and their bytes in UTF-8."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

Ranges = tuple[tuple[int, int], ...]
"""Ascending ranges of code points, both ends included."""

LAST: Final = 0x10FFFF
EVERY: Final[Ranges] = ((0, LAST),)

# Outside of ASCII, a class that is written in ASCII without Unicode's properties has all characters
# or none, except these, which differ from s and k in case alone.
_CASES: Final = (0x17F, 0x212A)
_PROPERTY: Final = re.compile(r"\\[pPxC]|[^\x00-\x7f]")
# The first code point with each number of bytes.
_LENGTHS: Final = (0, 0x80, 0x800, 0x10000, LAST + 1)
_SURROGATES: Final = range(0xD800, 0xE000)


def is_plain(text: str) -> bool:
    """Whether a few characters show which ones a class has."""
    return not _PROPERTY.search(text)


def plain_members(matches: Callable[[bytes], bool]) -> Ranges:
    """Returns the characters of a plain class, given whether it has a character."""
    ends = [*range(0x80), 0x80, *(at for case in _CASES for at in (case, case + 1)), LAST + 1]
    has = {begin: matches(chr(begin).encode()) for begin in ends[:-1]}
    return merged((begin, end - 1) for begin, end in pairwise(ends) if has[begin])


def members(runs: Iterable[tuple[int, int]]) -> Ranges:
    """Returns the characters of a class, given its longest runs in `every_character`, in bytes."""
    return merged((_character(begin), _character(end) - 1) for begin, end in runs)


def every_character() -> bytes:
    """Returns all characters in order."""
    codes = np.delete(np.arange(LAST + 1, dtype="<u4"), _SURROGATES)
    return codes.tobytes().decode("utf-32-le").encode()


def _character(at: int) -> int:
    """Returns the code point of the character at a position in `every_character`."""
    for size, (first, end) in enumerate(pairwise(_LENGTHS), 1):
        count = end - first - (len(_SURROGATES) if _SURROGATES.start in range(first, end) else 0)
        if at < size * count or end > LAST:
            code = first + at // size
            after = first < _SURROGATES.start <= code < end
            return code + len(_SURROGATES) if after else code
        at -= size * count
    raise AssertionError


def merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Returns ascending ranges without neighbors."""
    found: list[tuple[int, int]] = []
    for low, high in ranges:
        if found and low <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(high, found[-1][1])
        else:
            found.append((low, high))
    return tuple(found)


Bytes = tuple[tuple[int, int], ...]
"""A range for each byte of a character."""


def byte_ranges(ranges: Ranges) -> list[Bytes]:
    """Returns ranges of bytes whose products are the characters of ranges. Two that share an
    element of a range at some position, behind equal ones, have the same range there.
    """
    return [found for low, high in ranges for found in _split(low, high)]


def _split(low: int, high: int) -> Iterator[Bytes]:
    size = next(size for size, end in enumerate(_LENGTHS[1:], 1) if low < end)
    if high >= _LENGTHS[size]:
        yield from _split(low, _LENGTHS[size] - 1)
        yield from _split(_LENGTHS[size], high)
        return
    for tail in range(1, size):
        mask = (1 << 6 * tail) - 1
        if low & ~mask == high & ~mask:
            continue
        if low & mask:
            yield from _split(low, low | mask)
            yield from _split((low | mask) + 1, high)
            return
        if high & mask != mask:
            yield from _split(low, (high & ~mask) - 1)
            yield from _split(high & ~mask, high)
            return
    yield tuple(zip(_encoded(low), _encoded(high), strict=True))


def _encoded(code: int) -> Sequence[int]:
    return chr(code).encode(errors="surrogatepass")


class Classes:
    """The characters of classes by RE2, `re2` with `options`; each is asked for once."""

    def __init__(self, re2: Any, options: Any) -> None:
        self._re2, self._options = re2, options
        self._found: dict[str, Ranges | None] = {}
        self._full = 0

    def __call__(self, text: str, most_full: int) -> Ranges | None:
        """Returns the characters of a class or of a literal; None if RE2 does not take it, or if
        more than `most_full` would need a look at every character.
        """
        if text not in self._found:
            self._found[text] = self._members(text, most_full)
        return self._found[text]

    def _members(self, text: str, most_full: int) -> Ranges | None:
        plain = is_plain(text)
        self._full += not plain
        if self._full > most_full:
            return None
        try:
            regex = self._re2.compile(f"(?:{text})+", options=self._options)
        except self._re2.error:
            return None
        if plain:
            return plain_members(lambda character: regex.fullmatch(character) is not None)
        return members(found.span() for found in regex.finditer(every_character()))
