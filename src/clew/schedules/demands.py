"""The demands of rules: facts derived from the roles of stages and axes, and from their loads."""

from __future__ import annotations

from typing import Final

from clew.loop.affine import contains
from clew.loop.ir import buffer_loads
from clew.machine.target import Target
from clew.schedules.library.images import blocked_image, image_of, reads_own_channels
from clew.schedules.library.products import dot_lanes, packed, parts_in_tiles, product_in
from clew.schedules.rule import Demand, Work
from clew.te import roles

REDUCES: Final = Demand("a reduction", lambda work, target: bool(work.reductions))


def _tailed(work: Work, target: Target) -> bool:
    if len(work.reductions) != 1 or len(work.members) > 2:
        return False
    return work.root.store.buffer.shape == work.reduction.store.buffer.shape


TAILED: Final = Demand("one reduction, with at most a tail of its shape", _tailed)
PRODUCTS: Final = Demand(
    "a sum of products of two tensors", lambda work, target: work.reduction.is_anchor
)
BLOCKED_IMAGE: Final = Demand(
    "an image in blocks of channels",
    lambda work, target: blocked_image(work.reduction) is not None,
)
IMAGE: Final = Demand("an image", lambda work, target: image_of(work.reduction) is not None)
OWN_CHANNELS: Final = Demand(
    "channels computed separately, as always where memory is scarce",
    lambda work, target: reads_own_channels(work.reduction) or target.is_microcontroller,
)


def _two_taps(work: Work, target: Target) -> bool:
    over = work.reduction.reduction_roles
    return len(over) == 2 and set(over) == {roles.TAP}


WINDOWS: Final = Demand("windows along two axes", _two_taps)


def _one_row(work: Work, target: Target) -> bool:
    info = work.reduction
    loads = list(buffer_loads(info.store.value))
    rows = (n for n in info.loops if n.name in info.axes[:-1] and n.size != 1)
    return bool(info.axes) and all(
        any(contains(place, row.index) for place in load.indices) for row in rows for load in loads
    )


ONE_ROW: Final = Demand("one row, or each with a matrix of its own", _one_row)
NARROW: Final = Demand(
    "products of narrow operands",
    lambda work, target: product_in(work.reduction) is not None,
)
PACKED: Final = Demand("weights packed in dot groups", lambda work, target: packed(work.reduction))
DOT_UNIT: Final = Demand(
    "dot product instructions for the operands",
    lambda work, target: bool(dot_lanes(product_in(work.reduction), target)),
)


def _tile_unit(work: Work, target: Target) -> bool:
    product = product_in(work.reduction)
    return product is not None and bool(target.tile_shape(product.a.dtype, product.b.dtype))


TILE_UNIT: Final = Demand("a matrix unit for the operands", _tile_unit)
IN_PARTS: Final = Demand(
    "operands split into parts", lambda work, target: roles.TERM in work.reduction.reduction_roles
)
IN_TILES: Final = Demand(
    "data in tiles of the matrix unit",
    lambda work, target: parts_in_tiles(work.reduction, target),
)
PARTS_IN_TILES: Final = (
    REDUCES, TAILED, PRODUCTS, NARROW, TILE_UNIT, IN_PARTS, IN_TILES,
)  # fmt: skip
"""The demands of all rules for products of parts on a matrix unit."""
ONE_RESULT: Final = Demand("one output", lambda work, target: len(work.outputs) == 1)
NOT_EMPTY: Final = Demand("no empty stage", lambda work, target: not work.is_empty)
