"""Windows of images in numpy, for references: a block at a time, so that what a reference holds
stays near the size of its operands and its result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"
BLOCK_ELEMS: Final = 1 << 19
"""A block has about so many elements: 4 MiB of float64."""


def blocks(count: int, elems: int) -> Iterator[slice]:
    """Yields slices of `count` things of so many elements each, a block of elements at a time."""
    step = max(BLOCK_ELEMS // max(elems, 1), 1)
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


@dataclass(frozen=True)
class Windows:
    """The windows of a convolution over `image` spatial sizes: `kernel` taps an axis, `padding` all
    befores, then all afters.
    """

    image: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many windows each axis has."""
        steps = zip(self._padded, self.kernel, self.dilation, self.strides, strict=True)
        return tuple((n - (k - 1) * d - 1) // s + 1 for n, k, d, s in steps)

    @property
    def padded_elems(self) -> int:
        """How many elements a channel has within its padding."""
        return prod(self._padded)

    @property
    def _padded(self) -> list[int]:
        axes = len(self.image)
        ends = zip(self.padding[:axes], self.padding[axes:], strict=True)
        return [n + low + high for n, (low, high) in zip(self.image, ends, strict=True)]

    def products(self, image: Array, weight: Array) -> Iterator[tuple[slice, Array]]:
        """Yields sums of products of `image[groups, I, *space]` and `weight[groups, O, I, *kernel]`
        in their dtype: a slice of the first spatial axis, and its `[groups, O, *windows]`.
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
            # A single row may be too large still.
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
        """Returns a view `[groups, I, *kernel, *windows]` of an image within its padding."""
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
    """Returns what `combine` makes of the windows along an axis, in the dtype of `start`: window w
    has the elements at w * stride + each of `taps`, of which those outside the array count nothing.
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
