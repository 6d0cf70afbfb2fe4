"""Rules of CanonicalizeOps for single operators."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from clew.cost.policy.folding import POOLING_GAIN, ROWS_OF_TEXTS_BYTES, SPLIT_PARTS
from clew.ir.dims import Dim, product
from clew.ir.expr import Call, Constant, Expr, Tuple, TupleGetItem
from clew.ir.types import TensorType, is_float, is_native, memory_bytes, to_numpy
from clew.ops.registry import Op, get_op
from clew.passes.simplify.simplify_rules import (
    nothing_repeated,
    reshape_of_reshape,
    same_type_again,
)
from clew.patterns import (
    Match,
    Rule,
    is_call,
    is_constant,
    is_op,
    is_tuple_get_item,
    rule,
    wildcard,
)
from clew.patterns.exactness import EXACT, REORDERED, Exactness

_x, _c = wildcard(), is_constant()


@rule(is_op("nn.matmul")(_x, _c), REORDERED)
def matmul_with_constant_matrix(found: Match) -> Expr | None:
    """A product with one constant matrix is a dense layer; leading axes of size 1 are dropped."""
    data, matrix = found[_x], found[_c]
    shape = matrix.tensor.shape
    if len(shape) < 2 or any(d != 1 for d in shape[:-2]) or data.tensor.rank < len(shape):
        return None
    if len(shape) > 2:
        matrix = get_op("reshape")(matrix, shape=shape[-2:])
    return get_op("nn.dense")(data, matrix, weight_layout="KN")


_columns = wildcard()
_rows = is_op("transpose")(_columns)


@rule(is_op("nn.matmul")(_x, _rows).has_attr(b_layout="KN"), REORDERED)
def matmul_with_turned_matrix(found: Match) -> Expr | None:
    """A product with one transposed matrix is a dense layer, which needs no transpose."""
    data, matrix = found[_x], found[_columns]
    if matrix.tensor.rank != 2 or data.tensor.rank < 2:
        return None
    if found.call(_rows).attrs.axes != (1, 0) or isinstance(matrix, Constant):
        return None
    if data.tensor.dtype != matrix.tensor.dtype:  # a dense layer's weight may be narrower
        return None
    return get_op("nn.dense")(data, matrix, weight_layout="NK", out_dtype=found.attrs.out_dtype)


def _commutative_with_constant_first(node: Expr) -> bool:
    return (
        isinstance(node, Call)
        and isinstance(node.op, Op)
        and node.op.commutative
        and len(node.args) == 2
        and isinstance(node.args[0], Constant)
        and not isinstance(node.args[1], Constant)
        and (node.op.commutes(node.args[0].tensor.dtype) or _has_no_zero(node.args[0]))
    )


def _has_no_zero(constant: Constant) -> bool:
    return constant.splat_value != 0 if constant.is_splat else bool((constant.data != 0).all())


@rule(is_call().check(_commutative_with_constant_first), EXACT)
def constant_second(found: Match) -> Expr | None:
    """`c + x` is `x + c`. A maximum with a constant that has zeros stays: of two zeros, it returns
    the second.
    """
    call = found.root
    assert isinstance(call, Call)
    return call.with_args((call.args[1], call.args[0]))


@rule(is_op("subtract")(_x, _c), EXACT)
def subtract_constant(found: Match) -> Expr | None:
    """`x - c` is `x + (-c)` for signed numbers; the least integer is its own negative."""
    constant = found.constant(_c)
    dtype = constant.tensor.dtype
    if isinstance(found[_x], Constant) or not (is_float(dtype) or dtype.startswith("i")):
        return None
    if constant.is_splat and constant.data.size:
        one = -constant.data.flat[:1]
        negated = Constant.splat(one.item(), constant.tensor)
    else:
        negated = Constant((-constant.data).astype(to_numpy(dtype)), name=constant.name)
    return get_op("add")(found[_x], negated)


def _over_image(axes: tuple[int, ...]) -> bool:
    return tuple(sorted(a % 4 for a in axes)) == (2, 3)


@rule(is_op("mean")(_x.has_rank(4)).has_attr(axes=_over_image), REORDERED)
def mean_over_image(found: Match) -> Expr | None:
    """The mean over height and width is a global average pool."""
    if not is_float(found[_x].tensor.dtype):
        return None
    pooled = get_op("nn.global_avg_pool2d")(found[_x])
    if found.attrs.keepdims:
        return pooled
    return get_op("reshape")(pooled, shape=pooled.tensor.shape[:2])


@rule(
    is_op("nn.max_pool2d")(_x),
    Exactness("integers, and floats but zeros", "which of two zeros is the maximum"),
)
def max_pool_of_long_windows(found: Match) -> Expr | None:
    """The maximum of a window is the maximum of its lines' maxima, which adjacent windows share."""
    attrs = found.attrs
    *others, width = attrs.kernel
    lines = math.prod(others)
    apart = lines * width
    in_turn = math.prod(attrs.strides[:-1]) * width + lines
    if apart <= POOLING_GAIN * in_turn:
        return None
    ones, axes = (1,) * len(others), len(attrs.kernel)
    low, high = attrs.padding[:axes], attrs.padding[axes:]
    none = (0,) * len(others)
    of_lines = attrs.with_(
        kernel=(*ones, width),
        strides=(*ones, attrs.strides[-1]),
        dilation=(*ones, attrs.dilation[-1]),
        padding=(*none, low[-1], *none, high[-1]),
    )
    of_windows = attrs.with_(
        kernel=(*others, 1),
        strides=(*attrs.strides[:-1], 1),
        dilation=(*attrs.dilation[:-1], 1),
        padding=(*low[:-1], 0, *high[:-1], 0),
    )
    pool = found.root.op  # type: ignore[attr-defined]
    return Call(pool, [Call(pool, [found[_x]], of_lines)], of_windows)


