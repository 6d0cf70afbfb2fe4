"""Weights that a file dequantizes in blocks, in the form of `MatMulNBits`."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from clew.ir.expr import Call, Constant, Expr
from clew.ir.types import bits, to_numpy
from clew.ops.registry import get_op

_SMALL: Final = ("i4", "u4", "i8", "u8")


def rows_of_blocks(weight: Expr, layout: str) -> Expr | None:
    """Returns a constant weight in blocks of input channels as a row for each output channel, of
    unsigned integers, for any form in the file; None for other weights. So all files with such
    weights give the same graph.
    """
    if not isinstance(weight, Call):
        return None
    if weight.op_name == "transpose" and weight.attrs.axes == (1, 0):
        return rows_of_blocks(weight.args[0], layout[::-1])
    if weight.op_name != "dequantize" or not weight.attrs.block:
        return None
    constants = [a for a in weight.args if isinstance(a, Constant)]
    axis = layout.index("K")
    if (
        len(constants) != len(weight.args)
        or any(c.tensor.rank != 2 for c in constants)
        or constants[0].tensor.dtype not in _SMALL
        or constants[1].tensor.dtype != weight.tensor.dtype
        or weight.attrs.axis != axis
    ):
        return None
    codes, scales, *zeros = constants
    dtype = codes.tensor.dtype
    unsigned = f"u{bits(dtype)}"
    middle = 0 if dtype == unsigned else 1 << (bits(dtype) - 1)
    span = weight.span.unmarked()

    def row(x: Constant, data: Any) -> Constant:
        data = data if axis == 1 else data.T
        return Constant(np.ascontiguousarray(data), name=x.name, span=x.span)

    def shifted(x: Constant) -> Constant:
        whole = (x.data.astype(np.int16) + middle).astype(np.uint8)
        return row(x, whole.astype(to_numpy(unsigned)))

    points = [shifted(z) for z in zeros]
    if middle and not points:
        points = [Constant(np.array(middle, to_numpy(unsigned)), span=span)]
    args = [shifted(codes), row(scales, scales.data), *points]
    attrs = {"axis": 1, "block": weight.attrs.block}
    return Call(get_op("dequantize"), args, attrs, span=span)
