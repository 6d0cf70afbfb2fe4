"""The numbers in blocks of GGUF, element by element.

Source: ggml, `ggml-quants.c`, as of its description of each structure.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import numpy as np

_F = np.float32


def _half(data: bytes, at: int) -> np.float32:
    return _F(struct.unpack_from("<e", data, at)[0])


def _q4_0(b: bytes, n: int) -> np.float32:
    byte = b[2 + n % 16]
    return _half(b, 0) * _F((byte & 15 if n < 16 else byte >> 4) - 8)


def _q4_1(b: bytes, n: int) -> np.float32:
    byte = b[4 + n % 16]
    return _half(b, 0) * _F(byte & 15 if n < 16 else byte >> 4) + _half(b, 2)


def _five(b: bytes, n: int, at: int) -> int:
    byte, high = b[at + 4 + n % 16], int.from_bytes(b[at : at + 4], "little")
    return (byte & 15 if n < 16 else byte >> 4) + (high >> n & 1) * 16


def _q5_0(b: bytes, n: int) -> np.float32:
    return _half(b, 0) * _F(_five(b, n, 2) - 16)


def _q5_1(b: bytes, n: int) -> np.float32:
    return _half(b, 0) * _F(_five(b, n, 4)) + _half(b, 2)


def _q8_0(b: bytes, n: int) -> np.float32:
    return _half(b, 0) * _F(struct.unpack_from("b", b, 2 + n)[0])


def _q2_k(b: bytes, n: int) -> np.float32:
    code = b[16 + n // 128 * 32 + n % 32] >> (n % 128 // 32 * 2) & 3
    step = b[n // 16]
    return (_half(b, 80) * _F(step & 15)) * _F(code) - _half(b, 82) * _F(step >> 4)


def _q3_k(b: bytes, n: int) -> np.float32:
    low = b[32 + n // 128 * 32 + n % 32] >> (n % 128 // 32 * 2) & 3
    code = low - (0 if b[n % 32] >> (n // 32) & 1 else 4)
    group = n // 16
    step = b[96 + group % 8] >> (group // 8 * 4) & 15
    step |= (b[104 + group % 4] >> (group // 4 * 2) & 3) << 4
    return (_half(b, 108) * _F(step - 32)) * _F(code)


def _steps(b: bytes, group: int) -> tuple[int, int]:
    s = b[4:16]
    if group < 4:
        return s[group] & 63, s[group + 4] & 63
    rest = s[group + 4]
    return rest & 15 | s[group - 4] >> 6 << 4, rest >> 4 | s[group] >> 6 << 4


def _k(b: bytes, n: int, code: int) -> np.float32:
    scale, least = _steps(b, n // 32)
    return (_half(b, 0) * _F(scale)) * _F(code) - _half(b, 2) * _F(least)


def _q4_k(b: bytes, n: int) -> np.float32:
    byte = b[16 + n // 64 * 32 + n % 32]
    return _k(b, n, byte & 15 if n % 64 < 32 else byte >> 4)


def _q5_k(b: bytes, n: int) -> np.float32:
    byte = b[48 + n // 64 * 32 + n % 32]
    low = byte & 15 if n % 64 < 32 else byte >> 4
    return _k(b, n, low + (b[16 + n % 32] >> (n // 32) & 1) * 16)


def _q6_k(b: bytes, n: int) -> np.float32:
    byte = b[n // 128 * 64 + n % 64]
    low = byte & 15 if n % 128 < 64 else byte >> 4
    high = b[128 + n // 128 * 32 + n % 32] >> (n % 128 // 32 * 2) & 3
    (step,) = struct.unpack_from("b", b, 192 + n // 16)
    return (_half(b, 208) * _F(step)) * _F(low + high * 16 - 32)


def _q8_k(b: bytes, n: int) -> np.float32:
    code, (step,) = struct.unpack_from("b", b, 4 + n)[0], struct.unpack_from("<f", b)
    return _F(step) * _F(code)


NUMBERS: Final[dict[str, Callable[[bytes, int], np.float32]]] = {
    "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q8_0": _q8_0, "Q2_K": _q2_k,
    "Q3_K": _q3_k, "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k, "Q8_K": _q8_k,
}  # fmt: skip
"""The number at a place in a block, by type."""
