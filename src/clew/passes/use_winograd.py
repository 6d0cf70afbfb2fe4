"""UseWinograd: fewer products for 3x3 convolutions, where transforms and larger weights pay."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Final

import numpy as np

from clew.ir.expr import Call, Constant, Expr
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.ops.layouts import parse_layout
from clew.ops.registry import get_op
from clew.passes.base import Machine, Pass, PassContext
from clew.passes.convolutions import (
    DIRECT,
    KERNEL,
    Layer,
    cost_cycles,
    dilated_cycles,
    layer_of,
    plain_weight,
    unpadded,
)

_OF_FRAMES: Final = "nn.conv3d_frames"


@dataclass(frozen=True)
class UseWinograd(Pass):
    """Computes 3x3 convolutions of stride 1 between transforms of 4x4 or 2x2 tiles (Winograd).

    A tile takes 36 products instead of 144, or 16 instead of 36. Its weights are 4 or 16/9 times as
    large, and their transform is left to FoldConstant. Padding is part of the transform, so that
    the `pad` before the convolution goes, if nothing else reads it.

    Before:
        %1 = pad(%0, pads=[0, 0, 1, 1, 0, 0, 0, 1, 1, 0])
        %2 = nn.conv2d(%1, layout_transform(w, "OIHW", "OIHW16i32o"), data_layout="NCHW16c", ...)
    After:
        %2 = nn.conv2d_winograd(%0, nn.winograd_weight(w, tile=4, block=32), tile=4,
                                padding=[1, 1, 1, 1])

    A dilated convolution is one without of images of every d-th line and column
    (`space_to_batch`), of which it takes 4 for a dilation of 2. One of clips (`nn.conv3d_frames`)
    is one of images whose channels are those of all frames that the window sees.

    For each layer the fastest of the three by a cost model is taken, `min_gain` times as fast as
    the direct one at least. `tiles` are those that may be chosen: (2,) bounds the error to that of
    2x2 tiles (`nn.conv2d_winograd` states both). `exclude` are patterns of layers' names that stay
    direct.

    Preconditions: AlterLayout has laid images out in blocks; FoldConstant and DeadCode run after
    it. Non-goals: other windows and strides, groups, dtypes other than f32; choosing by
    measuring.
    """

    opt_level: ClassVar[int] = 3

    tiles: tuple[int, ...] = (2, 4)
    min_gain: float = 1.15
    exclude: tuple[str, ...] = ()

    def run(self, module: Module, ctx: PassContext) -> Module:
        if ctx.target is None:
            return module
        return _Transformer(self, ctx, ctx.target).rewrite_module(module)


class _Transformer(Rewriter):
    def __init__(self, options: UseWinograd, ctx: PassContext, target: Machine) -> None:
        super().__init__()
        self._options = options
        self._ctx = ctx
        self._target = target

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        frames = new.op_name == _OF_FRAMES
        weight = _weight(new)
        if weight is None:
            return new
        if new.args[0].tensor.dtype != new.tensor.dtype:
            return new  # a product of narrow floats, which has instructions of its own
        block = parse_layout(new.attrs.data_layout).factor("C")
        lanes = self._target.vector_lanes(new.tensor.dtype)
        if block != lanes or self._excluded(old):
            return new
        direct = layer_of(new, weight)
        layer = direct
        if frames:
            depth = weight.tensor.concrete[2]
            layer = replace(direct, inner=direct.inner * depth, taps=KERNEL * KERNEL)
            direct = replace(direct, taps=round(direct.taps * _share_of_frames(new, depth)))
        dilation = new.attrs.dilation[-2:]
        tile = self._choose(old, direct, layer, dilation, lanes)
        if tile == DIRECT:
            return new
        data, padding = unpadded(new.args[0])
        panel = parse_layout(new.attrs.weight_layout).factor("O")
        if weight.tensor.concrete[0] % panel:  # its last panel is filled up
            panel = block
        with self.covers(old, *old.args):
            plain = _frames_as_channels(weight) if frames else weight
            transformed = get_op("nn.winograd_weight")(plain, tile=tile, block=panel)
            if dilation == (1, 1):
                clips = _depth(new, weight) if frames else {}
                return get_op("nn.conv2d_winograd")(
                    data, transformed, tile=tile, padding=padding, **clips
                )
            phases = get_op("space_to_batch")(data, block=dilation, padding=padding)
            found = get_op("nn.conv2d_winograd")(phases, transformed, tile=tile)
            size = new.tensor.shape[2:4]
            return get_op("batch_to_space")(found, block=dilation, size=size)

    def _excluded(self, old: Call) -> bool:
        patterns = self._options.exclude
        return any(fnmatchcase(name, p) for p in patterns for name in old.layers)

    def _choose(
        self, old: Call, direct: Layer, layer: Layer, dilation: tuple[int, int], lanes: int
    ) -> int:
        costs = {DIRECT: cost_cycles(direct, DIRECT, lanes)}
        for tile in self._options.tiles:
            costs[tile] = dilated_cycles(layer, tile, dilation, lanes)
        best = min(costs, key=lambda tile: costs[tile])
        gain = costs[DIRECT] / costs[best]
        chosen = best if gain >= self._options.min_gain else DIRECT
        listed = ", ".join(
            f"{f'{t}x{t} tiles' if t else 'direct'} {cycles / 1e3:.0f}"
            for t, cycles in costs.items()
        )
        how = f"{chosen}x{chosen} tiles" if chosen else "direct"
        self._ctx.remark(old, f"{how}: thousands of cycles expected: {listed}")
        return chosen


def _weight(conv: Call) -> Constant | None:
    """Returns the plain weight of a convolution that could be computed so; None for others."""
    frames = conv.op_name == _OF_FRAMES
    weight = plain_weight(conv, _OF_FRAMES) if frames else plain_weight(conv)
    if weight is None or weight.tensor.shape[-2:] != (KERNEL, KERNEL):
        return None
    if weight.tensor.concrete[1] % parse_layout(conv.attrs.data_layout).factor("C"):
        return None  # the image's last block is filled up, the weight has no rows for that
    if frames and conv.attrs.dilation[1:] != (1, 1):
        return None
    return weight if conv.attrs.strides[-2:] == (1, 1) else None


def _frames_as_channels(weight: Constant) -> Expr:
    """Returns `[O, I, D, 3, 3]` as `[O, D * I, 3, 3]`."""
    outer, inner, depth, *kernel = weight.tensor.concrete
    moved = get_op("transpose")(weight, axes=(0, 2, 1, 3, 4))
    return get_op("reshape")(moved, shape=(outer, depth * inner, *kernel))


def _depth(conv: Call, weight: Constant) -> dict[str, Any]:
    """Returns how a window moves over frames, as attributes of `nn.conv2d_winograd`."""
    attrs = conv.attrs
    return {
        "frames": attrs.frames,
        "depth": weight.tensor.concrete[2],
        "depth_stride": attrs.strides[0],
        "depth_padding": (attrs.padding[0], attrs.padding[3]),
        "depth_dilation": attrs.dilation[0],
    }


def _share_of_frames(conv: Call, depth: int) -> float:
    """Returns how many of the frames that a window takes are in the clip: the others cost a direct
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
