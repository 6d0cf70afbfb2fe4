"""Queries of blocked convolutions that several passes share: weights, padding and sizes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from clew.cost.convolution import ConvLayer
from clew.cost.policy.convolutions import TYPICAL_LATE_IMAGES
from clew.ir.dims import is_unknown, typical
from clew.ir.expr import Call, Constant, Expr
from clew.ops.movement.layouts import parse_layout
from clew.ops.registry import Op
from clew.support.dataclass import dataclass

PAIRS: Final = ("i16", "i32")
"""The dtypes of the data and the result of a convolution that multiplies pairs of integers."""


@dataclass(frozen=True)
class Algorithm:
    """An algorithm for a convolution: its expected cycles on one core, and a function that builds
    its graph.
    """

    name: str
    cycles: float
    build: Callable[[], Expr]


def plain_weight(conv: Call, op: str = "nn.conv2d") -> Constant | None:
    """Returns the plain weight of `op`, a convolution without groups whose result is f32, or i32 of
    products of pairs, and has the blocks of the image; None for other calls.
    """
    if not isinstance(conv.op, Op) or conv.op.name != op:
        return None
    attrs, packed = conv.attrs, conv.args[1]
    alike = attrs.data_layout == attrs.out_layout and parse_layout(attrs.data_layout).factors
    half = len(attrs.padding) // 2
    around = (*attrs.padding[half - 2 : half], *attrs.padding[-2:])
    dtypes = conv.args[0].tensor.dtype, conv.tensor.dtype
    if not alike or attrs.groups != 1 or any(around):
        return None
    if dtypes[1] != "f32" and dtypes != PAIRS:
        return None
    if any(map(is_unknown, conv.tensor.shape[1:])) or not isinstance(packed, Call):
        return None
    if packed.op_name != "layout_transform" or packed.attrs.src_layout not in ("OIHW", "OIDHW"):
        return None
    weight = packed.args[0]
    if not isinstance(weight, Constant):
        return None
    return weight if weight.tensor.concrete[0] == attrs.channels else None


def layer_of(conv: Call, weight: Constant) -> ConvLayer:
    """Returns the sizes of a blocked convolution, with the channels that its blocks store; free
    sizes count as typical ones. A free or data-dependent number of images counts as a few.
    """
    height, width = map(typical, conv.tensor.shape[2:4])
    batch = conv.tensor.shape[0]
    images = batch if isinstance(batch, int) else TYPICAL_LATE_IMAGES
    outer, inner, *kernel = stored(conv, weight)
    dtype = conv.args[0].tensor.dtype
    return ConvLayer(images, inner, outer, height, width, math.prod(kernel), dtype)


def stored(conv: Call, weight: Constant) -> tuple[int, ...]:
    """Returns the shape of a blocked convolution's plain weight, with as many channels as the
    blocks of image and result store; the last block of each may be zero-padded.
    """
    block = parse_layout(conv.attrs.data_layout).factor("C")
    outer, inner, *kernel = weight.tensor.concrete
    return (-(-outer // block) * block, -(-inner // block) * block, *kernel)


def unpadded(data: Expr) -> tuple[Expr, tuple[int, ...]]:
    """Returns the image before zero padding, and the padding as (top, left, bottom, right)."""
    if not isinstance(data, Call) or data.op_name != "pad":
        return data, (0, 0, 0, 0)
    pads, rank = data.attrs.pads, data.tensor.rank
    before, after = pads[:rank], pads[rank:]
    others = (*before[:2], *after[:2], *before[4:], *after[4:])
    if data.attrs.mode != "constant" or data.attrs.value != 0 or any(others) or min(pads) < 0:
        return data, (0, 0, 0, 0)
    return data.args[0], (*before[2:4], *after[2:4])
