"""Which weights and matrices AlterLayout packs into panels: constant ones, and those of a run if
the products gain more than packing takes.
"""

from __future__ import annotations

import math

from clew.cost.policy.layouts import (
    IMAGE_TO_PACK,
    MOST_TAPS_OF_PATCHES,
    PIXELS_TO_PACK,
    ROWS_TO_PACK,
    ROWS_TO_PACK_ANY,
    ROWS_TO_PACK_FAR,
    ROWS_TO_PACK_SHORT,
)
from clew.cost.products import dots_gain
from clew.ir.dims import Dim, typical
from clew.ir.expr import Call, Constant, Expr
from clew.ir.types import is_float, memory_bytes
from clew.machine.target import Target
from clew.machine.units import PAGE_BYTES
from clew.ops.convolution.stages import product_group
from clew.ops.registry import get_op


def packs_filters(conv: Call) -> bool:
    """Whether the weight of a convolution is packed: at compile time, or in the run if it serves so
    many pixels that packing it takes little of the time.
    """
    weight = conv.args[1]
    if isinstance(weight, Constant):
        return True
    data, result = conv.args[0].tensor, conv.tensor
    pixels = math.prod(typical(n) for n in (*result.shape[:1], *result.shape[2:]))
    if not weight.tensor.is_static or math.prod(map(typical, data.shape)) < IMAGE_TO_PACK:
        return False
    # Larger windows are not copied into patches, and are slow to read unpacked.
    large = math.prod(weight.tensor.concrete[2:]) > MOST_TAPS_OF_PATCHES
    return pixels >= (ROWS_TO_PACK if large else PIXELS_TO_PACK)


def packs_matrix(dense: Call, matrix: Expr, target: Target) -> bool:
    """Whether a matrix of a dense layer is packed: at compile time, or in the run if so many rows
    read it that packing it takes less time than reading short runs of its lines, columns far apart
    or lines on as many pages, or adding up lanes along the depth.
    """
    if isinstance(matrix, Constant):
        return True
    rows = math.prod(typical(n) for n in dense.tensor.shape[:-1])
    plain = matrix is dense.args[1] and dense.attrs.parts == 1
    if plain and packs_integers(dense, target):
        return dense.attrs.weight_layout in ("NK", "KN")
    if not plain or not matrix.tensor.is_static:
        return False
    outer, inner = matrix.tensor.concrete
    if dense.attrs.weight_layout == "NK":
        known = all(isinstance(n, int) for n in dense.tensor.shape[:-1])
        if known and dots_gain(rows, inner, outer, matrix.tensor.dtype, target):
            return False
        return rows >= (ROWS_TO_PACK_SHORT if known else ROWS_TO_PACK)
    is_far = inner * memory_bytes(matrix.tensor.dtype) >= PAGE_BYTES
    return rows >= (ROWS_TO_PACK_FAR if is_far else ROWS_TO_PACK_ANY)


def with_whole_groups(value: Expr, axis: int, group: int) -> Expr:
    """Returns an operand with zeros after the depth, its last axis (-1) or the one before (-2), up
    to whole dot groups: packing tests no element, and products have no other last step.
    """
    rank, depth = value.tensor.rank, value.tensor.shape[axis]
    if depth % group == 0:
        return value
    after: list[Dim] = [0] * rank
    after[axis] = -(-depth // group) * group - depth
    return get_op("pad")(value, pads=(*(0,) * rank, *after))


def packs_integers(product: Call, target: Target) -> bool:
    """Whether a product of integers packs its second operand even in the run, for any number of
    rows: products without the instructions for it widen each element of both operands.
    """
    data, matrix = (a.tensor.dtype for a in product.args[:2])
    if is_float(data) or not product_group(data):
        return False
    return bool(target.dot_lanes(data, matrix) or target.tile_shape(data, matrix))
