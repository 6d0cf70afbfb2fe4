"""Winograd's algorithm for convolutions: its applicability, cost and graph."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from clew.cost.convolution import (
    WINDOW,
    winograd_cycles,
    winograd_terms,
)
from clew.cost.convolution import direct_cycles as cycles_of_direct
from clew.cost.policy.precision import MOST_PRODUCTS, MOST_PRODUCTS_OF_WINOGRAD
from clew.ir.dims import numbers
from clew.ir.expr import Call, Constant, Expr
from clew.ir.types import integer_limits, is_float
from clew.machine.target import Target
from clew.ops.convolution.winograd import SUM_BITS, tiles_of, transforms
from clew.ops.movement.layouts import parse_layout
from clew.ops.registry import get_op
from clew.passes.convolution.convolutions import Algorithm, layer_of, plain_weight, stored, unpadded
from clew.passes.integer_bounds import Bounds, integer_bounds

Array = np.ndarray[Any, Any]
_OF_FRAMES: Final = "nn.conv3d_frames"
# Roundings of a value by the transforms: of the weight, of the image, and of the products.
_ROUNDINGS: Final = 7


def winograd(conv: Call, tiles: tuple[int, ...], target: Target) -> Iterator[Algorithm]:
    """Yields Winograd's algorithm for each tile size if the convolution has a 3x3 window of stride
    1 and channel blocks of one vector.
    """
    weight = _weight(conv)
    if weight is None:
        return
    block = parse_layout(conv.attrs.data_layout).factor("C")
    if is_float(weight.tensor.dtype):
        if weight.tensor.dtype != conv.tensor.dtype and not _widens(conv):
            return
        dtype, lanes = conv.tensor.dtype, target.vector_lanes(conv.tensor.dtype)
    else:
        dtype = weight.tensor.dtype
        lanes = 2 * target.dot_lanes(dtype, dtype)
        if not conv.tensor.is_static or conv.op_name == _OF_FRAMES:
            return
        tiles = exact_tiles(conv.args[0], weight.data, tiles)
    if block != lanes:
        return
    if not conv.tensor.is_static and stored(conv, weight) != weight.tensor.concrete:
        return  # kernels with several algorithms have no zero-padded blocks
    layer = replace(layer_of(conv, weight), dtype=dtype)
    dilation = conv.attrs.dilation[-2:]
    if conv.op_name == _OF_FRAMES:
        if dilation != (1, 1) and numbers(conv.tensor.shape[2:4]) is None:
            return  # clips of free size have no kernel with several algorithms
        depth = weight.tensor.concrete[2]
        layer = replace(layer, inner=layer.inner * depth, taps=WINDOW * WINDOW)
    for tile in sorted(set(tiles) & set(tiles_of(dtype))):
        cycles = winograd_cycles(layer, tile, target, dilation)
        yield Algorithm(f"{tile}x{tile} tiles", cycles, partial(_transformed, conv, weight, tile))


def exact_tiles(image: Expr, weight: Array, tiles: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the sizes of the tiles whose transforms of an image of `i16` and of a weight fit 16
    bits, where 32 bits hold the sums.
    """
    bounds, dtype = integer_bounds(image), image.tensor.dtype
    if bounds is None:
        return ()
    exact = set(tiles) & set(tiles_of(dtype))
    return tuple(sorted(tile for tile in exact if _is_exact(bounds, weight, tile, dtype)))


def _is_exact(bounds: Bounds, weight: Array, tile: int, dtype: str) -> bool:
    matrices, most = transforms(tile, dtype), max(-bounds[0], bounds[1])
    taps = weight.astype(np.float64)
    moved = np.einsum("ia,jb,ocab->ijoc", matrices.weight, matrices.weight, taps, optimize=True)
    limit = integer_limits(dtype)[1]
    if matrices.growth * most > limit or np.abs(moved).max(initial=0) > limit:
        return False
    sums = np.abs(taps).sum(axis=(1, 2, 3)).max(initial=0) * most
    return bool(sums < 1 << (SUM_BITS - 1 - matrices.shift))


def error_of_tiles(weight: Array, tile: int) -> float:
    """Returns how many times as large as that of the direct algorithm the rounding error of
    Winograd's is expected to be, in the mean of squares, for a weight `[O, I, ..., 3, 3]`.

    Each rounding of a product's operands or of a step of its sum changes the result by the norms of
    the three transforms. The direct algorithm rounds each step of a sum over the window and the
    channels, Winograd's of a sum over channels only, and its transforms. Pixels count as equally
    large and independent. Both add up in blocks.
    """
    matrices, taps = transforms(tile), WINDOW * WINDOW
    filters = weight.reshape(-1, taps).astype(np.float64)
    moments = filters.T @ filters
    total = float(np.trace(moments))
    if not total:
        return 0.0
    both = np.einsum("ia,jb->ijab", matrices.weight, matrices.weight).reshape(-1, taps)
    moved = np.einsum("pa,ab,pb->p", both, moments, both, optimize=True)
    forth = ((matrices.data_rows @ matrices.data_parts) ** 2).sum(axis=1)
    back = ((matrices.out_rows @ matrices.out_parts) ** 2).mean(axis=0)
    growth = float(np.outer(forth * back, forth * back).ravel() @ moved) / total
    inner = math.prod(weight.shape[1:-2])
    steps = min(inner, MOST_PRODUCTS_OF_WINOGRAD) / 2 + _ROUNDINGS
    return math.sqrt(growth * steps / max(min(taps * inner, MOST_PRODUCTS) / 2, 1))


