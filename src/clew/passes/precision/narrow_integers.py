"""NarrowIntegers: computes products of quantized tensors on 8-bit integers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np

from clew.ir.expr import Call, Constant, Expr
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.ir.types import TensorType, to_numpy
from clew.ops.registry import Op, argument_references, get_op, runs_on_host
from clew.passes.base import Pass, PassContext
from clew.te.analysis import Kind

Array = np.ndarray[Any, Any]

_SMALL: Final = ("i8", "u8")
_SUM: Final = "i32"
_HALF: Final = 128
# Fewer rows than this use dot products, which take unsigned data.
_FEW_ROWS: Final = 16


@dataclass(frozen=True)
class NarrowIntegers(Pass):
    """Multiplies 8-bit integers directly if the target has instructions for that, and corrects the
    sum for zero points; scales are applied to the sum.

    With `a = data - z` and `b = weight - y`, where z is one number per row and y one per column:
    `sum(a * b) = sum(data * weight) - z * sum(weight) - y * (sum(data) - K * z)`. Sums of the
    weight are constant; terms with a zero point of 0 are omitted. Weights become `i8`; data becomes
    `u8` if the target has no instruction for products of signed data.

    Before:
        %1 = subtract(cast(%x, "i32"), 3); %2 = nn.matmul(%1, cast(w, "i32"))
    After:
        %3: i32[...] = nn.dense(%x, w, weight_layout="KN"); %4 = add(%3, w'), w' = -3 * sum(w)

    and with scales (`DequantizeLinear` of both operands)

        %2 = multiply(cast(%1, "f32"), 0.5); %3 = nn.matmul(%2, multiply(cast(w, "f32"), 0.25))

    becomes `multiply(cast(%4, "f32"), 0.125)`.

    Preconditions: runs before constants are folded, which would hide how a weight was quantized.
    Non-goals: convolutions, whose padding is not made of zero points; scales of an operand that
    vary along the depth.
    """

    opt_level: ClassVar[int] = 2

    def run(self, module: Module, ctx: PassContext) -> Module:
        if ctx.target is None:
            return module
        return _Narrower(ctx).rewrite_module(module)


@dataclass(frozen=True)
class _Integers:
    """`scale * (value - zero)`; a zero point of None is 0, a scale of None is 1."""

    value: Expr
    zero: Expr | None = None
    scale: Expr | None = None


class _Narrower(Rewriter):
    def __init__(self, ctx: PassContext) -> None:
        super().__init__()
        self._ctx = ctx

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        if new.op_name not in ("nn.matmul", "nn.dense") or argument_references(new.attrs):
            return new
        layout = "KN" if new.op_name == "nn.matmul" else new.attrs.weight_layout
        if layout not in ("KN", "NK") or new.attrs.get("parts", 1) != 1 or new.attrs.out_dtype:
            return new
        data, weight = map(_integers, new.args)
        if data is None or weight is None or new.args[1].tensor.rank != 2:
            return new
        if not isinstance(weight.value, Constant) or not data.value.tensor.rank:
            return new
        with self.covers(old, *old.args):
            return self._product(old, data, weight, layout) or new

    def _product(self, old: Call, data: _Integers, weight: _Integers, layout: str) -> Expr | None:
        """Returns the product on integers, or None if it gains nothing."""
        column = 0 if layout == "NK" else 1
        columns = weight.value.tensor.shape[column]
        y, scale = (_per_column(p, column, columns) for p in (weight.zero, weight.scale))
        rows = [_per_row(p, data.value.tensor.rank) for p in (data.zero, data.scale)]
        if None in (y, scale, *rows):
            self._ctx.remark(old, "not a product of integers: parameters vary along the depth")
            return None
        weight = _Integers(weight.value, *(_unless_empty(p) for p in (y, scale)))
        data = _Integers(data.value, *(_unless_empty(p) for p in rows))
        weight = _signed(weight, column)
        data = self._multiplied(data)
        if not self._multiplies(data.value, weight.value):
            return None
        dense = get_op("nn.dense")(data.value, weight.value, weight_layout=layout)
        total = _corrected(dense, data, weight, 1 - column)
        scales = [s for s in (data.scale, weight.scale) if s is not None]
        if old.tensor.dtype == _SUM:
            return total
        result: Expr = get_op("cast")(total, dtype=old.tensor.dtype)
        if scales:
            factor = scales[0] if len(scales) == 1 else get_op("multiply")(*scales)
            result = get_op("multiply")(result, factor)
        return result

    def _multiplied(self, data: _Integers) -> _Integers:
        """Returns the data in the signedness that the target multiplies with a signed weight."""
        target, shape = self._ctx.target, data.value.tensor.shape
        assert target is not None
        rows = shape[-2] if len(shape) > 1 else 1
        many = isinstance(rows, int) and rows >= _FEW_ROWS and target.tile_shape("i8", "i8")
        if data.value.tensor.dtype == "u8" or many or not target.dot_lanes("u8", "i8"):
            return data
        half = _number(_HALF)
        wide = get_op("add")(get_op("cast")(data.value, dtype=_SUM), half)
        zero = half if data.zero is None else get_op("add")(data.zero, half)
        return _Integers(get_op("cast")(wide, dtype="u8"), zero, data.scale)

    def _multiplies(self, data: Expr, weight: Expr) -> bool:
        target, dtypes = self._ctx.target, (data.tensor.dtype, weight.tensor.dtype)
        assert target is not None
        return bool(target.dot_lanes(*dtypes) or target.tile_shape(*dtypes))


def _integers(value: Expr) -> _Integers | None:
    """Returns the quantized form of an operand, or None if it is not of 8-bit integers."""
    scale: Expr | None = None
    if value.tensor.dtype == "f32":
        if isinstance(value, Call) and value.op_name == "multiply":
            value, scale = value.args
        if not (isinstance(value, Call) and value.op_name == "cast"):
            return None
        value = value.args[0]
    zero: Expr | None = None
    if value.tensor.dtype == _SUM and isinstance(value, Call) and value.op_name == "subtract":
        value, zero = value.args
    if value.tensor.dtype == _SUM and isinstance(value, Call) and value.op_name == "cast":
        value = value.args[0]
    return _Integers(value, zero, scale) if value.tensor.dtype in _SMALL else None


def _per_column(parameter: Expr | None, axis: int, columns: Any) -> Expr | tuple[()] | None:
    """Returns a weight's parameter as one number or a row of numbers; () if it has none, None if it
    varies along the depth.
    """
    if parameter is None:
        return ()
    shape = parameter.tensor.shape
    if all(d == 1 for d in shape):
        return _reshaped(parameter, ())
    aligned = (1,) * (2 - len(shape)) + shape
    if len(aligned) != 2 or aligned[1 - axis] != 1 or aligned[axis] != columns:
        return None
    return _reshaped(parameter, (columns,))


def _per_row(parameter: Expr | None, rank: int) -> Expr | tuple[()] | None:
    """Returns a parameter of the data, broadcast to the product; () and None as in
    `_per_column`.
    """
    if parameter is None:
        return ()
    shape = parameter.tensor.shape
    if all(d == 1 for d in shape):
        return _reshaped(parameter, ())
    return parameter if shape[-1] == 1 and len(shape) <= rank else None


def _unless_empty(parameter: Expr | tuple[()] | None) -> Expr | None:
    """Returns a parameter unless it is absent or neutral, else None."""
    if not isinstance(parameter, Expr):
        return None
    known = _known(parameter)
    neutral = 0 if parameter.tensor.dtype == _SUM else 1
    return None if known is not None and bool(np.all(known == neutral)) else parameter


def _signed(weight: _Integers, column: int) -> _Integers:
    """Returns the weight as `i8`, less its zero point if the difference fits."""
    value, zero = weight.value, weight.zero
    assert isinstance(value, Constant)
    is_signed = value.tensor.dtype == "i8"
    if is_signed and zero is None:
        return weight
    point = np.zeros((), np.int32) if zero is None else _known(zero)
    if point is not None:
        centered = value.data.astype(np.int32) - (point if column else point[..., None])
        if centered.min(initial=0) >= -_HALF and centered.max(initial=0) < _HALF:
            return _Integers(_narrowed(value, centered), None, weight.scale)
    if is_signed:
        return weight
    half = _number(_HALF)
    zero = get_op("subtract")(_number(0) if zero is None else zero, half)
    return _Integers(_narrowed(value, value.data.astype(np.int32) - _HALF), zero, weight.scale)


def _narrowed(old: Constant, values: Array) -> Constant:
    return Constant(values.astype(to_numpy("i8")), name=old.name)


def _corrected(dense: Expr, data: _Integers, weight: _Integers, depth_axis: int) -> Expr:
    """Returns a product of stored integers, corrected for their zero points."""
    multiply, subtract = get_op("multiply"), get_op("subtract")
    total = dense
    if data.zero is not None:
        sums = _summed(weight.value, depth_axis, keepdims=False)
        total = subtract(total, multiply(data.zero, sums))
    if weight.zero is not None:
        axis = data.value.tensor.rank - 1
        sums = _summed(data.value, axis, keepdims=data.value.tensor.rank > 1)
        if data.zero is not None:
            depth = weight.value.tensor.shape[depth_axis]
            sums = subtract(sums, multiply(data.zero, _number(depth)))
        total = subtract(total, multiply(sums, weight.zero))
    return total


def _summed(value: Expr, axis: int, *, keepdims: bool) -> Expr:
    return get_op("sum")(get_op("cast")(value, dtype=_SUM), axes=(axis,), keepdims=keepdims)


def _number(value: Any) -> Constant:
    return Constant(np.asarray(value, np.int32))


def _reshaped(value: Expr, shape: tuple[Any, ...]) -> Expr:
    return value if value.tensor.shape == shape else get_op("reshape")(value, shape=shape)


def _known(value: Expr) -> Array | None:
    """Returns the values of a constant parameter, else None."""
    if isinstance(value, Constant):
        return value.data
    if not isinstance(value, Call) or not _is_simple(value):
        return None
    if not isinstance(value.type, TensorType) or not value.type.is_static:
        return None
    args = [_known(a) for a in value.args]
    if any(a is None for a in args) or not isinstance(value.op, Op):
        return None
    return np.asarray(value.op.run_reference([a for a in args if a is not None], value.attrs))


def _is_simple(call: Call) -> bool:
    """Whether each element of a call depends on one known element of each operand."""
    if not isinstance(call.op, Op) or runs_on_host(call):
        return False
    types = [a.type for a in call.args if isinstance(a.type, TensorType)]
    return len(types) == len(call.args) and call.op.kind(types, call.attrs) <= Kind.INJECTIVE
