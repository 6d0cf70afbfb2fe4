"""Products of recurrent cells with weights. If the weights are quantized and the data are floats,
each row of data is quantized first, by its own range, as in LiteRT's hybrid kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from clew.frontends.building import call, cast, constant
from clew.frontends.lowering.recurrent import dense, joined
from clew.frontends.tflite.converters.quantized.dynamic import by_largest, by_range
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
        rows = (by_range if self.asymmetric else by_largest)(x, (1,))
        factor = call("multiply", rows.scale, constant(self.scale))
        return call("multiply", dense(cast(rows.centered(), "f32"), self.matrix), factor)


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
