"""Convolutions and matrix products as instructions.

A convolution is computed in *steps*. The outputs are split into tiles, `tile.outputs` blocks of
channels by `tile.height` rows by `tile.width` columns; a step adds `tile.inputs` blocks of input
channels to one tile. With two parts, each memory is halved: while one half of `inp` and `wgt` is
computed on, the other one is loaded, and while one half of `acc` is stored, the other one is
filled. Load waits for the compute of the step that had its half before, and compute waits for the
store of the tile that had its half.

A matrix product `x[m, k] · w[n, k]ᵀ` is a convolution of one row of `m` pixels by a 1×1 kernel.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from clew.backends.vta.builder import Builder
from clew.backends.vta.config import Config
from clew.backends.vta.isa import MicroOp
from clew.backends.vta.names import AluOp, Engine, Memory
from clew.backends.vta.packing import blocks
from clew.backends.vta.program import Buffer
from clew.support.errors import InputError


@dataclass(frozen=True)
class Convolution:
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
    def out_height(self) -> int:
        """The rows of the result."""
        return (self.height + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def out_width(self) -> int:
        """The columns of the result."""
        return (self.width + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def taps(self) -> int:
        """The elements of the kernel."""
        return self.kernel * self.kernel

    def across(self, outputs: int) -> int:
        """Returns the pixels of the input, padded, from which so many in a row are computed."""
        return (outputs - 1) * self.stride + self.kernel


@dataclass(frozen=True)
class Epilogue:
    """What follows the sums: `clip(sums + bias + (skip << skip_shift) >> shift, low, high)`,
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
    inp = tile.inputs * conv.across(tile.height) * conv.across(tile.width)
    wgt = tile.outputs * tile.inputs * conv.taps
    acc = tile.outputs * tile.height * tile.width
    return (
        tile.parts * inp <= config.depth(Memory.INP)
        and conv.stride * conv.across(tile.width) < config.depth(Memory.INP)
        and tile.parts * wgt <= config.depth(Memory.WGT)
        and tile.parts * acc <= config.depth(Memory.ACC) - bias
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
    outputs = _divisors(blocks(conv.outputs, config.block_out))
    inputs = _divisors(blocks(conv.inputs, config.block_in))
    heights = sorted({blocks(conv.out_height, n) for n in range(1, conv.out_height + 1)})
    widths = sorted({blocks(conv.out_width, n) for n in range(1, conv.out_width + 1)})
    every = (
        Tile(o, h, w, i, parts) for o in outputs for h in heights for w in widths for i in inputs
    )
    found = heapq.nsmallest(
        count,
        (t for t in every if fits(conv, t, config)),
        key=lambda t: (estimate(conv, t, config), t.width != conv.out_width),
    )
    if not found:
        raise InputError(
            "I445",
            f"VTA: the memories hold no tile of a convolution of {conv.inputs} by {conv.outputs} "
            f"channels with a {conv.kernel}×{conv.kernel} kernel",
        )
    return found


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def estimate(conv: Convolution, tile: Tile, config: Config) -> float:
    """Returns an estimate of a convolution's cycles: those of its busiest engine, and of the first
    load and the last store; without a second part, the sum of those of all engines.
    """
    ins, outs = blocks(conv.inputs, config.block_in), blocks(conv.outputs, config.block_out)
    spatial = blocks(conv.out_height, tile.height) * blocks(conv.out_width, tile.width)
    tiles = blocks(conv.images, config.batch) * blocks(outs, tile.outputs) * spatial
    steps = tiles * blocks(ins, tile.inputs)
    beat, latency = config.dram_bytes_per_cycle, config.dram_latency_cycles

    def moved(memory: Memory, elements: int) -> float:
        return elements * config.element_bytes(memory) / beat

    pixels = conv.across(tile.height) * conv.across(tile.width)
    inp = tile.inputs * (latency + moved(Memory.INP, pixels))
    wgt = latency + moved(Memory.WGT, tile.outputs * tile.inputs * conv.taps)
    reloads = blocks(outs, tile.outputs) if tile.inputs == ins else steps
    vectors = tile.outputs * tile.height * tile.width
    gemm = vectors * tile.inputs * conv.taps * config.gemm_cycles + config.gemm_latency_cycles
    ends = vectors * (config.gemm_cycles + config.alu_tensor_cycles + 3 * config.alu_imm_cycles)
    load = steps * inp + reloads * wgt
    compute = steps * gemm + tiles * ends
    store = tiles * (latency + moved(Memory.OUT, vectors))
    if tile.parts == 1:
        return load + compute + store
    bus = load + store  # which share the bandwidth
    return max(bus, compute) + inp + wgt + store / tiles


@dataclass(frozen=True)
class _Step:
    """One step: where its tile begins and how large it is, and its first block of inputs."""

    image: int
    output: int
    outputs: int
    top: int
    height: int
    left: int
    width: int
    input: int
    inputs: int
    tile: int
    is_first: bool
    is_last: bool

    @property
    def weights(self) -> tuple[int, int]:
        """The first blocks of the weights that the step uses."""
        return self.output, self.input


def emit_convolution(
    builder: Builder,
    conv: Convolution,
    x: Buffer,
    w: Buffer,
    y: Buffer,
    bias: Buffer | None = None,
    epilogue: Epilogue | None = None,
    tile: Tile | None = None,
    skip: Buffer | None = None,
) -> None:
    """Appends a convolution to a program. `x`, `w`, `y` and `bias` are packed (`packing.py`), and
    `skip`, bytes in the form of `y`. No instruction before may be running: `Builder.barrier` waits
    for them.

    Errors: I445 if the tile does not fit the memories.
    """
    tile = tile or choose_tile(conv, builder.config)
    if not fits(conv, tile, builder.config):
        raise InputError("I445", f"VTA: the memories do not hold {tile}")
    _Emitter(builder, conv, x, w, y, bias, epilogue or Epilogue(), tile, skip).emit()


class _Emitter:
    """Emits the steps of one convolution."""

    def __init__(
        self,
        builder: Builder,
        conv: Convolution,
        x: Buffer,
        w: Buffer,
        y: Buffer,
        bias: Buffer | None,
        epilogue: Epilogue,
        tile: Tile,
        skip: Buffer | None,
    ) -> None:
        self._skip = skip
        self._b, self._conv, self._tile, self._epilogue = builder, conv, tile, epilogue
        self._x, self._w, self._y, self._bias = x, w, y, bias
        config = builder.config
        self._ins = blocks(conv.inputs, config.block_in)
        self._outs = blocks(conv.outputs, config.block_out)
        self._images = blocks(conv.images, config.batch)
        self._bias_at = config.depth(Memory.ACC) - self._outs
        self._inp_part = config.depth(Memory.INP) // tile.parts
        self._wgt_part = config.depth(Memory.WGT) // tile.parts
        self._acc_part = self._bias_at // tile.parts

    def emit(self) -> None:
        """Emits all steps."""
        b, parts = self._b, self._tile.parts
        if self._bias is not None:
            with b.origin(label="load bias"):
                b.load(Memory.ACC, self._bias, sram=self._bias_at)
        steps = list(self._steps())
        weights = -1  # the number of the load of weights
        for number, step in enumerate(steps):
            is_new = number == 0 or step.weights != steps[number - 1].weights
            weights += is_new
            wgt = weights % parts * self._wgt_part
            inp = number % parts * self._inp_part
            acc = step.tile % parts * self._acc_part
            if number >= parts:
                b.pop(Engine.COMPUTE, Engine.LOAD)
            with b.origin(label="load"):
                self._load_data(step, inp)
                if is_new:
                    self._load_weights(step, wgt)
            b.push(Engine.LOAD, Engine.COMPUTE)
            if step.is_first:
                if step.tile >= parts:
                    b.pop(Engine.STORE, Engine.COMPUTE)
                with b.origin(label="reset"):
                    self._reset(step, acc)
            b.pop(Engine.LOAD, Engine.COMPUTE)
            with b.origin(label="multiply"):
                self._multiply(step, acc, inp, wgt)
            if number + parts < len(steps):
                b.push(Engine.COMPUTE, Engine.LOAD)
            if step.is_last:
                with b.origin(label="epilogue"):
                    self._finish(step, acc)
                b.push(Engine.COMPUTE, Engine.STORE)
                b.pop(Engine.COMPUTE, Engine.STORE)
                with b.origin(label="store"):
                    self._store(step, acc)
                if step.tile + parts <= steps[-1].tile:
                    b.push(Engine.STORE, Engine.COMPUTE)

    def _steps(self) -> Iterator[_Step]:
        """Yields the steps. Tiles of the same outputs follow each other, for their weights."""
        conv, tile, number = self._conv, self._tile, 0
        for output in range(0, self._outs, tile.outputs):
            for image in range(self._images):
                for top in range(0, conv.out_height, tile.height):
                    for left in range(0, conv.out_width, tile.width):
                        for first in range(0, self._ins, tile.inputs):
                            yield _Step(
                                image,
                                output,
                                min(tile.outputs, self._outs - output),
                                top,
                                min(tile.height, conv.out_height - top),
                                left,
                                min(tile.width, conv.out_width - left),
                                first,
                                min(tile.inputs, self._ins - first),
                                number,
                                first == 0,
                                first + tile.inputs >= self._ins,
                            )
                        number += 1

    def _load_data(self, step: _Step, inp: int) -> None:
        """Loads the pixels that a tile needs, with zeros where they are outside of the image."""
        conv = self._conv
        top = step.top * conv.stride - conv.padding
        left = step.left * conv.stride - conv.padding
        rows, columns = conv.across(step.height), conv.across(step.width)
        above, below = max(0, -top), max(0, top + rows - conv.height)
        before, after = max(0, -left), max(0, left + columns - conv.width)
        for channel in range(step.inputs):
            plane = step.image * self._ins + step.input + channel
            self._b.load(
                Memory.INP,
                self._x,
                sram=inp + channel * rows * columns,
                at=(plane * conv.height + top + above) * conv.width + left + before,
                y=rows - above - below,
                x=columns - before - after,
                stride=conv.width,
                y_pad=(above, below),
                x_pad=(before, after),
            )

    def _load_weights(self, step: _Step, wgt: int) -> None:
        taps = self._conv.taps
        self._b.load(
            Memory.WGT,
            self._w,
            sram=wgt,
            at=(step.output * self._ins + step.input) * taps,
            y=step.outputs,
            x=step.inputs * taps,
            stride=self._ins * taps,
        )

    def _vectors(self, step: _Step, acc: int) -> list[MicroOp]:
        """Returns the micro-ops that, in loops over rows and columns, visit a tile; their sources
        are the biases.
        """
        pixels = step.height * step.width
        return [
            MicroOp(acc + o * pixels, self._bias_at + step.output + o) for o in range(step.outputs)
        ]

    def _reset(self, step: _Step, acc: int) -> None:
        if self._skip is not None:
            self._load_skip(step, acc)
            return
        uops = [MicroOp(u.dst) for u in self._vectors(step, acc)]
        self._b.gemm(uops, (step.height, step.width), dst=(step.width, 1), reset=True)

    def _load_skip(self, step: _Step, acc: int) -> None:
        """Fills a tile of sums with the bytes to add, in the scale of the sums."""
        assert self._skip is not None
        conv, pixels = self._conv, step.height * step.width
        plane = conv.out_height * conv.out_width
        first = step.image * self._outs + step.output
        for o in range(step.outputs):
            self._b.load(
                Memory.ACC8,
                self._skip,
                sram=acc + o * pixels,
                at=(first + o) * plane + step.top * conv.out_width + step.left,
                y=step.height,
                x=step.width,
                stride=conv.out_width,
            )
        if self._epilogue.skip_shift:
            uops = [MicroOp(u.dst) for u in self._vectors(step, acc)]
            by = -self._epilogue.skip_shift
            self._b.alu(AluOp.SHR, uops, (step.height, step.width), dst=(step.width, 1), imm=by)

    def _multiply(self, step: _Step, acc: int, inp: int, wgt: int) -> None:
        conv, pixels = self._conv, step.height * step.width
        rows, columns = conv.across(step.height), conv.across(step.width)
        # Blocks of outputs vary fastest: consecutive micro-ops have different destinations.
        uops = [
            MicroOp(
                acc + o * pixels,
                inp + (channel * rows + ky) * columns + kx,
                wgt + ((o * step.inputs + channel) * conv.kernel + ky) * conv.kernel + kx,
            )
            for channel in range(step.inputs)
            for ky in range(conv.kernel)
            for kx in range(conv.kernel)
            for o in range(step.outputs)
        ]
        self._b.gemm(
            uops,
            (step.height, step.width),
            dst=(step.width, 1),
            src=(conv.stride * columns, conv.stride),
        )

    def _finish(self, step: _Step, acc: int) -> None:
        """Emits the epilogue of a tile."""
        uops, loop, epilogue = self._vectors(step, acc), (step.height, step.width), self._epilogue
        factors = (step.width, 1)
        if self._bias is not None:
            self._b.alu(AluOp.ADD, uops, loop, dst=factors)
        plain = [MicroOp(u.dst) for u in uops]
        if epilogue.shift:
            self._b.alu(AluOp.SHR, plain, loop, dst=factors, imm=epilogue.shift)
        self._b.alu(AluOp.MAX, plain, loop, dst=factors, imm=epilogue.low)
        self._b.alu(AluOp.MIN, plain, loop, dst=factors, imm=epilogue.high)

    def _store(self, step: _Step, acc: int) -> None:
        conv, pixels = self._conv, step.height * step.width
        plane = conv.out_height * conv.out_width
        first = step.image * self._outs + step.output
        at = first * plane + step.top * conv.out_width + step.left
        if step.width == conv.out_width:  # the rows of a channel follow each other
            self._b.store(self._y, sram=acc, at=at, y=step.outputs, x=pixels, stride=plane)
            return
        for o in range(step.outputs):
            self._b.store(
                self._y,
                sram=acc + o * pixels,
                at=at + o * plane,
                y=step.height,
                x=step.width,
                stride=conv.out_width,
            )
