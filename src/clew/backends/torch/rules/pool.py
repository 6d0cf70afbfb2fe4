"""Pooling over windows, and over all spatial axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch.nn import functional

from clew.backends.torch.registry import Building, Step, builds
from clew.backends.torch.rules.convolution import torch_pads
from clew.ir.types import is_float

_MAX: Final = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
_MOST_AXES: Final = 3
_MANY_CHANNELS: Final = 16
"""From this number of channels on, torch finds maxima several times faster if channels are last,
the copies there and back included.
"""


def _axes(b: Building) -> int:
    """Returns the number of spatial axes; refuses layouts other than batch, channels, space."""
    layout, rank = b.attrs.layout, b.types[0].rank
    plain = layout.startswith("NC") and layout.isalpha() and layout.isupper()
    if not plain or len(layout) != rank:
        b.refuse(f"images are laid out as {layout}")
    return rank - 2


class _Windows:
    """The windows of a pooling. With `own`, torch pads as much as wanted; else `around` is added
    before.
    """

    def __init__(self, b: Building) -> None:
        attrs, axes = b.attrs, _axes(b)
        if not 1 <= axes <= _MOST_AXES:
            b.refuse(f"torch pools over at most {_MOST_AXES} axes")
        self.axes = axes
        self.kernel, self.strides, self.dilation = attrs.kernel, attrs.strides, attrs.dilation
        self.low, self.high = attrs.padding[:axes], attrs.padding[axes:]
        if min(attrs.padding) < 0:
            b.refuse(f"padding={attrs.padding} crops")
        self.ceil = bool(attrs.ceil_mode)
        held = all(p <= k // 2 for p, k in zip(self.low, self.kernel, strict=True))
        self.own = self.low == self.high and held
        ends = []
        for n, (size, count) in enumerate(zip(b.shape()[2:], b.type.concrete[2:], strict=True)):
            reach = (self.kernel[n] - 1) * self.dilation[n] + 1
            ends.append(max((count - 1) * self.strides[n] + reach - size - self.low[n], 0))
        self.around = torch_pads(self.low, ends)

    def padded(self, x: torch.Tensor, fill: float) -> torch.Tensor:
        """Returns the input surrounded by a number."""
        return functional.pad(x, self.around, value=fill) if any(self.around) else x


@builds("nn.max_pool2d")
def max_pool(b: Building) -> Step:
    """`max_pool1d` to `max_pool3d`; integers as floats that hold them."""
    w = _Windows(b)
    function: Any = _MAX[w.axes]
    dtype = b.dtype
    if w.axes == 2 and b.shape()[1] >= _MANY_CHANNELS:
        function = _max_pool_by_pixel
    if w.own:

        def step(x: torch.Tensor) -> torch.Tensor:
            return function(x, w.kernel, w.strides, w.low, w.dilation, w.ceil)
    else:

        def step(x: torch.Tensor) -> torch.Tensor:
            return function(w.padded(x, -math.inf), w.kernel, w.strides, 0, w.dilation)

    if is_float(b.type.dtype):
        return b.widened(step)
    if b.type.dtype == "i64":
        b.refuse("f64 does not hold all i64")
    if not w.own:
        b.refuse("padding of integers is never selected")
    wide = torch.float64 if b.type.dtype == "i32" else torch.float32
    return lambda x: step(x.to(wide)).to(dtype)


def _max_pool_by_pixel(x: torch.Tensor, *window: Any) -> torch.Tensor:
    """`max_pool2d` with the channels of a pixel side by side."""
    return functional.max_pool2d(x.contiguous(memory_format=torch.channels_last), *window)


def _sums(w: _Windows, x: torch.Tensor) -> torch.Tensor:
    """Returns the sums of the windows of a padded input."""
    kernel, strides = tuple(w.kernel), tuple(w.strides)
    if w.axes == 1:
        flat = functional.avg_pool2d(x[:, :, None], (1, *kernel), (1, *strides), divisor_override=1)
        return flat[:, :, 0]
    pool: Any = functional.avg_pool2d if w.axes == 2 else functional.avg_pool3d
    found: torch.Tensor = pool(x, kernel, strides, divisor_override=1)
    return found


def _need_dense(b: Building) -> None:
    if any(d != 1 for d in b.attrs.dilation):
        b.refuse("torch averages windows without dilation only")


@builds("nn.avg_pool2d")
def avg_pool(b: Building) -> Step:
    """`avg_pool1d` to `avg_pool3d`, or sums over counts where torch pads otherwise."""
    w, counts_pad = _Windows(b), bool(b.attrs.count_include_pad)
    _need_dense(b)
    if w.own:
        pool: Any = (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)[
            w.axes - 1
        ]
        return b.widened(lambda x: pool(x, w.kernel, w.strides, w.low, w.ceil, counts_pad))
    counted = torch.ones((1, 1, *b.shape()[2:]), dtype=torch.float64)
    if counts_pad:
        inner = functional.pad(counted, torch_pads(w.low, w.high), value=1.0)
        more = [a - p for a, p in zip(w.around, torch_pads(w.low, w.high), strict=True)]
        counts = _sums(w, functional.pad(inner, more))
    else:
        counts = _sums(w, w.padded(counted, 0.0))
    wide = torch.float64 if b.type.dtype == "f64" else torch.float32
    divisor = counts.clamp(min=1).to(wide)
    return b.widened(lambda x: _sums(w, w.padded(x, 0.0)) / divisor)


@builds("nn.lp_pool2d")
def lp_pool(b: Building) -> Step:
    """Sums of powers: `lp_pool` of torch pads no windows."""
    w, p = _Windows(b), b.attrs.p
    _need_dense(b)

    def step(x: torch.Tensor) -> torch.Tensor:
        x = w.padded(x, 0.0)
        if p == 1:
            return _sums(w, x.abs())
        if p == 2:
            return _sums(w, x * x).sqrt()
        return _sums(w, x.abs() ** p) ** (1 / p)

    return b.widened(step)


def _space(b: Building) -> Sequence[int]:
    return tuple(range(2, 2 + _axes(b)))


@builds("nn.global_avg_pool2d")
def global_avg_pool(b: Building) -> Step:
    """`mean`."""
    axes = _space(b)
    return b.widened(lambda x: torch.mean(x, axes, keepdim=True))


@builds("nn.global_max_pool2d")
def global_max_pool(b: Building) -> Step:
    """`amax`."""
    axes = _space(b)
    return lambda x: torch.amax(x, axes, keepdim=True)
