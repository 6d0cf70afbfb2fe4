"""The LSTM cell in floats, with concatenated gates.

Omitted operands select the variant. Without weights of the input gate, that gate is one minus the
forget gate (`coupled`). Gates may have peepholes and be normalized, and the hidden state may be
projected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from clew.frontends.building import call, fields, reshaped, scalar
from clew.frontends.lowering.recurrent import joined
from clew.frontends.tflite.converters.hybrid import (
    Weight,
    products,
    side_by_side,
    weight_of,
)
from clew.frontends.tflite.layer import TfliteLayer
from clew.ir.dims import product
from clew.ir.expr import Expr
from clew.support.dataclass import dataclass

INPUT, FORGET, CELL, OUTPUT = range(4)
_SMALL: Final = 1e-8  # what a normalization adds to the variance


@dataclass(frozen=True)
class Places:
    """The operands of a direction, by the index of the first of each kind. `normal` is None if
    gates are not normalized.
    """

    inputs: int
    recurrent: int
    peepholes: int
    bias: int
    projection: int
    states: tuple[int, int]
    normal: int | None = None

    @staticmethod
    def single() -> Places:
        """Returns the places of an operator with one direction."""
        return Places(1, 5, 9, 12, 16, (18, 19), 20)

    @staticmethod
    def both() -> tuple[Places, Places]:
        """Returns the places of an operator with two directions."""
        return Places(1, 5, 9, 12, 16, (35, 36)), Places(18, 22, 26, 29, 33, (37, 38))


@dataclass(frozen=True)
class Gates:
    """The operands of a direction, by gate; None for omitted ones. Weights of several gates may be
    one matrix.

    A loop carries `matrices`: the weights of the hidden state, then those of the projection.
    """

    numbers: tuple[int, ...]
    weights: tuple[Weight, ...]
    recurrent: tuple[Weight, ...]
    biases: tuple[Expr, ...]
    peepholes: tuple[Expr | None, ...]
    normal: tuple[Expr | None, ...]
    projection: Weight | None
    projected_bias: Expr | None
    further: tuple[Weight, ...] = ()

    @property
    def matrices(self) -> tuple[Expr, ...]:
        """The weights that each step reads."""
        last = () if self.projection is None else (self.projection.matrix,)
        return (*(weight.matrix for weight in self.recurrent), *last)

    @property
    def is_normalized(self) -> bool:
        """Whether gates are normalized before their bias is added."""
        return self.normal[-1] is not None

    def inputs(self, x: Expr, aux: Expr | None = None) -> Expr:
        """Returns the part of the inputs `[steps, batch, size]`, and of an auxiliary input, in all
        gates.
        """
        parts = [self._rows(x, self.weights)]
        if aux is not None:
            parts.append(self._rows(aux, self.further))
        found = parts[0] if len(parts) == 1 else call("add", *parts)
        if not self.is_normalized:
            found = call("add", found, joined(self.biases, 0))
        return reshaped(found, (*x.tensor.shape[:2], found.tensor.shape[1]))

    @staticmethod
    def _rows(x: Expr, weights: Sequence[Weight]) -> Expr:
        steps, batch, size = x.tensor.shape
        return products(reshaped(x, (product((steps, batch)), size)), weights)


def gates_of(layer: TfliteLayer, places: Places, further: Sequence[int] = ()) -> Gates:
    """Returns the operands of a direction. `further` has the weights of an auxiliary input."""
    coupled = layer.optional(places.inputs) is None
    numbers = (FORGET, CELL, OUTPUT) if coupled else (INPUT, FORGET, CELL, OUTPUT)
    seeing = {INPUT: 0, FORGET: 1, OUTPUT: 2}
    normal = places.normal
    return Gates(
        numbers,
        side_by_side([weight_of(layer, places.inputs + n) for n in numbers]),
        side_by_side([weight_of(layer, places.recurrent + n) for n in numbers]),
        tuple(layer.input(places.bias + n) for n in numbers),
        tuple(
            _given(layer, places.peepholes + seeing[n]) if n in seeing else None for n in numbers
        ),
        tuple(None if normal is None else _given(layer, normal + n) for n in numbers),
        None if layer.optional(places.projection) is None else weight_of(layer, places.projection),
        layer.optional(places.projection + 1),
        side_by_side([weight_of(layer, further[n]) for n in numbers]) if further else (),
    )


def _given(layer: TfliteLayer, index: int) -> Expr | None:
    return None if layer.optional(index) is None else layer.numbers_of(index)


Step = Callable[[Expr, Sequence[Expr], Sequence[Expr]], list[Expr]]


def lstm_step(layer: TfliteLayer, gates: Gates) -> Step:
    """Returns the step function. It takes the input part of the gates, the states (hidden state and
    cell), and the matrices that the loop carries.
    """
    count = len(gates.numbers)
    squash = layer.activated

    def step(now: Expr, states: Sequence[Expr], held: Sequence[Expr]) -> list[Expr]:
        hidden, cell = states
        own = [w.with_matrix(m) for w, m in zip(gates.recurrent, held, strict=False)]
        summed = call("add", now, products(hidden, own))
        units = cell.tensor.shape[1]
        parts = dict(
            zip(
                gates.numbers,
                fields(call("split", summed, sizes=(units,) * count, axis=1), count),
                strict=True,
            )
        )

        def gate(number: int, seen: Expr) -> Expr:
            return call("sigmoid", _before(gates, number, parts[number], seen))

        keep = gate(FORGET, cell)
        take = gate(INPUT, cell) if INPUT in parts else call("subtract", scalar(1, "f32"), keep)
        candidate = squash(_before(gates, CELL, parts[CELL], cell))
        new: Expr = call("add", call("multiply", keep, cell), call("multiply", take, candidate))
        new = _clipped(layer, new, "cell_clip")
        result: Expr = call("multiply", gate(OUTPUT, new), squash(new))
        if gates.projection is not None:
            result = gates.projection.with_matrix(held[-1]).times(result)
            if gates.projected_bias is not None:
                result = call("add", result, gates.projected_bias)
            result = _clipped(layer, result, "proj_clip")
        return [result, new]

    return step


def _before(gates: Gates, number: int, part: Expr, cell: Expr) -> Expr:
    """Returns a gate before its activation."""
    place = gates.numbers.index(number)
    peephole, normal = gates.peepholes[place], gates.normal[place]
    if peephole is not None:
        part = call("add", part, call("multiply", cell, peephole))
    if normal is None:
        return part
    mean = call("mean", part, axes=(1,), keepdims=True)
    centered = call("subtract", part, mean)
    variance = call("mean", call("multiply", centered, centered), axes=(1,), keepdims=True)
    scale = call("rsqrt", call("add", variance, scalar(_SMALL, "f32")))
    scaled = call("multiply", call("multiply", centered, scale), normal)
    return call("add", scaled, gates.biases[place])


def _clipped(layer: TfliteLayer, value: Expr, option: str) -> Expr:
    limit = layer.real(option, 0.0)
    return call("clip", value, min=-limit, max=limit) if limit > 0 else value
