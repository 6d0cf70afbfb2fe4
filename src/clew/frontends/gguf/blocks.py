"""The types of tensors in GGUF files, and how their blocks are unpacked.

A row of a quantized tensor is a sequence of blocks. A block has codes of a few bits, and scales for
groups of codes. A number is `scale * (code - zero)`, or `scale * code + offset`; these are the
operations of ggml, in its order, so the numbers are equal bit for bit. In the k-quants, the scales
and offsets of groups are themselves codes, of 4 to 8 bits with a scale per block. Their products
are exact in `f32`.

Source: ggml, `ggml-common.h` (the structures of blocks) and `ggml-quants.c` (their meaning).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from clew.ir.types import bits
from clew.support.dataclass import dataclass

Array: TypeAlias = NDArray[Any]
Unpack: TypeAlias = Callable[[Array], Array]


@dataclass(frozen=True)
class TensorKind:
    """A type of tensors. `elements` and `size_bytes` are those of a block; a plain type has blocks
    of one element of `dtype`, and no functions.

    The functions take blocks, `u8[n, size_bytes]`: `codes` gives integers of `dtype`,
    `[n, elements]`; `scales`, and `offsets` if there are any, give `[n, elements / group]`. If
    these are codes themselves, `factors` and `offset_factors` give what they are multiplied by,
    `f16[n, 1]`.
    """

    name: str
    dtype: str
    elements: int
    size_bytes: int
    group: int = 0
    codes: Unpack | None = None
    scales: Unpack | None = None
    offsets: Unpack | None = None
    scale_dtype: str = "f32"
    zero: int = 0
    offset_dtype: str = "f32"
    factors: Unpack | None = None
    offset_factors: Unpack | None = None


def _plain(name: str, dtype: str) -> TensorKind:
    return TensorKind(name, dtype, 1, bits(dtype) // 8)


# --- parts of blocks ------------------------------------------------------------------------------


def _half(blocks: Array, at: int) -> Array:
    """Returns the `f16` at a byte of each block, [n, 1]."""
    return blocks[:, at : at + 2].copy().view(np.float16)


def _halves(at: int) -> Unpack:
    return lambda blocks: _half(blocks, at)


def _wide_halves(at: int) -> Unpack:
    return lambda blocks: _half(blocks, at).astype(np.float32)


def _pieces(data: Array, width: int, shifts: range) -> Array:
    """Returns bits of bytes `[n, m]`, for each run of `width` bytes shift by shift: `[n, ...]`."""
    runs = data.reshape(len(data), -1, 1, width)
    moved = runs >> np.array(shifts, np.uint8).reshape(1, 1, -1, 1)
    return moved.reshape(len(data), -1)


def _nibbles(data: Array, width: int) -> Array:
    """Returns the low and then the high halves of each run of `width` bytes."""
    return _pieces(data, width, range(0, 8, 4)) & 15


def _fifth_bits(data: Array) -> Array:
    """Returns the bits of four bytes as the fifth bits of 32 codes."""
    whole = data.copy().view("<u4")
    return ((whole >> np.arange(32, dtype=np.uint32)) & 1).astype(np.uint8) << 4


# --- blocks of 32 ---------------------------------------------------------------------------------


def _codes_5(at: int, zero: int) -> Unpack:
    def unpack(blocks: Array) -> Array:
        codes = _nibbles(blocks[:, at + 4 :], 16) | _fifth_bits(blocks[:, at : at + 4])
        return codes.astype(np.int8) - np.int8(zero)

    return unpack


_Q4_0: Final = TensorKind(
    "Q4_0", "u4", 32, 18, 32, lambda b: _nibbles(b[:, 2:], 16), _halves(0),
    scale_dtype="f16", zero=8,
)  # fmt: skip
_Q4_1: Final = TensorKind(
    "Q4_1", "u4", 32, 20, 32, lambda b: _nibbles(b[:, 4:], 16), _halves(0), _wide_halves(2),
    scale_dtype="f16",
)  # fmt: skip
_Q5_0: Final = TensorKind("Q5_0", "i8", 32, 22, 32, _codes_5(2, 16), _halves(0), scale_dtype="f16")
_Q5_1: Final = TensorKind(
    "Q5_1", "i8", 32, 24, 32, _codes_5(4, 0), _halves(0), _wide_halves(2), scale_dtype="f16"
)
_Q8_0: Final = TensorKind(
    "Q8_0", "i8", 32, 34, 32, lambda b: b[:, 2:].view(np.int8), _halves(0), scale_dtype="f16"
)


# --- blocks of 256 --------------------------------------------------------------------------------


def _negative(at: int) -> Unpack:
    return lambda blocks: -_half(blocks, at)


def _codes_2k(blocks: Array) -> Array:
    return _pieces(blocks[:, 16:80], 32, range(0, 8, 2)) & 3


_Q2_K: Final = TensorKind(
    "Q2_K", "u2", 256, 84, 16, _codes_2k,
    lambda b: b[:, :16] & 15, lambda b: b[:, :16] >> 4, "u8", 0, "u8", _halves(80), _negative(82),
)  # fmt: skip


def _codes_3k(blocks: Array) -> Array:
    low = _pieces(blocks[:, 32:96], 32, range(0, 8, 2)) & 3
    absent = (_pieces(blocks[:, :32], 32, range(8)) & 1) ^ 1
    return low.astype(np.int8) - (absent << 2).astype(np.int8)


def _scales_3k(blocks: Array) -> Array:
    low = _pieces(blocks[:, 96:104], 8, range(0, 8, 4)) & 15
    high = _pieces(blocks[:, 104:108], 4, range(0, 8, 2)) & 3
    return (low | high << 4).astype(np.int8) - np.int8(32)


_Q3_K: Final = TensorKind(
    "Q3_K", "i4", 256, 110, 16, _codes_3k, _scales_3k, scale_dtype="i8", factors=_halves(108)
)


def _six_bits(blocks: Array) -> tuple[Array, Array]:
    """Returns the codes of eight scales and of eight offsets, in the twelve bytes from the fifth
    on.
    """
    scales, offsets, rest = (blocks[:, 4 + n : 8 + n] for n in (0, 4, 8))
    return (
        np.concatenate([scales & 63, (rest & 15) | (scales >> 2 & 48)], axis=1),
        np.concatenate([offsets & 63, (rest >> 4) | (offsets >> 2 & 48)], axis=1),
    )


def _scales_k(blocks: Array) -> Array:
    return _six_bits(blocks)[0]


def _offsets_k(blocks: Array) -> Array:
    return _six_bits(blocks)[1]


_Q4_K: Final = TensorKind(
    "Q4_K", "u4", 256, 144, 32, lambda b: _nibbles(b[:, 16:], 32), _scales_k, _offsets_k,
    "u8", 0, "u8", _halves(0), _negative(2),
)  # fmt: skip


def _codes_5k(blocks: Array) -> Array:
    fifth = _pieces(blocks[:, 16:48], 32, range(8)) & 1
    codes: Array = (_nibbles(blocks[:, 48:], 32) | fifth << 4).view(np.int8)
    return codes


_Q5_K: Final = TensorKind(
    "Q5_K", "i8", 256, 176, 32, _codes_5k, _scales_k, _offsets_k,
    "u8", 0, "u8", _halves(0), _negative(2),
)  # fmt: skip


def _codes_6k(blocks: Array) -> Array:
    high = _pieces(blocks[:, 128:192], 32, range(0, 8, 2)) & 3
    codes: Array = (_nibbles(blocks[:, :128], 64) | high << 4).view(np.int8) - np.int8(32)
    return codes


_Q6_K: Final = TensorKind(
    "Q6_K", "i8", 256, 210, 16, _codes_6k, lambda b: b[:, 192:208].view(np.int8),
    scale_dtype="i8", factors=_halves(208),
)  # fmt: skip
_Q8_K: Final = TensorKind(
    "Q8_K", "i8", 256, 292, 256, lambda b: b[:, 4:260].view(np.int8),
    lambda b: b[:, :4].copy().view("<f4"),
)  # fmt: skip

KINDS: Final = {
    0: _plain("F32", "f32"), 1: _plain("F16", "f16"), 2: _Q4_0, 3: _Q4_1, 6: _Q5_0, 7: _Q5_1,
    8: _Q8_0, 10: _Q2_K, 11: _Q3_K, 12: _Q4_K, 13: _Q5_K, 14: _Q6_K, 15: _Q8_K,
    24: _plain("I8", "i8"), 25: _plain("I16", "i16"), 26: _plain("I32", "i32"),
    27: _plain("I64", "i64"), 28: _plain("F64", "f64"), 30: _plain("BF16", "bf16"),
}  # fmt: skip
"""The types by their numbers in a file."""
OTHERS: Final = {
    9: "Q8_1", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S",
    22: "IQ2_S", 23: "IQ4_XS", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4",
}  # fmt: skip
"""The types that clew does not read."""
