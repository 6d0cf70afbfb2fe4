"""Text: host operators on arrays of `str`."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, repeat
from typing import Any, Final, TypeVar

import numpy as np

from clew.ir.dims import Dim, unknown_dim
from clew.ir.types import TensorType, TupleType, Type, bits, is_float, is_integer, to_numpy
from clew.ops.common import broadcast_shapes, f32, i64, tensor_type
from clew.ops.data.regex.automaton import automaton
from clew.ops.data.regex.classes import Classes
from clew.ops.data.regex.syntax import Unsupported, parsed
from clew.ops.registry import Sample, Traits, register_op
from clew.support.budgets import check_run_bytes, current
from clew.support.caches import bounded_cache
from clew.support.dataclass import dataclass
from clew.support.errors import GraphTypeError
from clew.support.libraries import optional_library
from clew.support.locks import once
from clew.support.native_texts import (
    Automaton,
    Splitter,
    TextTable,
    characters,
    concatenated,
    decimals_within,
    flat_texts,
    read_decimals,
    spelled_decimals,
    spelled_integers,
)
from clew.support.text_arrays import TEXT, text_array

Array = np.ndarray[Any, Any]
T = TypeVar("T")

_TEXT_BYTES: Final = 64  # of a text and the reference to it, besides its characters
MAX_PIECES: Final = 1 << 28
"""The most elements in the result of a split: every row is as long as the longest."""

_WIDEST_BYTES: Final = 4  # of a character

_WORDS = np.array([["a b", " é  ß\t"], ["", "Monday"]], TEXT)
_LINE = np.array(["monday", "Tuesday", "", "MONDAY"], TEXT)


def need_text(name: str, *types: Type) -> list[TensorType]:
    """Checks that types are of text, and returns them.

    Errors: T014, T105.
    """
    found = [tensor_type(name, type_) for type_ in types]
    for type_ in found:
        if type_.dtype != "str":
            raise GraphTypeError("T105", f"{name}: input is {type_}, expected str")
    return found


def each(function: Callable[[str], T], texts: Sequence[str]) -> list[T]:
    """Returns the results of a function for texts; it is called once for each distinct text."""
    found: dict[str, Any] = dict.fromkeys(texts)
    for text in found:
        found[text] = function(text)
    return list(map(found.__getitem__, texts))


@register_op(
    "text.concat",
    host=True,
    traits=Traits(collects=True),
    samples=(
        Sample(_WORDS, _WORDS),
        Sample(_WORDS, np.array(["x", ""], TEXT)),
        Sample(np.array("long text that is kept elsewhere", TEXT), _LINE),
        Sample(np.array("a", TEXT), np.array("b", TEXT)),
        Sample(f32(2), f32(2), error="T105"),
        Sample(_LINE, np.array(["x", ""], TEXT), error="T100"),
    ),
)
def text_concat(a: Array, b: Array) -> Array:
    """Concatenates the texts of `a` and `b`, broadcast.

    Errors: T105, I265. Source: ONNX StringConcat-20.
    """
    shape: tuple[int, ...] = a.shape
    if b.shape != shape and (b.size != 1 or b.ndim > a.ndim):
        shape = np.broadcast_shapes(shape, b.shape)
    size = math.prod(shape)
    check_run_bytes("the result of text.concat", size * _TEXT_BYTES + _bytes(size, a, b))
    if size == a.size or size == b.size:
        made = concatenated(a, b)
        if made is not None:
            return made if len(shape) == 1 else made.reshape(shape)
    return np.asarray(np.add(a, b))


def _bytes(size: int, *given: Array) -> int:
    """Returns an upper bound of the memory of texts, as if repeated to `size` elements and
    joined. A text takes as many bytes for each character as its widest one needs.
    """
    count = 0
    for x in given:
        if x.size:
            count += size // x.size * characters(x)
    bound = _WIDEST_BYTES * count
    if bound <= current().allocated_bytes:
        return bound
    return count if all(text.isascii() for x in given for text in x.flat) else bound


@text_concat.types
def _text_concat_types(a: Type, b: Type) -> Type:
    x, y = need_text("text.concat", a, b)
    return TensorType(broadcast_shapes("text.concat", x.shape, y.shape), "str")


@register_op(
    "text.split",
    host=True,
    traits=Traits(collects=True),
    samples=(
        Sample(_WORDS),
        Sample(np.array(["a,b,,c", ",", ""], TEXT), delimiter=","),
        Sample(np.array(["a--b--c", ""], TEXT), delimiter="--", max_splits=1),
        Sample(np.zeros((2, 0), TEXT)),
        Sample(i64(2), error="T105"),
    ),
)
def text_split(x: Array, *, delimiter: str = "", max_splits: int = -1) -> tuple[Array, Array]:
    """The pieces between delimiters along a new last axis, with rows padded by "", and the number
    of pieces of each text (`i64`). Without a delimiter, the words between runs of white space. At
    most `max_splits` splits, from the left, unless it is negative.

    Errors: I265 and T161 (at run time) for more than `MAX_PIECES` results.
    Source: ONNX StringSplit-20.
    """
    splitter = _splitter(delimiter, max_splits)
    flat = flat_texts(x)
    found = None if splitter is None else splitter.counts(flat)
    if splitter is not None and found is not None:
        counts, longest, total = found
        check_run_bytes("the pieces of text.split", _TEXT_BYTES * total + _bytes(x.size, flat))
        _check_longest(longest, x)
        made = splitter.pieces(flat, longest)
        if made is not None:
            shape = x.shape
            if len(shape) == 1:
                return made, counts
            return made.reshape(*shape, longest), counts.reshape(shape)
    texts = flat.tolist()
    most = len(texts) + sum(map(len, texts))
    if _TEXT_BYTES * most > current().allocated_bytes:
        most = sum(_most_pieces(text, delimiter, max_splits) for text in texts)
        check_run_bytes("the pieces of text.split", _TEXT_BYTES * most + _bytes(x.size, flat))
    rows = [text.split(delimiter or None, max_splits) for text in texts]
    sizes = list(map(len, rows))
    longest = max(sizes, default=0)
    _check_longest(longest, x)
    pieces = [piece for row in rows for piece in chain(row, repeat("", longest - len(row)))]
    return text_array(pieces, (*x.shape, longest)), np.array(sizes, np.int64).reshape(x.shape)


def _check_longest(longest: int, x: Array) -> None:
    """Checks the largest number of pieces.

    Errors: I265, T161.
    """
    check_run_bytes("the result of text.split", longest * x.size * x.itemsize)
    if longest * x.size > MAX_PIECES:
        raise GraphTypeError(
            "T161",
            f"text.split: {x.size} texts of up to {longest} pieces each are more than "
            f"{MAX_PIECES} results",
            hint="split shorter texts, or set maxsplit",
        )


@bounded_cache(1 << 20)
def _splitter(delimiter: str, max_splits: int) -> Splitter | None:
    """Returns the native form of a split at single characters; None for longer delimiters."""
    most = max_splits if max_splits >= 0 else sys.maxsize
    if not delimiter:
        return Splitter(_spaces(), runs=True, most=most)
    return Splitter([ord(delimiter)], runs=False, most=most) if len(delimiter) == 1 else None


@once
def _spaces() -> list[int]:
    """Returns the characters that Python takes for white space."""
    return [code for code in range(sys.maxunicode + 1) if chr(code).isspace()]


def _most_pieces(text: str, delimiter: str, max_splits: int) -> int:
    """Returns an upper bound on the number of pieces of a text."""
    most = text.count(delimiter) + 1 if delimiter else (len(text) + 1) // 2
    return most if max_splits < 0 else min(most, max_splits + 1)


@text_split.types
def _text_split_types(x: Type, *, delimiter: str, max_splits: int) -> Type:
    (source,) = need_text("text.split", x)
    pieces = TensorType((*source.shape, unknown_dim()), "str")
    return TupleType((pieces, TensorType(source.shape, "i64")))


# --- words ----------------------------------------------------------------------------------------

_ACTIONS: Final = ("NONE", "LOWER", "UPPER")
# Languages in which dotted and dotless i are two letters.
_TWO_I: Final = ("tr", "az")


def _case(action: str, locale: str, texts: Array) -> Array:
    """Returns texts in another case, the same array for NONE."""
    if action == "NONE":
        return texts
    return text_array(_cased(action, locale, texts.tolist()), texts.shape)


def _cased(action: str, locale: str, texts: Sequence[str]) -> Sequence[str]:
    """Returns texts in another case."""
    change = {"LOWER": str.lower, "UPPER": str.upper}.get(action)
    if change is None:
        return texts
    if locale and re.split(r"[_.\-@]", locale)[0].lower() in _TWO_I:
        mapping = str.maketrans({"I": "ı", "İ": "i"} if action == "LOWER" else {"i": "İ", "ı": "I"})
        texts = [text.translate(mapping) for text in texts]
    return list(map(change, texts))


@register_op(
    "text.normalize",
    host=True,
    traits=Traits(collects=True),
    samples=(
        Sample(_LINE, stopwords=("monday",), case="UPPER"),
        Sample(_LINE, stopwords=("monday",), case="LOWER", case_sensitive=True),
        Sample(_LINE.reshape(1, 4), stopwords=("monday", "tuesday", ""), case="NONE"),
        Sample(np.array(["Iı", "iİ"], TEXT), case="LOWER", locale="tr_TR.UTF-8"),
        Sample(np.zeros((0,), TEXT)),
        Sample(_WORDS, error="T102"),
        Sample(_LINE, case="TITLE", error="T107"),
        Sample(f32(3), error="T105"),
    ),
)
def text_normalize(
    x: Array,
    *,
    stopwords: tuple[str, ...] = (),
    case: str = "NONE",
    case_sensitive: bool = False,
    locale: str = "",
) -> Array:
    """The texts of a line (`str[n]` or `str[1, n]`) without stop words, in the given case: LOWER,
    UPPER or NONE. If none is left, the result is one "".

    Case mapping is Unicode's in all locales except Turkish and Azeri (`tr`, `az`), where the
    letters i and ı differ. Stop words that are not `case_sensitive` are compared in lower case.

    Errors: T102, T105, T107, I265. Source: ONNX StringNormalizer-10.
    """
    compared = "NONE" if case_sensitive else "LOWER"
    copies = (case != "NONE") + (bool(stopwords) and compared not in ("NONE", case))
    if copies:
        size_bytes = copies * (_TEXT_BYTES * x.size + _bytes(x.size, x))
        check_run_bytes("the result of text.normalize", size_bytes)
    kept = x.reshape(-1)
    if stopwords:
        table = _stop_words(stopwords, compared, locale)
        keys = _case(compared, locale, kept)
        kept = (keys if compared == case else kept)[table(keys) == len(stopwords)]
    if case != "NONE" and not (stopwords and compared == case):
        kept = _case(case, locale, kept)
    elif not stopwords:
        kept = kept.copy()
    if not kept.size:
        kept = text_array([""], (1,))
    return kept.reshape(1, -1) if x.ndim == 2 else kept


@bounded_cache(1 << 20)
def _stop_words(words: tuple[str, ...], action: str, locale: str) -> TextTable:
    """Returns a table of words in a case."""
    return TextTable(text_array(_cased(action, locale, words), (len(words),)))


@text_normalize.types
def _text_normalize_types(x: Type, *, case: str, **attrs: Any) -> Type:
    (source,) = need_text("text.normalize", x)
    rows: tuple[Dim, ...] = source.shape[:-1]
    if source.rank not in (1, 2) or any(isinstance(n, int) and n != 1 for n in rows):
        raise GraphTypeError(
            "T102", f"text.normalize: input is {source}, expected str[n] or str[1, n]"
        )
    if case not in _ACTIONS:
        raise GraphTypeError(
            "T107", f"text.normalize: case={case!r}", hint=f"use {', '.join(_ACTIONS)}"
        )
    return TensorType((*(1 for _ in rows), unknown_dim()), "str")


# --- patterns -------------------------------------------------------------------------------------


_PATTERN_BYTES: Final = 8 << 20  # of a pattern's program, and of its automaton
_MOST_PATTERN_CHARS: Final = 1 << 16


_PATTERNS_BYTES: Final = 8 << 20
_MOST_FULL_CLASSES: Final = 4
"""Of one pattern: classes that need a look at every character, 0.1 s each."""


@dataclass(frozen=True)
class Pattern:
    """A compiled pattern: RE2's own form, and an automaton where it is small enough."""

    regex: Any
    automaton: Automaton | None

    def matched(self, texts: Array) -> Array:
        """Returns whether the pattern matches the whole of each text."""
        found = None if self.automaton is None else self.automaton.accepted(texts)
        if found is not None:
            return found
        # RE2 compares bytes: of a `str`, it would also count the characters up to each match.
        matches = self.regex.fullmatch
        some = each(lambda text: matches(text.encode()) is not None, texts.reshape(-1).tolist())
        return np.array(some, bool).reshape(texts.shape)


