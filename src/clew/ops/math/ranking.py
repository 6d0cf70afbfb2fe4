"""The largest elements of rows without sorting: by counting the elements that precede each element,
or by comparison with the largest.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from clew import te
from clew.cost.policy.ordering import MOST_RANKED_ACROSS
from clew.ir.dims import Dim
from clew.ir.expr import Constant, Expr
from clew.ir.types import is_float
from clew.ops.common import axis_of, boolean, capped, f16, f32, i32, need_number
from clew.ops.math.sorting import check_count, top_k, top_k_dynamic, top_k_held
from clew.ops.registry import Sample, register_op
from clew.te import Scalar, Tensor

Array = np.ndarray[Any, Any]


def selects_by_rank(size: Dim, k: Expr | int, *, is_last: bool = True) -> bool:
    """Whether `top_k_ranked` is faster than `top_k`: for one element, which it finds in linear
    time, and for short rows along another axis than the last, because vectors compare elements of
    several such rows.
    """
    if isinstance(k, Constant):
        k = int(k.data.reshape(-1)[0]) if k.data.size == 1 else 0
    return isinstance(size, int) and (k == 1 or (not is_last and size <= MOST_RANKED_ACROSS))


@register_op(
    "top_k_ranked",
    samples=(
        Sample(f32(3, 7), k=3),
        Sample(i32(5, 3), k=2, axis=0, largest=False, low=0, high=3),
        Sample(f16(2, 4), k=4),
        Sample(f32(4), k=0),
        Sample(f32(0, 4), k=2),
        Sample(np.array([[np.nan, 1, np.inf, np.nan, -0.0, 0, -np.inf]], "f4"), k=6),
        Sample(np.array([[np.nan, 1, np.inf, np.nan]], "f4"), k=3, largest=False),
        Sample(f32(3, 70), k=1),
        Sample(i32(50, 3), k=1, axis=0, largest=False, low=0, high=9),
        Sample(np.array([[0, np.nan, np.inf, np.nan], [np.nan, np.inf, 1, 1]], "f4"), k=1),
        Sample(
            np.array([[np.nan, np.inf], [np.inf, np.nan], [np.nan] * 2], "f4"), k=1, largest=False
        ),
        Sample(f32(3, 7), k=8, error="T107"),
        Sample(f32(3, 7), k=1, axis=2, error="T104"),
        Sample(boolean(3, 7), k=1, error="T105"),
    ),
)
def top_k_ranked(
    x: Tensor, *, k: int, axis: int = -1, largest: bool = True
) -> tuple[Tensor, Tensor]:
    """`top_k` for one element, or for short rows.

    Errors: T104, T105, T107. Source: ONNX TopK-24.
    """
    need_number("top_k_ranked", x)
    n = axis_of("top_k_ranked", axis, x.rank)
    size = x.shape[n]
    check_count("top_k_ranked", k, size, n)

    def at(i: tuple[Scalar, ...], place: Scalar) -> Scalar:
        return x[(*i[:n], place, *i[n + 1 :])]

    shape = (*x.shape[:n], k, *x.shape[n + 1 :])
    places = _first(x, n, largest) if k == 1 else _ranked(x, n, k, largest)
    values = te.compute(shape, lambda *i: at(i, capped(places[i], size)), "top_k")
    return values, places


def _first(x: Tensor, axis: int, largest: bool) -> Tensor:
    """Returns the place of the element that precedes all others, from two stages."""
    size = x.shape[axis]
    place = te.reduce_axis(size, "place")
    floats = is_float(x.dtype)

    def at(i: tuple[Scalar, ...]) -> Scalar:
        value = x[(*i[:axis], place, *i[axis + 1 :])]
        if largest or not floats:
            return value
        return te.select(te.call("isnan", value), math.inf, value)  # NaN counts as the largest

    shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    combine = te.max if largest else te.min
    best = te.compute(shape, lambda *i: combine(at(i), place), "best")
    nowhere = te.size(size)

    def found(*i: Scalar) -> Scalar:
        value = x[(*i[:axis], place, *i[axis + 1 :])]
        holds = value.equal(best[i])
        if floats and largest:
            holds = holds | te.call("isnan", value)  # then the best is NaN, too
        return te.min(te.select(holds, place, nowhere), place)

    if largest or not floats:
        return te.compute(shape, found, "places")
    # Without numbers, the first NaN is the smallest.
    least = te.compute(shape, found, "least")
    return te.compute(shape, lambda *i: te.select(least[i].equal(nowhere), 0, least[i]), "places")


def _ranked(x: Tensor, axis: int, k: int, largest: bool) -> Tensor:
    """Returns the places of the elements that fewer than `k` others precede, in order."""
    size = x.shape[axis]
    other = te.reduce_axis(size, "other")

    def rank(*i: Scalar) -> Scalar:
        a, b = x[(*i[:axis], other, *i[axis + 1 :])], x[i]
        before = a > b if largest else a < b
        same = a.equal(b)
        if is_float(x.dtype):  # NaN counts as the largest
            unlike = te.call("isnan", a if largest else b) & ~te.call("isnan", b if largest else a)
            before = before | unlike
            same = same | (te.call("isnan", a) & te.call("isnan", b))
        return te.sum(te.cast("i32", before | (same & (other < i[axis]))), other)

    ranks = te.compute(x.shape, rank, "rank")
    place = te.reduce_axis(size, "place")

    def holder(*i: Scalar) -> Scalar:
        found = ranks[(*i[:axis], place, *i[axis + 1 :])].equal(te.cast("i32", i[axis]))
        return te.sum(te.select(found, place, 0), place)

    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return te.compute(shape, holder, "places")


top_k_ranked.reference(top_k.reference_rule)  # type: ignore[arg-type]
top_k_ranked.dynamic(top_k_dynamic)
top_k_ranked.held(top_k_held)
