"""UseWinograd: fewer products for 3x3 convolutions, where transforms and larger weights pay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import ClassVar, Final

from clew.ir.expr import Call, Constant, Expr
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.ops.layouts import parse_layout
from clew.ops.registry import Op, get_op
from clew.passes.base import Machine, Pass, PassContext

_KERNEL: Final = 3
DIRECT: Final = 0
"""Stands for `nn.conv2d` among tile sizes."""

# What a core does in a cycle, and how much of that register tiles reach.
_FMAS_A_CYCLE: Final = 2
_REACHED: Final = 0.85
# Weights are met once an inference, so they come from behind the second cache.
_WEIGHT_BYTES_A_CYCLE: Final = 8.0
# Cycles to transform one tile of one block of channels, forth and back.
_TRANSFORM_CYCLES: Final[Mapping[int, tuple[int, int]]] = {2: (80, 45), 4: (240, 150)}
# Fewer rows than this leave a register tile's arithmetic units waiting.
_FULL_TILE_ROWS: Final = 8


@dataclass(frozen=True)
class Layer:
    """Sizes of a 3x3 convolution of stride 1: channels, and pixels of its result."""

    batch: int
    inner: int
    outer: int
    height: int
    width: int

    def tiles(self, tile: int) -> int:
        """Returns how many tiles cover the result."""
        return self.batch * -(-self.height // tile) * -(-self.width // tile)


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

    For each layer the fastest of the three by a cost model is taken, `min_gain` times as fast as
    the direct one at least. `tiles` are those that may be chosen: (2,) bounds the error to that of
    2x2 tiles (`nn.conv2d_winograd` states both). `exclude` are patterns of layers' names that stay
    direct.

    Preconditions: AlterLayout has laid images out in blocks; FoldConstant and DeadCode run after
    it. Non-goals: other windows, strides and dilations, groups, dtypes other than f32; choosing by
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


def cost_cycles(layer: Layer, tile: int, lanes: int) -> float:
    """Returns about how many cycles a layer takes on one core, directly or with tiles of a size."""
    filters = layer.inner * layer.outer
    vector_fmas = filters / lanes / _FMAS_A_CYCLE / _REACHED
    if tile == DIRECT:
        taps = _KERNEL * _KERNEL
        products = layer.batch * layer.height * layer.width * taps * vector_fmas
        return products + 4 * taps * filters / _WEIGHT_BYTES_A_CYCLE
    points, tiles = (tile + _KERNEL - 1) ** 2, layer.tiles(tile)
    forth, back = _TRANSFORM_CYCLES[tile]
    products = points * max(tiles, _FULL_TILE_ROWS) * vector_fmas
    transforms = tiles * (layer.inner * forth + layer.outer * back) / lanes
    return products + transforms + 4 * points * filters / _WEIGHT_BYTES_A_CYCLE


class _Transformer(Rewriter):
    def __init__(self, options: UseWinograd, ctx: PassContext, target: Machine) -> None:
        super().__init__()
        self._options = options
        self._ctx = ctx
        self._target = target

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        weight = _weight(new)
        if weight is None:
            return new
        block = parse_layout(new.attrs.data_layout).factor("C")
        lanes = self._target.vector_lanes(new.tensor.dtype)
        if block != lanes or self._excluded(old):
            return new
        tile = self._choose(old, _layer(new, weight), lanes)
        if tile == DIRECT:
            return new
        data, padding = _unpadded(new.args[0])
        panel = parse_layout(new.attrs.weight_layout).factor("O")
        if weight.tensor.concrete[0] % panel:  # its last panel is filled up
            panel = block
        with self.covers(old, *old.args):
            transformed = get_op("nn.winograd_weight")(weight, tile=tile, block=panel)
            return get_op("nn.conv2d_winograd")(data, transformed, tile=tile, padding=padding)

    def _excluded(self, old: Call) -> bool:
        patterns = self._options.exclude
        return any(fnmatchcase(name, p) for p in patterns for name in old.layers)

    def _choose(self, old: Call, layer: Layer, lanes: int) -> int:
        costs = {t: cost_cycles(layer, t, lanes) for t in (DIRECT, *self._options.tiles)}
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
    if not isinstance(conv.op, Op) or conv.op.name != "nn.conv2d":
        return None
    attrs, packed = conv.attrs, conv.args[1]
    alike = attrs.data_layout == attrs.out_layout and parse_layout(attrs.data_layout).factors
    plain = attrs.strides == attrs.dilation == (1, 1) and attrs.groups == 1
    if not alike or not plain or any(attrs.padding) or conv.tensor.dtype != "f32":
        return None
    if not conv.tensor.is_static or not isinstance(packed, Call):
        return None
    if packed.op_name != "layout_transform" or packed.attrs.src_layout != "OIHW":
        return None
    weight = packed.args[0]
    if not isinstance(weight, Constant) or weight.tensor.shape[2:] != (_KERNEL, _KERNEL):
        return None
    block, channels = parse_layout(attrs.data_layout).factor("C"), weight.tensor.concrete[0]
    return weight if channels == attrs.channels and channels % block == 0 else None


def _layer(conv: Call, weight: Constant) -> Layer:
    batch, _, height, width, _ = conv.tensor.concrete
    outer, inner = weight.tensor.concrete[:2]
    return Layer(batch, inner, outer, height, width)


def _unpadded(data: Expr) -> tuple[Expr, tuple[int, ...]]:
    """Returns the image before zeros were put around it, and these (top, left, bottom, right)."""
    if not isinstance(data, Call) or data.op_name != "pad":
        return data, (0, 0, 0, 0)
    pads, rank = data.attrs.pads, data.tensor.rank
    before, after = pads[:rank], pads[rank:]
    others = (*before[:2], *after[:2], *before[4:], *after[4:])
    if data.attrs.mode != "constant" or data.attrs.value != 0 or any(others) or min(pads) < 0:
        return data, (0, 0, 0, 0)
    return data.args[0], (*before[2:4], *after[2:4])
