"""Images as batches of every n-th pixel, and back; in them, dilated windows are contiguous. Signals
as the elements that the first taps of all windows read; in them, windows of any stride are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from clew import te
from clew.ir.dims import Dim, at_least
from clew.ops.common import divides, f32
from clew.ops.registry import Sample, register_op
from clew.support.errors import GraphTypeError
from clew.te import Scalar, Tensor
from clew.te.expr import all_of, as_scalar

Array = np.ndarray[Any, Any]
_RANK = 4
_LINES, _COLUMNS = 2, 3


def _need_images(name: str, x: Tensor, block: tuple[int, ...]) -> None:
    if x.rank < _RANK:
        raise GraphTypeError("T102", f"{name}: input is {x.type}, expected images")
    if len(block) != 2 or min(block) < 1:
        raise GraphTypeError("T107", f"{name}: block is {block}")


@register_op(
    "space_to_batch",
    samples=(
        Sample(f32(1, 3, 4, 6), block=(2, 3)),
        Sample(f32(2, 3, 5, 7), block=(2, 2), padding=(1, 0, 2, 2)),
        Sample(f32(1, 2, 3, 4, 8), block=(3, 1), padding=(3, 1, 3, 1)),
        Sample(f32(3, 4, 6), block=(2, 2), error="T102"),
        Sample(f32(1, 3, 4, 6), block=(2,), error="T107"),
        Sample(f32(1, 3, 4, 6), block=(0, 2), error="T107"),
        Sample(f32(1, 3, 4, 6), block=(2, 2), padding=(1, 1), error="T107"),
    ),
)
def space_to_batch(
    x: Tensor, *, block: tuple[int, int], padding: tuple[int, ...] = (0, 0, 0, 0)
) -> Tensor:
    """Zero-pads images `x[N, C, H, W, ...]` by (top, left, bottom, right) and rearranges them as a
    batch of every `block`-th line and column, `[N * BH * BW, C, H', W', ...]`, starting with the
    phase of the first pixel. Sizes that `block` does not divide are zero-padded at the end.

    Errors: T102, T107.
    """
    name = "space_to_batch"
    _need_images(name, x, block)
    if len(padding) != 4 or min(padding) < 0:
        raise GraphTypeError("T107", f"{name}: padding is {padding}")
    top, left, bottom, right = padding
    high, wide = x.shape[_LINES], x.shape[_COLUMNS]
    lines, columns = -(-(high + top + bottom) // block[0]), -(-(wide + left + right) // block[1])
    shape = (x.shape[0] * block[0] * block[1], x.shape[1], lines, columns, *x.shape[_RANK:])

    def body(n: Scalar, c: Scalar, y: Scalar, z: Scalar, *rest: Scalar) -> Scalar:
        line = y * block[0] + n // block[1] % block[0] - top
        column = z * block[1] + n % block[1] - left
        inside = all_of(line >= 0, line < te.size(high), column >= 0, column < te.size(wide))
        pixel = x[n // (block[0] * block[1]), c, line, column, *rest]
        return te.select(inside, pixel, as_scalar(0, x.dtype))

    return te.compute(shape, body, name, layout=x.layout)


@space_to_batch.reference
def _space_to_batch_reference(
    x: Array, *, block: tuple[int, int], padding: tuple[int, ...]
) -> Array:
    top, left, bottom, right = padding
    more = [
        -(n + a + b) % s
        for n, a, b, s in zip(x.shape[2:4], (top, left), (bottom, right), block, strict=True)
    ]
    pads = [(0, 0), (0, 0), (top, bottom + more[0]), (left, right + more[1])]
    x = np.pad(x, pads + [(0, 0)] * (x.ndim - _RANK))
    n, c, high, wide, *rest = x.shape
    (bh, bw), ends = block, tuple(range(6, 6 + len(rest)))
    y = x.reshape(n, c, high // bh, bh, wide // bw, bw, *rest).transpose(0, 3, 5, 1, 2, 4, *ends)
    return np.ascontiguousarray(y).reshape(n * bh * bw, c, high // bh, wide // bw, *rest)


@register_op(
    "batch_to_space",
    samples=(
        Sample(f32(6, 3, 2, 2), block=(2, 3), size=(4, 6)),
        Sample(f32(8, 2, 3, 4), block=(2, 2), size=(5, 7)),
        Sample(f32(3, 2, 3, 4, 8), block=(3, 1), size=(7, 4)),
        Sample(f32(3, 4, 6), block=(1, 1), size=(4, 6), error="T102"),
        Sample(f32(4, 3, 4, 6), block=(2, 0), size=(8, 12), error="T107"),
        Sample(f32(5, 3, 4, 6), block=(2, 2), size=(8, 12), error="T107"),
        Sample(f32(4, 3, 4, 6), block=(2, 2), size=(9, 12), error="T107"),
        Sample(f32(4, 3, 4, 6), block=(2, 2), size=(8,), error="T107"),
    ),
)
def batch_to_space(x: Tensor, *, block: tuple[int, int], size: tuple[Dim, ...]) -> Tensor:
    """Inverse of `space_to_batch`: images of `size` (height, width) from a batch of phases.

    Errors: T102, T107.
    """
    name = "batch_to_space"
    _need_images(name, x, block)
    phases = block[0] * block[1]
    batch, lines, columns = x.shape[0], x.shape[_LINES], x.shape[_COLUMNS]
    most = lines * block[0], columns * block[1]
    fits = len(size) == 2 and all(
        not any(isinstance(n, int) and n < 0 for n in (s, m - s))
        for s, m in zip(size, most, strict=True)
    )
    if not fits or not divides(phases, batch):
        raise GraphTypeError("T107", f"{name}: {x.type} has no phases {block} of images of {size}")

    def body(n: Scalar, c: Scalar, y: Scalar, z: Scalar, *rest: Scalar) -> Scalar:
        phase = (n * block[0] + y % block[0]) * block[1] + z % block[1]
        return x[phase, c, y // block[0], z // block[1], *rest]

    shape = (batch // phases, x.shape[1], *size, *x.shape[_RANK:])
    return te.compute(shape, body, name, layout=x.layout)


@batch_to_space.reference
def _batch_to_space_reference(x: Array, *, block: tuple[int, int], size: tuple[int, ...]) -> Array:
    n, c, high, wide, *rest = x.shape
    (bh, bw), ends = block, tuple(range(6, 6 + len(rest)))
    y = x.reshape(n // (bh * bw), bh, bw, c, high, wide, *rest).transpose(0, 3, 4, 1, 5, 2, *ends)
    y = y.reshape(n // (bh * bw), c, high * bh, wide * bw, *rest)
    return np.ascontiguousarray(y[:, :, : size[0], : size[1]])


@register_op(
    "signal_phases",
    samples=(
        Sample(f32(1, 1, 1, 17), stride=5, step=1, count=5, size=4),
        Sample(f32(2, 3, 1, 20), stride=4, step=3, count=2, size=6, before=3),
        Sample(f32(1, 2, 1, 9), stride=1, step=2, count=1, size=9, before=-1),
        Sample(f32(1, 2, 1, 3), stride=7, step=1, count=3, size=1, before=1),
        Sample(f32(1, 2, 3), stride=2, step=1, count=2, size=2, error="T102"),
        Sample(f32(1, 2, 4, 3), stride=2, step=1, count=2, size=2, error="T102"),
        Sample(f32(1, 2, 1, 3), stride=0, step=1, count=2, size=2, error="T107"),
    ),
)
def signal_phases(
    x: Tensor, *, stride: int, step: int, count: int, size: Dim, before: int = 0
) -> Tensor:
    """Returns `count` phases of each channel of signals `x[N, C, 1, W]`, each of `size` elements:
    element q of phase p is `x[..., q * stride + p * step - before]`, or zero outside the signal.
    The result is `[N, C * count, 1, size]`.

    Errors: T102, T107.
    """
    name = "signal_phases"
    if x.rank != _RANK or x.shape[_LINES] != 1:
        raise GraphTypeError("T102", f"{name}: input is {x.type}, expected images of one line")
    if min(stride, step, count) < 1 or (isinstance(size, int) and size < 0):
        raise GraphTypeError("T107", f"{name}: {count} phases of {size} every {stride}, {step}")
    batch, channels, _, length = x.shape
    last = (size - 1) * stride + (count - 1) * step - before
    is_inside = before <= 0 and at_least(length - 1 - last)

    def body(n: Scalar, c: Scalar, y: Scalar, q: Scalar) -> Scalar:
        place = q * stride + c % count * step - before
        element = x[n, c // count, y, place]
        if is_inside:
            return element
        inside = all_of(place >= 0, place < te.size(length))
        return te.select(inside, element, as_scalar(0, x.dtype))

    return te.compute((batch, channels * count, 1, size), body, name)


@signal_phases.reference
def _signal_phases_reference(
    x: Array, *, stride: int, step: int, count: int, size: int, before: int
) -> Array:
    length = x.shape[_COLUMNS]
    place = np.arange(count)[:, None] * step + np.arange(size) * stride - before
    inside = (place >= 0) & (place < length)
    if not length:
        return np.zeros((len(x), x.shape[1] * count, 1, size), x.dtype)
    found = np.where(inside, x[:, :, 0, np.clip(place, 0, length - 1)], 0)
    return found.reshape(len(x), -1, 1, size).astype(x.dtype)
