"""Layout transforms, and rearrangements between channels and space."""

from __future__ import annotations

from typing import Any

import numpy as np

from clew import te
from clew.ir.dims import Dim
from clew.ops.common import divides, f32, need_rank
from clew.ops.movement.layouts import Layout, parse_layout, result_sizes, stored_shape, transform
from clew.ops.registry import Sample, register_op
from clew.support.errors import GraphTypeError
from clew.te import Scalar, Tensor

Array = np.ndarray[Any, Any]


@register_op(
    "layout_transform",
    samples=(
        Sample(f32(1, 8, 3, 2), src_layout="NCHW", dst_layout="NCHW4c"),
        Sample(f32(1, 6, 3, 2), src_layout="NCHW", dst_layout="NCHW4c"),
        Sample(f32(1, 2, 3, 2, 4), src_layout="NCHW4c", dst_layout="NCHW"),
        Sample(f32(1, 2, 3, 2, 4), src_layout="NCHW4c", dst_layout="NCHW", shape=(1, 6, 3, 2)),
        Sample(f32(1, 2, 3, 2, 4), src_layout="NCHW4c", dst_layout="NCHW8c"),
        Sample(f32(6, 5, 3, 3), src_layout="OIHW", dst_layout="OIHW4i4o"),
        Sample(f32(7, 3), src_layout="KN", dst_layout="NK2n"),
        Sample(f32(1, 3, 2, 4), src_layout="NHWC", dst_layout="NCHW"),
        Sample(f32(1, 8, 3, 2), src_layout="NCHW", dst_layout="NC", error="T109"),
        Sample(f32(1, 8, 3), src_layout="NCHW", dst_layout="NCHW4c", error="T109"),
        Sample(f32(1, 8, 3, 2), src_layout="NCHW", dst_layout="4c", error="T109"),
        Sample(f32(1, 2, 3, 2, 4), src_layout="NCHW4c", dst_layout="NCHW", shape=(1, 9, 3, 2),
               error="T109"),
    ),
)  # fmt: skip
def layout_transform(
    x: Tensor, *, src_layout: str, dst_layout: str, shape: tuple[int, ...] = ()
) -> Tensor:
    """`x` in another layout. `shape` holds the logical sizes in the order of the target's axes; it
    crops the padding of the source's blocks. Blocks of the target are zero-padded.

    Errors: T109.
    """
    source, target = parse_layout(src_layout), parse_layout(dst_layout)
    sizes = result_sizes(source, target, x.shape, shape)

    def body(*i: Scalar) -> Scalar:
        here = dict(zip(target.axes, i, strict=True))
        place, inside = _places(source, target, here, sizes)
        return te.select(inside, x[place], 0)

    layout = dst_layout if target.factors else ""
    return te.compute(stored_shape(target, sizes), body, "layout_transform", layout=layout)


def _places(
    source: Layout, target: Layout, here: dict[str, Scalar], sizes: dict[str, Dim]
) -> tuple[tuple[Scalar, ...], Scalar]:
    """Returns the position of a target element in the source, and whether it exists there."""
    inside = te.as_scalar(True, "bool")
    place: dict[str, Scalar] = {}
    for axis in target.plain:
        low, blocks, read = axis.lower(), target.factor(axis), source.factor(axis)
        logical = here[axis] * blocks + here[low] if low in here else here[axis]
        if sizes[axis] % blocks != 0:
            inside = inside & (logical < te.size(sizes[axis]))
        if blocks == read and low in here:
            place[axis], place[low] = here[axis], here[low]
        else:
            place[axis], place[low] = logical // read, logical % read
    return tuple(place[axis] for axis in source.axes), inside


@layout_transform.reference
def _layout_transform_reference(
    x: Array, *, src_layout: str, dst_layout: str, shape: tuple[int, ...]
) -> Array:
    return transform(x, src_layout, dst_layout, shape)


def _block(name: str, x: Tensor, block: int) -> None:
    need_rank(name, "input", x, 4)
    if block < 1:
        raise GraphTypeError("T107", f"{name}: block {block} must be at least 1")


@register_op(
    "depth_to_space",
    samples=(
        Sample(f32(1, 8, 2, 3), block=2),
        Sample(f32(1, 8, 2, 3), block=2, mode="CRD"),
        Sample(f32(1, 6, 2, 3), block=2, error="T107"),
        Sample(f32(1, 8, 2, 3), block=2, mode="RCD", error="T107"),
        Sample(f32(8, 2, 3), block=2, error="T102"),
    ),
)
def depth_to_space(x: Tensor, *, block: int, mode: str = "DCR") -> Tensor:
    """Moves blocks of channels to space. `mode` selects the outer part of the channel axis: the
    position in the block (`DCR`) or the channel (`CRD`). Source: ONNX DepthToSpace-13.
    """
    _block("depth_to_space", x, block)
    n, c, h, w = x.shape
    square = block * block
    if mode not in ("DCR", "CRD") or not divides(square, c):
        raise GraphTypeError("T107", f"depth_to_space: {x.type}, block={block}, mode={mode!r}")

    def body(b: Scalar, oc: Scalar, oh: Scalar, ow: Scalar) -> Scalar:
        inner = (oh % block) * block + ow % block
        channel = inner * te.size(c // square) + oc if mode == "DCR" else oc * square + inner
        return x[b, channel, oh // block, ow // block]

    return te.compute((n, c // square, h * block, w * block), body, "depth_to_space")


@depth_to_space.reference
def _depth_to_space_reference(x: Array, *, block: int, mode: str) -> Array:
    n, _, h, w = x.shape
    if mode == "DCR":
        y = x.reshape(n, block, block, -1, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        y = x.reshape(n, -1, block, block, h, w).transpose(0, 1, 4, 2, 5, 3)
    return np.ascontiguousarray(y).reshape(n, -1, h * block, w * block)


@register_op(
    "space_to_depth",
    samples=(
        Sample(f32(1, 3, 4, 6), block=2),
        Sample(f32(1, 3, 5, 6), block=2, error="T107"),
        Sample(f32(3, 4, 6), block=2, error="T102"),
    ),
)
def space_to_depth(x: Tensor, *, block: int) -> Tensor:
    """Moves blocks of space to channels, with the position in the block outermost. Source: ONNX
    SpaceToDepth-13.
    """
    _block("space_to_depth", x, block)
    n, c, h, w = x.shape
    if not (divides(block, h) and divides(block, w)):
        raise GraphTypeError("T107", f"space_to_depth: block {block} does not divide {x.type}")

    def body(b: Scalar, oc: Scalar, oh: Scalar, ow: Scalar) -> Scalar:
        inner, channel = oc // te.size(c), oc % te.size(c)
        return x[b, channel, oh * block + inner // block, ow * block + inner % block]

    return te.compute((n, c * block * block, h // block, w // block), body, "space_to_depth")


@space_to_depth.reference
def _space_to_depth_reference(x: Array, *, block: int) -> Array:
    n, c, h, w = x.shape
    y = x.reshape(n, c, h // block, block, w // block, block).transpose(0, 3, 5, 1, 2, 4)
    return np.ascontiguousarray(y).reshape(n, -1, h // block, w // block)
