"""The rules of SimplifyExpr."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from clew.ir.dims import Dim, SymDim, is_unknown
from clew.ir.expr import Attrs, Call, Constant, Expr
from clew.ir.types import NARROW_FLOATS, TensorType, bits, is_float, is_integer, to_numpy
from clew.ops.movement.slicing import slice_bounds
from clew.ops.registry import get_op
from clew.passes.simplify.signs import never_negative
from clew.patterns import Match, Rule, is_op, is_splat, rule, wildcard
from clew.patterns.exactness import EXACT, ROUNDED_ONCE, Exactness

_x, _a, _b = wildcard(), wildcard(), wildcard()


def _if_same_type(found: Match, value: Expr) -> Expr | None:
    """Returns the value if it can replace the match's root: broadcasting changed nothing."""
    return value if value.type == found.root.type else None


# --- no effect ---


_zero = is_splat(0)


@rule(
    is_op("multiply")(_x, is_splat(1))
    | is_op("divide")(_x, is_splat(1))
    | is_op("power")(_x, is_splat(1)),
    EXACT,
)
def neutral_factor(found: Match) -> Expr | None:
    """`x * 1`, `x / 1`, `x ^ 1` are `x`."""
    return _if_same_type(found, found[_x])


@rule(is_op("add")(_x, _zero), EXACT)
def plus_zero(found: Match) -> Expr | None:
    """`x + 0` is `x` for integers. Of floats, `x + (-0)` is: `-0 + 0` is 0."""
    return _if_same_type(found, found[_x]) if _zero_with_sign(found, negative=True) else None


@rule(is_op("subtract")(_x, _zero), EXACT)
def minus_zero(found: Match) -> Expr | None:
    """`x - 0` is `x`. Of floats, `x - (-0)` is not: `-0 - (-0)` is 0."""
    return _if_same_type(found, found[_x]) if _zero_with_sign(found, negative=False) else None


def _zero_with_sign(found: Match, *, negative: bool) -> bool:
    """Whether the zero is one of integers, or has the sign."""
    zero = found.constant(_zero)
    return not is_float(zero.tensor.dtype) or np.signbit(zero.splat_value) == negative


# Functions with equal results for both zeros, of which exporters add one: a mask without effect.
_added = is_op("add")(_x, _zero)


@rule(is_op("nn.softmax", "nn.log_softmax", "exp", "sigmoid", "abs", "cos", "cosh")(_added), EXACT)
def zero_of_unread_sign(found: Match) -> Expr | None:
    """`softmax(x + 0)` is `softmax(x)`, which does not depend on the signs of zeros."""
    call, x = found.root, found[_x]
    assert isinstance(call, Call)
    return call.with_args([x]) if x.type == found.call(_added).type else None


@rule(is_op("cast", "reshape", "concatenate")(_x), EXACT)
def same_type_again(found: Match) -> Expr | None:
    """Removes a cast or reshape to its operand's type, and a concatenation of one value."""
    return _if_same_type(found, found[_x])


@rule(is_op("broadcast_to")(_x), EXACT)
def nothing_repeated(found: Match) -> Expr | None:
    """Removes a broadcast to its operand's type. It stays if a requested size may differ from the
    operand's, since its kernel has the condition that the two fit.
    """
    shape = found[_x].tensor.shape
    pairs = zip(reversed(found.attrs.shape), reversed(shape), strict=False)
    return _if_same_type(found, found[_x]) if all(w in (1, size) for w, size in pairs) else None


@rule(is_op("tile", "pad", "slice")(_x), EXACT)
def nothing_added_or_left_out(found: Match) -> Expr | None:
    """Removes a tile, pad or slice that keeps the shape and the order of elements."""
    attrs = found.attrs
    zero_pads = all(p == 0 for p in attrs.get("pads", ()))
    forwards = all(isinstance(s, int) and s > 0 for s in attrs.get("strides", ()))
    return _if_same_type(found, found[_x]) if zero_pads and forwards else None


@rule(is_op("transpose")(_x), EXACT)
def transpose_that_moves_nothing(found: Match) -> Expr | None:
    """Turns a transpose that keeps the order of axes longer than 1 into a reshape, or removes
    it.
    """
    axes, shape = found.attrs.axes, found[_x].tensor.shape
    if axes == tuple(range(len(axes))):
        return found[_x]
    moved = [a for a in axes if shape[a] != 1]
    if moved != sorted(moved):
        return None
    assert isinstance(found.root.type, TensorType)
    return get_op("reshape")(found[_x], shape=found.root.type.shape)


