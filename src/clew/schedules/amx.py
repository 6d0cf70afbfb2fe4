"""Sums of products of narrow operands on a matrix unit: two by two tiles at a time, the sums of a
block copied out of scratch by the stages that follow.

Rows of the left operand are contiguous along the depth; weights are packed in groups (`NK32n2k`,
`OHWI32o2i`).
"""

from __future__ import annotations

import math

from clew.loop.products import product_of
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules import dot
from clew.schedules.depth import join, joined
from clew.schedules.matmul import bands, spread
from clew.schedules.shape import StageInfo, flatten_axes, stage_infos
from clew.schedules.streaming import stream
from clew.schedules.tiles import balanced

NAME = "tiles"
_IMAGE_RANK = 5
_TILES_HIGH = 2
_TILES_WIDE = 2
# Below this many rows, or this part of the depth, a tile is too empty to pay.
_LEAST_ROWS = 5
_LEAST_DEPTH = 0.25
# Of the first-level cache: the rest is for rows that pass by, and sums.
_SHARE_OF_PANEL = 0.34
# So few blocks of rows do not make up for sums that go to memory and back with each chunk.
_FEW_BLOCKS = 2
# Of the second-level cache: weights that pass by twice cost more than rows that are fetched again.
_SHARE_OF_ROWS = 0.75


def applies(infos: dict[str, StageInfo], anchor: str, target: Target) -> bool:
    """Whether a matrix unit takes a stage's operands, and its tiles would be full enough."""
    return _fullest(infos[anchor], target) is not None


def _fullest(info: StageInfo, target: Target) -> tuple[StageInfo, tuple[int, int, int]] | None:
    """Returns a stage and its tile, its two innermost reduction loops being one where that takes
    fewer tiles; None where none would do.
    """
    best: tuple[StageInfo, tuple[int, int, int]] | None = None
    fewest = math.inf
    for stage in (info, joined(info)):
        tile = _tile(stage, target) if dot.packed(stage) else None
        if tile is None:
            continue
        depth = math.prod(n.extent for n in stage.loops if n.name in stage.reduction_axes)
        if depth // tile[2] < fewest:
            best, fewest = (stage, tile), depth // tile[2]
    return best


def _tile(info: StageInfo, target: Target) -> tuple[int, int, int] | None:
    """Returns rows, columns and depth of a tile of the stage; None where none would do."""
    product = product_of(info.store)
    shape = target.tile_shape(product.a.dtype, product.b.dtype) if product else None
    if product is None or shape is None or len(info.axes) < 2:
        return None
    extents = {n.name: n.extent for n in info.loops}
    most = shape[2]
    whole = extents[info.reduction_axes[-1]]
    fitting = (d for d in range(most, 0, -product.group) if whole % d == 0)
    depth = next(fitting, 0)
    pixels = extents[info.axes[-2]]
    if min(pixels, extents[info.axes[-1]]) < 2:
        return None
    if len(info.axes) == _IMAGE_RANK:
        pixels *= min(_TILES_HIGH, extents[info.axes[-3]])
    if depth < _LEAST_DEPTH * most or pixels < _LEAST_ROWS:
        return None
    return shape[0], shape[1], depth


def schedule(
    schedule: Schedule, infos: dict[str, StageInfo], root: str, anchor: str, target: Target
) -> bool:
    """Schedules an anchor and its tail `root` (itself, if there is none); False if the rule does
    not fit.
    """
    sizes = infos[anchor].store.buffer.shape
    if infos[root].store.buffer.shape != sizes:
        return False
    flatten_axes(schedule, anchor, root)  # short lines would leave tiles half empty
    infos = stage_infos(schedule)
    info = infos[anchor]
    fullest = _fullest(info, target)
    if fullest is None:
        return False
    if fullest[0] is not info:
        info = join(schedule, info)
    tile = fullest[1]
    out = schedule.cache_write(anchor) if root == anchor else root
    axes = infos[root].axes_in(out)
    if len(sizes) == _IMAGE_RANK and sizes[-1] <= _TILES_WIDE * tile[1]:
        outer, panel, levels = _image(schedule, axes, anchor, tile, target)
        lines = levels[0]
        levels += _block(schedule, info, anchor, tile)
    else:
        chunk = _depth_in_cache(schedule, info, tile, target)
        outer, panel, levels = _rows(schedule, info, axes, anchor, tile, chunk > 0, target)
        lines = levels[0] if levels and len(outer) == len(axes) - 1 else ""  # not in bands
        if chunk:
            levels = _chunks(schedule, info, anchor, tile, chunk)
        else:
            levels += _block(schedule, info, anchor, tile)
    stream(schedule, info, panel, levels, target)
    spread(schedule, outer, lines)
    return True


