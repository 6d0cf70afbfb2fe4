"""The skip-grams of a text: sequences of its words, perhaps with gaps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from clew.ir.dims import unknown_dim
from clew.ir.types import TensorType, Type
from clew.ops.common import f32
from clew.ops.data.text import need_text
from clew.ops.registry import Sample, Traits, register_op
from clew.support.budgets import check_run_bytes
from clew.support.errors import GraphTypeError
from clew.support.text_arrays import TEXT, text_array

Array = np.ndarray[Any, Any]

_TEXT_BYTES = 64  # of a text and the reference to it, besides its characters
_SPACES = frozenset(" \t\n\v\f\r")  # those of C's isspace
_LINE = np.array(["the quick brown fox jumps"], TEXT)


@register_op(
    "text.skip_grams",
    host=True,
    traits=Traits(collects=True),
    samples=(
        Sample(_LINE, size=2, most_skipped=2, shorter=False),
        Sample(_LINE, size=3, most_skipped=1, shorter=True),
        Sample(np.array("a", TEXT), size=3, most_skipped=0, shorter=False),
        Sample(np.array([" a  b\tc "], TEXT), size=1, most_skipped=0, shorter=False),
        Sample(f32(1), size=2, most_skipped=0, shorter=False, error="T105"),
        Sample(_LINE, size=0, most_skipped=0, shorter=False, error="T107"),
        Sample(_LINE, size=1, most_skipped=-1, shorter=False, error="T107"),
    ),
)
def skip_grams(x: Array, *, size: int, most_skipped: int, shorter: bool) -> Array:
    """The sequences of `size` words of the first text, joined by spaces, `str[count]`. Between two
    words of a sequence, up to `most_skipped` are left out. With `shorter`, a sequence of fewer
    words follows those that it begins. Words are separated by white space; one after a space at the
    very beginning does not count.

    A text of fewer than `size` words has no sequences.

    Errors: T105, T107, I265. Source: LiteRT SKIP_GRAM.
    """
    words = _words(str(x.reshape(-1)[0])) if x.size else []
    found: list[str] = []
    if len(words) >= size:
        total = 0
        for gram in _grams(len(words), size, most_skipped, shorter):
            found.append(" ".join(words[n] for n in gram))
            total += _TEXT_BYTES + len(found[-1])
            check_run_bytes("the result of text.skip_grams", total)
    return text_array(found, (len(found),))


def _words(text: str) -> list[str]:
    """Returns the words as LiteRT finds them: the first character ends no word."""
    found, start = [], 0
    for n in range(1, len(text)):
        if text[n] in _SPACES:
            if n > start and text[start] not in _SPACES:
                found.append(text[start:n])
            start = n + 1
    return [*found, text[start:]] if start < len(text) else found


def _grams(count: int, size: int, most: int, shorter: bool) -> Iterator[Sequence[int]]:
    pending: list[tuple[bool, tuple[int, ...]]] = [(False, (n,)) for n in reversed(range(count))]
    while pending:
        done, gram = pending.pop()
        if done or len(gram) == size:
            yield gram
            continue
        if shorter:
            pending.append((True, gram))
        last = gram[-1]
        following = range(last + 1, min(last + most + 2, count))
        pending += [(False, (*gram, n)) for n in reversed(following)]


@skip_grams.types
def _skip_grams_types(x: Type, *, size: int, most_skipped: int, shorter: bool) -> Type:
    need_text("text.skip_grams", x)
    if size < 1 or most_skipped < 0:
        raise GraphTypeError("T107", f"text.skip_grams: size={size}, most_skipped={most_skipped}")
    return TensorType((unknown_dim(),), "str")
