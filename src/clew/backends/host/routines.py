"""Native routines that programs run instead of the references of host operators.

A routine takes the arguments of the reference, returns bitwise equal results, and raises the same
errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import numpy as np

from clew.ops import host
from clew.ops.math.selection import stable_order
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
    """As `ops.host.non_max_suppression`, with all batches and classes in one pass.

    Errors: I269, T108.
    """
    host.check_boxes(boxes, scores)
    batches, kinds, count = scores.shape
    rows, places = batches * kinds, scores.reshape(-1)
    if score_threshold is None:
        order = stable_order(-scores.reshape(rows, count), largest=False)
        firsts = np.arange(rows) * count
        order = (order + firsts[:, None]).reshape(-1)
        ends = firsts + count
    else:
        chosen = np.flatnonzero(places > score_threshold)
        order = chosen[stable_order(-places[chosen], largest=False)]
        ends = np.array([len(order)])
        if rows > 1:
            group = order // count
            ends = np.cumsum(np.bincount(group, minlength=rows))
            order = order[stable_order(group, largest=False)]
    corners = host.corners_of(boxes.astype("f8"), center)
    row = order if rows <= 1 else order // max(kinds * count, 1) * count + order % max(count, 1)
    kept = order[keep_apart(corners, row, ends, max_boxes, iou_threshold, host.OVERLAP_OPERATIONS)]
    found = np.zeros((len(kept), 3), np.int64)
    if rows > 1:
        group, kept = np.divmod(kept, max(count, 1))
        found[:, 0], found[:, 1] = np.divmod(group, max(kinds, 1))
    found[:, 2] = kept
    return found


NATIVE_ROUTINES: Final[Mapping[str, Callable[..., Any]]] = {
    "non_max_suppression": non_max_suppression,
}
"""Routines by operator name."""
