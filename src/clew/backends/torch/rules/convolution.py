"""Convolutions and transposed convolutions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch.nn import functional

from clew.backends.torch.registry import Building, Step, builds
from clew.backends.torch.rules.matmul import products

_SPATIAL: Final = {1: "W", 2: "HW", 3: "DHW"}
_CONV: Final = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_TRANSPOSED: Final = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}


def torch_pads(low: Sequence[int], high: Sequence[int]) -> list[int]:
    """Returns paddings before and after the last axes as torch takes them: last axis first."""
    pairs = zip(reversed(low), reversed(high), strict=True)
    return [p for pair in pairs for p in pair]


@builds("nn.conv1d", "nn.conv2d", "nn.conv3d")
def conv(b: Building) -> Step:
    """`conv1d` to `conv3d`; unequal paddings are added before. `live` is not needed: the taps that
    it omits meet only zeros.
    """
    attrs, axes = b.attrs, b.types[0].rank - 2
    plain = f"NC{_SPATIAL[axes]}"
    if attrs.data_layout != plain or attrs.get("out_layout", "") not in ("", plain):
        b.refuse(f"images are laid out as {attrs.data_layout}, {attrs.get('out_layout')}")
    if attrs.weight_layout != f"OI{_SPATIAL[axes]}":
        b.refuse(f"the weight is laid out as {attrs.weight_layout}")
    if attrs.channels not in (0, b.shape(1)[0]):
        b.refuse(f"channels={attrs.channels} are not all of the weight's")
    low, high = attrs.padding[:axes], attrs.padding[axes:]
    function, uneven = _CONV[axes], low != high or min(low) < 0
    padding: Any = (0,) * axes if uneven else low
    around = torch_pads(low, high)
    strides, dilation, groups = attrs.strides, attrs.dilation, attrs.groups

    def step(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        if uneven:
            x = functional.pad(x, around)
        return function(x, w, None, strides, padding, dilation, groups)

    return products(b, step, math.prod(b.shape(1)[1:]))


@builds("nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose")
def conv_transpose(b: Building) -> Step:
    """`conv_transpose1d` to `conv_transpose3d`, cropped and padded afterwards where torch does not
    do so.
    """
    attrs, axes = b.attrs, b.types[0].rank - 2
    low, high = attrs.padding[:axes], attrs.padding[axes:]
    extra = tuple(attrs.output_padding) or (0,) * axes
    strides, dilation, groups = attrs.strides, attrs.dilation, attrs.groups
    function = _TRANSPOSED[axes]
    limits = [max(s, d) for s, d in zip(strides, dilation, strict=True)]
    if low == high and min(low) >= 0 and all(e < m for e, m in zip(extra, limits, strict=True)):
        return b.widened(lambda x, w: function(x, w, None, strides, low, extra, groups, dilation))
    ends = [e - p for e, p in zip(extra, high, strict=True)]
    around = torch_pads([-p for p in low], ends)

    def step(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        whole = function(x, w, None, strides, 0, 0, groups, dilation)
        return functional.pad(whole, around)

    return b.widened(step)
