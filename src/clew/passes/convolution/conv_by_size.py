"""Convolutions of free sizes: a kernel contains several algorithms, and sizes select one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from clew.cost.convolution import ConvLayer, direct_terms, padding_cycles, winograd_cycles
from clew.cost.policy.convolutions import FULL_TILE_ROWS, GAIN_OF_ONE_MORE
from clew.ir.expr import Call, Constant, Expr
from clew.machine.target import Target
from clew.ops.registry import get_op
from clew.passes.convolution.conv_in_parts import way_in_parts
from clew.passes.convolution.convolutions import layer_of, unpadded
from clew.passes.convolution.winograd import way_of_tiles

# The sides of small images at which algorithms are compared: they differ most up to some tiles.
_SIDES: Final = tuple(range(1, 33))


def by_size(
    conv: Call,
    weight: Constant,
    target: Target,
    *,
    tiles: Sequence[int],
    min_gain: float,
    parts: int,
    min_gain_of_parts: float,
) -> Expr:
    """Returns a convolution of free sizes that combines the direct algorithm, Winograd's with those
    of `tiles` that are worth their code, and, if `parts` is not 0, products of that many parts. To
    be selected, Winograd's algorithm must be `min_gain` times as fast as the direct one, and
    products of parts must be `min_gain_of_parts` times as fast as all others.
    """
    data, padding = unpadded(conv.args[0])
    layer = layer_of(conv, weight)
    weights: list[Expr] = []
    attrs: dict[str, Any] = {}
    if tiles:
        tiles = _worthwhile(tiles, layer, target, min_gain)
        ways = [way_of_tiles(conv, weight, tile, target) for tile in tiles]
        weights += [made for made, _ in ways]
        attrs["tiles"] = tuple(tiles)
        attrs["winograd"] = tuple(round(min_gain * term) for _, terms in ways for term in terms)
        attrs["least_rows"] = FULL_TILE_ROWS
    else:
        attrs["channels"] = conv.attrs.channels
        attrs["strides"], attrs["dilation"] = conv.attrs.strides, conv.attrs.dilation
    each, of_weight = direct_terms(layer, target)
    if parts:
        if any(padding):  # only the direct algorithm copies the image to pad it
            each += math.prod(conv.attrs.strides) * padding_cycles(layer, target)
        made, terms = way_in_parts(conv, weight, parts, target)
        weights.append(made)
        attrs["split"] = tuple(round(min_gain_of_parts * term) for term in terms)
    return get_op("nn.conv2d_by_size")(
        data,
        conv.args[1],
        *weights,
        direct=(round(each), round(of_weight)),
        weight_layout=conv.attrs.weight_layout,
        padding=padding,
        **attrs,
    )


def _worthwhile(
    tiles: Sequence[int], layer: ConvLayer, target: Target, min_gain: float
) -> list[int]:
    """Returns the tile size that is fastest at the typical size, and those that are much faster
    than it and the direct algorithm at some other; largest first.

    Each tile size takes as long to compile as a convolution of known sizes, and most gain only on
    images of a few sizes: in addition to 3x3 tiles, 2x2 tiles gain at most a quarter, on one image
    of 10x10. On many images of 4x4 with many channels, they gain more.
    """
    each, of_weight = direct_terms(layer, target)
    images = [replace(layer, height=side, width=side) for side in _SIDES] + [layer]
    cycles = {
        tile: [min_gain * winograd_cycles(image, tile, target) for image in images]
        for tile in tiles
    }
    kept = [min(tiles, key=lambda tile: cycles[tile][-1])]
    least = [
        min(image.pixels * each + of_weight, cost)
        for image, cost in zip(images, cycles[kept[0]], strict=True)
    ]
    while len(kept) < len(tiles):
        gains = {
            tile: max(a / b for a, b in zip(least, cycles[tile], strict=True))
            for tile in tiles
            if tile not in kept
        }
        best = max(gains, key=lambda tile: gains[tile])
        if gains[best] < GAIN_OF_ONE_MORE:
            break
        kept.append(best)
        least = [min(a, b) for a, b in zip(least, cycles[best], strict=True)]
    return sorted(kept, reverse=True)
