"""Sliding windows of convolutions and pools: kernel, strides, dilation and padding.

Layouts have the channels first: `NCHW` for two spatial axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from clew.ir.dims import Dim, dim_max
from clew.support.dataclass import dataclass

SPATIAL: Final = {1: "W", 2: "HW", 3: "DHW"}
"""The letters of spatial axes, by their number."""


@dataclass(frozen=True)
class Window:
    """A window over spatial axes, with a number for each; `padding` is (before..., after...)."""

    kernel: tuple[Dim, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[Dim, ...]

    @property
    def rank(self) -> int:
        """The number of spatial axes."""
        return len(self.kernel)

    @property
    def layout(self) -> str:
        """The layout of an image with these axes."""
        return f"NC{SPATIAL[self.rank]}"

    def extent(self, axis: int) -> Dim:
        """Returns the number of elements that a window spans along a spatial axis."""
        return extent(self.kernel[axis], self.dilation[axis])


def extent(kernel: Dim, dilation: int) -> Dim:
    """Returns the number of elements that a window spans along an axis."""
    return (kernel - 1) * dilation + 1


def same_padding(
    sizes: Sequence[Dim], extents: Sequence[Dim], strides: Sequence[int], *, upper: bool = True
) -> tuple[Dim, ...]:
    """Returns padding (before..., after...) that makes the output ceil(size / stride)."""
    totals = []
    for size, span, stride in zip(sizes, extents, strides, strict=True):
        windows = (size + stride - 1) // stride
        totals.append(dim_max((windows - 1) * stride + span - size, 0))
    return divided(totals, upper=upper)


def divided(totals: Sequence[Dim], *, upper: bool) -> tuple[Dim, ...]:
    """Returns padding (before..., after...) with these totals; an odd one goes last if `upper`."""
    small = [total // 2 for total in totals]
    large = [total - less for total, less in zip(totals, small, strict=True)]
    return (*small, *large) if upper else (*large, *small)
