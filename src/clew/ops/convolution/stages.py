"""Stages shared by convolutions and poolings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from clew import te
from clew.ir.dims import Dim
from clew.ir.types import NARROW_FLOATS, bits, from_numpy, is_float, is_integer, to_numpy
from clew.ops.common import (
    accumulator,
    assume_at_least,
    differ,
    divides,
    text,
)
from clew.ops.convolution.windows import Windows, blocks
from clew.ops.movement.layouts import Layout, parse_layout, stored_shape, transform
from clew.ops.movement.layouts import logical_sizes as sizes_of
from clew.support.dataclass import dataclass
from clew.support.errors import GraphTypeError
from clew.te import Scalar, Tensor, roles
from clew.te.expr import ShortFactor, as_scalar

Array = np.ndarray[Any, Any]


def window_size(
    name: str, size: Dim, kernel: Dim, stride: int, before: Dim, after: Dim, dilation: int
) -> Dim:
    """Returns the number of windows that fit an axis.

    Errors: T107 for a stride or dilation below 1; T110 for a window larger than the padded axis.
    """
    if stride < 1 or dilation < 1:
        raise GraphTypeError(
            "T107", f"{name}: stride {stride} and dilation {dilation} must be at least 1"
        )
    reach = (kernel - 1) * dilation + 1
    room = size + before + after - reach
    if isinstance(room, int) and room < 0:
        raise GraphTypeError(
            "T110", f"{name}: a window of {reach} does not fit {size} padded by ({before}, {after})"
        )
    assume_at_least(room, 0)
    return room // stride + 1


def padded(
    x: Tensor, before: Sequence[Dim], after: Sequence[Dim], value: float, name: str
) -> Tensor:
    """Returns the pad stage: `x` surrounded by `value`; `x` itself if there is no padding."""
    if not any(p != 0 for p in (*before, *after)):
        return x
    shape = [b + n + a for b, n, a in zip(before, x.shape, after, strict=True)]

    def body(*i: Scalar) -> Scalar:
        inside, place = as_scalar(True, "bool"), []
        for index, low, size, high in zip(i, before, x.shape, after, strict=True):
            place.append(index - te.size(low))
            if low != 0:
                inside = inside & (index >= te.size(low))
            if high != 0:
                inside = inside & (index < te.size(low + size))
        return te.select(inside, x[tuple(place)], as_scalar(value, x.dtype))

    return te.compute(shape, body, name)


def product_dtypes(
    data: str, weight: str, name: str, out_dtype: str = "", *, narrow_weight: bool = False
) -> tuple[str, str]:
    """Returns the dtype that accumulates products, and the dtype of the result.

    Small integers give `i32`; narrow floats accumulate in `f32`, which `out_dtype` may keep.
    `narrow_weight` admits narrow floats as weights for data in `f32`.

    Errors: T101 for operands of different dtypes, unless they are small integers; T107 for an
    `out_dtype` that is neither the accumulator's nor the operands'.
    """
    small = ("i8", "u8", "i16", "u16")
    if data in small and weight in small:
        wide = dtype = "i32"
    elif narrow_weight and data == "f32" and weight in NARROW_FLOATS:
        wide = dtype = data
    elif data != weight:
        raise GraphTypeError("T101", f"{name}: data is {data}, weight is {weight}")
    else:
        wide, dtype = accumulator(data), data
    if out_dtype not in ("", wide, dtype):
        raise GraphTypeError(
            "T107", f"{name}: out_dtype is {out_dtype!r}", hint=f"use {wide} or {dtype}"
        )
    return wide, out_dtype or dtype


def product_group(dtype: str) -> int:
    """Returns the number of neighbors of a dtype that one instruction multiplies and adds: as many
    as fit 32 bits; 0 for dtypes without such an instruction.
    """
    return {"bf16": 2, "i16": 2, "u8": 4, "i8": 4}.get(dtype, 0)


def factor_of_sums(name: str, wide: str, factor: Scalar, data: str, *, pairs_fit: bool) -> Scalar:
    """Returns the second factor of products, widened; `pairs_fit` states that 16 bits hold the sum
    of any two.

    Errors: T107 if the factors have no 8 bits.
    """
    if not pairs_fit:
        return te.cast(wide, factor)
    if any(bits(dtype) != 8 or not is_integer(dtype) for dtype in (data, factor.dtype)):
        raise GraphTypeError("T107", f"{name}: pairs_fit for {data} times {factor.dtype}")
    return ShortFactor(wide, factor)


def check_pairs(
    name: str, strides: Sequence[Any], padding: Sequence[Any], dilation: Sequence[Any], spatial: int
) -> None:
    """Checks that strides, dilations and paddings fit the number of spatial axes.

    Errors: T107.
    """
    if len(strides) != spatial or len(dilation) != spatial or len(padding) != 2 * spatial:
        raise GraphTypeError(
            "T107",
            f"{name}: expected {spatial} strides and dilations and {2 * spatial} paddings, got "
            f"{tuple(strides)}, {tuple(dilation)}, {tuple(padding)}",
        )


def _logical(name: str, layout: Layout, shape: Sequence[Dim], axes: str) -> dict[str, Dim]:
    if set(layout.plain) != set(axes):
        raise GraphTypeError("T109", f"{name}: layout {layout.text} is not one of {axes}")
    return sizes_of(layout, shape)


def _element(x: Tensor, layout: Layout, place: dict[str, Scalar]) -> Scalar:
    """Returns an element by its position on the logical axes.

    If the position on a block axis (its lower-case letter) is given as well, the upper-case letter
    is the position of the block.
    """
    indices = []
    for axis in layout.axes:
        block = layout.factor(axis)
        if axis.islower():
            indices.append(place[axis] if axis in place else place[axis.upper()] % block)
        elif block == 1 or axis.lower() in place:
            indices.append(place[axis])
        else:
            indices.append(place[axis] // block)
    return x[tuple(indices)]


@dataclass(frozen=True)
class _Geometry:
    """The checked sizes and layouts of a convolution."""

    spatial: str
    data: Layout
    weight: Layout
    out: Layout
    sizes: dict[str, Dim]
    inner: Dim
    channels: Dim
    groups: int
    frames: int | None = None

    @property
    def depthwise(self) -> bool:
        return self.inner == 1 and self.groups > 1


def _geometry(
    name: str, spatial: str, data: Tensor, weight: Tensor, attrs: dict[str, Any], frames: int | None
) -> _Geometry:
    """Returns the sizes of a convolution, including those of its result.

    Errors: T103, T107, T109, T110.
    """
    layout = parse_layout(attrs["data_layout"])
    out = parse_layout(attrs["out_layout"] or attrs["data_layout"])
    filters = parse_layout(attrs["weight_layout"])
    n_spatial, groups = len(spatial), attrs["groups"]
    check_pairs(name, attrs["strides"], attrs["padding"], attrs["dilation"], n_spatial)
    stored = spatial if frames is None else spatial[1:]
    sizes = _logical(name, layout, data.shape, "NC" + stored)
    if frames is not None:
        sizes |= {"N": clips_of(name, sizes["N"], frames), spatial[0]: frames}
    kernel = _logical(name, filters, weight.shape, "OI" + spatial)
    if set(out.plain) != set(layout.plain):
        raise GraphTypeError("T109", f"{name}: layout {out.text} is not one of NC{stored}")
    inner, channels = kernel["I"], attrs["channels"] or kernel["O"]
    if groups < 1 or channels % groups != 0:
        raise GraphTypeError(
            "T107", f"{name}: {channels} output channels are not divisible by groups={groups}"
        )
    if differ(sizes["C"], inner * groups):
        raise GraphTypeError(
            "T103",
            f"{name}: input has {sizes['C']} channels, weight expects {inner * groups}",
            hint=f"data is {data.type}, weight is {weight.type}, groups={groups}",
        )
    result: dict[str, Dim] = {"N": sizes["N"], "C": channels}
    for n, axis in enumerate(spatial):
        low, high = attrs["padding"][n], attrs["padding"][n + n_spatial]
        stride, dilation = attrs["strides"][n], attrs["dilation"][n]
        result[axis] = window_size(name, sizes[axis], kernel[axis], stride, low, high, dilation)
        result["K" + axis] = kernel[axis]
    if frames is not None:
        result["N"] *= result[spatial[0]]
    return _Geometry(spatial, layout, filters, out, result, inner, channels, groups, frames)


def clips_of(name: str, images: Dim, frames: int) -> Dim:
    """Returns the number of clips of `frames` images in a batch.

    Errors: T107 if the images do not form whole clips.
    """
    if frames < 1 or not divides(frames, images):
        raise GraphTypeError("T107", f"{name}: {images} images for clips of {frames} frames")
    return images // frames


def convolve(
    name: str,
    spatial: str,
    data: Tensor,
    weight: Tensor,
    attrs: dict[str, Any],
    frames: int | None = None,
) -> Tensor:
    """Returns the stages of a convolution over any number of spatial axes. With `frames`, the
    images of the batch form clips of that many frames, and the first spatial axis is the frames of
    a clip.

    Errors: T101, T103, T107, T109, T110.
    """
    short = name.rpartition(".")[2]
    wide, dtype = product_dtypes(data.dtype, weight.dtype, name, attrs.get("out_dtype", ""))
    g = _geometry(name, spatial, data, weight, attrs, frames)
    n_spatial = len(spatial)
    pads = dict(
        zip(spatial, zip(attrs["padding"], attrs["padding"][n_spatial:], strict=False), strict=True)
    )
    before = [pads.get(a, (0, 0))[0] for a in g.data.axes]
    after = [pads.get(a, (0, 0))[1] for a in g.data.axes]
    x = padded(data, before, after, 0, f"{short}_pad")

    block = g.data.factor("C")
    split = block > 1 and not g.depthwise and g.inner % block == 0
    firsts, counts = _live_taps(name, g, attrs.get("live", ()))
    if attrs.get("live"):
        _assume_dead(g, data, firsts, counts, attrs)
    axes = [
        te.reduce_axis(n, f"k{a.lower()}", roles.TAP) for a, n in zip(spatial, counts, strict=True)
    ]
    taps = [axis + te.size(n) if n != 0 else axis for axis, n in zip(axes, firsts, strict=True)]
    if g.depthwise:
        channels = []
    elif split:
        channels = [
            te.reduce_axis(g.inner // block, "ico", roles.DEPTH),
            te.reduce_axis(block, "ici", roles.DEPTH),
        ]
    else:
        channels = [te.reduce_axis(g.inner, "ic", roles.DEPTH)]
    over = [*channels[:1], *axes, *channels[1:]]

    def body(*i: Scalar) -> Scalar:
        here = dict(zip(g.out.axes, i, strict=True))
        read = _read_place(g, here, channels)
        if g.frames is not None:  # an image of the batch is a frame of a clip
            size = g.sizes[spatial[0]]
            here |= {"N": here["N"] // te.size(size), spatial[0]: here["N"] % te.size(size)}
        for n, axis in enumerate(spatial):
            read[axis] = here[axis] * attrs["strides"][n] + taps[n] * attrs["dilation"][n]
        filters = {**_filter_place(g, here, channels), **dict(zip(spatial, taps, strict=True))}
        inside = te.as_scalar(True, "bool")
        if g.frames is not None:
            low, high = pads[spatial[0]]
            frame = read[spatial[0]] - low
            inside = te.all_of(
                *([frame >= 0] if low else []), *([frame < g.frames] if high else [])
            )
            read["N"] = here["N"] * g.frames + frame
        left, right = _element(x, g.data, read), _element(weight, g.weight, filters)
        left = te.select(inside, left, as_scalar(0, x.dtype))
        right = factor_of_sums(name, wide, right, x.dtype, pairs_fit=attrs.get("pairs_fit", False))
        return te.sum(te.cast(wide, left) * right, over)

    layout = g.out.text if g.out.factors else ""
    shape = stored_shape(g.out, g.sizes)
    stage = short if wide == dtype else f"{short}_sum"
    stated = roles.of_layout(g.out.text)
    result = te.compute(shape, body, stage, layout=layout, axes=_axis_names(g.out), roles=stated)
    if wide == dtype:
        return result
    return te.compute(shape, lambda *i: te.cast(dtype, result[i]), short, layout=layout)


def _live_taps(name: str, g: _Geometry, live: Sequence[Dim]) -> tuple[Sequence[Dim], Sequence[Dim]]:
    """Returns the first of the taps to sum along each spatial axis, and their number.

    Errors: T107 for taps outside the window.
    """
    count = len(g.spatial)
    sizes = [g.sizes["K" + axis] for axis in g.spatial]
    if not live:
        return [0] * count, sizes
    firsts, counts = live[:count], live[count:]
    room = [n - first - taps for first, taps, n in zip(firsts, counts, sizes, strict=False)]
    if len(live) != 2 * count or any(
        isinstance(n, int) and n < 0 for n in (*firsts, *counts, *room)
    ):
        raise GraphTypeError(
            "T107", f"{name}: live taps {text(live)} are not inside a window of {text(sizes)}"
        )
    return firsts, counts


def _assume_dead(
    g: _Geometry, data: Tensor, firsts: Sequence[Dim], counts: Sequence[Dim], attrs: dict[str, Any]
) -> None:
    """Records the assumption that omitted taps read only padding, where this depends on sizes."""
    sizes = sizes_of(g.data, data.shape)
    for n, axis in enumerate(g.spatial):
        first, end, before = firsts[n], firsts[n] + counts[n], attrs["padding"][n]
        stride, dilation = attrs["strides"][n], attrs["dilation"][n]
        last = (g.sizes[axis] - 1) * stride + (first - 1) * dilation  # read by a tap before `first`
        if isinstance(first, int) and first > 0:
            assume_at_least(before - 1, last)
        if isinstance(end, int) and end != g.sizes["K" + axis]:
            assume_at_least(end * dilation - before, sizes[axis])


def _axis_names(out: Layout) -> list[str]:
    """Returns the names of the axes: n, oc, oh, ow; a blocked channel is oco and oci."""
    names = {"N": "n", "C": "oco" if "c" in out.axes else "oc", "c": "oci"}
    return [names.get(axis, f"o{axis.lower()}") for axis in out.axes]


def _out_channel(g: _Geometry, here: dict[str, Scalar]) -> Scalar:
    return here["C"] * g.out.factor("C") + here["c"] if "c" in here else here["C"]


def _group(g: _Geometry, here: dict[str, Scalar]) -> Scalar:
    """Returns the group of an output channel; that of its block, if a plain image is read for
    blocks of which none is in two groups.
    """
    if g.groups == 1:
        return te.as_scalar(0)
    members, block = g.channels // g.groups, g.out.factor("C")
    if "c" in here and g.data.factor("C") == 1 and isinstance(members, int) and not members % block:
        return here["C"] // te.size(members // block)
    return _out_channel(g, here) // te.size(members)


def _read_place(
    g: _Geometry, here: dict[str, Scalar], channels: Sequence[Scalar]
) -> dict[str, Scalar]:
    """Returns the batch and channel position at which the data is read."""
    place = {"N": here["N"]}
    if g.depthwise and g.channels == g.groups and g.out.factor("C") == g.data.factor("C"):
        return {**place, **{k: here[k] for k in ("C", "c") if k in here}}
    group = _group(g, here)
    if g.depthwise:
        return {**place, "C": group}
    if len(channels) == 2:
        blocks = te.size(g.inner // g.data.factor("C"))
        return {**place, "C": group * blocks + channels[0], "c": channels[1]}
    return {**place, "C": group * te.size(g.inner) + channels[0]}


def _filter_place(
    g: _Geometry, here: dict[str, Scalar], channels: Sequence[Scalar]
) -> dict[str, Scalar]:
    """Returns the output and input channel at which the weight is read."""
    place: dict[str, Scalar] = {"O": _out_channel(g, here)}
    if "c" in here and g.weight.factor("O") == g.out.factor("C"):
        place = {"O": here["C"], "o": here["c"]}
    block = g.weight.factor("I")
    if g.depthwise:
        return {**place, "I": te.as_scalar(0)}
    if len(channels) == 2:
        if block == g.data.factor("C"):
            return {**place, "I": channels[0], "i": channels[1]}
        return {**place, "I": channels[0] * g.data.factor("C") + channels[1]}
    if block > 1 and block == g.inner:
        return {**place, "I": te.as_scalar(0), "i": channels[0]}
    return {**place, "I": channels[0]}


def convolved(spatial: str, data: Array, weight: Array, attrs: dict[str, Any]) -> Array:
    """Returns a convolution as matrix products of weights and window elements, accumulated in
    float64 or integers, one image at a time, in blocks of groups.
    """
    plain, groups = "NC" + spatial, attrs["groups"]
    wide, dtype = product_dtypes(
        from_numpy(data.dtype), from_numpy(weight.dtype), "nn.conv", attrs.get("out_dtype", "")
    )
    small = data.dtype.itemsize <= 2  # float64 holds sums of their products exactly
    exact = np.float64 if is_float(wide) or small else to_numpy(wide)
    x: Array = transform(data, attrs["data_layout"], plain)
    w: Array = transform(weight, attrs["weight_layout"], "OI" + spatial)
    w = w[: attrs["channels"] or None]
    inner, members = w.shape[1], len(w) // groups
    w = w.reshape(groups, members, *w.shape[1:])
    windows = Windows(
        x.shape[2:], w.shape[3:], attrs["strides"], attrs["padding"], attrs["dilation"]
    )
    result = np.empty((len(x), groups, members, *windows.sizes), to_numpy(dtype))
    x = x.reshape(len(x), groups, inner, *x.shape[2:])
    for image, sums in zip(x, result, strict=True):
        for some in blocks(groups, inner * windows.padded_elems):
            pieces = windows.products(image[some].astype(exact), w[some].astype(exact))
            for rows, piece in pieces:
                whole = piece if is_float(wide) else piece.astype(np.int64)
                sums[some, :, rows] = whole.astype(result.dtype)
    flat = result.reshape(len(x), -1, *windows.sizes)
    return transform(flat, plain, attrs["out_layout"] or attrs["data_layout"])