_keys, _values, _default = is_constant(), is_constant(), is_constant()
_lookup = is_op("text.lookup")(_x, _keys, _values, _default).used_once()
_numbers = is_op("reshape")(_lookup).used_once()


@rule(is_op("cast")(is_op("equal")(_numbers, _c)), EXACT)
def rows_of_texts(found: Match) -> Expr | None:
    """The one-hot rows of the numbers of texts are looked up, not the numbers: there is no kernel
    besides the lookup.
    """
    numbers, categories = found.constant(_values).data, found.constant(_c).data
    lookup, dtype = found.call(_lookup), found.root.tensor.dtype
    if numbers.ndim != 1 or categories.ndim != 1 or not is_native(found.root.type):
        return None
    if found.call(_numbers).tensor.shape != (*lookup.tensor.shape, 1):
        return None
    if (len(numbers) + 1) * len(categories) * memory_bytes(dtype) > ROWS_OF_TEXTS_BYTES:
        return None
    known, default = (
        np.equal.outer(numbers, categories),
        found.constant(_default).data == categories,
    )
    tables = [Constant(rows.astype(to_numpy(dtype))) for rows in (known, default)]
    return lookup.with_args([found[_x], found[_keys], *tables])


_surrounded = is_op("pad")(_x)
_turned = is_op("transpose")(_surrounded)
_whole = is_op("cast")(_surrounded | _turned)
_zero = is_constant()
_centered = is_op("add", "subtract")(_whole, _zero)
_short = is_op("cast")(_centered)
_image = _surrounded | _turned | _whole | _centered | _short


