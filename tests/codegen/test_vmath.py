from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import mpmath
import numpy as np
import pytest

from clew.codegen.math import arith
from clew.ir.types import to_numpy
from clew.te.expr import INTRINSICS

Run = Callable[..., Any]
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

REFERENCES: dict[str, Callable[..., np.ndarray]] = {
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2,
    "log1p": np.log1p, "tanh": np.tanh, "sin": np.sin, "cos": np.cos, "tan": np.tan,
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "sigmoid": lambda x: np.where(x > 0, 1 / (1 + np.exp(-x)), np.exp(x) / (1 + np.exp(x))),
    "rsqrt": lambda x: 1 / np.sqrt(x), "sqrt": np.sqrt,
    "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": np.rint,
    "isnan": np.isnan, "isinf": np.isinf,
}  # fmt: skip
EXACT = ("sqrt", "floor", "ceil", "trunc", "round", "isnan", "isinf")
# Where the function bends: dense samples there, next to random bits everywhere.
DENSE: dict[str, tuple[float, float]] = {
    "exp": (-104.5, 89), "exp2": (-151, 129), "expm1": (-20, 89), "sigmoid": (-105, 20),
    "log": (0, 4), "log2": (0, 4), "log1p": (-1, 3), "sin": (-50, 50), "cos": (-50, 50),
    "tan": (-50, 50), "asin": (-1, 1), "acos": (-1, 1), "atan": (-4, 4), "sinh": (-90, 90),
    "cosh": (-90, 90), "asinh": (-4, 4), "acosh": (1, 4), "atanh": (-1, 1), "tanh": (-10, 10),
    "erf": (-4.5, 4.5), "normal_cdf": (-9, 9), "rsqrt": (0, 4), "sqrt": (0, 4),
}  # fmt: skip
FUNCTIONS = [*REFERENCES, "erf"]


