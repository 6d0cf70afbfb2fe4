"""Convolutions with a max pool of their results as instructions.

A tile is one of the pool's results. The sums that its windows read are computed in `acc`, those
that neighbouring tiles read too included; the maxima of the windows are put beside them, and only
the maxima get the bias, the shift and the clip: these keep the order of sums, so the maximum of the
results is the result of the maximum. Taps outside the image are left out.

Compute alone uses the sums, so with two parts, only the room for the maxima is there twice.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from clew.backends.vta.builder import Builder
from clew.backends.vta.config import Config
from clew.backends.vta.convolution import Area, ConvolutionEmitter, Operands, Step
from clew.backends.vta.isa import MicroOp
from clew.backends.vta.names import AluOp, Memory
from clew.backends.vta.packing import blocks
from clew.backends.vta.pooling import Axis, MaxPool, axes, emit_windows, estimate_pool
from clew.backends.vta.tiles import (
    Convolution,
    Epilogue,
    Tile,
    choose_tile,
    cycles_of_tiles,
    estimate,
    fits_step,
    shortest,
    tiles_of,
)
from clew.support.errors import InputError

_LEAST: Final = -(1 << 15)
"""The least immediate operand, which becomes the least accumulator when it is shifted."""
_TO_LEAST: Final = -16


def pool_of_convolution(
    conv: Convolution, config: Config, kernel: int, stride: int, padding: int
) -> MaxPool:
    """Returns the max pool of a convolution's result.

    Errors: I445.
    """
    planes = blocks(conv.images, config.batch) * blocks(conv.outputs, config.block_out)
    return MaxPool(planes, conv.out_height, conv.out_width, kernel, stride, padding)


def _sums_tile(pool: MaxPool, tile: Tile) -> Tile:
    """Returns the size of the sums that a tile of maxima reads at most."""
    height = min(pool.height, (tile.height - 1) * pool.stride + pool.kernel)
    width = min(pool.width, (tile.width - 1) * pool.stride + pool.kernel)
    return dataclasses.replace(tile, height=height, width=width)


def fits_pooled(conv: Convolution, pool: MaxPool, tile: Tile, config: Config) -> bool:
    """Returns whether the memories hold a step."""
    sums, depth = _sums_tile(pool, tile), config.depth(Memory.ACC)
    maxima = tile.outputs * tile.height * tile.width
    acc = tile.outputs * sums.height * sums.width + tile.parts * maxima
    return (
        acc <= depth - blocks(conv.outputs, config.block_out)
        and pool.stride * sums.width < depth
        and tile.outputs * pool.kernel * pool.kernel <= config.depth(Memory.UOP)
        and fits_step(conv, sums, config)
    )


def likely_pooled_tiles(
    conv: Convolution, pool: MaxPool, config: Config, parts: int, count: int
) -> list[Tile]:
    """Returns up to `count` tiles of the maxima, those of the shortest estimated times, the
    shortest first.

    Errors: I445 if no tile fits the memories.
    """
    every = tiles_of(conv, pool.out_height, pool.out_width, config, parts)
    found = shortest(
        (t for t in every if fits_pooled(conv, pool, t, config)),
        count,
        lambda t: (estimate_pooled(conv, pool, t, config), t.width != pool.out_width),
    )
    if not found:
        raise InputError(
            "I445",
            f"VTA: the memories hold no tile of a convolution of {conv.inputs} by {conv.outputs} "
            f"channels with a {conv.kernel}×{conv.kernel} kernel and a max pool of "
            f"{pool.kernel}×{pool.kernel}",
        )
    return found


def estimate_pooled(conv: Convolution, pool: MaxPool, tile: Tile, config: Config) -> float:
    """Returns an estimate of the cycles of a convolution with its pool."""
    areas = blocks(pool.out_height, tile.height) * blocks(pool.out_width, tile.width)
    sums = _sums_tile(pool, tile)
    maxima = tile.outputs * tile.height * tile.width
    resets = tile.outputs * sums.height * sums.width + maxima
    taps = pool.kernel * pool.kernel
    ends = (
        resets * config.gemm_cycles
        + maxima * (taps + 1) * config.alu_tensor_cycles
        + maxima * 5 * config.alu_imm_cycles
    )
    return cycles_of_tiles(conv, sums, config, areas, ends, maxima)


def why_not_pooled(conv: Convolution, pool: MaxPool, config: Config, parts: int) -> str:
    """Returns why a convolution and its pool stay two kernels: no tile fits, or one kernel is
    estimated to take longer, since neighbouring tiles compute sums that both read. Empty if one
    kernel is better.
    """
    try:
        (tile,) = likely_pooled_tiles(conv, pool, config, parts, 1)
        plain = choose_tile(conv, config, parts)
    except InputError as error:
        return error.message
    one = estimate_pooled(conv, pool, tile, config)
    two = estimate(conv, plain, config) + estimate_pool(pool, config, parts)
    return f"one kernel takes about {one:,.0f} cycles, and two {two:,.0f}" if one > two else ""


def emit_pooled_convolution(
    builder: Builder,
    conv: Convolution,
    pool: MaxPool,
    operands: Operands,
    epilogue: Epilogue | None = None,
    tile: Tile | None = None,
) -> None:
    """Appends a convolution and a max pool of its results to a program. The operand `y` has the
    maxima; the others are those of `emit_convolution`.

    Errors: I445 if the tile does not fit the memories.
    """
    config = builder.config
    tile = tile or likely_pooled_tiles(conv, pool, config, 2, 1)[0]
    if not fits_pooled(conv, pool, tile, config):
        raise InputError("I445", f"VTA: the memories do not hold {tile}")
    _PooledEmitter(builder, conv, pool, operands, epilogue or Epilogue(), tile).emit()


class _PooledEmitter(ConvolutionEmitter):
    """Emits the steps of one convolution with its pool."""

    def __init__(
        self,
        builder: Builder,
        conv: Convolution,
        pool: MaxPool,
        operands: Operands,
        epilogue: Epilogue,
        tile: Tile,
    ) -> None:
        super().__init__(builder, conv, operands, epilogue, tile)
        self._pool = pool
        sums = _sums_tile(pool, tile)
        self._sums_room = tile.outputs * sums.height * sums.width
        self._windows: list[tuple[Axis, Axis]] = [
            (row, column)
            for row in axes(pool, pool.height, pool.out_height, tile.height)
            for column in axes(pool, pool.width, pool.out_width, tile.width)
        ]

    def _areas(self) -> list[Area]:
        return [Area(r.begin, r.pixels, c.begin, c.pixels) for r, c in self._windows]

    def _sums_at(self, step: Step) -> int:
        return 0

    def _maxima_at(self, step: Step) -> int:
        """Returns the first accumulator of a step's maxima."""
        room = self._tile.outputs * self._tile.height * self._tile.width
        return self._sums_room + step.tile % self._tile.parts * room

    def _finish(self, step: Step, acc: int) -> None:
        builder, tops = self._b, self._maxima_at(step)
        row, column = self._windows[step.area]
        loop, size, factors = (row.count, column.count), row.count * column.count, (column.count, 1)
        uops = [
            MicroOp(tops + o * size, self._bias_at + step.output + o) for o in range(step.outputs)
        ]
        maxima = [MicroOp(u.dst) for u in uops]
        builder.gemm(maxima, loop, dst=factors, reset=True)
        builder.alu(AluOp.ADD, maxima, loop, dst=factors, imm=_LEAST)
        builder.alu(AluOp.SHR, maxima, loop, dst=factors, imm=_TO_LEAST)
        emit_windows(builder, self._pool, acc, tops, step.outputs, row, column)
        self._scale(uops, loop)

    def _store(self, step: Step, acc: int) -> None:
        pool, (row, column) = self._pool, self._windows[step.area]
        first = step.image * self._outs + step.output
        for o in range(step.outputs):
            self._b.store(
                self._y,
                sram=self._maxima_at(step) + o * row.count * column.count,
                at=((first + o) * pool.out_height + row.first) * pool.out_width + column.first,
                y=row.count,
                x=column.count,
                stride=pool.out_width,
            )
