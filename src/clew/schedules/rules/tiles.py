"""Products of narrow operands on a matrix unit, in two by two tiles. The following stages read the
sums of a block from scratch.

Rows of the left operand are contiguous along the depth. Weights are packed in dot groups
(`NK32n2k`, `OHWI32o2i`).
"""

from __future__ import annotations

import math
from dataclasses import replace

from clew.cost.policy.caches import SHARE_OF_MATRIX_PANEL, SHARE_OF_MATRIX_ROWS
from clew.cost.policy.tiles import (
    BLOCKS_OF_ROWS,
    DEPTH_IN_CHUNKS,
    DEPTH_OF_MATRIX_TILE,
    ROWS_OF_MATRIX_TILE,
    TILES_HIGH,
    TILES_WIDE,
)
from clew.ir.types import memory_bytes
from clew.loop.affine import Simplifier
from clew.loop.ir import For
from clew.loop.products import offset_of, packed_step, step_along
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.machine.units import depth_of_tile
from clew.schedules.demands import IN_PARTS, NARROW, PACKED, PRODUCTS, REDUCES, TAILED, TILE_UNIT
from clew.schedules.library.images import blocked_image
from clew.schedules.library.panels import write_vectors
from clew.schedules.library.products import multiply_in_tiles, packed, product_in
from clew.schedules.library.register_tile import rows_in_cache, split_bands, split_tiles, spread
from clew.schedules.library.streaming import stream
from clew.schedules.library.tile_sizes import balanced
from clew.schedules.rule import Demand, Rule, TailMatch, Work
from clew.schedules.space import Settings, Space, flag, tile_size
from clew.schedules.stages import StageInfo, flatten_axes, stage_infos
from clew.support.dataclass import dataclass
from clew.te import roles
from clew.te.expr import INDEX, Imm, Index, binary
from clew.te.walk import substitute

Tile = tuple[int, int, int]
"""The rows, columns and depth of a tile."""


@dataclass(frozen=True)
class Tiled(TailMatch):
    """Sums in tiles. `is_image` is set if a block of channels is at most as wide as two tiles."""

    tile: Tile
    is_image: bool


class Tiles(Rule[Tiled]):
    """Sums of products that a matrix unit can compute, if its tiles are full enough."""

    name = "tiles"
    demands = (
        REDUCES,
        TAILED,
        PRODUCTS,
        NARROW,
        PACKED,
        TILE_UNIT,
        Demand("full tiles", lambda work, target: _fullest(work.reduction, target) is not None),
    )

    def match(self, work: Work, target: Target) -> Tiled | None:
        if IN_PARTS.holds(work, target):
            return None  # `parts` and its kin multiply them
        anchor, root, image = work.reduction.name, work.root.name, blocked_image(work.reduction)
        schedule = work.start.copy()
        flatten_axes(schedule, anchor, root)  # short lines would leave tiles half empty
        info = stage_infos(schedule)[anchor]
        fullest = _fullest(info, target)
        if fullest is None:
            return None
        stage, tile = fullest
        if stage is not info:
            join(schedule, info)
        narrow = image is not None and image.lanes <= TILES_WIDE * tile[1]
        return Tiled(schedule, target, anchor, root, tile, narrow)

    def choices(self, match: Tiled) -> Space:
        prefetch = flag("prefetch", True, "prefetch the next panel while one is in use")
        if match.is_image:
            return Space((prefetch,))
        info, tile = match.info, match.tile
        extents = {n.name: n.typical for n in info.loops}
        height, depth = extents[info.axes[-2]], extents[info.reduction_axes[-1]]
        choices = [
            tile_size("band", rows_in_cache(info, match.target, SHARE_OF_MATRIX_ROWS), height,
                 "rows that each panel of weights serves", TILES_HIGH * tile[0]),
            prefetch,
        ]  # fmt: skip
        if len(info.reduction_axes) == 1:
            chunk = _depth_in_cache(info, tile, match.target) or depth
            choices.append(tile_size("depth", chunk, depth, "depth of a chunk of a panel", tile[2]))
        return Space(tuple(choices))

    def schedule(self, match: Tiled, settings: Settings) -> Schedule:
        schedule, infos = match.begin()
        info, tile = infos[match.anchor], match.tile
        axes = infos[match.root].axes_in(match.result(schedule))
        target = match.target
        if match.is_image:
            outer, panel, levels = _image(schedule, info, axes, tile, target)
            lines = levels[0]
            levels += _block(schedule, info, tile)
        else:
            whole = schedule.extent(info.reduction_axes[-1])
            depth = settings.get("depth", whole)
            chunked = depth < whole
            outer, panel, levels = _rows(
                schedule, info, axes, tile, settings["band"], chunked, target
            )
            lines = levels[0] if levels and len(outer) == len(axes) - 1 else ""  # not in bands
            if chunked:
                levels = _chunks(schedule, info, tile, depth)
            else:
                levels += _block(schedule, info, tile)
        if settings["prefetch"]:
            stream(schedule, info, panel, levels, target)
        spread(schedule, outer, lines)
        return schedule