@rule(is_op("sum", "max", "min")(_x), EXACT)
def reduction_of_single_elements(found: Match) -> Expr | None:
    """Turns a reduction over axes of one element into a reshape. Sums of floats stay: a sum is 0
    where its only element is -0.
    """
    call, x = found.root, found[_x].tensor
    assert isinstance(call, Call)
    if call.tensor.dtype != x.dtype or (call.op_name == "sum" and not is_integer(x.dtype)):
        return None
    axes = found.attrs.axes
    if not axes or not all(x.shape[axis] == 1 for axis in axes):
        return None
    return get_op("reshape")(found[_x], shape=call.tensor.shape)


# --- two merged into one ---

_inner_reshape = is_op("reshape")(_x)
_inner_transpose = is_op("transpose")(_x)
_inner_clip = is_op("clip")(_x)
_inner_cast = is_op("cast")(_x)


@rule(is_op("reshape")(_inner_reshape), EXACT)
def reshape_of_reshape(found: Match) -> Expr | None:
    """Keeps the outer reshape only."""
    return get_op("reshape")(found[_x], shape=found.attrs.shape)


@rule(is_op("transpose")(_inner_transpose), EXACT)
def transpose_of_transpose(found: Match) -> Expr | None:
    """Merges two transposes into one with the composed order."""
    inner = found.call(_inner_transpose).attrs.axes
    return get_op("transpose")(found[_x], axes=tuple(inner[a] for a in found.attrs.axes))


_merged = is_op("reshape")(_x)
_swapped = is_op("transpose")(_merged)


@rule(is_op("reshape")(_swapped), EXACT)
def swap_between_reshapes(found: Match) -> Expr | None:
    """Merging leading axes, swapping the last two, and splitting the leading axes is one
    transpose.
    """
    x, merged = found[_x].tensor, found[_merged].tensor
    assert isinstance(found.root.type, TensorType)
    lead, last = x.shape[:-2], x.shape[-2:]
    swap = (*range(merged.rank - 2), merged.rank - 1, merged.rank - 2)
    if x.rank < 3 or merged.rank < 2 or merged.shape[-2:] != last:
        return None
    if found.call(_swapped).attrs.axes != swap or found.root.type.shape != (*lead, *last[::-1]):
        return None
    axes = (*range(x.rank - 2), x.rank - 1, x.rank - 2)
    return get_op("transpose")(found[_x], axes=axes)


_inner_slice = is_op("slice")(_x)
_selected = is_op("reshape")(_inner_slice)


@rule(is_op("slice")(_inner_slice), EXACT)
def slice_of_slice(found: Match) -> Expr | None:
    """Merges two slices, unless the first one alone avoids computing the rest of its operand."""
    inner = found.call(_inner_slice)
    if found.uses(inner) > 1 and found.uses(found[_x]) == 1:
        return None
    taken = _slice_at_once(found[_x].tensor, inner.attrs, found.attrs, range(inner.tensor.rank))
    return None if taken is None else _if_same_type(found, get_op("slice")(found[_x], **taken))


@rule(is_op("slice")(_selected), EXACT)
def slice_of_selected(found: Match) -> Expr | None:
    """Merges two slices if axes of size 1 are removed between them, as `x[3][2:5]` does."""
    inner, selected = found.call(_inner_slice), found.call(_selected)
    if max(found.uses(inner), found.uses(selected)) > 1 and found.uses(found[_x]) == 1:
        return None
    kept = [n for n, size in enumerate(inner.tensor.shape) if size != 1]
    if tuple(inner.tensor.shape[n] for n in kept) != selected.tensor.shape:
        return None
    taken = _slice_at_once(found[_x].tensor, inner.attrs, found.attrs, kept)
    if taken is None:
        return None
    assert isinstance(found.root.type, TensorType)
    return get_op("reshape")(get_op("slice")(found[_x], **taken), shape=found.root.type.shape)


