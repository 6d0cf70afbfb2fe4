from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from clew.codegen.builder import Builder, ModuleBuilder
from clew.codegen.math import arith
from clew.ir.types import is_float, to_numpy
from clew.support.errors import CompileError
from clew.te.expr import COMPARISONS

Run = Callable[..., Any]

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

LANES = 16
INTEGERS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")
FLOATS = ("f16", "bf16", "f32", "f64")


def edge_values(dtype: str) -> np.ndarray:
    """Returns every number of a dtype that arithmetic likes to get wrong."""
    kind = to_numpy(dtype)
    if dtype == "bool":
        return np.array([False, True])
    if is_float(dtype):
        info = ml_dtypes.finfo(kind)
        positive = [0, info.smallest_subnormal, info.tiny, 0.3, 1, 1.5, 2.5, 3, 100, info.max]
        numbers = [float(v) for v in positive] + [np.inf]
        return np.array([*numbers, *[-v for v in numbers], np.nan]).astype(kind)
    limits = np.iinfo(kind)
    low, high = int(limits.min), int(limits.max)
    near_zero = [v for v in range(-9, 70) if low <= v <= high]
    return np.array([low, low + 1, *near_zero, high // 2, high - 1, high], kind)


def samples(dtype: str, count: int, seed: int = 0) -> np.ndarray:
    """Returns random bits and small numbers."""
    rng = np.random.default_rng(seed)
    kind = to_numpy(dtype)
    if dtype == "bool":
        return rng.integers(0, 2, count).astype(bool)
    raw = rng.integers(0, 256, count * kind.itemsize, dtype=np.uint8).view(kind)
    small = rng.integers(0 if dtype[0] == "u" else -9, 10, count)
    return np.where(rng.random(count) < 0.5, raw, small.astype(kind))


def pairs(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns edge values with each other, then random ones; a multiple of the lanes."""
    edges = edge_values(dtype)
    x = np.concatenate([np.repeat(edges, edges.size), samples(dtype, 4096, 1)])
    y = np.concatenate([np.tile(edges, edges.size), samples(dtype, 4096, 2)])
    size = x.size // LANES * LANES
    return x[-size:], y[-size:]


def assert_same(got: np.ndarray, expected: np.ndarray, *inputs: np.ndarray) -> None:
    """Asserts equal numbers; any NaN is as good as another, and -0 as 0."""
    assert got.dtype == expected.dtype
    same = (got == expected) | ((got != got) & (expected != expected))
    wrong = np.flatnonzero(~same)
    assert wrong.size == 0, [(*[a[i] for a in inputs], got[i], expected[i]) for i in wrong[:8]]


def _quotient(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    down = np.where((x % np.where(y == 0, 1, y) != 0) & ((x < 0) ^ (y < 0)), 1, 0).astype(x.dtype)
    return np.where(y == 0, 0, x // np.where(y == 0, 1, y) + down).astype(x.dtype)


def _shift_left(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    width = x.dtype.itemsize * 8
    inside = (y >= 0) & (y < width)
    return np.where(inside, np.left_shift(x, np.where(inside, y, 0)), 0).astype(x.dtype)


def _shift_right(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    width = x.dtype.itemsize * 8
    inside = (y >= 0) & (y < width)
    return np.where(
        inside, np.right_shift(x, np.where(inside, y, 0)), np.where(x < 0, -1, 0).astype(x.dtype)
    )


def _power(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    bits = x.dtype.itemsize * 8
    sign = x.dtype.kind == "i"

    def one(base: int, exponent: int) -> int:
        if exponent < 0:
            return {1: 1, -1: (-1) ** (exponent % 2)}.get(base, 0)
        number = pow(base, exponent, 1 << bits)
        return number - (1 << bits) if sign and number >> (bits - 1) else number

    return np.array([one(int(a), int(e)) for a, e in zip(x, y, strict=True)], x.dtype)


INTEGER_OPS: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.minimum, "max": np.maximum,
    "floordiv": lambda x, y: np.where(y == 0, 0, x // np.where(y == 0, 1, y)).astype(x.dtype),
    "mod": lambda x, y: np.where(y == 0, 0, x % np.where(y == 0, 1, y)).astype(x.dtype),
    "div": _quotient, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "shl": _shift_left, "shr": _shift_right, "pow": _power,
}  # fmt: skip


@pytest.mark.parametrize("op", INTEGER_OPS)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_as_numpy(run_both: Run, dtype: str, op: str) -> None:
    x, y = pairs(dtype)
    got = run_both(lambda b, a: arith.binary(b, op, *a), [dtype, dtype], x, y)
    assert_same(got, INTEGER_OPS[op](x, y), x, y)


@pytest.mark.parametrize("op", ["floordiv", "mod", "div"])
@pytest.mark.parametrize("dtype", [d for d in INTEGERS if not d.endswith("64")])
def test_quotients_beside_integers(run_both: Run, dtype: str, op: str) -> None:
    limits = np.iinfo(to_numpy(dtype))
    rng = np.random.default_rng(0)
    y = rng.integers(1, [2 + limits.max // 2, 16], (200, 2)).ravel()
    near = rng.integers(0, limits.max // y, endpoint=True) * y + rng.integers(-1, 2, y.shape)
    x = np.clip(near, limits.min, limits.max).astype(to_numpy(dtype))
    y = y.astype(x.dtype)
    if dtype[0] == "i":
        x, y = np.concatenate([x, -x, x]), np.concatenate([y, y, -y])
    got = run_both(lambda b, a: arith.binary(b, op, *a), [dtype, dtype], x, y)
    assert_same(got, INTEGER_OPS[op](x, y), x, y)


@pytest.mark.parametrize("op", ["floordiv", "mod", "div", "shl", "shr", "pow"])
@pytest.mark.parametrize("number", [-7, -1, 0, 1, 2, 3, 7, 16, 31])
@pytest.mark.parametrize("dtype", ["i8", "i32", "u16", "i64"])
def test_integers_with_a_literal(run_both: Run, dtype: str, number: int, op: str) -> None:
    if number < 0 and dtype[0] == "u":
        number = int(np.iinfo(to_numpy(dtype)).max) + 1 + number
    x = pairs(dtype)[0]
    y = np.full_like(x, number)

    def emit(b: Any, args: Any) -> Any:
        return arith.binary(b, op, args[0], arith.literal(number, dtype, args[0].lanes))

    assert_same(run_both(emit, [dtype], x), INTEGER_OPS[op](x, y), x, y)


@pytest.mark.parametrize("dtype", ["bool", *INTEGERS, *FLOATS])
@pytest.mark.parametrize("op", COMPARISONS)
def test_comparisons(run_both: Run, dtype: str, op: str) -> None:
    x, y = pairs(dtype)
    got = run_both(lambda b, a: arith.binary(b, op, *a), [dtype, dtype], x, y)
    assert_same(got, getattr(operator, op)(x, y), x, y)


@pytest.mark.parametrize(
    ("op", "reference"),
    [
        ("add", np.add), ("sub", np.subtract), ("mul", np.multiply), ("div", np.divide),
        ("min", np.minimum), ("max", np.maximum), ("mod", np.remainder),
        ("floordiv", np.floor_divide),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_as_numpy(
    run_both: Run, dtype: str, op: str, reference: Callable[..., np.ndarray]
) -> None:
    x, y = pairs(dtype)
    got = run_both(lambda b, a: arith.binary(b, op, *a), [dtype, dtype], x, y)
    if dtype in ("f16", "bf16"):
        expected = reference(x.astype(np.float32), y.astype(np.float32)).astype(x.dtype)
    else:
        expected = reference(x, y)
    assert_same(got, expected, x, y)


@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("first", [False, True])
def test_extremes_with_a_literal_pass_nan(run_both: Run, dtype: str, op: str, first: bool) -> None:
    x = pairs(dtype)[0]

    def emit(b: Any, args: Any) -> Any:
        one = arith.literal(1, dtype, args[0].lanes)
        return arith.binary(b, op, *((one, args[0]) if first else (args[0], one)))

    reference = np.maximum if op == "max" else np.minimum
    assert_same(run_both(emit, [dtype], x), reference(x, x.dtype.type(1)), x)


@pytest.mark.parametrize(
    ("op", "reference"),
    [
        ("and", np.logical_and), ("or", np.logical_or), ("xor", np.logical_xor),
        ("add", np.logical_or), ("mul", np.logical_and), ("min", np.minimum), ("max", np.maximum),
        ("pow", lambda x, y: x | ~y),
    ],
)  # fmt: skip
def test_bools(run_both: Run, op: str, reference: Callable[..., np.ndarray]) -> None:
    x, y = pairs("bool")
    got = run_both(lambda b, a: arith.binary(b, op, *a), ["bool", "bool"], x, y)
    assert_same(got, reference(x, y), x, y)


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS])
@pytest.mark.parametrize(("op", "reference"), [("neg", np.negative), ("abs", np.abs)])
def test_unary(run_both: Run, dtype: str, op: str, reference: Callable[..., np.ndarray]) -> None:
    x = pairs(dtype)[0]
    got = run_both(lambda b, a: arith.unary(b, op, a[0]), [dtype], x)
    expected = reference(x)
    assert_same(got, expected, x)
    if is_float(dtype):
        assert np.array_equal(np.signbit(got), np.signbit(expected))


@pytest.mark.parametrize("dtype", ["bool", *INTEGERS])
def test_not(run_both: Run, dtype: str) -> None:
    x = pairs(dtype)[0]
    assert_same(run_both(lambda b, a: arith.unary(b, "not", a[0]), [dtype], x), ~x, x)


def _converted(x: np.ndarray, dtype: str) -> np.ndarray:
    kind = to_numpy(dtype)
    if dtype == "bool":
        return x != 0
    if x.dtype.kind not in "biu" and kind.kind in "iu":
        exact = x.astype(np.float64)
        width = 64 if dtype in ("u32", "i64", "u64") else 32
        high = 2**64 if dtype == "u64" else 2 ** (width - 1)

        def one(number: float) -> int:
            if number != number or not -(2 ** (width - 1)) <= number < high:
                return 0 if dtype == "u64" and number >= high else -(2 ** (width - 1))
            return int(number)

        return np.array([one(float(v)) % 2**64 for v in exact], np.uint64).astype(kind)
    if x.dtype == np.float64 and dtype == "bf16":  # ml_dtypes rounds twice
        return _round_to_bfloat16(x)
    return x.astype(kind)


def _round_to_bfloat16(x: np.ndarray) -> np.ndarray:
    near = x.astype(np.float32).astype(ml_dtypes.bfloat16)
    candidates = np.stack(
        [
            (near.view(np.uint16) + np.uint16(step)).view(ml_dtypes.bfloat16)
            for step in (0, 1, 0xFFFF)
        ]
    )
    distance = np.abs(candidates.astype(np.float64) - x)
    distance = np.where(np.isnan(distance), np.inf, distance)
    odd = (candidates.view(np.uint16) & 1).astype(float)
    order = np.lexsort((odd, distance), axis=0)
    chosen = np.take_along_axis(candidates, order[:1], axis=0)[0]
    limit = np.isfinite(x) & np.isfinite(near)
    return np.where(limit, chosen, near)


@pytest.mark.parametrize("source", ["bool", *INTEGERS, *FLOATS])
@pytest.mark.parametrize("dtype", ["bool", *INTEGERS, *FLOATS])
def test_casts(run_both: Run, source: str, dtype: str) -> None:
    x = pairs(source)[0]
    if is_float(
        source
    ):  # numbers around the limits of integers, and halfway between shorter floats
        limits = [s * (2.0**n + d) for n in (7, 8, 15, 16, 31, 32, 63, 64) for d in (-1, 0, 1)
                  for s in (-1, 1)]  # fmt: skip
        halfway = 1 + np.arange(-32, 32) * 2.0**-9
        near = [halfway * (1 + d) for d in (0.0, 2.0**-40, -(2.0**-40))]
        extra = np.concatenate([limits, *near]).astype(x.dtype)
        x = np.concatenate([extra, x])
        x = x[: x.size // LANES * LANES]
    got = run_both(lambda b, a: arith.cast(b, dtype, a[0]), [source], x)
    assert_same(got, _converted(x, dtype), x)


@pytest.mark.parametrize("dtype", ["i8", "u8", "i16", "u16", "i32"])
def test_rounded_integers(run_both: Run, dtype: str) -> None:
    """One instruction rounds to even, with the results of a cast out of range."""
    ties = np.arange(-300, 300) + 0.5
    limits = [s * (2.0**n + d) for n in (7, 8, 15, 16, 31, 32) for d in (-1, 0, 1) for s in (-1, 1)]
    x = np.concatenate([ties, limits, pairs("f32")[0]]).astype(np.float32)
    x = x[: x.size // LANES * LANES]

    def emit(b: Any, args: Any) -> Any:
        rounded = arith.intrinsic(b, "round", [args[0]])
        return arith.rounded_integers(b, dtype, args[0]) or arith.cast(b, dtype, rounded)

    assert_same(run_both(emit, ["f32"], x), _converted(np.rint(x), dtype), x)


@pytest.mark.parametrize("dtype", ["i4", "u4", "f8e4m3fn", "f8e5m2"])
def test_packed_dtypes_are_refused(dtype: str) -> None:
    with pytest.raises(CompileError, match=f"no arithmetic on {dtype}") as caught:
        arith.binary(Builder(ModuleBuilder("t", "")), "add", *[arith.literal(1, dtype)] * 2)
    assert caught.value.code == "C010"


@pytest.mark.parametrize(
    ("source", "dtype"),
    [("f32", "i32"), ("i32", "f32"), ("f16", "bf16"), ("u16", "f16"), ("i64", "f64"), ("u8", "i8")],
)
def test_bitcasts(run_both: Run, source: str, dtype: str) -> None:
    x = pairs(source)[0]
    x = x[~np.isnan(x.astype(np.float64))][: x.size // 2 // LANES * LANES]
    got = run_both(lambda b, a: arith.bitcast(b, dtype, a[0]), [source], x)
    assert got.tobytes() == x.tobytes()


def test_select(run_both: Run) -> None:
    x, y = pairs("f32")
    condition = samples("bool", x.size)
    got = run_both(lambda b, a: arith.select(b, *a), ["bool", "f32", "f32"], condition, x, y)
    assert_same(got, np.where(condition, x, y), condition, x, y)


@pytest.mark.parametrize("dtype", ["bool", *INTEGERS, *FLOATS])
def test_literals(compile_lanes: Run, dtype: str) -> None:
    for number in edge_values(dtype):
        for lanes in (1, LANES):
            value = arith.literal(number.item(), dtype, lanes)
            back = np.asarray(arith.literal_of(value)).astype(to_numpy(dtype))
            assert_same(back[None], np.asarray(number)[None])


@pytest.mark.parametrize("lanes", [1, 5, 16])
@pytest.mark.parametrize("dtype", ["bool", "u8", "i64", *FLOATS])
def test_literals_in_instructions(compile_lanes: Run, dtype: str, lanes: int) -> None:
    for number in edge_values(dtype)[::9]:

        def emit(b: Any, args: Any, number: Any = number) -> Any:
            return arith.literal(number.item(), dtype, args[0].lanes)

        x = np.zeros(lanes, to_numpy(dtype))
        assert_same(compile_lanes(emit, [dtype], lanes)(x), np.full_like(x, number))


REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min,
    "and": np.bitwise_and.reduce, "or": np.bitwise_or.reduce,
}  # fmt: skip


@pytest.mark.parametrize("lanes", [1, 2, 7, 12, 16])
@pytest.mark.parametrize(
    ("dtype", "combiner"),
    [
        (dtype, combiner)
        for dtype in ("bool", "i8", "u32", *FLOATS)
        for combiner in REDUCTIONS
        if not (is_float(dtype) and combiner in ("and", "or"))
    ],
)
def test_reductions(compile_lanes: Run, dtype: str, lanes: int, combiner: str) -> None:
    kind = to_numpy(dtype)
    rng = np.random.default_rng(3)
    # Small whole numbers: sums and products are exact in any order.
    numbers = [0, 1] if dtype == "bool" else [1, 2, 3] if dtype[0] == "u" else [-2, -1, 1, 2]
    x = rng.choice(numbers, (64, lanes)).astype(kind)
    if is_float(dtype) and combiner in ("max", "min"):
        x[np.arange(lanes), np.arange(lanes)] = np.nan
    got = compile_lanes(lambda b, a: arith.reduce(b, combiner, a[0]), [dtype], lanes)(x)
    if combiner in ("sum", "prod") and not is_float(dtype):
        expected = REDUCTIONS[combiner](x, axis=1, dtype=kind)
    else:
        wide = x.astype(np.float64) if is_float(dtype) else x
        expected = REDUCTIONS[combiner](wide, axis=1).astype(kind)
    assert_same(got, expected)


def test_short_floats_are_summed_in_f32(compile_lanes: Run) -> None:
    x = np.array([2048.0, 1.0, 1.0, 1.0], np.float16)
    got = compile_lanes(lambda b, a: arith.reduce(b, "sum", a[0]), ["f16"], 4)(x)
    assert got[0] == 2052  # 2051 rounded once; step by step it would stay 2048
