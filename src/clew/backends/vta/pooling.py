"""Max pools of bytes as instructions.

A step computes some rows and columns of some planes, a plane being a block of channels of an image.
Loads pad with 0, which may be larger than what a window has, so no padding is loaded: a tap is
applied to the windows in which it lies inside the image.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from clew.backends.vta.builder import Builder
from clew.backends.vta.config import Config
from clew.backends.vta.isa import MicroOp
from clew.backends.vta.names import AluOp, Memory
from clew.backends.vta.program import Buffer
from clew.backends.vta.stages import emit_stages
from clew.backends.vta.windows import Windows
from clew.support.errors import InputError

_LEAST = -128


@dataclass(frozen=True)
class MaxPool(Windows):
    """The sizes of a max pool of `i8[planes, height, width]`, with windows of `kernel` by `kernel`
    and the same padding on all sides, which is smaller than the kernel.

    Errors: I445.
    """

    planes: int
    height: int
    width: int
    kernel: int
    stride: int = 1
    padding: int = 0

    def __post_init__(self) -> None:
        sizes = (self.planes, self.kernel, self.stride, self.out_height, self.out_width)
        if min(sizes) < 1:
            raise InputError("I445", f"VTA: {self} has no result")
        if not 0 <= self.padding < self.kernel:
            raise InputError(
                "I445", f"VTA: the padding is {self.padding}, not from 0 to {self.kernel - 1}"
            )


@dataclass(frozen=True)
class Axis:
    """A range of windows along an axis: the first and how many, and the pixels that they read."""

    first: int
    count: int
    begin: int
    end: int
    stride: int

    @property
    def pixels(self) -> int:
        """How many pixels the windows read."""
        return self.end - self.begin

    def inside(self, tap: int, padding: int) -> range:
        """Returns the windows, counted from `first`, in which a tap lies inside the image."""
        at = [(self.first + n) * self.stride - padding + tap for n in range(self.count)]
        found = [n for n, pixel in enumerate(at) if self.begin <= pixel < self.end]
        return range(found[0], found[-1] + 1) if found else range(0)


def axes(pool: MaxPool, size: int, windows: int, step: int) -> Iterator[Axis]:
    """Yields ranges of `step` windows or fewer along an axis of `size` pixels."""
    for first in range(0, windows, step):
        count = min(step, windows - first)
        begin = first * pool.stride - pool.padding
        end = (first + count - 1) * pool.stride - pool.padding + pool.kernel
        yield Axis(first, count, max(0, begin), min(size, end), pool.stride)


def _steps(pool: MaxPool, room: int) -> tuple[int, int, int]:
    """Returns the planes, rows and columns of a step, the most that fit `room` accumulators: whole
    rows if one fits, and several planes if whole ones fit.

    Errors: I445.
    """

    def takes(rows: int, columns: int) -> int:
        height = min(pool.height, (rows - 1) * pool.stride + pool.kernel)
        width = min(pool.width, (columns - 1) * pool.stride + pool.kernel)
        return rows * columns + height * width

    columns = max((n for n in range(1, pool.out_width + 1) if takes(1, n) <= room), default=0)
    if not columns:
        raise InputError("I445", f"VTA: the memories hold no window of {pool}")
    rows = max(n for n in range(1, pool.out_height + 1) if takes(n, columns) <= room)
    is_whole = (rows, columns) == (pool.out_height, pool.out_width)
    return min(pool.planes, room // takes(rows, columns)) if is_whole else 1, rows, columns


def estimate_pool(pool: MaxPool, config: Config, parts: int) -> float:
    """Returns an estimate of the cycles of a max pool. The compute engine loads the pixels."""
    beats = config.element_bytes(Memory.OUT) / config.dram_bytes_per_cycle
    results = pool.planes * pool.out_height * pool.out_width
    taps = pool.kernel * pool.kernel * config.alu_tensor_cycles
    load = pool.planes * pool.height * pool.width * beats
    compute = results * (config.gemm_cycles + config.alu_imm_cycles + taps)
    ends = 2 * config.dram_latency_cycles  # of the first load and the last store
    return ends + load + compute + (results * beats if parts == 1 else 0)


def emit_max_pool(builder: Builder, pool: MaxPool, x: Buffer, y: Buffer, parts: int = 2) -> None:
    """Appends a max pool of bytes to a program. With two parts, a step is computed while the one
    before is stored. No instruction before may be running: `Builder.barrier` waits for them.

    Errors: I445 if the memories hold no window.
    """
    room = builder.config.depth(Memory.ACC) // parts
    planes, rows, columns = _steps(pool, room)
    steps = [
        (plane, min(planes, pool.planes - plane), row, column)
        for plane in range(0, pool.planes, planes)
        for row in axes(pool, pool.height, pool.out_height, rows)
        for column in axes(pool, pool.width, pool.out_width, columns)
    ]

    def load(number: int) -> None:
        plane, count, row, column = steps[number]
        for n in range(count):
            builder.load(
                Memory.ACC8,
                x,
                sram=number % parts * room + n * row.pixels * column.pixels,
                at=((plane + n) * pool.height + row.begin) * pool.width + column.begin,
                y=row.pixels,
                x=column.pixels,
                stride=pool.width,
            )

    def tops(number: int) -> int:
        """Returns the first accumulator of a step's results, which follow its pixels."""
        _, count, row, column = steps[number]
        return number % parts * room + count * row.pixels * column.pixels

    def compute(number: int) -> None:
        _, count, row, column = steps[number]
        _pool(builder, pool, number % parts * room, tops(number), count, row, column)

    def store(number: int) -> None:
        plane, count, row, column = steps[number]
        for n in range(count):
            builder.store(
                y,
                sram=tops(number) + n * row.count * column.count,
                at=((plane + n) * pool.out_height + row.first) * pool.out_width + column.first,
                y=row.count,
                x=column.count,
                stride=pool.out_width,
            )

    emit_stages(builder, len(steps), parts, load=load, compute=compute, store=store)