def _fullest(info: StageInfo, target: Target) -> tuple[StageInfo, Tile] | None:
    """Returns a stage and its tile. The stage has its two innermost reduction loops fused if that
    takes fewer tiles. Returns None if no tile fits.
    """
    best: tuple[StageInfo, Tile] | None = None
    fewest = math.inf
    for stage in (info, joined(info)):
        tile = _tile(stage, target) if packed(stage) else None
        if tile is None:
            continue
        depth = math.prod(n.typical for n in stage.loops if n.name in stage.reduction_axes)
        if depth // tile[2] < fewest:
            best, fewest = (stage, tile), depth // tile[2]
    return best


def _tile(info: StageInfo, target: Target) -> Tile | None:
    """Returns the tile of a stage; None if no tile would be full enough."""
    product = product_in(info)
    shape = target.tile_shape(product.a.dtype, product.b.dtype) if product else None
    if product is None or shape is None or len(info.axes) < 2:
        return None
    extents = {n.name: n.typical for n in info.loops}
    most = shape[2]
    depth = depth_of_tile(extents[info.reduction_axes[-1]], most, product.group)
    pixels = extents[info.axes[-2]]
    if min(pixels, extents[info.axes[-1]]) < 2:
        return None
    if roles.LINE in info.axis_roles:
        pixels *= min(TILES_HIGH, extents[info.axis_of(roles.LINE)])
    if depth < DEPTH_OF_MATRIX_TILE * most or pixels < ROWS_OF_MATRIX_TILE:
        return None
    return shape[0], shape[1], depth


