"""LSTM on codes, bit-exact with LiteRT's integer kernels.

Gates have 16 bits, 12 of them fraction. The products of each operand are scaled to this format and
added with saturation. Activations are tables.

Source: LiteRT's lstm_eval (8x8_16), the basic kernel's LstmCell, and tensor_utils.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from clew.frontends.building import call, cast, constant, fields, reshaped, scalar
from clew.frontends.lowering.recurrent import dense, joined
from clew.frontends.tflite.converters.lstm import CELL, FORGET, INPUT, OUTPUT, Places
from clew.frontends.tflite.converters.quantized.cells import check_scales, halved, limited
from clew.frontends.tflite.converters.quantized.codes import (
    SUM,
    centered,
    multiplier,
    operand,
    scale_of,
    scaled,
    zero_of,
)
from clew.frontends.tflite.converters.quantized.normal import normalized
from clew.frontends.tflite.converters.quantized.tables16 import applied, logistic, tanh
from clew.frontends.tflite.file.model import TensorInfo
from clew.frontends.tflite.layer import TfliteLayer
from clew.ir.dims import product
from clew.ir.expr import Expr

_GATE_BITS: Final = 3  # integer bits of a gate
_HIDDEN: Final = 4  # the intermediate with the scale of the hidden state
_MOST_BITS: Final = 6  # the integer bits of a cell
_WHOLE: Final = np.float32(2.0**-12)
_MOST: Final = (1 << 15) - 1


@dataclass(frozen=True)
class IntegerCell:
    """The operands of an LSTM on codes. `numbers` lists its gates."""

    layer: TfliteLayer
    numbers: tuple[int, ...]
    places: Places

    def _operand(self, kind: int, number: int) -> TensorInfo:
        return operand(self.layer, kind + number)

    def _unit(self, number: int) -> np.float32:
        """Returns the scale of a gate's sums."""
        return scale_of(self.layer.intermediates[number]) if self.is_normalized else _WHOLE

    @property
    def is_normalized(self) -> bool:
        """Whether gates are normalized before their bias is added."""
        assert self.places.normal is not None
        return self.layer.optional(self.places.normal + FORGET) is not None

    @property
    def matrices(self) -> tuple[Expr, ...]:
        """The weights that each step reads."""
        recurrent = joined([self.layer.input(self.places.recurrent + n) for n in self.numbers], 0)
        projection = self.layer.optional(self.places.projection)
        return (recurrent,) if projection is None else (recurrent, projection)

    def inputs(self, x: Expr) -> Expr:
        """Returns the input part of all gates, for a sequence `[steps, batch, size]`."""
        layer, info = self.layer, operand(self.layer, 0)
        steps, batch, size = x.tensor.shape
        rows = reshaped(centered(x, zero_of(info)), (product((steps, batch)), size))
        weights = [layer.input(self.places.inputs + n) for n in self.numbers]
        total: Expr = dense(rows, cast(joined(weights, 0), SUM))
        if not self.is_normalized:
            biases = [layer.input(self.places.bias + n) for n in self.numbers]
            total = call("add", total, joined(biases, 0))
        found = limited(scaled(total, self._factors(self.places.inputs, scale_of(info))))
        return reshaped(found, (steps, batch, found.tensor.shape[1]))

    def _factors(self, kind: int, scale: np.float32) -> Any:
        """Returns the factors of the sums of all gates, one per unit."""
        found = []
        for number in self.numbers:
            weight = self.layer.input(kind + number)
            real = scale_of(self._operand(kind, number)) * scale / self._unit(number)
            units = weight.tensor.shape[0]
            assert isinstance(units, int)
            found.append(np.full(units, np.float64(real)))
        return np.concatenate(found)

    def step(self, now: Expr, states: Sequence[Expr], held: Sequence[Expr]) -> list[Expr]:
        """Returns the hidden state and the cell after a step."""
        hidden, cell = states
        info, memory = (operand(self.layer, n) for n in self.places.states)
        sums = dense(centered(hidden, zero_of(info)), cast(held[0], SUM))
        sums = scaled(sums, self._factors(self.places.recurrent, scale_of(info)))
        gates = limited(call("add", cast(now, SUM), sums))
        units, count = cell.tensor.shape[1], len(self.numbers)
        split = fields(call("split", gates, sizes=(units,) * count, axis=1), count)
        parts = dict(zip(self.numbers, split, strict=True))
        exponent = int(np.frexp(scale_of(memory))[1]) - 1
        keep = self._gate(FORGET, parts[FORGET], cell, exponent)
        if INPUT in parts:
            take = self._gate(INPUT, parts[INPUT], cell, exponent)
        else:
            take = cast(call("subtract", scalar(_MOST, SUM), cast(keep, SUM)), "i16")
        new = applied(tanh, _GATE_BITS, self._normal(CELL, parts[CELL]))
        kept = shifted_product(keep, cell, 15)
        taken = shifted_product(take, new, 30 + exponent)
        after = limited(call("add", cast(kept, SUM), cast(taken, SUM)))
        limit = self.layer.real("cell_clip", 0.0)
        if limit > 0:
            most = float(np.trunc(min(np.float32(limit) / scale_of(memory), np.float32(_MOST))))
            after = call("clip", after, min=-most, max=most)
        give = self._gate(OUTPUT, parts[OUTPUT], after, exponent)
        return [self._hidden(give, applied(tanh, 15 + exponent, after), held, info), after]

    def _gate(self, number: int, part: Expr, cell: Expr, exponent: int) -> Expr:
        place = self.places.peepholes + {INPUT: 0, FORGET: 1, OUTPUT: 2}[number]
        weight = self.layer.optional(place)
        if weight is not None:
            seen: Expr = call("multiply", cast(cell, SUM), cast(weight, SUM))
            real = np.float32(2.0**exponent * scale_of(operand(self.layer, place)))
            seen = scaled(seen, real / self._unit(number))
            part = limited(call("add", cast(part, SUM), seen))
        return applied(logistic, _GATE_BITS, self._normal(number, part))

    def _normal(self, number: int, part: Expr) -> Expr:
        if not self.is_normalized:
            return part
        assert self.places.normal is not None
        place = self.places.normal + number
        weight, bias = self.layer.input(place), self.layer.input(self.places.bias + number)
        return normalized(part, weight, bias, scale_of(operand(self.layer, place)))

    def _hidden(self, give: Expr, seen: Expr, held: Sequence[Expr], info: TensorInfo) -> Expr:
        inner = self.layer.intermediates[_HIDDEN]
        value: Expr = call("multiply", cast(give, SUM), cast(seen, SUM))
        value = scaled(value, np.float64(np.float32(2.0**-30) / scale_of(inner)))
        value = limited(_plus(value, zero_of(inner)), "i8")
        if len(held) == 1:
            return value
        total: Expr = dense(centered(value, zero_of(inner)), cast(held[1], SUM))
        bias = self.layer.optional(self.places.projection + 1)
        if bias is not None:
            total = call("add", total, bias)
        weight = operand(self.layer, self.places.projection)
        real = scale_of(weight) * scale_of(inner) / scale_of(info)
        found = limited(_plus(scaled(total, real), zero_of(info)), "i8")
        limit = self.layer.real("proj_clip", 0.0)
        if limit > 0:
            most = float(np.trunc(min(np.float32(limit) / scale_of(info), np.float32(127))))
            found = call("clip", found, min=-most, max=most)
        return found