def _slice_at_once(
    x: TensorType, first: Attrs, second: Attrs, places: Sequence[int]
) -> dict[str, Any] | None:
    """Returns the attributes of one slice of `x` for two slices; `places` has the axis of `x` for
    each axis of the second slice's operand. None if sizes or arguments decide what is left.
    """
    parts = {axis % x.rank: part for axis, *part in _slices(first)}
    for axis, *part in _slices(second):
        along = places[axis % len(places)]
        both = _slices_at_once(parts[along], part, x.shape[along]) if along in parts else part
        if both is None:
            return None
        parts[along] = both
    begin, end, strides = zip(*parts.values(), strict=True)
    if not all(isinstance(bound, (int, SymDim)) for bound in (*begin, *end, *strides)):
        return None
    return {"begin": begin, "end": end, "strides": strides, "axes": tuple(parts)}


def _slices(attrs: Attrs) -> Iterator[tuple[Any, ...]]:
    """Yields the axes of a slice with its bounds and strides."""
    strides = attrs.strides or (1,) * len(attrs.axes)
    return zip(attrs.axes, attrs.begin, attrs.end, strides, strict=True)


def _slices_at_once(first: list[Any], second: list[Any], size: Dim) -> list[Any] | None:
    """Returns the bounds and the stride of two slices of one axis; None if sizes decide them."""
    if not all(isinstance(n, int) for n in (size, *first, *second)):
        return None
    (low, high, step), (begin, end, stride) = first, second
    if step < 1 or stride < 1:
        return None
    start, left = slice_bounds(low, high, step, size)
    offset, count = slice_bounds(begin, end, stride, left)
    place, stride = start + offset * step, step * stride
    return [place, place + count * stride, stride]


@rule(is_op("clip")(_inner_clip), EXACT)
def clip_of_clip(found: Match) -> Expr | None:
    """Clips to the intersection of both ranges, if they overlap."""
    inner, outer = found.call(_inner_clip).attrs, found.attrs
    lows = [v for v in (inner.min, outer.min) if v is not None]
    highs = [v for v in (inner.max, outer.max) if v is not None]
    low, high = max(lows, default=None), min(highs, default=None)
    if any(bound != bound for bound in (*lows, *highs)):  # NaN, which replaces all values
        return None
    if low is not None and high is not None and low > high:
        return None
    return get_op("clip")(found[_x], min=low, max=high)


@rule(is_op("nn.relu")(is_op("nn.relu")(_x)), EXACT)
def relu_of_relu(found: Match) -> Expr | None:
    """Keeps one of two ReLUs."""
    return get_op("nn.relu")(found[_x])


@rule(is_op("negative")(is_op("negative")(_x)), EXACT)
def negative_of_negative(found: Match) -> Expr | None:
    """The operand."""
    return found[_x]


@rule(is_op("cast")(_inner_cast), EXACT)
def cast_of_cast(found: Match) -> Expr | None:
    """Keeps the outer cast if the inner one loses nothing."""
    source, between = found[_x].tensor.dtype, found.call(_inner_cast).tensor.dtype
    if not holds(between, source):
        return None
    return get_op("cast")(found[_x], dtype=found.attrs.dtype)


def holds(wide: str, narrow: str) -> bool:
    """Whether the dtype `wide` represents every value of `narrow`."""
    if wide == narrow or (narrow == "bool" and wide != "f8e8m0fnu"):
        return True
    if is_integer(wide) and is_integer(narrow):
        wider = bits(wide) > bits(narrow)
        return wider and (wide[0] == "i" or narrow[0] == "u")
    return (narrow in NARROW_FLOATS and wide in ("f32", "f64")) or (narrow, wide) == (
        "f32",
        "f64",
    )


# --- cheaper form ---


def _exact_reciprocal(divisor: float) -> bool:
    return bool(divisor and np.isfinite(divisor)) and abs(float(np.frexp(divisor)[0])) == 0.5


_divisor = is_splat(_exact_reciprocal)


@rule(is_op("divide")(_x, _divisor), EXACT)
def divide_by_power_of_two(found: Match) -> Expr | None:
    """`x / c` is `x * (1 / c)` where `1 / c` is exact."""
    divisor = found.constant(_divisor)
    dtype = divisor.tensor.dtype
    inverse = 1.0 / float(divisor.splat_value)
    one = to_numpy(dtype).type
    if not is_float(dtype) or abs(inverse) < np.finfo(np.float16).tiny or inverse != one(inverse):
        return None
    return get_op("multiply")(found[_x], Constant.splat(inverse, divisor.tensor))


_exponent = is_splat(lambda value: value in (2, -1, 0.5))


