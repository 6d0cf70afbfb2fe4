"""Windows of images in NumPy, for references. They are processed in blocks, so that memory use
stays near the size of operands and result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, Final, TypeAlias

import numpy as np

from clew.support.dataclass import dataclass

Array: TypeAlias = "np.ndarray[Any, Any]"
BLOCK_ELEMS: Final = 1 << 19
"""Approximate number of elements in a block: 4 MiB of float64."""


def blocks(count: int, elems: int) -> Iterator[slice]:
    """Yields slices of `count` items of `elems` elements each, about one block per slice."""
    step = max(BLOCK_ELEMS // max(elems, 1), 1)
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


@dataclass(frozen=True)
class Windows:
    """The windows of a convolution over `image` spatial sizes. `kernel` is the taps per axis;
    `padding` lists all leading paddings, then all trailing ones.
    """

    image: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of windows along each axis."""
        steps = zip(self._padded, self.kernel, self.dilation, self.strides, strict=True)
        return tuple((n - (k - 1) * d - 1) // s + 1 for n, k, d, s in steps)

    @property
    def padded_elems(self) -> int:
        """The number of elements of a padded channel."""
        return prod(self._padded)

    @property
    def _padded(self) -> list[int]:
        axes = len(self.image)
        ends = zip(self.padding[:axes], self.padding[axes:], strict=True)
        return [n + low + high for n, (low, high) in zip(self.image, ends, strict=True)]

    def products(self, image: Array, weight: Array) -> Iterator[tuple[slice, Array]]:
        """Yields sums of products of `image[groups, I, *space]` and `weight[groups, O, I, *kernel]`
        in their dtype: a slice of the first spatial axis, and the `[groups, O, *windows]` for it.
        """
        groups, outer, inner = weight.shape[:3]
        rest, taps = self.sizes[1:], prod(self.kernel)
        flat = weight.reshape(groups, outer, inner * taps)
        if not flat.size:
            shape = (groups, outer, *self.sizes)
            yield slice(0, self.sizes[0]), np.zeros(shape, np.result_type(image, weight))
            return
        seen = self._seen(image)
        for rows in blocks(self.sizes[0], groups * (inner * taps + outer) * prod(rest)):
            shape = (groups, outer, rows.stop - rows.start, *rest)
            total: Array | None = None
            # A single row may still be too large.
            elems = groups * taps * prod(shape[2:])
            for some in blocks(inner, elems):
                columns = seen[(slice(None), some, *(slice(None),) * len(self.kernel), rows)]
                columns = columns.reshape(groups, -1, prod(shape[2:]))
                factors = flat[:, :, some.start * taps : some.stop * taps]
                product = np.matmul(factors, columns)
                total = product if total is None else total + product
            assert total is not None
            yield rows, total.reshape(shape)

    def _seen(self, image: Array) -> Array:
        """Returns a view `[groups, I, *kernel, *windows]` of a padded image."""
        axes = len(self.image)
        ends = zip(self.padding[:axes], self.padding[axes:], strict=True)
        whole = np.pad(image, [(0, 0), (0, 0), *ends])
        lead, space = whole.strides[:2], whole.strides[2:]
        taps = (step * d for step, d in zip(space, self.dilation, strict=True))
        moves = (step * s for step, s in zip(space, self.strides, strict=True))
        shape = (*image.shape[:2], *self.kernel, *self.sizes)
        return np.lib.stride_tricks.as_strided(
            whole, shape, (*lead, *taps, *moves), writeable=False
        )


def combined(
    x: Array, axis: int, count: int, taps: range, stride: int, combine: np.ufunc, start: Any
) -> Array:
    """Returns the reductions of the windows along an axis by `combine`, in the dtype of `start`.
    Window w has the elements at w * stride + each of `taps`; elements outside the array are
    ignored.
    """
    shape = list(x.shape)
    shape[axis] = count
    result = np.full(shape, start)
    for tap in taps:
        first = max(-(tap // stride), 0)
        last = min((x.shape[axis] - 1 - tap) // stride + 1, count)
        if first < last:
            low = first * stride + tap
            here = (slice(None),) * axis
            into = result[(*here, slice(first, last))]
            read = x[(*here, slice(low, low + (last - first - 1) * stride + 1, stride))]
            combine(into, read, out=into, casting="unsafe")
    return result
