"""LSTM on codes whose gates are sums of two 8-bit products (8x8_8), bit-exact with LiteRT's kernel.

The products of each operand are rounded to 8 bits, with scales of their own, and then added in 16
bits. Gates are normalized and activated in floats and rounded to 16 bits. The input gate is one
minus the forget gate, the cell has 15 bits of fraction, and the hidden state is a projection.

Source: LiteRT's lstm_eval (8x8_8) and tensor_utils.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clew.frontends.building import call, cast, constant, fields, reshaped, scalar
from clew.frontends.lowering.recurrent import dense, joined
from clew.frontends.tflite.converters.lstm import CELL, FORGET, OUTPUT, Places
from clew.frontends.tflite.converters.quantized.cells import check_scales, halved, limited
from clew.frontends.tflite.converters.quantized.codes import (
    SUM,
    WIDE,
    centered,
    operand,
    scale_of,
    scaled,
    stored,
    zero_of,
)
from clew.frontends.tflite.file.model import TensorInfo
from clew.frontends.tflite.layer import TfliteLayer
from clew.ir.dims import product
from clew.ir.expr import Expr

INTERMEDIATES: Final = 12
"""Per gate the sum, the product of the input, and the product of the hidden state."""
_GATES: Final = (FORGET, CELL, OUTPUT)
_STATE: Final = "i16"
_FRACTION: Final = 15  # bits of the cell and of activated gates
_GATE_FRACTION: Final = 12
_MOST: Final = (1 << 15) - 1
_LEAST_VARIANCE: Final = np.float32(1e-8)


@dataclass(frozen=True)
class ByteCell:
    """The operands of the cell."""

    layer: TfliteLayer
    places: Places

    @property
    def matrices(self) -> tuple[Expr, ...]:
        """The weights that each step reads."""
        recurrent = joined([self.layer.input(self.places.recurrent + n) for n in _GATES], 0)
        return recurrent, self.layer.input(self.places.projection)

    def _inner(self, gate: int, kind: int) -> TensorInfo:
        return self.layer.intermediates[3 * gate + kind]

    def inputs(self, x: Expr) -> Expr:
        """Returns the input part of all gates, for a sequence `[steps, batch, size]`."""
        info = operand(self.layer, 0)
        steps, batch, size = x.tensor.shape
        rows = reshaped(x, (product((steps, batch)), size))
        weights = joined([self.layer.input(self.places.inputs + n) for n in _GATES], 0)
        found = self._part(rows, weights, info, self.places.inputs, 1)
        return reshaped(found, (steps, batch, found.tensor.shape[1]))

    def _part(self, rows: Expr, weight: Expr, info: TensorInfo, place: int, kind: int) -> Expr:
        """Returns an operand's part of all gates, as integers in the scale of the gates' sums."""
        units: Any = self.layer.input(place + FORGET).tensor.shape[0]
        inner = [self._inner(n, kind) for n in _GATES]
        real = [
            scale_of(operand(self.layer, place + n)) * scale_of(info) / scale_of(each)
            for n, each in zip(_GATES, inner, strict=True)
        ]
        zeros = constant(np.repeat([zero_of(each) for each in inner], units).astype(np.int32))
        total = scaled(dense(centered(rows, zero_of(info)), cast(weight, SUM)), _each(real, units))
        rounded = call("clip", call("add", total, zeros), min=-128.0, max=127.0)
        ratio = [
            scale_of(each) / scale_of(self._inner(n, 0))
            for n, each in zip(_GATES, inner, strict=True)
        ]
        return scaled(call("subtract", rounded, zeros), _each(ratio, units))

    def step(self, now: Expr, states: Sequence[Expr], held: Sequence[Expr]) -> list[Expr]:
        """Returns the hidden state and the cell after a step."""
        hidden, cell = states
        info, memory = (operand(self.layer, n) for n in self.places.states)
        seen = self._part(hidden, held[0], info, self.places.recurrent, 2)
        gates = limited(call("add", now, seen))
        units = cell.tensor.shape[1]
        parts = fields(call("split", gates, sizes=(units,) * len(_GATES), axis=1), len(_GATES))
        keep, new, give = (
            _table(function, self._normal(n, part))
            for n, part, function in zip(_GATES, parts, (_logistic, _tanh, _logistic), strict=True)
        )
        take = call("subtract", scalar(_MOST, SUM), keep)
        after = limited(call("add", _times(keep, cast(cell, SUM)), _times(take, new)))
        limit = self.layer.real("cell_clip", 0.0)
        if 0 < limit < 1:
            most = float(np.trunc(min(np.float32(limit) / scale_of(memory), np.float32(_MOST))))
            after = call("clip", after, min=-most, max=most)
        value = _times(give, _table(_cell_tanh, after))
        return [self._projected(value, held[1], info), after]

    def _normal(self, gate: int, part: Expr) -> Expr:
        """Returns a gate with mean 0 and standard deviation 1, times weights, plus a bias."""
        assert self.places.normal is not None
        layer, place = self.layer, self.places.normal + gate
        scale = scale_of(operand(layer, place))
        size = part.tensor.shape[1]
        count = scalar(size, "f32")
        x = cast(part, "f32")
        mean = call("divide", _in_order(x), count)
        squares = call("divide", _in_order(call("multiply", x, x)), count)
        variance = call("subtract", squares, call("multiply", mean, mean))
        none = call("equal", variance, scalar(0, "f32"))
        variance = call("where", none, scalar(_LEAST_VARIANCE, "f32"), variance)
        inverse = call("divide", scalar(1, "f32"), call("sqrt", variance))
        value = call("multiply", call("subtract", x, mean), inverse)
        value = call("multiply", value, cast(layer.input(place), "f32"))
        bias = cast(layer.input(self.places.bias + gate), "f32")
        bias = call("multiply", bias, scalar(np.float32(2.0**-10 * scale), "f32"))
        value = call("add", call("multiply", value, scalar(scale, "f32")), bias)
        value = call("multiply", value, scalar(2.0**_GATE_FRACTION, "f32"))
        away = call("floor", call("add", call("abs", value), scalar(0.5, "f32")))
        return limited(call("multiply", call("sign", value), away))

    def _projected(self, value: Expr, weight: Expr, info: TensorInfo) -> Expr:
        layer, place = self.layer, self.places.projection
        total = call("add", dense(value, cast(weight, SUM)), layer.input(place + 1))
        real = np.float32(np.float64(scale_of(operand(layer, place))) * 2.0**-15 / scale_of(info))
        # LiteRT's sums have 64 bits here, and are scaled as such.
        found = stored(scaled(cast(total, WIDE), np.float64(real), halved=True), info)
        limit = layer.real("proj_clip", 0.0)
        if limit > 0:
            most = float(np.trunc(min(np.float32(limit) / scale_of(info), np.float32(127))))
            found = call("clip", found, min=-most, max=most)
        return found


def byte_cell(layer: TfliteLayer) -> ByteCell:
    """Returns the cell.

    Errors: U005 for forms that LiteRT's kernel does not have: those with an input gate or
    peepholes, or without normalization or a projection with a bias; M012 for tensors without a
    scale.
    """
    places = Places.single()
    assert places.normal is not None
    projection, states = places.projection, places.states
    needed = {places.normal + n: "normalization of the gates" for n in _GATES}
    needed |= {projection: "a projection", projection + 1: "a bias of the projection"}
    for index, what in needed.items():
        if layer.optional(index) is None:
            raise layer.unsupported(f"8-bit gates without {what}")
    if (
        layer.optional(places.inputs) is not None
        or layer.optional(places.peepholes + 1) is not None
    ):
        raise layer.unsupported("8-bit gates with an input gate or peepholes")
    kinds = [operand(layer, places.recurrent + n).dtype for n in _GATES]
    kinds += [operand(layer, n).dtype for n in states]
    if kinds != ["i8"] * (len(kinds) - 1) + [_STATE]:
        raise layer.unsupported(f"codes of {', '.join(kinds)}")
    made = ByteCell(layer, places)
    given = [0, *states, projection, *(places.normal + n for n in _GATES)]
    given += [kind + n for kind in (places.inputs, places.recurrent) for n in _GATES]
    check_scales(layer, (operand(layer, n) for n in given))
    check_scales(layer, (made._inner(n, kind) for n in _GATES for kind in range(3)))
    if scale_of(operand(layer, states[1])) != 2.0**-_FRACTION:
        raise layer.unsupported("a cell whose scale is not 2**-15")
    return made


def _each(values: Sequence[np.float32], units: Any) -> NDArray[np.float64]:
    """Returns one number per gate as one per unit."""
    return np.repeat(np.asarray(values, np.float64), units)


def _in_order(x: Expr) -> Expr:
    """Returns sums of rows `[rows, 1]`, added from left to right."""
    size = x.tensor.shape[1]
    sums = call("cumsum", x, axis=1)
    return call("slice", sums, begin=(size - 1,), end=(size,), strides=(1,), axes=(1,))


def _times(a: Expr, b: Expr) -> Expr:
    """Returns products of numbers with 15 bits of fraction."""
    return halved(call("multiply", a, b), _FRACTION)


def _table(function: Callable[[], NDArray[np.int32]], x: Expr) -> Expr:
    place = call("add", cast(x, SUM), scalar(1 << 15, SUM))
    return call("gather", constant(function()), place, axis=0)


def _codes(bits: int) -> NDArray[Any]:
    return np.asarray(np.arange(-(1 << 15), 1 << 15) * 2.0**-bits)


def _stored(values: NDArray[Any]) -> NDArray[np.int32]:
    # LiteRT's functions are those of the C library in f32.
    whole = np.trunc(values.astype(np.float32) * np.float32(1 << _FRACTION))
    return np.asarray(np.clip(whole, -_MOST - 1, _MOST), np.int32)


@cache
def _logistic() -> NDArray[np.int32]:
    one = np.float32(1)
    return _stored(one / (one + np.exp(-_codes(_GATE_FRACTION)).astype(np.float32)))


@cache
def _tanh() -> NDArray[np.int32]:
    return _stored(_tangents(_codes(_GATE_FRACTION)))


@cache
def _cell_tanh() -> NDArray[np.int32]:
    return _stored(_tangents(_codes(_FRACTION)))


def _tangents(x: NDArray[Any]) -> NDArray[Any]:
    """Returns hyperbolic tangents, rounded as by the usual formulas in f32."""
    size, one, two = np.abs(x), np.float32(1), np.float32(2)
    small = np.expm1(-2 * size).astype(np.float32)
    large = np.expm1(2 * size).astype(np.float32)
    found = np.where(size < 1, -small / (small + two), one - two / (large + two))
    return np.asarray(np.sign(x) * found)
