"""Convolutions between transforms of tiles (Winograd): transforms in registers, then products.

A large image goes through in groups of tiles, all in the scratch memory of one thread; a small one
as a whole, panel by panel of output channels, so that each weight is read once.
"""

from __future__ import annotations

from dataclasses import dataclass

from clew.ir.types import bits
from clew.loop.ir import buffer_loads
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.matmul import register_tile, spread
from clew.schedules.shape import StageInfo, stage_infos
from clew.schedules.streaming import stream
from clew.schedules.tiles import balanced, rows_of_tile

NAME = "winograd"
_IMAGE_RANK = 5
# How many groups of tiles an image must give to go through in groups, for threads to share.
_FEWEST_GROUPS = 4
# Rows that a register tile of the products should have.
_FEWEST_ROWS = 6
# Tiles that a weight must be used for, once it comes from behind the second-level cache.
_ROWS_A_WEIGHT = 28


@dataclass(frozen=True)
class Stages:
    """The stages by their work. A patch is loaded, transformed along one axis and the other, in
    parts and whole; products are transformed back the same way.
    """

    patch: StageInfo
    column_parts: StageInfo
    columns: StageInfo
    parts: StageInfo
    tiles: StageInfo
    products: StageInfo
    back_column_parts: StageInfo
    back_columns: StageInfo
    back_parts: StageInfo
    image: StageInfo

    def names(self) -> set[str]:
        """Names of all of them."""
        return {info.name for info in vars(self).values()}


def find(schedule: Schedule, target: Target) -> Stages | None:
    """Returns the stages of such a convolution; None where the nest has none.

    They are known by their shape: one sum of products whose operand and result go through stages
    that choose among sums by one of their axes.
    """
    infos = stage_infos(schedule)
    anchors = [info for info in infos.values() if info.is_anchor]
    if len(anchors) != 1:
        return None
    products = anchors[0]
    before = _before(infos, products)
    after = _after(infos, products)
    if len(before) != 5 or len(after) != 4 or len(after[-1].axes) != _IMAGE_RANK:
        return None
    patch, column_parts, columns, parts, tiles = before
    back_column_parts, back_columns, back_parts, image = after
    return Stages(
        patch, column_parts, columns, parts, tiles, products,
        back_column_parts, back_columns, back_parts, image,
    )  # fmt: skip


def _before(infos: dict[str, StageInfo], products: StageInfo) -> list[StageInfo]:
    """Returns the stages that lead to the products' operand, the first first."""
    of_buffer = {id(info.store.buffer): info for info in infos.values()}
    chain: list[StageInfo] = []
    here = products
    while True:
        made = {id(x.source): of_buffer.get(id(x.source)) for x in buffer_loads(here.store.value)}
        found = [info for info in made.values() if info is not None]
        if len(found) != 1 or (here is not products and not here.case_axes):
            return list(reversed(chain))
        here = found[0]
        chain.append(here)


def _after(infos: dict[str, StageInfo], products: StageInfo) -> list[StageInfo]:
    """Returns the stages that the products go through, the image last."""
    chain: list[StageInfo] = []
    here = products
    while len(here.readers) == 1 and (here is products or here.case_axes):
        here = infos[here.readers[0]]
        chain.append(here)
    return chain


def schedule(schedule: Schedule, stages: Stages, target: Target) -> bool:
    """Schedules the convolution and its tail; False if the rule does not fit."""
    root = _inline_rest(schedule, stages)
    if root is None:
        return False
    tiles = stages.tiles.store.buffer
    loads = buffer_loads(stages.products.store.value)
    panel = next(x.source for x in loads if x.source is not tiles).shape[-1]
    grouping = choose_grouping(stages, panel, target)
    group = _arrange_image(schedule, root, stages, grouping)
    _transform_back(schedule, stages)
    _multiply(schedule, stages, group, grouping, target)
    if group:
        schedule.compute_at(stages.tiles.name, group, "scratch")
    outer = _transform(schedule, stages, grouping)
    if not group:
        cb, row = outer
        spread(schedule, [cb], row)
    return True


def _inline_rest(schedule: Schedule, stages: Stages) -> str | None:
    """Inlines the tail into the kernel's only output; None, and nothing done, where it cannot."""
    infos = stage_infos(schedule)
    outputs = [name for name, info in infos.items() if info.is_output]
    others = [n for n in infos if n not in stages.names() and n not in outputs]
    if stages.image.name not in outputs:
        others.append(stages.image.name)
    whole = infos[outputs[0]].store.buffer.shape == stages.image.store.buffer.shape
    if len(outputs) != 1 or not whole or any(infos[n].is_reduction for n in others):
        return None
    order = list(infos)
    for name in sorted(others, key=order.index, reverse=True):
        schedule.inline(name)
    return outputs[0]


@dataclass(frozen=True)
class Grouping:
    """How many `rows` of tiles, of `columns` each, go through together; 0 for all of the image.

    A panel, whose weights lie together, is `vectors` blocks of output channels.
    """

    rows: int
    columns: int
    vectors: int


