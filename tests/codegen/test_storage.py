"""Conversions of stored numbers, native and in numpy: every code, every f16, what lies around."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from clew.codegen.math import arith
from clew.codegen.storage import FORMATS
from clew.ir.types import STORAGE, bits, is_float, to_numpy
from clew.te.convert import convert, round_to_odd

Run = Callable[..., Any]

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

FLOATS = tuple(d for d in STORAGE if is_float(d))
INTEGERS = tuple(d for d in STORAGE if not is_float(d))
LANES = 16


def every_f16() -> np.ndarray:
    return np.arange(1 << 16, dtype=np.uint16).view(np.float16)


def near_ties(dtype: str) -> np.ndarray:
    """Returns f64 between neighbors of a format, at the middle and a little beside it."""
    codes = np.arange(1 << bits(dtype), dtype=np.uint8).view(to_numpy(dtype)).astype(np.float64)
    sorted_ = np.unique(codes[np.isfinite(codes)])
    middles = np.concatenate([(sorted_[1:] + sorted_[:-1]) / 2, sorted_, sorted_ * 1.0625])
    return np.concatenate([middles * (1 + d) for d in (0.0, 2.0**-40, -(2.0**-40), 2.0**-23)])


def codes_of(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(np.uint8)


def exact(x: np.ndarray, dtype: str) -> np.ndarray:
    """Returns what ml_dtypes makes of numbers, but rounded once."""
    return (round_to_odd(x) if x.dtype == np.float64 else x.astype(np.float32)).astype(
        to_numpy(dtype)
    )


def same(got: np.ndarray, wanted: np.ndarray) -> None:
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(got.astype(np.float64), wanted.astype(np.float64))


def padded(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x, np.ones(-x.size % LANES, x.dtype)])


@pytest.mark.parametrize("dtype", FLOATS)
def test_every_code_to_floats(run_both: Run, dtype: str) -> None:
    codes = np.arange(256, dtype=np.uint8)  # also with bits above the code
    x = codes.view(to_numpy(dtype))
    wanted = (codes & (2 ** bits(dtype) - 1)).view(to_numpy(dtype)).astype(np.float32)
    for wide in ("f32", "f64", "f16", "bf16"):
        got = run_both(lambda b, a, w=wide: arith.cast(b, w, a[0]), [dtype], x)
        same(got, wanted.astype(to_numpy(wide)))
        np.testing.assert_array_equal(np.signbit(got)[wanted == 0], np.signbit(wanted)[wanted == 0])
        same(convert(x, wide), wanted.astype(to_numpy(wide)))
    truth = run_both(lambda b, a: arith.cast(b, "bool", a[0]), [dtype], x)
    np.testing.assert_array_equal(truth, wanted != 0)
    np.testing.assert_array_equal(convert(x, "bool"), wanted != 0)


@pytest.mark.parametrize("dtype", sorted(FORMATS))
@pytest.mark.parametrize("source", ["f16", "bf16", "f32", "f64"])
def test_floats_are_rounded_once_to_nearest_even(run_both: Run, dtype: str, source: str) -> None:
    if source in ("f16", "bf16"):
        x = np.arange(1 << 16, dtype=np.uint16).view(to_numpy(source))
    else:
        rng = np.random.default_rng(1)
        width = 4 if source == "f32" else 8
        anything = rng.integers(0, 256, 4096 * width, dtype=np.uint8).view(to_numpy(source))
        special = [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1e-45, 3e38]
        x = np.concatenate([every_f16(), near_ties(dtype), anything, special])
        x = x.astype(to_numpy(source))
    x = padded(x)
    got = run_both(lambda b, a: arith.cast(b, dtype, a[0]), [source], x)
    assert codes_of(got).max() < 1 << bits(dtype)
    wanted = exact(x, dtype)
    number = ~np.isnan(x.astype(np.float32))
    np.testing.assert_array_equal(codes_of(got)[number], codes_of(wanted)[number])
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    np.testing.assert_array_equal(codes_of(convert(x, dtype))[number], codes_of(wanted)[number])


@pytest.mark.parametrize("dtype", FLOATS)
def test_halfway_of_f64_beside_f32(dtype: str) -> None:
    """An f64 just above a tie must not become the tie on its way."""
    if dtype in FORMATS:
        one = np.array([1.0]).astype(to_numpy(dtype))
        after = (codes_of(one) + 1).view(to_numpy(dtype)).astype(np.float64)
        tie = (1.0 + after) / 2
        assert convert(tie * (1 + 2.0**-40), dtype).astype(np.float64) == after
        assert convert(tie * (1 - 2.0**-40), dtype).astype(np.float64) == 1.0


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("other", ["i8", "u8", "i16", "i32", "u32", "i64", "u64", "f32", "bool"])
def test_short_integers(run_both: Run, dtype: str, other: str) -> None:
    codes = np.arange(256, dtype=np.uint8)
    x = codes.view(to_numpy(dtype))
    low, high = int(ml_dtypes.iinfo(to_numpy(dtype)).min), int(ml_dtypes.iinfo(to_numpy(dtype)).max)
    modulus = high - low + 1
    numbers = ((codes.astype(np.int64) - low) % modulus) + low
    wanted = numbers.astype(to_numpy(other))
    got = run_both(lambda b, a: arith.cast(b, other, a[0]), [dtype], x)
    np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(convert(x, other), wanted)
    if other == "bool":
        back = np.arange(16) % 2 == 1
    else:
        signed = to_numpy(other).kind in "if"
        back = np.arange(-64 if signed else 0, 64).astype(to_numpy(other))
    got = run_both(lambda b, a: arith.cast(b, dtype, a[0]), [other], back)
    wrapped = (back.astype(np.int64) - low) % modulus + low
    np.testing.assert_array_equal(got.astype(np.int64), wrapped)
    np.testing.assert_array_equal(codes_of(got), codes_of(convert(back, dtype)))
    assert codes_of(got).max() <= modulus - 1


@pytest.mark.parametrize("source", STORAGE)
def test_between_stored_dtypes(run_both: Run, source: str) -> None:
    codes = np.arange(256, dtype=np.uint8) & np.uint8(2 ** bits(source) - 1)
    x = codes.view(to_numpy(source))
    for dtype in STORAGE:
        if dtype == "f8e8m0fnu":
            continue
        got = run_both(lambda b, a, d=dtype: arith.cast(b, d, a[0]), [source], x)
        wanted = convert(x, dtype)
        if is_float(dtype):
            number = ~np.isnan(x.astype(np.float32))
            np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
            got, wanted = got[number], wanted[number]
        np.testing.assert_array_equal(codes_of(got), codes_of(wanted))


@pytest.mark.parametrize("source", ["f16", "bf16", "f32", "f64", "f8e5m2", "f8e8m0fnu"])
@pytest.mark.parametrize(
    "dtype", ["i4", "u2", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64"]
)
def test_out_of_range_integers_are_the_same_everywhere(
    run_both: Run, source: str, dtype: str
) -> None:
    """One lane, many lanes, numpy's conversion here; and ONNX Runtime's: numpy's own on x86."""
    limits = [s * (2.0**n + d) for n in (1, 3, 7, 8, 15, 16, 31, 32, 53, 62, 63, 64, 100)
              for d in (-1, -0.5, 0, 0.5, 1) for s in (-1, 1)]  # fmt: skip
    x = padded(np.array([*limits, np.nan, -np.nan, np.inf, -np.inf, -0.0]))
    x = (
        convert(x, source)
        if source != "f8e8m0fnu"
        else x[: x.size // 16 * 16].astype(ml_dtypes.float8_e8m0fnu)
    )
    got = run_both(lambda b, a: arith.cast(b, dtype, a[0]), [source], x)
    np.testing.assert_array_equal(codes_of(got), codes_of(convert(x, dtype)))
    if dtype in ("i8", "u8", "i16", "u16", "i32", "i64") and source in ("f32", "f64"):
        wide = x.astype(np.float64)
        inside = np.abs(wide) < (2.0**63 if dtype == "i64" else 2.0**31)
        whole = np.where(inside, wide, 0).astype(np.int64).astype(to_numpy(dtype))
        np.testing.assert_array_equal(got[inside], whole[inside])
        lowest = np.int64(-(2**63)) if dtype == "i64" else np.int64(-(2**31))
        assert (got[~inside] == lowest.astype(to_numpy(dtype))).all()


@pytest.mark.parametrize("dtype", STORAGE)
def test_literals_of_stored_dtypes(dtype: str) -> None:
    codes = np.arange(1 << bits(dtype), dtype=np.uint8).view(to_numpy(dtype))
    for element in codes:
        number = float(element) if is_float(dtype) else int(element)
        back = arith.literal_of(arith.literal(number, dtype))
        assert back == number or (number != number and back != back)
