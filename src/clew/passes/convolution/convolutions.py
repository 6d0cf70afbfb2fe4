"""What passes ask of convolutions in blocks: their weights, their padding, and what each way of
computing them costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from clew.ir.dims import numbers
from clew.ir.expr import Call, Constant, Expr
from clew.ops.convolution.conv_parts import PANEL, Places
from clew.ops.math.parts import TILE_DEPTH, TILE_ROWS
from clew.ops.movement.layouts import parse_layout
from clew.ops.registry import Op

KERNEL: Final = 3
"""Winograd's algorithm is for windows of so many pixels a side."""
DIRECT: Final = 0
"""Stands for `nn.conv2d` among tile sizes."""

# What a core does in a cycle, and how much of that register tiles reach.
_FMAS_A_CYCLE: Final = 2
_REACHED: Final = 0.85
# Weights are met once an inference, so they come from behind the second cache: as measured within
# networks, where Winograd's larger panels come faster than those asked for between products.
_WEIGHT_BYTES_A_CYCLE: Final = 5.0
_PANEL_BYTES_A_CYCLE: Final = 8.0
# Images of which only a run tells how many there are count as so many: regions, mostly.
_IMAGES_OF_A_RUN: Final = 8
# Cycles that a vector of an image takes to come, and one to go.
_MOVE_CYCLES: Final = 4.0
# Cycles to transform one tile of one block of channels, forth and back.
_TRANSFORM_CYCLES: Final[Mapping[int, tuple[int, int]]] = {2: (80, 45), 4: (240, 150)}
# Fewer rows than this leave a register tile's arithmetic units waiting.
_FULL_TILE_ROWS: Final = 8
# Products on a matrix unit: cycles of one by its rows, with what loads hold up; at least so many.
_PRODUCT_CYCLES: Final = 10.0
_ROW_CYCLES: Final = 1.0
_LEAST_PRODUCT_CYCLES: Final = 14.0
# Cycles to take a vector of numbers from afar and cut it.
_SPLIT_CYCLES: Final = 11.0


