"""Products with weights. If the weights are quantized and the data are floats, each row of data is
quantized first, by its own range, as in LiteRT's hybrid kernels.

Source: LiteRT's tensor_utils, SymmetricQuantizeFloats and AsymmetricQuantizeFloats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from clew.frontends.building import call, cast, constant, scalar
from clew.frontends.lowering.recurrent import dense, joined
from clew.frontends.tflite.layer import TfliteLayer
from clew.ir.expr import Constant, Expr
from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class Weight:
    """A matrix `[units, size]`, or a vector that stands for a diagonal matrix. Codes are held as
    floats, with one `scale` for all units or one per unit.
    """

    matrix: Expr
    scale: NDArray[np.float32] | None
    asymmetric: bool

    def with_matrix(self, matrix: Expr) -> Weight:
        """Returns the weight with another expression for its matrix, such as a loop's parameter."""
        return replace(self, matrix=matrix)

    def times(self, x: Expr) -> Expr:
        """Returns the product with rows `[rows, size]`."""
        if self.matrix.tensor.rank == 1:
            return call("multiply", x, self.matrix)
        if self.scale is None:
            return dense(x, self.matrix)
        codes, scale = (_by_range if self.asymmetric else _by_largest)(x)
        factor = call("multiply", scale, constant(self.scale))
        return call("multiply", dense(codes, self.matrix), factor)


def weight_of(layer: TfliteLayer, index: int) -> Weight:
    """Returns the weight that an operand holds."""
    operand = layer.operands[index] if index < len(layer.operands) else None
    if operand is None or operand.dtype not in ("i8", "u8"):
        return Weight(layer.numbers_of(index), None, False)
    given = operand.quantization
    if given is None or given.by_channel or layer.rank(index) != 2:
        raise layer.unsupported(f"the codes of input {index}")
    codes = layer.input(index)
    if isinstance(codes, Constant):
        # Old files call codes with a sign unsigned ones.
        codes = constant(np.asarray(codes.data).view(np.int8).astype(np.float32))
    else:
        codes = cast(codes, "f32")
    asymmetric = layer.flag("asymmetric_quantize_inputs", False)
    return Weight(codes, given.scale, asymmetric)


def side_by_side(weights: Sequence[Weight]) -> tuple[Weight, ...]:
    """Concatenates matrices along the units if all are quantized or none is; otherwise returns them
    as given.
    """
    units = [weight.matrix.tensor.shape[0] for weight in weights]
    floats = [weight.scale is None for weight in weights]
    is_alike = all(floats) or not any(floats)
    if not is_alike or any(weight.matrix.tensor.rank != 2 for weight in weights):
        return tuple(weights)
    scale = None
    if not floats[0]:
        if not all(isinstance(count, int) for count in units):
            return tuple(weights)
        rows = zip(units, weights, strict=True)
        scale = np.concatenate([np.broadcast_to(w.scale, n) for n, w in rows])  # type: ignore[arg-type]
    matrix = joined([weight.matrix for weight in weights], 0)
    return (replace(weights[0], matrix=matrix, scale=scale),)


def products(x: Expr, weights: Sequence[Weight]) -> Expr:
    """Returns the products of rows with all weights, concatenated."""
    return joined([weight.times(x) for weight in weights], 1)


def _rounded(x: Expr) -> Expr:
    """Rounds to the nearest integer, ties away from zero."""
    away = call("floor", call("add", call("abs", x), scalar(0.5, "f32")))
    return call("multiply", call("sign", x), away)


def _by_largest(x: Expr) -> tuple[Expr, Expr]:
    """Quantizes rows symmetrically: the largest magnitude becomes 127. Returns the codes, and the
    scales `[rows, 1]`.
    """
    largest = call("max", call("abs", x), axes=(1,), keepdims=True)
    some = call("greater", largest, scalar(0, "f32"))
    largest = call("where", some, largest, scalar(127, "f32"))
    codes = _rounded(call("multiply", x, call("divide", scalar(127, "f32"), largest)))
    return codes, call("divide", largest, scalar(127, "f32"))


def _by_range(x: Expr) -> tuple[Expr, Expr]:
    """Quantizes rows asymmetrically, in 255 steps over their range. Returns the codes less their
    zero points, and the scales `[rows, 1]`.
    """
    zero = scalar(0, "f32")
    low = call("minimum", call("min", x, axes=(1,), keepdims=True), zero)
    high = call("maximum", call("max", x, axes=(1,), keepdims=True), zero)
    span = call("subtract", high, low)
    scale = call("divide", span, scalar(255, "f32"))
    scale = call("where", call("greater", span, zero), scale, scalar(1, "f32"))
    # Of both ends, the one with the smaller error gives the zero point.
    below, above = call("divide", low, scale), call("divide", high, scale)
    errors = [
        call("add", scalar(limit, "f32"), call("abs", steps))
        for limit, steps in ((128, below), (127, above))
    ]
    point = call(
        "where",
        call("less", *errors),
        call("subtract", scalar(-128, "f32"), below),
        call("subtract", scalar(127, "f32"), above),
    )
    point = call("clip", _rounded(point), min=-128.0, max=127.0)
    codes = _rounded(call("add", point, call("divide", x, scale)))
    return call("subtract", call("clip", codes, min=-128.0, max=127.0), point), scale
