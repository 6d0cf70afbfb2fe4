"""Sizes of convolutions, and the choice of the tiles in which they are computed.

An estimate of the cycles ranks the tiles that the memories hold.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from clew.backends.vta.config import Config
from clew.backends.vta.names import Memory
from clew.backends.vta.packing import blocks
from clew.backends.vta.windows import Windows
from clew.support.errors import InputError


@dataclass(frozen=True)
class Convolution(Windows):
    """The sizes of a convolution of `i8[images, inputs, height, width]` by `i8[outputs, inputs,
    kernel, kernel]`, with the same padding on all sides, which is smaller than the kernel.

    Errors: I445.
    """

    inputs: int
    outputs: int
    height: int
    width: int
    kernel: int = 1
    stride: int = 1
    padding: int = 0
    images: int = 1

    def __post_init__(self) -> None:
        sizes = (self.inputs, self.outputs, self.kernel, self.stride, self.images)
        if min(sizes) < 1 or min(self.out_height, self.out_width) < 1:
            raise InputError("I445", f"VTA: {self} has no result")
        if not 0 <= self.padding < min(self.kernel, 16):
            most = min(self.kernel, 16) - 1
            raise InputError("I445", f"VTA: the padding is {self.padding}, not from 0 to {most}")

    @classmethod
    def of_product(cls, m: int, n: int, k: int) -> Convolution:
        """Returns the convolution that computes `x[m, k] · w[n, k]ᵀ`."""
        return cls(inputs=k, outputs=n, height=1, width=m)

    @property
    def taps(self) -> int:
        """The elements of the kernel."""
        return self.kernel * self.kernel

    def across(self, outputs: int) -> int:
        """Returns the pixels of the input, padded, from which so many in a row are computed."""
        return (outputs - 1) * self.stride + self.kernel


@dataclass(frozen=True)
class Epilogue:
    """The epilogue of the sums: `clip(sums + bias + (skip << skip_shift) >> shift, low, high)`,
    without a bias or skip if none is given. A shift rounds down; half of its unit in the bias makes
    it round to nearest.
    """

    shift: int = 0
    low: int = -128
    high: int = 127
    skip_shift: int = 0


@dataclass(frozen=True)
class Tile:
    """The size of a step: blocks of output channels, rows and columns of the result, and blocks of
    input channels. `parts` is 2 to load, compute and store at once, or 1.
    """

    outputs: int
    height: int
    width: int
    inputs: int
    parts: int = 2


def fits(conv: Convolution, tile: Tile, config: Config) -> bool:
    """Returns whether the memories hold a step. The last elements of `acc` are for the bias."""
    bias = blocks(conv.outputs, config.block_out)
    acc = tile.parts * tile.outputs * tile.height * tile.width
    return acc <= config.depth(Memory.ACC) - bias and fits_step(conv, tile, config)


def fits_step(conv: Convolution, tile: Tile, config: Config) -> bool:
    """Returns whether the memories besides `acc` hold a step."""
    inp = tile.inputs * conv.across(tile.height) * conv.across(tile.width)
    wgt = tile.outputs * tile.inputs * conv.taps
    return (
        tile.parts * inp <= config.depth(Memory.INP)
        and conv.stride * conv.across(tile.width) < config.depth(Memory.INP)
        and tile.parts * wgt <= config.depth(Memory.WGT)
        and tile.parts * (wgt + tile.outputs) <= config.depth(Memory.UOP)
    )


def choose_tile(conv: Convolution, config: Config, parts: int = 2) -> Tile:
    """Returns the tile of the shortest estimated time.

    Errors: I445 if no tile fits the memories.
    """
    return likely_tiles(conv, config, parts, 1)[0]


def likely_tiles(conv: Convolution, config: Config, parts: int, count: int) -> list[Tile]:
    """Returns up to `count` tiles, those of the shortest estimated times, the shortest first.

    Errors: I445 if no tile fits the memories.
    """
    found = shortest(
        (
            t
            for t in tiles_of(conv, conv.out_height, conv.out_width, config, parts)
            if fits(conv, t, config)
        ),
        count,
        lambda t: (estimate(conv, t, config), t.width != conv.out_width),
    )
    if not found:
        raise InputError(
            "I445",
            f"VTA: the memories hold no tile of a convolution of {conv.inputs} by {conv.outputs} "
            f"channels with a {conv.kernel}×{conv.kernel} kernel",
        )
    return found


def tiles_of(
    conv: Convolution, height: int, width: int, config: Config, parts: int
) -> Iterator[Tile]:
    """Yields all tiles of a result of `height` rows and `width` columns."""
    heights = sorted({blocks(height, n) for n in range(1, height + 1)})
    widths = sorted({blocks(width, n) for n in range(1, width + 1)})
    inputs = _divisors(blocks(conv.inputs, config.block_in))
    for o in _divisors(blocks(conv.outputs, config.block_out)):
        for h in heights:
            for w in widths:
                yield from (Tile(o, h, w, i, parts) for i in inputs)


def shortest(
    tiles: Iterable[Tile], count: int, key: Callable[[Tile], tuple[float, bool]]
) -> list[Tile]:
    """Returns the `count` tiles with the smallest keys, the smallest first."""
    return heapq.nsmallest(count, tiles, key=key)


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def estimate(conv: Convolution, tile: Tile, config: Config) -> float:
    """Returns an estimate of a convolution's cycles."""
    vectors = tile.outputs * tile.height * tile.width
    areas = blocks(conv.out_height, tile.height) * blocks(conv.out_width, tile.width)
    ends = vectors * (config.gemm_cycles + config.alu_tensor_cycles + 3 * config.alu_imm_cycles)
    return cycles_of_tiles(conv, tile, config, areas, ends, vectors)


def cycles_of_tiles(
    conv: Convolution, tile: Tile, config: Config, areas: int, ends: int, stored: int
) -> float:
    """Returns an estimate of the cycles of a convolution in tiles: those of its busiest engine, and
    of the first load and the last store; without a second part, the sum of those of all engines.

    The rows and columns of each image are split into `areas` tiles. For each tile, the compute
    engine needs `ends` cycles besides products, and the store engine stores `stored` vectors.
    """
    ins, outs = blocks(conv.inputs, config.block_in), blocks(conv.outputs, config.block_out)
    tiles = blocks(conv.images, config.batch) * blocks(outs, tile.outputs) * areas
    steps = tiles * blocks(ins, tile.inputs)
    beat, latency = config.dram_bytes_per_cycle, config.dram_latency_cycles

    def moved(memory: Memory, elements: int) -> float:
        return elements * config.element_bytes(memory) / beat

    pixels = conv.across(tile.height) * conv.across(tile.width)
    inp = tile.inputs * (latency + moved(Memory.INP, pixels))
    wgt = latency + moved(Memory.WGT, tile.outputs * tile.inputs * conv.taps)
    reloads = blocks(outs, tile.outputs) if tile.inputs == ins else steps
    products = tile.outputs * tile.height * tile.width * tile.inputs * conv.taps
    load = steps * inp + reloads * wgt
    compute = steps * (products * config.gemm_cycles + config.gemm_latency_cycles) + tiles * ends
    store = tiles * (latency + moved(Memory.OUT, stored))
    if tile.parts == 1:
        return load + compute + store
    bus = load + store  # which share the bandwidth
    return max(bus, compute) + inp + wgt + store / tiles