def _widens(conv: Call) -> bool:
    """Whether the transforms can widen a narrow image: it has a known size and no frames."""
    return conv.op_name != _OF_FRAMES and conv.tensor.is_static


def direct_cycles(conv: Call, weight: Constant, target: Target) -> float:
    """Returns the expected cycles of a direct convolution on one core."""
    layer = layer_of(conv, weight)
    if conv.op_name == _OF_FRAMES:
        share = _share_of_frames(conv, weight.tensor.concrete[2])
        layer = replace(layer, taps=round(layer.taps * share))
    return cycles_of_direct(layer, target)


def way_of_tiles(
    conv: Call, weight: Constant, tile: int, target: Target
) -> tuple[Expr, tuple[float, float, float]]:
    """Returns the transformed weight for Winograd's algorithm with tiles of size `tile`, and the
    terms of its cost.
    """
    layer = layer_of(conv, weight)
    return _weight_of_tiles(conv, weight, tile), winograd_terms(layer, tile, target)


def _weight_of_tiles(conv: Call, weight: Constant, tile: int) -> Expr:
    """Returns a weight transformed for tiles, with zeros for the channels that pad blocks."""
    panel = parse_layout(conv.attrs.weight_layout).factor("O")
    shape = stored(conv, weight)
    if shape[0] % panel:  # its last panel is zero-padded
        panel = parse_layout(conv.attrs.data_layout).factor("C")
    plain: Expr = weight
    if shape != weight.tensor.concrete:
        missing = [n - held for n, held in zip(shape, weight.tensor.concrete, strict=True)]
        plain = get_op("pad")(weight, pads=(*[0] * len(missing), *missing))
    plain = _frames_as_channels(plain) if conv.op_name == _OF_FRAMES else plain
    if is_float(weight.tensor.dtype) and weight.tensor.dtype != conv.tensor.dtype:
        plain = get_op("cast")(plain, dtype=conv.tensor.dtype)
    return get_op("nn.winograd_weight")(plain, tile=tile, block=panel)


def _transformed(conv: Call, weight: Constant, tile: int) -> Expr:
    """Returns the convolution between transforms of tiles."""
    data, padding = unpadded(conv.args[0])
    frames, dilation = conv.op_name == _OF_FRAMES, conv.attrs.dilation[-2:]
    transformed = _weight_of_tiles(conv, weight, tile)
    if dilation == (1, 1):
        clips = _depth(conv, weight) if frames else {}
        return get_op("nn.conv2d_winograd")(data, transformed, tile=tile, padding=padding, **clips)
    phases = get_op("space_to_batch")(data, block=dilation, padding=padding)
    found = get_op("nn.conv2d_winograd")(phases, transformed, tile=tile)
    return get_op("batch_to_space")(found, block=dilation, size=conv.tensor.shape[2:4])


def on_phases(conv: Call) -> Call:
    """Returns a dilated convolution as one without dilation, of a batch of every d-th line and
    column.
    """
    data, padding = unpadded(conv.args[0])
    attrs = conv.attrs
    phases = get_op("space_to_batch")(data, block=attrs.dilation, padding=padding)
    return get_op("nn.conv2d")(
        phases,
        conv.args[1],
        strides=attrs.strides,
        channels=attrs.channels,
        data_layout=attrs.data_layout,
        weight_layout=attrs.weight_layout,
    )


def _weight(conv: Call) -> Constant | None:
    """Returns the plain weight of a convolution that Winograd's algorithm can compute, else
    None.
    """
    frames = conv.op_name == _OF_FRAMES
    weight = plain_weight(conv, _OF_FRAMES) if frames else plain_weight(conv)
    if weight is None or weight.tensor.shape[-2:] != (WINDOW, WINDOW):
        return None
    if frames and conv.attrs.dilation[1:] != (1, 1):
        return None
    return weight if conv.attrs.strides[-2:] == (1, 1) else None


def _frames_as_channels(weight: Expr) -> Expr:
    """Returns `[O, I, D, 3, 3]` as `[O, D * I, 3, 3]`."""
    outer, inner, depth, *kernel = weight.tensor.concrete
    moved = get_op("transpose")(weight, axes=(0, 2, 1, 3, 4))
    return get_op("reshape")(moved, shape=(outer, depth * inner, *kernel))


def _depth(conv: Call, weight: Constant) -> dict[str, Any]:
    """Returns the window's movement over frames, as attributes of `nn.conv2d_winograd`."""
    attrs = conv.attrs
    return {
        "frames": attrs.frames,
        "depth": weight.tensor.concrete[2],
        "depth_stride": attrs.strides[0],
        "depth_padding": (attrs.padding[0], attrs.padding[3]),
        "depth_dilation": attrs.dilation[0],
    }


def _share_of_frames(conv: Call, depth: int) -> float:
    """Returns the share of a window's frames that lie in the clip. The others cost a direct
    convolution nothing.
    """
    attrs = conv.attrs
    front, back = attrs.padding[0], attrs.padding[3]
    stride, dilation = attrs.strides[0], attrs.dilation[0]
    results = (attrs.frames + front + back - (depth - 1) * dilation - 1) // stride + 1
    seen = [
        0 <= result * stride + tap * dilation - front < attrs.frames
        for result in range(results)
        for tap in range(depth)
    ]
    return float(np.mean(seen))
