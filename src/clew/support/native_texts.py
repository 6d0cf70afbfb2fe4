"""Operations on arrays of texts in native code, which `runtime.texts` provides.

Native code reads object arrays (`TEXT`) and writes numbers or new texts. If it is not loaded, or
cannot read the texts of this Python, an operation runs in Python, or returns None to a caller that
has another implementation.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, Final

import numpy as np

from clew.support import text_tables as tables
from clew.support.addresses import address_of
from clew.support.dataclass import dataclass
from clew.support.text_arrays import PROVIDED, TEXT

Array = np.ndarray[Any, Any]

_CLOSE: Final = 16  # elements between two that native code leaves to Python

GOOD: Final = 0
"""The status of a call that read all texts."""

Function = Callable[..., Any]


@dataclass(frozen=True)
class TextCode:
    """The native functions, called with arrays (no subclass), addresses and numbers. They hold the
    GIL, so that no text changes or is freed during a call.
    """

    check: Function
    length: Function
    fill: Function
    places: Function
    match: Function
    concat: Function
    split: Function
    fill_grams: Function
    count_grams: Function
    numbers: Function
    decimals: Function
    integers: Function


def text_code() -> TextCode | None:
    """Returns the native functions; None where there are none."""
    return PROVIDED[0]() if PROVIDED else None


def flat_texts(array: Array) -> Array:
    """Returns texts in one contiguous row.

    Raises `ValueError` for an array of another dtype, whose elements native code would take for
    addresses.
    """
    if array.dtype.char != TEXT.char:
        raise ValueError(f"an array of {array.dtype} holds no texts")
    if array.ndim == 1 and type(array) is np.ndarray and array.flags.c_contiguous:
        return array
    return np.asarray(np.ascontiguousarray(array)).reshape(-1)


def characters(array: Array) -> int:
    """Returns the number of characters of an array's texts."""
    texts, code = flat_texts(array), text_code()
    if code is not None:
        found: int = code.length(texts, texts.size, id(str))
        if found >= 0:
            return found
    return sum(map(len, texts.tolist()))


def _secret() -> int:
    """Returns a random positive number of 63 bits."""
    return int.from_bytes(os.urandom(8), "little") >> 1


def _power_above(count: int) -> int:
    """Returns a number of slots of which `count` are at most half."""
    return 1 << max(2 * count - 1, 1).bit_length()


def _body(words: int) -> Array:
    """Returns a header and a body of zeros, in words."""
    return np.zeros(tables.HEADER_WORDS + words, np.int64)


class TextTable:
    """Maps texts to their positions among keys: of equal keys, that of the last; for other texts,
    the number of keys. Keys must be valid Unicode.
    """

    def __init__(self, keys: Array) -> None:
        self._count = keys.size
        self._keys = flat_texts(keys).copy()  # the table points into these texts
        self._table: Array | None = None
        self._dict: dict[str, int] = {key: n for n, key in enumerate(self._keys.tolist())}
        code = text_code()
        if code is None:
            return
        slots = _power_above(self._count)
        table = _body(slots * tables.SLOT_WORDS)
        table[tables.TABLE_TYPE] = id(str)
        table[tables.TABLE_MASK] = slots - 1
        table[tables.TABLE_SECRET] = _secret()
        table[tables.TABLE_UNKNOWN] = self._count
        if code.fill(self._keys, self._count, table) == GOOD:
            self._table, self._code = table, code

    def __call__(self, texts: Array) -> Array:
        """Returns the position of each text, `i64` of the shape of `texts`."""
        size = texts.size
        if self._table is not None:
            flat, out = flat_texts(texts), np.empty(size, np.int64)
            status = self._code.places(flat, size, self._table, out)
            if status == GOOD:
                return out if texts.ndim == 1 else out.reshape(texts.shape)
        found = map(self._dict.get, texts.reshape(-1).tolist(), repeat(self._count))
        return np.fromiter(found, np.int64, size).reshape(texts.shape)


def concatenated(a: Array, b: Array) -> Array | None:
    """Returns a row of the texts of two arrays, joined one by one; one of them may have a single
    text. None without native code, and for other numbers of texts.
    """
    left, right, code = flat_texts(a), flat_texts(b), text_code()
    n, m = left.size, right.size
    count = m if n == 1 else n
    if code is None or m not in (1, count):
        return None
    out = np.empty(count, TEXT)
    status = code.concat(left, int(n > 1), right, int(m > 1), count, id(str), out)
    return out if status == GOOD else None


