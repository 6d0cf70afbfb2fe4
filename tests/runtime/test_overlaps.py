"""The walk over boxes stays inside its memory."""

from __future__ import annotations

import numpy as np
import pytest

from clew.codegen.driver import overlaps as native
from clew.runtime.guard import GuardedBuffer, GuardSide
from clew.runtime.overlaps import keep_apart, walk


@pytest.mark.parametrize("side", list(GuardSide))
@pytest.mark.parametrize("count", [0, 1, 4, 5, 8, 33])
@pytest.mark.parametrize("most", [0, 1, 4, 6, 40])
@pytest.mark.parametrize("threshold", [0.1, 1.0])
def test_guarded(side: GuardSide, count: int, most: int, threshold: float) -> None:
    rng = np.random.default_rng(count)
    corners = np.sort(rng.random((count, 2, 2)), 1).reshape(count, 4)
    order = np.concatenate([rng.permutation(count), rng.permutation(count)[: count // 2]])
    ends = np.array([count, count, len(order)])
    expected = keep_apart(corners, order, ends, most, threshold, 1)
    most = min(most, count)
    sizes = {
        "boxes": corners.nbytes, "order": order.nbytes, "ends": ends.nbytes,
        "kept": -(-most // native.LANES) * native.BLOCK_BYTES, "out": expected.nbytes,
    }  # fmt: skip
    buffers = {name: GuardedBuffer(size, align_bytes=8, side=side) for name, size in sizes.items()}
    kinds = {"boxes": "f8", "kept": "f8"}
    given = {name: b.data.view(kinds.get(name, "i8")) for name, b in buffers.items()}
    for name, array in (("boxes", corners), ("order", order), ("ends", ends)):
        given[name][:] = array.reshape(-1)
    boxes, order, ends, kept, out = given.values()
    found = walk(boxes, order, ends, most, threshold, kept, out, 1)
    np.testing.assert_array_equal(found, expected)
    for name, buffer in buffers.items():
        buffer.check(name)


def test_keeps_the_best_of_each_group() -> None:
    boxes = np.array([[0, 0, 2, 2], [0, 0, 2, 1.9], [5, 5, 6, 6.0]])
    order, ends = np.array([1, 0, 2, 0, 1]), np.array([3, 3, 5])
    np.testing.assert_array_equal(keep_apart(boxes, order, ends, 9, 0.5, 1), [0, 2, 3])
    np.testing.assert_array_equal(keep_apart(boxes, order, ends, 9, 1.0, 1), [0, 1, 2, 3, 4])
    np.testing.assert_array_equal(keep_apart(boxes, order, ends, 1, 1.0, 1), [0, 3])
