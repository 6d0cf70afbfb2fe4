"""Shape, order and repetition of elements."""

from __future__ import annotations

import numpy as np
import torch

from clew.backends.torch.registry import Building, Step, builds
from clew.ops.movement.layouts import parse_layout
from clew.ops.registry import get_op


@builds("identity")
def identity(b: Building) -> Step:
    """The input."""
    return lambda x: x


@builds("reshape")
def reshape(b: Building) -> Step:
    """`reshape`."""
    shape = b.type.concrete
    return lambda x: x.reshape(shape)


@builds("broadcast_to")
def broadcast_to(b: Building) -> Step:
    """`expand`."""
    shape = b.type.concrete
    return lambda x: x.expand(shape)


@builds("repeat")
def repeat(b: Building) -> Step:
    """`repeat_interleave`, cropped."""
    axis, repeats, size = b.attrs.axis, b.attrs.repeats, b.attrs.size
    return lambda x: x.repeat_interleave(repeats, axis).narrow(axis, 0, size)


@builds("trilu")
def trilu(b: Building) -> Step:
    """`triu` or `tril`."""
    k, function = b.attrs.k, torch.triu if b.attrs.upper else torch.tril
    return lambda x: function(x, k)


@builds("diagonal")
def diagonal(b: Building) -> Step:
    """`diagonal`, whose axis is moved to where `first` was."""
    rank = b.types[0].rank
    first, second = b.attrs.first % rank, b.attrs.second % rank
    place = first - 1 if first > second else first
    return lambda x: torch.movedim(torch.diagonal(x, 0, first, second), -1, place)


@builds("layout_transform")
def layout_transform(b: Building) -> Step:
    """`permute` between layouts without blocks."""
    source, target = parse_layout(b.attrs.src_layout), parse_layout(b.attrs.dst_layout)
    if source.factors or target.factors:
        b.refuse("a layout has blocks")
    axes = [source.axes.index(a) for a in target.axes]
    return lambda x: x.permute(axes)


@builds("depth_to_space")
def depth_to_space(b: Building) -> Step:
    """Axes apart, in another order, and joined."""
    block, (n, _, h, w), shape = b.attrs.block, b.shape(), b.type.concrete
    if b.attrs.mode == "DCR":
        apart, order = (n, block, block, -1, h, w), (0, 3, 4, 1, 5, 2)
    else:
        apart, order = (n, -1, block, block, h, w), (0, 1, 4, 2, 5, 3)
    return lambda x: x.reshape(apart).permute(order).reshape(shape)


@builds("space_to_depth")
def space_to_depth(b: Building) -> Step:
    """Axes apart, in another order, and joined."""
    block, (n, c, h, w), shape = b.attrs.block, b.shape(), b.type.concrete
    apart = (n, c, h // block, block, w // block, block)
    return lambda x: x.reshape(apart).permute(0, 3, 5, 1, 2, 4).reshape(shape)


@builds("full", "arange")
def constant(b: Building) -> Step:
    """The value of the reference."""
    made = b.constant(get_op(b.call.op_name).run_reference([], b.attrs))
    return lambda: made


@builds("shape_of")
def shape_of(b: Building) -> Step:
    """The sizes, which are known."""
    made = b.constant(np.array(b.shape(), np.int64))
    return lambda x: made
