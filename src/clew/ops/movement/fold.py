"""Blocks of columns folded back into images: the inverse of im2col."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from clew import te
from clew.ir.dims import Dim
from clew.ir.expr import ArgRef, Attrs
from clew.ir.types import Type
from clew.ops.common import (
    boolean,
    differ,
    divides,
    f16,
    f32,
    held_length,
    i32,
    need_number,
    need_rank,
    tensor_type,
    unknown_tensor,
    widen,
)
from clew.ops.convolution.stages import check_pairs, window_size
from clew.ops.math.reduce import narrowed
from clew.ops.registry import Sample, register_op
from clew.support.errors import GraphTypeError
from clew.te import Scalar, Tensor

Array = np.ndarray[Any, Any]


@register_op(
    "nn.col2im",
    samples=(
        Sample(f32(1, 5, 5), image=(5, 5), block=(1, 5)),
        Sample(f32(2, 18, 6), image=(5, 7), block=(3, 3), strides=(2, 2), padding=(0, 0, 1, 0)),
        Sample(f32(1, 32, 6), image=(8, 8), block=(4, 4), strides=(2, 3)),
        Sample(f16(1, 8, 12), image=(5, 5), block=(2, 2), dilation=(2, 1)),
        Sample(i32(1, 6, 6), image=(8,), block=(3,)),
        Sample(f32(1, 10, 12), image=(3, 4, 5), block=(1, 1, 5), padding=(0, 0, 0, 0, 0, 0)),
        Sample(f32(1, 9, 4), image=(5, 5), block=(3, 3), error="T108"),
        Sample(f32(1, 8, 9), image=(5, 5), block=(3, 3), error="T103"),
        Sample(f32(9, 9), image=(5, 5), block=(3, 3), error="T102"),
        Sample(f32(1, 9, 9), image=(5, 5), block=(3,), error="T107"),
        Sample(f32(1, 9, 9), image=(5, 5), block=(3, 3), strides=(0, 1), error="T107"),
        Sample(f32(1, 9, 9), image=(2, 2), block=(3, 3), error="T110"),
        Sample(boolean(1, 9, 9), image=(5, 5), block=(3, 3), error="T105"),
    ),
)
def col2im(
    x: Tensor,
    *,
    image: tuple[int, ...],
    block: tuple[int, ...],
    strides: tuple[int, ...] = (),
    padding: tuple[int, ...] = (),
    dilation: tuple[int, ...] = (),
) -> Tensor:
    """Sums overlapping blocks into an image: `x[N, C * block, count]` to `[N, C, *image]`. The last
    spatial axis varies fastest in the order of blocks; parts of blocks in the padding are dropped.

    Errors: T102, T103, T105, T107, T108, T110. Source: ONNX Col2Im-18.
    """
    name, n = "nn.col2im", len(image)
    need_number(name, x)
    need_rank(name, "input", x, 3)
    strides, dilation = strides or (1,) * n, dilation or (1,) * n
    padding = padding or (0,) * (2 * n)
    check_pairs(name, strides, padding, dilation, n)
    if len(block) != n or n < 1 or any(b < 1 for b in block) or any(p < 0 for p in padding):
        raise GraphTypeError(
            "T107", f"{name}: blocks of {block} over an image of {image}, padded by {padding}"
        )
    taps = math.prod(block)
    if not divides(taps, x.shape[1]):
        raise GraphTypeError("T103", f"{name}: {x.shape[1]} rows do not hold blocks of {block}")
    counts = [
        window_size(name, image[d], block[d], strides[d], padding[d], padding[n + d], dilation[d])
        for d in range(n)
    ]
    if differ(x.shape[2], math.prod(counts)):
        raise GraphTypeError(
            "T108", f"{name}: {x.shape[2]} blocks, expected {math.prod(counts)} for {image}"
        )
    # Of a dense block, a position meets only the taps of its own phase, one in a stride.
    phases = [s if g == 1 else 1 for s, g in zip(strides, dilation, strict=True)]
    over = [te.reduce_axis(-(-block[d] // phases[d]), f"k{d}") for d in range(n)]

    def body(*i: Scalar) -> Scalar:
        inside, row, column = te.as_scalar(True, "bool"), i[1], te.as_scalar(0)
        for d in range(n):
            position = i[2 + d] + padding[d]
            tap: Scalar = over[d]
            if phases[d] > 1:
                tap = over[d] * phases[d] + position % phases[d]
                place = position // phases[d] - over[d]
                inside = inside & (place >= 0) & (place < te.size(counts[d]))
                if block[d] % phases[d]:
                    inside = inside & (tap < block[d])
            else:
                first = position - tap * dilation[d]
                place = first // strides[d]
                inside = inside & (first >= 0) & (place < te.size(counts[d]))
                if strides[d] > 1:
                    inside = inside & (first % strides[d]).equal(0)
            row = row * block[d] + tap
            column = column * te.size(counts[d]) + place
        return te.sum(te.select(inside, widen(x[i[0], row, column]), 0), over)

    shape: tuple[Dim, ...] = (x.shape[0], x.shape[1] // taps, *image)
    return narrowed(te.compute(shape, body, "col2im"), x.dtype, "col2im_cast")


@col2im.reference
def _col2im_reference(x: Array, *, image: Any, block: Any, **attrs: Any) -> Array:
    n = len(image)
    strides, dilation = attrs["strides"] or (1,) * n, attrs["dilation"] or (1,) * n
    pads = attrs["padding"] or (0,) * (2 * n)
    sizes = [image[d] + pads[d] + pads[n + d] for d in range(n)]
    counts = [(sizes[d] - dilation[d] * (block[d] - 1) - 1) // strides[d] + 1 for d in range(n)]
    wide = x.astype("f8" if x.dtype.kind not in "iu" else x.dtype)
    columns = wide.reshape(x.shape[0], -1, *block, *counts)
    total = np.zeros((x.shape[0], columns.shape[1], *sizes), wide.dtype)
    for tap in np.ndindex(*block):
        window = tuple(
            slice(t * g, t * g + (c - 1) * s + 1, s)
            for t, g, c, s in zip(tap, dilation, counts, strides, strict=True)
        )
        total[(slice(None),) * 2 + window] += columns[(slice(None),) * 2 + tap]
    crop = tuple(slice(pads[d], pads[d] + image[d]) for d in range(n))
    return total[(slice(None),) * 2 + crop].astype(x.dtype)


@col2im.dynamic
def _col2im_dynamic(types: Sequence[Type], attrs: Attrs) -> Type:
    held = attrs.image if not isinstance(attrs.image, ArgRef) else attrs.block
    source = tensor_type("nn.col2im", types[0])
    return unknown_tensor("nn.col2im", source, 2 + held_length("nn.col2im", types, held))
