"""Windows that slide over each channel by itself, as in depthwise convolutions and pooling: a
register tile is lines by columns of one channel's image (or of one block's, [n, co, oh, ow, ci]),
and each element is loaded once for all taps of the tile that read it. Lanes are channels of a
block; in a plain image they are neighbors along a line.

Padding is computed in place: the tiles inside the image ask nothing, those at its edges leave out
the taps that lie in the padding.
"""

from __future__ import annotations

import contextlib

from clew.loop.affine import Simplifier, contains
from clew.loop.ir import buffer_loads
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.matmul import spread
from clew.schedules.shape import StageInfo, stride
from clew.schedules.tiles import window_tile
from clew.support.errors import ScheduleError
from clew.te.expr import Imm, Inlined, Load, Scalar, Select

NAME = "windows"
_BLOCKED, _PLAIN = 5, 4  # axes
# Products of a tile that are written out one by one; of more, lines of taps are a loop.
MOST_UNROLLED = 256
_VECTORS_OF_BLOCK = 2


def applies(infos: dict[str, StageInfo], reduction: str, target: Target) -> bool:
    """Whether the stage reduces windows of an image, each channel's by itself."""
    info = infos[reduction]
    shape = info.store.buffer.shape
    lanes = target.vector_lanes(info.store.buffer.dtype)
    blocked = len(shape) == _BLOCKED and _is_block(shape[-1], lanes)
    image = (blocked or len(shape) == _PLAIN) and len(info.axes) == len(shape)
    if not image or len(info.reduction_axes) != 2 or not reads_own_channels(info):
        return False
    load = _image(info)
    indices = {n.name: n.index for n in info.loops}
    over = zip(info.axes[2:4], info.reduction_axes, strict=True)
    sliding = [(indices[a], indices[t]) for a, t in over if indices[a].extent != 1]
    if not sliding:
        return info.is_anchor
    return load is not None and all(
        any(contains(i, axis) and (contains(i, tap) or tap.extent == 1) for i in load.indices)
        for axis, tap in sliding
    )


def _is_block(channels: int, lanes: int) -> bool:
    """Whether so many channels are a vector, or a few whole ones."""
    return 1 < channels <= lanes or channels in range(lanes, _VECTORS_OF_BLOCK * lanes + 1, lanes)


def reads_own_channels(info: StageInfo) -> bool:
    """Whether every operand depends on the output channel: channels share no loads."""
    if len(info.axes) < 2:
        return False  # no image
    axis = info.axes[-1 if len(info.axes) == _BLOCKED else 1]
    channel = next(n.index for n in info.loops if n.name == axis)
    return all(
        any(contains(i, channel) for i in load.indices) for load in buffer_loads(info.store.value)
    )


def is_padding(info: StageInfo) -> bool:
    """Whether a stage is a tensor within zeros."""
    value: Scalar = info.store.value
    while isinstance(value, Inlined):
        value = value.value
    if not isinstance(value, Select):
        return False
    zero = value.b
    return isinstance(zero, Imm) and zero.value == 0 and not info.is_reduction


def schedule(
    schedule: Schedule, infos: dict[str, StageInfo], root: str, reduction: str, target: Target
) -> bool:
    """Schedules a reduction and its tail `root` (itself, if there is none); False if the rule does
    not fit.
    """
    info = infos[reduction]
    if infos[root].store.buffer.shape != info.store.buffer.shape:
        return False
    kh, kw = info.reduction_axes
    taps = schedule.extent(kh) * schedule.extent(kw)
    _, _, line, *columns_of_tile, own_lane = info.axes
    blocked = bool(columns_of_tile)
    height, width = info.store.buffer.shape[2:4]
    lanes = target.vector_lanes(info.store.buffer.dtype)
    shared = _step(info, line) == _step(info, kh)  # lines of a tile read lines of each other
    lines, columns = window_tile(
        target, height if shared else 1, width if blocked else -(-width // lanes)
    )
    out = schedule.cache_write(reduction) if root == reduction else root
    n, co, oh, ow, *ci = infos[root].axes_in(out)
    oh_outer, oh_inner = schedule.split(oh, lines, tail="balance")
    schedule.reorder(ow, oh_inner, *ci)
    if blocked:
        ow_outer, ow_inner = schedule.split(ow, columns, tail="balance")
        around, lane = [ow_outer], ci[0]
        if schedule.extent(lane) > lanes:  # a block is several vectors, a tile is of one
            vector, lane = schedule.split(lane, lanes)
            around.append(vector)
        tile = [oh_inner, ow_inner]
    else:
        ow_outer, lane = schedule.split(ow, lanes)
        around, tile = [ow_outer], [oh_inner]
    schedule.reorder(*around, *tile, lane)
    schedule.compute_at(reduction, around[-1], "register")
    schedule.reorder(kh, line, kw, *columns_of_tile, own_lane)
    with contextlib.suppress(ScheduleError):  # there may be no padding
        schedule.skip_padding(reduction, lanes=own_lane)
    schedule.partition(ow_outer)
    schedule.partition(oh_outer)
    if taps * lines * (columns if blocked else 1) <= MOST_UNROLLED:
        schedule.unroll(kh)
    for name in (*tile, line, kw, *columns_of_tile):
        schedule.unroll(name)
    for name in (lane, own_lane):
        schedule.vectorize(name)
    spread(schedule, [n, co], oh_outer)
    return True


def _image(info: StageInfo) -> Load | None:
    """Returns the load that moves with the lines or columns of the result."""
    moving = [n.index for n in info.loops if n.name in info.axes[2:4]]
    loads = buffer_loads(info.store.value)
    return next((x for x in loads for i in x.indices for m in moving if contains(i, m)), None)


def _step(info: StageInfo, loop: str) -> int | None:
    """Returns how far the image is read from one iteration of a loop to the next."""
    load = _image(info)
    index = next(n.index for n in info.loops if n.name == loop)
    return None if load is None else stride(load, index, Simplifier())
