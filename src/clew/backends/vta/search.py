"""Searches the tile of a convolution in the timing model.

An estimate ranks all tiles; the timing model runs the program of each of the first ones. Tiles are
kept for the life of the process: the time of a program depends on no values.
"""

from __future__ import annotations

from typing import Final

from clew.backends.vta.builder import Builder
from clew.backends.vta.config import Config
from clew.backends.vta.convolution import Operands, emit_convolution
from clew.backends.vta.names import Memory
from clew.backends.vta.packing import blocks
from clew.backends.vta.pooled_convolution import emit_pooled_convolution, likely_pooled_tiles
from clew.backends.vta.pooling import MaxPool
from clew.backends.vta.program import Program
from clew.backends.vta.tiles import Convolution, Epilogue, Tile, likely_tiles
from clew.backends.vta.timing import time
from clew.support.caches import bounded_cache

CANDIDATES: Final = 16
"""How many tiles are timed."""


@bounded_cache(1 << 20)
def search_tile(
    conv: Convolution,
    epilogue: Epilogue,
    config: Config,
    parts: int = 2,
    *,
    skips: bool = False,
    pool: MaxPool | None = None,
    candidates: int = CANDIDATES,
) -> Tile:
    """Returns the fastest in the timing model of the `candidates` tiles of the shortest estimated
    times. The convolution has a bias and, if `skips`, a residual addend. With a pool, the tile is
    one of its results.

    Errors: I445 if no tile fits the memories.
    """
    if pool is None:
        tiles = likely_tiles(conv, config, parts, candidates)
    else:
        tiles = likely_pooled_tiles(conv, pool, config, parts, candidates)

    def cycles(tile: Tile) -> int:
        program = convolution_program(conv, config, tile, epilogue, skips=skips, pool=pool)
        return time(program, config).cycles

    return min(tiles, key=cycles)


def convolution_program(
    conv: Convolution,
    config: Config,
    tile: Tile,
    epilogue: Epilogue,
    *,
    skips: bool = False,
    pool: MaxPool | None = None,
) -> Program:
    """Returns the program of one convolution with a bias whose operands are its inputs: `x`, `w`,
    `bias` and, if `skips`, the addend `skip`. Its output is `y`: with a pool, that of its results.

    Errors: I445 if the tile does not fit the memories.
    """
    builder = Builder(config)
    images = blocks(conv.images, config.batch)
    ins, outs = blocks(conv.inputs, config.block_in), blocks(conv.outputs, config.block_out)
    elements = images * outs * conv.out_height * conv.out_width
    x = builder.input("x", Memory.INP, images * ins * conv.height * conv.width)
    w = builder.input("w", Memory.WGT, outs * ins * conv.taps)
    bias = builder.input("bias", Memory.ACC, outs)
    skip = builder.input("skip", Memory.INP, elements) if skips else None
    with builder.origin("conv"):
        if pool is None:
            operands = Operands(x, w, builder.output("y", elements), bias, skip)
            emit_convolution(builder, conv, operands, epilogue, tile)
        else:
            y = builder.output("y", pool.planes * pool.out_height * pool.out_width)
            operands = Operands(x, w, y, bias, skip)
            emit_pooled_convolution(builder, conv, pool, operands, epilogue, tile)
    return builder.program()