@rule(is_op("nn.conv1d", "nn.conv2d", "nn.conv3d")(_image, _c), REORDERED)
def zeros_around_an_image(found: Match) -> Expr | None:
    """Zeros padded around an image, or zero points around a quantized one, become padding of the
    convolution, which is not stored. The products of infinite weights and zeros would be lost, so
    all weights must be finite.
    """
    attrs, image = found.attrs, found[_x]
    pads = found.call(_surrounded).attrs
    rank = image.tensor.rank
    axes = found.call(_turned).attrs.axes if _turned in found else range(rank)
    before, after = ([pads.pads[side + axis] for axis in axes] for side in (0, rank))
    sides = (*before[2:], *after[2:])
    if any((*before[:2], *after[:2])) or not all(isinstance(n, int) and n >= 0 for n in sides):
        return None
    plain = attrs.data_layout == "NC" + "DHW"[2 - rank :] and not attrs.live
    plain &= attrs.weight_layout.isupper()  # blocked convolutions have their zeros by choice
    if not plain or pads.mode != "constant" or not _pads_with_zeros(found, pads.value):
        return None
    weight = found.constant(_c)
    if is_float(weight.tensor.dtype) and not np.isfinite(weight.data.astype(np.float32)).all():
        return None
    for step in (_turned, _whole, _centered, _short):
        if step in found:
            call = found.call(step)
            image = Call(call.op, [image, *call.args[1:]], call.attrs)
    padding = tuple(a + b for a, b in zip(attrs.padding, sides, strict=True))
    call = found.root  # type: ignore[assignment]
    return Call(call.op, [image, call.args[1]], attrs.with_(padding=padding))


def _pads_with_zeros(found: Match, value: float) -> bool:
    """Whether a padding value is 0 when it reaches the convolution."""
    if _centered not in found:
        return value == 0
    offset = found.constant(_zero).data
    negated = offset if found.call(_centered).op_name == "subtract" else -offset
    return bool(np.all(negated == value)) and offset.size == 1


_split = is_op("split")(_x)


@rule(_split, EXACT)
def split_into_many(found: Match) -> Expr | None:
    """Equal parts inside rows become neighbors in memory first. Each is then a view, and kernels
    that read them differ in nothing, so that one is compiled for all parts.
    """
    x, sizes, shape = found[_x], found.attrs.sizes, found[_x].tensor.shape
    axis = found.attrs.axis % len(shape)
    lead, rest = shape[:axis], shape[axis + 1 :]
    runs = [(size, len(list(equal))) for size, equal in itertools.groupby(sizes)]
    if len(sizes) < SPLIT_PARTS * len(runs) or product(lead) == 1 or sum(sizes) != shape[axis]:
        return None
    parts: list[Expr] = []
    begin: Dim = 0
    for size, count in runs:
        end = begin + size * count
        run = get_op("slice")(x, begin=(begin,), end=(end,), axes=(axis,)) if runs[1:] else x
        begin = end
        blocks = get_op("reshape")(run, shape=(*lead, count, size, *rest))
        order = (axis, *range(axis), *range(axis + 1, len(shape) + 1))
        rows = get_op("transpose")(blocks, axes=order)
        for n in range(count):
            row = get_op("slice")(rows, begin=(n,), end=(n + 1,), axes=(0,))
            parts.append(get_op("reshape")(row, shape=(*lead, size, *rest)))
    return Tuple(parts)


@rule(is_tuple_get_item(_split), EXACT)
def part_of_split(found: Match) -> Expr | None:
    """A part of a split is a slice, which fuses into what follows, unless only a call shows that
    the parts make up the axis.
    """
    assert isinstance(found.root, TupleGetItem)
    attrs, index = found.call(_split).attrs, found.root.index
    if sum(attrs.sizes) != found[_x].tensor.shape[attrs.axis]:
        return None
    begin: Dim = sum(attrs.sizes[:index])
    axis = attrs.axis % found[_x].tensor.rank
    end = begin + attrs.sizes[index]
    return get_op("slice")(found[_x], begin=(begin,), end=(end,), axes=(axis,))


# --- reshapes move before dense layers, where they meet the reshape to a matrix and vanish ---

