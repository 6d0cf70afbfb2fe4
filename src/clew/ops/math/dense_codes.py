"""Dense layers whose weights are codes of a few bits, unpacked in registers (weight-only
quantization).

The data are rounded in blocks along the depth, each with its own step, so that a product of two
numbers is one of integers; sums over a block are exact. The integers are stored as digits: `i16`,
which are multiplied by codes in pairs of words, or `i8`, for codes in groups of four bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import numpy as np

from clew import te
from clew.ir.dims import Dim
from clew.ir.types import bits as bits_of
from clew.ir.types import to_numpy
from clew.ops.common import differ, f16, f32, i8, i16, i32, u8
from clew.ops.math.matmul import check_units
from clew.ops.registry import Sample, register_op
from clew.support.errors import GraphTypeError
from clew.te import Scalar, Tensor, roles
from clew.te.expr import binary, unary

Array = np.ndarray[Any, Any]
_T = TypeVar("_T")

BLOCK_SUMS: Final = "block_sums"
"""The role of the stage that sums products of integers over each block."""
CODE_BITS: Final = (2, 4, 8)
"""The bits of a code."""
GROUP_BITS: Final = 32
"""The bits of the adjacent words whose codes are multiplied by one instruction."""
WORDS: Final = {"i16": "i16", "i8": "u8"}
"""The dtype of words of codes, by that of the data."""
_PARTS: Final = {"i16": 2, "i8": 3}
_MOST: Final = 32767
_PART: Final = 32768
_BYTE: Final = 256
# Divisors of numbers that are all 0 or nearly so.
_LEAST: Final = float.fromhex("0x1p-126")


def codes_of_row(bits: int) -> int:
    """Returns the number of positions of the depth that a group of words holds."""
    return GROUP_BITS // bits


def most_of_first(dtype: str, parts: int) -> float:
    """Returns the largest magnitude of rounded data, in units of the first of their digits."""
    if dtype == "i16":
        return _MOST
    return sum(127 / float(_BYTE) ** n for n in range(parts))


def _block_count(name: str, depth: Dim, block: int, whole: int = 1) -> Dim:
    """Returns the number of blocks of a depth.

    Errors: T103, T107.
    """
    if block < 1 or block % whole:
        unit = f"a multiple of {whole}" if whole > 1 else "at least 1"
        raise GraphTypeError("T107", f"{name}: a block of {block} elements, expected {unit}")
    if isinstance(depth, int) and depth % block:
        raise GraphTypeError("T103", f"{name}: {depth} features are not whole blocks of {block}")
    return depth // block


def _check_parts(name: str, dtype: str, parts: int) -> None:
    if dtype not in _PARTS:
        raise GraphTypeError("T107", f"{name}: data of {dtype}, expected i16 or i8")
    if not 1 <= parts <= _PARTS[dtype]:
        raise GraphTypeError("T107", f"{name}: parts={parts}, expected 1 to {_PARTS[dtype]}")


@register_op(
    "block_steps",
    samples=(
        Sample(f32(5, 8), block=4),
        Sample(f32(2, 3, 32), block=32),
        Sample(f32(6), block=2, dtype="i8", parts=3),
        Sample(f32(5, 8), block=3, error="T103"),
        Sample(f32(5, 8), block=0, error="T107"),
        Sample(f32(5, 8), block=4, parts=3, error="T107"),
        Sample(f32(), block=4, error="T102"),
        Sample(f16(5, 8), block=4, error="T101"),
    ),
)
def block_steps(x: Tensor, *, block: int, dtype: str = "i16", parts: int = 1) -> Tensor:
    """The steps with which `x[..., K]` is rounded to `parts` digits of a dtype: the largest
    magnitude in each block over that of the first digit, `f32[..., K / block]`.

    Errors: T101, T102, T103, T107.
    """
    name = "block_steps"
    if x.dtype != "f32":
        raise GraphTypeError("T101", f"{name}: input is {x.type}, expected f32")
    if not x.rank:
        raise GraphTypeError("T102", f"{name}: input is {x.type}, expected at least one axis")
    _check_parts(name, dtype, parts)
    k = te.reduce_axis(block, "k")
    names = (*(f"i{n}" for n in range(x.rank - 1)), "b")
    shape = (*x.shape[:-1], _block_count(name, x.shape[-1], block))

    def largest(*i: Scalar) -> Scalar:
        return te.max(unary("abs", x[(*i[:-1], i[-1] * block + k)]), k)

    most = te.compute(shape, largest, "largest", axes=names)
    factor = 1 / most_of_first(dtype, parts)
    return te.compute(shape, lambda *i: te.maximum(most[i] * factor, _LEAST), "steps", axes=names)


@block_steps.reference
def _block_steps_reference(x: Array, *, block: int, dtype: str, parts: int) -> Array:
    largest = np.abs(x.reshape(*x.shape[:-1], -1, block)).max(axis=-1)
    factor = np.float32(1 / most_of_first(dtype, parts))
    steps: Array = np.maximum(largest * factor, np.float32(_LEAST))
    return steps


@register_op(
    "round_blocks",
    samples=(
        Sample(f32(5, 8), f32(5, 2), block=4, low=1, high=9),
        Sample(f32(2, 3, 32), f32(2, 3, 1), block=32, parts=2, low=1, high=9),
        Sample(f32(6), f32(3), block=2, low=1, high=9),
        Sample(f32(3, 8), f32(3, 2), block=4, parts=3, dtype="i8", low=1, high=9),
        Sample(f32(3, 8), f32(3, 2), block=4, dtype="i8", low=1, high=9),
        Sample(f32(5, 8), f32(5, 3), block=3, error="T103"),
        Sample(f32(5, 8), f32(4, 2), block=4, error="T100"),
        Sample(f32(5, 8), f32(5, 2), block=4, parts=3, error="T107"),
        Sample(f32(5, 8), f32(5, 2), block=4, dtype="u8", error="T107"),
        Sample(f32(5, 8), f16(5, 2), block=4, error="T101"),
        Sample(f32(), f32(), block=4, error="T102"),
    ),
)
def round_blocks(
    x: Tensor, steps: Tensor, *, block: int, parts: int = 1, dtype: str = "i16"
) -> Tensor:
    """`x[..., K]` over `steps[..., K / block]`, rounded: `i16[..., parts, K]` or `i8`.

    The second part of `i16` holds the remainder in units of 1 / 32768. Parts of `i8` are the
    signed digits of an integer to the base of 256, the highest first. Two parts of `i16` and three
    of `i8` have the precision of `f32`. Values of more steps than the first digit holds are
    clamped; the integers for infinities and NaN mean nothing.

    Errors: T100, T101, T102, T103, T107.
    """
    name = "round_blocks"
    if (x.dtype, steps.dtype) != ("f32", "f32"):
        raise GraphTypeError("T101", f"{name}: {x.type} over {steps.type}, expected f32")
    if not x.rank:
        raise GraphTypeError("T102", f"{name}: input is {x.type}, expected at least one axis")
    _check_parts(name, dtype, parts)
    most = most_of_first(dtype, parts)
    expected = (*x.shape[:-1], _block_count(name, x.shape[-1], block))
    if steps.rank != x.rank or any(map(differ, expected, steps.shape)):
        raise GraphTypeError("T100", f"{name}: steps {steps.type} do not fit {x.type}")

    def body(*i: Scalar) -> Scalar:
        *outer, part, k = i
        ratio = x[(*outer, k)] / steps[(*outer, k // block)]
        if dtype == "i8":
            scaled = te.minimum(te.maximum(ratio, -most), most) * _BYTE ** (parts - 1)
            # With a half of the base added to each digit, the digits are bytes.
            shifted = te.cast("i32", te.call("round", scaled)) + _halves(parts)
            digit = binary("shr", shifted, te.cast("i32", (parts - 1 - part) * 8))
            return te.cast("i8", binary("and", digit, _BYTE - 1) - _BYTE // 2)
        whole = te.call("round", te.minimum(te.maximum(ratio, -most), most))
        if parts > 1:
            rest = te.minimum(te.maximum((ratio - whole) * _PART, -_MOST), _MOST)
            whole = te.select(part < 1, whole, te.call("round", rest))
        return te.cast("i16", te.cast("i32", whole))

    names = (*(f"i{n}" for n in range(x.rank - 1)), "p", "k")
    return te.compute((*x.shape[:-1], parts, x.shape[-1]), body, name, axes=names)


def _halves(parts: int) -> int:
    """Returns half of the base in each of so many digits."""
    return sum(_BYTE // 2 * _BYTE**n for n in range(parts))


@round_blocks.reference
def _round_blocks_reference(x: Array, steps: Array, *, block: int, parts: int, dtype: str) -> Array:
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = x / np.repeat(steps, block, axis=-1)
        if dtype == "i8":
            most = np.float32(most_of_first(dtype, parts))
            scaled = np.clip(ratio, -most, most) * np.float32(_BYTE ** (parts - 1))
            whole = np.nan_to_num(np.rint(scaled)).astype(np.int32) + _halves(parts)
            digits = [whole >> 8 * n & _BYTE - 1 for n in reversed(range(parts))]
            return (np.stack(digits, axis=-2) - _BYTE // 2).astype(np.int8)
        whole = np.rint(np.clip(ratio, -_MOST, _MOST))
        pieces = [whole, np.rint(np.clip((ratio - whole) * _PART, -_MOST, _MOST))][:parts]
    stacked = np.stack(pieces, axis=-2)
    integers: Array = np.nan_to_num(stacked).astype(np.int16)
    return integers


@register_op(
    "nn.dense_codes",
    samples=(
        Sample(i16(5, 1, 16), f32(5, 2), i16(2, 2, 8, 2), f16(2, 2, 8), bits=4, block=8),
        Sample(
            i16(2, 3, 2, 32), f32(2, 3, 2), i16(1, 4, 8, 2), f32(1, 2, 8),
            bits=4, block=16, parts=2, units=5,
        ),
        Sample(
            i16(1, 1, 16), f32(1, 2), i16(3, 4, 8, 2), f32(3, 2, 8), i32(1, 1, 2), i8(3, 2, 8),
            bits=8, block=8,
        ),
        Sample(
            i16(7, 2, 32), f32(7, 1), i16(2, 4, 8, 2), f16(2, 1, 8), i32(7, 2, 1), i8(2, 1, 8),
            bits=4, block=32, parts=2,
        ),
        Sample(i16(1, 16), f32(1), i16(1, 1, 8, 2), f32(1, 1, 8), bits=2, block=16),
        Sample(
            i16(3, 2, 32), f32(3, 2), i16(2, 4, 8, 2), f32(2, 2, 8), i32(3, 2, 2), f32(2, 2, 8),
            bits=4, block=16, parts=2, units=13,
        ),
        Sample(
            i16(1, 1, 16), f32(1, 2), i16(3, 4, 8, 2), f16(3, 2, 8), i32(1, 1, 2), f32(3, 2, 8),
            bits=8, block=8,
        ),
        Sample(
            i8(5, 3, 16), f32(5, 2), u8(2, 2, 8, 4), f16(2, 2, 8), i32(5, 3, 2),
            bits=4, block=8, parts=3, zero=8, units=13,
        ),
        Sample(
            i8(1, 2, 16), f32(1, 2), u8(3, 4, 8, 4), f32(3, 2, 8), i32(1, 2, 2), i8(3, 2, 8),
            bits=8, block=8, parts=2, zero=128,
        ),
        Sample(
            i8(1, 16), f32(1), u8(1, 1, 8, 4), f32(1, 1, 8), i32(1, 1), f32(1, 1, 8),
            bits=2, block=16,
        ),
        Sample(
            i8(5, 3, 32), f32(5, 4), u8(2, 4, 8, 4), i8(2, 4, 8), f16(2, 2, 8), i32(5, 3, 4),
            bits=4, block=8, parts=3, zero=8, fold=2,
        ),
        Sample(
            i16(1, 2, 32), f32(1, 4), i16(2, 4, 8, 2), u8(2, 4, 8), f16(2, 1, 8), i32(1, 2, 4),
            u8(2, 4, 8), f16(2, 1, 8), bits=4, block=8, parts=2, fold=4,
        ),
        Sample(i8(5, 1, 16), f32(5, 2), u8(2, 2, 8, 4), i8(2, 2, 8), f16(2, 2, 8), bits=4, block=8,
               fold=2, error="T100"),
        Sample(i8(5, 1, 16), f32(5, 2), u8(2, 2, 8, 4), i8(2, 2, 8), bits=4, block=8, fold=2,
               error="T101"),
        Sample(i8(5, 1, 16), f32(5, 2), u8(2, 2, 8, 4), f16(2, 2, 8), bits=4, block=8, zero=8,
               error="T107"),
        Sample(i8(5, 1, 16), f32(5, 2), i16(2, 2, 8, 2), f16(2, 2, 8), bits=4, block=8,
               error="T101"),
        Sample(i16(5, 1, 16), f32(5, 2), i16(2, 2, 8, 2), f16(2, 2, 8), bits=3, block=8,
               error="T107"),
        Sample(i16(5, 1, 16), f32(5, 2), i16(2, 3, 8, 2), f16(2, 2, 8), bits=4, block=8,
               error="T103"),
        Sample(i16(5, 1, 16), f32(5, 2), i16(2, 2, 8, 2), f16(2, 1, 8), bits=4, block=8,
               error="T100"),
        Sample(i16(5, 1, 16), f32(5, 4), i16(2, 2, 8, 2), f16(2, 4, 8), bits=4, block=4,
               error="T107"),
        Sample(i16(5, 1, 16), f32(4, 2), i16(2, 2, 8, 2), f16(2, 2, 8), bits=4, block=8,
               error="T100"),
        Sample(i16(5, 3, 16), f32(5, 2), i16(2, 2, 8, 2), f16(2, 2, 8), bits=4, block=8, parts=3,
               error="T107"),
        Sample(i16(16), f32(2), i16(2, 2, 8, 2), f16(2, 2, 8), bits=4, block=8, error="T102"),
        Sample(i32(1, 16), f32(2), i16(2, 2, 8, 2), f16(2, 2, 8), bits=4, block=8, error="T101"),
        Sample(i16(5, 1, 16), f32(5, 2), i16(2, 2, 8, 2), f16(2, 2, 8), bits=4, block=8, units=8,
               error="T107"),
    ),
)  # fmt: skip
def dense_codes(
    data: Tensor,
    steps: Tensor,
    weight: Tensor,
    scales: Tensor,
    *more: Tensor,
    bits: int,
    block: int,
    parts: int = 1,
    units: int = 0,
    zero: int = 0,
    fold: int = 0,
) -> Tensor:
    """`x[..., K]` times a matrix of codes, `f32[..., N]`. The data are `x` as rounded by
    `round_blocks` to `i16[..., parts, K]` or `i8`, with `steps[..., K / block]`.

    `weight: i16[N / width, K / (32 / bits), width, 2]` has panels of `width` columns. A pair of
    words holds a column's signed codes of `bits` bits for adjacent positions of the depth: the
    first word those of even positions, the lowest bits first. For data of `i8`, groups of four
    bytes hold unsigned codes (`u8[..., 4]`). `scales[N / width, K / block, width]` has the steps of
    the codes. `offsets` are the sums of the data over blocks, `i32[..., parts, K / block]`, and
    zero points, `i8[N / width, K / block, width]`: a number is its scale times the difference of
    code and zero point. With `f32` in place of zero points, it is its scale times the code, plus
    this number. `zero` is subtracted from all codes, too; it needs the sums, perhaps alone.

    With `fold`, scales are integers (`i8`, `u8`), and factors of so many blocks follow them,
    `[N / width, K / block / fold, width]`; offsets of `u8` are followed by factors as well.
    `units` is N if whole panels round it up.

    Each result is the sum over blocks of `steps * scales * (sum of data * codes)`, in which the
    inner sum is an exact `i32`. The caller sees to it that 32 bits hold it.

    Errors: T100, T101, T102, T103, T107.
    """
    name = "nn.dense_codes"
    factors, offsets = _split(fold, more)
    blocks = _check(
        name, data, steps, weight, (scales, *factors), offsets, bits, block, parts, fold
    )
    if zero and not offsets:
        raise GraphTypeError("T107", f"{name}: zero={zero} without the sums of the data")
    columns, width = weight.shape[0] * weight.shape[2], weight.shape[2]
    if isinstance(columns, int) and isinstance(width, int):
        check_units(name, units or columns, columns, width, weight)
    count = units or columns
    per_row = codes_of_row(bits)
    row = te.reduce_axis(block // per_row, "row", roles.DEPTH)
    group = GROUP_BITS // bits_of(weight.dtype)
    code = te.reduce_axis(per_row // group, "code")
    word = te.reduce_axis(group, "word", roles.DEPTH)
    across = te.size(width)

    def unpacked(words: Scalar) -> Scalar:
        if words.dtype == "u8":
            moved = binary("shr", words, te.cast("u8", code * bits)) if bits < 8 else words
            return binary("and", moved, (1 << bits) - 1) if bits < 8 else moved
        rest = GROUP_BITS // group - bits
        moved = binary("shl", words, te.cast("i16", rest - code * bits))
        return binary("shr", moved, te.as_scalar(rest, "i16"))

    def summed(*i: Scalar) -> Scalar:
        *outer, part, b, n = i
        place = (row * (per_row // group) + code) * group + word
        element = data[(*outer, part, b * block + place)]
        packed = weight[n // across, b * (block // per_row) + row, n % across, word]
        number = te.cast("i32", unpacked(packed))
        return te.sum(te.cast("i32", element) * number, [row, code, word])

    rows = data.shape[:-2]
    names = (*(f"i{n}" for n in range(len(rows) - 1)), *("m",)[: len(rows)])
    shape = (*rows, parts, blocks, count)
    sums = te.compute(shape, summed, BLOCK_SUMS, axes=(*names, "p", "b", "n"), role=BLOCK_SUMS)
    b = te.reduce_axis(blocks, "b", roles.BLOCK)
    zeros = offsets[1] if len(offsets) > 1 and offsets[1].dtype == "i8" else None
    added = offsets[1:] if zeros is None else ()
    base = _PART if data.dtype == "i16" else _BYTE

    def body(*i: Scalar) -> Scalar:
        *outer, n = i
        place = (n // across, b, n % across)

        def factored(numbers: Tensor, *factors: Tensor) -> Scalar:
            number = te.cast("f32", numbers[place])
            for x in factors:
                number = number * te.cast("f32", x[n // across, b // fold, n % across])
            return number

        step, scale = steps[(*outer, b)], factored(scales, *factors)

        def products(part: int) -> Scalar:
            whole = sums[(*outer, part, b, n)]
            if zeros is not None:
                points = te.cast("i32", zeros[place])
                return whole - offsets[0][(*outer, part, b)] * (points + zero if zero else points)
            return whole - offsets[0][(*outer, part, b)] * zero if zero else whole

        total = _joined(products, parts, base) * scale
        if added:
            whole = _joined(lambda part: offsets[0][(*outer, part, b)], parts, base)
            total = total + whole * factored(*added)
        return te.sum(total * step, b)

    return te.compute((*rows, count), body, "dense", axes=(*names, "n"))


def _split(fold: int, more: Sequence[_T]) -> tuple[Sequence[_T], Sequence[_T]]:
    """Returns the factors of scales, and the offsets."""
    return more[: bool(fold)], more[bool(fold) :]


def _joined(sums: Callable[[int], Scalar], parts: int, base: int) -> Scalar:
    """Returns a sum as `f32`, from those of all parts."""
    total = te.cast("f32", sums(parts - 1))
    for part in reversed(range(parts - 1)):
        total = total * (1 / base) + te.cast("f32", sums(part))
    return total


def _check(
    name: str,
    data: Tensor,
    steps: Tensor,
    weight: Tensor,
    scales: Sequence[Tensor],
    offsets: Sequence[Tensor],
    bits: int,
    block: int,
    parts: int,
    fold: int,
) -> Dim:
    """Returns the number of blocks.

    Errors: as for `nn.dense_codes`.
    """
    dtypes = [t.dtype for t in (data, steps, weight, *offsets)]
    wanted = ["f32", WORDS.get(data.dtype), "i32", "i8" if "i8" in dtypes[4:] else "f32"]
    if "u8" in dtypes[4:] and fold:
        wanted[3:] = "u8", offsets[-1].dtype
    if dtypes[1:] != wanted[: len(dtypes) - 1] or len(scales) != 1 + bool(fold):
        raise GraphTypeError("T101", f"{name}: operands are of {', '.join(dtypes)}")
    for x in (scales[-1], *offsets[3:]):
        if x.dtype not in ("f16", "f32"):
            raise GraphTypeError("T101", f"{name}: scales are {x.type}, expected f16 or f32")
    if fold and scales[0].dtype not in ("i8", "u8"):
        raise GraphTypeError("T101", f"{name}: scales are {scales[0].type}, expected i8 or u8")
    if bits not in CODE_BITS:
        raise GraphTypeError("T107", f"{name}: codes of {bits} bits, expected 2, 4 or 8")
    _check_parts(name, data.dtype, parts)
    panelled = (*scales, *offsets[1:])
    ranks = {x.rank for x in panelled}
    ranks_fit = all(t.rank == data.rank for t in offsets[:1]) and data.rank == steps.rank + 1
    if ranks != {3} or weight.rank != 4 or not ranks_fit or data.rank < 2:
        raise GraphTypeError(
            "T102", f"{name}: {data.type} by {weight.type}, scales {scales[0].type}"
        )
    *outer, given, depth = data.shape
    panels, rows, width, group = weight.shape
    per_row = codes_of_row(bits)
    blocks = _block_count(name, depth, block, per_row)
    words = GROUP_BITS // bits_of(weight.dtype)
    if differ(group, words) or differ(depth, rows * per_row) or differ(given, parts):
        raise GraphTypeError("T103", f"{name}: {data.type} in {parts} parts by {weight.type}")
    pairs = [
        ((*outer, blocks), steps.shape),
        *(((panels, blocks, width), t.shape) for t in (scales[0], *offsets[1:2])),
        *(
            ((panels, _block_count(name, blocks, fold), width), t.shape)
            for t in (*scales[1:], *offsets[2:])
        ),
        *(((*outer, parts, blocks), t.shape) for t in offsets[:1]),
    ]
    if any(differ(a, b) for wanted, found in pairs for a, b in zip(wanted, found, strict=True)):
        raise GraphTypeError(
            "T100",
            f"{name}: {steps.type}, {scales[0].type} do not fit {data.type} and {weight.type}",
        )
    return blocks


def pack_codes(codes: Array, bits: int, width: int, dtype: str = "i16") -> Array:
    """Returns codes `[N, K]` in the form of the weight of `nn.dense_codes`, in words of a dtype:
    signed codes for `i16`, unsigned ones for `u8`. Columns that fill the last panel are 0.
    """
    columns, depth = codes.shape
    per_row, size = codes_of_row(bits), bits_of(dtype)
    group = GROUP_BITS // size
    padded = np.zeros((-(-columns // width) * width, depth), np.uint8)
    padded[:columns] = codes.astype(np.uint8) & np.uint8((1 << bits) - 1)
    groups = padded.reshape(-1, width, depth // per_row, per_row // group, group)
    words = np.zeros((*groups.shape[:3], group), f"u{size // 8}")
    for n in range(per_row // group):
        words |= groups[:, :, :, n].astype(words.dtype) << words.dtype.type(n * bits)
    return np.ascontiguousarray(words.transpose(0, 2, 1, 3)).view(to_numpy(dtype))


def unpack_codes(weight: Array, bits: int) -> Array:
    """Returns the codes `[N, K]` of a weight of `nn.dense_codes`: `i8`, or `u8` from bytes."""
    panels, rows, width, _ = weight.shape
    size = 8 * weight.itemsize
    unsigned = weight.dtype == np.uint8
    whole = weight.view(f"u{weight.itemsize}").transpose(0, 2, 1, 3)
    rest = whole.dtype.type(size - bits)
    pieces = []
    for n in range(size // bits):
        moved = whole << whole.dtype.type(size - bits - n * bits)
        pieces.append((moved if unsigned else moved.view(np.int16)) >> moved.dtype.type(rest))
    codes = np.stack(pieces, axis=3).reshape(panels * width, rows * codes_of_row(bits))
    return codes.astype("u1" if unsigned else "i1")


def rows_of_panels(x: Array) -> Array:
    """Returns `[N / width, blocks, width]` as `[N, blocks]`."""
    panels, blocks, width = x.shape
    return x.transpose(0, 2, 1).reshape(panels * width, blocks)


def panels_of_rows(x: Array, width: int) -> Array:
    """Returns `[N, blocks]` as `[N / width, blocks, width]`; what fills the last panel is 0."""
    columns, blocks = x.shape
    padded = np.zeros((-(-columns // width) * width, blocks), x.dtype)
    padded[:columns] = x
    return np.ascontiguousarray(padded.reshape(-1, width, blocks).transpose(0, 2, 1))


@dense_codes.reference
def _dense_codes_reference(
    data: Array,
    steps: Array,
    weight: Array,
    scales: Array,
    *more: Array,
    bits: int,
    block: int,
    parts: int,
    units: int,
    zero: int,
    fold: int,
) -> Array:
    wide, offsets = _split(fold, more)
    codes = unpack_codes(weight, bits)[: units or None].astype(np.float64)
    blocks, outer = steps.shape[-1], data.shape[:-2]
    x = data.astype(np.float64).reshape(*outer, parts, blocks, block)
    matrices = codes.reshape(len(codes), blocks, block)

    def factored(numbers: Array, *factors: Array) -> Array:
        rows: Array = rows_of_panels(numbers).astype(np.float64)
        for x in factors:
            rows = rows * np.repeat(rows_of_panels(x).astype(np.float64), fold, axis=1)
        return rows[: len(codes)]

    factors = factored(scales, *wide)
    result = np.zeros((*outer, len(codes)))
    for b in range(blocks):
        sums = np.matmul(x[..., b, :], matrices[:, b].T) * factors[:, b]
        if zero:
            sums = sums - offsets[0][..., b, None] * (zero * factors[:, b])
        if len(offsets) > 1:
            numbers = factored(*offsets[1:])[:, b]
            if offsets[1].dtype == np.int8:
                numbers = -numbers * factors[:, b]
            sums = sums + offsets[0][..., b, None] * numbers
        base = _PART if data.dtype == np.int16 else _BYTE
        total = sum(sums[..., n, :] / base**n for n in range(parts))
        result += total * steps[..., b, None].astype(np.float64)
    return result.astype(np.float32)
