"""Joining and cutting."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clew.exporters.onnx.registry import Writing, writes
from clew.ir.types import is_float, to_numpy
from clew.ops.movement.slicing import slice_bounds

_BEFORE_ALL = -(2**63)


@writes("split")
def split(w: Writing) -> tuple[str, ...]:
    """`Split`."""
    sizes = w.attrs.sizes
    return w.emit_many(
        "Split", *w.inputs, w.integers(*sizes), outputs=len(sizes), axis=w.attrs.axis
    )


def sliced(
    w: Writing,
    x: str,
    begin: Sequence[int],
    end: Sequence[int],
    axes: Sequence[int],
    steps: Sequence[int],
) -> str:
    """Returns a slice along axes; the value itself without axes."""
    if not axes:
        return x
    return w.emit("Slice", x, *(w.integers(*v) for v in (begin, end, axes, steps)))  # fmt: skip


@writes("slice")
def slice_(w: Writing) -> str:
    """`Slice`, with bounds counted from the front."""
    attrs, shape = w.attrs, w.shape()
    axes = [a % len(shape) for a in attrs.axes]
    steps = attrs.strides or (1,) * len(axes)
    begin, end = [], []
    for axis, low, high, step in zip(axes, attrs.begin, attrs.end, steps, strict=True):
        first, count = slice_bounds(low, high, step, shape[axis])
        assert isinstance(first, int)
        assert isinstance(count, int)
        beyond = first + count * step
        begin.append(first)
        end.append(beyond if beyond >= 0 else _BEFORE_ALL)
    found = sliced(w, w.inputs[0], begin, end, axes, steps)
    return found if axes else w.emit("Identity", found)


@writes("pad")
def pad(w: Writing) -> str:
    """`Pad` by the added elements, then `Slice` by the cropped ones."""
    (x,), attrs, rank, shape = w.inputs, w.attrs, w.types[0].rank, w.shape()
    added = [max(p, 0) for p in attrs.pads]
    if attrs.mode != "constant":
        once = [n - (attrs.mode == "reflect") for n in shape] * 2
        if attrs.mode != "edge" and any(p > n for p, n in zip(added, once, strict=True)):
            w.refuse(f"the mode {attrs.mode} repeats an axis more than once")
    padded = x
    if any(added):
        padded = _padded(w, x, added, attrs.mode, attrs.value)
    cropped = [n for n in range(rank) if min(attrs.pads[n], attrs.pads[n + rank]) < 0]
    begin = [max(-attrs.pads[n], 0) for n in cropped]
    sizes = [shape[n] + added[n] + added[n + rank] for n in range(rank)]
    end = [sizes[n] - max(-attrs.pads[n + rank], 0) for n in cropped]
    result = sliced(w, padded, begin, end, cropped, [1] * len(cropped))
    return w.emit("Identity", x) if result == x else result


def _padded(w: Writing, x: str, pads: Sequence[int], mode: str, value: float) -> str:
    fill = None
    if mode == "constant":
        dtype = w.dtype(x)
        number = value if is_float(dtype) else int(value)
        fill = w.constant(np.asarray(number).astype(to_numpy(dtype)))
    return w.emit("Pad", x, w.integers(*pads), fill, mode=mode)


@writes("center_crop_pad")
def center_crop_pad(w: Writing) -> str:
    """`Slice` of axes that shrink, `Pad` of those that grow."""
    (x,), shape, wanted = w.inputs, w.shape(), w.type.concrete
    axes = [n for n in range(len(shape)) if wanted[n] < shape[n]]
    begin = [(shape[n] - wanted[n]) // 2 for n in axes]
    end = [b + wanted[n] for b, n in zip(begin, axes, strict=True)]
    result = sliced(w, x, begin, end, axes, [1] * len(axes))
    more = [max(new - old, 0) for old, new in zip(shape, wanted, strict=True)]
    if any(more):
        pads = [*(m // 2 for m in more), *(m - m // 2 for m in more)]
        result = _padded(w, result, pads, "constant", 0.0)
    return w.emit("Identity", x) if result == x else result
