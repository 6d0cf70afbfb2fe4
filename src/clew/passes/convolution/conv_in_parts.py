"""bf16x3 emulation on a matrix unit as an algorithm for f32 convolutions."""

from __future__ import annotations

from collections.abc import Iterator

from clew.cost.convolution import SplitImage, split_cycles, split_terms
from clew.ir.dims import at_least, typical
from clew.ir.expr import Call, Constant, Expr
from clew.ir.types import TensorType
from clew.machine.target import Target
from clew.ops.convolution.conv_parts import PANEL, packed_shape, packed_weight, places_of
from clew.ops.registry import get_op
from clew.passes.convolution.convolutions import (
    Algorithm,
    layer_of,
    plain_weight,
    unpadded,
)

_BLOCK = 16
_BLOCKS = f"NCHW{_BLOCK}c"


def in_parts(conv: Call, parts: int, target: Target) -> Iterator[Algorithm]:
    """Yields the convolution as products of `parts` of `bf16`, if the target has a unit for
    them.
    """
    if target.tile_shape("bf16", "bf16") is None:
        return
    weight = plain_weight(conv)
    if weight is None or conv.attrs.data_layout != _BLOCKS or weight.tensor.dtype != "f32":
        return
    if conv.attrs.channels % _BLOCK:
        return
    attrs, kernel = conv.attrs, weight.tensor.concrete[2:]
    data, padding = unpadded(conv.args[0])
    high, wide = data.tensor.shape[2:4]
    places = places_of("split_image", (high, wide), kernel, attrs.strides, padding, attrs.dilation)
    if not at_least(places.width, 1):
        return  # a line's length may not be positive, so bands of lines have no known bounds
    width, pixels = typical(places.width), typical(places.pixels)
    image = SplitImage(width, pixels, places.lines.phases * places.columns.phases)
    cycles = split_cycles(layer_of(conv, weight), image, parts, PANEL, target)

    def build() -> Expr:
        where = {
            "kernel": kernel,
            "strides": attrs.strides,
            "padding": padding,
            "dilation": attrs.dilation,
            "parts": parts,
        }
        split, packed = get_op("split_image")(data, **where), _split_weight(weight, parts)
        return get_op("nn.conv2d_parts")(
            split, packed, image=(high, wide), channels=attrs.channels, **where
        )

    yield Algorithm(f"bf16x{parts}", cycles, build)


def way_in_parts(
    conv: Call, weight: Constant, parts: int, target: Target
) -> tuple[Expr, tuple[float, float, float, float]]:
    """Returns the weight in parts for a convolution of free sizes, and the terms of its cost."""
    terms = split_terms(layer_of(conv, weight), parts, PANEL, target)
    return _split_weight(weight, parts), terms


def _split_weight(weight: Constant, parts: int) -> Constant:
    """Returns the parts of a weight in the order that `nn.conv2d_parts` reads them."""
    packed = TensorType(packed_shape(weight.tensor.concrete, parts), "bf16")
    return weight.derived(f"conv_parts{parts}", packed, lambda w: packed_weight(w, parts))
