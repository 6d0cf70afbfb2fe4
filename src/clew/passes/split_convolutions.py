"""SplitConvolutions: convolutions of f32 on a unit for narrow products."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import ClassVar

from clew.ir.expr import Call, Constant, Expr
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.ir.types import TensorType
from clew.ops.conv_parts import packed_shape, packed_weight, places_of
from clew.ops.registry import get_op
from clew.passes.base import Machine, Pass, PassContext
from clew.passes.convolutions import (
    DIRECT,
    KERNEL,
    cost_cycles,
    layer_of,
    parts_cycles,
    plain_weight,
    unpadded,
)

_BLOCKS = "NCHW16c"
_WINOGRAD_TILES = (2, 4)


@dataclass(frozen=True)
class SplitConvolutions(Pass):
    """Computes convolutions of `f32` as six products of `bf16` parts on a matrix unit, as
    `SplitProducts` computes dense layers: pixels are rows, channels the depth, once for each tap.

    Padding is part of the image in parts, so that the `pad` before the convolution goes, if nothing
    else reads it.

    Before:
        %1 = pad(%0, pads=[0, 0, 1, 1, 0, 0, 0, 1, 1, 0])
        %2 = nn.conv2d(%1, layout_transform(w, "OIHW", "OIHW16i32o"), data_layout="NCHW16c", ...)
    After:
        %1: bf16[1, 4, 3, 1, 1, 839, 32] = split_image(%0, kernel=[3, 3], padding=[1, 1, 1, 1])
        %2: f32[1, 8, 28, 28, 16]:NCHW16c = nn.conv2d_parts(%1, w', image=[28, 28], ...)

    A convolution becomes one of parts where a cost model expects it to be `min_gain` times as fast
    as directly and, where Winograd's algorithm fits, as with that. `exclude` are patterns of
    layers' names that stay products of f32.

    Preconditions: images are in blocks; `UseWinograd` comes later. Non-goals: groups.
    """

    opt_level: ClassVar[int] = 3

    parts: int = 3
    min_gain: float = 1.1
    exclude: tuple[str, ...] = ()

    def run(self, module: Module, ctx: PassContext) -> Module:
        if ctx.target is None or ctx.target.tile_shape("bf16", "bf16") is None:
            return module
        return _Splitter(self, ctx, ctx.target).rewrite_module(module)


class _Splitter(Rewriter):
    def __init__(self, options: SplitConvolutions, ctx: PassContext, target: Machine) -> None:
        super().__init__()
        self._options = options
        self._ctx = ctx
        self._target = target

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        weight = plain_weight(new)
        if weight is None or new.attrs.data_layout != _BLOCKS or self._excluded(old):
            return new
        if not new.tensor.is_static:
            return new  # how pixels are taken apart is told by their number
        data, padding = unpadded(new.args[0])
        image, kernel = data.tensor.concrete[2:4], weight.tensor.concrete[2:]
        where = {
            "kernel": kernel,
            "strides": new.attrs.strides,
            "padding": padding,
            "dilation": new.attrs.dilation,
            "parts": self._options.parts,
        }
        if not self._pays(old, new, weight, padding):
            return new
        with self.covers(old, *old.args):
            split = get_op("split_image")(data, **where)
            return get_op("nn.conv2d_parts")(
                split,
                _split_weight(weight, self._options.parts),
                image=image,
                channels=new.attrs.channels,
                **where,
            )

    def _excluded(self, old: Call) -> bool:
        patterns = self._options.exclude
        return any(fnmatchcase(name, p) for p in patterns for name in old.layers)

    def _pays(self, old: Call, new: Call, weight: Constant, padding: tuple[int, ...]) -> bool:
        """Whether a convolution is expected to be faster as one of parts."""
        attrs, kernel = new.attrs, weight.tensor.concrete[2:]
        lanes = self._target.vector_lanes(new.tensor.dtype)
        layer = layer_of(new, weight)
        _, _, high, wide, _ = unpadded(new.args[0])[0].tensor.concrete
        places = places_of(
            "split_image", (high, wide), kernel, attrs.strides, padding, attrs.dilation
        )
        costs = {"direct": cost_cycles(layer, DIRECT, lanes)}
        if kernel == (KERNEL, KERNEL) and attrs.strides == attrs.dilation == (1, 1):
            for tile in _WINOGRAD_TILES:
                costs[f"{tile}x{tile} tiles"] = cost_cycles(layer, tile, lanes)
        best = min(costs.values())
        costs["parts"] = parts_cycles(layer, places, self._options.parts, lanes)
        listed = ", ".join(f"{how} {cycles / 1e3:.0f}" for how, cycles in costs.items())
        pays = best >= self._options.min_gain * costs["parts"]
        how = "a product of parts" if pays else "stays a product of f32"
        self._ctx.remark(old, f"{how}: thousands of cycles expected: {listed}")
        return pays


def _split_weight(weight: Constant, parts: int) -> Constant:
    """Returns the parts of a weight in the order that `nn.conv2d_parts` reads them in."""
    packed = TensorType(packed_shape(weight.tensor.concrete, parts), "bf16")
    return weight.derived(f"conv_parts{parts}", packed, lambda w: packed_weight(w, parts))
