"""Estimates of the cycles per core of each convolution algorithm."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from clew.cost.policy.convolutions import FULL_TILE_ROWS, USUAL_WINOGRAD_TILES
from clew.cost.policy.tiles import TILES_HIGH
from clew.cost.products import multiply_adds_per_cycle
from clew.ir.types import bits, is_integer
from clew.machine.target import Target
from clew.machine.units import TILE_ROWS, tile_depth
from clew.support.dataclass import dataclass

WINDOW: Final = 3
"""The window size of Winograd's algorithm here: 3x3 pixels."""
WINOGRAD_TILES: Final = (2, 3, 4)
"""Side lengths of the tiles of results that Winograd's algorithm computes together."""
# Steps (loads, stores, additions) of the transforms of a tile of one block of channels, by the
# tile's side: of the image, and of the result.
_TRANSFORM_STEPS: Final = {2: (80, 45), 3: (165, 98), 4: (240, 150)}
_PART_BYTES: Final = 2
# Times that a vector is read or written to convert a layout, and to add a result to another.
_MOVES_OF_CONVERSION: Final = 2
_MOVES_OF_SUM: Final = 3


@dataclass(frozen=True)
class ConvLayer:
    """The sizes of a convolution: images, channels, pixels of a result, taps of its window.

    Images of `dtype` u8 have weights of i8; `pairs_fit` as for `nn.conv2d`.
    """

    batch: int
    inner: int
    outer: int
    height: int
    width: int
    taps: int = WINDOW * WINDOW
    dtype: str = "f32"
    pairs_fit: bool = False

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights of one tap."""
        return self.inner * self.outer * bits(self.dtype) // 8

    @property
    def pixels(self) -> int:
        """Pixels of all results."""
        return self.batch * self.height * self.width

    def tiles(self, tile: int) -> int:
        """Returns the number of tiles that cover the results."""
        return self.batch * -(-self.height // tile) * -(-self.width // tile)


@dataclass(frozen=True)
class SplitImage:
    """An image as stored for bf16x3: the pixels of one of its `phases` (1 for stride 1), in lines
    of `width`.
    """

    width: int
    pixels: int
    phases: int


@dataclass(frozen=True)
class SignalLayer:
    """The sizes of a convolution of signals: channels that a filter reads, filters, windows of each
    signal, and their taps.
    """

    batch: int
    inner: int
    outer: int
    windows: int
    taps: int
    stride: int = 1
    dilation: int = 1
    groups: int = 1
    dtype: str = "f32"

    @property
    def period(self) -> int:
        """The number of taps after which a tap reads the phase of the first one."""
        return self.stride // math.gcd(self.stride, self.dilation)

    @property
    def read(self) -> int:
        """The number of elements of the signals that windows read."""
        reach = (self.taps - 1) * self.dilation
        length = (self.windows - 1) * self.stride + reach + 1
        return self.batch * self.inner * self.groups * length


@dataclass(frozen=True)
class SignalPart:
    """A part of a convolution of signals: phases from `first` on, and the taps of each."""

    first: int
    phases: int
    taps: int


def signal_parts(layer: SignalLayer, target: Target) -> list[SignalPart]:
    """Returns the parts in which a convolution along the signal is computed. If the period of its
    taps does not divide their number, the last phases have a tap less; they are multiplied by zero,
    or are a separate part where adding the results costs less.
    """
    period, costs = layer.period, target.costs
    whole, rest = divmod(layer.taps, period)
    if not rest or not whole:
        return [SignalPart(0, min(layer.taps, period), max(whole, 1))]
    zeros = layer.inner * (period - rest) / costs.vector_multiply_adds
    if zeros <= _MOVES_OF_SUM * costs.move:
        return [SignalPart(0, period, whole + 1)]
    return [SignalPart(0, rest, whole + 1), SignalPart(rest, period - rest, whole)]


def cycles_along_signal(
    layer: SignalLayer, target: Target, *, reads_blocks: bool, gives_blocks: bool
) -> float:
    """Returns the cycles of a convolution of signals with vectors along the signal, on its phases,
    which includes those to make the phases. `reads_blocks` and `gives_blocks` say that signal and
    result are in blocks elsewhere, and converted.
    """
    lanes, costs = target.vector_lanes(layer.dtype), target.costs
    vectors = layer.batch * layer.outer * -(-layer.windows // lanes)
    parts = signal_parts(layer, target)
    taps = sum(part.phases * part.taps for part in parts) * layer.inner
    moves = 1 + (len(parts) - 1) * _MOVES_OF_SUM + gives_blocks * _MOVES_OF_CONVERSION
    read = layer.read / lanes * costs.move
    phases = read * _MOVES_OF_CONVERSION * (layer.stride > 1)
    converted = read * _MOVES_OF_CONVERSION * reads_blocks
    return vectors * (taps / costs.vector_multiply_adds + moves * costs.move) + phases + converted


def cycles_in_blocks(
    layer: SignalLayer, target: Target, *, reads_plain: bool, gives_plain: bool
) -> float:
    """Returns the cycles of a convolution of signals with vectors of filters, whose result is in
    blocks of channels. `reads_plain` and `gives_plain` say that signal and result are plain
    elsewhere, and converted.
    """
    lanes, costs = target.vector_lanes(layer.dtype), target.costs
    vectors = layer.batch * layer.windows * -(-layer.outer // lanes)
    products = layer.inner * layer.taps / costs.vector_multiply_adds
    moves = 1 + gives_plain * _MOVES_OF_CONVERSION
    converted = layer.read / lanes * costs.move * _MOVES_OF_CONVERSION * reads_plain
    return vectors * (products + moves * costs.move) + converted


def direct_cycles(layer: ConvLayer, target: Target) -> float:
    """Returns the cycles of a direct convolution."""
    each, weights = direct_terms(layer, target)
    return layer.pixels * each + weights


def direct_terms(layer: ConvLayer, target: Target) -> tuple[float, float]:
    """Returns the cycles of a direct convolution per pixel of a result, and for its weights."""
    lanes, costs = target.vector_lanes(layer.dtype), target.costs
    together = target.vector_lanes("f64" if layer.dtype == "f64" else "f32") * costs.multiply_adds
    weight = "i8" if layer.dtype == "u8" else layer.dtype
    fit = layer.pairs_fit
    rate = multiply_adds_per_cycle(target, layer.dtype, weight, pairs_fit=fit)
    together = max(together, rate)
    products = layer.taps * layer.inner * layer.outer / (together * costs.reached)
    moved = (layer.inner + layer.outer) / lanes
    return products + moved * costs.move, layer.taps * layer.weight_bytes / costs.weight_bytes


def padding_cycles(layer: ConvLayer, target: Target) -> float:
    """Returns the cycles to copy one pixel of an image to a padded image."""
    return 2 * layer.inner / target.vector_lanes(layer.dtype) * target.costs.move


def winograd_cycles(
    layer: ConvLayer, tile: int, target: Target, dilation: tuple[int, int] = (1, 1)
) -> float:
    """Returns the cycles of Winograd's algorithm with tiles of a size.

    A dilated window is computed as a dense one, on batches of every n-th pixel. The cost of making
    these batches, and an image of their results, is included.
    """
    lanes, costs = target.vector_lanes(layer.dtype), target.costs
    if dilation != (1, 1):
        lines, columns = dilation
        phases = replace(
            layer,
            batch=layer.batch * lines * columns,
            height=-(-layer.height // lines),
            width=-(-layer.width // columns),
        )
        moved = 2 * costs.move * phases.pixels * (layer.inner + layer.outer) / lanes
        return winograd_cycles(phases, tile, target) + moved
    row, each, weights = winograd_terms(layer, tile, target)
    tiles = layer.tiles(tile)
    return max(tiles, FULL_TILE_ROWS) * row + tiles * each + weights


def winograd_terms(layer: ConvLayer, tile: int, target: Target) -> tuple[float, float, float]:
    """Returns the cycles of Winograd's algorithm: of the products, per tile, of which there are at
    least `FULL_TILE_ROWS`; of the transforms, per tile; and for the weights.
    """
    lanes, costs = target.vector_lanes(layer.dtype), target.costs
    points, filters = (tile + WINDOW - 1) ** 2, layer.inner * layer.outer
    forth, back = (steps * costs.transform_step for steps in _TRANSFORM_STEPS[tile])
    products = points * filters / lanes / costs.vector_multiply_adds
    sums = target.vector_lanes("i32") if is_integer(layer.dtype) else lanes
    transforms = layer.inner * forth / lanes + layer.outer * back / sums
    weights = points * layer.weight_bytes / (costs.weight_bytes * costs.panel_gain)
    return products, transforms, weights


def split_cycles(
    layer: ConvLayer, image: SplitImage, terms: int, panel: int, target: Target
) -> float:
    """Returns the cycles of products of `terms` bf16 terms on a matrix unit, with weights in panels
    of `panel` channels.
    """
    lanes, costs, depth = target.vector_lanes("f32"), target.costs, tile_depth("bf16")
    pairs = terms * (terms + 1) // 2
    panels, blocks = -(-layer.outer // panel), -(-layer.inner // depth)
    rows = sum(
        _products_cycles(rows, target) * times for rows, times in _row_blocks(layer, image.width)
    )
    products = layer.batch * rows * TILES_HIGH * panels * blocks * layer.taps * pairs
    read = image.pixels * image.phases
    split = layer.batch * read * blocks * depth / lanes * costs.split
    stored = layer.pixels * layer.outer / lanes * costs.move
    weight_bytes = _PART_BYTES * terms * layer.taps * panels * panel * blocks * depth
    return products + split + stored + weight_bytes / costs.weight_bytes


def split_terms(
    layer: ConvLayer, terms: int, panel: int, target: Target
) -> tuple[float, float, float, float]:
    """Returns the cycles of products of `terms` bf16 terms for an image of free size: per tile of
    rows, per pixel of each phase, per pixel of the result, and for the weights.
    """
    lanes, costs, depth = target.vector_lanes("f32"), target.costs, tile_depth("bf16")
    pairs = terms * (terms + 1) // 2
    panels, blocks = -(-layer.outer // panel), -(-layer.inner // depth)
    products = _products_cycles(TILE_ROWS, target) * blocks * layer.taps * pairs
    sums = costs.tile_store + TILE_ROWS * costs.phase_store  # stored, and read by the next stage
    weight_bytes = _PART_BYTES * terms * layer.taps * panels * panel * blocks * depth
    return (
        (products + sums) * panels * TILES_HIGH,
        blocks * depth / lanes * costs.split,
        layer.outer / lanes * costs.move,
        weight_bytes / costs.weight_bytes,
    )


def fastest_cycles(
    layer: ConvLayer,
    target: Target,
    dilation: tuple[int, int] = (1, 1),
    *,
    has_window: bool,
    tiles: Iterable[int] = USUAL_WINOGRAD_TILES,
) -> float:
    """Returns the cycles of the fastest algorithm in f32. `has_window`: whether Winograd's
    algorithm is possible: a 3x3 window of stride 1, over whole blocks of channels.
    """
    ways = [direct_cycles(layer, target)]
    if has_window:
        ways += [winograd_cycles(layer, tile, target, dilation) for tile in tiles]
    return min(ways)


def sum_cycles(layer: ConvLayer, target: Target) -> float:
    """Returns the cycles to add the result of one part of a convolution to that of the others."""
    return layer.pixels * layer.outer / target.vector_lanes(layer.dtype) * target.costs.move


def _row_blocks(layer: ConvLayer, line: int) -> list[tuple[int, int]]:
    """Returns the sizes, in rows, of the blocks of pixels that a matrix unit processes, each with
    the number of such blocks.
    """
    most = TILES_HIGH * TILE_ROWS
    if layer.width > most:
        pieces = -(-layer.width // most)
        return [(-(-layer.width // pieces), pieces * layer.height)]
    lines = min(layer.height, (most - layer.width) // line + 1)
    whole, rest = divmod(layer.height, lines)
    blocks = [((lines - 1) * line + layer.width, whole)]
    return blocks + ([((rest - 1) * line + layer.width, 1)] if rest else [])


def _products_cycles(rows: int, target: Target) -> float:
    """Returns the cycles of the products of a block of rows with one tile of columns."""
    costs = target.costs
    tiles = [min(TILE_ROWS, rows - at) for at in range(0, rows, TILE_ROWS)]
    return sum(max(costs.tile_product, costs.tile_base + r * costs.tile_row) for r in tiles)