def _pool(
    builder: Builder, pool: MaxPool, acc: int, tops: int, count: int, row: Axis, column: Axis
) -> None:
    """Emits the comparisons of a step: its pixels are at `acc`, its results at `tops`."""
    size = row.count * column.count
    results = [MicroOp(tops + n * size) for n in range(count)]
    loop = (row.count, column.count)
    builder.gemm(results, loop, dst=(column.count, 1), reset=True)
    builder.alu(AluOp.ADD, results, loop, dst=(column.count, 1), imm=_LEAST)
    emit_windows(builder, pool, acc, tops, count, row, column)


def emit_windows(
    builder: Builder, pool: MaxPool, acc: int, tops: int, count: int, row: Axis, column: Axis
) -> None:
    """Appends the comparisons of windows of `count` planes to a program. The pixels that they read
    are at `acc`, and at `tops`, the values to begin with.
    """
    size, pixels = row.count * column.count, row.pixels * column.pixels
    taps: dict[tuple[range, range], list[MicroOp]] = defaultdict(list)
    for ky in range(pool.kernel):
        for kx in range(pool.kernel):
            down, along = row.inside(ky, pool.padding), column.inside(kx, pool.padding)
            if not down or not along:
                continue
            top = (row.first + down[0]) * pool.stride - pool.padding + ky - row.begin
            left = (column.first + along[0]) * pool.stride - pool.padding + kx - column.begin
            taps[down, along] += [
                MicroOp(
                    tops + n * size + down[0] * column.count + along[0],
                    acc + n * pixels + top * column.pixels + left,
                )
                for n in range(count)
            ]
    for (down, along), uops in taps.items():
        builder.alu(
            AluOp.MAX,
            uops,
            (len(down), len(along)),
            dst=(column.count, 1),
            src=(pool.stride * column.pixels, pool.stride),
        )
