"""NarrowIntegers: computes products and convolutions of quantized tensors on integers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, ClassVar, TypeAlias

import numpy as np

from clew.cost.convolution import (
    WINDOW,
    WINOGRAD_TILES,
    ConvLayer,
    direct_cycles,
    winograd_cycles,
)
from clew.cost.policy.convolutions import WINOGRAD_GAIN
from clew.cost.policy.precision import NEIGHBORS_TO_PAIR, ROWS_FOR_MATRIX_UNIT, ROWS_OF_BYTES
from clew.ir.expr import Attrs, Call, Constant, Expr
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.ir.types import integer_limits
from clew.ops.registry import Op, argument_references, get_op
from clew.passes.base import Pass, PassContext
from clew.passes.convolution.winograd import exact_tiles
from clew.passes.integer_bounds import integer_bounds
from clew.passes.precision.integer_operands import (
    HALF,
    SUM,
    Integers,
    across_columns,
    constant_of,
    depth_fits,
    in_range,
    integers_of,
    is_widened,
    known_values,
    number,
    pair_of,
    per_column,
    per_filter,
    per_row,
    reshaped,
    signed,
    signed_of_run,
    swapped,
    unless_empty,
    unturned,
    weight_of_pairs,
)
from clew.patterns.exactness import Exactness
from clew.support.dataclass import dataclass

Array = np.ndarray[Any, Any]
_Operands: TypeAlias = tuple[Integers, Integers]


@dataclass(frozen=True)
class NarrowIntegers(Pass):
    """Multiplies quantized operands as integers if the target has instructions for that; scales are
    applied to the sum.

    On targets with products of 8-bit integers, the sum is corrected for zero points. With
    `a = data - z` and `b = weight - y`, where z is one number per row and y one per column:
    `sum(a * b) = sum(data * weight) - z * sum(weight) - y * (sum(data) - K * z)`. Sums of the
    weight are constant; terms with a zero point of 0 are omitted. Weights become `i8`; data becomes
    `u8` if the target has no instruction for products of signed data. The padding of a convolution
    is made of zero points. Convolutions whose weight keeps its zero points, because the differences
    from them do not fit in `i8`, multiply pairs as below.

    Other x86 targets multiply pairs of `i16`. Zero points are subtracted from both operands first,
    so sums need no correction and padding is 0. Some of these can also add products of bytes in
    pairs of 16 bits. Operands stay bytes (`pairs_fit`) if the weights are so small that 16 bits
    hold the sum of any two products of a result, unless Winograd's algorithm on `i16` is expected
    to be faster.

    Matrices that a run computes, such as the keys of attention, are multiplied likewise, in batches
    too: the sums of their columns are computed in the run.

    Before:
        %1 = subtract(cast(%x, "i32"), 3); %2 = nn.matmul(%1, cast(w, "i32"))
    After:
        %3: i32[...] = nn.dense(%x, w, weight_layout="KN"); %4 = add(%3, w'), w' = -3 * sum(w)

    and with scales

        %3 = nn.matmul(dequantize(%x, 0.5, 3), dequantize(w, 0.25))

    becomes `dequantize(%4, 0.125)`. A convolution on pairs of `i16`:

        %2: f32[...] = nn.conv2d(dequantize(%x, 0.5, 3), dequantize(w, s'))
    becomes
        %1: i16[...] = cast(subtract(cast(%x, "i32"), 3), "i16")
        %2 = dequantize(nn.conv2d(%1, w), 0.5 * s')

    Microcontrollers multiply bytes without such instructions: operands take a quarter of the memory
    that widened ones would take.

    With other backends, the pass runs twice. Before regions are formed, data stay signed or
    unsigned (`signed`), whatever this CPU multiplies; afterwards, products left to it get its form.

    Preconditions: runs before constants are folded, which would hide how a weight was quantized.
    Non-goals: pairs of bytes for convolutions of signals or volumes; except on microcontrollers,
    convolutions of fewer than `least_neighbors` input channels of a group and columns of the
    filter that are not depthwise; scales of an operand that vary along the depth; floats whose sums
    of integers might not fit 32 bits.
    """

    opt_level: ClassVar[int] = 2
    exactness: ClassVar[Exactness] = Exactness(
        "integers", "products of dequantized numbers are summed exactly, and scaled once"
    )

    least_neighbors: int = NEIGHBORS_TO_PAIR
    signed: bool = False

    def run(self, module: Module, ctx: PassContext) -> Module:
        if ctx.target is None:
            return module
        return _Narrower(self, ctx).rewrite_module(module)


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
        data, weight = map(integers_of, new.args)
        if data is None or weight is None or not data.value.tensor.rank:
            return new
        values = constant_of(weight.value)
        with self.covers(old, *old.args):
            if values is None or values.tensor.rank != 2:
                product = self._of_run(old, data, weight, layout)
            else:
                weight = replace(weight, value=values)
                product = self._product(old, data, weight, layout)
                if product is not None:
                    self._multiplied_as(old, data, weight)
        return product or new

    def _product(self, old: Call, data: Integers, weight: Integers, layout: str) -> Expr | None:
        """Returns the product on integers, or None if it gains nothing."""
        column = 0 if layout == "NK" else 1
        columns = weight.value.tensor.shape[column]
        y, scale = (per_column(p, column, columns) for p in (weight.zero, weight.scale))
        rows = [per_row(p, data.value.tensor.rank) for p in (data.zero, data.scale)]
        if None in (y, scale, *rows):
            self._ctx.remark(old, "not a product of integers: parameters vary along the depth")
            return None
        if old.tensor.dtype != SUM and not depth_fits(weight.value.tensor.shape[1 - column]):
            self._ctx.remark(old, "not a product of integers: 32 bits might not hold its sums")
            return None
        weight = Integers(weight.value, *(unless_empty(p) for p in (y, scale)))
        data = Integers(data.value, *(unless_empty(p) for p in rows))
        total: Expr
        pairs = self._multiplies_pairs(data.value, weight.value)
        short = self._short(data, weight, column) if pairs else None
        if short is not None:
            data, weight = short
            dense = get_op("nn.dense")(
                data.value, weight.value, weight_layout=layout, pairs_fit=True
            )
            total = _corrected(dense, data, weight, 1 - column)
        elif pairs:
            if not (in_range(data.zero) and in_range(weight.zero)):
                self._ctx.remark(old, "not a product of integers: zero points may not be of 8 bits")
                return None
            factors = weight_of_pairs(weight, (columns, 1) if column == 0 else ())
            if self._reads_bytes(data.value, weight):
                factors = weight.value
            operands = pair_of(data), factors
            total = get_op("nn.dense")(*operands, weight_layout=layout)
        else:
            weight = signed(weight, column)
            data = self._multiplied(data)
            if not self._multiplies(data.value, weight.value):
                return None
            dense = get_op("nn.dense")(data.value, weight.value, weight_layout=layout)
            total = _corrected(dense, data, weight, 1 - column)
        return _scaled(total, old.tensor.dtype, [data.scale, weight.scale])

    def _of_run(self, old: Call, data: Integers, weight: Integers, layout: str) -> Expr | None:
        """Returns the product of integers with matrices that a run computes, or None if it gains
        nothing. Their columns are summed in the run, too.
        """
        left, right = data.value.tensor, weight.value.tensor
        if min(left.rank, right.rank) < 2 or self._options.signed or self._stores_bytes():
            return None
        rows = [per_row(p, left.rank) for p in (data.zero, data.scale)]
        turned = layout == "NK"
        columns = [across_columns(p, right.rank, turned) for p in (weight.zero, weight.scale)]
        if None in (*rows, *columns):
            self._ctx.remark(old, "not a product of integers: parameters vary along the depth")
            return None
        if old.tensor.dtype != SUM and not depth_fits(left.shape[-1]):
            self._ctx.remark(old, "not a product of integers: 32 bits might not hold its sums")
            return None
        data = Integers(data.value, *map(unless_empty, rows))
        weight = Integers(weight.value, *map(unless_empty, columns))
        matrix = unturned(weight.value)
        turned = turned != (matrix is not weight.value)
        weight = replace(weight, value=matrix)
        if self._multiplies_pairs(data.value, matrix):
            if not (in_range(data.zero) and in_range(weight.zero)):
                self._ctx.remark(old, "not a product of integers: zero points may not be of 8 bits")
                return None
            zero = weight.zero if weight.zero is None or not turned else swapped(weight.zero)
            factors = swapped(pair_of(replace(weight, zero=zero)), needed=turned)
            total: Expr = get_op("nn.matmul")(pair_of(data), factors)
        else:
            data, weight = self._multiplied(data), signed_of_run(weight)
            if not self._multiplies(data.value, weight.value):
                return None
            factors = swapped(weight.value, needed=turned)
            total = _corrected_by_run(data, replace(weight, value=factors))
        self._multiplied_as(old, data, weight)
        return _scaled(total, old.tensor.dtype, [data.scale, weight.scale])

    def _convolution(self, old: Call, new: Call) -> Expr:
        """Returns a convolution on integers if both operands are quantized, else the call."""
        attrs, (image, filters) = new.attrs, new.args[:2]
        spatial = new.op.traits.convolves  # type: ignore[union-attr]
        plain = attrs.data_layout == f"NC{spatial}" and attrs.weight_layout == f"OI{spatial}"
        if not plain or attrs.out_layout or attrs.get("out_dtype", ""):
            return new
        channels, inner, *taps = filters.tensor.shape
        if not isinstance(inner, int) or not self._takes(inner, taps, attrs.groups):
            return new
        data, weight = integers_of(image), integers_of(filters)
        values = None if weight is None else constant_of(weight.value)
        if data is None or weight is None or values is None:
            return new
        weight = replace(weight, value=values)
        around = (1,) * len(taps)
        given = [per_row(p, 0) for p in (data.zero, data.scale)]
        found = [per_filter(p, channels, len(taps)) for p in (weight.zero, weight.scale)]
        if None in given or None in found:
            self._ctx.remark(old, "not a convolution of integers: parameters vary along channels")
            return new
        data = Integers(data.value, *map(unless_empty, given))
        weight = Integers(weight.value, *map(unless_empty, found))
        depth = math.prod((inner, *taps)) if all(isinstance(n, int) for n in taps) else None
        if new.tensor.dtype != SUM and not depth_fits(depth):
            self._ctx.remark(old, "not a convolution of integers: 32 bits might not hold its sums")
            return new
        if not (in_range(data.zero) and in_range(weight.zero)):
            self._ctx.remark(old, "not a convolution of integers: zero points may not be of 8 bits")
            return new
        with self.covers(old, *old.args):
            if self._multiplies_pairs(data.value, weight.value):
                total = self._of_short(new, data, weight)
            else:
                total = self._of_bytes(new, data, weight)
            if total is None and self._has_pairs():
                operands = pair_of(data), weight_of_pairs(weight, (channels, 1, *around))
                total = Call(new.op, operands, attrs)
            if total is None:
                self._ctx.remark(old, "not a convolution of integers: no instruction applies")
                return new
            self._multiplied_as(old, data, weight)
            scale = weight.scale
            if scale is not None and scale.tensor.rank:
                scale = reshaped(scale, (channels, *around))
            return _scaled(total, new.tensor.dtype, [data.scale, scale])

    def _multiplied_as(self, old: Call, data: Integers, weight: Integers) -> None:
        """Records which integers a product multiplies."""
        dtypes = f"{data.value.tensor.dtype} x {weight.value.tensor.dtype}"
        self._ctx.remark(old, f"multiplies integers, {dtypes}, and scales their sums")

    def _takes(self, inner: int, taps: Sequence[Any], groups: int) -> bool:
        """Whether kernels sum products of integers over this many channels in groups, and taps."""
        if self._stores_bytes() or (groups > 1 and inner == 1):
            return True
        return isinstance(taps[-1], int) and inner * taps[-1] >= self._options.least_neighbors

    def _of_bytes(self, new: Call, data: Integers, weight: Integers) -> Expr | None:
        """Returns the convolution of 8-bit integers, corrected for the data's zero point; None if
        there is no instruction for it, if the weight keeps a zero point, or if the data's dtype
        might not hold the zero points that pad it.
        """
        filters = signed(weight, 0)
        target = self._ctx.target
        assert target is not None
        if data.value.tensor.dtype == "i8" and not target.tile_shape("i8", "i8"):
            data = self._multiplied(data)
        if not self._multiplies(data.value, filters.value) or filters.zero is not None:
            return None
        return _of_stored(new, data, filters.value, new.attrs)

    def _of_short(self, new: Call, data: Integers, weight: Integers) -> Expr | None:
        """Returns the convolution of bytes whose products are added in pairs of 16 bits; None if
        these might not hold the sums, or if Winograd's algorithm on `i16` is expected to be faster.
        """
        if new.op_name != "nn.conv2d" or new.args[1].tensor.shape[1] == 1:
            return None
        short = self._short(data, weight, 0)
        if short is None or self._gains_by_transforms(new, pair_of(data), short[1]):
            return None
        return _of_stored(new, short[0], short[1].value, new.attrs.with_(pairs_fit=True))

    def _short(self, data: Integers, weight: Integers, column: int) -> _Operands | None:
        """Returns the operands as `u8` and `i8` if the target has an instruction that adds their
        products in pairs of 16 bits, and these hold the sum of any two products of a result.
        """
        target = self._ctx.target
        assert target is not None
        if not target.dot_lanes("u8", "i8", pairs_fit=True):
            return None
        weight, data = signed(weight, column), self._multiplied(data)
        bounds = integer_bounds(data.value)
        if weight.zero is not None or bounds is None or data.value.tensor.dtype != "u8":
            return None
        assert isinstance(weight.value, Constant)
        padding = None if data.zero is None else known_values(data.zero)
        most = max(bounds[1], 0 if padding is None else int(padding.max(initial=0)))
        fits = _pairs_fit(np.moveaxis(weight.value.data, column, 0), most)
        return (data, weight) if fits else None

    def _gains_by_transforms(self, conv: Call, image: Expr, weight: Integers) -> bool:
        """Whether Winograd's algorithm is exact on an image of `i16`, and is expected to be faster
        than products of bytes.
        """
        target, attrs = self._ctx.target, conv.attrs
        assert target is not None
        assert isinstance(weight.value, Constant)
        outer, inner, *kernel = weight.value.tensor.concrete
        if kernel != [WINDOW, WINDOW] or attrs.strides != (1, 1) or not conv.tensor.is_static:
            return False
        tiles = exact_tiles(image, weight.value.data, WINOGRAD_TILES)
        lanes = target.vector_lanes(image.tensor.dtype)
        inner, outer = (-(-n // lanes) * lanes for n in (inner, outer))
        batch, _, height, width = conv.tensor.concrete
        pairs = ConvLayer(batch, inner, outer, height, width, dtype=image.tensor.dtype)
        direct = direct_cycles(replace(pairs, dtype="u8", pairs_fit=True), target)
        cycles = [winograd_cycles(pairs, tile, target, attrs.dilation) for tile in tiles]
        return WINOGRAD_GAIN * min(cycles, default=math.inf) <= direct

    def _multiplies_pairs(self, data: Expr, weight: Expr) -> bool:
        """Whether the target multiplies pairs of `i16`, but no 8-bit integers."""
        target = self._ctx.target
        assert target is not None
        signs = data.tensor.dtype, "i8"
        bytes_ = target.dot_lanes("u8", "i8") or target.tile_shape(*signs)
        return not bytes_ and self._has_pairs()

    def _reads_bytes(self, data: Expr, weight: Integers) -> bool:
        """Whether a kernel widens the weight itself: reading it takes longer than multiplying so
        few rows, or a free number of rows, which may be 1.
        """
        shape = data.tensor.shape[:-1]
        few = math.prod(n for n in shape if isinstance(n, int)) <= ROWS_OF_BYTES
        return few and weight.zero is None and weight.value.tensor.dtype == "i8"

    def _has_pairs(self) -> bool:
        """Whether the target multiplies pairs of `i16`, and the options allow it."""
        target = self._ctx.target
        assert target is not None
        return not self._options.signed and bool(target.dot_lanes("i16", "i16"))

    def _multiplied(self, data: Integers) -> Integers:
        """Returns the data in the signedness that the target multiplies with a signed weight."""
        target, shape = self._ctx.target, data.value.tensor.shape
        assert target is not None
        if self._options.signed:
            return data
        rows = shape[-2] if len(shape) > 1 else 1
        many = (
            isinstance(rows, int) and rows >= ROWS_FOR_MATRIX_UNIT and target.tile_shape("i8", "i8")
        )
        if (
            data.value.tensor.dtype == "u8"
            or many
            or not target.dot_lanes("u8", "i8", pairs_fit=True)
        ):
            return data
        half = number(HALF)
        wide = get_op("add")(get_op("cast")(data.value, dtype=SUM), half)
        zero = half if data.zero is None else get_op("add")(data.zero, half)
        return Integers(get_op("cast")(wide, dtype="u8"), zero, data.scale)

    def _stores_bytes(self) -> bool:
        """Whether kernels widen bytes as they read them, because memory is scarce."""
        target = self._ctx.target
        assert target is not None
        return target.is_microcontroller

    def _multiplies(self, data: Expr, weight: Expr) -> bool:
        target, dtypes = self._ctx.target, (data.tensor.dtype, weight.tensor.dtype)
        assert target is not None
        if self._options.signed or self._stores_bytes():
            return dtypes in (("i8", "i8"), ("u8", "i8"))
        return bool(target.dot_lanes(*dtypes) or target.tile_shape(*dtypes))


def _of_stored(conv: Call, data: Integers, filters: Expr, attrs: Attrs) -> Expr | None:
    """Returns a convolution of stored integers, corrected for the data's zero point; None if the
    data's dtype might not hold the zero points that pad it.
    """
    image = data.value
    if data.zero is not None and any(attrs.padding):
        half = len(attrs.padding) // 2
        pads = (0, 0, *attrs.padding[:half], 0, 0, *attrs.padding[half:])
        padded = _padded(image, data.zero, pads)
        if padded is None:
            return None
        image, attrs = padded, attrs.with_(padding=(0,) * len(attrs.padding))
    total: Expr = Call(conv.op, [image, filters], attrs)
    if data.zero is not None:
        rank = filters.tensor.rank
        sums = _summed(filters, tuple(range(1, rank)), keepdims=False)
        each = reshaped(sums, (*sums.tensor.shape, *(1,) * (rank - 2)))
        total = get_op("subtract")(total, get_op("multiply")(each, data.zero))
    return total


def _padded(image: Expr, zero: Expr, pads: tuple[int, ...]) -> Expr | None:
    """Returns an image padded with its zero point; None if its dtype might not hold the zero point.

    If a run computes the zero point, it is subtracted, the difference is padded with 0, and the
    zero point is added again.
    """
    pad, dtype = get_op("pad"), image.tensor.dtype
    point = known_values(zero)
    if point is not None:
        return pad(image, pads=pads, value=float(point)) if in_range(zero, dtype) else None
    if not is_widened(zero, dtype):
        return None
    less = get_op("subtract")(get_op("cast")(image, dtype=SUM), zero)
    return get_op("cast")(get_op("add")(pad(less, pads=pads, value=0.0), zero), dtype=dtype)


def _pairs_fit(weight: Array, most: int) -> bool:
    """Whether 16 bits hold the sum of any two products of a result, with data from 0 to `most`;
    which ones are added first is decided later. `weight` has an axis of results, then others.
    """
    filters = weight.reshape(len(weight), -1)
    if not filters.shape[1] >= 2 or not filters.size:
        return True
    low, high = 2 * int(filters.min()), 2 * int(filters.max())
    if not (_fits_short(low * most) and _fits_short(high * most)):
        # The two lowest and highest weights of each result; others are of no help to a product.
        ordered = np.sort(filters, axis=1).astype(np.int32)
        low = int(np.minimum(ordered[:, :2], 0).sum(axis=1).min())
        high = int(np.maximum(ordered[:, -2:], 0).sum(axis=1).max())
    return _fits_short(low * most) and _fits_short(high * most)


def _fits_short(number: int) -> bool:
    low, high = integer_limits("i16")
    return low <= number <= high


def _scaled(total: Expr, dtype: str, scales: Sequence[Expr | None]) -> Expr:
    """Returns a sum of integer products in the dtype of the result, times the scales."""
    factors = [scale for scale in scales if scale is not None]
    if dtype == SUM:
        return total
    if dtype == "f32" and factors:
        return get_op("dequantize")(total, reduce(get_op("multiply"), factors))
    result: Expr = get_op("cast")(total, dtype=dtype)
    return get_op("multiply")(result, reduce(get_op("multiply"), factors)) if factors else result


def _corrected(dense: Expr, data: Integers, weight: Integers, depth_axis: int) -> Expr:
    """Returns a product of stored integers, corrected for their zero points."""
    multiply, subtract = get_op("multiply"), get_op("subtract")
    total = dense
    if data.zero is not None:
        sums = _summed(weight.value, (depth_axis,), keepdims=False)
        total = subtract(total, multiply(data.zero, sums))
    if weight.zero is not None:
        axis = data.value.tensor.rank - 1
        sums = _summed(data.value, (axis,), keepdims=data.value.tensor.rank > 1)
        if data.zero is not None:
            depth = weight.value.tensor.shape[depth_axis]
            sums = subtract(sums, multiply(data.zero, number(depth)))
        total = subtract(total, multiply(sums, weight.zero))
    return total


def _corrected_by_run(data: Integers, weight: Integers) -> Expr:
    """Returns a product of stored integers with matrices of a run, corrected for zero points."""
    matmul, multiply, subtract = get_op("nn.matmul"), get_op("multiply"), get_op("subtract")
    total: Expr = matmul(data.value, weight.value)
    *_, depth = data.value.tensor.shape
    if data.zero is not None:
        # A row of ones sums the columns, on the copy that the product packs anyway.
        ones = get_op("full")(shape=(1, depth), value=1.0, dtype=data.value.tensor.dtype)
        total = subtract(total, multiply(data.zero, matmul(ones, weight.value)))
    if weight.zero is not None:
        wide = get_op("cast")(data.value, dtype=SUM)
        less = wide if data.zero is None else subtract(wide, data.zero)
        sums = get_op("sum")(less, axes=(data.value.tensor.rank - 1,), keepdims=True)
        total = subtract(total, multiply(sums, weight.zero))
    return total


def _summed(value: Expr, axes: tuple[int, ...], *, keepdims: bool) -> Expr:
    return get_op("sum")(get_op("cast")(value, dtype=SUM), axes=axes, keepdims=keepdims)
