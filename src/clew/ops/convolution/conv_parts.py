"""Convolutions of split numbers (`parts.py`), whose matrix rows are the pixels of an image.

A matrix unit reads rows at one constant stride. The lines of an image are stored consecutively,
with zeros between and around them, so that a row of the unit may be any pixel, even across the end
of a line; its sum there is not a pixel of the result and is not stored. A convolution of stride s
becomes one of stride 1 on s by s images, each of every s-th pixel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from clew import te
from clew.ir.dims import Dim, at_least, ceil_div, dim_max, dim_min, numbers
from clew.ir.types import to_numpy
from clew.machine.units import TILE_ROWS
from clew.ops.common import f16, f32, need_rank
from clew.ops.convolution.stages import check_pairs, window_size
from clew.ops.math.parts import (
    TILE_DEPTH,
    check_parts,
    cut_part_of,
    cut_parts,
    part_terms,
    parts_of,
)
from clew.ops.registry import Sample, register_op
from clew.ops.traits import Traits
from clew.support.dataclass import dataclass
from clew.support.errors import GraphTypeError
from clew.te import Scalar, Tensor, roles

Array = np.ndarray[Any, Any]
PANEL = 2 * TILE_ROWS
"""The number of filters whose weights are stored together."""
_IMAGE_RANK = 5
_PARTS_RANK = 7
_BLOCK = 16
_PAIR = 2


@dataclass(frozen=True)
class _Axis:
    """An axis of a split image: its size, taps and steps, and `pixels` of the result."""

    size: Dim
    taps: int
    stride: int
    before: int
    dilation: int
    pixels: Dim

    @property
    def phases(self) -> int:
        """The number of images of every stride-th pixel."""
        most = max(tap * self.dilation % self.stride for tap in range(self.taps))
        return most + 1

    @property
    def reach(self) -> int:
        """The distance, in pixels of one such image, from the first to the farthest tap."""
        return (self.taps - 1) * self.dilation // self.stride

    @property
    def shared(self) -> Dim:
        """The length of a line; zeros at the end of a line and the start of the next are shared."""
        whole = self.pixels + self.reach
        if self.stride > 1:
            return whole
        most = dim_max(dim_max(self.before + self.size, whole - self.before), self.pixels)
        return dim_min(whole, most)


@dataclass(frozen=True)
class Places:
    """Positions of pixels in a split image: `width` from one line to the next, `rows` from the
    first to the last pixel of the result, `pixels` from the first to the last pixel that is read.

    With a `tile` above 1, the last of several lines has the whole `width`, too, and `rows` is
    rounded up to a multiple of `tile`, so that a kernel for free sizes needs no smaller tile for a
    remainder. The additional rows are not pixels of the result.
    """

    lines: _Axis
    columns: _Axis
    tile: int = 1

    @property
    def width(self) -> Dim:
        """The distance from one line to the next."""
        return self.columns.shared

    @property
    def rows(self) -> Dim:
        """The number of positions from the first to the last pixel of the result."""
        if self.tile > 1 and self.lines.pixels != 1:
            return ceil_div(self.lines.pixels * self.width, self.tile) * self.tile
        rows = (self.lines.pixels - 1) * self.width + self.columns.pixels
        return ceil_div(rows, self.tile) * self.tile

    @property
    def pixels(self) -> Dim:
        """The number of positions from the first to the last pixel that is read."""
        return self.rows + self.lines.reach * self.width + self.columns.reach


def places_of(
    name: str,
    image: tuple[Dim, Dim],
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
) -> Places:
    """Returns the positions of pixels of an image for a convolution. If the image's size is free,
    rows fill whole tiles of `TILE_ROWS`, or pairs of tiles if there may be no rows at some sizes.

    Errors: T107 for attributes without one number per axis, T110 for a window that is too large.
    """
    check_pairs(name, strides, padding, dilation, 2)
    if len(kernel) != 2 or min(kernel) < 1:
        raise GraphTypeError("T107", f"{name}: kernel is {kernel}")
    axes = []
    for n, (size, taps) in enumerate(zip(image, kernel, strict=True)):
        before, after = padding[n], padding[n + 2]
        pixels = window_size(name, size, taps, strides[n], before, after, dilation[n])
        axes.append(_Axis(size, taps, strides[n], before, dilation[n], pixels))
    lines, columns = axes
    if numbers(image):
        return Places(lines, columns)
    found = Places(lines, columns, TILE_ROWS)
    return found if at_least(found.rows, 1) else Places(lines, columns, 2 * TILE_ROWS)


def _number(dim: Dim) -> int:
    assert isinstance(dim, int)
    return dim


def _need_sizes(name: str, *tensors: Tensor) -> None:
    """Checks that all sizes are static; the positions of pixels depend on them.

    Errors: T107.
    """
    for tensor in tensors:
        if not tensor.type.is_static:
            raise GraphTypeError("T107", f"{name}: the sizes of {tensor.type} are not static")


def parts_image_shape(batch: Dim, channels: int, places: Places, parts: int) -> tuple[Dim, ...]:
    """Returns the shape of the result of `split_image`."""
    phases = places.lines.phases, places.columns.phases
    return (batch, -(-channels // TILE_DEPTH), *phases, places.pixels, parts, TILE_DEPTH)


@register_op(
    "split_image",
    samples=(
        Sample(f32(2, 4, 3, 5, 16), kernel=(1, 1)),
        Sample(f32(1, 1, 4, 5, 16), kernel=(3, 3), padding=(1, 1, 1, 1)),
        Sample(f32(1, 2, 5, 4, 16), kernel=(3, 2), strides=(2, 2), padding=(1, 0, 1, 1), parts=2),
        Sample(f32(1, 2, 6, 7, 16), kernel=(2, 3), dilation=(2, 2), padding=(0, 2, 0, 2)),
        Sample(f32(1, 2, 6, 7, 16), kernel=(3, 3), padding=(1, 1), error="T107"),
        Sample(f32(1, 2, 6, 7, 16), kernel=(3,), error="T107"),
        Sample(f32(1, 2, 2, 7, 16), kernel=(3, 3), error="T110"),
        Sample(f16(1, 2, 6, 7, 16), kernel=(3, 3), error="T101"),
        Sample(f32(2, 6, 7, 16), kernel=(3, 3), error="T102"),
        Sample(f32(1, 2, 6, 7, 16), kernel=(3, 3), parts=4, error="T107"),
    ),
)
def split_image(
    x: Tensor,
    *,
    kernel: tuple[int, ...],
    strides: tuple[int, ...] = (1, 1),
    padding: tuple[int, ...] = (0, 0, 0, 0),
    dilation: tuple[int, ...] = (1, 1),
    parts: int = 3,
) -> Tensor:
    """Splits the numbers of an image `x[N, C/16, H, W, 16]` into sums of `bf16` parts, in the order
    that `nn.conv2d_parts` reads for a convolution with that kernel. The parts hold the leading
    bits, the next bits, and so on; infinities become NaN.

    The result is `bf16[N, C/32, y phases, x phases, P, parts, 32]`: P pixels, line by line, with
    zeros between and around the lines, and the parts of a pixel side by side.

    Errors: T101, T102, T107, T110.
    """
    name = "split_image"
    if x.dtype != "f32":
        raise GraphTypeError("T101", f"{name}: input is {x.type}, expected f32")
    need_rank(name, "input", x, _IMAGE_RANK)
    _need_sizes(name, x)
    check_parts(name, parts)
    _, _, height, width, _ = x.type.concrete
    places = places_of(name, (height, width), kernel, strides, padding, dilation)
    return split_pixels(x, places, parts)


def split_pixels(x: Tensor, places: Places, parts: int) -> Tensor:
    """Returns the stages that split the pixels of an image `x[N, C/16, H, W, 16]` into parts."""
    batch, blocks, height, width, block = x.shape
    assert isinstance(blocks, int)
    assert isinstance(block, int)
    lines, columns = places.lines, places.columns
    shape = parts_image_shape(batch, blocks * block, places, parts)
    line = te.size(places.width)

    def pixel(*at: Scalar) -> Scalar:
        n, channels, line_phase, column_phase, p, k = at
        y = p // line * lines.stride + line_phase - lines.before
        z = p % line * columns.stride + column_phase - columns.before
        channel = channels * TILE_DEPTH + k
        inside = [y >= 0, y < te.size(height), z >= 0, z < te.size(width)]
        if blocks * block % TILE_DEPTH:
            inside.append(channel < blocks * block)
        value = x[n, channel // block, y, z, channel % block]
        return te.select(te.all_of(*inside), value, 0.0)

    def piece(*at: Scalar) -> Scalar:
        *place, part, k = at
        return cut_part_of(pixels[*place, k], part, parts, "bf16")

    axes = ("n", "co", "ph", "pw", "p", "part", "ci")
    pixels = te.compute(
        (*shape[:5], TILE_DEPTH), pixel, "image_pixels", axes=(*axes[:5], "ci"),
        role="conv_parts.pixels",
    )  # fmt: skip
    return te.compute(shape, piece, "split_image", axes=axes, role="conv_parts.split")


@split_image.reference
def _split_image_reference(
    x: Array,
    *,
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    parts: int,
) -> Array:
    batch, blocks, height, width, block = x.shape
    places = places_of("split_image", (height, width), kernel, strides, padding, dilation)
    shape = tuple(map(_number, parts_image_shape(batch, blocks * block, places, parts)))
    plain = x.transpose(0, 1, 4, 2, 3).reshape(batch, blocks * block, height, width)
    line = _number(places.width)
    whole = np.zeros((batch, shape[1] * TILE_DEPTH, *shape[2:5]), np.float32)
    for phase in np.ndindex(*shape[2:4]):
        at = np.arange(shape[4])
        y = at // line * strides[0] + phase[0] - padding[0]
        z = at % line * strides[1] + phase[1] - padding[1]
        inside = (y >= 0) & (y < height) & (z >= 0) & (z < width)
        whole[:, : blocks * block, phase[0], phase[1], inside] = plain[:, :, y[inside], z[inside]]
    tiles = whole.reshape(batch, shape[1], TILE_DEPTH, *shape[2:5]).transpose(0, 1, 3, 4, 5, 2)
    pieces = np.stack(cut_parts(tiles, parts), axis=5)
    return np.ascontiguousarray(pieces.astype(to_numpy("bf16")))


def packed_weight(weight: Array, parts: int) -> Array:
    """Returns `weight[O, I, KH, KW]` in the order that `nn.conv2d_parts` reads."""
    filters, inner = weight.shape[:2]
    pads = [(0, -filters % PANEL), (0, -inner % TILE_DEPTH), (0, 0)]
    filled = np.pad(weight.reshape(filters, inner, -1), pads)
    pieces = np.stack(parts_of(filled, parts))
    shape = (parts, -1, PANEL, filled.shape[1] // TILE_DEPTH, TILE_DEPTH // _PAIR, _PAIR)
    return pieces.reshape(*shape, filled.shape[2]).transpose(1, 3, 6, 0, 4, 2, 5)


def packed_shape(shape: Sequence[int], parts: int) -> tuple[int, ...]:
    """Returns the shape of `packed_weight`."""
    filters, inner, height, width = shape
    blocks = -(-filters // PANEL), -(-inner // TILE_DEPTH)
    return (*blocks, height * width, parts, TILE_DEPTH // _PAIR, PANEL, _PAIR)


@register_op(
    "nn.conv2d_parts",
    traits=Traits(reads_bits=True),  # the dtype says how numbers were split
    melts="split_image",
    samples=(
        Sample(f16(1, 1, 1, 1, 15, 3, 32), f16(2, 1, 1, 3, 16, 32, 2), image=(3, 5), channels=48,
               kernel=(1, 1), low=-0.5, high=0.5),
        Sample(f16(2, 2, 1, 1, 31, 2, 32), f16(1, 2, 9, 2, 16, 32, 2), image=(4, 4), channels=32,
               kernel=(3, 3), padding=(1, 1, 1, 1), parts=2, low=-0.25, high=0.25),
        Sample(f16(1, 1, 2, 2, 16, 3, 32), f16(1, 1, 9, 3, 16, 32, 2), image=(5, 5), channels=16,
               kernel=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1), low=-0.25, high=0.25),
        Sample(f16(1, 1, 1, 1, 15, 3, 32), f16(2, 1, 1, 3, 16, 32, 2), image=(3, 5), channels=24,
               kernel=(1, 1), error="T107"),
        Sample(f16(1, 1, 1, 1, 16, 3, 32), f16(2, 1, 1, 3, 16, 32, 2), image=(3, 5), channels=48,
               kernel=(1, 1), error="T103"),
        Sample(f16(1, 1, 1, 1, 15, 3, 32), f16(2, 1, 2, 3, 16, 32, 2), image=(3, 5), channels=48,
               kernel=(1, 1), error="T103"),
    ),
)  # fmt: skip
def conv2d_parts(
    data: Tensor,
    weight: Tensor,
    *,
    image: tuple[int, int],
    channels: int,
    kernel: tuple[int, ...],
    strides: tuple[int, ...] = (1, 1),
    padding: tuple[int, ...] = (0, 0, 0, 0),
    dilation: tuple[int, ...] = (1, 1),
    parts: int = 3,
) -> Tensor:
    """Convolution of split numbers, `f32[N, channels/16, H, W, 16]`. The data is the result of
    `split_image` for an image of (height, width) and the same kernel; the weight is
    `[O/32, I/32, taps, parts, 16, 32, 2]`: 16 pairs of input channels by 32 filters.

    Errors: T102, T103, T107, T110.
    """
    name = "nn.conv2d_parts"
    check_parts(name, parts)
    if channels < 1 or channels % _BLOCK:
        raise GraphTypeError("T107", f"{name}: {channels} channels do not fill blocks of {_BLOCK}")
    places = places_of(name, image, kernel, strides, padding, dilation)
    need_rank(name, "data", data, _PARTS_RANK)
    need_rank(name, "weight", weight, _PARTS_RANK)
    _need_sizes(name, data, weight)
    inner = data.type.concrete[1] * TILE_DEPTH
    wanted = parts_image_shape(data.type.concrete[0], inner, places, parts)
    packed = packed_shape((channels, inner, *kernel), parts)
    if (*data.shape, *weight.shape) != (*wanted, *packed):
        raise GraphTypeError("T103", f"{name}: {data.type} and {weight.type} for {image}")
    where = {"kernel": kernel, "strides": strides, "dilation": dilation}
    return sum_parts(data, weight, places, channels=channels, parts=parts, **where)


def sum_parts(
    data: Tensor,
    weight: Tensor,
    places: Places,
    *,
    channels: int,
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    dilation: tuple[int, ...],
    parts: int,
) -> Tensor:
    """Returns the stages of `nn.conv2d_parts`: the sums of products for all rows, and the image
    that is read from them.
    """
    line = te.size(places.width)
    c = te.reduce_axis(data.shape[1], "c", roles.DEPTH)
    kh = te.reduce_axis(kernel[0], "kh", roles.TAP)
    kw = te.reduce_axis(kernel[1], "kw", roles.TAP)
    k = te.reduce_axis(TILE_DEPTH, "k", roles.DEPTH)
    terms = part_terms(parts)
    over = [c, kh, kw, *([] if terms is None else [terms.axis]), k]

    def summed(n: Scalar, block: Scalar, row: Scalar, lane: Scalar) -> Scalar:
        channel, zero = block * _BLOCK + lane, te.as_scalar(0)
        left, right = (zero, zero) if terms is None else (terms.left, terms.right)
        y, x = kh * dilation[0], kw * dilation[1]
        phase = (y % strides[0], x % strides[1])
        pixel = row + y // strides[0] * line + x // strides[1]
        element = data[n, c, *phase, pixel, left, k]
        tap = kh * kernel[1] + kw
        factor = weight[channel // PANEL, c, tap, right, k // _PAIR, channel % PANEL, k % _PAIR]
        return te.sum(te.cast("f32", element) * te.cast("f32", factor), over)

    blocks = channels // _BLOCK
    sums = te.compute(
        (data.shape[0], blocks, places.rows, _BLOCK), summed, "conv2d_sums",
        axes=("n", "oco", "row", "oci"), role="conv_parts.sums",
    )  # fmt: skip
    size = (places.lines.pixels, places.columns.pixels)
    return te.compute(
        (data.shape[0], blocks, *size, _BLOCK),
        lambda n, block, y, x, lane: sums[n, block, y * line + x, lane],
        "conv2d_parts",
        layout=f"NCHW{_BLOCK}c",
        axes=("n", "oco", "oh", "ow", "oci"),
        role="conv_parts.image",
    )


@conv2d_parts.reference
def _conv2d_parts_reference(
    data: Array,
    weight: Array,
    *,
    image: tuple[int, int],
    channels: int,
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    parts: int,
) -> Array:
    places = places_of("nn.conv2d_parts", image, kernel, strides, padding, dilation)
    batch, blocks = data.shape[:2]
    panels = len(weight)
    filters = weight.astype(np.float64).transpose(3, 0, 5, 1, 4, 6, 2)
    filters = filters.reshape(parts, panels * PANEL, blocks * TILE_DEPTH, *kernel)[:, :channels]
    size = (_number(places.lines.pixels), _number(places.columns.pixels))
    width, count = _number(places.width), _number(places.rows)
    result = np.empty((batch, channels // _BLOCK, *size, _BLOCK), np.float32)
    for tiles, into in zip(data, result, strict=True):
        pixels = tiles.astype(np.float64).transpose(4, 0, 5, 1, 2, 3)
        pixels = pixels.reshape(parts, blocks * TILE_DEPTH, *pixels.shape[3:])
        whole = np.zeros((channels, size[0] * width))
        rows = whole[:, :count]
        for y, x in np.ndindex(*kernel):
            line, column = y * dilation[0], x * dilation[1]
            start = line // strides[0] * width + column // strides[1]
            seen = pixels[..., line % strides[0], column % strides[1], start : start + count]
            for left in range(parts):
                for right in range(parts - left):
                    rows += filters[right, :, :, y, x] @ seen[left]
        cut = whole.reshape(-1, _BLOCK, size[0], width)[..., : size[1]]
        into[:] = cut.transpose(0, 2, 3, 1)
    return result
