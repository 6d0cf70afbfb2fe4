"""Sums of products of narrow operands by dot product instructions: the register tiles of matrix
products and convolutions, a reduction step being a group of 2 or 4 neighbors.

Weights are packed so that a group lies side by side in each lane (`NK32n2k`, `OHWI32o2i`).
"""

from __future__ import annotations

import math

from clew.loop.affine import Simplifier
from clew.loop.products import Product, offset_of, packed_step, product_of, step_along
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.matmul import spread
from clew.schedules.shape import StageInfo
from clew.schedules.tiles import balanced, reduction_unroll, rows_of_tile

NAME = "dot"
_IMAGE_RANK = 5


def applies(infos: dict[str, StageInfo], anchor: str, target: Target) -> bool:
    """Whether a stage sums products of groups of neighbors that the target has instructions
    for.
    """
    info = infos[anchor]
    return packed(info) and bool(dot_lanes(product_of(info.store), target))


def packed(info: StageInfo) -> bool:
    """Whether a stage sums products of narrow operands: one contiguous along the depth, the other
    packed in groups beside its columns.
    """
    product = product_of(info.store)
    if product is None or not info.axes:
        return False
    by_name = {n.name: n.index for n in info.loops}
    depth, column = by_name[info.reduction_axes[-1]], by_name[info.axes[-1]]
    simplifier = Simplifier()
    forms = [offset_of(x.source, x.indices, simplifier) for x in (product.a, product.b)]
    shared = [step_along(f, depth) == 1 and step_along(f, column) == 0 for f in forms]
    if not any(shared):
        return False
    other = product.b if shared[0] else product.a
    shape = other.source.shape
    return shape[-1] == product.group and (
        packed_step(other, depth, product.group, simplifier) is not None
    )


def dot_lanes(product: Product | None, target: Target) -> int:
    """Returns the lanes of a dot product instruction for these operands; 0 where there is none."""
    if product is None:
        return 0
    a, b = product.a.dtype, product.b.dtype
    return target.dot_lanes(a, b) or target.dot_lanes(b, a)


def schedule(
    schedule: Schedule, infos: dict[str, StageInfo], root: str, anchor: str, target: Target
) -> bool:
    """Schedules an anchor and its tail `root` (itself, if there is none); False if the rule does
    not fit.
    """
    info = infos[anchor]
    product = product_of(info.store)
    if product is None or infos[root].store.buffer.shape != info.store.buffer.shape:
        return False
    lanes = dot_lanes(product, target)
    out = schedule.cache_write(anchor) if root == anchor else root
    axes = infos[root].axes_in(out)
    rule = (
        _image if len(axes) == _IMAGE_RANK and info.store.buffer.shape[-1] <= 2 * lanes else _rows
    )
    outer = rule(schedule, info, axes, anchor, lanes, target)
    dot_tile(schedule, info, lanes, product.group)
    spread(schedule, outer)
    return True


def _rows(
    schedule: Schedule,
    info: StageInfo,
    axes: list[str],
    anchor: str,
    lanes: int,
    target: Target,
) -> list[str]:
    """Tiles of rows by two vectors of columns, panels of columns outside."""
    *batch, column = axes
    row = batch.pop() if batch else ""
    vectors = 2 if schedule.extent(column) > lanes else 1
    schedule.reorder(column, *axes[:-1])
    panel, inner = schedule.split(column, lanes * vectors)
    vector, lane = schedule.split(inner, lanes, tail="guard")
    schedule.reorder(*batch, panel, *([row] if row else []), vector, lane)
    attach = panel
    if row:
        size = balanced(schedule.extent(row), rows_of_tile(target, vectors))
        attach, line = schedule.split(row, size, tail="balance")
        schedule.unroll(line)
    schedule.compute_at(anchor, attach, "register")
    schedule.unroll(vector)
    schedule.vectorize(lane)
    return [*batch, panel]


def _image(
    schedule: Schedule,
    info: StageInfo,
    axes: list[str],
    anchor: str,
    lanes: int,
    target: Target,
) -> list[str]:
    """Tiles of pixels by one block of channels."""
    n, co, oh, ow, ci = axes
    _, _, height, width, block = info.store.buffer.shape
    most = rows_of_tile(target, -(-block // lanes))
    columns = balanced(width, most)
    lines = balanced(height, max(1, most // columns))
    oh_outer, oh_inner = schedule.split(oh, lines, tail="balance")
    schedule.reorder(oh_outer, ow, oh_inner, ci)
    ow_outer, ow_inner = schedule.split(ow, columns, tail="balance")
    schedule.reorder(ow_outer, oh_inner, ow_inner, ci)
    schedule.compute_at(anchor, ow_outer, "register")
    vector, lane = schedule.split(ci, lanes, tail="guard")
    for name in (oh_inner, ow_inner, vector):
        schedule.unroll(name)
    schedule.vectorize(lane)
    return [n, co, oh_outer]


def dot_tile(schedule: Schedule, info: StageInfo, lanes: int, group: int) -> None:
    """Orders an anchor that was moved into registers: groups outside, its tile unrolled inside."""
    *others, column = info.axes
    *outer, depth = info.reduction_axes
    schedule.reorder(*outer, depth, *others, column)
    groups, step = schedule.split(depth, group)
    schedule.reorder(groups, *others, column, step)
    vector, lane = schedule.split(column, lanes, tail="guard")
    accumulators = math.prod(schedule.extent(name) for name in (*others, vector))
    steps = reduction_unroll(accumulators)
    if 1 < steps < schedule.extent(groups):
        _, inner = schedule.split(groups, steps)
        schedule.unroll(inner)
    for name in (*others, vector):
        schedule.unroll(name)
    schedule.dot(step)
    schedule.vectorize(lane)