def choose_grouping(stages: Stages, panel: int, target: Target) -> Grouping:
    """Returns the fewest rows of tiles that keep the arithmetic units busy and stay in the
    second-level cache; where there are none, the whole image, for which each weight is read once.
    """
    batch, blocks, height, width, lanes = stages.image.store.buffer.shape
    tile, points = stages.back_columns.store.buffer.shape[2:4]
    rows, columns = -(-height // tile), -(-width // tile)
    inner = stages.tiles.store.buffer.shape[2]
    element_bytes = max(8, bits(stages.tiles.store.buffer.dtype)) // 8
    point_bytes = points * points * lanes * element_bytes
    weight_bytes = point_bytes * inner * blocks * lanes
    row_bytes = point_bytes * (inner + blocks) * columns
    vectors = panel // lanes
    for taken in range(1, batch * rows // _FEWEST_GROUPS + 1):
        group_bytes, tiles = taken * row_bytes, taken * columns
        if rows % taken or tiles < _FEWEST_ROWS:
            continue
        stays = weight_bytes + group_bytes <= target.l2_bytes
        if stays or (tiles >= _ROWS_A_WEIGHT and group_bytes <= target.l2_bytes):
            return Grouping(taken, columns, vectors)
    return Grouping(0, columns, vectors)


def _arrange_image(schedule: Schedule, root: str, stages: Stages, grouping: Grouping) -> str:
    """Orders the loops over the image, a tile's pixels unrolled; returns the loop of a group, or
    "" where there are none.
    """
    tile = stages.back_columns.store.buffer.shape[2]
    n, co, oh, ow, ci = stage_infos(schedule)[root].axes
    ty, y = schedule.split(oh, tile, tail="guard")
    tx, x = schedule.split(ow, tile, tail="guard")
    group = ""
    if grouping.rows:
        group, row = schedule.split(ty, grouping.rows)
        schedule.reorder(n, group, co, row, tx, y, x, ci)
    else:
        schedule.reorder(n, co, ty, tx, y, x, ci)
    schedule.compute_at(stages.back_parts.name, y, "register")
    schedule.compute_at(stages.back_columns.name, tx, "register")
    for name in (y, x, stages.back_parts.axes[3]):
        schedule.unroll(name)
    for name in (ci, stages.back_parts.axes[4]):
        schedule.vectorize(name)
    if group:
        group = schedule.fuse(n, group)
        schedule.parallel(group)
    else:
        spread(schedule, [n, co], ty)
    return group


def _transform_back(schedule: Schedule, stages: Stages) -> None:
    """A column's sums, then what they add up to, column by column."""
    ob, t, i, j, oi = stages.back_columns.axes
    schedule.reorder(ob, t, j, i, oi)
    schedule.compute_at(stages.back_column_parts.name, j, "register")
    for name in (i, j, stages.back_column_parts.axes[2]):
        schedule.unroll(name)
    for name in (oi, stages.back_column_parts.axes[4]):
        schedule.vectorize(name)


def _multiply(
    schedule: Schedule, stages: Stages, group: str, grouping: Grouping, target: Target
) -> None:
    """The matrix products: register tiles of tiles by output channels, weights in their order."""
    info = stages.products
    out = schedule.cache_write(info.name)
    if group:
        schedule.compute_at(out, group, "scratch")
    i, j, ob, t, oi = info.axes_in(out)
    lanes = schedule.extent(oi)
    panel, block = schedule.split(ob, grouping.vectors)
    schedule.reorder(i, j, panel, t, block, oi)
    panel = schedule.fuse(schedule.fuse(i, j), panel)
    size = balanced(schedule.extent(t), rows_of_tile(target, grouping.vectors))
    tiles, row = schedule.split(t, size, tail="balance")
    schedule.compute_at(info.name, tiles, "register")
    reduction = register_tile(schedule, info, lanes, blocks=info.axes[2])
    for name in (row, block):
        schedule.unroll(name)
    schedule.vectorize(oi)
    stream(schedule, info, panel, [tiles, *reduction], target)
    if not group:
        schedule.parallel(panel)


def _transform(schedule: Schedule, stages: Stages, grouping: Grouping) -> list[str]:
    """Reads and transforms a patch column by column, then row by row. Returns the outer loops."""
    i, j, cb, t, ci = stages.tiles.axes
    row, column = schedule.split(t, grouping.columns)
    schedule.reorder(cb, row, column, i, j, ci)
    schedule.compute_at(stages.parts.name, i, "register")
    schedule.compute_at(stages.columns.name, column, "register")
    down = stages.columns.axes
    schedule.reorder(*down[:2], down[3], down[2], down[4])
    schedule.compute_at(stages.column_parts.name, down[3], "register")
    schedule.compute_at(stages.patch.name, down[3], "register")
    for info in (stages.patch, stages.column_parts, stages.columns, stages.parts):
        for name in info.axes[2:4]:
            schedule.unroll(name)
    for name in (i, j):
        schedule.unroll(name)
    for info in (stages.patch, stages.column_parts, stages.columns, stages.parts, stages.tiles):
        schedule.vectorize(info.axes[4])
    return [cb, row]