def _depth_in_cache(info: StageInfo, tile: Tile, target: Target) -> int:
    """Returns the depth of a chunk of a panel that stays in the first-level cache while rows stream
    by; 0 if the panel is not worth splitting.
    """
    product = product_in(info)
    assert product is not None
    extents = {n.name: n.typical for n in info.loops}
    rows, depth = extents[info.axes[-2]], extents[info.reduction_axes[-1]]
    column_bytes = memory_bytes(product.a.dtype)
    most = int(target.l1_bytes * SHARE_OF_MATRIX_PANEL) // (TILES_WIDE * tile[1] * column_bytes)
    if (
        rows <= BLOCKS_OF_ROWS * TILES_HIGH * tile[0]
        or depth <= DEPTH_IN_CHUNKS * most
        or len(info.reduction_axes) > 1
    ):
        return 0
    return balanced(depth // tile[2], most // tile[2]) * tile[2]


def _block(schedule: Schedule, info: StageInfo, tile: Tile) -> list[str]:
    """Computes the sums in tile registers. Returns the loops around them, outermost first."""
    return [*info.reduction_axes[:-1], multiply_in_tiles(schedule, info, tile[2])]


def _chunks(schedule: Schedule, info: StageInfo, tile: Tile, chunk: int) -> list[str]:
    """Computes chunk by chunk of the depth, all rows for each. Returns the loops around tiles,
    outermost first.
    """
    *others, row, column = info.axes
    (depth,) = info.reduction_axes
    schedule.reorder(depth, *others, row, column)
    chunks, within = schedule.split(depth, chunk)
    schedule.reorder(chunks, *others, row, column, within)
    size = balanced(schedule.extent(row), TILES_HIGH * tile[0])
    blocks, line = split_tiles(schedule, row, size, free="exact")
    steps, inner = schedule.split(within, tile[2])
    schedule.reorder(steps, line, column, inner)
    schedule.tensorize(info.name, line, column, inner, within=blocks)
    return [chunks, blocks, steps]


def _rows(
    schedule: Schedule,
    info: StageInfo,
    axes: list[str],
    tile: Tile,
    band: int,
    whole: bool,
    target: Target,
) -> tuple[list[str], str, list[str]]:
    """Arranges blocks of rows by columns, with panels of columns outside. Scratch holds the sums of
    a block, or of a `whole` panel.

    Returns the loops that threads share, the loop over panels of weights, and the loops inside it.
    """
    column = axes[-1]
    batch, row = split_bands(schedule, axes, band, "balance")
    schedule.reorder(column, *batch, row)
    panel, inner = schedule.split(column, TILES_WIDE * tile[1])
    schedule.reorder(*batch, panel, row, inner)
    size = balanced(schedule.extent(row), TILES_HIGH * tile[0])
    attach = panel
    if not whole:
        attach, _ = split_tiles(schedule, row, size, free="exact")
    schedule.compute_at(info.name, attach, "scratch")
    write_vectors(schedule, inner, target)
    return [*batch, panel], panel, [] if whole else [attach]


def _image(
    schedule: Schedule,
    info: StageInfo,
    axes: list[str],
    tile: Tile,
    target: Target,
) -> tuple[list[str], str, list[str]]:
    """Arranges blocks of pixels by one block of channels. A block of pixels is a part of a line, or
    of two lines. The pixels of 1x1 convolutions are one line.

    Returns the loops that threads share, the loop over panels of weights, and the loops inside it.
    """
    if roles.LINE not in info.axis_roles:
        *batch, pixels, ci = axes
        size = balanced(schedule.extent(pixels), TILES_HIGH * tile[0])
        outer, _ = split_tiles(schedule, pixels, size, free="exact")
        schedule.compute_at(info.name, outer, "scratch")
        write_vectors(schedule, ci, target)
        return batch, batch[-1], [outer]
    n, co, oh, ow, ci = axes
    width = schedule.extent(ow)
    size = balanced(width, TILES_HIGH * tile[0])
    lines = 1 if size > tile[0] else min(TILES_HIGH, schedule.extent(oh))
    oh_outer, oh_inner = schedule.split(oh, lines)
    schedule.reorder(oh_outer, ow, oh_inner, ci)
    ow_outer, ow_inner = split_tiles(schedule, ow, size, free="exact")
    schedule.reorder(ow_outer, oh_inner, ow_inner, ci)
    schedule.compute_at(info.name, ow_outer, "scratch")
    write_vectors(schedule, ci, target)
    return [n, co], co, [oh_outer, ow_outer]


def joined(info: StageInfo) -> StageInfo:
    """Returns a stage with its two innermost reduction loops fused, if one operand is contiguous
    along both and the other is packed in groups along both; otherwise the stage unchanged.
    """
    if len(info.reduction_axes) < 2 or product_in(info) is None:
        return info
    outer, inner = (n for n in info.loops if n.name in info.reduction_axes[-2:])
    if info.loops[-2:] != [outer, inner] or 1 in (outer.extent, inner.extent):
        return info
    depth = Index(f"{outer.name}+{inner.name.rsplit('.', 1)[-1]}", outer.extent * inner.extent)
    size, simplifier = Imm(inner.extent, INDEX), Simplifier()
    places = {
        id(outer.index): simplifier.simplify(binary("floordiv", depth, size)),
        id(inner.index): simplifier.simplify(binary("mod", depth, size)),
    }
    store = replace(info.store, value=substitute(info.store.value, places))
    fused = replace(info, loops=[*info.loops[:-2], For(depth, "serial", store)], store=store)
    product = product_in(fused)
    assert product is not None
    steps = [
        (
            step_along(offset_of(x.source, x.indices, simplifier), depth),
            packed_step(x, depth, product.group, simplifier),
        )
        for x in (product.a, product.b)
    ]
    fits = any(a == 1 and b is not None for (a, _), (_, b) in (steps, reversed(steps)))
    return fused if fits else info


def join(schedule: Schedule, info: StageInfo) -> StageInfo:
    """Fuses the two innermost reduction loops of a stage; returns the new stage."""
    schedule.fuse(*info.reduction_axes[-2:])
    return stage_infos(schedule)[info.name]
