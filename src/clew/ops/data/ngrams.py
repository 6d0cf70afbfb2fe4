"""Counts of n-grams: occurrences of short sequences of tokens in longer ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from clew import te
from clew.ir.types import TensorType, Type
from clew.ops.common import f32, i32, i64, need_rank, same_dtype, tensor_type
from clew.ops.data.made_once import made_once
from clew.ops.registry import Sample, Traits, register_op
from clew.support.budgets import check_run_bytes
from clew.support.errors import GraphTypeError
from clew.support.native_texts import GramTable, TextTable, text_code, weighted
from clew.support.text_arrays import TEXT
from clew.te import Scalar, Tensor

Array = np.ndarray[Any, Any]

_PAIRS = np.array([[5, 6], [7, 8], [6, 7]])
_TOKENS = np.array([[1, 1, 3, 3, 3, 7], [8, 6, 7, 5, 6, 8]])


@register_op(
    "ngram_counts",
    samples=(
        Sample(_TOKENS, _PAIRS),
        Sample(_TOKENS, _PAIRS, max_skip=5),
        Sample(_TOKENS.astype("i4"), np.array([[1], [8]], "i4"), max_skip=3),
        Sample(i64(2, 1), _PAIRS),
        Sample(i64(0, 4), _PAIRS),
        Sample(i32(2, 4), _PAIRS, error="T101"),
        Sample(i64(4), _PAIRS, error="T102"),
        Sample(i64(2, 4), i64(3, 0), error="T108"),
        Sample(i64(2, 4), _PAIRS, max_skip=-1, error="T107"),
        Sample(f32(2, 4), f32(3, 2), error="T105"),
    ),
)
def ngram_counts(x: Tensor, grams: Tensor, *, max_skip: int = 0) -> Tensor:
    """Occurrences of each of `grams[G, n]` in each row of `x[N, C]`, `f32[N, G]`: tokens next to
    each other, or with equal numbers of skipped tokens in between, up to `max_skip`.

    Errors: T101, T102, T105, T107, T108. Source: ONNX TfIdfVectorizer-9.
    """
    same_dtype("ngram_counts", x, grams)
    _check(x.type, grams.type, max_skip)
    need_rank("ngram_counts", "input", x, 2)
    length, size = grams.shape[1], x.shape[1]
    assert isinstance(length, int)
    skips = max_skip + 1 if length > 1 else 1  # a single token has nothing in between
    place, skip = te.reduce_axis(size, "place"), te.reduce_axis(skips, "skip")

    def body(n: Scalar, g: Scalar) -> Scalar:
        last = te.size(size) - 1
        found: Scalar = place + (skip + 1) * (length - 1) <= last
        for k in range(length):
            token = x[n, te.minimum(place + (skip + 1) * k, last)]
            found = found & token.equal(grams[g, k])
        return te.sum(te.select(found, te.as_scalar(1.0, "f32"), 0.0), (skip, place))

    return te.compute((x.shape[0], grams.shape[0]), body, "ngram_counts")


def _check(x: TensorType, grams: TensorType, max_skip: int) -> None:
    if x.dtype not in ("i32", "i64"):
        raise GraphTypeError("T105", f"ngram_counts: input is {x}, expected i32 or i64")
    if grams.rank != 2 or not isinstance(grams.shape[1], int) or not grams.shape[1]:
        raise GraphTypeError("T108", f"ngram_counts: {grams} does not hold n-grams")
    if max_skip < 0:
        raise GraphTypeError("T107", f"ngram_counts: max_skip={max_skip}")


@ngram_counts.reference
def _ngram_counts_reference(x: Array, grams: Array, *, max_skip: int) -> Array:
    return _counted(x, [grams], np.arange(len(grams)), len(grams), max_skip)


def _counted(x: Array, grams: Sequence[Array], columns: Array, width: int, max_skip: int) -> Array:
    """Returns the occurrences of n-grams of several lengths, each in its column."""
    places: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    found = (tuple(gram) for some in grams for gram in some.tolist())
    for gram, column in zip(found, columns.tolist(), strict=True):
        places[gram].append(column)
    counts = np.zeros((len(x), width), np.float32)
    for row, tokens in enumerate(x.tolist()):
        for length in {some.shape[1] for some in grams}:
            for step in range(1, (max_skip + 1 if length > 1 else 1) + 1):
                for start in range(len(tokens) - (length - 1) * step):
                    gram = tuple(tokens[start : start + (length - 1) * step + 1 : step])
                    for column in places.get(gram, ()):
                        counts[row, column] += 1
    return counts


# --- weighted -------------------------------------------------------------------------------------

MODES: Final = ("TF", "IDF", "TFIDF")
_WORDS = np.array([["a", "b", "a"], ["b", "é", "z"]], TEXT)
_SINGLE, _DOUBLE = np.array([["b"], ["é"]], TEXT), np.array([["a", "b"], ["b", "a"]], TEXT)
_HALVES = np.array([0.5, 1.5, 2.5, 3.5], "f4")


@register_op(
    "ngram_weights",
    host=True,
    traits=Traits(collects=True),
    samples=(
        Sample(_WORDS, np.arange(4), _HALVES, _SINGLE, _DOUBLE, width=4),
        Sample(_WORDS, np.array([4, 0]), _HALVES[:2], _DOUBLE, max_skip=1, width=6, mode="TF"),
        Sample(_TOKENS, np.arange(3), _HALVES[:3], _PAIRS, max_skip=5, width=3, mode="IDF"),
        Sample(_TOKENS, np.array([2, 0, 1]), _HALVES[:3], _PAIRS[[0, 0, 1]], width=3),
        Sample(i64(0, 4), np.arange(3), _HALVES[:3], _PAIRS, width=3),
        Sample(i64(2, 1), np.arange(3), _HALVES[:3], _PAIRS, max_skip=2, width=3),
        Sample(i64(2, 4), np.arange(3), _HALVES[:3], _PAIRS, width=3, max_skip=-1, error="T107"),
        Sample(i64(2, 4), np.arange(3), _HALVES[:3], _PAIRS, width=3, mode="T", error="T107"),
        Sample(i64(2, 4), np.arange(2), _HALVES[:2], _PAIRS, width=3, error="T108"),
        Sample(i64(2, 4), np.arange(3), _HALVES[:3], i64(3, 0), width=3, error="T108"),
        Sample(i64(4), np.arange(3), _HALVES[:3], _PAIRS, width=3, error="T102"),
        Sample(f32(2, 4), np.arange(3), _HALVES[:3], f32(3, 2), width=3, error="T105"),
        Sample(_WORDS, np.arange(3), _HALVES[:3], _PAIRS, width=3, error="T101"),
    ),
)
def ngram_weights(
    x: Array,
    columns: Array,
    weights: Array,
    *grams: Array,
    width: int,
    max_skip: int = 0,
    mode: str = "TFIDF",
) -> Array:
    """Occurrences of n-grams, as `ngram_counts` finds them, times their weights, `f32[N, width]`.
    The n-grams of each length n (`[G, n]`) have their columns and weights in this order; columns
    without an n-gram are 0. The mode TF ignores the weights, and IDF how often an n-gram occurs.

    Its time does not depend on the number of n-grams.

    Errors: T101, T102, T105, T107, T108, I265. Source: ONNX TfIdfVectorizer-9.
    """
    check_run_bytes("the result of ngram_weights", 4 * len(x) * width)
    counter = made_once(_Counter, columns, weights, *grams)
    if counter.width > width or counter.lowest < 0:
        raise GraphTypeError("T108", f"ngram_weights: columns are not all below {width}")
    return counter(x, max_skip, width, mode)


class _Counter:
    """Counts n-grams of texts or of integers, and weighs them."""

    def __init__(self, columns: Array, weights: Array, *grams: Array) -> None:
        self.lowest = int(columns.min(initial=0))
        self.width = int(columns.max(initial=-1)) + 1
        self._columns, self._grams = columns, grams
        self._skips = any(some.shape[1] > 1 for some in grams)
        self._weights = np.zeros(self.width, np.float32)
        self._places: Callable[[Array], Array] = _as_they_are
        self._table: GramTable | None = None
        if self.lowest < 0:
            return
        self._weights[columns] = weights
        if text_code() is None:
            return
        if grams[0].dtype == TEXT:
            tokens = np.array(list(dict.fromkeys(t for g in grams for t in g.flat)), TEXT)
            self._places = TextTable(tokens)
            grams = tuple(self._places(some) for some in grams)
        self._table = GramTable(grams, columns, self._weights)

    def __call__(self, x: Array, max_skip: int, width: int, mode: str) -> Array:
        """Returns the weighted occurrences, each in its column."""
        if self._table is None:
            counts = _counted(x, self._grams, self._columns, width, max_skip)
            return weighted(counts, self._weights, mode)
        skips = max_skip + 1 if self._skips else 1
        return self._table.counts(self._places(x), skips, width, mode)


def _as_they_are(x: Array) -> Array:
    return x


@ngram_weights.types
def _ngram_weights_types(
    x: Type, columns: Type, weights: Type, *grams: Type, width: int, max_skip: int, mode: str
) -> Type:
    name = "ngram_weights"
    rows, places, factors, *sought = (tensor_type(name, t) for t in (x, columns, weights, *grams))
    if rows.dtype not in ("str", "i64"):
        raise GraphTypeError("T105", f"{name}: input is {rows}, expected str or i64")
    if any(some.dtype != rows.dtype for some in sought):
        raise GraphTypeError("T101", f"{name}: input is {rows}, n-grams are {sought[0]}")
    if rows.rank != 2:
        raise GraphTypeError("T102", f"{name}: input is {rows}, expected rank 2")
    if max_skip < 0 or width < 1 or mode not in MODES:
        raise GraphTypeError("T107", f"{name}: max_skip={max_skip}, width={width}, mode={mode!r}")
    if not sought or any(some.rank != 2 or not some.shape[1] for some in sought):
        raise GraphTypeError("T108", f"{name}: inputs do not hold n-grams")
    count = sum(some.shape[0] for some in sought if isinstance(some.shape[0], int))
    if (places.shape, factors.shape) != ((count,), (count,)):
        raise GraphTypeError(
            "T108", f"{name}: {count} n-grams have columns {places} and weights {factors}"
        )
    return TensorType((rows.shape[0], width), "f32")
