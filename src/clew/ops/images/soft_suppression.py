"""Non-maximum suppression that lowers the scores of overlapping boxes instead of dropping them."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np

from clew.ir.types import TensorType, TupleType, Type
from clew.ops.common import differ, f32, f64, i64, tensor_type
from clew.ops.registry import Sample, register_op
from clew.support.errors import GraphTypeError

Array = np.ndarray[Any, Any]
_LIMITS = (np.array(0.5, "f4"), np.array(0.1, "f4"), np.array(0.5, "f4"))


@register_op(
    "soft_best_boxes",
    host=True,
    samples=(
        Sample(f32(6, 4), f32(6), *_LIMITS, room=3, low=0, high=1),
        Sample(f32(9, 4), f32(9), *_LIMITS[:2], np.array(0, "f4"), room=12, low=0, high=1),
        Sample(f32(0, 4), f32(0), *_LIMITS, room=2),
        Sample(f32(6, 3), f32(6), *_LIMITS, room=3, error="T108"),
        Sample(f32(6, 4), f32(5), *_LIMITS, room=3, error="T108"),
        Sample(f64(6, 4), f32(6), *_LIMITS, room=3, error="T108"),
        Sample(f32(6, 4), f32(6), *_LIMITS, room=-1, error="T107"),
    ),
)
def soft_best_boxes(
    boxes: Array, scores: Array, overlap: Array, least: Array, sigma: Array, *, room: int
) -> tuple[Array, Array, Array]:
    """The kept boxes, best first, `i64[room]` padded with -1, their scores, `f32[room]` padded with
    0, and their number, `i64[]`.

    Boxes, `f32[n, 4]`, are two opposite corners. A box is dropped if its overlap with a better kept
    one is at least `overlap`, or its score is not above `least`. Other overlaps multiply its score
    by `exp(-overlap² / (2 sigma))`. Of equal scores, the first comes first.

    Errors: T107, T108. Source: Soft-NMS (Bodla et al., 2017), as in LiteRT
    NON_MAX_SUPPRESSION_V5.
    """
    low = np.minimum(boxes[:, :2], boxes[:, 2:])
    high = np.maximum(boxes[:, :2], boxes[:, 2:])
    area = (high - low).prod(1, dtype=np.float32)
    scale = np.float32(-0.5) / sigma if sigma > 0 else np.float32(0)
    waiting = [(-score, n, 0) for n, score in enumerate(scores.tolist()) if score > least]
    heapq.heapify(waiting)
    kept, values = np.full(room, -1, np.int64), np.zeros(room, np.float32)
    count = 0
    while waiting and count < room:
        negative, number, compared = heapq.heappop(waiting)
        others = kept[compared:count][::-1]
        shares = _shares(low, high, area, number, others)
        score = np.float32(-negative)
        near = np.flatnonzero(shares >= overlap)
        shares = shares[: near[0]] if near.size else shares
        for factor in _exponential(scale * shares * shares):
            score = score * factor
            if score <= least:
                break
        if near.size or score <= least:
            continue
        if score == -negative:
            kept[count], values[count] = number, score
            count += 1
        else:
            heapq.heappush(waiting, (-float(score), number, count))
    return kept, values, np.asarray(count, np.int64)


def _exponential(values: Array) -> Array:
    found: Array = np.exp(values.astype(np.float64)).astype(np.float32)
    return found


def _shares(low: Array, high: Array, area: Array, number: int, others: Array) -> Array:
    """Returns the intersections of a box with others over their unions, in f32."""
    sides = np.minimum(high[number], high[others]) - np.maximum(low[number], low[others])
    shared = np.maximum(sides, 0).prod(1, dtype=np.float32)
    union = area[number] + area[others] - shared
    some = (area[number] > 0) & (area[others] > 0) & (union != 0)
    found: Array = np.where(some, shared / np.where(some, union, 1), np.float32(0))
    return found


@soft_best_boxes.types
def _soft_best_boxes_types(
    boxes: Type, scores: Type, overlap: Type, least: Type, sigma: Type, *, room: int
) -> Type:
    name = "soft_best_boxes"
    b, s, *limits = (tensor_type(name, each) for each in (boxes, scores, overlap, least, sigma))
    fits = b.rank == 2 and s.rank == 1 and not differ(b.shape[1], 4)
    floats = all(each.dtype == "f32" for each in (b, s, *limits))
    scalars = all(limit.rank == 0 for limit in limits)
    if not (fits and floats and scalars) or differ(b.shape[0], s.shape[0]):
        raise GraphTypeError("T108", f"{name}: boxes are {b}, scores are {s}, limits are {limits}")
    if room < 0:
        raise GraphTypeError("T107", f"{name}: room={room}")
    return TupleType((TensorType((room,), "i64"), TensorType((room,), "f32"), i64()))
