"""NarrowIntegers: computes products and convolutions of quantized tensors on integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
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
_PAIRED: Final = "i16"
_HALF: Final = 128
# Fewer rows than this use dot products, which take unsigned data.
_FEW_ROWS: Final = 16


@dataclass(frozen=True)
class NarrowIntegers(Pass):
    """Multiplies quantized operands as integers if the target has instructions for that; scales are
    applied to the sum.

    On targets with products of 8-bit integers, the sum is corrected for zero points. With
    `a = data - z` and `b = weight - y`, where z is one number per row and y one per column:
    `sum(a * b) = sum(data * weight) - z * sum(weight) - y * (sum(data) - K * z)`. Sums of the
    weight are constant; terms with a zero point of 0 are omitted. Weights become `i8`; data becomes
    `u8` if the target has no instruction for products of signed data. The padding of a convolution
    is made of zero points.

    Other targets multiply pairs of `i16`: zero points are subtracted from both operands, which is
    exact, so that sums need no correction and padding is 0.

    Before:
        %1 = subtract(cast(%x, "i32"), 3); %2 = nn.matmul(%1, cast(w, "i32"))
    After:
        %3: i32[...] = nn.dense(%x, w, weight_layout="KN"); %4 = add(%3, w'), w' = -3 * sum(w)

    and with scales (`DequantizeLinear` of both operands)

        %2 = multiply(cast(%1, "f32"), 0.5); %3 = nn.matmul(%2, multiply(cast(w, "f32"), 0.25))

    becomes `multiply(cast(%4, "f32"), 0.125)`. A convolution on pairs of `i16`:

        %2: f32[...] = nn.conv2d(multiply(cast(subtract(cast(%x, "i32"), 3), "f32"), 0.5), w')
    becomes
        %1: i16[...] = cast(subtract(cast(%x, "i32"), 3), "i16")
        %2 = multiply(cast(nn.conv2d(%1, w), "f32"), s)

    Preconditions: runs before constants are folded, which would hide how a weight was quantized.
    Non-goals: convolutions in groups, or of fewer input channels than `least_channels`; scales of
    an operand that vary along the depth.
    """

    opt_level: ClassVar[int] = 2

    least_channels: int = 8

    def run(self, module: Module, ctx: PassContext) -> Module:
        if ctx.target is None:
            return module
        return _Narrower(self, ctx).rewrite_module(module)


@dataclass(frozen=True)
class _Integers:
    """`scale * (value - zero)`; a zero point of None is 0, a scale of None is 1."""

    value: Expr
    zero: Expr | None = None
    scale: Expr | None = None


class _Narrower(Rewriter):
    def __init__(self, options: NarrowIntegers, ctx: PassContext) -> None:
        super().__init__()
        self._options = options
        self._ctx = ctx

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        if isinstance(new.op, Op) and new.op.traits.convolves:
            return self._convolution(old, new)
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
        total: Expr
        if self._multiplies_pairs(data.value, weight.value):
            pairs = _pair_of(data), _weight_of_pairs(weight, (columns, 1) if column == 0 else ())
            total = get_op("nn.dense")(*pairs, weight_layout=layout)
        else:
            weight = _signed(weight, column)
            data = self._multiplied(data)
            if not self._multiplies(data.value, weight.value):
                return None
            dense = get_op("nn.dense")(data.value, weight.value, weight_layout=layout)
            total = _corrected(dense, data, weight, 1 - column)
        return _scaled(total, old.tensor.dtype, [data.scale, weight.scale])

    def _convolution(self, old: Call, new: Call) -> Expr:
        """Returns a convolution on integers if both operands are quantized, else the call."""
        attrs, (image, filters) = new.attrs, new.args[:2]
        spatial = new.op.traits.convolves  # type: ignore[union-attr]
        plain = attrs.data_layout == f"NC{spatial}" and attrs.weight_layout == f"OI{spatial}"
        if not plain or attrs.groups != 1 or attrs.out_layout or attrs.get("out_dtype", ""):
            return new
        channels, inner, *taps = filters.tensor.shape
        if not isinstance(inner, int) or inner < self._options.least_channels:
            return new
        data, weight = _integers(image), _integers(filters)
        if data is None or weight is None or not isinstance(weight.value, Constant):
            return new
        around = (1,) * len(taps)
        given = [_per_row(p, 0) for p in (data.zero, data.scale)]
        found = [_per_filter(p, channels, len(taps)) for p in (weight.zero, weight.scale)]
        if None in given or None in found:
            self._ctx.remark(old, "not a convolution of integers: parameters vary along channels")
            return new
        data = _Integers(data.value, *map(_unless_empty, given))
        weight = _Integers(weight.value, *map(_unless_empty, found))
        with self.covers(old, *old.args):
            if self._multiplies_pairs(data.value, weight.value):
                operands = _pair_of(data), _weight_of_pairs(weight, (channels, 1, *around))
                total: Expr | None = Call(new.op, operands, attrs)
            else:
                total = self._of_bytes(old, new, data, weight)
            if total is None:
                return new
            scale = weight.scale
            if scale is not None and scale.tensor.rank:
                scale = _reshaped(scale, (channels, *around))
            return _scaled(total, new.tensor.dtype, [data.scale, scale])

    def _of_bytes(self, old: Call, new: Call, data: _Integers, weight: _Integers) -> Expr | None:
        """Returns the convolution of 8-bit integers, corrected for the data's zero point; None if
        there is no instruction for it, or padding and corrections would not be constant.
        """
        filters = _signed(weight, 0)
        target, attrs = self._ctx.target, new.attrs
        assert target is not None
        if data.value.tensor.dtype == "i8" and not target.tile_shape("i8", "i8"):
            data = self._multiplied(data)
        if filters.zero is not None or not self._multiplies(data.value, filters.value):
            return None
        point = None if data.zero is None else _known(data.zero)
        if data.zero is not None and point is None:
            self._ctx.remark(old, "not a convolution of integers: its zero point is computed")
            return None
        image = data.value
        if point is not None and any(attrs.padding):
            half = len(attrs.padding) // 2
            pads = (0, 0, *attrs.padding[:half], 0, 0, *attrs.padding[half:])
            image = get_op("pad")(image, pads=pads, value=float(point))
            attrs = attrs.with_(padding=(0,) * len(attrs.padding))
        total: Expr = Call(new.op, [image, filters.value], attrs)
        if data.zero is not None:
            rank = filters.value.tensor.rank
            wide = get_op("cast")(filters.value, dtype=_SUM)
            sums = get_op("sum")(wide, axes=tuple(range(1, rank)), keepdims=False)
            each = _reshaped(sums, (*sums.tensor.shape, *(1,) * (rank - 2)))
            total = get_op("subtract")(total, get_op("multiply")(each, data.zero))
        return total

    def _multiplies_pairs(self, data: Expr, weight: Expr) -> bool:
        """Whether pairs of `i16` are the widest products that the target has instructions for."""
        target = self._ctx.target
        assert target is not None
        signs = data.tensor.dtype, "i8"
        bytes_ = target.dot_lanes("u8", "i8") or target.tile_shape(*signs)
        return not bytes_ and bool(target.dot_lanes("i16", "i16"))

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


def _per_filter(parameter: Expr | None, filters: Any, taps: int) -> Expr | tuple[()] | None:
    """Returns a parameter of a convolution's weight as one number or one per filter; () and None as
    in `_per_column`.
    """
    if parameter is None:
        return ()
    shape = parameter.tensor.shape
    if all(d == 1 for d in shape):
        return _reshaped(parameter, ())
    whole = len(shape) == taps + 2 and shape[0] == filters and all(d == 1 for d in shape[1:])
    return _reshaped(parameter, (filters,)) if whole else None


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


def _pair_of(data: _Integers) -> Expr:
    """Returns the data less its zero point as `i16`, whose range holds all differences."""
    if data.zero is None:
        return get_op("cast")(data.value, dtype=_PAIRED)
    less = get_op("subtract")(get_op("cast")(data.value, dtype=_SUM), data.zero)
    return get_op("cast")(less, dtype=_PAIRED)


def _weight_of_pairs(weight: _Integers, shape: tuple[Any, ...]) -> Expr:
    """Returns the weight less its zero points as `i16`; `shape` broadcasts a row of them."""
    if weight.zero is None or not weight.zero.tensor.rank or not shape:
        return _pair_of(weight)
    return _pair_of(_Integers(weight.value, _reshaped(weight.zero, shape)))


def _scaled(total: Expr, dtype: str, scales: Sequence[Expr | None]) -> Expr:
    """Returns a sum of integer products in the dtype of the result, times the scales."""
    if dtype == _SUM:
        return total
    result: Expr = get_op("cast")(total, dtype=dtype)
    factors = [scale for scale in scales if scale is not None]
    return get_op("multiply")(result, reduce(get_op("multiply"), factors)) if factors else result


def _signed(weight: _Integers, column: int) -> _Integers:
    """Returns the weight as `i8`, less its zero point if the difference fits."""
    value, zero = weight.value, weight.zero
    assert isinstance(value, Constant)
    is_signed = value.tensor.dtype == "i8"
    if is_signed and zero is None:
        return weight
    point = np.zeros((), np.int32) if zero is None else _known(zero)
    if point is not None:
        deep = (1,) * (value.tensor.rank - 1)
        by_filter = point if column else point.reshape(*point.shape, *deep)
        centered = value.data.astype(np.int32) - by_filter
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
