"""A convolution whose algorithm is selected by the size of its image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from clew.ir.dims import Dim, ceil_div, dim_max, dim_min, numbers
from clew.ir.expr import Attrs
from clew.ir.types import TensorType
from clew.machine.units import TILE_ROWS
from clew.ops.common import f16, f32
from clew.ops.convolution.conv_parts import (
    places_of,
    split_pixels,
    sum_parts,
)
from clew.ops.convolution.stages import convolve, convolved
from clew.ops.convolution.winograd import conv2d_winograd
from clew.ops.movement.layouts import logical_sizes, parse_layout
from clew.ops.registry import Namer, Sample, register_op
from clew.support.errors import GraphTypeError
from clew.te import Tensor

Array = np.ndarray[Any, Any]

# The numbers of cost terms: of Winograd's algorithm with one tile size, and of bf16x3 products.
_TERMS: Final = 3
_SPLIT_TERMS: Final = 4
# Pixels along a side of the smallest register tile in an image of free size.
_SIDE: Final = 2
# The attributes that the direct algorithm takes unchanged.
_DIRECT: Final = ("strides", "padding", "dilation", "channels", "weight_layout")


@register_op(
    "nn.conv2d_by_size",
    samples=(
        Sample(f32(1, 2, 7, 7, 4), f32(1, 2, 3, 3, 4, 4), f32(36, 8, 4), f32(16, 8, 4),
               tiles=(4, 2), direct=(9, 1), winograd=(4, 2, 9, 3, 2, 5), padding=(1, 1, 1, 1),
               weight_layout="OIHW4i4o", low=-0.5, high=0.5),
        Sample(f32(2, 1, 5, 9, 4), f32(1, 1, 3, 3, 4, 8), f32(16, 4, 8), tiles=(2,),
               direct=(9, 1), winograd=(1, 1, 4), padding=(0, 1, 1, 0),
               weight_layout="OIHW4i8o"),
        Sample(f32(1, 2, 7, 6, 16), f32(2, 2, 3, 3, 16, 16), f16(1, 1, 9, 3, 16, 32, 2),
               direct=(1, 1), split=(99, 9, 9, 9), channels=32, strides=(2, 2),
               padding=(1, 1, 1, 1), weight_layout="OIHW16i16o", low=-0.5, high=0.5),
        Sample(f32(1, 2, 7, 6, 16), f32(2, 2, 3, 3, 16, 16), f16(1, 1, 9, 3, 16, 32, 2),
               direct=(9, 1), split=(5, 1, 1), channels=32, weight_layout="OIHW16i16o",
               error="T107"),
        Sample(f32(1, 2, 7, 7, 4), f32(1, 2, 3, 3, 4, 4), f32(36, 8, 4), tiles=(4,),
               direct=(9, 1), winograd=(4, 2, 9), strides=(2, 2), weight_layout="OIHW4i4o",
               error="T107"),
        Sample(f32(1, 2, 7, 7, 4), f32(1, 2, 3, 3, 4, 4), f32(36, 8, 4), tiles=(4, 2),
               direct=(9, 1), winograd=(4, 2, 9, 3, 2, 5), weight_layout="OIHW4i4o",
               error="T107"),
        Sample(f32(1, 2, 7, 7, 4), f32(1, 2, 3, 3, 4, 4), f32(36, 8, 4), tiles=(4,),
               direct=(9,), winograd=(4, 2, 9), weight_layout="OIHW4i4o", error="T107"),
    ),
)  # fmt: skip
def conv2d_by_size(
    data: Tensor,
    packed: Tensor,
    *others: Tensor,
    direct: tuple[int, ...],
    weight_layout: str,
    tiles: tuple[int, ...] = (),
    winograd: tuple[int, ...] = (),
    least_rows: int = 1,
    split: tuple[int, ...] = (),
    channels: int = 0,
    strides: tuple[int, ...] = (1, 1),
    padding: tuple[int, ...] = (0, 0, 0, 0),
    dilation: tuple[int, ...] = (1, 1),
) -> Tensor:
    """Convolution of `data` by the algorithm that costs least at the sizes of a run. The candidates
    are `nn.conv2d`, `nn.conv2d_winograd` with each tile size in `tiles`, and, if `split` is given,
    `nn.conv2d_parts` (bf16x3).

    `packed` is the weight in `weight_layout`, for `nn.conv2d`. `others` are the same weight
    transformed for each of `tiles`, in this order, and then, with `split`, in parts. `channels` is
    the number of filters, by default as many as `packed` holds.

    A kernel contains all these algorithms, because each is the fastest for some images. For
    example, transformed weights are several times as large as the original ones, and reading them
    takes most of the time if the image has few pixels.

    Costs are in cycles (`cost.convolution`):

    - `direct`: per pixel of the result, in blocks of 2x2 if there are `tiles`; for the weight.
    - `winograd`, for each of `tiles`: for the products, per tile, where fewer than `least_rows`
      tiles cost as much as `least_rows`; for the transforms, per tile; for the weight.
    - `split`: for the products, per tile of rows; per pixel that is split; per pixel of the result;
      for the weight.

    Errors: T107 if the numbers of weights and costs do not match `tiles` and `split`, and if a
    convolution with `tiles` is strided or dilated; those of the algorithms.
    """
    counts = len(others), len(direct), len(winograd), len(split)
    wanted = len(tiles) + bool(split), 2, _TERMS * len(tiles), _SPLIT_TERMS * bool(split)
    plain = (*strides, *dilation) == (1, 1, 1, 1)
    stored = logical_sizes(parse_layout(weight_layout), packed.shape)["O"]
    few = isinstance(stored, int) and stored < channels
    if not others or counts != wanted or (tiles and not plain) or few:
        raise GraphTypeError(
            "T107",
            f"nn.conv2d_by_size: {len(others)} weights for tiles {tiles}, with costs {direct}, "
            f"{winograd} and {split}",
        )
    if tiles:
        return _winograd(data, others[0], tiles[0], padding)
    given = {
        "strides": strides, "padding": padding, "dilation": dilation, "channels": channels,
        "weight_layout": weight_layout,
    }  # fmt: skip
    return _direct(data, packed, given)


def _winograd(data: Tensor, weight: Tensor, tile: int, padding: tuple[int, ...]) -> Tensor:
    assert conv2d_winograd.compute is not None
    result = conv2d_winograd.compute(data, weight, tile=tile, padding=padding)
    assert isinstance(result, Tensor)
    return result


def _direct(data: Tensor, packed: Tensor, attrs: Mapping[str, Any]) -> Tensor:
    layout = f"NCHW{data.shape[-1]}c"
    given = {"groups": 1, "data_layout": layout, "out_layout": layout, "out_dtype": ""}
    return convolve("nn.conv2d", "HW", data, packed, {**attrs, **given})


def _in_parts(
    data: Tensor, weight: Tensor, kernel: tuple[int, ...], channels: int, attrs: Attrs
) -> tuple[Tensor, Dim]:
    """Returns the convolution by products of parts, and its cost."""
    tile, pixel, result, fixed = attrs.split
    strides, dilation, parts = attrs.strides, attrs.dilation, weight.type.concrete[3]
    image = (data.shape[2], data.shape[3])
    places = places_of("nn.conv2d_by_size", image, kernel, strides, attrs.padding, dilation)
    phases = places.lines.phases * places.columns.phases
    where = {"kernel": kernel, "strides": strides, "dilation": dilation}
    made = sum_parts(
        split_pixels(data, places, parts), weight, places, channels=channels, parts=parts, **where
    )
    batch, _, high, wide, _ = made.shape
    each = ceil_div(places.rows, TILE_ROWS) * tile + places.pixels * (phases * pixel)
    return made, batch * (each + high * wide * result) + fixed


@conv2d_by_size.ways
def _ways(operands: Sequence[Tensor], attrs: Attrs) -> list[tuple[Tensor, Dim]]:
    """Returns Winograd's algorithm for each tile size, the direct one, and products of parts."""
    data, packed, *others = operands
    tiles, padding, terms = attrs.tiles, attrs.padding, attrs.winograd
    results = [
        _winograd(data, weight, tile, padding) for weight, tile in zip(others, tiles, strict=False)
    ]
    given = {name: getattr(attrs, name) for name in _DIRECT}
    if results:  # `packed` may hold more filters: zeros that fill its last panel
        given["channels"] = results[0].shape[1] * results[0].shape[-1]
    direct = _direct(data, packed, given)
    batch, blocks, high, wide, lanes = direct.shape
    costs: list[Dim] = []
    for number, tile in enumerate(tiles):
        product, transform, weight = terms[_TERMS * number : _TERMS * (number + 1)]
        count = batch * -(-high // tile) * -(-wide // tile)
        costs.append(dim_max(count, attrs.least_rows) * product + count * transform + weight)
    results.append(direct)
    pixels = batch * high * wide
    if tiles:
        pixels = batch * ceil_div(high, _SIDE) * ceil_div(wide, _SIDE) * (_SIDE * _SIDE)
    costs.append(pixels * attrs.direct[0] + attrs.direct[1])
    if attrs.split:
        sizes = logical_sizes(parse_layout(attrs.weight_layout), packed.shape)
        kernel = numbers((sizes["H"], sizes["W"]))
        channels = blocks * lanes
        if kernel is None or not isinstance(channels, int):
            raise GraphTypeError("T107", f"nn.conv2d_by_size: {packed.type} has free sizes")
        made, cost = _in_parts(data, others[-1], kernel, channels, attrs)
        results.append(made)
        costs.append(cost)
    return list(zip(results, _least(costs), strict=True))


@conv2d_by_size.counts
def _counts(
    operands: Sequence[TensorType], attrs: Attrs, namer: Namer
) -> tuple[list[TensorType], Attrs] | None:
    """Names the counts of channel blocks and of panels, and the costs of the algorithms."""
    data, packed, *others = operands
    blocks, panels = data.shape[1], packed.shape[0]
    points = [(tile + 2) ** 2 for tile in attrs.tiles]
    if attrs.split or not points or not isinstance(blocks, int) or not isinstance(panels, int):
        return None
    if any(w.shape[0] != n * panels for w, n in zip(others, points, strict=True)):
        return None  # `packed` holds more filters
    (lanes,), (panel,) = numbers(data.shape[-1:]) or (0,), numbers(packed.shape[-1:]) or (0,)
    inner, outer = namer.blocks(blocks, lanes), namer.blocks(panels, panel)
    if isinstance(inner, int) or isinstance(outer, int):
        return None
    types = [
        _shaped(data, (data.shape[0], inner, *data.shape[2:])),
        _shaped(packed, (outer, inner, *packed.shape[2:])),
        *(
            _shaped(w, (n * outer, lanes * inner, *w.shape[2:]))
            for w, n in zip(others, points, strict=True)
        ),
    ]
    costs = {key: tuple(map(namer.cost, attrs[key])) for key in ("direct", "winograd")}
    return types, attrs.with_(**costs)


def _shaped(type_: TensorType, shape: tuple[Dim, ...]) -> TensorType:
    return TensorType(shape, type_.dtype, type_.layout)


def _least(costs: Sequence[Dim]) -> list[Dim]:
    """Returns a dimension for each cost: 1 if it is the first of the lowest costs, else 0."""
    found: list[Dim] = []
    for place, cost in enumerate(costs):
        least: Dim = 1
        for number, other in enumerate(costs):
            if number != place:  # lower than those before, and no higher than those after
                margin = other - cost + (0 if number < place else 1)
                least = least * dim_max(dim_min(margin, 1), 0)
        found.append(least)
    return found


@conv2d_by_size.reference
def _conv2d_by_size_reference(data: Array, packed: Array, *others: Array, **attrs: Any) -> Array:
    if attrs["tiles"]:
        assert conv2d_winograd.reference_rule is not None
        found: Array = conv2d_winograd.reference_rule(
            data, others[0], tile=attrs["tiles"][0], padding=attrs["padding"]
        )
        return found
    layout = f"NCHW{data.shape[-1]}c"
    given = {"groups": 1, "data_layout": layout, "out_layout": layout}
    return convolved("HW", data, packed, {**{name: attrs[name] for name in _DIRECT}, **given})
