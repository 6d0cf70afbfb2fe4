"""Convolutions blocked over input channels, with many tiles per chunk: a chunk of a weight panel
stays in the first-level cache while the image streams through.
"""

from __future__ import annotations

from clew.cost.policy.caches import SHARE_OF_CONV_CHUNK, SHARE_OF_POINTWISE_CHUNK
from clew.cost.policy.convolutions import CHUNKS_OF_CONV
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.library.register_tile import split_tiles, tile_loops
from clew.schedules.library.tile_sizes import balanced
from clew.schedules.stages import StageInfo
from clew.te import roles


def chunk_of_channels(info: StageInfo, panel_bytes: int, target: Target) -> int:
    """Returns the number of iterations of the outermost reduction loop, over channels or channel
    blocks, per chunk of a weight panel; 0 if summing the whole depth tile by tile is better.
    """
    depth, *others = (n for n in info.loops if n.name in info.reduction_axes)
    known = all(isinstance(n.size, int) for n in info.loops)
    if not known or depth.index.role != roles.DEPTH or not others or not target.has_half_lines:
        return 0
    has_window = any(n.size != 1 for n in others if n.index.role == roles.TAP)
    share = SHARE_OF_CONV_CHUNK if has_window else SHARE_OF_POINTWISE_CHUNK
    most = max(1, int(target.l1_bytes * share * depth.extent / panel_bytes))
    return balanced(depth.extent, most) if depth.extent >= CHUNKS_OF_CONV * most else 0


def sum_chunks(
    schedule: Schedule,
    info: StageInfo,
    chunk: int,
    tile: tuple[int, int],
    lanes: int,
    unroll: int,
) -> list[str]:
    """Accumulates a convolution in scratch memory, in register tiles of (lines, columns) pixels,
    with `chunk` iterations of the outermost reduction loop at a time. Returns the loops around the
    sums of a tile, outermost first.
    """
    n, co, *rows, ow, ci = info.axes
    depth, *others = info.reduction_axes
    schedule.reorder(depth, n, *rows, ow, *others, co, ci)
    chunks, within = schedule.split(depth, chunk)
    schedule.reorder(chunks, n, *rows, ow, within, *others, co, ci)
    around, inside = [chunks, n], list[str]()
    for row in rows:
        outer, inner = split_tiles(schedule, row, tile[0])
        schedule.reorder(outer, ow, inner, within, *others, co, ci)
        around.append(outer)
        inside.append(inner)
    outer, inner = split_tiles(schedule, ow, tile[1])
    inside.append(inner)
    schedule.reorder(outer, within, *others, *inside, co, ci)
    schedule.hold_sums(info.name, outer)
    over, axes = [within, *others], [*inside, co, ci]
    levels = tile_loops(schedule, axes, over, lanes, blocks=co, unroll=unroll)
    return [*around, outer, *levels]
