"""SplitConvolutions: 1x1 convolutions of f32 on a unit for narrow products."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from clew.ir.expr import Call, Constant, Expr
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.ops.parts import TILE_DEPTH, TILE_ROWS
from clew.ops.registry import get_op
from clew.passes.base import Pass, PassContext
from clew.passes.split_products import pieces_of, split_weight

_BLOCKS = "NCHW16c"


@dataclass(frozen=True)
class SplitConvolutions(Pass):
    """Computes 1x1 convolutions of `f32` as six products of `bf16` parts on a matrix unit, as
    `SplitProducts` computes dense layers: pixels are rows, channels the depth.

    Splitting an image costs time for each of its numbers, so that it takes many filters to pay; and
    weights, half as large again, take longer from memory, so that it takes many pixels as well.

    Before:
        %2 = nn.conv2d(%1, layout_transform(w, "OIHW", "OIHW16i32o"), data_layout="NCHW16c", ...)
    After:
        %2: bf16[13, 8, 3, 16, 32] = split_parts(%1, layout="NCHW16c")
        %3: f32[1, 64, 14, 14, 16]:NCHW16c = nn.pointwise_conv2d(%2, w', image=[1, 14, 14], ...)

    Preconditions: images are in blocks. Non-goals: other kernel sizes.
    """

    opt_level: ClassVar[int] = 3

    parts: int = 3
    min_pixels: int = 128
    min_depth: int = 64
    min_filters: int = 128
    share_of_cache: float = 0.5
    least_piece: int = 256

    def run(self, module: Module, ctx: PassContext) -> Module:
        fits = ctx.target is not None and ctx.target.tile_shape("bf16", "bf16") is not None
        return _Splitter(self, ctx).rewrite_module(module) if fits else module


class _Splitter(Rewriter):
    def __init__(self, options: SplitConvolutions, ctx: PassContext) -> None:
        super().__init__()
        self._options = options
        self._ctx = ctx
        self._split: dict[tuple[int, int], Expr] = {}

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        weight = _weight(new)
        if weight is None:
            return new
        reason = self._unfit(new, weight)
        if reason:
            self._ctx.remark(old, f"stays a product of f32: {reason}")
            return new
        options, target = self._options, self._ctx.target
        assert target is not None
        data, stride = new.args[0], new.attrs.strides[0]
        batch, _, height, width, _ = new.tensor.concrete
        image, (filters, depth) = (batch, height, width), weight.tensor.concrete[:2]
        room = int(target.l2_bytes * options.share_of_cache)
        row_bytes = 2 * options.parts * math.prod(image)
        result: Expr | None = None
        with self.covers(old, old.args[1]):
            found = self._split.get((data.id, stride))
            if found is None:
                found = get_op("split_parts")(
                    data, parts=options.parts, layout=_BLOCKS, stride=stride
                )
                self._split[data.id, stride] = found
            for start, end in pieces_of(depth, row_bytes * depth, room, options.least_piece):
                piece = split_weight(weight, (filters, depth), "NK", options.parts, start, end)
                packed = get_op("layout_transform")(piece, src_layout="NK", dst_layout="NK32n2k")
                product = get_op("nn.pointwise_conv2d")(
                    found, packed, image=image, channels=filters, parts=options.parts, start=start
                )
                result = product if result is None else get_op("add")(product, result)
        assert result is not None
        return result

    def _unfit(self, call: Call, weight: Constant) -> str:
        """Returns why a 1x1 convolution is left alone; "" if it is not."""
        batch, _, height, width, _ = call.tensor.concrete
        filters, depth = weight.tensor.concrete[:2]
        if filters < self._options.min_filters:
            return f"{filters} filters for each number that would be split"
        if batch * height * width < self._options.min_pixels or min(height, width) < 2:
            return f"{batch * height * width} pixels read each weight too few times"
        if depth < self._options.min_depth:
            return f"{depth} channels are few to sum up"
        if depth % TILE_DEPTH or filters % TILE_ROWS or (batch > 1 and height * width % TILE_ROWS):
            return f"{depth} by {filters} channels, {height} by {width} pixels fill no tiles"
        return ""


def _weight(call: Call) -> Constant | None:
    """Returns the plain weight of a 1x1 convolution of f32 in blocks; None for other calls."""
    if call.op_name != "nn.conv2d" or call.tensor.dtype != "f32" or not call.tensor.is_static:
        return None
    attrs, packed = call.attrs, call.args[1]
    if attrs.data_layout != _BLOCKS or attrs.out_layout != _BLOCKS or attrs.groups != 1:
        return None
    even = attrs.strides[0] == attrs.strides[1] and not any(attrs.padding)
    if not even or call.args[0].tensor.dtype != "f32" or not isinstance(packed, Call):
        return None
    if packed.op_name != "layout_transform" or packed.attrs.src_layout != "OIHW":
        return None
    weight = packed.args[0]
    if not isinstance(weight, Constant) or weight.tensor.shape[2:] != (1, 1):
        return None
    return weight if weight.tensor.shape[0] == attrs.channels else None
