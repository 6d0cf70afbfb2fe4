"""Sliding windows that read each channel separately, as in depthwise convolutions and pooling.

A register tile is lines by columns of the image of one channel, or of one block of channels
([n, co, oh, ow, ci]). It loads each element once for all taps that read it. Lanes are the channels
of a block; in a plain image, they are neighbors along a line.

Padding is not stored: tiles inside the image need no checks, and tiles at its edges skip the taps
in the padding. On microcontrollers, whose memory for code is small, all tiles have the same code.
"""

from __future__ import annotations

from clew.cost.policy.convolutions import BLOCK_IN_VECTORS, LINES_OF_FREE_WINDOWS
from clew.cost.policy.tiles import MOST_ROWS, MOST_UNROLLED_WINDOWS
from clew.ir.dims import Dim
from clew.loop.affine import Simplifier, contains
from clew.loop.ir import buffer_loads
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.demands import IMAGE, OWN_CHANNELS, REDUCES, TAILED, WINDOWS
from clew.schedules.library.images import Image, image_of
from clew.schedules.library.register_tile import split_tiles, spread
from clew.schedules.library.tile_sizes import balanced, window_tile
from clew.schedules.rule import Demand, Rule, TailMatch, Work
from clew.schedules.space import Settings, Space, flag, tile_size
from clew.schedules.stages import StageInfo, stride
from clew.support.dataclass import dataclass
from clew.te.expr import Load


def _slides(work: Work, target: Target) -> bool:
    info = work.reduction
    load, image = _moving_load(info), image_of(info)
    assert image is not None
    indices = {n.name: n.index for n in info.loops}
    over = zip((image.line, image.pixel), info.reduction_axes, strict=True)
    sliding = [(indices[a], indices[t]) for a, t in over if indices[a].extent != 1]
    if not sliding:
        return info.is_anchor
    return load is not None and all(
        any(contains(i, axis) and (contains(i, tap) or tap.extent == 1) for i in load.indices)
        for axis, tap in sliding
    )


@dataclass(frozen=True)
class Sliding(TailMatch):
    """Windows over an image. With `shared`, adjacent result lines read some of the same lines."""

    image: Image
    lanes: int
    shared: bool

    @property
    def across(self) -> int:
        """The number of pixels in a line; of vectors in a plain image."""
        width = self.image.width
        return width if self.image.lane else -(-width // self.lanes)


class Windows(Rule[Sliding]):
    """Reductions over windows of an image, for each channel separately."""

    name = "windows"
    demands = (
        REDUCES,
        TAILED,
        IMAGE,
        WINDOWS,
        OWN_CHANNELS,
        Demand("taps move with the image", _slides),
    )

    def match(self, work: Work, target: Target) -> Sliding | None:
        info = work.reduction
        image = image_of(info)
        assert image is not None
        lanes = target.vector_lanes(info.store.buffer.dtype)
        if image.lane and not _is_block(image.lanes, lanes):
            return None
        shared = _step(info, image.line) == _step(info, info.reduction_axes[0])
        return Sliding(work.start, target, info.name, work.root.name, image, lanes, shared)

    def choices(self, match: Sliding) -> Space:
        image = match.image
        lines, columns = window_tile(
            match.target, image.height if match.shared else 1, match.across
        )
        if not image.lane and match.shared and not match.start.is_static(image.pixel):
            lines = balanced(image.height, LINES_OF_FREE_WINDOWS)
        taps = 1
        for loop in match.info.loops:
            taps *= loop.typical if loop.name in match.info.reduction_axes else 1
        unroll = taps * lines * (columns if image.lane else 1) <= MOST_UNROLLED_WINDOWS
        unroll = unroll and not match.target.is_microcontroller  # code lies in flash
        choices = [
            tile_size("lines", lines, min(image.height, MOST_ROWS), "lines in a register tile"),
            flag("unroll", unroll, "unroll the lines of taps"),
        ]
        if image.lane:
            most = min(image.width, MOST_ROWS)
            choices.append(
                tile_size("columns", columns, most, "pixels of a line in a register tile")
            )
        return Space(tuple(choices))

    def schedule(self, match: Sliding, settings: Settings) -> Schedule:
        schedule, infos = match.begin()
        info, lanes = infos[match.anchor], match.lanes
        kh, kw = info.reduction_axes
        _, _, line, *columns_of_tile, own_lane = info.axes
        n, co, oh, ow, *ci = infos[match.root].axes_in(match.result(schedule))
        oh_outer, oh_inner = split_tiles(schedule, oh, settings["lines"])
        schedule.reorder(ow, oh_inner, *ci)
        if match.image.lane:
            ow_outer, ow_inner = split_tiles(schedule, ow, settings["columns"])
            around, lane = [ow_outer], ci[0]
            if schedule.extent(lane) > lanes:  # a block is several vectors, a tile is of one
                vector, lane = schedule.split(lane, lanes)
                around.append(vector)
            tile = [oh_inner, ow_inner]
        else:
            ow_outer, lane = schedule.split(ow, lanes)
            around, tile = [ow_outer], [oh_inner]
        schedule.reorder(*around, *tile, lane)
        schedule.compute_at(match.anchor, around[-1], "register")
        schedule.reorder(kh, line, kw, *columns_of_tile, own_lane)
        schedule.attempt(lambda: schedule.skip_padding(match.anchor, lanes=own_lane))  # if any
        if not match.target.is_microcontroller:
            schedule.partition(ow_outer)
            schedule.partition(oh_outer)
        # If free sizes determine which taps are in the padding, unrolled code would have a branch
        # for each tap.
        in_loops = [] if _is_decided(match) else [kh, kw]
        if settings["unroll"]:
            schedule.unroll(kh, guarded=kh not in in_loops)
        for name in (*tile, line, kw, *columns_of_tile):
            schedule.unroll(name, guarded=name not in in_loops)
        for name in (lane, own_lane):
            schedule.vectorize(name)
        spread(schedule, [n, co], oh_outer)
        return schedule


def _is_decided(match: Sliding) -> bool:
    """Whether unrolling decides the conditions of taps at the edges of the image."""
    return all(match.start.is_static(loop) for loop in (match.image.line, match.image.pixel))


def _is_block(channels: int, lanes: int) -> bool:
    """Whether a block of this many channels is at most a vector, or a few whole ones."""
    return 1 < channels <= lanes or channels in range(lanes, BLOCK_IN_VECTORS * lanes + 1, lanes)


def _moving_load(info: StageInfo) -> Load | None:
    """Returns the load that moves with the lines or columns of the result."""
    moving = [n.index for n in info.loops if n.name in info.axes[2:4]]
    loads = buffer_loads(info.store.value)
    return next((x for x in loads for i in x.indices for m in moving if contains(i, m)), None)


def _step(info: StageInfo, loop: str) -> Dim | None:
    """Returns the stride of the image's load along a loop, in elements."""
    load = _moving_load(info)
    index = next(n.index for n in info.loops if n.name == loop)
    return None if load is None else stride(load, index, Simplifier())
