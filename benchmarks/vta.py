"""The layers of ResNet-18 on VTA, in the timing model: cycles, use of the matrix unit, bytes.

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
    Program,
    Timing,
    emit_convolution,
    time,
)
from clew.backends.vta.elementwise import Addition, emit_addition
from clew.backends.vta.packing import blocks
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
    emit_convolution(builder, conv, x, w, between, bias, epilogue, tile)
    builder.barrier()
    emit_addition(builder, Addition(shift=1, low=0), between, skip, y, parts)
    return time(builder.program(), config)


def pooled(config: Config, parts: int) -> Timing:
    """Returns the time of the max pool."""
    return time(_pool_program(config, parts), config)


def _pool_program(config: Config, parts: int) -> Program:
    builder = Builder(config)
    x = builder.input("x", Memory.INP, POOL.planes * POOL.height * POOL.width)
    y = builder.output("y", POOL.planes * POOL.out_height * POOL.out_width)
    emit_max_pool(builder, POOL, x, y, parts)
    return builder.program()


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
            saved = 1 - one.cycles / two.cycles
            cycles = (f"{two.cycles:,}", f"{one.cycles:,}", f"{saved:.1%}")
            yield [_named(conv), *cycles, _moved(two), _moved(one)]


def main(
    document: Annotated[
        Path | None, typer.Option("--markdown", help="Also put the tables into this document.")
    ] = None,
) -> None:
    """Prints the tables."""
    config = Config.default()
    columns = ["layer", "cycles in turns", "of peak", "KiB", "with overlap", "of peak", "KiB"]
    first = markdown(columns, list(_layers(config)), numbers=1)
    columns = ["layer with an addition", "two kernels, cycles", "one kernel", "saved", "KiB of two"]
    second = markdown([*columns, "KiB of one"], list(_fusions(config)), numbers=1)
    text = f"{first}\n\n{second}"
    print(text)
    if document is not None:
        fill(document, "layers of ResNet-18", text)


if __name__ == "__main__":
    typer.run(main)
