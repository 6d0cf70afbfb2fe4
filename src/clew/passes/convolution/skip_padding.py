"""SkipPadding: convolutions without products of weights and padding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from itertools import product
from typing import ClassVar

import numpy as np

from clew.cost.convolution import WINDOW, ConvLayer, fastest_cycles, sum_cycles
from clew.cost.policy.convolutions import (
    MOST_PARTS_WITHOUT_PADDING,
    SKIP_PADDING_GAIN,
    TAPS_TO_SKIP,
)
from clew.ir.dims import Dim, ceil_div, dim_max, dim_min
from clew.ir.expr import Call, Constant, Expr
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.machine.target import Target
from clew.ops.registry import Op, get_op
from clew.passes.base import Pass, PassContext
from clew.patterns.exactness import REORDERED, Exactness
from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class SkipPadding(Pass):
    """Removes products with padding where they are many: windows that reach far beyond the image,
    such as those of dilated convolutions.

    Taps that meet no pixel at any window position are removed from the weight. Where most of the
    remaining products are with padding as well, each tap becomes a separate convolution of the part
    of the image that it meets, and the results are added. A cost model decides: the replacement
    must be `min_gain` times as fast and have at most `max_parts` parts.

    Before:
        %1: f32[1, 8, 28, 28] = nn.conv2d(%0, w, padding=[24, 24, 24, 24], dilation=[24, 24])
    After (two of nine taps shown):
        %2: f32[1, 64, 4, 4] = pad(%0, pads=[0, 0, 0, 0, 0, 0, -24, -24])
        %3: f32[1, 8, 28, 28] = pad(nn.conv2d(%2, w_0), pads=[0, 0, 24, 24, 0, 0, 0, 0])
        %4 = add(nn.conv2d(%0, w_4), %3)

    If an image size is free, windows of `least_taps` or more taps along an axis with a stride of 1
    sum only taps that can meet a pixel (`live` of `nn.conv2d`).

    Before:
        %1: f32[1, 8, n + 1] = nn.conv1d(%0, w, padding=[64, 64])
    After:
        %1: f32[1, 8, n + 1] = nn.conv1d(%0, w, padding=[64, 64],
                                         live=[max(64 - n, 0), min(64 + n, 128) - max(64 - n, 0)])

    Preconditions: layouts are plain, weights are finite constants. Non-goals: splitting
    convolutions in groups, of narrow floats, or of volumes; depthwise convolutions of free sizes.
    """

    opt_level: ClassVar[int] = 2
    exactness: ClassVar[Exactness] = REORDERED

    min_gain: float = SKIP_PADDING_GAIN
    max_parts: int = MOST_PARTS_WITHOUT_PADDING
    least_taps: int = TAPS_TO_SKIP

    def run(self, module: Module, ctx: PassContext) -> Module:
        return _Skipper(self, ctx).rewrite_module(module)


@dataclass(frozen=True)
class _Axis:
    """A spatial axis of a convolution."""

    size: int
    taps: int
    stride: int
    before: int
    after: int
    dilation: int

    @property
    def places(self) -> int:
        """The number of window positions."""
        reach = (self.taps - 1) * self.dilation + 1
        return (self.size + self.before + self.after - reach) // self.stride + 1

    def met(self, tap: int) -> tuple[int, int]:
        """Returns the first window position at which a tap is in the image, and the number of
        them.
        """
        offset = tap * self.dilation - self.before
        first = max(0, -(offset // self.stride))
        last = min(self.places - 1, (self.size - 1 - offset) // self.stride)
        return first, max(0, last - first + 1)

    def live(self) -> list[int]:
        """Returns the range of taps from the first to the last that is ever in the image."""
        met = [tap for tap in range(self.taps) if self.met(tap)[1]]
        return list(range(met[0], met[-1] + 1)) if met else []


@dataclass(frozen=True)
class _Part:
    """One axis of a convolution of some taps: `taps` of the window at `count` positions from
    `first`, reading pixels from `start` to before `stop`, padded.
    """

    taps: range
    first: int
    count: int
    start: int
    stop: int
    padding: tuple[int, int]


def _whole(axis: _Axis) -> _Part:
    """Returns the axis with the range of live taps, for all window positions."""
    live = axis.live()
    offset = live[0] * axis.dilation - axis.before
    reach = (axis.places - 1) * axis.stride + (live[-1] - live[0]) * axis.dilation + 1
    start, stop = max(0, offset), min(axis.size, offset + reach)
    padding = (start - offset, max(0, offset + reach - stop))
    return _Part(range(live[0], live[-1] + 1), 0, axis.places, start, stop, padding)


def _parts(axis: _Axis) -> list[_Part]:
    """Returns the axis tap by tap, each with the window positions at which it is in the image."""
    found = []
    for tap in axis.live():
        first, count = axis.met(tap)
        start = first * axis.stride + tap * axis.dilation - axis.before
        stop = start + (count - 1) * axis.stride + 1
        if count:
            found.append(_Part(range(tap, tap + 1), first, count, start, stop, (0, 0)))
    return found


class _Skipper(Rewriter):
    def __init__(self, options: SkipPadding, ctx: PassContext) -> None:
        super().__init__()
        self._options = options
        self._ctx = ctx

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        if not _is_plain(new) or new.attrs.get("live"):
            return new
        if not new.tensor.is_static:
            return self._of_size(old, new)
        axes = _axes(new)
        if not axes or not all(axis.live() for axis in axes):
            return new
        dead = any(len(axis.live()) < axis.taps for axis in axes)
        split = self._split(new, axes)
        if not dead and not any(split):
            return new
        if not np.isfinite(new.args[1].data).all():  # type: ignore[attr-defined]
            self._ctx.remark(old, "padding is kept: the weights are not finite")
            return new
        choices = [_parts(a) if s else [_whole(a)] for a, s in zip(axes, split, strict=True)]
        parts = [_convolution(new, axes, part) for part in product(*choices)]
        pixels = math.prod(axis.places for axis in axes)
        kept = sum(math.prod(p.count * len(p.taps) for p in part) for part in product(*choices))
        all_taps = math.prod(axis.taps for axis in axes)
        self._ctx.remark(
            old, f"{len(parts)} parts: {kept} of {pixels * all_taps} products per channel remain"
        )
        # Padded parts first: one kernel adds them, and the whole part adds their sum.
        padded = [p for p in parts if p.op_name == "pad"]
        whole = [p for p in parts if p.op_name != "pad"]
        sums = [reduce(get_op("add"), padded)] if padded else []
        return reduce(get_op("add"), [*whole, *sums])

    def _of_size(self, old: Call, new: Call) -> Expr:
        """Returns a convolution of a free size without taps that meet only padding."""
        if "live" not in new.attrs:  # volumes have none
            return new
        weight, attrs = new.args[1], new.attrs
        assert isinstance(weight, Constant)
        if weight.tensor.shape[1] == 1 and attrs.groups > 1:
            return new  # kernels of depthwise convolutions unroll their taps
        window = weight.tensor.concrete[2:]
        rank = len(window)
        firsts: list[Dim] = [0] * rank
        counts: list[Dim] = list(window)
        for n, size in enumerate(new.args[0].tensor.shape[2:]):
            padding = attrs.padding[n], attrs.padding[rank + n]
            long = window[n] >= self._options.least_taps
            if long and attrs.strides[n] == 1 and any(padding):
                firsts[n], counts[n] = _live(
                    size, new.tensor.shape[2 + n], window[n], padding[0], attrs.dilation[n]
                )
        if counts == list(window) or not np.isfinite(weight.data).all():
            return new
        self._ctx.remark(old, "taps that meet only padding are left out, depending on the size")
        return Call(new.op, new.args, attrs.with_(live=(*firsts, *counts)))

    def _split(self, new: Call, axes: Sequence[_Axis]) -> tuple[bool, ...]:
        """Returns the axes along which taps become separate convolutions, as a flag for each
        axis.
        """
        none = (False,) * len(axes)
        exact = new.tensor.dtype in ("f32", "f64", "i32")
        if self._ctx.target is None or new.attrs.groups != 1 or len(axes) != 2 or not exact:
            return none
        target = self._ctx.target
        choices = list(product((False, True), repeat=len(axes)))
        costs = {split: self._cycles(new, axes, split, target) for split in choices}
        best = min(choices[1:], key=lambda split: costs[split])
        return none if costs[none] < self._options.min_gain * costs[best] else best

    def _cycles(
        self, conv: Call, axes: Sequence[_Axis], split: Sequence[bool], target: Target
    ) -> float:
        """Returns an estimate of the cycles of a convolution in parts."""
        outer, inner = conv.args[1].tensor.concrete[:2]
        batch, dtype = conv.tensor.concrete[0], conv.tensor.dtype
        lanes = target.vector_lanes(dtype)
        choices = [_parts(a) if s else [_whole(a)] for a, s in zip(axes, split, strict=True)]
        count = math.prod(map(len, choices))
        if count > self._options.max_parts:
            return math.inf
        blocks = not (inner % lanes or outer % lanes) and all(a.stride == 1 for a in axes)
        dilation = axes[0].dilation, axes[1].dilation
        total = 0.0
        for part in product(*choices):
            sizes, taps = [p.count for p in part], [len(p.taps) for p in part]
            layer = ConvLayer(batch, inner, outer, sizes[0], sizes[1], math.prod(taps), dtype)
            window = blocks and taps == [WINDOW, WINDOW]
            total += fastest_cycles(layer, target, dilation, has_window=window)
        if count > 1:
            height, width = (axis.places for axis in axes)
            whole = ConvLayer(batch, inner, outer, height, width, dtype=dtype)
            total += count * sum_cycles(whole, target)
        return total


def _live(size: Dim, places: Dim, taps: int, before: int, dilation: int) -> tuple[Dim, Dim]:
    """Returns the first tap that meets a pixel at some window position, and the number of taps to
    the last one, of a convolution with a stride of 1.
    """
    first = dim_max(-((places - before - 1) // dilation), 0)
    stop = dim_min(ceil_div(size + before, dilation), taps)
    return first, dim_max(stop - first, 0)


def _is_plain(conv: Call) -> bool:
    """Whether a call is a convolution with a constant weight that this pass can cut."""
    spatial = conv.op.traits.convolves if isinstance(conv.op, Op) else ""
    if not spatial or not isinstance(conv.args[1], Constant):
        return False
    weight, attrs = conv.args[1].tensor, conv.attrs
    if attrs.data_layout != f"NC{spatial}" or attrs.out_layout:
        return False
    return attrs.weight_layout == f"OI{spatial}" and attrs.channels in (0, weight.shape[0])


def _axes(conv: Call) -> list[_Axis]:
    """Returns the spatial axes of a convolution, [] if its sizes are not known."""
    if not conv.args[0].tensor.is_static:
        return []
    data, weight, attrs = conv.args[0].tensor, conv.args[1].tensor, conv.attrs
    rank = len(weight.shape) - 2
    return [
        _Axis(
            data.concrete[2 + n],
            weight.concrete[2 + n],
            attrs.strides[n],
            attrs.padding[n],
            attrs.padding[rank + n],
            attrs.dilation[n],
        )
        for n in range(rank)
    ]


def _convolution(conv: Call, axes: Sequence[_Axis], part: Sequence[_Part]) -> Call:
    """Returns a part of a convolution, zero-padded to the size of the whole result."""
    data, weight = conv.args
    cut = [*(-p.start for p in part), *(p.stop - a.size for a, p in zip(axes, part, strict=True))]
    changed = conv.attrs.with_(
        padding=(*(p.padding[0] for p in part), *(p.padding[1] for p in part)),
        dilation=tuple(
            a.dilation if len(p.taps) > 1 else 1 for a, p in zip(axes, part, strict=True)
        ),
    )
    result = Call(conv.op, [_padded(data, cut), _taps(weight, [p.taps for p in part])], changed)
    around = [
        *(p.first for p in part),
        *(a.places - p.first - p.count for a, p in zip(axes, part, strict=True)),
    ]
    found = _padded(result, around)
    assert isinstance(found, Call)
    return found


def _padded(image: Expr, pads: Sequence[int]) -> Expr:
    """Returns an image padded with zeros or cropped; the image itself if neither is needed."""
    if not any(pads):
        return image
    half = len(pads) // 2
    return get_op("pad")(image, pads=(0, 0, *pads[:half], 0, 0, *pads[half:]))


def _taps(weight: Expr, taps: Sequence[range]) -> Constant:
    """Returns some taps of a weight."""
    assert isinstance(weight, Constant)
    sizes = tuple(map(len, taps))
    if sizes == weight.tensor.shape[2:]:
        return weight
    some = (slice(None), slice(None), *(slice(t.start, t.stop) for t in taps))
    named = ",".join(f"{t.start}:{t.stop}" for t in taps)
    cropped = weight.tensor.with_(shape=(*weight.tensor.shape[:2], *sizes))
    return weight.derived(f"taps[{named}]", cropped, lambda w: w[some])
