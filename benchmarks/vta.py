"""The layers of ResNet-18 on VTA, in the timing model: cycles, use of the matrix unit, bytes; and
convolutions with an addition or a max pool as two kernels and as one.

    python benchmarks/vta.py --markdown docs/vta.md

Nothing is measured on a machine: the figures depend only on the configuration. Layers have a bias,
and tiles are searched in the timing model.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import typer

from clew.backends.vta import (
    Builder,
    Config,
    Convolution,
    Epilogue,
    Memory,
    Operands,
    Timing,
    emit_convolution,
    time,
)
from clew.backends.vta.elementwise import Addition, emit_addition
from clew.backends.vta.packing import blocks
from clew.backends.vta.pooled_convolution import pool_of_convolution
from clew.backends.vta.pooling import MaxPool, emit_max_pool
from clew.backends.vta.search import convolution_program, search_tile
from harness.report import fill, markdown

LAYERS: Final = (
    *(Convolution(64 << n, 64 << n, 56 >> n, 56 >> n, kernel=3, padding=1) for n in range(4)),
    *(
        Convolution(64 << n, 128 << n, 56 >> n, 56 >> n, kernel=3, stride=2, padding=1)
        for n in range(3)
    ),
    *(Convolution(64 << n, 128 << n, 56 >> n, 56 >> n, kernel=1, stride=2) for n in range(3)),
)
POOL: Final = MaxPool(4, 112, 112, kernel=3, stride=2, padding=1)
WINDOWS: Final = ((2, 2, 0), (3, 2, 1))
"""Kernel, stride and padding of the pools after convolutions."""
_PARTS: Final = (1, 2)


def fused(conv: Convolution, config: Config, parts: int, *, skips: bool) -> Timing:
    """Returns the time of a convolution with its bias, addend (if `skips`), shift and clip."""
    epilogue = Epilogue(10, low=0, skip_shift=4 if skips else 0)
    tile = search_tile(conv, epilogue, config, parts, skips=skips)
    return time(convolution_program(conv, config, tile, epilogue, skips=skips), config)


def unfused(conv: Convolution, config: Config, parts: int) -> Timing:
    """Returns the time of a convolution and an addition of its bytes to others."""
    builder = Builder(config)
    ins, outs = blocks(conv.inputs, config.block_in), blocks(conv.outputs, config.block_out)
    size = outs * conv.out_height * conv.out_width
    x = builder.input("x", Memory.INP, ins * conv.height * conv.width)
    w = builder.input("w", Memory.WGT, outs * ins * conv.taps)
    bias, skip = builder.input("bias", Memory.ACC, outs), builder.input("skip", Memory.INP, size)
    between, y = builder.scratch("between", size), builder.output("y", size)
    epilogue = Epilogue(10)
    tile = search_tile(conv, epilogue, config, parts)
    emit_convolution(builder, conv, Operands(x, w, between, bias), epilogue, tile)
    builder.barrier()
    emit_addition(builder, Addition(shift=1, low=0), between, skip, y, parts)
    return time(builder.program(), config)


def pooled(config: Config, parts: int) -> Timing:
    """Returns the time of the max pool."""
    builder = Builder(config)
    x = builder.input("x", Memory.INP, POOL.planes * POOL.height * POOL.width)
    y = builder.output("y", POOL.planes * POOL.out_height * POOL.out_width)
    emit_max_pool(builder, POOL, x, y, parts)
    return time(builder.program(), config)


def fused_pool(conv: Convolution, pool: MaxPool, config: Config) -> Timing:
    """Returns the time of a convolution with a max pool of its result, with overlap."""
    epilogue = Epilogue(10, low=0)
    tile = search_tile(conv, epilogue, config, pool=pool)
    return time(convolution_program(conv, config, tile, epilogue, pool=pool), config)


def unfused_pool(conv: Convolution, pool: MaxPool, config: Config) -> Timing:
    """Returns the time of a convolution and of a max pool of its bytes, with overlap."""
    builder = Builder(config)
    ins, outs = blocks(conv.inputs, config.block_in), blocks(conv.outputs, config.block_out)
    x = builder.input("x", Memory.INP, ins * conv.height * conv.width)
    w = builder.input("w", Memory.WGT, outs * ins * conv.taps)
    bias = builder.input("bias", Memory.ACC, outs)
    between = builder.scratch("between", outs * conv.out_height * conv.out_width)
    y = builder.output("y", pool.planes * pool.out_height * pool.out_width)
    epilogue = Epilogue(10, low=0)
    tile = search_tile(conv, epilogue, config)
    emit_convolution(builder, conv, Operands(x, w, between, bias), epilogue, tile)
    builder.barrier()
    emit_max_pool(builder, pool, between, y)
    return time(builder.program(), config)


def _moved(timing: Timing) -> str:
    return f"{sum(timing.bytes_moved.values()) / 1024:,.0f}"


def _named(conv: Convolution) -> str:
    stride = f", stride {conv.stride}" if conv.stride > 1 else ""
    kernel = f"{conv.kernel}×{conv.kernel}{stride}"
    return f"{kernel}, {conv.inputs} to {conv.outputs} channels, {conv.height}×{conv.width}"


def _layers(config: Config) -> Iterator[list[str]]:
    for conv in LAYERS:
        for skips in (False, True) if conv.stride == 1 else (False,):
            turns, overlap = (fused(conv, config, parts, skips=skips) for parts in _PARTS)
            yield [
                _named(conv) + (", addend" if skips else ""),
                f"{turns.cycles:,}",
                f"{turns.utilization:.1%}",
                _moved(turns),
                f"{overlap.cycles:,}",
                f"{overlap.utilization:.1%}",
                _moved(overlap),
            ]
    turns, overlap = (pooled(config, parts) for parts in _PARTS)
    name = f"max pool 3×3, stride 2, 64 channels, {POOL.height}×{POOL.width}"
    moved = (_moved(turns), _moved(overlap))
    yield [name, f"{turns.cycles:,}", "", moved[0], f"{overlap.cycles:,}", "", moved[1]]


def _fusions(config: Config) -> Iterator[list[str]]:
    for conv in LAYERS:
        if conv.stride == 1:
            one, two = fused(conv, config, 2, skips=True), unfused(conv, config, 2)
            yield [_named(conv), *_compared(two, one)]


def _pools(config: Config) -> Iterator[list[str]]:
    for conv in LAYERS:
        for kernel, stride, padding in WINDOWS if conv.stride == 1 else ():
            pool = pool_of_convolution(conv, config, kernel, stride, padding)
            one, two = fused_pool(conv, pool, config), unfused_pool(conv, pool, config)
            name = f"{_named(conv)}; {kernel}×{kernel}, stride {stride}"
            yield [name, *_compared(two, one)]


def _compared(two: Timing, one: Timing) -> list[str]:
    """Returns the cells that compare two kernels with one."""
    saved = f"{1 - one.cycles / two.cycles:.1%}"
    return [f"{two.cycles:,}", f"{one.cycles:,}", saved, _moved(two), _moved(one)]


def main(
    document: Annotated[
        Path | None, typer.Option("--markdown", help="Also put the tables into this document.")
    ] = None,
) -> None:
    """Prints the tables."""
    config = Config.default()
    columns = ["layer", "cycles in turns", "of peak", "KiB", "with overlap", "of peak", "KiB"]
    first = markdown(columns, list(_layers(config)), numbers=1)
    columns = ["two kernels, cycles", "one kernel", "saved", "KiB of two", "KiB of one"]
    second = markdown(["layer with an addition", *columns], list(_fusions(config)), numbers=1)
    third = markdown(["layer with a max pool", *columns], list(_pools(config)), numbers=1)
    text = "\n\n".join((first, second, third))
    print(text)
    if document is not None:
        fill(document, "layers of ResNet-18", text)


if __name__ == "__main__":
    typer.run(main)
