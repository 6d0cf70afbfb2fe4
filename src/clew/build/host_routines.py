"""Native routines of host operators: what a program runs instead of an operator's reference.

A routine is given what the reference is given, and returns the same, bit by bit. Where there is
nothing native to gain, or the arguments are wrong, it calls the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import numpy as np

from clew.ops import host
from clew.ops.selection import stable_order
from clew.runtime.overlaps import keep_apart

Array: TypeAlias = "np.ndarray[Any, Any]"


def non_max_suppression(
    boxes: Array,
    scores: Array,
    *,
    max_boxes: int,
    iou_threshold: float = 0.0,
    score_threshold: float | None = None,
    center: bool = False,
) -> Any:
    """As `ops.host.non_max_suppression`, all batches and classes in one walk.

    Errors: I269.
    """
    batches, kinds, count = scores.shape
    if boxes.shape != (batches, count, 4):
        reference = host.non_max_suppression.reference_rule
        assert reference is not None
        return reference(
            boxes,
            scores,
            max_boxes=max_boxes,
            iou_threshold=iou_threshold,
            score_threshold=score_threshold,
            center=center,
        )
    rows = scores.reshape(batches * kinds, count)
    firsts = np.arange(len(rows)) * count
    if score_threshold is None:
        order = (stable_order(-rows, largest=False) + firsts[:, None]).reshape(-1)
        ends = firsts + count
    else:
        chosen = np.flatnonzero(rows > score_threshold)
        best_first = stable_order(-rows.reshape(-1)[chosen], largest=False)
        group = (chosen // max(count, 1))[best_first]
        ends = np.cumsum(np.bincount(group, minlength=len(rows)))
        order = chosen[best_first]
        if len(rows) > 1:
            order = order[stable_order(group, largest=False)]
    group, box = np.divmod(order, max(count, 1))
    corners = np.ascontiguousarray(host.corners_of(boxes.astype("f8"), center)).reshape(-1, 4)
    batch = group // max(kinds, 1)
    kept = keep_apart(
        corners, batch * count + box, ends, max_boxes, iou_threshold, host.OVERLAP_OPERATIONS
    )
    return np.stack([batch[kept], group[kept] % max(kinds, 1), box[kept]], -1)


NATIVE_ROUTINES: Final[Mapping[str, Callable[..., Any]]] = {
    "non_max_suppression": non_max_suppression,
}
"""By the operator's name."""
