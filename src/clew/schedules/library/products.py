"""Products of narrow operands, for dot product instructions and matrix units."""

from __future__ import annotations

import math
from dataclasses import replace

from clew.cost.policy.tiles import REGISTERS_OF_SHORT_PAIRS
from clew.loop.affine import Simplifier
from clew.loop.primitives.guards import padding_of
from clew.loop.products import Product, offset_of, packed_step, product_of, step_along
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.machine.units import depth_of_tile
from clew.schedules.library.tile_sizes import reduction_unroll
from clew.schedules.stages import StageInfo
from clew.te import roles
from clew.te.expr import Index
from clew.te.walk import nodes, substitute


def product_in(info: StageInfo) -> Product | None:
    """Returns the product of narrow operands that a stage sums, or None. `skip_padding` moves a
    condition on images and outer reduction steps, such as one on frames outside a clip, out of
    tiles; the product does not contain it.
    """
    store = info.store
    padding = padding_of(store)
    if padding is not None:
        inside = {*info.axes[1:], *info.reduction_axes[-2:]}
        used = {n.name for n in nodes(padding.cond) if isinstance(n, Index)}
        if used & inside:
            return None
        store = replace(store, value=substitute(store.value, {id(padding): padding.a}))
    return product_of(store)


def packed(info: StageInfo) -> bool:
    """Whether a stage sums products of two narrow operands, one contiguous along the depth and the
    other packed in dot groups.
    """
    product = product_in(info)
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
    """Returns the lanes of the dot product instruction for these operands; 0 if there is none."""
    if product is None:
        return 0
    a, b = product.a.dtype, product.b.dtype
    fit = product.pairs_fit
    return target.dot_lanes(a, b, pairs_fit=fit) or target.dot_lanes(b, a, pairs_fit=fit)


def registers_taken(product: Product, target: Target) -> int:
    """Returns the registers that the instruction for these operands takes besides those of sums and
    operands.
    """
    operands = (product.a.dtype, product.b.dtype), (product.b.dtype, product.a.dtype)
    for unit in target.dot_units:
        if any(unit.multiplies(a, b, pairs_fit=product.pairs_fit) for a, b in operands):
            return REGISTERS_OF_SHORT_PAIRS if unit.short_pairs else 0
    return 0


def multiply_in_tiles(schedule: Schedule, info: StageInfo, depth: int) -> str:
    """Computes a stage that is in scratch in tiles of at most this depth, from zeros to the last
    step. Returns the loop over the steps of the innermost reduction.
    """
    *others, row, column = info.axes
    *around, inner = info.reduction_axes
    schedule.reorder(*around, inner, *others, row, column)
    product = product_in(info)
    assert product is not None
    each = depth_of_tile(schedule.extent(inner), depth, product.group)
    steps, element = schedule.split(inner, each)
    schedule.reorder(steps, *others, row, column, element)
    skip_conditions(schedule, info)
    schedule.tensorize(info.name, row, column, element)
    return steps


def skip_conditions(schedule: Schedule, info: StageInfo) -> None:
    """Moves a condition on outer steps (`product_in`) out of the tiles; most stages have none."""
    if padding_of(info.store) is not None:
        schedule.skip_padding(info.name)


def dot_tile(
    schedule: Schedule,
    info: StageInfo,
    lanes: int,
    group: int,
    blocks: str | None = None,
    unroll: int = 0,
) -> list[str]:
    """Orders the loops of an anchor that was moved into registers: dot groups outside, its unrolled
    tile inside. Returns the reduction loops, outermost first.

    `blocks` names the axis over more vectors of the same row, which goes innermost. `unroll` is the
    number of reduction steps to unroll; with 0, the tile's size determines it.
    """
    *others, column = info.axes
    if blocks is not None:
        others = [*(a for a in others if a != blocks), blocks]
    *outer, depth = info.reduction_axes
    schedule.reorder(*outer, depth, *others, column)
    groups, step = schedule.split(depth, group)
    schedule.reorder(groups, *others, column, step)
    vector, lane = schedule.split(column, lanes, tail="guard")
    accumulators = math.prod(schedule.extent(name) for name in (*others, vector))
    steps = unroll or reduction_unroll(accumulators)
    if 1 < steps < schedule.extent(groups):
        groups, inner = schedule.split(groups, steps)
        schedule.unroll(inner)
    for name in (*others, vector):
        schedule.unroll(name)
    skip_conditions(schedule, info)
    schedule.dot(step)
    schedule.vectorize(lane)
    return [*outer, groups]


def parts_in_tiles(info: StageInfo, target: Target) -> bool:
    """Whether a stage sums products of parts over the terms and the depth only, with data laid out
    in tiles of the matrix unit.
    """
    product = product_of(info.store)
    if product is None or len(info.axes) < 2:
        return False
    if sorted(info.reduction_roles) != sorted((roles.TERM, roles.DEPTH)):
        return False
    shape = target.tile_shape(product.a.dtype, product.b.dtype)
    return shape is not None and product.a.source.shape[-2:] == (shape[0], shape[2])