@bounded_cache(_PATTERNS_BYTES)
def compiled_pattern(pattern: str) -> Pattern:
    """Returns a compiled pattern.

    Errors: T162 for a pattern that does not follow RE2's syntax or is too large; T168 if RE2 is not
    installed.
    """
    absent = GraphTypeError(
        "T168", "text.full_match: RE2 is not installed", hint="pip install 'clew[text]'"
    )
    re2 = optional_library("re2", absent)
    if len(pattern) > _MOST_PATTERN_CHARS:
        raise GraphTypeError(
            "T162",
            f"text.full_match: a pattern of {len(pattern)} characters, above {_MOST_PATTERN_CHARS}",
        )
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _PATTERN_BYTES
    options.never_capture = True  # with groups, a match takes memory quadratic in their number
    try:
        regex = re2.compile(pattern, options=options)
    except re2.error as error:
        shown = pattern if len(pattern) < 80 else pattern[:77] + "..."
        said = error.args[0].decode(errors="replace") if error.args else "invalid"
        raise GraphTypeError(
            "T162", f"text.full_match: pattern {shown!r}: {said}", hint="patterns use RE2's syntax"
        ) from error
    members = partial(Classes(re2, options), most_full=_MOST_FULL_CLASSES)
    try:
        return Pattern(regex, Automaton(*automaton(parsed(pattern, members))))
    except Unsupported:
        return Pattern(regex, None)


