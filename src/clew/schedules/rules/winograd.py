"""Winograd convolutions: tiles are transformed in registers, multiplied, and transformed back.

A large image is processed in groups of tiles, each in the scratch memory of one thread. A small
image is processed as a whole, panel by panel of output channels, so that each weight is read once.
"""

from __future__ import annotations

import math
from typing import Final

from clew.cost.policy.convolutions import (
    MOST_TILES_OF_WINOGRAD_GROUP,
    ROWS_OF_WINOGRAD_GROUP,
    TILES_OF_WINOGRAD_GROUP,
    TILES_PER_FAR_WEIGHT,
)
from clew.cost.policy.threads import PIECES_FOR_THREADS
from clew.cost.policy.tiles import MOST_ROWS, STEPS_OF_IMAGE_PREFETCH, UNROLLED_STEPS
from clew.ir.dims import SymDim, typical
from clew.ir.types import memory_bytes
from clew.loop.ir import buffer_loads
from clew.loop.products import Product, product_of
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.demands import ONE_RESULT
from clew.schedules.library.images import Image, blocked_image
from clew.schedules.library.products import dot_lanes, dot_tile
from clew.schedules.library.register_tile import register_tile, split_tiles, spread
from clew.schedules.library.streaming import stream
from clew.schedules.library.tile_sizes import balanced, rows_of_tile
from clew.schedules.rule import Match, Rule, Work, stage_role
from clew.schedules.space import Choice, Settings, Space, flag, tile_size
from clew.schedules.stages import StageInfo, stage_infos
from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class Stages:
    """The stages by their roles. A patch is loaded and transformed along one axis, then the other;
    each transform has a stage for partial sums. Products are transformed back the same way.
    """

    patch: StageInfo
    data_column_parts: StageInfo
    data_columns: StageInfo
    data_parts: StageInfo
    data_tiles: StageInfo
    products: StageInfo
    out_column_parts: StageInfo
    out_columns: StageInfo
    out_parts: StageInfo
    image: StageInfo

    @property
    def panel(self) -> int:
        """The number of output channels in a panel of the weight."""
        tiles = self.data_tiles.store.buffer
        loads = buffer_loads(self.products.store.value)
        (weight,) = (x.source for x in loads if x.source is not tiles)
        channels: int = weight.typical_shape[2]
        return channels

    @property
    def product(self) -> Product | None:
        """The products, if they are of narrow operands."""
        return product_of(self.products.store)

    @property
    def blocks_together(self) -> int:
        """The number of blocks of output channels in a panel."""
        return self.panel // self.image.store.buffer.typical_shape[-1]

    @property
    def tiles(self) -> tuple[int, int]:
        """The numbers of rows and columns of tiles in an image."""
        _, _, height, width, _ = self.image.store.buffer.typical_shape
        side = self.side
        return -(-height // side), -(-width // side)

    @property
    def side(self) -> int:
        """The number of pixels along a side of a tile."""
        return self.out_columns.store.buffer.typical_shape[2]

    @property
    def is_free(self) -> bool:
        """Whether only a run knows the number of tiles in an image."""
        return any(isinstance(extent, SymDim) for extent in self.image.store.buffer.shape[2:4])

    @property
    def has_free_batch(self) -> bool:
        """Whether only a run knows the number of images."""
        return isinstance(self.image.store.buffer.shape[0], SymDim)

    @property
    def tile_bytes(self) -> int:
        """The bytes of a tile of all channels between transforms: of the image, and of products."""
        lanes = self.image.store.buffer.typical_shape[4]
        points = self.out_columns.store.buffer.typical_shape[3]
        inner = self.data_tiles.store.buffer.typical_shape[2]
        blocks = self.image.store.buffer.typical_shape[1]
        data_bytes = memory_bytes(self.data_tiles.store.buffer.dtype)
        sum_bytes = memory_bytes(self.products.store.buffer.dtype)
        found: int = points * points * lanes * (inner * data_bytes + blocks * sum_bytes)
        return found

    def is_counted(self, target: Target) -> bool:
        """Whether groups are runs of tiles of any length, rather than rows of tiles: those of an
        image of free size, those of several images if each has few, and those of an image whose
        rows of tiles are too long for the second-level cache.
        """
        few = self.has_free_batch and math.prod(self.tiles) < TILES_OF_WINOGRAD_GROUP
        return self.is_free or few or self._has_long_rows(target)

    def _has_long_rows(self, target: Target) -> bool:
        if self.has_free_batch or _rows_in_cache(self, target):
            return False
        return TILES_PER_FAR_WEIGHT <= target.l2_bytes // (2 * self.tile_bytes) < self.tiles[1]


_NAMES: Final = tuple(Stages.__dataclass_fields__)


@dataclass(frozen=True)
class Transformed(Match):
    """A Winograd convolution with its tail inlined into `root`."""

    stages: Stages
    root: str
    image: Image


class Winograd(Rule[Transformed]):
    """The stages of `nn.conv2d_winograd`, with an elementwise tail."""

    name = "winograd"
    scope = "kernel"
    demands = (*(stage_role(f"winograd.{name}") for name in _NAMES), ONE_RESULT)

    def match(self, work: Work, target: Target) -> Transformed | None:
        stages = Stages(*(work.by_role[f"winograd.{name}"] for name in _NAMES))
        kept, root = {info.name for info in vars(stages).values()}, work.outputs[0]
        image, anchors = blocked_image(stages.image), [i for i in work.stages if i.is_anchor]
        if image is None or len(anchors) != 1:
            return None
        others = [n for n in work.infos if n not in kept and n != root.name]
        if stages.image is not root:
            others.append(stages.image.name)
        whole = root.store.buffer.shape == image.shape
        if not whole or any(work.infos[n].is_reduction for n in others):
            return None
        schedule, order = work.start.copy(), list(work.infos)
        for name in sorted(others, key=order.index, reverse=True):
            schedule.inline(name)
        return Transformed(schedule, target, stages, root.name, image)

    def choices(self, match: Transformed) -> Space:
        stages = match.stages
        rows, columns = stages.tiles
        images = typical(match.image.shape[0])
        counted = stages.is_counted(match.target)
        group = 0 if counted else _rows_in_group(stages, match.target)
        together = (group * columns) or images * rows * columns
        vectors = stages.blocks_together * _vectors_of_block(stages, match.target)
        most = rows_of_tile(match.target, vectors)
        if counted:
            tiles, together = _tiles_in_cache(stages, match.target), MOST_ROWS
            grouped = tile_size("tiles", tiles, MOST_TILES_OF_WINOGRAD_GROUP, "tiles in a group", 8)
        else:
            options = tuple(n for n in range(1, rows + 1) if rows % n == 0)
            about = "rows of tiles in a group"
            if not stages.has_free_batch:
                options, about = (0, *options), f"{about}; 0: all images"
            grouped = Choice("group", group, options, about)
        return Space(
            (
                grouped,
                tile_size("rows", balanced(together, most), min(together, MOST_ROWS),
                          "tiles in a register tile of the products"),
                Choice("unroll", 0, UNROLLED_STEPS,
                       "unrolled reduction steps; 0: by the tile's size"),
                flag("prefetch", True, "prefetch the next panel while one is in use"),
            )
        )  # fmt: skip

    def schedule(self, match: Transformed, settings: Settings) -> Schedule:
        schedule, _ = match.begin()
        stages = match.stages
        if stages.is_counted(match.target):
            group = _arrange_tiles(schedule, match.root, stages, settings["tiles"], match.target)
        else:
            group = _arrange_image(schedule, match.root, stages, settings["group"], match.target)
        _transform_back(schedule, stages)
        _multiply(schedule, stages, group, settings, match.target)
        if group:
            schedule.compute_at(stages.data_tiles.name, group, "scratch")
        outer = _transform(schedule, stages, counted=stages.is_counted(match.target))
        if not group:
            cb, row = outer
            spread(schedule, [cb], row)
        return schedule


def _rows_in_group(stages: Stages, target: Target) -> int:
    """Returns the number of rows of tiles in a group; 0 if a group should hold all images, so that
    each weight is read once for all.
    """
    found = _rows_in_cache(stages, target)
    if found or not stages.has_free_batch:
        return found
    rows, columns = stages.tiles
    most = _tiles_in_cache(stages, target)
    return max(n for n in range(1, rows + 1) if n == 1 or (rows % n == 0 and n * columns <= most))


def _rows_in_cache(stages: Stages, target: Target) -> int:
    """Returns the fewest rows of tiles that keep the arithmetic units busy and stay in the
    second-level cache; 0 if there are none.
    """
    batch, blocks, _, _, lanes = stages.image.store.buffer.typical_shape
    points = stages.out_columns.store.buffer.typical_shape[3]
    rows, columns = stages.tiles
    inner = stages.data_tiles.store.buffer.typical_shape[2]
    element_bytes = memory_bytes(stages.data_tiles.store.buffer.dtype)
    weight_bytes = points * points * lanes * element_bytes * inner * blocks * lanes
    for taken in range(1, batch * rows // PIECES_FOR_THREADS + 1):
        tiles = taken * columns
        group_bytes = tiles * stages.tile_bytes
        if rows % taken or tiles < ROWS_OF_WINOGRAD_GROUP:
            continue
        stays = weight_bytes + group_bytes <= target.l2_bytes
        if stays or (tiles >= TILES_PER_FAR_WEIGHT and group_bytes <= target.l2_bytes):
            return taken
    return 0


def _tiles_in_cache(stages: Stages, target: Target) -> int:
    """Returns the number of tiles that stay in half of the second-level cache between transforms,
    at most so many that threads get several groups of a small image.
    """
    return max(
        TILES_OF_WINOGRAD_GROUP,
        min(MOST_TILES_OF_WINOGRAD_GROUP, target.l2_bytes // (2 * stages.tile_bytes)),
    )


def _arrange_tiles(
    schedule: Schedule, root: str, stages: Stages, tiles: int, target: Target
) -> str:
    """Orders the loops over tiles that are counted, in groups of equal size: through the rows of an
    image of free size, or through all images of a free number. Returns the loop over groups.
    """
    n, co, oh, ow, ci = stage_infos(schedule)[root].axes
    ty, y = schedule.split(oh, stages.side, tail="guard")
    tx, x = schedule.split(ow, stages.side, tail="guard")
    schedule.reorder(n, ty, tx, co, y, x, ci)
    tile, images = schedule.fuse(ty, tx), [n]
    if not stages.is_free:
        tile, images = schedule.fuse(n, tile), []
    group, tile = schedule.split(tile, tiles, tail="once")
    schedule.reorder(*images, group, co, tile, y, x, ci)
    _fill_tile(schedule, stages, tile, (y, x, ci), target)
    schedule.share_guards(co)
    for outer in images:
        group = schedule.fuse(outer, group)
    schedule.parallel(group)
    return group


def _arrange_image(schedule: Schedule, root: str, stages: Stages, rows: int, target: Target) -> str:
    """Orders the loops over the image and unrolls the pixels of a tile. Returns the loop over
    groups, or "" if there are no groups.
    """
    tile = stages.side
    n, co, oh, ow, ci = stage_infos(schedule)[root].axes
    ty, y = schedule.split(oh, tile, tail="guard")
    tx, x = schedule.split(ow, tile, tail="guard")
    group = ""
    if rows:
        group, row = schedule.split(ty, rows)
        schedule.reorder(n, group, co, row, tx, y, x, ci)
    else:
        schedule.reorder(n, co, ty, tx, y, x, ci)
    _fill_tile(schedule, stages, tx, (y, x, ci), target)
    if group:
        group = schedule.fuse(n, group)
        schedule.parallel(group)
    else:
        spread(schedule, [n, co], ty)
    return group


def _fill_tile(
    schedule: Schedule, stages: Stages, tile: str, inside: tuple[str, str, str], target: Target
) -> None:
    """Computes the pixels of a tile, whose loops are rows, columns and channels, in registers."""
    y, x, ci = inside
    if _vectors_of_block(stages, target) > 1:
        tile, ci = schedule.split(ci, _lanes_of_sums(stages, target))
        schedule.reorder(tile, y, x, ci)
        schedule.unroll(tile)
    schedule.compute_at(stages.out_parts.name, y, "register")
    schedule.compute_at(stages.out_columns.name, tile, "register")
    for name in (y, x, stages.out_parts.axes[3]):
        schedule.unroll(name)
    for name in (ci, stages.out_parts.axes[4]):
        schedule.vectorize(name)


def _lanes_of_sums(stages: Stages, target: Target) -> int:
    """Returns the lanes of a vector of sums."""
    return dot_lanes(stages.product, target) or stages.image.store.buffer.typical_shape[-1]


def _vectors_of_block(stages: Stages, target: Target) -> int:
    """Returns the vectors of sums in a block of channels."""
    channels: int = stages.image.store.buffer.typical_shape[-1]
    return -(-channels // _lanes_of_sums(stages, target))


def _transform_back(schedule: Schedule, stages: Stages) -> None:
    """Transforms the products back, column by column: first the partial sums, then the results."""
    ob, t, i, j, oi = stages.out_columns.axes
    schedule.reorder(ob, t, j, i, oi)
    schedule.compute_at(stages.out_column_parts.name, j, "register")
    for name in (i, j, stages.out_column_parts.axes[2]):
        schedule.unroll(name)
    for name in (oi, stages.out_column_parts.axes[4]):
        schedule.vectorize(name)


def _multiply(
    schedule: Schedule, stages: Stages, group: str, settings: Settings, target: Target
) -> None:
    """Computes the matrix products in register tiles of tiles by output channels, in the order of
    the weights in memory.
    """
    info = stages.products
    out = schedule.cache_write(info.name)
    if group:
        schedule.compute_at(out, group, "scratch")
    i, j, ob, t, oi = info.axes_in(out)
    lanes = schedule.extent(oi)
    panel, block = schedule.split(ob, stages.blocks_together)
    schedule.reorder(i, j, panel, t, block, oi)
    panel = schedule.fuse(schedule.fuse(i, j), panel)
    tiles, row = split_tiles(schedule, t, settings["rows"])
    schedule.compute_at(info.name, tiles, "register")
    product, unroll, lane = stages.product, settings["unroll"], oi
    if product is not None:
        lanes = _lanes_of_sums(stages, target)
        reduction = dot_tile(schedule, info, lanes, product.group, info.axes[2], unroll)
    else:
        reduction = register_tile(
            schedule, info, lanes, blocks=info.axes[2], unroll=unroll, apart=STEPS_OF_IMAGE_PREFETCH
        )
    if _vectors_of_block(stages, target) > 1:
        vector, lane = schedule.split(oi, lanes)
        schedule.unroll(vector)
    for name in (row, block):
        schedule.unroll(name)
    schedule.vectorize(lane)
    if settings["prefetch"]:
        stream(schedule, info, panel, [tiles, *reduction], target, of_size=True)
    if not group:
        schedule.parallel(panel)


def _transform(schedule: Schedule, stages: Stages, *, counted: bool) -> list[str]:
    """Loads and transforms a patch column by column, then row by row. Returns the outer loops."""
    i, j, cb, t, ci = stages.data_tiles.axes
    rows, column = [], t
    if not counted:
        row, column = schedule.split(t, stages.tiles[1])
        rows = [row]
    schedule.reorder(cb, *rows, column, i, j, ci)
    schedule.compute_at(stages.data_parts.name, i, "register")
    schedule.compute_at(stages.data_columns.name, column, "register")
    down = stages.data_columns.axes
    schedule.reorder(*down[:2], down[3], down[2], down[4])
    schedule.compute_at(stages.data_column_parts.name, down[3], "register")
    schedule.compute_at(stages.patch.name, down[3], "register")
    for info in (stages.patch, stages.data_column_parts, stages.data_columns, stages.data_parts):
        for name in info.axes[2:4]:
            schedule.unroll(name)
    for name in (i, j):
        schedule.unroll(name)
    for info in (
        stages.patch,
        stages.data_column_parts,
        stages.data_columns,
        stages.data_parts,
        stages.data_tiles,
    ):
        schedule.vectorize(info.axes[4])
    if counted:
        # Checks of each pixel take a divided position; most tiles have no padding.
        schedule.check_whole(column)
    return [cb, *rows]
