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

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from clew.backends.vta.builder import Builder
from clew.backends.vta.isa import MicroOp
from clew.backends.vta.names import AluOp, Engine, Memory
from clew.backends.vta.packing import blocks
from clew.backends.vta.program import Buffer
from clew.backends.vta.tiles import Convolution, Epilogue, Tile, choose_tile, fits
from clew.support.errors import InputError


@dataclass(frozen=True)
class Area:
    """A range of rows and columns of the sums."""

    top: int
    height: int
    left: int
    width: int


@dataclass(frozen=True)
class Step:
    """One step: where its tile begins and how large it is, the number of its area, and its first
    block of inputs.
    """

    image: int
    output: int
    outputs: int
    top: int
    height: int
    left: int
    width: int
    input: int
    inputs: int
    area: int
    tile: int
    is_first: bool
    is_last: bool

    @property
    def weights(self) -> tuple[int, int]:
        """The first blocks of the weights that the step uses."""
        return self.output, self.input


@dataclass(frozen=True)
class Operands:
    """The buffers of a convolution: the data `x`, the weights `w`, the result `y` and the `bias`,
    packed (`packing.py`), and `skip`, bytes in the form of the convolution's result.
    """

    x: Buffer
    w: Buffer
    y: Buffer
    bias: Buffer | None = None
    skip: Buffer | None = None


def emit_convolution(
    builder: Builder,
    conv: Convolution,
    operands: Operands,
    epilogue: Epilogue | None = None,
    tile: Tile | None = None,
) -> None:
    """Appends a convolution to a program. No instruction before may be running: `Builder.barrier`
    waits for them.

    Errors: I445 if the tile does not fit the memories.
    """
    tile = tile or choose_tile(conv, builder.config)
    if not fits(conv, tile, builder.config):
        raise InputError("I445", f"VTA: the memories do not hold {tile}")
    ConvolutionEmitter(builder, conv, operands, epilogue or Epilogue(), tile).emit()


class ConvolutionEmitter:
    """Emits the steps of one convolution.

    A kernel that computes more on a tile before it is stored derives from this class: `_areas`
    splits the sums, `_sums_at` places those of a tile, `_finish` and `_store` end it.
    """

    def __init__(
        self,
        builder: Builder,
        conv: Convolution,
        operands: Operands,
        epilogue: Epilogue,
        tile: Tile,
    ) -> None:
        self._b, self._conv, self._tile, self._epilogue = builder, conv, tile, epilogue
        self._x, self._w, self._y = operands.x, operands.w, operands.y
        self._bias, self._skip = operands.bias, operands.skip
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
            acc = self._sums_at(step)
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

    def _areas(self) -> list[Area]:
        """Returns the areas of an image's sums, each of which is computed at once."""
        conv, tile = self._conv, self._tile
        return [
            Area(
                top,
                min(tile.height, conv.out_height - top),
                left,
                min(tile.width, conv.out_width - left),
            )
            for top in range(0, conv.out_height, tile.height)
            for left in range(0, conv.out_width, tile.width)
        ]

    def _sums_at(self, step: Step) -> int:
        """Returns the first accumulator of a step's sums."""
        return step.tile % self._tile.parts * self._acc_part

    def _steps(self) -> Iterator[Step]:
        """Yields the steps. Tiles of the same outputs follow each other, for their weights."""
        tile, areas = self._tile, self._areas()
        tiles = product(range(0, self._outs, tile.outputs), range(self._images), enumerate(areas))
        for number, (output, image, (index, area)) in enumerate(tiles):
            for first in range(0, self._ins, tile.inputs):
                yield Step(
                    image,
                    output,
                    min(tile.outputs, self._outs - output),
                    area.top,
                    area.height,
                    area.left,
                    area.width,
                    first,
                    min(tile.inputs, self._ins - first),
                    index,
                    number,
                    first == 0,
                    first + tile.inputs >= self._ins,
                )

    def _load_data(self, step: Step, inp: int) -> None:
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

    def _load_weights(self, step: Step, wgt: int) -> None:
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

    def _vectors(self, step: Step, acc: int) -> list[MicroOp]:
        """Returns the micro-ops that, in loops over rows and columns, visit a tile; their sources
        are the biases.
        """
        pixels = step.height * step.width
        return [
            MicroOp(acc + o * pixels, self._bias_at + step.output + o) for o in range(step.outputs)
        ]

    def _reset(self, step: Step, acc: int) -> None:
        if self._skip is not None:
            self._load_skip(step, acc)
            return
        uops = [MicroOp(u.dst) for u in self._vectors(step, acc)]
        self._b.gemm(uops, (step.height, step.width), dst=(step.width, 1), reset=True)

    def _load_skip(self, step: Step, acc: int) -> None:
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

    def _multiply(self, step: Step, acc: int, inp: int, wgt: int) -> None:
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

    def _finish(self, step: Step, acc: int) -> None:
        """Emits the epilogue of a tile's sums."""
        self._scale(self._vectors(step, acc), (step.height, step.width))

    def _scale(self, uops: list[MicroOp], loop: tuple[int, int]) -> None:
        """Emits the epilogue of vectors in rows without gaps; the sources of `uops` are biases."""
        epilogue, factors = self._epilogue, (loop[1], 1)
        if self._bias is not None:
            self._b.alu(AluOp.ADD, uops, loop, dst=factors)
        plain = [MicroOp(u.dst) for u in uops]
        if epilogue.shift:
            self._b.alu(AluOp.SHR, plain, loop, dst=factors, imm=epilogue.shift)
        self._b.alu(AluOp.MAX, plain, loop, dst=factors, imm=epilogue.low)
        self._b.alu(AluOp.MIN, plain, loop, dst=factors, imm=epilogue.high)

    def _store(self, step: Step, acc: int) -> None:
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