def samples(name: str, dtype: str, count: int) -> np.ndarray:
    """Returns random bits, dense samples and edge values."""
    kind = to_numpy(dtype)
    rng = np.random.default_rng(7)
    raw = rng.integers(0, 256, count // 2 * kind.itemsize, dtype=np.uint8).view(kind)
    low, high = DENSE.get(name, (-100, 100))
    if dtype == "f64" and name in ("exp", "exp2", "sigmoid", "sinh", "cosh"):
        low, high = low * 8, high * 8
    dense = np.linspace(low, high, count // 4).astype(kind)
    small = (np.exp(rng.uniform(-80, 3, count // 4)) * rng.choice([-1, 1], count // 4)).astype(kind)
    info = ml_dtypes.finfo(kind)
    edges = [0, float(info.smallest_subnormal), float(info.tiny), 0.5, 1, 2, 3, 2**31, 1e30,
             float(info.max), np.inf]  # fmt: skip
    edge = np.array([*edges, *[-e for e in edges], np.nan, 0.625, 0.9375, 2.25]).astype(kind)
    turns = (np.arange(1, 4097) * (math.pi / 2)).astype(kind)
    x = np.concatenate([edge, turns, raw, dense, small])
    return x[: x.size // 16 * 16]


def places(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Returns errors in units in the last place of `got`'s dtype; NaN and infinity must agree."""
    kind = got.dtype
    info = ml_dtypes.finfo(kind)
    rounded = exact.astype(kind)
    finite = np.isfinite(rounded)
    same = np.where(np.isnan(rounded), np.isnan(got), got == rounded)
    size = np.maximum(np.abs(exact), exact.dtype.type(float(info.tiny)))
    unit = np.exp2(np.floor(np.log2(size)) - info.nmant)
    error = np.abs(got.astype(exact.dtype) - exact) / unit
    # Just below the largest number rounding may go either way.
    border = ~finite & np.isfinite(exact) & (np.abs(got) == info.max)
    error = np.where(finite, error, np.where(same | border, 0, np.inf))
    return np.where(np.isnan(error), np.inf, error)


def largest(x: np.ndarray, got: np.ndarray, exact: np.ndarray) -> tuple[float, Any]:
    error = places(got, exact)
    worst = int(np.argmax(error))
    print(f"largest error {error[worst]:.3f} at {x[worst]!r}")  # seen with `pytest -s`
    return float(error[worst]), (x[worst], got[worst], exact[worst])


def assert_same_zeros(x: np.ndarray, got: np.ndarray, exact: np.ndarray) -> None:
    """Asserts the same sign at zeros (of NaN any)."""
    zero = (x == 0) & (exact == exact)
    assert np.signbit(got[zero]).tolist() == np.signbit(exact[zero]).tolist()


def error_function(x: np.ndarray) -> np.ndarray:
    return np.array([math.erf(v) for v in x.tolist()])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_f32(run_both: Run, name: str) -> None:
    x = samples(name, "f32", 200_000)
    got = run_both(lambda b, a: arith.intrinsic(b, name, a), ["f32"], x)
    exact = REFERENCES.get(name, error_function)(x.astype(np.float64))
    if name in EXACT:
        expected = exact.astype(got.dtype)
        assert np.array_equal(got, expected, equal_nan=got.dtype != bool)
        return
    error, where = largest(x, got, exact)
    assert error <= 2, where
    assert_same_zeros(x, got, exact)


def normal_distribution(x: np.ndarray) -> np.ndarray:
    return np.array([math.erfc(-v * math.sqrt(0.5)) / 2 for v in x.tolist()])


@pytest.mark.parametrize(("dtype", "bound"), [("f32", 2e-7), ("f64", 1.2e-16)])
def test_normal_distribution_function(run_both: Run, dtype: str, bound: float) -> None:
    x = samples("normal_cdf", dtype, 200_000)
    got = run_both(lambda b, a: arith.intrinsic(b, "normal_cdf", a), [dtype], x)
    exact = normal_distribution(x.astype(np.float64))
    assert np.array_equal(np.isnan(got), np.isnan(x))
    error = np.nan_to_num(np.abs(got.astype(np.float64) - exact))
    worst = int(error.argmax())
    assert error[worst] <= bound, (x[worst], got[worst], exact[worst])
    far = np.abs(x) >= (5.5 if dtype == "f32" else 8.5)
    assert got[far].tolist() == (x[far] > 0).tolist()  # exactly, so that a GELU is 0 there


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_exponentials_that_are_never_denormal(run_both: Run, dtype: str) -> None:
    x = samples("exp", dtype, 200_000)
    got = run_both(lambda b, a: arith.intrinsic(b, "exp_normal", a), [dtype], x)
    whole = run_both(lambda b, a: arith.intrinsic(b, "exp", a), [dtype], x)
    least = float(np.finfo(to_numpy(dtype)).tiny)
    assert np.all((got == 0) | (got >= least) | np.isnan(got))
    small = whole < 1.5 * least if dtype == "f32" else x < -708
    assert np.all(got[whole < least] == 0)
    np.testing.assert_array_equal(got[~small], whole[~small])


LONG = np.longdouble
has_long_double = pytest.mark.skipif(
    np.finfo(np.longdouble).nmant <= 52, reason="no longer float than f64 to compare with"
)


@has_long_double
@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n != "erf"])
def test_f64(run_both: Run, name: str) -> None:
    x = samples(name, "f64", 60_000)
    got = run_both(lambda b, a: arith.intrinsic(b, name, a), ["f64"], x)
    exact = REFERENCES[name](x.astype(LONG))
    if name in EXACT:
        expected = REFERENCES[name](x)
        assert np.array_equal(got, expected, equal_nan=got.dtype != bool)
        return
    error, where = largest(x, got, exact)
    assert error <= 4, where
    assert_same_zeros(x, got, exact)


@has_long_double
def test_f64_erf(run_both: Run) -> None:
    x = samples("erf", "f64", 12_000)
    got = run_both(lambda b, a: arith.intrinsic(b, "erf", a), ["f64"], x)
    with mpmath.workdps(40):
        exact = [mpmath.erf(mpmath.mpf(v)) if v == v else mpmath.nan for v in x.tolist()]
        high = [float(v) for v in exact]
        low = [float(v - h) if v == v else math.nan for v, h in zip(exact, high, strict=True)]
    error, where = largest(x, got, np.array(high, LONG) + np.array(low, LONG))
    assert error <= 4, where


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_short_floats_are_rounded_once(run_both: Run, dtype: str, name: str) -> None:
    x = np.arange(65536, dtype=np.uint16).view(to_numpy(dtype))
    got = run_both(lambda b, a: arith.intrinsic(b, name, a), [dtype], x)
    wide = run_both(lambda b, a: arith.intrinsic(b, name, a), ["f32"], x.astype(np.float32))
    assert np.array_equal(
        *(v.astype(np.float32) for v in (got, wide.astype(got.dtype))), equal_nan=True
    )


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_fma_rounds_once_and_copysign_keeps_zeros(run_both: Run, dtype: str) -> None:
    kind = to_numpy(dtype)
    tiny = kind.type(np.finfo(kind).eps)
    x = np.full(16, 1 + tiny, kind)
    z = np.full(16, -(1 + 2 * tiny), kind)
    got = run_both(lambda b, a: arith.fma(b, *a), [dtype] * 3, x, x, z)
    assert np.array_equal(got, np.full(16, tiny * tiny))
    x, y = np.linspace(-1, 1, 16).astype(kind), np.tile([0.0, -0.0, -np.inf, 3], 4).astype(kind)
    got = run_both(lambda b, a: arith.intrinsic(b, "copysign", a), [dtype] * 2, x, y)
    assert got.tobytes() == np.copysign(x, y).tobytes()


@pytest.mark.parametrize("dtype", ["f16", "f32", "f64"])
def test_remainders_are_exact(run_both: Run, dtype: str) -> None:
    kind = to_numpy(dtype)
    rng = np.random.default_rng(3)
    reach = {"f16": 4, "f32": 37, "f64": 307}[dtype]
    x, y = (
        (10.0 ** rng.uniform(-reach, reach, 40_000) * rng.choice([-1, 1], 40_000)).astype(kind)
        for _ in "xy"
    )
    close = rng.random(40_000) < 0.5
    y = np.where(close, (x / rng.integers(1, 2000, 40_000)).astype(kind), y).astype(kind)
    edges = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, np.finfo(kind).tiny, 1, -3], kind)
    ends = np.stack([a.reshape(-1) for a in np.meshgrid(edges, edges)])
    x, y = (np.concatenate([a, np.tile(e, 16)]) for a, e in zip((x, y), ends, strict=True))
    got = run_both(lambda b, a: arith.intrinsic(b, "fmod", a), [dtype] * 2, x, y)
    with np.errstate(all="ignore"):
        want = np.fmod(x, y)
    np.testing.assert_array_equal(got, want)
    numbers = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(want[numbers]))


def test_every_intrinsic_is_tested() -> None:
    assert {*FUNCTIONS, "fma", "copysign", "fmod", "normal_cdf", "exp_normal"} == set(INTRINSICS)


@pytest.mark.parametrize(
    ("triple", "cpu"),
    [("x86_64-unknown-linux-gnu", "x86-64-v3"), ("aarch64-unknown-linux-gnu", "neoverse-n1")],
)
def test_every_machine_computes_inline(undefined_symbols: Run, triple: str, cpu: str) -> None:
    for name in INTRINSICS:
        inputs = ["f32"] * {"fma": 3, "copysign": 2, "fmod": 2}.get(name, 1)

        def emit(b: Any, args: Any, name: str = name) -> Any:
            return arith.intrinsic(b, name, args)

        # The C library computes what is far out of the usual range.
        expected = {name} if name in ("sin", "cos", "tan", "fmod") else set()
        assert undefined_symbols(emit, inputs, triple, cpu) == expected


def power_samples(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    kind = to_numpy(dtype)
    rng = np.random.default_rng(5)
    edges = [0.0, 1, 2, 3, 0.5, 1.5, 1e30, 5e-324 if dtype == "f64" else 1e-45, np.inf]
    edge = np.array([*edges, *[-e for e in edges], np.nan], kind)
    x = np.exp(rng.uniform(-20, 20, 50_000)) * rng.choice([1, 1, -1], 50_000)
    y = np.where(rng.random(50_000) < 0.5, rng.integers(-9, 10, 50_000), rng.uniform(-6, 6, 50_000))
    close = 1 + rng.uniform(-1e-3, 1e-3, 20_000)
    large = rng.uniform(-8e4, 8e4, 20_000)
    xs = np.concatenate([np.repeat(edge, edge.size), x, close]).astype(kind)
    ys = np.concatenate([np.tile(edge, edge.size), y, large]).astype(kind)
    size = xs.size // 16 * 16
    return xs[:size], ys[:size]


@has_long_double
@pytest.mark.parametrize(("dtype", "limit"), [("f32", 2), ("f64", 2)])
def test_power(run_both: Run, dtype: str, limit: float) -> None:
    x, y = power_samples(dtype)
    got = run_both(lambda b, a: arith.binary(b, "pow", *a), [dtype, dtype], x, y)
    error, where = largest(x, got, np.power(x.astype(LONG), y.astype(LONG)))
    assert error <= limit, where


@has_long_double
@pytest.mark.parametrize(
    "exponent", [-33, -8, -3, -2, -1, -0.5, 0, 0.25, 0.5, 0.75, 1, 2, 3, 4, 5, 17, 32, 2.5]
)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_power_with_a_literal(run_both: Run, dtype: str, exponent: float) -> None:
    x = power_samples(dtype)[0]

    def emit(b: Any, args: Any) -> Any:
        return arith.binary(b, "pow", args[0], arith.literal(exponent, dtype, args[0].lanes))

    got = run_both(emit, [dtype], x)
    error, where = largest(x, got, np.power(x.astype(LONG), LONG(exponent)))
    assert error <= 2, where


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("exponent", [None, 2, -1, 0.5, 0.75, 7])
def test_power_of_short_floats_is_rounded_once(
    run_both: Run, dtype: str, exponent: float | None
) -> None:
    x, y = (v.astype(to_numpy(dtype)) for v in power_samples("f32"))
    if exponent is not None:
        y = np.full_like(y, exponent)

    def emit(b: Any, args: Any) -> Any:
        if exponent is None:
            return arith.binary(b, "pow", *args)
        number = arith.literal(exponent, args[0].dtype, args[0].lanes)
        return arith.binary(b, "pow", args[0], number)

    got = run_both(emit, [dtype] * 2, x, y)
    wide = run_both(emit, ["f32"] * 2, x.astype(np.float32), y.astype(np.float32))
    expected = wide.astype(got.dtype).astype(np.float32)
    assert np.array_equal(got.astype(np.float32), expected, equal_nan=True)
