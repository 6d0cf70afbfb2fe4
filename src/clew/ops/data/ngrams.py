"""Counts of n-grams: occurrences of short sequences of tokens in longer ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from clew import te
from clew.ir.types import TensorType, Type
from clew.ops.common import f32, i32, i64, need_rank, same_dtype, tensor_type
from clew.ops.data.made_once import made_once
from clew.ops.registry import Sample, register_op
from clew.support.errors import GraphTypeError
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
        Sample(np.array([["a", "b", "a", "b"]], TEXT), np.array([["a", "b"]], TEXT), max_skip=2),
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
    if x.dtype not in ("str", "i32", "i64"):
        raise GraphTypeError("T105", f"ngram_counts: input is {x}, expected str, i32 or i64")
    if grams.rank != 2 or not isinstance(grams.shape[1], int) or not grams.shape[1]:
        raise GraphTypeError("T108", f"ngram_counts: {grams} does not hold n-grams")
    if max_skip < 0:
        raise GraphTypeError("T107", f"ngram_counts: max_skip={max_skip}")


@ngram_counts.reference
def _ngram_counts_reference(x: Array, grams: Array, *, max_skip: int) -> Array:
    places = made_once(_gram_places, grams)
    length = grams.shape[1]
    counts = np.zeros((len(x), len(grams)), np.float32)
    for row, tokens in enumerate(x.tolist()):
        for step in range(1, (max_skip + 1 if length > 1 else 1) + 1):
            for start in range(len(tokens) - (length - 1) * step):
                gram = tuple(tokens[start : start + (length - 1) * step + 1 : step])
                for n in places.get(gram, ()):
                    counts[row, n] += 1
    return counts


def _gram_places(grams: Array) -> Mapping[tuple[Any, ...], Sequence[int]]:
    """Returns the positions of each n-gram."""
    places: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for n, gram in enumerate(grams.tolist()):
        places[tuple(gram)].append(n)
    return places


@register_op(
    "ngram_counts_by_hash",
    host=True,
    samples=(
        Sample(_TOKENS, _PAIRS, max_skip=5),
        Sample(i64(2, 4), _PAIRS, max_skip=-1, error="T107"),
        Sample(i64(4), _PAIRS, error="T102"),
    ),
)
def ngram_counts_by_hash(x: Array, grams: Array, *, max_skip: int = 0) -> Array:
    """`ngram_counts` in time that is independent of the number of n-grams.

    Errors: T102, T105, T107, T108.
    """
    return np.asarray(_ngram_counts_reference(x, grams, max_skip=max_skip))


@ngram_counts_by_hash.types
def _ngram_counts_by_hash_types(x: Type, grams: Type, *, max_skip: int) -> Type:
    rows, sought = (tensor_type("ngram_counts_by_hash", t) for t in (x, grams))
    _check_hashed(rows, sought, max_skip)
    return TensorType((rows.shape[0], sought.shape[0]), "f32")


def _check_hashed(rows: TensorType, sought: TensorType, max_skip: int) -> None:
    name = "ngram_counts_by_hash"
    if rows.rank != 2:
        raise GraphTypeError("T102", f"{name}: input is {rows}, expected rank 2")
    if max_skip < 0 or sought.rank != 2 or not sought.shape[1]:
        raise GraphTypeError("T107", f"{name}: max_skip={max_skip}, n-grams are {sought}")
