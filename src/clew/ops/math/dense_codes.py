"""Dense layers whose weights are codes of a few bits, unpacked in registers (weight-only
quantization).

The data are rounded to `i16` in blocks along the depth, each with its own step, so that a product
of two numbers is one of integers; sums over a block are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from clew import te
from clew.ir.dims import Dim
from clew.ops.common import differ, f16, f32, i8, i16, i32
from clew.ops.math.matmul import check_units
from clew.ops.registry import Sample, register_op
from clew.support.errors import GraphTypeError
from clew.te import Scalar, Tensor, roles
from clew.te.expr import binary, unary

Array = np.ndarray[Any, Any]

BLOCK_SUMS: Final = "block_sums"
"""The role of the stage that sums products of integers over each block."""
CODE_BITS: Final = (2, 4, 8)
"""The bits of a code."""
WORD_BITS: Final = 16
PAIR: Final = 2
"""The number of adjacent words whose codes are multiplied by one instruction."""
MOST_DATA_PARTS: Final = 2
_MOST: Final = 32767
_PART: Final = 32768
# Divisors of numbers that are all 0 or nearly so.
_LEAST: Final = float.fromhex("0x1p-126")


def codes_of_row(bits: int) -> int:
    """Returns the number of positions of the depth that a pair of words holds."""
    return PAIR * WORD_BITS // bits


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


def _check_parts(name: str, parts: int) -> None:
    if not 1 <= parts <= MOST_DATA_PARTS:
        raise GraphTypeError("T107", f"{name}: parts={parts}, expected 1 or {MOST_DATA_PARTS}")


@register_op(
    "block_steps",
    samples=(
        Sample(f32(5, 8), block=4),
        Sample(f32(2, 3, 32), block=32),
        Sample(f32(6), block=2),
        Sample(f32(5, 8), block=3, error="T103"),
        Sample(f32(5, 8), block=0, error="T107"),
        Sample(f32(), block=4, error="T102"),
        Sample(f16(5, 8), block=4, error="T101"),
    ),
)
def block_steps(x: Tensor, *, block: int) -> Tensor:
    """The steps with which `x[..., K]` is rounded to `i16`: `f32[..., K / block]`, the largest
    magnitude in each block over 32767.

    Errors: T101, T102, T103, T107.
    """
    name = "block_steps"
    if x.dtype != "f32":
        raise GraphTypeError("T101", f"{name}: input is {x.type}, expected f32")
    if not x.rank:
        raise GraphTypeError("T102", f"{name}: input is {x.type}, expected at least one axis")
    k = te.reduce_axis(block, "k")
    names = (*(f"i{n}" for n in range(x.rank - 1)), "b")
    shape = (*x.shape[:-1], _block_count(name, x.shape[-1], block))

    def largest(*i: Scalar) -> Scalar:
        return te.max(unary("abs", x[(*i[:-1], i[-1] * block + k)]), k)

    most = te.compute(shape, largest, "largest", axes=names)
    return te.compute(
        shape, lambda *i: te.maximum(most[i] * (1 / _MOST), _LEAST), "steps", axes=names
    )


@block_steps.reference
def _block_steps_reference(x: Array, *, block: int) -> Array:
    largest = np.abs(x.reshape(*x.shape[:-1], -1, block)).max(axis=-1)
    steps: Array = np.maximum(largest * np.float32(1 / _MOST), np.float32(_LEAST))
    return steps


@register_op(
    "round_blocks",
    samples=(
        Sample(f32(5, 8), f32(5, 2), block=4, low=1, high=9),
        Sample(f32(2, 3, 32), f32(2, 3, 1), block=32, parts=2, low=1, high=9),
        Sample(f32(6), f32(3), block=2, low=1, high=9),
        Sample(f32(5, 8), f32(5, 3), block=3, error="T103"),
        Sample(f32(5, 8), f32(4, 2), block=4, error="T100"),
        Sample(f32(5, 8), f32(5, 2), block=4, parts=3, error="T107"),
        Sample(f32(5, 8), f16(5, 2), block=4, error="T101"),
        Sample(f32(), f32(), block=4, error="T102"),
    ),
)
def round_blocks(x: Tensor, steps: Tensor, *, block: int, parts: int = 1) -> Tensor:
    """`x[..., K]` over `steps[..., K / block]`, rounded: `i16[..., parts, K]`.

    A second part holds the remainder in units of 1 / 32768, so that two parts have the precision of
    `f32`. Larger values than 32767 steps are clamped; the integers for infinities and NaN mean
    nothing.

    Errors: T100, T101, T102, T103, T107.
    """
    name = "round_blocks"
    if (x.dtype, steps.dtype) != ("f32", "f32"):
        raise GraphTypeError("T101", f"{name}: {x.type} over {steps.type}, expected f32")
    if not x.rank:
        raise GraphTypeError("T102", f"{name}: input is {x.type}, expected at least one axis")
    _check_parts(name, parts)
    expected = (*x.shape[:-1], _block_count(name, x.shape[-1], block))
    if steps.rank != x.rank or any(map(differ, expected, steps.shape)):
        raise GraphTypeError("T100", f"{name}: steps {steps.type} do not fit {x.type}")

    def body(*i: Scalar) -> Scalar:
        *outer, part, k = i
        ratio = x[(*outer, k)] / steps[(*outer, k // block)]
        whole = te.call("round", te.minimum(te.maximum(ratio, -_MOST), _MOST))
        if parts > 1:
            rest = te.minimum(te.maximum((ratio - whole) * _PART, -_MOST), _MOST)
            whole = te.select(part < 1, whole, te.call("round", rest))
        return te.cast("i16", te.cast("i32", whole))

    names = (*(f"i{n}" for n in range(x.rank - 1)), "p", "k")
    return te.compute((*x.shape[:-1], parts, x.shape[-1]), body, name, axes=names)


@round_blocks.reference
def _round_blocks_reference(x: Array, steps: Array, *, block: int, parts: int) -> Array:
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = x / np.repeat(steps, block, axis=-1)
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
    *offsets: Tensor,
    bits: int,
    block: int,
    parts: int = 1,
    units: int = 0,
) -> Tensor:
    """`x[..., K]` times a matrix of codes, `f32[..., N]`. The data are `x` as rounded by
    `round_blocks` to `i16[..., parts, K]` with `steps[..., K / block]`.

    `weight: i16[N / width, K / (32 / bits), width, 2]` has panels of `width` columns. A pair of
    words holds a column's signed codes of `bits` bits for adjacent positions of the depth: the
    first word those of even positions, the lowest bits first. `scales[N / width, K / block, width]`
    has the steps of the codes. `offsets` are the sums of the data over blocks,
    `i32[..., parts, K / block]`, and zero points, `i8[N / width, K / block, width]`: a number is
    its scale times the difference of code and zero point. With `f32` in place of zero points, it is
    its scale times the code, plus this number. `units` is N if whole panels round it up.

    Each result is the sum over blocks of `steps * scales * (sum of data * codes)`, in which the
    inner sum is an exact `i32`. The caller sees to it that 32 bits hold it.

    Errors: T100, T101, T102, T103, T107.
    """
    name = "nn.dense_codes"
    blocks = _check(name, data, steps, weight, scales, offsets, bits, block, parts)
    columns, width = weight.shape[0] * weight.shape[2], weight.shape[2]
    if isinstance(columns, int) and isinstance(width, int):
        check_units(name, units or columns, columns, width, weight)
    count = units or columns
    per_row = codes_of_row(bits)
    row = te.reduce_axis(block // per_row, "row", roles.DEPTH)
    code = te.reduce_axis(per_row // PAIR, "code")
    word = te.reduce_axis(PAIR, "word", roles.DEPTH)
    rest = WORD_BITS - bits
    across = te.size(width)

    def summed(*i: Scalar) -> Scalar:
        *outer, part, b, n = i
        place = (row * (per_row // PAIR) + code) * PAIR + word
        element = data[(*outer, part, b * block + place)]
        packed = weight[n // across, b * (block // per_row) + row, n % across, word]
        moved = binary("shl", packed, te.cast("i16", rest - code * bits))
        number = binary("shr", moved, te.as_scalar(rest, "i16"))
        return te.sum(te.cast("i32", element) * te.cast("i32", number), [row, code, word])

    rows = data.shape[:-2]
    names = (*(f"i{n}" for n in range(len(rows) - 1)), *("m",)[: len(rows)])
    shape = (*rows, parts, blocks, count)
    sums = te.compute(shape, summed, BLOCK_SUMS, axes=(*names, "p", "b", "n"), role=BLOCK_SUMS)
    b = te.reduce_axis(blocks, "b", roles.BLOCK)
    zeros = offsets if offsets and offsets[1].dtype == "i8" else None
    added = offsets if offsets and zeros is None else None

    def body(*i: Scalar) -> Scalar:
        *outer, n = i
        place = (n // across, b, n % across)
        step, scale = steps[(*outer, b)], te.cast("f32", scales[place])

        def products(part: int) -> Scalar:
            whole = sums[(*outer, part, b, n)]
            if zeros is not None:
                whole = whole - zeros[0][(*outer, part, b)] * te.cast("i32", zeros[1][place])
            return whole

        total = _joined(products, parts) * (scale * step)
        if added is not None:
            whole = _joined(lambda part: added[0][(*outer, part, b)], parts)
            total = total + whole * (added[1][place] * step)
        return te.sum(total, b)

    return te.compute((*rows, count), body, "dense", axes=(*names, "n"))


def _joined(sums: Callable[[int], Scalar], parts: int) -> Scalar:
    """Returns a sum as `f32`, from those of all parts."""
    total = te.cast("f32", sums(parts - 1))
    for part in reversed(range(parts - 1)):
        total = total * (1 / _PART) + te.cast("f32", sums(part))
    return total


def _check(
    name: str,
    data: Tensor,
    steps: Tensor,
    weight: Tensor,
    scales: Tensor,
    offsets: Sequence[Tensor],
    bits: int,
    block: int,
    parts: int,
) -> Dim:
    """Returns the number of blocks.

    Errors: as for `nn.dense_codes`.
    """
    dtypes = [t.dtype for t in (data, steps, weight, *offsets)]
    wanted = ["i16", "f32", "i16", *(["i32", "i8"] if "i8" in dtypes else ["i32", "f32"])]
    if dtypes != wanted[: len(dtypes)] or len(offsets) not in (0, 2):
        raise GraphTypeError("T101", f"{name}: operands are of {', '.join(dtypes)}")
    if scales.dtype not in ("f16", "f32"):
        raise GraphTypeError("T101", f"{name}: scales are {scales.type}, expected f16 or f32")
    if bits not in CODE_BITS:
        raise GraphTypeError("T107", f"{name}: codes of {bits} bits, expected 2, 4 or 8")
    _check_parts(name, parts)
    ranks = [data.rank - 1, weight.rank, scales.rank, *(t.rank for t in offsets)]
    if ranks != [steps.rank, 4, 3, data.rank, 3][: len(ranks)] or data.rank < 2:
        raise GraphTypeError("T102", f"{name}: {data.type} by {weight.type}, scales {scales.type}")
    *outer, given, depth = data.shape
    panels, rows, width, pair = weight.shape
    per_row = codes_of_row(bits)
    blocks = _block_count(name, depth, block, per_row)
    if differ(depth, rows * per_row) or differ(pair, PAIR) or differ(given, parts):
        raise GraphTypeError("T103", f"{name}: {data.type} in {parts} parts by {weight.type}")
    pairs = [
        ((*outer, blocks), steps.shape),
        *(((panels, blocks, width), t.shape) for t in (scales, *offsets[1:])),
        *(((*outer, parts, blocks), t.shape) for t in offsets[:1]),
    ]
    if any(differ(a, b) for wanted, found in pairs for a, b in zip(wanted, found, strict=True)):
        raise GraphTypeError(
            "T100", f"{name}: {steps.type}, {scales.type} do not fit {data.type} and {weight.type}"
        )
    return blocks


def pack_codes(codes: Array, bits: int, width: int) -> Array:
    """Returns signed codes `[N, K]` in the form of the weight of `nn.dense_codes`; columns that
    fill the last panel are 0.
    """
    columns, depth = codes.shape
    per_row = codes_of_row(bits)
    padded = np.zeros((-(-columns // width) * width, depth), np.uint8)
    padded[:columns] = codes.astype(np.int8).view(np.uint8) & np.uint8((1 << bits) - 1)
    groups = padded.reshape(-1, width, depth // per_row, per_row // PAIR, PAIR)
    words = np.zeros((*groups.shape[:3], PAIR), np.uint16)
    for n in range(per_row // PAIR):
        words |= groups[:, :, :, n].astype(np.uint16) << np.uint16(n * bits)
    return np.ascontiguousarray(words.transpose(0, 2, 1, 3)).view(np.int16)


def unpack_codes(weight: Array, bits: int) -> Array:
    """Returns the codes `i8[N, K]` of a weight of `nn.dense_codes`."""
    words = weight.view(np.uint16).transpose(0, 2, 1, 3)
    rest = np.int16(WORD_BITS - bits)
    pieces = [
        (words << np.uint16(WORD_BITS - bits - n * bits)).view(np.int16) >> rest
        for n in range(WORD_BITS // bits)
    ]
    panels, width, rows, _ = words.shape
    return np.stack(pieces, axis=3).reshape(panels * width, rows * codes_of_row(bits)).astype("i1")


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
    *offsets: Array,
    bits: int,
    block: int,
    parts: int,
    units: int,
) -> Array:
    codes = unpack_codes(weight, bits)[: units or None].astype(np.float64)
    blocks, outer = steps.shape[-1], data.shape[:-2]
    x = data.astype(np.float64).reshape(*outer, parts, blocks, block)
    matrices = codes.reshape(len(codes), blocks, block)
    factors = rows_of_panels(scales)[: len(codes)].astype(np.float64)
    result = np.zeros((*outer, len(codes)))
    for b in range(blocks):
        sums = np.matmul(x[..., b, :], matrices[:, b].T) * factors[:, b]
        if offsets:
            numbers = rows_of_panels(offsets[1])[: len(codes), b].astype(np.float64)
            if offsets[1].dtype == np.int8:
                numbers = -numbers * factors[:, b]
            sums = sums + offsets[0][..., b, None] * numbers
        total = sums[..., 0, :]
        if parts > 1:
            total = total + sums[..., 1, :] / _PART
        result += total * steps[..., b, None].astype(np.float64)
    return result.astype(np.float32)
