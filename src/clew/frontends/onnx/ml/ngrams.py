"""TfIdfVectorizer: counts of n-grams, weighted."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

import numpy as np

from clew.frontends.building import call, cast, reshaped, scalar
from clew.frontends.onnx.layer import Layer
from clew.frontends.onnx.registry import Result, converter
from clew.ir.expr import Constant, Expr
from clew.ir.types import to_numpy
from clew.ops.data.ngrams import MODES

Array = np.ndarray[Any, Any]

# From this many n-grams on, looking each up costs less than comparing with all.
_HASHED: Final = 32


@converter("TfIdfVectorizer")
def tf_idf_vectorizer(layer: Layer) -> Result:
    """Counts of the pool's n-grams at their positions in the result, weighted by mode."""
    x, dtype = layer.input(0), layer.type(0).dtype
    if layer.rank() not in (1, 2):
        raise layer.wrong(f"takes [C] or [N, C], got {layer.type(0)}")
    if dtype == "str":
        pool: Array = np.array(layer.texts("pool_strings"), to_numpy("str"))
    else:
        pool = np.array(layer.integers("pool_int64s"), np.int64)
        x = cast(x, "i64")
    places = np.array(layer.integers("ngram_indexes"), np.int64)
    grams = _grams(layer, pool)
    if sum(map(len, grams)) != len(places):
        raise layer.wrong(f"has {len(places)} ngram_indexes for another number of n-grams")
    width = int(places.max(initial=-1)) + 1
    if not width or (places < 0).any():
        raise layer.wrong("has no ngram_indexes, or negative ones")
    if width > layer.builder.budgets.memory_bytes // 64:
        raise layer.wrong(f"has an index as large as {width - 1} in ngram_indexes")
    rows = reshaped(x, (1, *x.tensor.shape)) if layer.rank() == 1 else x
    skip = layer.integer("max_skip_count")
    if skip < 0:
        raise layer.wrong(f"has max_skip_count {skip}")
    found = _weighted(layer, rows, grams, places, width, _useful(skip, rows))
    return reshaped(found, (width,)) if layer.rank() == 1 else found


def _useful(skip: int, rows: Expr) -> int:
    """Returns a number of skipped tokens; more, beyond a row, never find an n-gram."""
    size = rows.tensor.shape[1]
    return min(skip, max(size - 2, 0)) if isinstance(size, int) else min(skip, 1 << 16)


def _grams(layer: Layer, pool: Array) -> list[Array]:
    """Returns the pool as a table `[count, n]` for each length n from 1 on.

    Errors: M012 for boundaries that do not ascend, or leave part of an n-gram.
    """
    starts = [*layer.integers("ngram_counts"), len(pool)]
    if len(starts) < 2 or starts[0] < 0 or any(b < a for a, b in pairwise(starts)):
        raise layer.wrong(f"has ngram_counts that do not divide a pool of {len(pool)}")
    tables = []
    for n, (begin, end) in enumerate(pairwise(starts), 1):
        if (end - begin) % n:
            raise layer.wrong(f"has {end - begin} tokens in its pool of {n}-grams")
        tables.append(pool[begin:end].reshape(-1, n))
    return tables


def _weighted(
    layer: Layer, rows: Expr, grams: list[Array], places: Array, width: int, skip: int
) -> Expr:
    """Returns weighted counts at their positions."""
    mode = layer.text("mode")
    weights = np.array(layer.reals("weights"), np.float32)
    if mode not in MODES:
        raise layer.wrong(f"has mode {mode[:40]!r}, expected TF, IDF or TFIDF")
    if weights.size not in (0, len(places)):
        raise layer.wrong(f"has {weights.size} weights for {len(places)} n-grams")
    if not weights.size:
        weights = np.ones(len(places), np.float32)
    shortest, longest = layer.integer("min_gram_length"), layer.integer("max_gram_length")
    used: list[Array] = []
    tables: list[Array] = []
    at = 0
    for table in grams:
        if len(table) and shortest <= table.shape[1] <= longest:
            tables.append(table)
            used.append(np.arange(at, at + len(table)))
        at += len(table)
    if not used:
        return call("full", shape=(rows.tensor.shape[0], width), value=0.0, dtype="f32")
    numbers = np.concatenate(used)
    columns, weights = places[numbers], weights[numbers]
    if len(set(columns.tolist())) < len(numbers):
        raise layer.unsupported("n-grams that share a place in the result")
    if rows.tensor.dtype == "str" or len(places) >= _HASHED:
        given = (Constant(columns), Constant(weights), *map(Constant, tables))
        return call("ngram_weights", rows, *given, width=width, max_skip=skip, mode=mode)
    counts: list[Expr] = [
        call("ngram_counts", rows, Constant(table), max_skip=skip) for table in tables
    ]
    return _placed(counts, columns, weights, width, mode)


def _placed(counts: list[Expr], columns: Array, weights: Array, width: int, mode: str) -> Expr:
    """Returns counts times their weights at their positions."""
    # A dummy n-gram without matches, which columns without an n-gram read.
    nothing = call("full", shape=(counts[0].tensor.shape[0], 1), value=0.0, dtype="f32")
    found: Expr = call("concatenate", *counts, nothing, axis=1)
    if mode == "IDF":
        found = cast(call("greater", found, scalar(0, "f32")), "f32")
    if mode != "TF" and (weights != 1).any():
        found = call("multiply", found, Constant(np.append(weights, np.float32(0))))
    sources = np.full(width, len(columns), np.int64)
    sources[columns] = np.arange(len(columns))
    return call("gather", found, Constant(sources), axis=1)
