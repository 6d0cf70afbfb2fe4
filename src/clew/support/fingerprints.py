"""FarmHash's 64-bit fingerprints of equally long keys, all keys at once.

Source: FarmHash 1.1, `Fingerprint64`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
_K0: Final = np.uint64(0xC3A5C85C97CB3127)
_K1: Final = np.uint64(0xB492B66FBE98F273)
_K2: Final = np.uint64(0x9AE16A3B2F90404F)
_BLOCK: Final = 64
_SEED: Final = np.uint64(81)


def fingerprints(keys: NDArray[np.uint8]) -> Words:
    """Returns the fingerprint of each key, `u64[...]` for bytes `u8[..., length]`."""
    length = keys.shape[-1]
    with np.errstate(over="ignore"):
        if length > _BLOCK:
            return _of_blocks(keys)
        mul = _K2 + np.uint64(2 * length)
        if length > 32:
            return _up_to_64(keys, mul)
        if length > 16:
            return _mixed(*_four(keys, mul)[:2], mul)
        return _up_to_16(keys, mul)


def _word(keys: NDArray[np.uint8], at: int, count: int = 8) -> Words:
    """Returns `count` bytes of each key as a little-endian number."""
    found = np.zeros(keys.shape[:-1], np.uint64)
    for n in range(count):
        found |= keys[..., at + n].astype(np.uint64) << np.uint64(8 * n)
    return found


def _turned(value: Any, bits: int) -> Words:
    found: Words = (value >> np.uint64(bits)) | (value << np.uint64(64 - bits))
    return found


def _shifted(value: Any) -> Words:
    found: Words = value ^ (value >> np.uint64(47))
    return found


def _mixed(u: Any, v: Any, mul: Any) -> Words:
    first = _shifted((u ^ v) * mul)
    found: Words = _shifted((v ^ first) * mul) * mul
    return found


def _up_to_16(keys: NDArray[np.uint8], mul: Any) -> Words:
    length = keys.shape[-1]
    if length >= 8:
        a, b = _word(keys, 0) + _K2, _word(keys, length - 8)
        return _mixed(_turned(b, 37) * mul + a, (_turned(a, 25) + b) * mul, mul)
    if length >= 4:
        first = np.uint64(length) + (_word(keys, 0, 4) << np.uint64(3))
        return _mixed(first, _word(keys, length - 4, 4), mul)
    if length == 0:
        return np.full(keys.shape[:-1], _K2)
    low, middle, high = (_word(keys, n, 1) for n in (0, length >> 1, length - 1))
    y = low + (middle << np.uint64(8))
    z = np.uint64(length) + (high << np.uint64(2))
    found: Words = _shifted(y * _K2 ^ z * _K0) * _K2
    return found


def _four(keys: NDArray[np.uint8], mul: Any) -> tuple[Words, Words, Words]:
    """Returns two sums of the first and last 16 bytes, and the first word times a constant."""
    length = keys.shape[-1]
    a = _word(keys, 0) * (_K2 if length > 32 else _K1)
    b, c = _word(keys, 8), _word(keys, length - 8) * mul
    d = _word(keys, length - 16) * _K2
    return _turned(a + b, 43) + _turned(c, 30) + d, a + _turned(b + _K2, 18) + c, a


def _up_to_64(keys: NDArray[np.uint8], mul: Any) -> Words:
    length = keys.shape[-1]
    y, other, a = _four(keys, mul)
    z = _mixed(y, other, mul)
    e, f = _word(keys, 16) * mul, _word(keys, 24)
    g = (y + _word(keys, length - 32)) * mul
    h = (z + _word(keys, length - 24)) * mul
    return _mixed(_turned(e + f, 43) + _turned(g, 30) + h, e + _turned(f + a, 18) + g, mul)


def _pair(keys: NDArray[np.uint8], at: int, a: Any, b: Any) -> tuple[Words, Words]:
    w, x, y, z = (_word(keys, at + 8 * n) for n in range(4))
    a = a + w
    b = _turned(b + a + z, 21)
    first = a
    a = a + x + y
    return a + z, b + _turned(a, 44) + first


def _of_blocks(keys: NDArray[np.uint8]) -> Words:
    length = keys.shape[-1]
    zero = np.zeros(keys.shape[:-1], np.uint64)
    y = zero + _SEED * _K1 + np.uint64(113)
    z = _shifted(y * _K2 + np.uint64(113)) * _K2
    x = zero + _SEED * _K2 + _word(keys, 0)
    v, w = (zero, zero), (zero, zero)
    last = (length - 1) & (_BLOCK - 1)
    end = length - 1 - last
    for at in range(0, end, _BLOCK):
        x, y, z, v, w = _block(keys, at, (x, y, z), v, w, _K1, np.uint64(1))
    mul = _K1 + ((z & np.uint64(0xFF)) << np.uint64(1))
    rest = w[0] + np.uint64(last)
    v = (v[0] + rest, v[1])
    w = (rest + v[0], w[1])
    x, y, z, v, w = _block(keys, end + last - 63, (x, y, z), v, w, mul, np.uint64(9))
    first = _mixed(v[0], w[0], mul) + _shifted(y) * _K0 + z
    return _mixed(first, _mixed(v[1], w[1], mul) + x, mul)


def _block(
    keys: NDArray[np.uint8],
    at: int,
    state: tuple[Words, Words, Words],
    v: tuple[Words, Words],
    w: tuple[Words, Words],
    mul: Any,
    times: np.uint64,
) -> tuple[Words, Words, Words, tuple[Words, Words], tuple[Words, Words]]:
    """Mixes 64 bytes into the state."""
    x, y, z = state
    x = _turned(x + y + v[0] + _word(keys, at + 8), 37) * mul
    y = _turned(y + v[1] + _word(keys, at + 48), 42) * mul
    x = x ^ (w[1] * times)
    y = y + v[0] * times + _word(keys, at + 40)
    z = _turned(z + w[0], 33) * mul
    v = _pair(keys, at, v[1] * mul, x + w[0])
    w = _pair(keys, at + 32, z + w[1], y + _word(keys, at + 16))
    return z, y, x, v, w
