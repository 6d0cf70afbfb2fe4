"""Sums of products of narrow operands, as dot product instructions and matrix units take them."""

from __future__ import annotations

import math

from clew.loop.affine import Simplifier
from clew.loop.products import Product, offset_of, packed_step, product_of, step_along
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.library.stages import StageInfo
from clew.schedules.library.tile_sizes import reduction_unroll
from clew.te import roles


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


def dot_tile(schedule: Schedule, info: StageInfo, lanes: int, group: int, unroll: int = 0) -> None:
    """Orders an anchor that was moved into registers: groups outside, its tile unrolled inside.

    `unroll` steps of the reduction are written out; 0 leaves it to the size of the tile.
    """
    *others, column = info.axes
    *outer, depth = info.reduction_axes
    schedule.reorder(*outer, depth, *others, column)
    groups, step = schedule.split(depth, group)
    schedule.reorder(groups, *others, column, step)
    vector, lane = schedule.split(column, lanes, tail="guard")
    accumulators = math.prod(schedule.extent(name) for name in (*others, vector))
    steps = unroll or reduction_unroll(accumulators)
    if 1 < steps < schedule.extent(groups):
        _, inner = schedule.split(groups, steps)
        schedule.unroll(inner)
    for name in (*others, vector):
        schedule.unroll(name)
    schedule.dot(step)
    schedule.vectorize(lane)


def parts_in_tiles(info: StageInfo, target: Target) -> bool:
    """Whether a stage sums products of parts whose data lie in tiles of the matrix unit, over
    nothing but the terms and the depth.
    """
    product = product_of(info.store)
    if product is None or len(info.axes) < 2:
        return False
    if sorted(info.reduction_roles) != sorted((roles.TERM, roles.DEPTH)):
        return False
    shape = target.tile_shape(product.a.dtype, product.b.dtype)
    return shape is not None and product.a.source.shape[-2:] == (shape[0], shape[2])