def _plus(value: Expr, zero: int) -> Expr:
    return call("add", value, scalar(zero, SUM)) if zero else value


def shifted_product(a: Expr, b: Expr, shift: int) -> Expr:
    """Returns products of `i16` divided by a power of two, ties away from zero."""
    value = call("multiply", cast(a, SUM), cast(b, SUM))
    return cast(halved(value, shift), "i16")


def integer_cell(layer: TfliteLayer) -> IntegerCell:
    """Returns the cell of an LSTM on codes. Errors: U005 for codes other than 8 bits."""
    places = Places.single()
    coupled = layer.optional(places.inputs) is None
    numbers = (FORGET, CELL, OUTPUT) if coupled else (INPUT, FORGET, CELL, OUTPUT)
    kinds = [operand(layer, places.recurrent + n).dtype for n in numbers]
    kinds += [operand(layer, n).dtype for n in places.states]
    if kinds != ["i8"] * (len(kinds) - 1) + ["i16"] or len(layer.intermediates) != _HIDDEN + 1:
        raise layer.unsupported(f"codes of {', '.join(kinds)}")
    made = IntegerCell(layer, numbers, places)
    _check(made)
    return made


def _check(cell: IntegerCell) -> None:
    """Checks the scales.

    Errors: M012 for tensors without a scale, U005 for a cell whose scale is not a power of two.
    """
    layer, places = cell.layer, cell.places
    assert places.normal is not None
    given = [0, *places.states, places.projection]
    given += [kind + n for kind in (places.inputs, places.recurrent) for n in cell.numbers]
    given += range(places.peepholes, places.peepholes + 3)
    given += [places.normal + n for n in cell.numbers] if cell.is_normalized else []
    inner = [*(cell.numbers if cell.is_normalized else ()), _HIDDEN]
    check_scales(layer, (operand(layer, n) for n in given if layer.optional(n) is not None))
    check_scales(layer, (layer.intermediates[n] for n in inner))
    fraction, exponent = np.frexp(scale_of(operand(layer, places.states[1])))
    if fraction != 0.5 or not 0 <= 14 + exponent <= _MOST_BITS:
        raise layer.unsupported("a cell whose scale is no power of two between 2**-15 and 2**-9")