@rule(is_op("power")(_x, _exponent), EXACT)
def simple_power(found: Match) -> Expr | None:
    """`x ^ 2` and `x ^ -1`; `x ^ 0.5` where `x` is never negative, nor -0: the power of -0 is that
    of 0, and the power of minus infinity is not NaN.
    """
    x, exponent = found[_x], found.constant(_exponent).splat_value
    if x.type != found.root.type:
        return None
    if exponent == 2:
        return get_op("multiply")(x, x)
    if not is_float(x.tensor.dtype):
        return None
    if exponent == -1:
        return get_op("reciprocal")(x)
    return get_op("sqrt")(x) if never_negative(x) else None


@rule(is_op("power")(_x, is_splat(-0.5)), Exactness("none", "rounded twice, not once"))
def inverse_root(found: Match) -> Expr | None:
    """`x ^ -0.5` is `rsqrt(x)` where `x` is never negative, nor -0."""
    x = found[_x]
    same = x.type == found.root.type and is_float(x.tensor.dtype)
    return get_op("rsqrt")(x) if same and never_negative(x) else None


@rule(is_op("divide")(is_splat(1), _x), EXACT)
def one_over(found: Match) -> Expr | None:
    """`1 / x` is the reciprocal."""
    x = found[_x]
    if x.type != found.root.type or not is_float(x.tensor.dtype):
        return None
    return get_op("reciprocal")(x)


@rule(is_op("reciprocal")(is_op("sqrt")(_x)), ROUNDED_ONCE)
def reciprocal_of_root(found: Match) -> Expr | None:
    """`1 / sqrt(x)` is `rsqrt(x)`."""
    return get_op("rsqrt")(found[_x])


# --- sizes as values ---

_number = is_splat()


@rule(is_op("slice")(is_op("shape_of")(_x)), EXACT)
def one_of_the_sizes(found: Match) -> Expr | None:
    """`shape_of(x)[k:k+1]` is a range of one number: a kernel computes it from the sizes of a call,
    and fuses it with its readers.
    """
    shape = found[_x].tensor.shape
    begin: Sequence[Any] = found.attrs.begin
    if found.root.tensor.shape != (1,) or not isinstance(begin[0], int):
        return None
    place = begin[0] + len(shape) if begin[0] < 0 else begin[0]
    return _as_value(shape[place]) if 0 <= place < len(shape) else None


@rule(is_op("gather")(is_op("shape_of")(_x), _number), EXACT)
def size_of_an_axis(found: Match) -> Expr | None:
    """`gather(shape_of(x), k)` is a range of one number, too."""
    shape, place = found[_x].tensor.shape, found.constant(_number).splat_value
    if found.constant(_number).tensor.size != 1 or not -len(shape) <= place < len(shape):
        return None
    value = _as_value(shape[place])
    if value is None or found.root.tensor.shape == (1,):
        return value
    return get_op("reshape")(value, shape=found.root.tensor.shape)


def _as_value(size: Dim) -> Expr | None:
    """Returns a size as a value `i64[1]`; None for a size that only the run knows."""
    if isinstance(size, int):
        return Constant(np.array([size], np.int64))
    if is_unknown(size):
        return None
    return get_op("arange")(start=size, stop=size + 1, step=1, dtype="i64")


# --- constant condition ---

_condition = is_splat()


@rule(is_op("where")(_condition, _a, _b), EXACT)
def where_of_constant(found: Match) -> Expr | None:
    """`where(true, a, b)` is `a`."""
    chosen = found[_a] if found.constant(_condition).splat_value else found[_b]
    if chosen.type == found.root.type:
        return chosen
    assert isinstance(found.root.type, TensorType)
    return get_op("broadcast_to")(chosen, shape=found.root.type.shape)


RULES: Final[tuple[Rule, ...]] = (
    neutral_factor,
    plus_zero,
    minus_zero,
    zero_of_unread_sign,
    same_type_again,
    nothing_repeated,
    nothing_added_or_left_out,
    reshape_of_reshape,
    transpose_of_transpose,
    swap_between_reshapes,
    slice_of_slice,
    slice_of_selected,
    transpose_that_moves_nothing,
    reduction_of_single_elements,
    clip_of_clip,
    relu_of_relu,
    negative_of_negative,
    cast_of_cast,
    divide_by_power_of_two,
    simple_power,
    inverse_root,
    one_over,
    reciprocal_of_root,
    one_of_the_sizes,
    size_of_an_axis,
    where_of_constant,
)
