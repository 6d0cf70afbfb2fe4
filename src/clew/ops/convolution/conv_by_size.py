"""A convolution whose algorithm is selected by the size of its result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from clew.ir.dims import Dim, dim_max, dim_min
from clew.ir.expr import Attrs
from clew.ops.common import f32
from clew.ops.convolution.stages import convolve
from clew.ops.convolution.winograd import conv2d_winograd
from clew.ops.registry import Sample, register_op
from clew.support.errors import GraphTypeError
from clew.te import Tensor

Array = np.ndarray[Any, Any]

_TERMS = 3  # in the cost of Winograd's algorithm with one tile size


@register_op(
    "nn.conv2d_by_size",
    samples=(
        Sample(f32(1, 2, 7, 7, 4), f32(1, 2, 3, 3, 4, 4), f32(36, 8, 4), f32(16, 8, 4),
               tiles=(4, 2), direct=(9, 1), winograd=(4, 2, 9, 3, 2, 5), padding=(1, 1, 1, 1),
               weight_layout="OIHW4i4o", low=-0.5, high=0.5),
        Sample(f32(2, 1, 5, 9, 4), f32(1, 1, 3, 3, 4, 8), f32(16, 4, 8), tiles=(2,),
               direct=(9, 1), winograd=(1, 1, 4), padding=(0, 1, 1, 0),
               weight_layout="OIHW4i8o"),
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
    *transformed: Tensor,
    tiles: tuple[int, ...],
    direct: tuple[int, ...],
    winograd: tuple[int, ...],
    weight_layout: str,
    least_rows: int = 1,
    padding: tuple[int, ...] = (0, 0, 0, 0),
) -> Tensor:
    """`nn.conv2d_winograd` of `data` and one of the `transformed` weights, or `nn.conv2d` of `data`
    and `packed`. There is one transformed weight for each of `tiles`; `packed` is the same weight
    in `weight_layout`.

    A transformed weight is several times as large, and reading it takes most of the time if the
    image has few pixels. A kernel contains all these algorithms, and the sizes of a run select the
    one that costs least. Costs are in cycles (`cost.convolution`). `direct` holds the cost per
    pixel and that of the weight. `winograd` holds three costs for each of `tiles`: of the products
    of a tile, which count for at least `least_rows` tiles; of the transforms of a tile; and of the
    weight.

    Errors: T107 if the numbers of weights and costs do not match `tiles`, and those of
    `nn.conv2d_winograd`.
    """
    counts = len(transformed), len(direct), len(winograd)
    if not tiles or counts != (len(tiles), 2, _TERMS * len(tiles)):
        raise GraphTypeError(
            "T107",
            f"nn.conv2d_by_size: {len(transformed)} weights for tiles {tiles}, with costs {direct} "
            f"and {winograd}",
        )
    return _winograd(data, transformed[0], tiles[0], padding)


def _winograd(data: Tensor, weight: Tensor, tile: int, padding: tuple[int, ...]) -> Tensor:
    assert conv2d_winograd.compute is not None
    result = conv2d_winograd.compute(data, weight, tile=tile, padding=padding)
    assert isinstance(result, Tensor)
    return result


@conv2d_by_size.ways
def _ways(operands: Sequence[Tensor], attrs: Attrs) -> list[tuple[Tensor, Dim]]:
    """Returns Winograd's algorithm with each tile size, then the direct one."""
    data, packed, *transformed = operands
    tiles, padding, terms = attrs.tiles, attrs.padding, attrs.winograd
    results = [
        _winograd(data, weight, tile, padding)
        for weight, tile in zip(transformed, tiles, strict=True)
    ]
    layout = f"NCHW{data.shape[-1]}c"
    direct = convolve("nn.conv2d", "HW", data, packed, {
        "strides": (1, 1), "padding": padding, "dilation": (1, 1), "groups": 1, "channels": 0,
        "data_layout": layout, "weight_layout": attrs.weight_layout, "out_layout": layout,
        "out_dtype": "",
    })  # fmt: skip
    batch, _, high, wide, _ = direct.shape
    costs: list[Dim] = []
    for number, tile in enumerate(tiles):
        product, transform, weight = terms[_TERMS * number : _TERMS * (number + 1)]
        count = batch * -(-high // tile) * -(-wide // tile)
        costs.append(dim_max(count, attrs.least_rows) * product + count * transform + weight)
    costs.append(batch * high * wide * attrs.direct[0] + attrs.direct[1])
    return list(zip([*results, direct], _least(costs), strict=True))


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
def _conv2d_by_size_reference(
    data: Array,
    packed: Array,
    *transformed: Array,
    tiles: tuple[int, ...],
    direct: tuple[int, ...],
    winograd: tuple[int, ...],
    weight_layout: str,
    least_rows: int,
    padding: tuple[int, ...],
) -> Array:
    assert conv2d_winograd.reference_rule is not None
    found: Array = conv2d_winograd.reference_rule(
        data, transformed[0], tile=tiles[0], padding=padding
    )
    return found
