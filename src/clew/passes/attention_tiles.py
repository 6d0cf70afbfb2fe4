"""Whether attention fills the tiles of a matrix unit."""

from __future__ import annotations

from clew.cost.policy.tiles import DEPTH_OF_MATRIX_TILE, ROWS_OF_MATRIX_TILE
from clew.ir.expr import Call
from clew.machine.target import Target
from clew.machine.units import depth_of_tile
from clew.ops.convolution.stages import product_group
from clew.ops.math.attention import can_pair, keys_in_steps


def attention_fills_tiles(attention: Call, dtype: str, target: Target | None) -> bool:
    """Whether the target has a matrix unit for operands of a dtype, and queries, keys and the depth
    of both products fill its tiles.
    """
    (q, _, v), attrs = (x.tensor for x in attention.args[:3]), attention.attrs
    of_query = dict(zip(attrs.q_layout, q.shape, strict=True))
    of_value = dict(zip(attrs.v_layout, v.shape, strict=True))
    batch, rows, width = (of_query[axis] for axis in "BSD")
    keys, depth = of_value["S"], of_value["D"]
    tile = target.tile_shape(dtype, dtype) if target else None
    if tile is None or not can_pair(dtype, (batch, rows, width, keys, depth), attrs.k_layout):
        return False
    deep = min(depth_of_tile(width, tile[2], product_group(dtype)), keys_in_steps(keys)[1])
    full = deep >= DEPTH_OF_MATRIX_TILE * tile[2]
    return full and min(rows, keys, depth) >= ROWS_OF_MATRIX_TILE