def _depth_in_cache(
    schedule: Schedule, info: StageInfo, tile: tuple[int, int, int], target: Target
) -> int:
    """Returns the depth of which a panel stays in the first-level cache while rows pass by; 0 where
    it is the whole depth, or few rows pass.
    """
    product = product_of(info.store)
    assert product is not None
    rows, depth = schedule.extent(info.axes[-2]), schedule.extent(info.reduction_axes[-1])
    column_bytes = product.a.source.size_bytes // math.prod(product.a.source.shape)
    most = int(target.l1_bytes * _SHARE_OF_PANEL) // (_TILES_WIDE * tile[1] * column_bytes)
    if (
        rows <= _FEW_BLOCKS * _TILES_HIGH * tile[0]
        or depth <= 1.5 * most
        or len(info.reduction_axes) > 1
    ):
        return 0
    return balanced(depth // tile[2], most // tile[2]) * tile[2]


def _block(
    schedule: Schedule, info: StageInfo, anchor: str, tile: tuple[int, int, int]
) -> list[str]:
    """Tiles from zeros to the last step. Returns the loops around them, outermost first."""
    *others, row, column = info.axes
    *around, depth = info.reduction_axes
    schedule.reorder(*around, depth, *others, row, column)
    steps, inner = schedule.split(depth, tile[2])
    schedule.reorder(steps, *others, row, column, inner)
    schedule.tensorize(anchor, row, column, inner)
    return [*around, steps]


def _chunks(
    schedule: Schedule, info: StageInfo, anchor: str, tile: tuple[int, int, int], chunk: int
) -> list[str]:
    """Chunks of the depth, all rows for each. Returns the loops around tiles, outermost first."""
    *others, row, column = info.axes
    (depth,) = info.reduction_axes
    schedule.reorder(depth, *others, row, column)
    chunks, within = schedule.split(depth, chunk)
    schedule.reorder(chunks, *others, row, column, within)
    size = balanced(schedule.extent(row), _TILES_HIGH * tile[0])
    blocks, line = schedule.split(row, size, tail="balance")
    steps, inner = schedule.split(within, tile[2])
    schedule.reorder(steps, line, column, inner)
    schedule.tensorize(anchor, line, column, inner, within=blocks)
    return [chunks, blocks, steps]


def _rows(
    schedule: Schedule,
    info: StageInfo,
    axes: list[str],
    anchor: str,
    tile: tuple[int, int, int],
    whole: bool,
    target: Target,
) -> tuple[list[str], str, list[str]]:
    """Blocks of rows by columns, panels of columns outside. The sums in scratch are those of a
    block, or of a `whole` panel.

    Returns the loops to spread, the loop over panels of weights, and those inside it.
    """
    column = axes[-1]
    batch, row = bands(schedule, info, axes, target, _SHARE_OF_ROWS)
    schedule.reorder(column, *batch, row)
    panel, inner = schedule.split(column, _TILES_WIDE * tile[1])
    schedule.reorder(*batch, panel, row, inner)
    size = balanced(schedule.extent(row), _TILES_HIGH * tile[0])
    attach = panel
    if not whole:
        attach, _ = schedule.split(row, size, tail="balance")
    schedule.compute_at(anchor, attach, "scratch")
    _vectors(schedule, inner, target)
    return [*batch, panel], panel, [] if whole else [attach]


def _image(
    schedule: Schedule,
    axes: list[str],
    anchor: str,
    tile: tuple[int, int, int],
    target: Target,
) -> tuple[list[str], str, list[str]]:
    """Blocks of pixels by one block of channels: parts of a line, or of two lines.

    The pixels of 1x1 convolutions are one line.
    """
    if len(axes) < _IMAGE_RANK:
        *batch, pixels, ci = axes
        size = balanced(schedule.extent(pixels), _TILES_HIGH * tile[0])
        outer, _ = schedule.split(pixels, size, tail="balance")
        schedule.compute_at(anchor, outer, "scratch")
        _vectors(schedule, ci, target)
        return batch, batch[-1], [outer]
    n, co, oh, ow, ci = axes
    width = schedule.extent(ow)
    size = balanced(width, _TILES_HIGH * tile[0])
    lines = 1 if size > tile[0] else min(_TILES_HIGH, schedule.extent(oh))
    oh_outer, oh_inner = schedule.split(oh, lines)
    schedule.reorder(oh_outer, ow, oh_inner, ci)
    ow_outer, ow_inner = schedule.split(ow, size, tail="balance")
    schedule.reorder(ow_outer, oh_inner, ow_inner, ci)
    schedule.compute_at(anchor, ow_outer, "scratch")
    _vectors(schedule, ci, target)
    return [n, co], co, [oh_outer, ow_outer]


def _vectors(schedule: Schedule, column: str, target: Target) -> None:
    vector, lane = schedule.split(column, target.vector_lanes("f32"), tail="guard")
    schedule.unroll(vector)
    schedule.vectorize(lane)
