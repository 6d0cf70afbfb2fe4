"""Transposed convolutions: the gradient of a convolution with respect to its input."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from clew import te
from clew.ir.dims import Dim
from clew.ir.types import from_numpy, to_numpy
from clew.ops.common import differ, divides, f16, f32, need_float, need_rank
from clew.ops.convolution.stages import check_pairs, product_dtypes
from clew.ops.convolution.windows import blocks
from clew.ops.registry import Sample, register_op
from clew.ops.traits import Traits
from clew.support.errors import GraphTypeError
from clew.te import Scalar, Tensor, roles

Array = np.ndarray[Any, Any]


def _sizes(name: str, data: Tensor, weight: Tensor, attrs: dict[str, Any]) -> list[Dim]:
    """Returns the spatial sizes of the result.

    Errors: T102, T103, T107, T110.
    """
    spatial = attrs["spatial"]
    need_rank(name, "data", data, spatial + 2)
    need_rank(name, "weight", weight, spatial + 2)
    check_pairs(name, attrs["strides"], attrs["padding"], attrs["dilation"], spatial)
    groups, channels = attrs["groups"], weight.shape[0]
    if groups < 1 or not divides(groups, channels):
        raise GraphTypeError("T107", f"{name}: {channels} input channels for {groups} groups")
    if differ(data.shape[1], channels):
        raise GraphTypeError(
            "T103", f"{name}: input has {data.shape[1]} channels, weight expects {channels}"
        )
    extra = attrs["output_padding"] or (0,) * spatial
    if len(extra) != spatial or any(s < 1 for s in (*attrs["strides"], *attrs["dilation"])):
        raise GraphTypeError(
            "T107",
            f"{name}: strides {attrs['strides']}, dilation {attrs['dilation']} and output_padding "
            f"{extra} do not fit {spatial} spatial axes",
        )
    sizes = []
    for n in range(spatial):
        reach = (weight.shape[2 + n] - 1) * attrs["dilation"][n] + 1
        full = (data.shape[2 + n] - 1) * attrs["strides"][n] + reach + extra[n]
        size = full - attrs["padding"][n] - attrs["padding"][n + spatial]
        if isinstance(size, int) and size < 1:
            raise GraphTypeError(
                "T110", f"{name}: padding {attrs['padding']} crops all of {full} elements"
            )
        sizes.append(size)
    return sizes


def _transposed(name: str, data: Tensor, weight: Tensor, attrs: dict[str, Any]) -> Tensor:
    """Returns the stages: the input dilated by the strides and zero-padded, then a convolution."""
    need_float(name, data)
    wide, dtype = product_dtypes(data.dtype, weight.dtype, name)
    sizes = _sizes(name, data, weight, attrs)
    short, spatial, groups = name.rpartition(".")[2], attrs["spatial"], attrs["groups"]
    strides, dilation = attrs["strides"], attrs["dilation"]
    kernel = weight.shape[2:]
    inner, outer = weight.shape[0] // groups, weight.shape[1]
    lead = [(kernel[n] - 1) * dilation[n] - attrs["padding"][n] for n in range(spatial)]

    def spread(*i: Scalar) -> Scalar:
        inside, place = te.as_scalar(True, "bool"), []
        for n, index in enumerate(i[2:]):
            p, last = index - te.size(lead[n]), (data.shape[2 + n] - 1) * strides[n]
            inside = inside & (p >= 0) & (p <= te.size(last))
            if strides[n] > 1:
                inside = inside & (p % strides[n]).equal(0)
            place.append(p // strides[n])
        return te.select(inside, data[(*i[:2], *place)], 0)

    reach = [(kernel[n] - 1) * dilation[n] for n in range(spatial)]
    x = te.compute(
        (*data.shape[:2], *(s + r for s, r in zip(sizes, reach, strict=True))),
        spread,
        f"{short}_spread",
    )
    letters = "dhw"[3 - spatial :]
    ic = te.reduce_axis(inner, "ic")
    taps = [te.reduce_axis(k, f"k{a}") for k, a in zip(kernel, letters, strict=True)]

    def body(*i: Scalar) -> Scalar:
        first, oc = te.as_scalar(0), i[1]
        if groups > 1:
            first, oc = i[1] // te.size(outer) * te.size(inner), i[1] % te.size(outer)
        at = [i[2 + n] + taps[n] * dilation[n] for n in range(spatial)]
        flipped = [te.size(kernel[n] - 1) - taps[n] for n in range(spatial)]
        left, right = x[(i[0], first + ic, *at)], weight[(first + ic, oc, *flipped)]
        return te.sum(te.cast(wide, left) * te.cast(wide, right), [ic, *taps])

    shape = (data.shape[0], outer * groups, *sizes)
    stage = short if wide == dtype else f"{short}_sum"
    names = ("n", "oc", *(f"o{a}" for a in letters))
    stated = roles.of_layout("NC" + letters.upper())
    result = te.compute(shape, body, stage, axes=names, roles=stated)
    if wide == dtype:
        return result
    return te.compute(shape, lambda *i: te.cast(dtype, result[i]), short)


def _reference(data: Array, weight: Array, attrs: dict[str, Any]) -> Array:
    """Returns a transposed convolution by adding each tap's product at its position of the
    result.
    """
    spatial, groups = attrs["spatial"], attrs["groups"]
    dtype = to_numpy(from_numpy(data.dtype))
    strides, dilation, pads = attrs["strides"], attrs["dilation"], attrs["padding"]
    extra = attrs["output_padding"] or (0,) * spatial
    inner, kernel, sizes = data.shape[1] // groups, weight.shape[2:], data.shape[2:]
    x = data.reshape(len(data), groups, inner, math.prod(sizes))
    w = weight.reshape(groups, inner, weight.shape[1], *kernel)
    full = [
        (size - 1) * s + (k - 1) * d + 1 + more
        for size, s, k, d, more in zip(sizes, strides, kernel, dilation, extra, strict=True)
    ]
    crop = tuple(slice(pads[n], full[n] - pads[n + spatial]) for n in range(spatial))
    cropped = [size - pads[n] - pads[n + spatial] for n, size in enumerate(full)]
    result = np.empty((len(data), groups, w.shape[2], *cropped), dtype)
    for image, into in zip(x, result, strict=True):
        for some in blocks(groups, inner * math.prod(sizes) + w.shape[2] * math.prod(full)):
            read, taken = image[some].astype("f8"), w[some].astype("f8")
            sums = np.zeros((len(read), w.shape[2], *full))
            for tap in np.ndindex(*kernel):
                window = tuple(
                    slice(t * d, t * d + max((size - 1) * s + 1, 0), s)
                    for t, d, s, size in zip(tap, dilation, strides, sizes, strict=True)
                )
                product = np.matmul(taken[(slice(None),) * 3 + tap].swapaxes(1, 2), read)
                part = sums[(slice(None), slice(None), *window)]
                part += product.reshape(*product.shape[:2], *sizes)
            into[some] = sums[(slice(None), slice(None), *crop)].astype(dtype)
    return result.reshape(len(data), groups * w.shape[2], *cropped)


def _attrs(
    spatial: int,
    strides: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> dict[str, Any]:
    return {
        "spatial": spatial, "strides": strides, "padding": padding,
        "output_padding": output_padding, "dilation": dilation, "groups": groups,
    }  # fmt: skip


@register_op(
    "nn.conv1d_transpose",
    traits=Traits(convolves_transposed="W"),
    samples=(
        Sample(f32(1, 3, 5), f32(3, 4, 3), strides=(2,), padding=(1, 0)),
        Sample(f32(1, 3, 5), f32(2, 4, 3), error="T103"),
        Sample(f32(1, 3, 5, 5), f32(3, 4, 3), error="T102"),
    ),
)
def conv1d_transpose(
    data: Tensor,
    weight: Tensor,
    *,
    strides: tuple[int, ...] = (1,),
    padding: tuple[int, ...] = (0, 0),
    output_padding: tuple[int, ...] = (),
    dilation: tuple[int, ...] = (1,),
    groups: int = 1,
) -> Tensor:
    """`nn.conv2d_transpose` over one spatial axis. Source: ONNX ConvTranspose-22."""
    attrs = _attrs(1, strides, padding, output_padding, dilation, groups)
    return _transposed("nn.conv1d_transpose", data, weight, attrs)


@conv1d_transpose.reference
def _conv1d_transpose_reference(data: Array, weight: Array, **attrs: Any) -> Array:
    return _reference(data, weight, _attrs(1, **attrs))


@register_op(
    "nn.conv2d_transpose",
    traits=Traits(convolves_transposed="HW"),
    samples=(
        Sample(f32(1, 3, 5, 4), f32(3, 4, 3, 3)),
        Sample(f32(2, 3, 5, 4), f32(3, 4, 3, 2), strides=(2, 3), padding=(1, 0, 1, 1)),
        Sample(f32(1, 4, 3, 3), f32(4, 2, 2, 2), strides=(2, 2), groups=2, output_padding=(1, 0)),
        Sample(f32(1, 2, 4, 4), f32(2, 3, 3, 3), dilation=(2, 1), padding=(3, 0, 3, 0)),
        Sample(f16(1, 2, 4, 4), f16(2, 3, 3, 3)),
        Sample(f32(1, 3, 5, 4), f32(4, 4, 3, 3), error="T103"),
        Sample(f32(1, 3, 5, 4), f32(3, 4, 3, 3), groups=2, error="T107"),
        Sample(f32(1, 3, 1, 1), f32(3, 4, 1, 1), padding=(1, 1, 1, 1), error="T110"),
    ),
)
def conv2d_transpose(
    data: Tensor,
    weight: Tensor,
    *,
    strides: tuple[int, ...] = (1, 1),
    padding: tuple[int, ...] = (0, 0, 0, 0),
    output_padding: tuple[int, ...] = (),
    dilation: tuple[int, ...] = (1, 1),
    groups: int = 1,
) -> Tensor:
    """Transposed convolution of `data[N, C, H, W]` with `weight[C, O/groups, KH, KW]`.

    `padding` (top, left, bottom, right) is cropped from the full result; `output_padding` is added
    at its end. Errors: T101, T102, T103, T105, T107, T110. Source: ONNX ConvTranspose-22.
    """
    attrs = _attrs(2, strides, padding, output_padding, dilation, groups)
    return _transposed("nn.conv2d_transpose", data, weight, attrs)


@conv2d_transpose.reference
def _conv2d_transpose_reference(data: Array, weight: Array, **attrs: Any) -> Array:
    return _reference(data, weight, _attrs(2, **attrs))


@register_op(
    "nn.conv3d_transpose",
    traits=Traits(convolves_transposed="DHW"),
    samples=(
        Sample(f32(1, 2, 3, 3, 2), f32(2, 3, 2, 1, 2), strides=(2, 1, 2)),
        Sample(f32(1, 3, 5, 4, 4), f32(4, 4, 3, 3, 3), error="T103"),
    ),
)
def conv3d_transpose(
    data: Tensor,
    weight: Tensor,
    *,
    strides: tuple[int, ...] = (1, 1, 1),
    padding: tuple[int, ...] = (0, 0, 0, 0, 0, 0),
    output_padding: tuple[int, ...] = (),
    dilation: tuple[int, ...] = (1, 1, 1),
    groups: int = 1,
) -> Tensor:
    """`nn.conv2d_transpose` over three spatial axes. Source: ONNX ConvTranspose-22."""
    attrs = _attrs(3, strides, padding, output_padding, dilation, groups)
    return _transposed("nn.conv3d_transpose", data, weight, attrs)


@conv3d_transpose.reference
def _conv3d_transpose_reference(data: Array, weight: Array, **attrs: Any) -> Array:
    return _reference(data, weight, _attrs(3, **attrs))
