"""Deformable convolutions: convolutions whose taps are displaced by a tensor of offsets."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from clew import te
from clew.ir.dims import Dim, product
from clew.ops.common import accumulator, differ, f16, f32, need_float, same_dtype
from clew.ops.convolution.stages import check_pairs, window_size
from clew.ops.images.sample import element_or_zero, interpolated, limited, linear_taps
from clew.ops.registry import Sample, register_op
from clew.support.errors import GraphTypeError
from clew.te import Scalar, Tensor

Array = np.ndarray[Any, Any]


@register_op(
    "nn.deform_columns",
    samples=(
        Sample(f32(1, 2, 4, 4), f32(1, 8, 3, 3), kernel=(2, 2)),
        Sample(f32(2, 4, 5, 6), f32(2, 12, 3, 5), f32(2, 6, 3, 5), kernel=(1, 3), strides=(2, 1),
               padding=(0, 1, 1, 0), dilation=(1, 1), offset_groups=2),
        Sample(f16(1, 2, 4, 4), f16(1, 8, 3, 3), kernel=(2, 2)),
        Sample(f32(1, 2, 7), f32(1, 3, 5), kernel=(3,)),
        Sample(f32(1, 1, 3, 3, 3), f32(1, 24, 2, 2, 2), kernel=(2, 2, 2)),
        Sample(f32(1, 2, 4, 4), f32(1, 4, 3, 3), kernel=(2, 2), error="T108"),
        Sample(f32(1, 2, 4, 4), f32(1, 8, 3, 3), f32(1, 5, 3, 3), kernel=(2, 2), error="T108"),
        Sample(f32(1, 3, 4, 4), f32(1, 16, 3, 3), kernel=(2, 2), offset_groups=2, error="T107"),
        Sample(f32(1, 2, 4, 4), f16(1, 8, 3, 3), kernel=(2, 2), error="T101"),
        Sample(f32(1, 2, 1, 4), f32(1, 8, 1, 3), kernel=(2, 2), error="T110"),
        Sample(f32(1, 2), f32(1, 8), kernel=(2, 2), error="T107"),
    ),
)  # fmt: skip
def deform_columns(
    x: Tensor,
    offset: Tensor,
    mask: Tensor | None = None,
    *,
    kernel: tuple[int, ...],
    strides: tuple[int, ...] = (),
    padding: tuple[int, ...] = (),
    dilation: tuple[int, ...] = (),
    offset_groups: int = 1,
) -> Tensor:
    """The columns of a deformable convolution: `x[N, C, *space]` to `[N, C, taps, *windows]`,
    linearly interpolated at each tap's position plus its offset, times its `mask`.

    `offset[N, offset_groups * taps * axes, *windows]` holds a tap's offsets along the axes next to
    each other, `mask[N, offset_groups * taps, *windows]` its factor. Elements beyond the edge are
    0.

    Errors: T101, T105, T107, T108, T110. Source: ONNX DeformConv-22.
    """
    name, n = "nn.deform_columns", len(kernel)
    need_float(name, x)
    same_dtype(name, x, offset, *([] if mask is None else [mask]))
    strides, dilation = strides or (1,) * n, dilation or (1,) * n
    padding = padding or (0,) * (2 * n)
    check_pairs(name, strides, padding, dilation, n)
    channels = x.shape[1] if x.rank > 1 else 0
    whole = isinstance(channels, int) and offset_groups > 0 and channels % offset_groups == 0
    if x.rank != n + 2 or n < 1 or any(k < 1 for k in kernel) or not whole:
        raise GraphTypeError(
            "T107", f"{name}: kernel {kernel} and {offset_groups} groups of offsets for {x.type}"
        )
    windows: list[Dim] = [
        window_size(
            name, x.shape[2 + d], kernel[d], strides[d], padding[d], padding[n + d], dilation[d]
        )
        for d in range(n)
    ]
    taps = math.prod(kernel)
    for part, rows in ((offset, offset_groups * taps * n), (mask, offset_groups * taps)):
        wanted = (x.shape[0], rows, *windows)
        if part is not None and (part.rank != n + 2 or any(map(differ, part.shape, wanted))):
            raise GraphTypeError("T108", f"{name}: {part.type} for {x.type}, expected {wanted}")
    wide, members = accumulator(x.dtype), channels // offset_groups

    def body(*i: Scalar) -> Scalar:
        batch, channel, tap, here = i[0], i[1], i[2], i[3:]
        group = te.as_scalar(0) if offset_groups == 1 else channel // te.size(members)
        row = group * taps + tap
        places, rest = [], tap
        for d in range(n):
            inner = math.prod(kernel[d + 1 :])
            k, rest = rest // inner, rest % inner
            start = here[d] * strides[d] + k * dilation[d] - te.size(padding[d])
            shift = te.cast(wide, offset[(batch, row * n + d, *here)])
            places.append(limited(te.cast(wide, start) + shift, x.shape[2 + d]))
        value = interpolated(
            places, linear_taps, lambda at: element_or_zero(x, (batch, channel), at, wide)
        )
        if mask is not None:
            value = value * te.cast(wide, mask[(batch, row, *here)])
        return te.cast(x.dtype, value)

    shape = (x.shape[0], channels, product((taps,)), *windows)
    return te.compute(shape, body, "deform_columns")
