"""Quantized operands of products: their values, zero points and scales, and forms of them that
instructions multiply.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from clew.ir.expr import Call, Constant, Expr
from clew.ir.types import TensorType, to_numpy
from clew.ops.math.quantization import SUM as SUM
from clew.ops.registry import Op, get_op, moved_operands, runs_on_host
from clew.support.dataclass import dataclass
from clew.te.analysis import Kind

Array = np.ndarray[Any, Any]

HALF: Final = 128
_SMALL: Final = ("i8", "u8")
_PAIRED: Final = "i16"
_MOST_ZERO: Final = 255  # the largest absolute value of a zero point of 8-bit integers
_MOST_DEPTH: Final = (1 << 31) // _MOST_ZERO**2


@dataclass(frozen=True)
class Integers:
    """`scale * (value - zero)`; a zero point of None is 0, a scale of None is 1."""

    value: Expr
    zero: Expr | None = None
    scale: Expr | None = None


def integers_of(value: Expr) -> Integers | None:
    """Returns the quantized form of an operand, or None if it is not of 8-bit integers in its
    shape.
    """
    scale: Expr | None = None
    shape = value.tensor.shape
    if isinstance(value, Call) and value.op_name == "dequantize":
        return _dequantized(value)
    if value.tensor.dtype == "f32":
        if isinstance(value, Call) and value.op_name == "multiply":
            value, scale = value.args
        if not (isinstance(value, Call) and value.op_name == "cast"):
            return None
        value = value.args[0]
    zero: Expr | None = None
    if value.tensor.dtype == SUM and isinstance(value, Call) and value.op_name == "subtract":
        value, zero = value.args
    if value.tensor.dtype == SUM and isinstance(value, Call) and value.op_name == "cast":
        value = value.args[0]
    whole = value.tensor.dtype in _SMALL and value.tensor.shape == shape
    return Integers(value, zero, scale) if whole else None


def _dequantized(value: Call) -> Integers | None:
    integers, scale, *zeros = value.args
    f32 = scale.tensor.dtype == value.tensor.dtype == "f32"
    if integers.tensor.dtype not in _SMALL or not f32 or value.attrs.block:
        return None
    zero = get_op("cast")(zeros[0], dtype=SUM) if zeros else None
    return Integers(integers, zero, scale)


def per_column(parameter: Expr | None, axis: int, columns: Any) -> Expr | tuple[()] | None:
    """Returns a weight's parameter as one number or a row of numbers; () if it has none, None if it
    varies along the depth.
    """
    if parameter is None:
        return ()
    shape = parameter.tensor.shape
    if all(d == 1 for d in shape):
        return reshaped(parameter, ())
    aligned = (1,) * (2 - len(shape)) + shape
    if len(aligned) != 2 or aligned[1 - axis] != 1 or aligned[axis] != columns:
        return None
    return reshaped(parameter, (columns,))


def per_filter(parameter: Expr | None, filters: Any, taps: int) -> Expr | tuple[()] | None:
    """Returns a parameter of a convolution's weight as one number or one per filter; () and None as
    in `per_column`.
    """
    if parameter is None:
        return ()
    shape = parameter.tensor.shape
    if all(d == 1 for d in shape):
        return reshaped(parameter, ())
    whole = len(shape) == taps + 2 and shape[0] == filters and all(d == 1 for d in shape[1:])
    return reshaped(parameter, (filters,)) if whole else None


def per_row(parameter: Expr | None, rank: int) -> Expr | tuple[()] | None:
    """Returns a parameter of the data, broadcast to the product; () and None as in
    `per_column`.
    """
    if parameter is None:
        return ()
    shape = parameter.tensor.shape
    if all(d == 1 for d in shape):
        return reshaped(parameter, ())
    return parameter if shape[-1] == 1 and len(shape) <= rank else None


def across_columns(parameter: Expr | None, rank: int, turned: bool) -> Expr | tuple[()] | None:
    """Returns a parameter of matrices, broadcast to their product; () and None as in `per_column`.
    `turned` matrices hold columns as rows.
    """
    if parameter is None:
        return ()
    shape = parameter.tensor.shape
    if all(d == 1 for d in shape):
        return reshaped(parameter, ())
    shape = (1,) * (2 - len(shape)) + shape
    if len(shape) > rank or shape[-1 if turned else -2] != 1:
        return None
    return swapped(reshaped(parameter, shape), needed=turned)


def swapped(matrices: Expr, *, needed: bool = True) -> Expr:
    """Returns matrices with rows and columns swapped, if that is needed; scalars stay as they
    are.
    """
    rank = matrices.tensor.rank
    if not needed or not rank:
        return matrices
    return get_op("transpose")(matrices, axes=(*range(rank - 2), rank - 1, rank - 2))


def unturned(value: Expr) -> Expr:
    """Returns the operand of a transposition that only swaps rows and columns; other values as they
    are.
    """
    if not isinstance(value, Call) or value.op_name != "transpose":
        return value
    rank = value.tensor.rank
    swaps = tuple(value.attrs.axes) == (*range(rank - 2), rank - 1, rank - 2)
    return value.args[0] if swaps else value


def signed_of_run(matrices: Integers) -> Integers:
    """Returns matrices that a run computes as `i8`, with their zero points changed likewise."""
    if matrices.value.tensor.dtype == "i8":
        return matrices
    half, subtract = number(HALF), get_op("subtract")
    less = subtract(get_op("cast")(matrices.value, dtype=SUM), half)
    zero = subtract(number(0) if matrices.zero is None else matrices.zero, half)
    return Integers(get_op("cast")(less, dtype="i8"), zero, matrices.scale)


def unless_empty(parameter: Expr | tuple[()] | None) -> Expr | None:
    """Returns a parameter unless it is absent or neutral, else None."""
    if not isinstance(parameter, Expr):
        return None
    known = known_values(parameter)
    neutral = 0 if parameter.tensor.dtype == SUM else 1
    return None if known is not None and bool(np.all(known == neutral)) else parameter


def pair_of(data: Integers) -> Expr:
    """Returns the data less its zero point as `i16`, which holds the difference if the zero point
    is in range.
    """
    if data.zero is None:
        return get_op("cast")(data.value, dtype=_PAIRED)
    less = get_op("subtract")(get_op("cast")(data.value, dtype=SUM), data.zero)
    return get_op("cast")(less, dtype=_PAIRED)


def weight_of_pairs(weight: Integers, shape: tuple[Any, ...]) -> Expr:
    """Returns the weight less its zero points as `i16`; `shape` broadcasts a row of them."""
    if weight.zero is None or not weight.zero.tensor.rank or not shape:
        return pair_of(weight)
    return pair_of(Integers(weight.value, reshaped(weight.zero, shape)))


def signed(weight: Integers, column: int) -> Integers:
    """Returns the weight as `i8`, less its zero point if the difference fits."""
    value, zero = weight.value, weight.zero
    assert isinstance(value, Constant)
    is_signed = value.tensor.dtype == "i8"
    if is_signed and zero is None:
        return weight
    point = np.zeros((), np.int32) if zero is None else known_values(zero)
    if point is not None:
        deep = (1,) * (value.tensor.rank - 1)
        by_filter = point if column else point.reshape(*point.shape, *deep)
        centered = value.data.astype(np.int32) - by_filter
        if centered.min(initial=0) >= -HALF and centered.max(initial=0) < HALF:
            return Integers(_narrowed(value, centered), None, weight.scale)
    if is_signed:
        return weight
    half = number(HALF)
    zero = get_op("subtract")(number(0) if zero is None else zero, half)
    return Integers(_narrowed(value, value.data.astype(np.int32) - HALF), zero, weight.scale)


def _narrowed(old: Constant, values: Array) -> Constant:
    return Constant(values.astype(to_numpy("i8")), name=old.name)


def number(value: Any) -> Constant:
    """Returns a number as a constant of the dtype of sums."""
    return Constant(np.asarray(value, np.int32))


def reshaped(value: Expr, shape: tuple[Any, ...]) -> Expr:
    """Returns a value in a shape."""
    return value if value.tensor.shape == shape else get_op("reshape")(value, shape=shape)


def known_values(value: Expr) -> Array | None:
    """Returns the values of a constant parameter, else None."""
    if isinstance(value, Constant):
        return value.data
    if not isinstance(value, Call) or not _is_simple(value):
        return None
    if not isinstance(value.type, TensorType) or not value.type.is_static:
        return None
    args = [known_values(a) for a in value.args]
    if any(a is None for a in args) or not isinstance(value.op, Op):
        return None
    return np.asarray(value.op.run_reference([a for a in args if a is not None], value.attrs))


def constant_of(weight: Expr) -> Constant | None:
    """Returns a weight that is constant, or consists of moved elements of a constant, as one
    direction's part of a recurrent layer's weight does; None for others.
    """
    if isinstance(weight, Constant):
        return weight
    if not isinstance(weight, Call) or not moved_operands(weight):
        return None
    values = known_values(weight)
    return None if values is None else Constant(values)


def _is_simple(call: Call) -> bool:
    """Whether each element of a call depends on one known element of each operand."""
    if not isinstance(call.op, Op) or runs_on_host(call):
        return False
    types = [a.type for a in call.args if isinstance(a.type, TensorType)]
    return len(types) == len(call.args) and call.op.kind(types, call.attrs) <= Kind.INJECTIVE


def depth_fits(depth: Any) -> bool:
    """Whether 32 bits hold any sum of a number of products of 8-bit integers, each less its zero
    point.
    """
    return isinstance(depth, int) and depth < _MOST_DEPTH


def in_range(zero: Expr | None, dtype: str = "") -> bool:
    """Whether a zero point is known to be one of 8-bit integers, or of a dtype."""
    if zero is None:
        return True
    values = known_values(zero)
    if values is not None:
        low, high = (-128, 127) if dtype == "i8" else (0, 255)
        return bool(np.all((values >= (low if dtype else -_MOST_ZERO)) & (values <= high)))
    return any(is_widened(zero, small) for small in ((dtype,) if dtype else _SMALL))


def is_widened(zero: Expr, dtype: str) -> bool:
    """Whether a zero point was cast from a dtype."""
    while isinstance(zero, Call) and zero.op_name == "reshape":
        zero = zero.args[0]
    return isinstance(zero, Call) and zero.op_name == "cast" and zero.args[0].tensor.dtype == dtype


def same_numbers(a: Sequence[Expr], b: Sequence[Expr]) -> bool:
    """Whether the parameters of two tensors are the same."""
    return len(a) == len(b) and all(map(_same, a, b))


def _same(a: Expr, b: Expr) -> bool:
    if a is b:
        return True
    if not isinstance(a, Constant) or not isinstance(b, Constant) or a.type != b.type:
        return False
    return bool(np.array_equal(a.data, b.data))