_weight = wildcard()
_dense = is_op("nn.dense")(_x, _weight)
_biased = is_op("add")(_dense.used_once(), _c)


@rule(is_op("reshape")(_dense.used_once()) | is_op("reshape")(_biased.used_once()), EXACT)
def reshape_of_dense(found: Match) -> Expr | None:
    """Reshapes the rows before the layer, which takes data of any rank."""
    layer, data = found.call(_dense), found[_x]
    assert isinstance(found.root.type, TensorType)
    shape = found.root.type.shape
    if not shape or shape[-1] != layer.tensor.shape[-1]:
        return None
    rows = get_op("reshape")(data, shape=(*shape[:-1], data.tensor.shape[-1]))
    result = Call(layer.op, (rows, layer.args[1]), layer.attrs)
    if _biased not in found:
        return result
    bias = found.constant(_c)
    if bias.data.size > 1 and bias.data.size != bias.data.shape[-1]:
        return None
    vector = get_op("reshape")(bias, shape=(bias.data.size,))
    return get_op("add")(result, vector)


# --- assignments to slices, which exporters write as scatters ---

_updates = wildcard()


@rule(is_op("scatter_nd")(_x, _c, _updates).has_attr(reduction="none"), EXACT)
def scatter_to_a_box(found: Match) -> Expr | None:
    """Updates of all positions in a box, in order, are the box padded to the target's shape, with
    the target's values outside the box.
    """
    target, updates = found[_x], found[_updates]
    if not (target.tensor.is_static and updates.tensor.is_static):
        return None
    shape = target.tensor.concrete
    box = _box_of(found.constant(_c).data, shape)
    if box is None or target.tensor.dtype == "bool":
        return None
    low, high = box
    depth = len(low)
    sides = [h - n for n, h in zip(low, high, strict=True)]
    block = get_op("reshape")(updates, shape=(*sides, *shape[depth:]))
    if all(side == size for side, size in zip(sides, shape, strict=False)):
        return block
    rest = (0,) * (len(shape) - depth)
    after = (size - h for size, h in zip(shape, high, strict=False))
    padded = get_op("pad")(block, pads=(*low, *rest, *after, *rest))
    inside = np.ones((1,) * len(shape), bool)
    for axis, (n, h) in enumerate(zip(low, high, strict=True)):
        if h - n < shape[axis]:
            places = np.arange(shape[axis])
            within = (n <= places) & (places < h)
            inside = inside & within.reshape([-1 if a == axis else 1 for a in range(len(shape))])
    return get_op("where")(Constant(inside), padded, target)


def _box_of(
    places: np.ndarray[Any, Any], shape: Sequence[int]
) -> tuple[list[int], list[int]] | None:
    """Returns the start and end of the box that positions `i64[..., depth]` cover, each position
    once and in row-major order; None if they cover anything else or are out of range.
    """
    if not places.size:
        return None
    rows = places.reshape(-1, places.shape[-1]).astype(np.int64)
    sizes = np.array(shape[: rows.shape[1]], np.int64)
    rows = np.where(rows < 0, rows + sizes, rows)
    low, high = rows.min(0), rows.max(0) + 1
    sides = (high - low).tolist()
    if (low < 0).any() or (high > sizes).any() or math.prod(sides) != len(rows):
        return None
    order = np.ravel_multi_index(tuple((rows - low).T), sides)
    if (order != np.arange(len(rows))).any():
        return None
    return low.tolist(), high.tolist()


RULES: Final[tuple[Rule, ...]] = (
    matmul_with_constant_matrix,
    matmul_with_turned_matrix,
    constant_second,
    subtract_constant,
    mean_over_image,
    max_pool_of_long_windows,
    zeros_around_an_image,
    rows_of_texts,
    split_into_many,
    part_of_split,
    scatter_to_a_box,
    reshape_of_dense,
    reshape_of_reshape,
    nothing_repeated,
    same_type_again,
)