class Splitter:
    """Splits texts at separator characters, each at most `most` times. With `runs`, a run of
    separators counts as one, and separators at the ends of a text are ignored.
    """

    def __init__(self, separators: Sequence[int], runs: bool, most: int) -> None:
        last = max(separators)
        rule = _body(-(-(last + 1) // 8))
        rule[tables.RULE_TYPE] = id(str)
        rule[tables.RULE_SIZE] = last + 1
        rule[tables.RULE_RUNS] = runs
        rule[tables.RULE_MOST] = most
        rule[tables.HEADER_WORDS :].view(np.uint8)[list(separators)] = 1
        single = len(separators) == 1 and not runs and last < 256
        rule[tables.RULE_SINGLE] = last if single else -1
        self._empty = ""
        rule[tables.RULE_EMPTY] = id(self._empty)
        self._rule, self._code = rule, text_code()

    def counts(self, texts: Array) -> tuple[Array, int, int] | None:
        """Returns the number of pieces of each text of a contiguous row, `i64[n]`, the largest and
        the sum; None without native code.
        """
        code, size = self._code, texts.size
        counts = np.empty(size + 2, np.int64)
        if code is None or code.split(texts, size, self._rule, counts, 0, 0) != GOOD:
            return None
        return counts[:size], counts.item(size), counts.item(size + 1)

    def pieces(self, texts: Array, width: int) -> Array | None:
        """Returns the pieces of each text, `[n, width]`, padded with ""; None if a text has more
        than `width` pieces.
        """
        code = self._code
        assert code is not None
        out, counts = np.empty((texts.size, width), TEXT), np.empty(texts.size + 2, np.int64)
        status = code.split(texts, texts.size, self._rule, counts, width, out)
        return out if status == GOOD else None


class Automaton:
    """A deterministic automaton on the UTF-8 bytes of texts: `rows[state, byte]` is the next state.
    State 0 rejects and leads only to itself; states from `accepts` up accept.
    """

    def __init__(self, rows: Array, start: int, accepts: int) -> None:
        inside = 0 <= start < len(rows) <= 1 << 16 and accepts > 0
        if rows.shape[1:] != (256,) or not inside or int(rows.max()) >= len(rows):
            raise AssertionError("the tables lead outside")
        packed = _body(rows.size // 4)
        packed[tables.AUTOMATON_TYPE] = id(str)
        packed[tables.AUTOMATON_START] = start
        packed[tables.AUTOMATON_ACCEPTS] = accepts
        packed[tables.HEADER_WORDS :] = rows.astype(np.uint16).reshape(-1).view(np.int64)
        self._packed = packed

    def accepted(self, texts: Array) -> Array | None:
        """Returns whether the automaton accepts each text; None without native code."""
        code = text_code()
        if code is None:
            return None
        flat = flat_texts(texts)
        out = np.empty(flat.size, np.bool_)
        status = code.match(flat, flat.size, self._packed, out)
        return out.reshape(texts.shape) if status == GOOD else None


class GramTable:
    """Counts n-grams, `grams[G, n]` (`i64`) of each length n, in rows of tokens: n-gram g in
    column `columns[g]`. `weights[c]` (`f32`) are those of columns. Requires native code.

    Raises `ValueError` for columns without a weight.
    """

    def __init__(self, grams: Sequence[Array], columns: Array, weights: Array) -> None:
        code = text_code()
        assert code is not None
        if columns.min(initial=0) < 0 or columns.max(initial=-1) >= weights.size:
            raise ValueError("a column has no weight")
        self._count_grams = code.count_grams
        self._weights = np.ascontiguousarray(weights, np.float32)
        slots = _power_above(sum(some.size for some in grams))
        table = _body(slots * tables.STEP_WORDS)
        table[tables.GRAMS_MASK] = slots - 1
        table[tables.GRAMS_SECRET] = _secret()
        table[tables.GRAMS_WEIGHTS] = address_of(self._weights)
        table[tables.GRAMS_COLUMNS] = weights.size
        self._table = table
        found = [np.zeros(0, np.int64)]
        for some in grams:
            tokens = np.ascontiguousarray(some, np.int64)
            numbers = np.empty(len(tokens), np.int64)
            code.fill_grams(tokens, *tokens.shape, table, numbers)
            found.append(numbers)
        numbers = np.concatenate(found)
        self._distinct = int(table[tables.GRAMS_COUNT])
        self._again: tuple[Array, Array] | None = None
        # The table counts in the last column of equal n-grams, whose other columns get a copy.
        into = np.zeros(1 + self._distinct, np.int64)
        into[1 + numbers] = 1 + columns
        if self._distinct < len(numbers):
            self._again = columns, into[1 + numbers] - 1
        slot_grams = table[tables.HEADER_WORDS + tables.STEP_GRAM :: tables.STEP_WORDS]
        slot_grams[:] = into[slot_grams]

    def counts(self, tokens: Array, skips: int, width: int, mode: str) -> Array:
        """Returns `f32[N, width]`, with a column for each weight: occurrences in `tokens[N, C]`
        (`i64`), with 0 to `skips - 1` tokens between two of an n-gram. TFIDF multiplies them by the
        weights; IDF returns the weights of n-grams that occur.

        Raises `ValueError` if a column is missing.
        """
        if width < self._weights.size:
            raise ValueError(f"{width} columns for {self._weights.size} weights")
        tokens = np.ascontiguousarray(tokens, np.int64)
        rows, size = tokens.shape
        out = np.zeros((rows, width), np.float32)
        how = tables.GRAMS_PLAIN if self._again is not None else _MODES[mode]
        self._count_grams(tokens, rows, size, skips, self._table, width, how, out)
        if self._again is not None:
            to, source = self._again
            out[:, to] = out[:, source]
            return weighted(out, self._weights, mode)
        return out


_MODES: Final = {
    "TF": tables.GRAMS_PLAIN,
    "IDF": tables.GRAMS_WHETHER,
    "TFIDF": tables.GRAMS_TIMES,
}


def weighted(counts: Array, weights: Array, mode: str) -> Array:
    """Applies the weights of a mode to counts, in place, and returns them."""
    into = counts[:, : weights.size]
    if mode == "IDF":
        into[:] = np.where(into > 0, weights, np.float32(0))
    elif mode == "TFIDF":
        with np.errstate(all="ignore"):
            into *= weights
    return counts


def decimals_within(least: float, limit: float) -> Array:
    """Returns the table with which native code reads decimals from `least` up to below `limit`."""
    return np.array([*(float(10**n) for n in range(23)), least, limit])  # the powers are exact


_POWERS: Final = decimals_within(-np.inf, np.inf)


def read_decimals(
    texts: Array, one: Callable[[str], float] | None, within: Array
) -> tuple[Array, int]:
    """Returns the numbers that a contiguous row of texts spells, `f64[n]`, and how many of them
    were read: 0 without native code, which reads plain decimals of up to 15 digits `within` limits
    (`decimals_within`). `one` reads the few other texts; the rest is left where these are not few.
    Without `one`, reading ends at the first other text.
    """
    numbers = np.empty(texts.size, np.float64)
    code = text_code()
    if code is None:
        return numbers, 0
    read, size, kind = code.numbers, texts.size, id(str)

    def go(start: int) -> int:
        found: int = read(texts, start, size, kind, within, numbers)
        return found

    if one is None:
        return numbers, go(0)
    other = one

    def single(place: int) -> None:
        numbers[place] = other(texts[place])

    return numbers, _resumed(go, texts.size, single)


def spelled_decimals(
    numbers: Array, single_precision: bool, one: Callable[[int], str]
) -> tuple[Array, int]:
    """Returns texts of `f64[n]`, the shortest that read as the same numbers, as `f32` if these
    numbers were widened (`single_precision`), and how many were written: 0 without native code.
    `one` writes the few texts, by place, that native code does not; the rest is left where these
    are not few.
    """
    texts = np.empty(numbers.size, TEXT)
    code = text_code()
    if code is None:
        return texts, 0
    write, size = code.decimals, numbers.size

    def go(start: int) -> int:
        found: int = write(numbers, single_precision, start, size, _POWERS, texts)
        return found

    def single(place: int) -> None:
        texts[place] = one(place)

    return texts, _resumed(go, numbers.size, single)


_TRUE, _FALSE = "True", "False"


def spelled_integers(numbers: Array) -> Array | None:
    """Returns texts of a contiguous row of integers or truths (`True`, `False`); None without
    native code.
    """
    code = text_code()
    if code is None:
        return None
    dtype, texts = numbers.dtype, np.empty(numbers.size, TEXT)
    width = 0 if dtype.kind == "b" else dtype.itemsize
    status = code.integers(
        numbers, width, dtype.kind == "i", numbers.size, id(_TRUE), id(_FALSE), texts
    )
    return texts if status == GOOD else None


def _resumed(go: Callable[[int], int], count: int, one: Callable[[int], None]) -> int:
    """Runs native code that returns the element it stops at, and continues behind it. Returns the
    number of elements done: all, unless stops are close together.
    """
    place = go(0)
    while place < count:
        one(place)
        start = place + 1
        place = go(start)
        if place < count and place - start < _CLOSE:
            return place
    return count
