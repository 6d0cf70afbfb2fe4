"""Host operators: NumPy functions that run between native segments. Some only pass sizes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from clew.ir.dims import unknown_dim
from clew.ir.expr import Attrs
from clew.ir.types import TensorType, Type, from_numpy
from clew.ops.common import axis_of, differ, f32, tensor_type
from clew.ops.registry import Sample, register_op
from clew.ops.traits import Traits
from clew.support.budgets import check_run_operations
from clew.support.errors import GraphTypeError

Array = np.ndarray[Any, Any]

# The cost of the overlap of two boxes: a dozen passes over memory, in operations of a kernel.
OVERLAP_OPERATIONS: Final = 64


@register_op(
    "size_of",
    traits=Traits(sizes="read"),
    host=True,
    samples=(Sample(f32(3, 4), axis=1), Sample(f32(3), axis=1, error="T104")),
)
def size_of(x: Array, *, axis: int) -> Array:
    """The size of an axis, `i64[]`; programs use it to read data-dependent sizes."""
    return np.asarray(x.shape[axis], np.int64)


@size_of.types
def _size_of_types(x: Type, *, axis: int) -> Type:
    axis_of("size_of", axis, tensor_type("size_of", x).rank)
    return TensorType((), "i64")


@register_op(
    "sized",
    host=True,
    samples=(Sample(f32(4, 2), f32(3)),),
)
def sized(*values: Any) -> Array:
    """The last input. The other inputs order the execution: calls whose attributes name the size of
    an input, the last one included, run after all inputs are computed.
    """
    return values[-1]  # type: ignore[no-any-return]


@sized.types
def _sized_types(*values: Type) -> Type:
    return values[-1]


@register_op(
    "non_max_suppression",
    host=True,
    samples=(
        Sample(f32(1, 6, 4), f32(1, 2, 6), max_boxes=3, iou_threshold=0.5, low=0, high=1),
        Sample(f32(2, 5, 4), f32(2, 1, 5), max_boxes=9, center=True, score_threshold=0.2, low=0.1),
        Sample(f32(1, 6, 3), f32(1, 2, 6), max_boxes=3, error="T108"),
    ),
)
def non_max_suppression(
    boxes: Array,
    scores: Array,
    *,
    max_boxes: int,
    iou_threshold: float = 0.0,
    score_threshold: float | None = None,
    center: bool = False,
) -> Array:
    """(batch, class, box) of the boxes kept, `i64[count, 3]`: best first, none overlapping a kept
    box by more than the threshold. Boxes are two opposite corners (y, x), or with `center` (x, y,
    w, h).

    Errors: I269, T108. Source: ONNX NonMaxSuppression-11.
    """
    check_boxes(boxes, scores)
    kept, work = [], 0
    for batch, corners in enumerate(corners_of(boxes.astype("f8"), center)):
        for kind, values in enumerate(scores[batch]):
            order = np.argsort(-values, kind="stable")
            if score_threshold is not None:
                order = order[values[order] > score_threshold]
            best, work = _apart(corners[order], max_boxes, iou_threshold, work)
            kept += [(batch, kind, n) for n in order[best]]
    return np.array(kept, np.int64).reshape(-1, 3)


def _apart(corners: Array, most: int, iou_threshold: float, work: int) -> tuple[list[int], int]:
    """Returns which boxes `f64[n, 4]`, best first, are kept, and the operations performed.

    Errors: I269 if the operations exceed the budget.
    """
    kept: list[int] = []
    numbers = np.arange(len(corners))
    low, high = np.ascontiguousarray(corners[:, :2].T), np.ascontiguousarray(corners[:, 2:].T)
    area = np.prod(high - low, axis=0)
    while numbers.size and len(kept) < most:
        work += OVERLAP_OPERATIONS * numbers.size
        check_run_operations("non_max_suppression", work)
        kept.append(int(numbers[0]))
        sides = np.minimum(high[:, :1], high[:, 1:]) - np.maximum(low[:, :1], low[:, 1:])
        shared = np.prod(np.maximum(sides, 0), axis=0)
        beside = ~(shared > iou_threshold * (area[0] + area[1:] - shared))
        numbers, low, high, area = numbers[1:], low[:, 1:], high[:, 1:], area[1:]
        if not beside.all():
            numbers, low, high, area = (
                numbers[beside],
                low[:, beside],
                high[:, beside],
                area[beside],
            )
    return kept, work


def check_boxes(boxes: Array, scores: Array) -> None:
    """Errors: T108 for boxes and scores whose shapes, only known at run time, do not fit."""
    _non_max_suppression_types(*(TensorType(a.shape, from_numpy(a.dtype)) for a in (boxes, scores)))


def corners_of(boxes: Array, center: bool) -> Array:
    """Returns boxes as (low, low, high, high)."""
    first, second = boxes[..., :2], boxes[..., 2:]
    if center:
        return np.concatenate([first - second / 2, first + second / 2], -1)
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], -1)


@non_max_suppression.types
def _non_max_suppression_types(boxes: Type, scores: Type, **attrs: Any) -> Type:
    b, s = (tensor_type("non_max_suppression", t) for t in (boxes, scores))
    fits = b.rank == 3 and s.rank == 3 and not differ(b.shape[2], 4)
    if not fits or differ(b.shape[0], s.shape[0]) or differ(b.shape[1], s.shape[2]):
        raise GraphTypeError("T108", f"non_max_suppression: boxes are {b}, scores are {s}")
    return TensorType((unknown_dim(), 3), "i64")


@non_max_suppression.dynamic
def _non_max_suppression_dynamic(types: Sequence[Type], attrs: Attrs) -> Type:
    return _non_max_suppression_types(types[0], types[1])