@register_op(
    "text.full_match",
    host=True,
    traits=Traits(collects=True),
    samples=(
        Sample(_WORDS, pattern=r"(?i)mon\w+|[^b]*"),
        Sample(_LINE, pattern=r"\p{Lu}.*"),
        Sample(_LINE, pattern="(a", error="T162"),
        Sample(_LINE, pattern="((a{1000}){1000}){1000}", error="T162"),
        Sample(f32(3), pattern="a", error="T105"),
    ),
)
def text_full_match(x: Array, *, pattern: str) -> Array:
    """Whether the whole of each text matches a pattern in RE2's syntax, in time linear in the text:
    `bool[...]`.

    Errors: T105, T162, T168. Source: ONNX RegexFullMatch-20.
    """
    return compiled_pattern(pattern).matched(x)


@text_full_match.types
def _text_full_match_types(x: Type, *, pattern: str) -> Type:
    (source,) = need_text("text.full_match", x)
    compiled_pattern(pattern)
    return TensorType(source.shape, "bool")


# --- numbers --------------------------------------------------------------------------------------

_NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_WHOLE: Final = re.compile(r"[+-]?\d{1,400}", re.ASCII)
_SPECIAL: Final = {
    "inf": np.inf, "+inf": np.inf, "-inf": -np.inf,
    "infinity": np.inf, "+infinity": np.inf, "-infinity": -np.inf,
    "nan": np.nan, "+nan": np.nan, "-nan": np.nan,
}  # fmt: skip
_TRUTHS: Final = {"true": 1, "false": 0}
PARSED: Final = ("f32", "f64", "bool", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")


@register_op(
    "text.to_number",
    host=True,
    traits=Traits(collects=True),
    samples=(
        Sample(np.array([" 3.14", "1e-5", "-INF", "+inf", "NaN", "7", ".5", "1e999"], TEXT)),
        Sample(np.array(["9223372036854775807", "100.5", "-3"], TEXT), dtype="i64"),
        Sample(np.array(["255", "0"], TEXT), dtype="u8"),
        Sample(np.array(["0", "1", "True", "false", "0.5"], TEXT), dtype="bool"),
        Sample(np.zeros((2, 0), TEXT), dtype="f64"),
        Sample(_LINE, dtype="f16", error="T106"),
        Sample(f32(3), error="T105"),
    ),
)
def text_to_number(x: Array, *, dtype: str = "f32") -> Array:
    """The numbers that texts spell: plain, scientific, INF and NaN in any case. Integers are
    truncated; true and false are accepted for `bool`.

    Errors: T105, T106; T160 (at run time) for text that is not a number of the dtype.
    Source: ONNX Cast-25.
    """
    done = 0
    flat = flat_texts(x)
    if is_float(dtype):
        numbers, done = read_decimals(flat, partial(_float, dtype=dtype), _WITHIN[dtype])
    elif is_integer(dtype):
        numbers, done = read_decimals(flat, None, _WITHIN[dtype])
    if done < x.size:
        texts = x.reshape(-1).tolist()
        rest = _plain_numbers(texts[done:], dtype)
        if rest is None:
            found = each(lambda text: _number(text, dtype), texts[done:])
            rest = np.array(found, _exact(dtype))
        if done and is_float(dtype):
            numbers[done:] = _rounded(rest, dtype)
        elif done:  # integers may have more digits than those that were read
            numbers = np.concatenate([numbers[:done].astype(rest.dtype), rest])
        else:
            numbers = _rounded(rest, dtype)
    return numbers.astype(to_numpy(dtype), copy=False).reshape(x.shape)


def _rounded(numbers: Array, dtype: str) -> Array:
    """Returns numbers as a dtype, infinite above its largest."""
    with np.errstate(over="ignore"):
        return numbers.astype(to_numpy(dtype), copy=False)


def _float(text: str, dtype: str) -> float:
    """Returns the float that a text spells, rounded. Errors: T160."""
    return float(_rounded(np.asarray(_number(text, dtype), np.float64), dtype))


def _exact(dtype: str) -> Any:
    """Returns the dtype that Python's numbers have before they are rounded to another one."""
    return np.float64 if is_float(dtype) else to_numpy(dtype)


def _plain_numbers(texts: Sequence[str], dtype: str) -> Array | None:
    """Returns the numbers that texts spell as Python does; None if one does not."""
    joined = "".join(texts)
    # Else, Python takes the same texts as `_NUMBER`, `_WHOLE` and `_SPECIAL`.
    if dtype == "bool" or "_" in joined or not joined.isascii():
        return None
    convert = float if is_float(dtype) else int
    try:
        return np.fromiter(map(convert, texts), _exact(dtype), len(texts))
    except (ValueError, OverflowError):
        return None


@text_to_number.types
def _text_to_number_types(x: Type, *, dtype: str) -> Type:
    (source,) = need_text("text.to_number", x)
    if dtype not in PARSED:
        raise GraphTypeError(
            "T106", f"text.to_number: dtype is {dtype!r}", hint=f"use {', '.join(PARSED)}"
        )
    return TensorType(source.shape, dtype)


def _number(text: str, dtype: str) -> Any:
    plain = text.strip()
    if dtype == "bool" and plain.lower() in _TRUTHS:
        return _TRUTHS[plain.lower()] == 1
    number: float | int | None = _SPECIAL.get(plain.lower())
    if is_integer(dtype) and _WHOLE.fullmatch(plain):
        number = int(plain)
    elif number is None and _NUMBER.fullmatch(plain):
        number = float(plain)
    if number is None or not _fits(number, dtype):
        shown = text if len(text) < 40 else text[:37] + "..."
        raise GraphTypeError("T160", f"text.to_number: {shown!r} is not a valid {dtype}")
    return int(number) if is_integer(dtype) else number != 0 if dtype == "bool" else number


def _fits(number: float, dtype: str) -> bool:
    if not is_integer(dtype):
        return True
    low, high = _range(dtype)
    return low <= number < high  # False for NaN


def _range(dtype: str) -> tuple[float, float]:
    """Returns the lowest integer of a dtype, and the one above its highest; for floats, a range in
    which none becomes infinite.
    """
    if is_float(dtype):
        limits = np.finfo(to_numpy(dtype))
        return float(limits.min), float(limits.max)
    width = bits(dtype)
    return (0, 1 << width) if dtype[0] == "u" else (-(1 << (width - 1)), 1 << (width - 1))


_WITHIN: Final = {dtype: decimals_within(*_range(dtype)) for dtype in PARSED if dtype != "bool"}
_SPELLED: Final = {"nan": "NaN", "inf": "INF", "-inf": "-INF"}


@register_op(
    "text.from_number",
    host=True,
    traits=Traits(collects=True),
    samples=(
        Sample(np.array([314.15926, 1, -0.0, 1e-10, 1e30, np.nan, np.inf, -np.inf], "f4")),
        Sample(np.array([0.1, 2.0], "f8")),
        Sample(np.array([0.1, 2.0], "f2")),
        Sample(np.array([-(2**63), 2**63 - 1])),
        Sample(np.array([True, False])),
        Sample(_LINE, error="T105"),
    ),
)
def text_from_number(x: Array) -> Array:
    """Texts of numbers: the shortest decimals that convert back to the same floats, with a point
    (`1.0`), scientific from 1e16 up and below 1e-4; NaN, INF and -INF as accepted by Cast; True and
    False.

    Errors: T105. Source: ONNX Cast-25, which leaves the digits open; the digits follow onnx's
    reference evaluator, that is, NumPy's `str`, and the notation is Python's for all floats.
    """
    flat = np.ascontiguousarray(x).reshape(-1)
    if x.dtype.kind != "f":
        spelled = spelled_integers(flat)
        if spelled is None:
            spelled = text_array(list(map(str, flat.tolist())), flat.shape)
        return spelled.reshape(x.shape)
    narrow = x.dtype.itemsize < 4
    if narrow:
        return text_array(_float_texts(flat), x.shape)
    wide = flat.astype(np.float64)
    texts, done = spelled_decimals(
        wide, x.dtype.itemsize == 4, lambda place: _float_texts(flat[place : place + 1])[0]
    )
    if done < flat.size:
        texts[done:] = _float_texts(flat[done:])
    return texts.reshape(x.shape)


def _float_texts(numbers: Array) -> list[str]:
    """Returns the texts of floats. NumPy's digits are those of the dtype; its notation varies with
    its version.
    """
    if numbers.dtype.itemsize < 8:
        texts = [repr(float(str(number))) for number in numbers]
    else:
        texts = list(map(repr, numbers.tolist()))
    return [_SPELLED.get(text, text) for text in texts]


@text_from_number.types
def _text_from_number_types(x: Type) -> Type:
    source = tensor_type("text.from_number", x)
    known = is_float(source.dtype) or is_integer(source.dtype) or source.dtype == "bool"
    if not known:
        raise GraphTypeError("T105", f"text.from_number: input is {source}, expected numbers")
    return TensorType(source.shape, "str")
