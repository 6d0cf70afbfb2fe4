"""Tensors that are quantized in their own range, and products of them."""

from __future__ import annotations

from typing import Final

import numpy as np

from clew.exporters.onnx.joins import Join, Site, called, joins
from clew.ir.expr import Call, Constant, Expr

_LEVELS: Final = 255.0


def _is(value: Expr, number: float) -> bool:
    return isinstance(value, Constant) and value.is_splat and value.splat_value == number


def _pair(value: Expr, name: str) -> tuple[tuple[Expr, Expr], ...]:
    """Returns the operands of a commutative operator in both orders; none for other values."""
    found = called(value, name)
    return () if found is None else ((found.args[0], found.args[1]), (found.args[1], found.args[0]))


def _extreme(value: Expr, x: Expr, bound: str, reduction: str) -> bool:
    """Whether a value is an extreme of `x` and 0: the reduction of `x`, then the bound with 0."""
    for found, zero in _pair(value, bound):
        over = called(found, reduction)
        if over is not None and _is(zero, 0.0):
            axes = {a % x.tensor.rank for a in over.attrs.axes}
            return over.args[0] is x and axes == set(range(x.tensor.rank))
    return False


def _step_of(value: Expr, x: Expr) -> Expr | None:
    """Returns the lowest number of the range of `x`, if a value is the width of that range over
    255.
    """
    step = called(value, "divide")
    width = called(step.args[0], "subtract") if step is not None else None
    if step is None or width is None or not _is(step.args[1], _LEVELS):
        return None
    high, low = width.args
    whole = _extreme(high, x, "maximum", "max") and _extreme(low, x, "minimum", "min")
    return low if whole else None


def _is_point(value: Expr, low: Expr, step: Expr) -> bool:
    """Whether a value is `-low / step`, rounded and clamped."""
    for name in ("cast", "round", "clip"):
        found = called(value, name)
        if found is None or (name == "clip" and found.attrs.plain != {"min": 0.0, "max": _LEVELS}):
            return False
        value = found.args[0]
    offset = called(value, "subtract")
    quotient = called(offset.args[1], "divide") if offset is not None else None
    if offset is None or quotient is None or not _is(offset.args[0], 0.0):
        return False
    return quotient.args[0] is low and quotient.args[1] is step


@joins("quantize")
def in_own_range(call: Call) -> Join | None:
    """`DynamicQuantizeLinear`, whose scale and zero point are those of the following calls, too."""
    if len(call.args) != 3 or call.attrs.dtype != "u8" or call.attrs.precision not in ("", "f32"):
        return None
    x, scale, point = call.args
    if x.tensor.dtype != "f32" or not x.tensor.rank or call.attrs.block:
        return None
    low = _step_of(scale, x)
    if low is None or not _is_point(point, low, scale):
        return None

    def write(site: Site) -> str:
        w = site.at(call)
        made, step, zero = w.emit_many("DynamicQuantizeLinear", w.inputs[0], outputs=3)
        site.values.update({scale.id: (step,), point.id: (zero,)})
        return made

    return Join((), write)


@joins("subtract")
def less_its_zero_point(call: Call) -> Join | None:
    """A product of bytes, less a zero point times the sums of the weight's columns:
    `MatMulInteger` with the zero point of the data.
    """
    dense = called(call.args[0], "nn.dense")
    if dense is None or dense.type != call.type:
        return None
    data, weight = dense.args
    layout = dense.attrs.weight_layout
    bytes_ = {data.tensor.dtype, weight.tensor.dtype} <= {"i8", "u8"}
    if not isinstance(weight, Constant) or not bytes_ or layout not in ("NK", "KN"):
        return None
    for share, sums in _pair(call.args[1], "multiply"):
        wide = called(share, "cast")
        point = wide.args[0] if wide is not None else None
        if point is None or point.tensor != data.tensor.with_(shape=(), layout=""):
            continue
        if not isinstance(sums, Constant):
            continue
        columns = weight.data.sum(1 if layout == "NK" else 0, dtype=np.int64)
        if sums.tensor.concrete[-1:] != columns.shape or sums.tensor.size != columns.size:
            continue
        if not np.array_equal(sums.data.reshape(-1), columns):
            continue

        def write(site: Site, point: Expr = point) -> str:
            w = site.at(dense)
            matrix = w.inputs[1] if layout == "KN" else w.transposed(w.inputs[1], (1, 0))
            return w.emit("MatMulInteger", w.inputs[0], matrix, site.name(point))

        return Join((dense,), write)
    return None
