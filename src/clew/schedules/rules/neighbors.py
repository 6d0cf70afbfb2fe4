"""Sums over neighboring channels of a blocked image (local response normalization).

Lanes are the channels of a block, and the first and last channels have neighbors in other blocks.
The kernel therefore copies a few pixels at a time to scratch with all their channels contiguous.
Sums then load vectors at any channel offset.
"""

from __future__ import annotations

from typing import Final

from clew.cost.policy.sums import PIXELS_COPIED
from clew.loop.affine import contains
from clew.loop.ir import buffer_loads
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.demands import NOT_EMPTY, ONE_RESULT
from clew.schedules.library.images import blocked_image
from clew.schedules.library.register_tile import spread
from clew.schedules.library.tile_sizes import balanced
from clew.schedules.rule import Match, Rule, Work, stage_role
from clew.schedules.space import Settings, Space, tile_size
from clew.schedules.stages import StageInfo, stage_infos
from clew.support.dataclass import dataclass

_LINE: Final = "neighbors.line"
_SUMS: Final = "neighbors.sums"


@dataclass(frozen=True)
class Stages(Match):
    """Names of the stages: in `line`, the channels of a pixel are contiguous; `sums` reads it."""

    line: str
    sums: str
    root: str
    width: int


class Neighbors(Rule[Stages]):
    """Sums over neighboring channels of blocked images."""

    name = "neighbors"
    scope = "kernel"
    demands = (stage_role(_LINE), stage_role(_SUMS), ONE_RESULT, NOT_EMPTY)

    def match(self, work: Work, target: Target) -> Stages | None:
        line, sums, root = work.by_role[_LINE], work.by_role[_SUMS], work.outputs[0]
        image = blocked_image(sums)
        if len(work.reductions) != 1 or root is sums or image is None:
            return None
        whole = root.store.buffer.shape == sums.store.buffer.shape
        if not whole or line.readers != [sums.name]:
            return None
        if not _slides(sums):
            return None
        return Stages(work.start, target, line.name, sums.name, root.name, image.width)

    def choices(self, match: Stages) -> Space:
        pixels = balanced(match.width, PIXELS_COPIED)
        most = min(match.width, 4 * PIXELS_COPIED)
        return Space((tile_size("pixels", pixels, most, "pixels copied at a time"),))

    def schedule(self, match: Stages, settings: Settings) -> Schedule:
        schedule, found = match.begin()
        for name in reversed(list(found)):
            if name not in (match.line, match.sums, match.root):
                schedule.inline(name)
        infos = stage_infos(schedule)
        sums, lanes = infos[match.sums], match.target.vector_lanes
        dtype = sums.store.buffer.dtype
        n, co, oh, ow, ci = infos[match.root].axes
        schedule.reorder(n, oh, ow, co, ci)
        tile, _ = schedule.split(ow, settings["pixels"], tail="balance")
        across = min(lanes(dtype), schedule.extent(ci))
        vector, lane = schedule.split(ci, across, tail="guard")
        schedule.compute_at(match.sums, vector, "register")
        schedule.compute_at(match.line, tile, "scratch", align=across)
        schedule.reorder(*sums.reduction_axes, *sums.axes)
        schedule.unroll(sums.reduction_axes[0])
        schedule.vectorize(sums.axes[-1])
        schedule.vectorize(lane)
        column = infos[match.line].axes[-1]
        along = min(lanes(dtype), schedule.extent(column))
        vectors, side = schedule.split(column, along, tail="guard")
        schedule.vectorize(side)
        schedule.attempt(lambda: schedule.partition(vectors))  # separates vectors of zeros
        spread(schedule, [n, oh])
        return schedule


def _slides(sums: StageInfo) -> bool:
    """Whether a sum reduces along the axis of its lanes, and along no other."""
    if sums.is_anchor or len(sums.reduction_axes) != 1:
        return False
    indices = {n.name: n.index for n in sums.loops}
    step, lane = indices[sums.reduction_axes[0]], indices[sums.axes[-1]]
    loads = list(buffer_loads(sums.store.value))
    return len(loads) == 1 and all(
        contains(index, step) == contains(index, lane) == (index is loads[0].indices[-1])
        for index in loads[0].indices
    )
