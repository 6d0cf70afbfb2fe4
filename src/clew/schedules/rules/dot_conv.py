"""Convolutions of narrow operands with dot product instructions, on images in channel blocks.

The tiles, bands and prefetches are those of `conv`; a reduction step is a dot group of 2 or 4
neighboring channels. Weights are packed so that a group lies side by side in each lane
(`OHWI32o2i`).
"""

from __future__ import annotations

from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.demands import DOT_UNIT, PACKED
from clew.schedules.library.products import dot_lanes, dot_tile, product_in, registers_taken
from clew.schedules.library.tile_sizes import rows_of_tile
from clew.schedules.rule import Work
from clew.schedules.rules.conv import Conv, Convolution
from clew.schedules.space import Settings
from clew.schedules.stages import StageInfo
from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class DotConvolution(Convolution):
    """A convolution whose operands have dot groups of `group` elements. The instruction takes
    `taken` registers besides those of sums and operands.
    """

    group: int
    taken: int


class DotConv(Conv):
    """Convolutions that dot product instructions can compute."""

    name = "dot_conv"
    demands = (*Conv.demands, PACKED, DOT_UNIT)
    has_chunks = False

    def match(self, work: Work, target: Target) -> DotConvolution | None:
        found = super().match(work, target)
        product = product_in(work.reduction)
        if found is None or product is None:
            return None
        lanes = dot_lanes(product, target)
        return DotConvolution(
            found.start, target, found.anchor, found.root, found.image,
            min(found.image.lanes, lanes), found.own_channels, found.flat, product.group,
            registers_taken(product, target),
        )  # fmt: skip

    def most_rows(self, match: Convolution, vectors: int) -> int:
        assert isinstance(match, DotConvolution)
        return rows_of_tile(match.target, vectors, match.taken)

    def tile(
        self, schedule: Schedule, info: StageInfo, match: Convolution, settings: Settings
    ) -> list[str]:
        assert isinstance(match, DotConvolution)
        return dot_tile(
            schedule, info, match.lanes, match.group, blocks=info.axes[1], unroll=settings["unroll"]
        )
