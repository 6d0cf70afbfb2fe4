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
from clew.ir.types import NARROW_FLOATS, TensorType, bits, to_numpy
from clew.machine.target import Target
from clew.ops.math.dense_codes import (
    GROUP_BITS,
    WORDS,
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

    The data are rounded to integers in blocks along the depth, each with its own step, and
    multiplied by the codes, which the kernel unpacks in registers. Scales are applied to the sums
    over blocks. A product of one row, as of a decoder that generates text, takes the
    time that its weights take to load, so fewer bits make it faster.

    Before:
        %1 = dequantize(w: i4[4096, 4096], s: f32[4096, 128], axis=1, block=32)
        %2 = nn.dense(%x, %1)
    After:
        %1 = block_steps(%x, block=32); %2 = round_blocks(%x, %1, block=32)
        %3 = nn.dense_codes(%2, %1, w': i16[128, 512, 32, 2], s': f16[128, 128, 32], bits=4)
        (of words; products of bytes have `dtype="i8"`, w': u8[128, 512, 32, 4], sums of %2, zero=8)

    The integers are of one or two digits of `i16`, or of two or three of `i8` where the target
    multiplies bytes faster. With `exact`, they have the precision of `f32`; else, data are rounded
    to 1 / 65278 of the largest number in the block or less. Codes are signed for `i16` and unsigned
    for `i8`. Scales become `f16` if that is exact. A block
    of the weight of more than `most_block` elements becomes several with the same scale. Offsets
    of blocks (`dequantize_offset`) are multiplied by the sums of the data. Scales and offsets that
    are dequantized themselves, in blocks along the depth, stay integers with factors.

    Weights of fewer than `least_weights` elements are left to FoldConstant, which widens them; so
    are those of layers with at least `many_rows` rows, if their number is known and the target
    multiplies floats (`dtype`) faster than all digits, as a matrix unit does.

    Preconditions: runs before constants are folded, which would widen the weight. Non-goals:
    convolutions; scales that vary otherwise than by column and block; zero points that are floats.
    """

    opt_level: ClassVar[int] = 2
    exactness: ClassVar[Exactness] = Exactness(
        "none", "the order of sums; data are split into narrower parts", "level 2 and `precision=`"
    )

    exact: bool = True
    dtype: str = "f32"
    least_weights: int = CODES_TO_KEEP
    most_block: int = MOST_BLOCK_OF_CODES
    many_rows: int = ROWS_TO_WIDEN_CODES

    def run(self, module: Module, ctx: PassContext) -> Module:
        if ctx.target is None or not _digits_of(ctx.target, exact=self.exact):
            return module
        return _Multiplier(self, ctx).rewrite_module(module)


@dataclass(frozen=True)
class _Digits:
    """The digits of rounded data: their dtype and number."""

    dtype: str
    parts: int

    @property
    def words(self) -> str:
        """The dtype of words of codes."""
        return WORDS[self.dtype]

    def rate(self, target: Target) -> float:
        """The products of numbers per cycle; 0 if no unit multiplies them."""
        return multiply_adds_per_cycle(target, self.words, self.dtype) / self.parts


def _digits_of(target: Target, *, exact: bool) -> _Digits | None:
    """Returns the digits that a target multiplies fastest, words if bytes are as fast: sums of
    fewer digits are scaled. None if it multiplies none.
    """
    forms = [_Digits("i16", 2 if exact else 1), _Digits("i8", 3 if exact else 2)]
    best = max(forms, key=lambda form: form.rate(target))
    return best if best.rate(target) else None


@dataclass(frozen=True)
class _Form:
    """Stored codes: those of the model less `subtracted`. `zero` and `by_block` are what the
    product subtracts from them (`i8`), or adds to their products with the scales (`f32`).
    """

    subtracted: int
    zero: int
    by_block: Array | None


def _form(digits: _Digits, weight: _Weight, zeros: Array | None, offsets: Array | None) -> _Form:
    half = 1 << (weight.bits - 1)
    unsigned = weight.codes.tensor.dtype[0] == "u"
    if digits.words == "u8":
        subtracted, middle = 0 if unsigned else -half, half
    else:
        subtracted, middle = half if unsigned else 0, 0
    if offsets is not None:
        return _Form(subtracted, -subtracted, offsets.astype(np.float32))
    points = np.zeros((1, 1), np.int32) if zeros is None else zeros.astype(np.int32)
    least, most = int(points.min()), int(points.max())
    if least == most:
        return _Form(subtracted, most - subtracted, None)
    return _Form(subtracted, middle, (points - subtracted - middle).astype(np.int8))


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

    def name_of(self, what: str) -> str:
        """Returns the name of a parameter."""
        return f"{self.codes.name}.{what}" if self.codes.name else ""

    def by_column(self, values: Array) -> Array:
        """Returns codes as `[N, K]`."""
        return values if self.by_columns else values.T


class _Multiplier(Rewriter):
    def __init__(self, options: MultiplyCodes, ctx: PassContext) -> None:
        super().__init__()
        self._options = options
        self._ctx = ctx
        self._rounded: dict[tuple[int, int, _Digits, int], tuple[Expr, Expr]] = {}

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
        target = self._ctx.target
        assert target is not None
        if columns * depth < options.least_weights:
            return f"it has {columns * depth} elements", call
        digits = _digits_of(target, exact=options.exact and data.tensor.dtype == "f32")
        assert digits is not None
        rows = product(tuple(data.tensor.shape[:-1]))
        if isinstance(rows, int) and rows >= options.many_rows and self._floats_gain(digits):
            return f"with {rows} rows, products of {options.dtype} are faster", call
        given = (weight.scale, weight.zero, weight.offset)
        scales, zeros, offsets = (None if p is None else weight.rows(p) for p in given)
        if (
            scales is None
            or (zeros is None) != (weight.zero is None)
            or ((offsets is None) != (weight.offset is None))
        ):
            return "its scales or zero points are not constants by column and block", call
        form = _form(digits, weight, zeros, offsets)
        most = min(options.most_block, _most_block(weight.bits, digits.dtype))
        block = _block_in(weight.block, most, codes_of_row(weight.bits))
        if not block:
            return f"blocks of {weight.block} are not whole words of {weight.bits} bits", call
        width = VECTORS_OF_CODE_PANELS * target.dot_lanes(digits.words, digits.dtype)
        padded = -(-depth // weight.block) * weight.block
        rounded, steps = self._data(data, block, digits, padded)
        operands: list[Expr] = [
            rounded, steps, _packed(weight, form.subtracted, padded, width, digits)
        ]  # fmt: skip
        pairs = _factored(weight, form.by_block is not None and offsets is not None)
        fold = 0
        if pairs:
            fold = pairs[0].block * (weight.block // block)
            operands += pairs[0].operands(weight, block, width, "scales")
        else:
            operands.append(_of_blocks(weight, _halved(scales), block, width, "scales"))
        if form.zero or form.by_block is not None:
            operands.append(_sums(rounded, block))
        if len(pairs) > 1:
            operands += pairs[1].operands(weight, block, width, "offsets")
        elif form.by_block is not None:
            numbers = np.broadcast_to(form.by_block, scales.shape)
            operands.append(_of_blocks(weight, numbers, block, width, "offsets"))
        result: Expr = get_op("nn.dense_codes")(
            *operands,
            bits=weight.bits,
            block=block,
            parts=digits.parts,
            units=columns,
            zero=form.zero,
            fold=fold,
        )
        if result.tensor.dtype != call.tensor.dtype:
            result = get_op("cast")(result, dtype=call.tensor.dtype)
        return "", result

    def _floats_gain(self, digits: _Digits) -> bool:
        """Whether products of floats are faster than those of all digits."""
        target, dtype = self._ctx.target, self._options.dtype
        assert target is not None
        return multiply_adds_per_cycle(target, dtype, dtype) > digits.rate(target)

    def _data(self, data: Expr, block: int, digits: _Digits, depth: int) -> tuple[Expr, Expr]:
        """Returns the data rounded to integers, and their steps, from one pair of calls for all
        readers.
        """
        key = data.id, block, digits, depth
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
            form = {"block": block, "dtype": digits.dtype, "parts": digits.parts}
            steps = get_op("block_steps")(whole, **form)
            rounded = get_op("round_blocks")(whole, steps, **form)
            found = self._rounded[key] = rounded, steps
        return found


@dataclass(frozen=True)
class _Pair:
    """Parameters of blocks that are codes, `[N, blocks]`, times factors of `block` codes each."""

    codes: Array
    factors: Array
    block: int

    def operands(self, weight: _Weight, block: int, width: int, what: str) -> list[Expr]:
        """Returns codes and factors in panels of columns; a factor is that of as many elements of
        the depth as in the model.
        """
        return [
            _of_blocks(weight, self.codes, block, width, what),
            Constant(panels_of_rows(self.factors, width), name=weight.name_of(f"{what}.factors")),
        ]


def _factored(weight: _Weight, with_offsets: bool) -> list[_Pair]:
    """Returns the scales, and the offsets if there are any, as codes with factors; none if they
    are plain numbers, or if the factors of both are of other blocks.
    """
    given = [weight.scale, *([weight.offset] if with_offsets else [])]
    pairs = [_pair_of(p, weight) for p in given if p is not None]
    found = [p for p in pairs if p is not None]
    same = len({p.block for p in found}) == 1 and len(found) == len(given)
    return found if same and all(p.codes.dtype == np.uint8 for p in found[1:]) else []


def _pair_of(parameter: Expr, weight: _Weight) -> _Pair | None:
    if not isinstance(parameter, Call) or parameter.op_name != "dequantize":
        return None
    codes, factors, *zero = parameter.args
    attrs = parameter.attrs
    values = known_values(codes), known_values(factors)
    whole = codes.tensor.dtype in ("i8", "u8") and attrs.block and attrs.axis % 2 == 1
    if not whole or zero or not weight.by_columns or values[0] is None or values[1] is None:
        return None
    blocks = weight.shape[1] // weight.block
    if values[0].shape != (weight.shape[0], blocks) or blocks % attrs.block:
        return None
    return _Pair(values[0], values[1], attrs.block)


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


def _most_block(width: int, dtype: str) -> int:
    """Returns the most products of digits with codes of so many bits, less a zero point, whose sum
    32 bits hold.
    """
    return ((1 << 31) - 1) >> width + bits(dtype) - 1


def _block_in(block: int, most: int, row: int) -> int:
    """Returns the largest divisor of a block, of whole rows of words, of at most `most`; 0 if there
    is none.
    """
    sizes = range(min(block, most) // row * row, 0, -row)
    return next((size for size in sizes if block % size == 0), 0)


def _packed(weight: _Weight, subtracted: int, depth: int, width: int, digits: _Digits) -> Constant:
    """Returns the codes in panels of columns, less a number. A few panels are packed at a time, to
    need little memory besides the result.
    """
    columns, given = weight.shape
    group = GROUP_BITS // bits(digits.words)
    shape = (-(-columns // width), depth // codes_of_row(weight.bits), width, group)

    def make(data: Array) -> Array:
        packed = aligned_empty(shape, to_numpy(digits.words))
        step = max(1, CODES_PACKED_AT_ONCE // (width * depth))
        for panel in range(0, shape[0], step):
            some = weight.by_column(data)[panel * width : (panel + step) * width]
            moved = some.astype(np.int16) - np.int16(subtracted)
            padded = np.pad(moved, ((0, 0), (0, depth - given)))
            packed[panel : panel + step] = pack_codes(padded, weight.bits, width, digits.words)
        return packed

    how = f"{digits.words}codes{weight.bits}[{subtracted}:{depth}:{width}:{weight.by_columns}]"
    return weight.codes.derived(how, TensorType(shape, digits.words), make)


def _halved(scales: Array) -> Array:
    """Returns scales as `f16` if that is exact, else as `f32`."""
    wide = scales.astype(np.float32)
    with np.errstate(over="ignore"):
        narrow = wide.astype(np.float16)
    return narrow if np.array_equal(narrow.astype(np.float32), wide) else wide


def _of_blocks(weight: _Weight, values: Array, block: int, width: int, what: str) -> Constant:
    """Returns a parameter in panels of columns, for blocks of `block` elements."""
    repeated = np.repeat(values, weight.block // block, axis=1)
    return Constant(panels_of_rows(repeated, width), name=weight.name_of(what))


def _sums(rounded: Expr, block: int) -> Expr:
    """Returns the sums of rounded data over blocks."""
    *outer, parts, depth = rounded.tensor.shape
    blocks = reshaped(rounded, (*outer, parts, depth // block, block))
    wide = get_op("cast")(blocks, dtype="i32")
    return get_op("sum")(wide, axes=(len(outer) + 2,), keepdims=False)
