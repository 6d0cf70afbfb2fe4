"""Quantized numbers, and types that are storage only."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from fuzz.dtypes import SMALL, numpy_of
from fuzz.graph import Grower, Unfit, Value
from fuzz.operators import ENTRIES, operator

F32 = TensorProto.FLOAT


def _scales(g: Grower, x: Value, dtype: int) -> tuple[Value, dict[str, Any]]:
    """Returns scales for a tensor as a whole, or along an axis."""
    way = g.choices.integer(0, 2)
    if way == 0 or x.rank == 0 or g.version("") < 13:
        return g.scalar(g.choices.pick((0.5, 0.1, 2.0)), dtype, None), {}
    axis = g.axis(x.rank)
    return g.leaf(dtype, (x.sizes[axis],), "positive"), {"axis": axis}


@operator("QuantizeLinear")
def quantize(g: Grower) -> object:
    x = g.tensor(among=(F32, TensorProto.FLOAT16, TensorProto.INT32))
    whole = (TensorProto.UINT8, TensorProto.INT8, TensorProto.INT16, TensorProto.UINT16)
    kinds = g.dtypes(g.parameter(2), (*SMALL, *whole))
    scale, made = _scales(g, x, x.dtype if x.dtype != TensorProto.INT32 else F32)
    if g.choices.one_in(4):
        return g.emit("QuantizeLinear", [x, scale], **made)
    to = g.choices.pick(kinds)
    value = 0 if TensorProto.DataType.Name(to).startswith("FLOAT") else 1
    zero = g.known(np.full(scale.sizes, value).astype(numpy_of(to)), to)
    return g.emit("QuantizeLinear", [x, scale, zero], **made)


@operator("DequantizeLinear")
def dequantize(g: Grower) -> object:
    kinds = g.dtypes(
        g.parameter(0), (*SMALL, TensorProto.UINT8, TensorProto.INT8, TensorProto.INT32)
    )
    x = g.operand(kinds)
    scale, made = _scales(g, x, F32)
    if (
        g.choices.one_in(2)
        or TensorProto.DataType.Name(x.dtype).startswith("FLOAT")
        or x.dtype == TensorProto.INT32
    ):
        return g.emit("DequantizeLinear", [x, scale], **made)
    zero = g.known(np.full(scale.sizes, 1).astype(numpy_of(x.dtype)), x.dtype)
    return g.emit("DequantizeLinear", [x, scale, zero], **made)


@operator("DynamicQuantizeLinear")
def dynamic_quantize(g: Grower) -> object:
    return g.emit("DynamicQuantizeLinear", [g.tensor(nonempty=True)], 3)


@operator("QLinearMatMul")
def qlinear_matmul(g: Grower) -> object:
    kinds = [g.choices.pick((TensorProto.UINT8, TensorProto.INT8)) for _ in range(2)]
    m, k, n = (g.choices.pick((3, 1, 8, 17)) for _ in range(3))
    a, b = g.leaf(kinds[0], (m, k)), g.leaf(kinds[1], (k, n))

    def scale(v: float) -> Value:
        return g.scalar(v, F32)

    return g.emit(
        "QLinearMatMul",
        [
            a,
            scale(0.5),
            g.scalar(1, kinds[0]),
            b,
            scale(0.25),
            g.scalar(0, kinds[1]),
            scale(1.5),
            g.scalar(2, kinds[0]),
        ],
    )


def through_storage(g: Grower) -> object:
    """A value goes into one of the narrow types and back: these compute nothing else."""
    x = g.operand((F32, TensorProto.FLOAT16))
    allowed = g.dtypes("T2", SMALL)
    if not allowed:
        raise Unfit
    to = g.choices.pick(allowed)
    if to in (TensorProto.INT4, TensorProto.UINT4):
        x = g.leaf(x.dtype, x.sizes, "0:16" if to == TensorProto.UINT4 else "-8:8")
    (narrow,) = g.emit("Cast", [x], to=to)
    return g.emit("Cast", [narrow], to=x.dtype)


def with_storage() -> None:
    """Lets Cast meet the narrow types too, now and then."""
    entry = ENTRIES["", "Cast"]
    usual = entry.make

    def make(g: Grower) -> object:
        return through_storage(g) if g.choices.one_in(8) else usual(g)

    ENTRIES["", "Cast"] = type(entry)(entry.domain, entry.op, make, entry.weight)
