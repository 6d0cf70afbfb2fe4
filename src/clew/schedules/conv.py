"""Convolutions in a blocked layout [n, co, oh, ow, ci]: lanes are channels of a block, a register
tile is pixels by channel blocks; an odd block is left for a nest of its own.

Channel blocks are outermost, so that their weights stay in cache while the image streams by. Frames
outside of a clip are left out of the reduction.
"""

from __future__ import annotations

import contextlib
import math

from clew.loop.affine import contains
from clew.loop.ir import buffer_loads
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.matmul import register_tile, spread
from clew.schedules.shape import StageInfo, stage_infos
from clew.schedules.streaming import stream
from clew.schedules.tiles import balanced, rows_of_tile
from clew.support.errors import ScheduleError
from clew.te.expr import Load

NAME = "conv"
_RANK = 5
# The panels of weights at work and on their way take the rest of the second-level cache.
_SHARE_OF_IMAGE = 0.4
_FEW_PANELS = 4
_VECTORS_OF_BLOCK = 2
# Of the tiles of an image as one line to those of its lines: from here on these stay.
_GOOD_FIT = 0.95


def applies(infos: dict[str, StageInfo], anchor: str, target: Target) -> bool:
    """Whether the anchor gives a blocked image, of five axes, the last one or two vectors long, and
    reads one line by line; a pool of whole images does not.
    """
    info = infos[anchor]
    shape = info.store.buffer.shape
    lanes = target.vector_lanes(info.store.buffer.dtype)
    return (
        len(shape) == _RANK
        and 1 < shape[-1] <= _VECTORS_OF_BLOCK * lanes
        and len(info.reduction_axes) > 0
        and any(_has_lines(info, load) for load in buffer_loads(info.store.value))
    )


def schedule(
    schedule: Schedule, infos: dict[str, StageInfo], root: str, anchor: str, target: Target
) -> bool:
    """Schedules an anchor and its tail `root` (itself, if there is none); False if the rule does
    not fit.
    """
    info = infos[anchor]
    if infos[root].store.buffer.shape != info.store.buffer.shape:
        return False
    _, blocks, height, width, block = info.store.buffer.shape
    vectors = 2 if blocks > 1 and not _reads_own_channels(info) else 1
    lanes = min(block, target.vector_lanes(info.store.buffer.dtype))
    wide = -(-block // lanes)
    if wide > 1:  # a block is several vectors by itself
        vectors = 1
    most = rows_of_tile(target, vectors * wide)
    kept = _lines_in_cache(info, target, blocks // vectors)
    if _one_line(schedule, info, most, root, anchor):
        infos = stage_infos(schedule)
        info, height, width, kept = infos[anchor], 1, height * width, kept * width
    columns = balanced(width, most)
    lines = balanced(height, max(1, most // columns))
    out = schedule.cache_write(anchor) if root == anchor else root
    n, co, *rows, ow, ci = infos[root].axes_in(out)
    outer = [n]
    schedule.reorder(co, n, *rows, ow, ci)  # outermost: a block that is left is a nest of its own
    co_outer, co_inner = schedule.split(co, vectors)
    down, *across = [*rows, ow]
    if kept < schedule.extent(down):
        schedule.reorder(down, n, co_outer, co_inner, *across, ci)  # so may bands differ in height
        unit = 1 if rows else columns  # whole tiles
        most_kept = max(kept // unit, lines if rows else 1)
        size = unit * balanced(-(-schedule.extent(down) // unit), most_kept)
        band, down = schedule.split(down, size, tail="balance")
        outer.insert(0, band)
    schedule.reorder(*outer, co_outer, down, *across, co_inner, ci)
    inside = []
    if rows:
        down, oh_inner = schedule.split(down, lines, tail="balance")
        schedule.reorder(down, ow, oh_inner, co_inner, ci)
        inside.append(oh_inner)
    ow_outer, ow_inner = schedule.split(ow if rows else down, columns, tail="balance")
    schedule.compute_at(anchor, ow_outer, "register")
    reduction = register_tile(schedule, info, lanes, blocks=info.axes[1])
    with contextlib.suppress(ScheduleError):  # frames before and after a clip; most have none
        schedule.skip_padding(anchor)
    vector, lane = schedule.split(ci, lanes, tail="guard")
    for name in (*inside, ow_inner, co_inner, vector):
        schedule.unroll(name)
    schedule.vectorize(lane)
    tiles = [down, ow_outer] if rows else [ow_outer]
    stream(schedule, info, co_outer, [*tiles, *reduction], target)
    if len(outer) > 1:  # bands of lines
        spread(schedule, [*outer, co_outer, tiles[0]])
    else:
        spread(schedule, [*outer, co_outer], tiles[0])
    return True


def _one_line(schedule: Schedule, info: StageInfo, most: int, root: str, anchor: str) -> bool:
    """Makes the image one line, where no tap reaches beyond a pixel and tiles of `most` pixels
    fit that better than they fit its lines. Returns whether it did.
    """
    _, _, height, width, _ = info.store.buffer.shape
    columns = balanced(width, most)
    tiles = -(-width // columns) * -(-height // max(1, most // columns))
    if -(-height * width // most) >= tiles * _GOOD_FIT:
        return False
    try:
        schedule.flatten(*dict.fromkeys((anchor, root)), first=2)
    except ScheduleError:
        return False
    return True


def _lines_in_cache(info: StageInfo, target: Target, panels: int) -> int:
    """Returns how many lines of the result read a part of the image that stays in the second-level
    cache while panels of weights pass by; all of them where few pass.
    """
    height = info.store.buffer.shape[2]
    load = next(x for x in buffer_loads(info.store.value) if _has_lines(info, x))
    if panels < _FEW_PANELS:
        return height
    over = (n.index for n in info.loops if n.name in info.reduction_axes)
    frames = math.prod(i.extent for i in over if contains(load.indices[0], i))
    line_bytes = frames * load.source.size_bytes / load.source.shape[0] / height
    return min(height, max(1, int(target.l2_bytes * _SHARE_OF_IMAGE / line_bytes)))


def _has_lines(info: StageInfo, load: Load) -> bool:
    line = next(n.index for n in info.loops if n.name == info.axes[2])
    return any(contains(i, line) for i in load.indices)


def _reads_own_channels(info: StageInfo) -> bool:
    """Whether every operand depends on the output channel (depthwise): blocks share no loads
    then.
    """
    channel = next(n.index for n in info.loops if n.name == info.axes[1])
    return all(
        any(contains(i, channel) for i in load.indices) for load in buffer_loads(info.store.value)
    )
