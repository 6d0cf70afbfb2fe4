"""Convolution by Winograd's minimal filtering: fewer products, between transforms of image tiles.

F(m x m, 3x3) computes m x m pixels from a patch of n = m + 2 a side by n x n products instead of 9
m². Both transforms consist of two one-dimensional ones. A symmetric pair of points, a and -a,
shares an even and an odd sum, so each transform is stored as `parts` (those sums) and `rows` (their
combinations).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Final

import numpy as np

from clew import te
from clew.ir.dims import Dim
from clew.ir.types import from_numpy, is_integer, to_numpy
from clew.ops.common import accumulator, bf16, differ, f16, f32, i8, i16, need_rank, same_dtype
from clew.ops.convolution.stages import clips_of, product_group, window_size
from clew.ops.convolution.windows import blocks
from clew.ops.registry import Sample, register_op
from clew.support.arrays import aligned_empty
from clew.support.dataclass import dataclass
from clew.support.errors import GraphTypeError
from clew.te import Scalar, Tensor, roles
from clew.te.expr import all_of, as_scalar, binary

Array = np.ndarray[Any, Any]

_KERNEL = 3
_FILTERS_AT_ONCE = 512
# The finite points besides 0, which tiles of odd sides lack; each is a pair a and -a. With these,
# errors are smallest: for tile 4, a quarter of the error with 1 and 2. They have few bits, so that
# f32 holds the transforms of images exactly: rounded ones would shift all pixels of a channel
# alike, which a mean over the image does not average out.
_POINTS: Final = {2: (1.0,), 3: (0.390625, 1.25), 4: (0.6875, 1.5)}
# Of integers: the points, and the factors of a filter's transform that make it whole: of all rows,
# and of the last one, which is whole anyway. With a smaller factor its products fit 16 bits; the
# last number is the rest of the factor, applied to the sums.
_WHOLE: Final = {2: ((1.0,), 2, 2, 1), 4: ((1.0, 2.0), 24, 12, 2)}
_PAIRED: Final = "i16"
_SUM: Final = "i32"
SUM_BITS: Final = 32
"""Bits of the sums of products of integers."""


@dataclass(frozen=True)
class Transforms:
    """The matrices of F(m, 3) over n = m + 2 points: 0 if n is even, pairs a and -a, infinity.

    `data_rows @ data_parts`, f64[n, n], transforms a patch; `weight`, f64[n, 3], transforms a
    filter; `out_rows @ out_parts`, f64[m, n], transforms products back, to `scale` times the
    result.
    """

    data_parts: Array
    data_rows: Array
    weight: Array
    out_parts: Array
    out_rows: Array
    scale: int = 1

    @property
    def growth(self) -> int:
        """How many times as large as the largest magnitude of an image its transform may be."""
        return int(np.abs(self.data_rows @ self.data_parts).sum(axis=1).max()) ** 2

    @property
    def shift(self) -> int:
        """The number of times that 2 divides the scale."""
        return (self.scale & -self.scale).bit_length() - 1

    @property
    def inverse(self) -> int:
        """The `i32` that gives, times the odd part of the scale, 1 in 32 bits."""
        found = pow(self.scale >> self.shift, -1, 1 << SUM_BITS)
        return found - (found >> (SUM_BITS - 1) << SUM_BITS)


@cache
def transforms(tile: int, dtype: str = "f32") -> Transforms:
    """Returns the matrices for m = `tile`, of integers for an integer `dtype`. Source: Toom-Cook;
    Lavin and Gray, 2015.
    """
    if not is_integer(dtype):
        return _transforms(tile, _POINTS[tile])
    pairs, step, last, after = _WHOLE[tile]
    found = _transforms(tile, pairs)
    weight = np.rint(found.weight * step)
    weight[-1] = found.weight[-1] * last
    out_parts = found.out_parts.copy()
    out_parts[-1] *= after
    return replace(found, weight=weight, out_parts=out_parts, scale=step * step)


def _transforms(tile: int, pairs: Sequence[float]) -> Transforms:
    """Returns the matrices for these points and their negatives."""
    squares = [a * a for a in pairs]
    n = tile + _KERNEL - 1
    zero = 1 - n % 2
    points = [*[0.0] * zero, *(s * a for a in pairs for s in (1, -1))]
    data_parts, data_rows = np.zeros((n, n)), np.zeros((n, n))
    weight = np.zeros((n, _KERNEL))
    out_parts, out_rows = np.zeros((n, n)), np.zeros((tile, n))

    def spread(polynomial: Array, shift: int) -> Array:
        """Returns the coefficients of x**shift * p(x²), lowest first."""
        row = np.zeros(n)
        row[shift : shift + 2 * len(polynomial) : 2] = polynomial
        return row

    def product(roots: Sequence[float]) -> Array:
        """Returns the coefficients of the product of (y - a²), lowest first."""
        result = np.ones(1)
        for square in roots:
            result = np.convolve(result, [-square, 1.0])
        return result

    for end in (*[0] * zero, -1):
        data_parts[end] = spread(product(squares), zero if end else 0)
        data_rows[end, end] = out_parts[end, end] = out_rows[end, end] = 1
    for k, a in enumerate(pairs):
        even, odd = 2 * k + zero, 2 * k + 1 + zero  # also the rows of a and -a
        others = product([s for s in squares if s != squares[k]])
        data_parts[even], data_parts[odd] = spread(others, 1 + zero), spread(others, zero)
        data_rows[even, [even, odd]] = 1, a
        data_rows[odd, [even, odd]] = 1, -a
        out_parts[even, [even, odd]] = 1, 1
        out_parts[odd, [even, odd]] = 1, -1
        for i in range(tile):
            out_rows[i, odd if i % 2 else even] = squares[k] ** (i // 2) * a ** (i % 2)
    for j, a in enumerate(points):
        scale = np.prod([a - b for b in points if b != a])
        weight[j] = [a**i / scale for i in range(_KERNEL)]
    weight[-1, -1] = 1
    return Transforms(data_parts, data_rows, weight, out_parts, out_rows)


def tiles_of(dtype: str) -> tuple[int, ...]:
    """Returns the sizes of tiles for a dtype. Those of integers need whole points."""
    return tuple(_WHOLE if is_integer(dtype) else _POINTS)


def _need_tile(name: str, tile: int, dtype: str) -> None:
    if is_integer(dtype) and dtype != _PAIRED:
        raise GraphTypeError("T101", f"{name}: integers are {_PAIRED}, not {dtype}")
    if tile not in tiles_of(dtype):
        *some, last = tiles_of(dtype)
        among = f"{', '.join(map(str, some))} and {last}"
        raise GraphTypeError("T107", f"{name}: tile {tile} of {dtype} is not one of {among}")


# --- the weight -----------------------------------------------------------------------------------


@register_op(
    "nn.winograd_weight",
    samples=(
        Sample(f32(8, 4, 3, 3), tile=4, block=4),
        Sample(f32(4, 3, 3, 3), tile=2, block=2),
        Sample(i16(4, 6, 3, 3), tile=2, block=4, low=-128, high=128),
        Sample(i16(8, 2, 3, 3), tile=4, block=4, low=-128, high=128),
        Sample(i16(8, 3, 3, 3), tile=4, block=4, error="T107"),
        Sample(i8(8, 4, 3, 3), tile=4, block=4, error="T101"),
        Sample(f32(8, 4, 3, 3), tile=3, block=4),
        Sample(f32(8, 4, 3, 3), tile=5, block=4, error="T107"),
        Sample(i16(8, 4, 3, 3), tile=3, block=4, error="T107"),
        Sample(f32(8, 4, 3, 3), tile=4, block=3, error="T107"),
        Sample(f32(8, 4, 3, 1), tile=4, block=4, error="T110"),
        Sample(f32(8, 4, 3), tile=4, block=4, error="T102"),
    ),
)
def winograd_weight(weight: Tensor, *, tile: int, block: int) -> Tensor:
    """Transforms `weight[O, I, 3, 3]` into the order that `nn.conv2d_winograd` reads: all panels of
    `block` output channels for one of n * n points, with n = tile + 2, as
    `f32[n * n * O / block, I, block]`.

    A transform of `i16` is of integers, 2 or 24 times as large along each axis (12 times in its
    last row). Inputs lie in pairs, as dot products require: `i16[n * n * O / block, I / 2, block,
    2]`. It is exact if weights are of 8 bits.

    Errors: T101 for other integers, T102, T107 for a tile or block that does not fit, T110 for a
    window other than 3x3.
    Source: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2015.
    """
    _need_tile("nn.winograd_weight", tile, weight.dtype)
    need_rank("nn.winograd_weight", "weight", weight, 4)
    out, inner, *window = weight.shape
    if window != [_KERNEL, _KERNEL]:
        raise GraphTypeError("T110", f"nn.winograd_weight: the window of {weight.type} is not 3x3")
    if block < 1 or out % block != 0:
        raise GraphTypeError("T107", f"nn.winograd_weight: blocks of {block} for {weight.type}")
    group = product_group(weight.dtype) if is_integer(weight.dtype) else 0
    if group and inner % group != 0:
        raise GraphTypeError("T107", f"nn.winograd_weight: groups of {group} for {weight.type}")
    matrix = transforms(tile, weight.dtype).weight
    n, panels = len(matrix), out // block

    def element(p: Scalar, c: Scalar, b: Scalar) -> Scalar:
        o, point = p % te.size(panels), p // te.size(panels)
        i, j = point // n, point % n

        def column(y: int) -> Scalar:
            filters = [weight[o * block + b, c, y, x] for x in range(_KERNEL)]
            return _case(j, [_sum(row, filters) for row in matrix])

        columns = [column(y) for y in range(_KERNEL)]
        return _case(i, [_sum(row, columns) for row in matrix])

    if group:
        return te.compute(
            (n * n * panels, inner // group, block, group),
            lambda p, c, b, e: element(p, c * group + e, b),
            "winograd_weight",
        )
    return te.compute((n * n * panels, inner, block), element, "winograd_weight")


@winograd_weight.reference
def _winograd_weight_reference(weight: Array, *, tile: int, block: int) -> Array:
    out, inner = weight.shape[:2]
    dtype = from_numpy(weight.dtype)
    matrix = transforms(tile, dtype).weight
    both = np.einsum("ia,jb->ijab", matrix, matrix).reshape(len(matrix) ** 2, -1)
    # Multiplies both transforms, in f64, with a few filters at a time, side by side in storage
    # order. The filters stay in cache, and the product is too small for the BLAS to distribute over
    # threads, which would wait for each other on a busy machine.
    result = aligned_empty((len(both), out // block, inner, block), weight.dtype)
    filters = weight.reshape(out // block, block, inner, -1).transpose(0, 3, 2, 1)
    few = max(1, _FILTERS_AT_ONCE // block)
    for panel, taps in enumerate(filters):
        flat = np.ascontiguousarray(taps)
        for start in range(0, inner, few):
            part = result[:, panel, start : start + few]
            columns = flat[:, start : start + few].reshape(len(flat), -1)
            if is_integer(dtype):
                found = both @ columns.astype(np.float64)
                part.reshape(len(both), -1)[:] = found.astype(np.int64).astype(weight.dtype)
            else:
                part.reshape(len(both), -1)[:] = both @ columns.astype(np.float64)
    if is_integer(dtype):
        pairs = result.reshape(-1, inner // 2, 2, block)
        return np.ascontiguousarray(pairs.swapaxes(2, 3))
    return result.reshape(-1, inner, block)


# --- the convolution ------------------------------------------------------------------------------


@register_op(
    "nn.conv2d_winograd",
    samples=(
        Sample(f32(1, 2, 7, 7, 4), f32(36, 8, 4), tile=4, padding=(1, 1, 1, 1),
               low=-0.5, high=0.5),
        Sample(f32(2, 1, 5, 9, 4), f32(16, 4, 8), tile=2, padding=(0, 1, 1, 0)),
        Sample(f32(1, 2, 8, 7, 4), f32(25, 8, 4), tile=3, padding=(1, 1, 1, 1),
               low=-0.5, high=0.5),
        Sample(f32(1, 2, 8, 8, 16), f32(36, 32, 32), tile=4, low=-0.25, high=0.25),
        Sample(f32(1, 2, 6, 11, 16), f32(48, 32, 16), tile=2, padding=(1, 1, 1, 1),
               low=-0.5, high=0.5),
        Sample(f32(4, 1, 5, 6, 4), f32(36, 12, 4), tile=4, padding=(1, 1, 1, 1), frames=4,
               depth=3, depth_padding=(1, 1), low=-0.5, high=0.5),
        Sample(f32(6, 2, 5, 4, 4), f32(16, 16, 8), tile=2, frames=3, depth=2, depth_stride=2,
               depth_dilation=2, depth_padding=(1, 2), low=-0.5, high=0.5),
        Sample(bf16(1, 2, 7, 7, 4), f32(36, 8, 4), tile=4, padding=(1, 1, 1, 1),
               low=-0.5, high=0.5),
        Sample(i16(1, 2, 7, 7, 4), i16(36, 4, 4, 2), tile=4, padding=(1, 1, 1, 1),
               low=-255, high=256),
        Sample(i16(2, 1, 5, 9, 4), i16(16, 2, 8, 2), tile=2, padding=(0, 1, 1, 0),
               low=-255, high=256),
        Sample(f32(4, 1, 5, 6, 4), f32(36, 12, 4), tile=4, frames=3, depth=3, error="T107"),
        Sample(f32(4, 1, 5, 6, 4), f32(36, 12, 4), tile=4, frames=4, depth=3, depth_padding=(1,),
               error="T107"),
        Sample(f32(4, 1, 5, 6, 4), f32(36, 12, 4), tile=4, frames=2, depth=3, error="T110"),
        Sample(f32(4, 1, 5, 6, 4), f32(36, 8, 4), tile=4, frames=4, depth=3, error="T103"),
        Sample(f32(1, 2, 7, 7, 4), f32(16, 8, 4), tile=4, error="T107"),
        Sample(f32(1, 2, 7, 7, 4), f32(36, 8, 6), tile=4, error="T107"),
        Sample(f32(1, 2, 7, 7, 4), f32(36, 8, 4), tile=4, padding=(1, 1), error="T107"),
        Sample(f32(1, 2, 7, 7, 4), f32(36, 4, 4), tile=4, error="T103"),
        Sample(f32(1, 2, 7, 2, 4), f32(36, 8, 4), tile=4, error="T110"),
        Sample(f32(1, 8, 7, 7), f32(36, 8, 4), tile=4, error="T102"),
        Sample(f32(1, 2, 7, 7, 4), f16(36, 8, 4), tile=4, error="T101"),
        Sample(i8(1, 2, 7, 7, 4), i8(36, 4, 4, 2), tile=4, error="T101"),
        Sample(i16(1, 2, 7, 7, 4), i16(36, 4, 4, 4), tile=4, error="T107"),
    ),
)  # fmt: skip
def conv2d_winograd(
    data: Tensor,
    weight: Tensor,
    *,
    tile: int,
    padding: tuple[int, ...] = (0, 0, 0, 0),
    frames: int = 0,
    depth: int = 1,
    depth_stride: int = 1,
    depth_padding: tuple[int, ...] = (0, 0),
    depth_dilation: int = 1,
) -> Tensor:
    """3x3 cross-correlation of stride 1 of a blocked image, `data[N, C/c, H, W, c]`, with a weight
    transformed by `nn.winograd_weight`; the result is also in blocks of c.

    `padding` is (top, left, bottom, right). In f32, for random data and weights, rounding errors
    are 1.0 (tile 2), 1.7 (tile 3) or 3 (tile 4) times those of `nn.conv2d`. Narrow data are widened
    to the weight's f32, which is the dtype of the result. An infinity or NaN in the image affects
    all tiles that read it.

    The result of `i16` is `i32`, and exact while a pixel is below `2**29` (tile 2) or `2**25`
    (tile 4), if transforms fit 16 bits: that of an image is at most 4 or 100 times as large as the
    image. Sums of products may wrap in 32 bits, since adding and multiplying wrapped integers gives
    the wrapped result. They are 4 or 576 times as large as the result; a multiplication by the
    inverse of the odd factor (9) and a shift by the bits of the even one divide exactly.

    With `frames`, the images form clips of that many frames, as in `nn.conv3d_frames`, and the
    window covers several of them: the weight has the channels of its first frame, then those of its
    second, and so on.

    Errors: T101, T102, T103, T107, T110. Source: Lavin and Gray, Fast Algorithms for Convolutional
    Neural Networks, 2015.
    """
    name = "nn.conv2d_winograd"
    if weight.dtype != accumulator(data.dtype):
        same_dtype(name, data, weight)
    _need_tile(name, tile, data.dtype)
    whole = is_integer(data.dtype)
    group = product_group(data.dtype) if whole else 1
    need_rank(name, "data", data, 5)
    need_rank(name, "weight", weight, 4 if whole else 3)
    batch, blocks, high, wide, c = data.shape
    n = tile + _KERNEL - 1
    pieces, inner, panel, *together = weight.shape
    inner = inner * group
    panels = pieces // (n * n)
    if differ(panels * n * n, pieces) or len(padding) != 4:
        raise GraphTypeError("T107", f"{name}: {weight.type} for tile {tile}, padding {padding}")
    if together and (together != [group] or not isinstance(c, int) or c % group):
        raise GraphTypeError("T107", f"{name}: {weight.type} is not in groups of {group}")
    if not isinstance(panel, int) or not isinstance(c, int) or not c or panel % c:
        raise GraphTypeError("T107", f"{name}: blocks of {c} and {panel} channels do not fit")
    if differ(inner, depth * blocks * c):
        raise GraphTypeError(
            "T103", f"{name}: input has {blocks * c} channels, weight expects {inner}"
        )
    clip = _Clip(frames, depth, depth_stride, depth_dilation, tuple(depth_padding))
    images = clip.images(name, batch)
    top, left, bottom, right = padding
    oh = window_size(name, high, _KERNEL, 1, top, bottom, 1)
    ow = window_size(name, wide, _KERNEL, 1, left, right, 1)
    rows, columns = -(-oh // tile), -(-ow // tile)
    tiles = images * rows * columns
    matrices = transforms(tile, data.dtype)

    def element(cb: Scalar, t: Scalar, i: Scalar, j: Scalar, ci: Scalar) -> Scalar:
        """The pixel at (i, j) of a tile's patch; 0 in the padding."""
        b, place = t // te.size(rows * columns), t % te.size(rows * columns)
        b, seen = clip.image(name, b, cb // te.size(blocks))
        cb = cb % te.size(blocks) if depth > 1 else cb
        y = place // te.size(columns) * tile + i - top
        x = place % te.size(columns) * tile + j - left
        inside = all_of(
            *seen,
            *([y >= 0] if top else []),
            *([y < te.size(high)] if _reaches_over(oh, tile, bottom) else []),
            *([x >= 0] if left else []),
            *([x < te.size(wide)] if _reaches_over(ow, tile, right) else []),
        )
        return te.cast(
            weight.dtype, te.select(inside, data[b, cb, y, x, ci], as_scalar(0, data.dtype))
        )

    blocks_seen = depth * blocks
    patch = te.compute((blocks_seen, tiles, n, n, c), element, "patch", role="winograd.patch")
    down = _along(patch, 2, matrices.data_parts, "data_column_parts")
    down = _along(down, 2, matrices.data_rows, "data_columns")
    across = _along(down, 3, matrices.data_parts, "data_parts")
    shape = (n, n, blocks_seen, tiles, c)

    def transformed(i: Scalar, j: Scalar, cb: Scalar, t: Scalar, ci: Scalar) -> Scalar:
        parts = [across[cb, t, i, p, ci] for p in range(n)]
        return _case(j, [_sum(row, parts) for row in matrices.data_rows])

    data_tiles = te.compute(shape, transformed, "data_tiles", role="winograd.data_tiles")

    out_blocks = panels * (panel // c)
    ico = te.reduce_axis(blocks_seen, "ico", roles.DEPTH)
    ici = te.reduce_axis(c, "ici", roles.DEPTH)

    def product(i: Scalar, j: Scalar, ob: Scalar, t: Scalar, oi: Scalar) -> Scalar:
        if panel == c:
            place, inside = ob, oi
        else:
            channel = ob * c + oi
            place, inside = channel // panel, channel % panel
        point, pixel = (i * n + j) * te.size(panels) + place, data_tiles[i, j, ico, t, ici]
        if whole:
            groups = ico * (c // group) + ici // group
            factor = te.cast(_SUM, weight[point, groups, inside, ici % group])
            return te.sum(te.cast(_SUM, pixel) * factor, [ico, ici])
        return te.sum(pixel * weight[point, ico * c + ici, inside], [ico, ici])

    sums = (n, n, out_blocks, tiles, c)
    products = te.compute(sums, product, "products", role="winograd.products")
    first = matrices.out_parts

    def gathered(ob: Scalar, t: Scalar, i: Scalar, j: Scalar, oi: Scalar) -> Scalar:
        column = [products[p, j, ob, t, oi] for p in range(n)]
        return _case(i, [_sum(row, column) for row in first])

    patches = (out_blocks, tiles, n, n, c)
    back = te.compute(patches, gathered, "out_column_parts", role="winograd.out_column_parts")
    back = _along(back, 2, matrices.out_rows, "out_columns")
    back = _along(back, 3, matrices.out_parts, "out_parts")

    def pixel(b: Scalar, oco: Scalar, y: Scalar, x: Scalar, oci: Scalar) -> Scalar:
        t = (b * te.size(rows) + y // tile) * te.size(columns) + x // tile
        parts = [back[oco, t, y % tile, p, oci] for p in range(n)]
        found = _case(x % tile, [_sum(row, parts) for row in matrices.out_rows])
        if matrices.inverse != 1:
            found = found * as_scalar(matrices.inverse, found.dtype)
        if matrices.shift:
            found = binary("shr", found, as_scalar(matrices.shift, found.dtype))
        return found

    return te.compute(
        (images, out_blocks, oh, ow, c), pixel, "conv2d_winograd", layout=data.layout,
        axes=("n", "oco", "oh", "ow", "oci"), role="winograd.image",
    )  # fmt: skip


@dataclass(frozen=True)
class _Clip:
    """The movement of a window over the frames of a clip; `frames` is 0 if there are no clips."""

    frames: int
    depth: int
    stride: int
    dilation: int
    padding: tuple[int, ...]

    def images(self, name: str, batch: Dim) -> Dim:
        """Returns the number of images of the result.

        Errors: T107, T110.
        """
        if len(self.padding) != 2 or self.depth < 1 or (self.depth > 1 and not self.frames):
            raise GraphTypeError("T107", f"{name}: depth {self.depth}, padding {self.padding}")
        return clips_of(name, batch, self.frames) * self.results(name) if self.frames else batch

    def results(self, name: str) -> int:
        """Returns the number of images of the result per clip.

        Errors: T107, T110.
        """
        front, back = self.padding
        count = window_size(name, self.frames, self.depth, self.stride, front, back, self.dilation)
        assert isinstance(count, int)
        return count

    def image(self, name: str, result: Scalar, tap: Scalar) -> tuple[Scalar, list[Scalar]]:
        """Returns the image that a tap of the window reads for an image of the result, and
        conditions that it exists.
        """
        if not self.frames:
            return result, []
        count, (front, back) = self.results(name), self.padding
        frame = result % count * self.stride + tap * self.dilation - front
        seen = [*([frame >= 0] if front else []), *([frame < self.frames] if back else [])]
        return result // count * self.frames + frame, seen

    def gathered(self, name: str, data: Array) -> Array:
        """Returns, for each image of the result, the window's frames of its clip as channels."""
        if not self.frames:
            return data
        clips = data.reshape(len(data) // self.frames, self.frames, *data.shape[1:])
        clips = np.pad(clips, [(0, 0), self.padding, *[(0, 0)] * (data.ndim - 1)])
        count = self.results(name)
        taps = [
            clips[:, first : first + (count - 1) * self.stride + 1 : self.stride]
            for first in range(0, self.depth * self.dilation, self.dilation)
        ]
        seen = np.concatenate(taps, axis=2)
        return seen.reshape(seen.shape[0] * seen.shape[1], *seen.shape[2:])


def _reaches_over(size: Any, tile: int, padding: int) -> bool:
    """Whether the last patch of an axis extends beyond the image."""
    return bool(padding) or not isinstance(size, int) or size % tile != 0


def _along(x: Tensor, axis: int, matrix: Array, name: str) -> Tensor:
    """Returns `matrix` applied along an axis."""
    shape = (*x.shape[:axis], len(matrix), *x.shape[axis + 1 :])

    def element(*i: Scalar) -> Scalar:
        values = [x[(*i[:axis], k, *i[axis + 1 :])] for k in range(matrix.shape[1])]
        return _case(i[axis], [_sum(row, values) for row in matrix])

    return te.compute(shape, element, name, role=f"winograd.{name}")


def _case(index: Scalar, values: Sequence[Scalar]) -> Scalar:
    """Returns the value with that number; once the loop is unrolled, only this one is computed."""
    chosen = values[-1]
    for number, value in reversed(list(enumerate(values[:-1]))):
        chosen = te.select(index.equal(number), value, chosen)
    return chosen


def _sum(coefficients: Array, values: Sequence[Scalar]) -> Scalar:
    """Returns the linear combination; a term that needs no product comes first."""
    terms = [(float(a), v) for a, v in zip(coefficients, values, strict=True) if abs(a) > 1e-12]
    terms.sort(key=lambda term: (term[0] != 1, term[0] == -1))
    (first, total), *rest = terms
    if first != 1:
        total = total * as_scalar(round(first) if is_integer(total.dtype) else first, total.dtype)
    for factor, value in rest:
        if factor == 1:
            total = total + value
        elif factor == -1:
            total = total - value
        elif is_integer(value.dtype):
            total = total + value * as_scalar(round(factor), value.dtype)
        else:
            total = te.call("fma", value, as_scalar(factor, value.dtype), total)
    return total


@conv2d_winograd.reference
def _conv2d_winograd_reference(
    data: Array,
    weight: Array,
    *,
    tile: int,
    padding: tuple[int, ...],
    frames: int = 0,
    depth: int = 1,
    depth_stride: int = 1,
    depth_padding: tuple[int, ...] = (0, 0),
    depth_dilation: int = 1,
) -> Array:
    clip = _Clip(frames, depth, depth_stride, depth_dilation, depth_padding)
    data = clip.gathered("nn.conv2d_winograd", data)
    dtype = from_numpy(weight.dtype)
    matrices = transforms(tile, dtype)
    if is_integer(dtype):  # float64 holds the sums exactly
        weight = weight.swapaxes(2, 3).reshape(len(weight), -1, weight.shape[2])
    to_tiles = matrices.data_rows @ matrices.data_parts
    back = matrices.out_rows @ matrices.out_parts
    n = len(to_tiles)
    top, left, bottom, right = padding
    _, inner, panel = weight.shape
    w = weight.reshape(n, n, -1, inner, panel).transpose(0, 1, 3, 2, 4)
    w = w.reshape(n, n, inner, -1).astype(np.float64)
    batch, _, high, wide, c = data.shape
    oh, ow = high + top + bottom - 2, wide + left + right - 2
    rows, columns = -(-oh // tile), -(-ow // tile)
    lower, over = rows * tile + 2 - high - top, columns * tile + 2 - wide - left
    x: Array = np.pad(data, [(0, 0), (0, 0), (top, lower), (left, over), (0, 0)])
    view = np.lib.stride_tricks.sliding_window_view(x, (n, n), axis=(2, 3))[:, :, ::tile, ::tile]
    outer = w.shape[-1]
    wide_dtype = to_numpy(_SUM if is_integer(dtype) else dtype)
    result = np.empty((batch, outer // c, rows * tile, columns * tile, c), wide_dtype)
    for image, pixels in zip(view, result, strict=True):
        for some in blocks(rows, columns * n * n * (inner + outer)):
            patches = image[:, some].transpose(4, 5, 1, 2, 0, 3)  # i, j, ty, tx, C/c, c
            v = _both_axes(to_tiles, patches.astype(np.float64)).reshape(n, n, -1, inner) @ w
            parts = _both_axes(back, v).reshape(tile, tile, -1, columns, outer // c, c)
            lines = parts.transpose(4, 2, 0, 3, 1, 5).reshape(outer // c, -1, columns * tile, c)
            if is_integer(dtype):
                lines = _divided(np.rint(lines).astype(np.int64), matrices)
            pixels[:, some.start * tile : some.stop * tile] = lines.astype(wide_dtype)
    return np.ascontiguousarray(result[:, :, :oh, :ow])


def _divided(sums: Array, matrices: Transforms) -> Array:
    """Returns sums in 32 bits, divided by the scale."""
    wrapped = sums.astype(np.int32) * np.int32(matrices.inverse)
    return np.asarray(wrapped >> np.int32(matrices.shift))


def _both_axes(matrix: Array, x: Array) -> Array:
    """Returns a transform of the first two axes."""
    return np.asarray(np.einsum("pi,qj,ij...->pq...", matrix, matrix, x, optimize=True))
