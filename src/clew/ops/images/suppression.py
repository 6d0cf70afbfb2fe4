"""Non-maximum suppression: one kernel sorts the candidates of each class and keeps the best boxes,
and a second one lists them in a result with one row per kept box.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from clew import te
from clew.ir.dims import Dim, at_least, ceil_div, dim_min, product, unknown_dim
from clew.ir.expr import Constant, Expr, TupleGetItem
from clew.ir.types import TensorType, Type, is_float
from clew.ops.common import boolean, capped, differ, f32, f64, i32, i64, tensor_type
from clew.ops.math.sorting import sort_key
from clew.ops.registry import Sample, get_op, register_op
from clew.support.errors import GraphTypeError
from clew.te import Scalar, Tensor

Array = np.ndarray[Any, Any]

# The number of scores in a group; groups without candidates are skipped.
_GROUP: Final = 16
_TOO_MANY: Final = 1 << 31
"""A number of boxes that no call has."""
_FEW_ROWS: Final = 16384 // 3
"""Up to this number of rows, computing all that are possible takes less time than calling a kernel
for the kept ones (`backends/cpu/rows.py`).
"""
_FEW_OF_A_CLASS: Final = 512
"""Up to this limit per class, listing that many boxes takes little time beside finding them."""


_LIMITS: Final = (np.array(3), np.array(0.5))


@register_op(
    "non_max_suppression",
    samples=(
        Sample(f32(1, 6, 4), f32(1, 2, 6), *_LIMITS, low=0, high=1),
        Sample(f32(2, 5, 4), f32(2, 1, 5), *_LIMITS, np.array(0.2), center=True, low=0.1),
        Sample(f32(1, 6, 3), f32(1, 2, 6), *_LIMITS, error="T108"),
        Sample(f32(1, 6, 4), i32(1, 2, 6), *_LIMITS, error="T105"),
    ),
)
def non_max_suppression(  # type: ignore[empty-body]
    boxes: Tensor,
    scores: Tensor,
    most: Tensor,
    overlap: Tensor,
    least: Tensor | None = None,
    *,
    center: bool = False,
) -> Tensor:
    """(batch, class, box) of the kept boxes, `i64[count, 3]`: for each batch and class at most
    `most`, best first, none overlapping a better kept one by more than `overlap`.

    Boxes, `[batches, n, 4]`, are two opposite corners (y, x), or with `center` (x, y, w, h). Their
    overlap is their intersection over their union, computed in f64. Candidates have a score,
    `[batches, classes, n]`, above `least`; without it, all boxes are candidates. Of equal scores,
    the first comes first, and NaN comes last. Limits are `i64[]`, `f64[]` and `f64[]`.

    Errors: T105, T108. Source: ONNX NonMaxSuppression-11.
    """


@non_max_suppression.types
def _non_max_suppression_types(
    boxes: Type,
    scores: Type,
    most: Type,
    overlap: Type,
    least: Type | None = None,
    *,
    center: bool,
) -> Type:
    _check("non_max_suppression", boxes, scores, most, overlap, least)
    return TensorType((unknown_dim(), 3), "i64")


def _check(name: str, boxes: Type, scores: Type, *limits: Type | None) -> None:
    """Errors: T105, T108 for boxes, scores and limits that are of other types."""
    b, s = tensor_type(name, boxes), tensor_type(name, scores)
    fits = b.rank == 3 and s.rank == 3 and not differ(b.shape[2], 4)
    if not fits or differ(b.shape[0], s.shape[0]) or differ(b.shape[1], s.shape[2]):
        raise GraphTypeError("T108", f"{name}: boxes are {b}, scores are {s}")
    if not (is_float(b.dtype) and is_float(s.dtype)):
        raise GraphTypeError("T105", f"{name}: boxes are {b}, scores are {s}, expected floats")
    given = [tensor_type(name, limit) for limit in limits if limit is not None]
    if given != [i64(), f64(), f64()][: len(given)]:
        types = ", ".join(map(str, given))
        raise GraphTypeError("T108", f"{name}: limits are {types}, expected i64[], f64[], f64[]")


@non_max_suppression.reference
def _non_max_suppression_reference(
    boxes: Array,
    scores: Array,
    most: Array,
    overlap: Array,
    least: Array | None = None,
    *,
    center: bool,
) -> Array:
    kept, counts = _best_boxes_reference(
        boxes, scores, most, overlap, least, room=None, center=center
    )
    found: Array = _kept_boxes_reference(kept, counts, np.zeros(counts.sum(), bool))
    return found


@non_max_suppression.decompose
def _non_max_suppression_expanded(
    boxes: Expr, scores: Expr, most: Expr, *limits: Expr, center: bool
) -> Expr:
    room = int(most.data) if isinstance(most, Constant) else None
    best = get_op("best_boxes")(boxes, scores, most, *limits, room=room, center=center)
    kept, counts = TupleGetItem(best, 0), TupleGetItem(best, 1)
    total = get_op("sum")(counts, axes=(0, 1), keepdims=False)
    most_rows = product(kept.tensor.shape)
    of_a_class = _FEW_OF_A_CLASS + 1 if room is None else room
    if at_least(_FEW_ROWS - most_rows) or of_a_class <= _FEW_OF_A_CLASS:
        every = get_op("reshape")(kept, shape=(most_rows,))
        return get_op("first_rows")(get_op("kept_boxes")(kept, counts, every), total)
    return get_op("kept_boxes")(kept, counts, get_op("room")(total))


@register_op(
    "best_boxes",
    samples=(
        Sample(f32(1, 6, 4), f32(1, 2, 6), *_LIMITS, low=0, high=1),
        Sample(f32(2, 70, 4), f32(2, 3, 70), *_LIMITS, np.array(0.5), low=0, high=1, room=2),
        Sample(f64(2, 5, 4), f64(2, 1, 5), *_LIMITS, np.array(0.2), center=True, room=9),
        Sample(f32(1, 6, 4), f32(1, 2, 6), np.array(0), np.array(0.5)),
        Sample(f32(1, 6, 4), f32(1, 2, 5), *_LIMITS, error="T108"),
        Sample(f32(1, 6, 4), f32(1, 2, 6), i64(1), f64(), error="T108"),
        Sample(i32(1, 6, 4), f32(1, 2, 6), *_LIMITS, error="T105"),
    ),
)
def best_boxes(
    boxes: Tensor,
    scores: Tensor,
    most: Tensor,
    overlap: Tensor,
    least: Tensor | None = None,
    *,
    room: int | None = None,
    center: bool = False,
) -> tuple[Tensor, Tensor]:
    """The boxes that `non_max_suppression` keeps for each batch and class, best first,
    `i64[batches, classes, min(room, n)]`, padded with -1, and their counts, `i64[batches,
    classes]`.

    Operands are those of `non_max_suppression`; `room` is an upper bound of `most`.

    Errors: T105, T108.
    """
    name = "best_boxes"
    limits = [most, overlap, *([] if least is None else [least])]
    _check(name, boxes.type, scores.type, *(limit.type for limit in limits))
    batches, classes, size = scores.shape
    order, count = _candidates(scores, least)
    candidate, other = te.reduce_axis(size, "candidate"), te.reduce_axis(size, "other")

    def greedy(b: Scalar, c: Scalar, _: Scalar) -> Scalar:
        number, its = (capped(order[b, c, place], size) for place in (candidate, other))
        one, two = (_Box(boxes, b, n, center) for n in (number, its))
        clash = one.overlaps(two, overlap[()])
        return te.greedy(number, clash, count(b, c), most[()], [candidate, other])

    kept = te.compute(
        (batches, classes, _limited(room, size)), greedy, name, axes=("batch", "class", "place")
    )
    place = te.reduce_axis(kept.shape[2], "place")

    def counted(b: Scalar, c: Scalar) -> Scalar:
        return te.sum(te.cast("i64", kept[b, c, place] >= 0), place)

    return kept, te.compute((batches, classes), counted, "counts")


def _limited(room: int | None, size: Dim) -> Dim:
    return size if room is None or room >= _TOO_MANY else dim_min(max(room, 0), size)


def _candidates(scores: Tensor, least: Tensor | None) -> tuple[Tensor, Any]:
    """Returns the positions of candidates, best first, and a function of batch and class that
    returns how many there are.
    """
    shape = batches, classes, size = scores.shape

    def key(b: Scalar, c: Scalar, place: Scalar) -> Scalar:
        return sort_key(-scores[b, c, place], largest=False)  # NaN comes last

    if least is None:
        over = te.reduce_axis(size, "over")
        order = te.compute(shape, lambda b, c, _: te.sort(key(b, c, over), [over]), "order")
        return order, lambda b, c: te.size(size)
    bound = te.cast(scores.dtype, least[()])
    groups = ceil_div(size, _GROUP)

    def passes(b: Scalar, c: Scalar, place: Scalar) -> Scalar:
        return te.select(place < te.size(size), scores[b, c, place] > bound, False)

    def in_group(b: Scalar, c: Scalar, group: Scalar) -> Scalar:
        within = te.reduce_axis(_GROUP, "within")
        return te.sum(te.cast("i32", passes(b, c, group * _GROUP + within)), within)

    found = te.compute((batches, classes, groups), in_group, "in_group")
    every = te.reduce_axis(groups, "group")
    count = te.compute(
        (batches, classes),
        lambda b, c: te.sum(te.cast("i64", found[b, c, every]), every),
        "candidates",
    )
    each, element = te.reduce_axis(groups, "each"), te.reduce_axis(_GROUP, "element")

    def sorted_(b: Scalar, c: Scalar, _: Scalar) -> Scalar:
        place = each * _GROUP + element
        inside = te.minimum(place, te.size(size) - 1)
        here = te.all_of(found[b, c, each] > 0, place < te.size(size), scores[b, c, inside] > bound)
        return te.sort(key(b, c, inside), [each, element], here)

    return te.compute(shape, sorted_, "order"), lambda b, c: count[b, c]


class _Box:
    """The lower and upper corner of a box, in f64, and its area."""

    def __init__(self, boxes: Tensor, batch: Scalar, place: Scalar, center: bool) -> None:
        first, second = (
            [te.cast("f64", boxes[batch, place, n + axis]) for axis in (0, 1)] for n in (0, 2)
        )
        pairs = list(zip(first, second, strict=True))
        if center:
            self.low = [a - b / 2.0 for a, b in pairs]
            self.high = [a + b / 2.0 for a, b in pairs]
        else:
            self.low = [te.minimum(a, b) for a, b in pairs]
            self.high = [te.maximum(a, b) for a, b in pairs]
        sides = [high - low for low, high in zip(self.low, self.high, strict=True)]
        self.area = sides[0] * sides[1]

    def overlaps(self, other: _Box, threshold: Scalar) -> Scalar:
        """Returns whether the intersection with another box exceeds a share of the union; False if
        a coordinate is NaN, since an area is then NaN.
        """
        sides = []
        for n in (0, 1):
            high, its_high = self.high[n], other.high[n]
            low, its_low = self.low[n], other.low[n]
            side = te.select(its_high < high, its_high, high) - te.select(
                its_low > low, its_low, low
            )
            sides.append(te.select(side < 0.0, 0.0, side))
        shared = sides[0] * sides[1]
        return shared > threshold * (other.area + self.area - shared)


@best_boxes.reference
def _best_boxes_reference(
    boxes: Array,
    scores: Array,
    most: Array,
    overlap: Array,
    least: Array | None = None,
    *,
    room: int | None,
    center: bool,
) -> tuple[Array, Array]:
    size = scores.shape[2]
    width = size if room is None else min(max(room, 0), size)
    kept = np.full((*scores.shape[:2], width), -1, np.int64)
    for batch, corners in enumerate(_corners_of(boxes.astype("f8"), center)):
        for kind, values in enumerate(scores[batch]):
            order = np.argsort(-values, kind="stable")
            if least is not None:
                order = order[values[order] > least.astype(values.dtype)]
            best = order[_apart(corners[order], min(int(most), width), float(overlap))]
            kept[batch, kind, : len(best)] = best
    return kept, (kept >= 0).sum(-1)


def _apart(corners: Array, most: int, iou_threshold: float) -> list[int]:
    """Returns which boxes `f64[n, 4]`, best first, are kept."""
    kept: list[int] = []
    numbers = np.arange(len(corners))
    low, high = np.ascontiguousarray(corners[:, :2].T), np.ascontiguousarray(corners[:, 2:].T)
    area = np.prod(high - low, axis=0)
    while numbers.size and len(kept) < most:
        kept.append(int(numbers[0]))
        sides = np.minimum(high[:, :1], high[:, 1:]) - np.maximum(low[:, :1], low[:, 1:])
        shared = np.prod(np.maximum(sides, 0), axis=0)
        beside = ~(shared > iou_threshold * (area[0] + area[1:] - shared))
        numbers, low, high, area = (
            numbers[1:][beside], low[:, 1:][:, beside], high[:, 1:][:, beside], area[1:][beside],
        )  # fmt: skip
    return kept


def _corners_of(boxes: Array, center: bool) -> Array:
    """Returns boxes as (low, low, high, high)."""
    first, second = boxes[..., :2], boxes[..., 2:]
    if center:
        return np.concatenate([first - second / 2, first + second / 2], -1)
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], -1)


_KEPT: Final = (np.array([[[2, 0], [1, -1]], [[-1, -1], [3, -1]]]), np.array([[2, 1], [0, 1]]))


@register_op(
    "kept_boxes",
    samples=(
        Sample(*_KEPT, boolean(4)),
        Sample(*_KEPT, boolean(2)),
        Sample(*_KEPT, boolean(7)),
        Sample(np.zeros((2, 3, 0), "i8"), np.zeros((2, 3), "i8"), boolean(2)),
        Sample(i64(2, 2, 4), i64(2, 3), boolean(4), error="T108"),
        Sample(i64(2, 2, 4), i64(2, 2), boolean(4, 1), error="T108"),
    ),
)
def kept_boxes(kept: Tensor, counts: Tensor, room: Tensor) -> Tensor:
    """(batch, class, box) of the results of `best_boxes`, `i64[k, 3]`, one row for each element of
    `room`, `[k]`. If fewer boxes exist, the other rows continue in the last class that has boxes,
    with the elements of `kept` after its boxes, of which the last one is repeated.

    Errors: T108.
    """
    fits = kept.rank == 3 and counts.rank == 2 and room.rank == 1
    if not fits or any(map(differ, kept.shape, counts.shape)):
        raise GraphTypeError("T108", f"kept_boxes: {kept.type} and {counts.type} into {room.type}")
    batches, classes, size = kept.shape
    total = room.shape[0]
    groups = batches * classes
    each = te.reduce_axis(groups, "each")

    def count(group: Scalar) -> Scalar:
        return counts[group // te.size(classes), group % te.size(classes)]

    starts = te.compute((groups,), lambda g: te.scan("sum", count(g), g, exclusive=True), "starts")

    def marked(_: Scalar) -> Scalar:
        start = starts[each]
        held = te.all_of(count(each) > 0, start < te.size(total))
        place = capped(te.maximum(start, 0), total)
        return te.scatter(te.as_scalar(0), [place], each, [each], held)

    marks = te.compute((total,), marked, "marks")
    group = te.compute((total,), lambda n: te.scan("max", marks[n], n), "group")

    def element(n: Scalar, column: Scalar) -> Scalar:
        its = capped(te.maximum(group[n], 0), groups)
        batch, kind = its // te.size(classes), its % te.size(classes)
        place = capped(te.maximum(n - starts[its], 0), size)
        box = kept[batch, kind, place]
        return te.select(column.equal(0), batch, te.select(column.equal(1), kind, box))

    return te.compute((total, 3), element, "kept_boxes")


@kept_boxes.reference
def _kept_boxes_reference(kept: Array, counts: Array, room: Array) -> Array:
    result = np.zeros((len(room), 3), np.int64)
    if not counts.size or not len(room):
        return result
    flat = counts.reshape(-1)
    starts = np.cumsum(flat) - flat
    marks = np.zeros(len(room), np.int64)
    inside = (flat > 0) & (starts < len(room))
    marks[starts[inside]] = np.flatnonzero(inside)
    group = np.maximum.accumulate(marks)
    result[:, 0], result[:, 1] = np.divmod(group, counts.shape[1])
    if kept.size:
        place = np.minimum(np.arange(len(room)) - starts[group], kept.shape[2] - 1)
        result[:, 2] = kept.reshape(len(flat), -1)[group, place]
    return result
