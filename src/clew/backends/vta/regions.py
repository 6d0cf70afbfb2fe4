"""Regions of the graph as programs for VTA."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from clew.backends.details import RegionDetails
from clew.backends.vta.builder import Builder
from clew.backends.vta.config import Config
from clew.backends.vta.convolution import Operands, emit_convolution
from clew.backends.vta.details import details_of
from clew.backends.vta.elementwise import emit_addition
from clew.backends.vta.kinds import recognized
from clew.backends.vta.names import Memory
from clew.backends.vta.packing import blocks, pack_bias, pack_data, pack_weights, unpack_data
from clew.backends.vta.pooled_convolution import (
    emit_pooled_convolution,
    likely_pooled_tiles,
    pool_of_convolution,
)
from clew.backends.vta.pooling import MaxPool, emit_max_pool
from clew.backends.vta.program import Buffer, Origin, Program
from clew.backends.vta.recognize import Layer
from clew.backends.vta.recognize_operators import AddLayer, PooledLayer, PoolLayer
from clew.backends.vta.search import search_tile
from clew.backends.vta.simulator import Simulator
from clew.backends.vta.tiles import Epilogue, Tile, choose_tile
from clew.backends.vta.timing import Timing, time
from clew.ir.expr import Call, Expr, Function, Tuple
from clew.ir.visit import post_order

Array = np.ndarray[Any, Any]
Shape = tuple[int, int, int, int]


@dataclass(eq=False)
class VtaRegion:
    """A region, `function`, as a program. A call packs its operands, runs the program on the
    simulator, and unpacks the results. `seconds` is the time of the program on the machine.
    `ends` has the number of instructions up to the end of each call of the function.
    """

    function: Function
    program: Program
    config: Config
    inputs: Sequence[str]
    outputs: Sequence[tuple[str, Shape]]
    ends: Sequence[int]

    def __post_init__(self) -> None:
        self._simulator = Simulator(self.config, check=False)
        self.timing: Timing = time(self.program, self.config)
        self.seconds = self.timing.seconds

    def __call__(self, *arrays: Array) -> tuple[Array, ...]:
        given = {
            name: pack_data(array, self.config)
            for name, array in zip(self.inputs, arrays, strict=True)
        }
        found = self._simulator.run(self.program, given)
        return tuple(unpack_data(found[n], shape, self.config) for n, shape in self.outputs)

    def check(self, *arrays: Array) -> None:
        """Runs the program with all checks of hazards.

        Errors: those of `Simulator.run`.
        """
        given = {
            name: pack_data(array, self.config)
            for name, array in zip(self.inputs, arrays, strict=True)
        }
        Simulator(self.config).run(self.program, given)

    def describe(self, region: Function) -> RegionDetails:
        """Returns cycles, engines, memories and instructions, with the layers of `region`."""
        layers = [call.layers for call in _calls(region)]
        origins = {
            n: Origin(layers[bisect_right(self.ends, n)], origin.label)
            for n, origin in self.program.origins.items()
        }
        program = replace(self.program, origins=origins)
        return details_of(replace(self.timing, program=program))


def _calls(region: Function) -> list[Call]:
    return [n for n in post_order(region.body) if isinstance(n, Call)]


def compiled_region(
    region: Function, config: Config, *, overlap: bool = True, search: bool = False
) -> VtaRegion:
    """Returns the program of a region, in which every call is of a composite function that VTA
    computes. Without `overlap`, each step waits for the one before. `search` times the tiles of
    convolutions in place of estimating them.

    Raises `Refused` for a function that VTA does not compute exactly.
    """
    return _Compiler(region, config, 2 if overlap else 1, search).region()


class _Compiler:
    def __init__(self, region: Function, config: Config, parts: int, search: bool) -> None:
        self._region = region
        self._config = config
        self._parts = parts
        self._search = search
        self._builder = Builder(config)
        self._buffers: dict[int, Buffer] = {}

    def region(self) -> VtaRegion:
        function, builder = self._region, self._builder
        body = function.body
        results = body.fields if isinstance(body, Tuple) else (body,)
        kept = {r.id for r in results}
        for number, param in enumerate(function.params):
            elements = self._elements(_shape(param))
            self._buffers[param.id] = builder.input(f"x{number}", Memory.INP, elements)
        ends: list[int] = []
        for number, call in enumerate(_calls(function)):
            if number:
                builder.barrier()
            self._layer(call, number, call.id in kept)
            ends.append(builder.count)
        outputs = [(self._buffers[r.id].name, _shape(r)) for r in results]
        names = [self._buffers[p.id].name for p in function.params]
        return VtaRegion(function, builder.program(), self._config, names, outputs, ends)

    def _layer(self, call: Call, number: int, is_result: bool) -> None:
        assert isinstance(call.op, Function), "every call is of a composite"
        layer = recognized(call.op, self._config.block_in)
        make = self._builder.output if is_result else self._builder.scratch
        y = self._buffers[call.id] = make(f"y{number}", self._elements(_shape(call)))
        args = [self._buffers[a.id] for a in call.args]
        with self._builder.origin(*call.layers):
            if isinstance(layer, AddLayer):
                a, b = args[layer.a], args[layer.b]
                emit_addition(self._builder, layer.addition, a, b, y, self._parts)
            elif isinstance(layer, PoolLayer):
                x = call.args[layer.data]
                self._pool(layer, _shape(x), self._buffers[x.id], y)
            elif isinstance(layer, PooledLayer):
                pool = pool_of_layer(layer, self._config)
                self._convolution(layer.layer, args, y, number, pool)
            else:
                self._convolution(layer, args, y, number)

    def _convolution(
        self,
        layer: Layer,
        args: list[Buffer],
        y: Buffer,
        number: int,
        pool: MaxPool | None = None,
    ) -> None:
        builder, config, conv = self._builder, self._config, layer.conv
        w = builder.constant(f"w{number}", Memory.WGT, pack_weights(layer.weight, config))
        bias = builder.constant(f"b{number}", Memory.ACC, pack_bias(layer.bias, config))
        skip = None if layer.skip is None else args[layer.skip]
        operands = Operands(args[layer.data], w, y, bias, skip)
        tile, epilogue = self._tile(layer, pool), epilogue_of(layer)
        if pool is None:
            emit_convolution(builder, conv, operands, epilogue, tile)
        else:
            emit_pooled_convolution(builder, conv, pool, operands, epilogue, tile)

    def _pool(self, layer: PoolLayer, shape: Shape, x: Buffer, y: Buffer) -> None:
        height, width = shape[2:]
        planes = self._elements(shape) // (height * width)
        windows = layer.windows
        pool = MaxPool(planes, height, width, windows.kernel, windows.stride, windows.padding)
        emit_max_pool(self._builder, pool, x, y, self._parts)

    def _tile(self, layer: Layer, pool: MaxPool | None) -> Tile:
        conv, config, parts = layer.conv, self._config, self._parts
        if self._search:
            skips = layer.skip is not None
            return search_tile(conv, epilogue_of(layer), config, parts, skips=skips, pool=pool)
        if pool is None:
            return choose_tile(conv, config, parts)
        return likely_pooled_tiles(conv, pool, config, parts, 1)[0]

    def _elements(self, shape: Shape) -> int:
        images, channels, height, width = shape
        config = self._config
        return blocks(images, config.batch) * blocks(channels, config.block_in) * height * width


def epilogue_of(layer: Layer) -> Epilogue:
    """Returns the epilogue of a layer."""
    return Epilogue(layer.shift, layer.low, layer.high, layer.skip_shift)


def pool_of_layer(layer: PooledLayer, config: Config) -> MaxPool:
    """Returns the max pool of a layer's convolution."""
    windows = layer.windows
    return pool_of_convolution(
        layer.layer.conv, config, windows.kernel, windows.stride, windows.padding
    )


def _shape(node: Expr) -> Shape:
    images, channels, height, width = node.tensor.concrete
    return images, channels, height, width