@dataclass(frozen=True)
class Layer:
    """Sizes of a convolution: channels, pixels of its result, and taps of its window."""

    batch: int
    inner: int
    outer: int
    height: int
    width: int
    taps: int = KERNEL * KERNEL

    def tiles(self, tile: int) -> int:
        """Returns how many tiles cover the result."""
        return self.batch * -(-self.height // tile) * -(-self.width // tile)


@dataclass(frozen=True)
class Algorithm:
    """A way to compute a convolution, about how many cycles of one core it takes, and what builds
    its graph.
    """

    name: str
    cycles: float
    build: Callable[[], Expr]


def cost_cycles(layer: Layer, tile: int, lanes: int) -> float:
    """Returns about how many cycles a layer takes on one core, directly or, for a 3x3 window of
    stride 1, with Winograd's tiles of a size.
    """
    filters = layer.inner * layer.outer
    vector_fmas = filters / lanes / _FMAS_A_CYCLE / _REACHED
    if tile == DIRECT:
        products = layer.batch * layer.height * layer.width * layer.taps * vector_fmas
        moved = layer.batch * layer.height * layer.width * (layer.inner + layer.outer) / lanes
        weights = 4 * layer.taps * filters / _WEIGHT_BYTES_A_CYCLE
        return products + moved * _MOVE_CYCLES + weights
    points, tiles = (tile + KERNEL - 1) ** 2, layer.tiles(tile)
    forth, back = _TRANSFORM_CYCLES[tile]
    products = points * max(tiles, _FULL_TILE_ROWS) * vector_fmas
    transforms = tiles * (layer.inner * forth + layer.outer * back) / lanes
    return products + transforms + 4 * points * filters / _PANEL_BYTES_A_CYCLE


def dilated_cycles(layer: Layer, tile: int, dilation: tuple[int, int], lanes: int) -> float:
    """As `cost_cycles` of Winograd's tiles, of a dilated window: with what it takes to make a batch
    of every so manyth pixel, and an image of its result.
    """
    if dilation == (1, 1):
        return cost_cycles(layer, tile, lanes)
    lines, columns = dilation
    phases = replace(
        layer,
        batch=layer.batch * lines * columns,
        height=-(-layer.height // lines),
        width=-(-layer.width // columns),
    )
    pixels = phases.batch * phases.height * phases.width
    moved = 2 * _MOVE_CYCLES * pixels * (layer.inner + layer.outer) / lanes
    return cost_cycles(phases, tile, lanes) + moved


def parts_cycles(layer: Layer, places: Places, parts: int, lanes: int) -> float:
    """Returns about how many cycles a layer takes on one core as products of parts on a matrix
    unit.
    """
    terms = parts * (parts + 1) // 2
    panels, blocks = -(-layer.outer // PANEL), -(-layer.inner // TILE_DEPTH)
    steps = blocks * layer.taps * terms
    rows = sum(_product_cycles(rows) * times for rows, times in _blocks_of_rows(layer, places))
    products = layer.batch * rows * 2 * panels * steps
    read = places.pixels * places.lines.phases * places.columns.phases
    split = layer.batch * read * blocks * TILE_DEPTH / lanes * _SPLIT_CYCLES
    stored = layer.batch * layer.height * layer.width * layer.outer / lanes * _MOVE_CYCLES
    weight_bytes = 2 * parts * layer.taps * panels * PANEL * blocks * TILE_DEPTH
    return products + split + stored + weight_bytes / _WEIGHT_BYTES_A_CYCLE


def _blocks_of_rows(layer: Layer, places: Places) -> list[tuple[int, int]]:
    """Returns how many rows blocks of pixels have, and how many blocks."""
    most = 2 * TILE_ROWS
    if layer.width > most:
        pieces = -(-layer.width // most)
        return [(-(-layer.width // pieces), pieces * layer.height)]
    lines = min(layer.height, (most - layer.width) // places.width + 1)
    whole, rest = divmod(layer.height, lines)
    blocks = [((lines - 1) * places.width + layer.width, whole)]
    return blocks + ([((rest - 1) * places.width + layer.width, 1)] if rest else [])


def _product_cycles(rows: int) -> float:
    """Returns the cycles of the products of all tiles of a block of rows, one of columns each."""
    tiles = [min(TILE_ROWS, rows - at) for at in range(0, rows, TILE_ROWS)]
    return sum(max(_LEAST_PRODUCT_CYCLES, _PRODUCT_CYCLES + r * _ROW_CYCLES) for r in tiles)


def plain_weight(conv: Call, op: str = "nn.conv2d") -> Constant | None:
    """Returns the plain weight of a convolution of f32, `op`, whose image and result lie in the
    same blocks, without groups; None for others.
    """
    if not isinstance(conv.op, Op) or conv.op.name != op:
        return None
    attrs, packed = conv.attrs, conv.args[1]
    alike = attrs.data_layout == attrs.out_layout and parse_layout(attrs.data_layout).factors
    half = len(attrs.padding) // 2
    around = (*attrs.padding[half - 2 : half], *attrs.padding[-2:])
    if not alike or attrs.groups != 1 or any(around) or conv.tensor.dtype != "f32":
        return None
    if numbers(conv.tensor.shape[1:]) is None or not isinstance(packed, Call):
        return None
    if packed.op_name != "layout_transform" or packed.attrs.src_layout not in ("OIHW", "OIDHW"):
        return None
    weight = packed.args[0]
    if not isinstance(weight, Constant):
        return None
    block, channels = parse_layout(attrs.data_layout).factor("C"), weight.tensor.concrete[0]
    return weight if channels == attrs.channels and channels % block == 0 else None


def layer_of(conv: Call, weight: Constant) -> Layer:
    """Returns the sizes of a convolution in blocks; those of a few images where only a run tells
    how many there are.
    """
    sizes = numbers(conv.tensor.shape[2:4])
    assert sizes is not None
    height, width = sizes
    batch = conv.tensor.shape[0]
    images = batch if isinstance(batch, int) else _IMAGES_OF_A_RUN
    outer, inner, *kernel = weight.tensor.concrete
    return Layer(images, inner, outer, height, width, math.prod(kernel))


def unpadded(data: Expr) -> tuple[Expr, tuple[int, ...]]:
    """Returns the image before zeros were put around it, and these (top, left, bottom, right)."""
    if not isinstance(data, Call) or data.op_name != "pad":
        return data, (0, 0, 0, 0)
    pads, rank = data.attrs.pads, data.tensor.rank
    before, after = pads[:rank], pads[rank:]
    others = (*before[:2], *after[:2], *before[4:], *after[4:])
    if data.attrs.mode != "constant" or data.attrs.value != 0 or any(others) or min(pads) < 0:
        return data, (0, 0, 0, 0)
    return data.args[0], (*before[2:4], *after[2:4])
