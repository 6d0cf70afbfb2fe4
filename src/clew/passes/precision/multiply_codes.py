"""MultiplyCodes: products with weights of a few bits, which stay packed in memory."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np

from clew.cost.policy.layouts import VECTORS_OF_CODE_PANELS
from clew.cost.policy.precision import (
    CODES_PACKED_AT_ONCE,
    CODES_TO_KEEP,
    MOST_BLOCK_OF_CODES,
    ROWS_TO_WIDEN_CODES,
)
from clew.cost.products import multiply_adds_per_cycle
from clew.ir.dims import product
from clew.ir.expr import Call, Constant, Expr
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.ir.types import NARROW_FLOATS, TensorType, bits
from clew.ops.math.dense_codes import (
    codes_of_row,
    pack_codes,
    panels_of_rows,
)
from clew.ops.registry import Op, argument_references, get_op
from clew.passes.base import Pass, PassContext
from clew.passes.precision.integer_operands import Array, constant_of, known_values, reshaped
from clew.patterns.exactness import Exactness
from clew.support.arrays import aligned_empty
from clew.support.dataclass import dataclass

_INTEGERS: Final = ("i8", "u8", "i4", "u4", "i2", "u2")
_DEQUANTIZING: Final = ("dequantize", "dequantize_offset")
_FLOATS: Final = ("f32", *NARROW_FLOATS)


@dataclass(frozen=True)
class MultiplyCodes(Pass):
    """Multiplies floats by weights of 2, 4 or 8 bits without widening these in memory.

    The data are rounded to `i16` in blocks along the depth, each with its own step, and
    multiplied as integers by the codes, which the kernel unpacks in registers. Scales are applied
    to the sums over blocks. A product of one row, as of a decoder that generates text, takes the
    time that its weights take to load, so fewer bits make it faster.

    Before:
        %1 = dequantize(w: i4[4096, 4096], s: f32[4096, 128], axis=1, block=32)
        %2 = nn.dense(%x, %1)
    After:
        %1 = block_steps(%x, block=32); %2 = round_blocks(%x, %1, block=32)
        %3 = nn.dense_codes(%2, %1, w': i16[128, 512, 32, 2], s': f16[128, 128, 32], bits=4)

    With `parts=2`, data are rounded to two `i16` and keep the precision of `f32`. One part rounds
    to 1 / 65534 of the largest number in the block. Scales become `f16` if that is exact. A block
    of the weight of more than `most_block` elements becomes several with the same scale. Offsets
    of blocks (`dequantize_offset`) are multiplied by the sums of the data.

    Weights of fewer than `least_weights` elements are left to FoldConstant, which widens them; so
    are those of layers with at least `many_rows` rows, if their number is known and the target
    multiplies floats (`dtype`) faster than all parts, as a matrix unit does.

    Preconditions: runs before constants are folded, which would widen the weight. Non-goals:
    convolutions; scales that vary otherwise than by column and block; zero points that are floats.
    """

    opt_level: ClassVar[int] = 2
    exactness: ClassVar[Exactness] = Exactness(
        "none", "the order of sums; data are split into narrower parts", "level 2 and `precision=`"
    )

    parts: int = 2
    dtype: str = "f32"
    least_weights: int = CODES_TO_KEEP
    most_block: int = MOST_BLOCK_OF_CODES
    many_rows: int = ROWS_TO_WIDEN_CODES

    def run(self, module: Module, ctx: PassContext) -> Module:
        unit = ctx.target is not None and ctx.target.dot_lanes("i16", "i16")
        return _Multiplier(self, ctx).rewrite_module(module) if unit else module


@dataclass(frozen=True)
class _Weight:
    """A weight as codes: `scale * (code - zero) + offset`. `by_columns`: whether its axes are
    `[N, K]`, and `block` is the number of elements along K with one scale.
    """

    codes: Constant
    scale: Expr
    zero: Expr | None
    offset: Expr | None
    block: int
    by_columns: bool

    @property
    def shape(self) -> tuple[int, int]:
        """N and K."""
        first, second = self.codes.tensor.concrete
        return (first, second) if self.by_columns else (second, first)

    @property
    def bits(self) -> int:
        """The bits of a code."""
        return bits(self.codes.tensor.dtype)

    def rows(self, parameter: Expr) -> Array | None:
        """Returns a parameter as `[N, blocks]`; None if it is computed or of another form."""
        values = known_values(parameter)
        if values is None or values.ndim > 2:
            return None
        columns, depth = self.shape
        values = values.reshape((1,) * (2 - values.ndim) + values.shape)
        values = values if self.by_columns else values.T
        blocks = -(-depth // self.block)
        if values.shape[0] not in (1, columns) or values.shape[1] not in (1, blocks):
            return None
        return np.broadcast_to(values, (columns, blocks))

    def by_column(self, values: Array) -> Array:
        """Returns codes as `[N, K]`."""
        return values if self.by_columns else values.T


class _Multiplier(Rewriter):
    def __init__(self, options: MultiplyCodes, ctx: PassContext) -> None:
        super().__init__()
        self._options = options
        self._ctx = ctx
        self._rounded: dict[tuple[int, int, int, int], tuple[Expr, Expr]] = {}

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        multiplies = isinstance(new.op, Op) and new.op.traits.product
        if not multiplies or argument_references(new.attrs):
            return new
        layout = new.attrs.get("weight_layout", "KN")
        if layout not in ("KN", "NK") or new.attrs.get("parts", 1) != 1:
            return new
        data, operand = new.args
        weight = _codes_of(operand, by_columns=layout == "NK")
        if weight is None or data.tensor.dtype not in _FLOATS or not data.tensor.rank:
            return new
        with self.covers(old, *old.args):
            reason, made = self._product(new, data, weight)
        if reason:
            self._ctx.remark(old, f"its weight is widened: {reason}")
        return made

    def _product(self, call: Call, data: Expr, weight: _Weight) -> tuple[str, Expr]:
        """Returns the product of integers; or why there is none, and the call."""
        options, (columns, depth) = self._options, weight.shape
        if columns * depth < options.least_weights:
            return f"it has {columns * depth} elements", call
        parts = options.parts if data.tensor.dtype == "f32" else 1
        rows = product(tuple(data.tensor.shape[:-1]))
        if isinstance(rows, int) and rows >= options.many_rows and self._floats_gain(parts):
            return f"with {rows} rows, products of {options.dtype} are faster", call
        given = (weight.scale, weight.zero, weight.offset)
        scales, zeros, offsets = (None if p is None else weight.rows(p) for p in given)
        if (
            scales is None
            or (zeros is None) != (weight.zero is None)
            or ((offsets is None) != (weight.offset is None))
        ):
            return "its scales or zero points are not constants by column and block", call
        middle = 0 if weight.codes.tensor.dtype[0] == "i" else 1 << (weight.bits - 1)
        points = np.full((1, 1), -middle) if zeros is None else zeros.astype(np.int32) - middle
        if offsets is not None and middle:
            offsets, points = offsets + scales.astype(np.float32) * middle, np.zeros((1, 1), "i4")
        known = (int(points.max()), int(points.min())) == (0, 0)
        most = min(options.most_block, _most_block(weight.bits, centered=known))
        block = _block_in(weight.block, most, codes_of_row(weight.bits))
        if not block:
            return f"blocks of {weight.block} are not whole words of {weight.bits} bits", call
        target = self._ctx.target
        assert target is not None
        width = VECTORS_OF_CODE_PANELS * target.dot_lanes("i16", "i16")
        padded = -(-depth // weight.block) * weight.block
        rounded, steps = self._data(data, block, parts, padded)
        operands: list[Expr] = [
            rounded, steps, _packed(weight, middle, padded, width),
            _of_blocks(weight, _halved(scales), block, width, "scales"),
        ]  # fmt: skip
        if offsets is not None:
            numbers = offsets.astype(np.float32)
            operands.append(_sums(rounded, block))
            operands.append(_of_blocks(weight, numbers, block, width, "offsets"))
        elif not known:
            operands.append(_sums(rounded, block))
            points = np.broadcast_to(points, scales.shape).astype(np.int8)
            operands.append(_of_blocks(weight, points, block, width, "zeros"))
        result: Expr = get_op("nn.dense_codes")(
            *operands, bits=weight.bits, block=block, parts=parts, units=columns
        )
        if result.tensor.dtype != call.tensor.dtype:
            result = get_op("cast")(result, dtype=call.tensor.dtype)
        return "", result

    def _floats_gain(self, parts: int) -> bool:
        """Whether products of floats are faster than those of all parts of integers."""
        target, dtype = self._ctx.target, self._options.dtype
        assert target is not None
        integers = multiply_adds_per_cycle(target, "i16", "i16") / parts
        return multiply_adds_per_cycle(target, dtype, dtype) > integers

    def _data(self, data: Expr, block: int, parts: int, depth: int) -> tuple[Expr, Expr]:
        """Returns the data rounded to integers, and their steps, from one pair of calls for all
        readers.
        """
        key = data.id, block, parts, depth
        found = self._rounded.get(key)
        if found is None:
            whole = data
            if whole.tensor.dtype != "f32":
                whole = get_op("cast")(whole, dtype="f32")
            missing = depth - whole.tensor.shape[-1]
            if missing:
                rank = whole.tensor.rank
                pads = (*(0,) * (2 * rank - 1), missing)
                whole = get_op("pad")(whole, pads=pads, value=0.0)
            steps = get_op("block_steps")(whole, block=block)
            rounded = get_op("round_blocks")(whole, steps, block=block, parts=parts)
            found = self._rounded[key] = rounded, steps
        return found


def _codes_of(operand: Expr, *, by_columns: bool) -> _Weight | None:
    """Returns a weight as codes; None for other operands. It may be dequantized, then transposed or
    cast.
    """
    while isinstance(operand, Call) and operand.tensor.rank == 2:
        if operand.op_name == "cast" and operand.tensor.dtype in _FLOATS:
            operand = operand.args[0]
        elif operand.op_name == "transpose" and tuple(operand.attrs.axes or (1, 0)) == (1, 0):
            operand, by_columns = operand.args[0], not by_columns
        else:
            break
    if not isinstance(operand, Call) or operand.op_name not in _DEQUANTIZING:
        return None
    integers, scale, *rest = operand.args
    offset = rest.pop() if operand.op_name == "dequantize_offset" else None
    zero = rest[0] if rest else None
    codes = constant_of(integers) if integers.tensor.rank == 2 else None
    if codes is None:
        return None
    if codes.tensor.dtype not in _INTEGERS or operand.tensor.dtype not in _FLOATS:
        return None
    depth_axis = 1 if by_columns else 0
    depth = codes.tensor.concrete[depth_axis]
    block, axis = operand.attrs.block, operand.attrs.axis % 2
    if block and axis != depth_axis:
        return None
    return _Weight(codes, scale, zero, offset, block or depth, by_columns)


def _most_block(width: int, *, centered: bool) -> int:
    """Returns the most products of codes of so many bits, less a zero point unless they are
    centered, whose sum 32 bits hold.
    """
    largest = 1 << (width - 1 if centered else width)
    return ((1 << 31) - 1) // (largest * ((1 << 15) - 1))


def _block_in(block: int, most: int, row: int) -> int:
    """Returns the largest divisor of a block, of whole rows of words, of at most `most`; 0 if there
    is none.
    """
    sizes = range(min(block, most) // row * row, 0, -row)
    return next((size for size in sizes if block % size == 0), 0)


def _packed(weight: _Weight, middle: int, depth: int, width: int) -> Constant:
    """Returns the codes in panels of columns, less `middle`. A few panels are packed at a time, to
    need little memory besides the result.
    """
    columns, given = weight.shape
    shape = (-(-columns // width), depth // codes_of_row(weight.bits), width, 2)

    def make(data: Array) -> Array:
        packed = aligned_empty(shape, np.int16)
        step = max(1, CODES_PACKED_AT_ONCE // (width * depth))
        for panel in range(0, shape[0], step):
            some = weight.by_column(data)[panel * width : (panel + step) * width]
            signed = some.astype(np.int16) - np.int16(middle)
            padded = np.pad(signed, ((0, 0), (0, depth - given)))
            packed[panel : panel + step] = pack_codes(padded, weight.bits, width)
        return packed

    how = f"codes{weight.bits}[{middle}:{depth}:{width}:{weight.by_columns}]"
    return weight.codes.derived(how, TensorType(shape, "i16"), make)


def _halved(scales: Array) -> Array:
    """Returns scales as `f16` if that is exact, else as `f32`."""
    wide = scales.astype(np.float32)
    with np.errstate(over="ignore"):
        narrow = wide.astype(np.float16)
    return narrow if np.array_equal(narrow.astype(np.float32), wide) else wide


def _of_blocks(weight: _Weight, values: Array, block: int, width: int, what: str) -> Constant:
    """Returns a parameter in panels of columns, for blocks of `block` elements."""
    repeated = np.repeat(values, weight.block // block, axis=1)
    name = f"{weight.codes.name}.{what}" if weight.codes.name else ""
    return Constant(panels_of_rows(repeated, width), name=name)


def _sums(rounded: Expr, block: int) -> Expr:
    """Returns the sums of rounded data over blocks."""
    *outer, parts, depth = rounded.tensor.shape
    blocks = reshaped(rounded, (*outer, parts, depth // block, block))
    wide = get_op("cast")(blocks, dtype="i32")
    return get_op("sum")(wide, axes=(len(outer) + 2,), keepdims=False)