def basic_of_codes(layer: TfliteLayer, rows: Expr) -> list[Expr]:
    """Returns the results of the basic kernel on unsigned codes. The operand and the hidden state
    are concatenated.
    """
    weight, bias = operand(layer, 2), operand(layer, 3)
    check_scales(layer, (weight, bias))
    cell = layer.input(4)
    total = dense(centered(rows, 128), centered(layer.input(2), zero_of(weight)))
    total = call("add", total, layer.input(3))
    gates = limited(_scaled_up(total, 4096 * np.float64(scale_of(bias))))
    units = cell.tensor.shape[1]
    take, new, keep, give = fields(call("split", gates, sizes=(units,) * 4, axis=1), 4)
    take, keep, give = (applied(logistic, _GATE_BITS, gate) for gate in (take, keep, give))
    taken = high_product(take, applied(tanh, _GATE_BITS, new))
    taken = halved(cast(taken, SUM), 4)
    after = limited(call("add", taken, cast(high_product(keep, cell), SUM)))
    result = cast(high_product(give, applied(tanh, 4, after)), SUM)
    result = limited(call("add", halved(result, 8), scalar(128, SUM)), "u8")
    return [result, after, rows, gates]


def _scaled_up(value: Expr, real: np.float64) -> Expr:
    """Returns integers times a number below 1, rounded twice, ties up, as in the kernel."""
    factor, power = multiplier(real)
    shift = int(power)
    if shift >= 0:
        return scaled(value, real)
    value = call("scale_fixed", value, constant(factor), constant(np.zeros_like(factor)))
    half = call("add", value, scalar(1 << (-shift - 1), SUM))
    return call("right_shift", half, scalar(-shift, SUM))


def high_product(a: Expr, b: Expr) -> Expr:
    """Returns the doubled upper halves of products of `i16`; ties go up."""
    value = call("multiply", cast(a, SUM), cast(b, SUM))
    half = call("add", value, scalar(1 << 14, SUM))
    return limited(call("right_shift", half, scalar(15, SUM)))
