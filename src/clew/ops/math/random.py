"""Random numbers: a hash of a key and each element's position, equal for any number of threads.

A key comes from a host operator without inputs, which is never folded or shared: each run draws a
new one, or the same one with a seed. Sources: SplitMix64 (Steele, Lea and Flood, 2014) for the
hash, Box and Muller, 1958 for the normal distribution.
"""

from __future__ import annotations

import secrets
from typing import Any, Final

import numpy as np

from clew import te
from clew.ir.types import Type
from clew.ops.common import f32, i64, need_rank
from clew.ops.registry import Sample, register_op
from clew.support.errors import GraphTypeError
from clew.te import Scalar, Tensor
from clew.te.expr import Imm, binary

Array = np.ndarray[Any, Any]

_GOLDEN: Final = 0x9E3779B97F4A7C15
# Random bits of a uniform number by dtype, few enough to stay below 1.
_BITS: Final = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8}


@register_op("random_key", host=True, samples=(Sample(seed=3.5), Sample(seed=float("nan"))))
def random_key(*, seed: float | None = None) -> Array:
    """A key `i64[]` for random numbers: determined by the seed, else new each time."""
    if seed is None:
        return np.asarray(secrets.randbits(64) - (1 << 63), np.int64)
    bits = int(np.float64(seed).view(np.uint64))
    return np.random.SeedSequence(bits).generate_state(1, np.uint64).astype(np.int64).reshape(())


@random_key.types
def _random_key_types(*, seed: float | None) -> Type:
    return i64()


def _mixed(z: Scalar) -> Scalar:
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = (z ^ binary("shr", z, shift)) * Imm(factor, "u64")
    return z ^ binary("shr", z, 31)


def _hash(key: Tensor, shape: tuple[Any, ...], place: tuple[Scalar, ...]) -> Scalar:
    """Returns 64 random bits for the element at a position."""
    number = te.as_scalar(0)
    for size, index in zip(shape, place, strict=True):
        number = number * te.size(size) + index
    start = _mixed(te.cast("u64", key[()]) + Imm(_GOLDEN, "u64"))
    return _mixed((te.cast("u64", number) + 1) * Imm(_GOLDEN, "u64") + start)


def _fraction(bits: Scalar, count: int, dtype: str) -> Scalar:
    """Returns a multiple of 2^-count in [0, 1), made of the leading bits."""
    number = te.cast("i64", binary("shr", bits, 64 - count))
    return te.cast(dtype, number) * 2.0**-count


def _check(name: str, key: Tensor, dtype: str) -> None:
    need_rank(name, "the key", key, 0)
    if key.dtype != "i64":
        raise GraphTypeError("T105", f"{name}: the key is {key.type}, expected i64[]")
    if dtype not in _BITS:
        raise GraphTypeError("T106", f"{name}: unsupported dtype {dtype!r}")


_KEY = np.asarray(7, np.int64)
_CASES = (
    Sample(i64(), shape=(3, 5), dtype="f32"),
    Sample(_KEY, shape=(37,), dtype="f64"),
    Sample(_KEY, shape=(), dtype="f16"),
    Sample(_KEY, shape=(0, 2), dtype="bf16"),
    Sample(i64(), shape=(3,), dtype="i32", error="T106"),
    Sample(i64(2), shape=(3,), dtype="f32", error="T102"),
    Sample(f32(), shape=(3,), dtype="f32", error="T105"),
)


@register_op("random_uniform", samples=(*_CASES, Sample(_KEY, shape=(9,), low=-2.0, high=3.0)))
def random_uniform(
    key: Tensor, *, shape: tuple[int, ...], low: float = 0.0, high: float = 1.0, dtype: str = "f32"
) -> Tensor:
    """Uniform random numbers from `[low, high)` with a key `i64[]`.

    Errors: T102, T105, T106. Source: ONNX RandomUniform-22.
    """
    _check("random_uniform", key, dtype)
    wide = "f64" if dtype == "f64" else "f32"

    def body(*i: Scalar) -> Scalar:
        drawn = _fraction(_hash(key, shape, i), _BITS[dtype], wide)
        return te.cast(dtype, drawn * (high - low) + low)

    return te.compute(shape, body, "random_uniform")


@register_op("random_normal", samples=(*_CASES, Sample(_KEY, shape=(9,), mean=5.0, scale=0.5)))
def random_normal(
    key: Tensor,
    *,
    shape: tuple[int, ...],
    mean: float = 0.0,
    scale: float = 1.0,
    dtype: str = "f32",
) -> Tensor:
    """Normally distributed random numbers with a key `i64[]`.

    Errors: T102, T105, T106. Source: ONNX RandomNormal-22.
    """
    _check("random_normal", key, dtype)
    wide = "f64" if dtype == "f64" else "f32"
    count = _BITS[wide]

    def body(*i: Scalar) -> Scalar:
        bits = _hash(key, shape, i)
        # In (0, 1], so that its logarithm is finite.
        radius = 1.0 - _fraction(bits, count, wide)
        turn = _fraction(_mixed(bits + Imm(_GOLDEN, "u64")), count, wide)
        length = te.call("sqrt", te.call("log", radius) * -2.0)
        return te.cast(dtype, length * te.call("cos", turn * (2 * np.pi)) * scale + mean)

    return te.compute(shape, body, "random_normal")
