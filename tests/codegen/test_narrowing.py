"""Integers in fewer bits: what is known of their range, and that packing keeps them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clew
from clew import te
from clew.codegen.narrowing import fits_32_bits, narrowed
from clew.ir.expr import Constant, Expr, Function, Tuple, Var
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.machine.instructions import instructions_of
from clew.machine.target import target_of
from clew.ops.registry import get_op
from clew.te.expr import Binary, Cast, Imm, Inlined, Scalar, binary, cast
from clew.te.tensor import placeholder

pytestmark = pytest.mark.usefixtures("shared_kernels")

Array = np.ndarray[Any, Any]


def _rounded(low: int, high: float) -> Scalar:
    """A float rounded to integers from `low` to `high`, as operators clamp it."""
    x = placeholder((8,), "f32", "x")[0]
    whole = cast("i32", te.call("round", binary("min", x, Imm(high, "f32"))))
    return binary("max", whole, Imm(low, "i32"))


@pytest.mark.parametrize(
    ("dtype", "low", "high", "limits"),
    [
        ("u8", 0, 255.0, (0, 255)),
        ("u8", 3, 200.0, (0, 255)),
        ("i8", -128, 127.0, (-128, 127)),
        ("i16", 0, 255.0, (0, 65535)),
        ("i16", -7, 255.0, (-32768, 32767)),
        ("u8", -1, 255.0, None),
        ("u8", 0, 255.5, None),
        ("i8", -128, 128.0, None),
        ("i64", 0, 255.0, None),
        ("i32", 0, 255.0, None),
    ],
)
def test_casts_that_keep_all_numbers(dtype: str, low: int, high: float, limits: Any) -> None:
    number = _rounded(low, high)
    expr = Cast(dtype, Inlined("s", number))
    found = narrowed(expr)
    assert (found and (found.low, found.high)) == limits
    if found is not None:
        replaced = limits[0] == low  # the clamp is the lower bound
        assert (found.number is number) is not replaced
        assert len(found.inside) == 1


@pytest.mark.parametrize(
    ("low", "high", "left"),
    [(-128, 127, ()), (-128, 100, ("min",)), (-5, 127, ("max",)), (-5, 100, ("min", "max"))],
)
def test_clamps_that_packing_applies_are_left_out(
    low: int, high: int, left: tuple[str, ...]
) -> None:
    number = cast("i32", placeholder((8,), "i16", "x")[0])
    clamped = binary("min", binary("max", number, Imm(low, "i32")), Imm(high, "i32"))
    found = narrowed(Cast("i8", Inlined("s", clamped)))
    assert found is not None
    assert (found.low, found.high) == (-128, 127)
    kept, ops = found.number, []
    while isinstance(kept, Binary):
        ops.append(kept.op)
        kept = kept.a
    assert tuple(ops) == left
    assert kept is number


def _position(low: float, high: float, *, known: bool = True, op: str = "floor") -> Scalar:
    """A float in a range, rounded down; with `known`, NaN is replaced."""
    x = placeholder((8,), "f32", "x")[0]
    number = te.select(te.call("isnan", x), te.as_scalar(low, "f32"), x) if known else x
    number = binary("max", number, Imm(low, "f32"))
    return te.call(op, binary("min", number, binary("add", Imm(high, "f32"), Imm(2.0, "f32"))))


@pytest.mark.parametrize(
    ("number", "fits"),
    [
        (_position(-3.0, 56.0), True),
        (_position(-3.0, 2.0**31 - 256), True),
        (_position(-3.0, 2.0**31), False),
        (_position(-(2.0**32), 56.0), False),
        (_position(-3.0, 56.0, known=False), False),  # of NaN, the lowest i64
        (_position(-3.0, float("inf")), False),
        (_position(-3.0, 56.0, op="sqrt"), False),
    ],
)
def test_positions_that_fit_32_bits(number: Scalar, fits: bool) -> None:
    assert fits_32_bits(Cast("i64", Inlined("s", number))) == fits
    assert not fits_32_bits(Cast("i32", number))


def test_casts_of_narrow_numbers_and_offsets() -> None:
    byte = Cast("u8", _rounded(0, 255.0))
    found = narrowed(Cast("i16", Inlined("requantize", byte)))
    assert found is not None
    assert (found.low, found.high, found.offset) == (0, 65535, 0)
    less = binary("sub", Cast("i32", byte), Imm(131, "i32"))
    found = narrowed(Cast("i16", less))
    assert found is not None
    assert (found.low, found.high, found.offset) == (0, 65535, -131)
    assert narrowed(Cast("i8", less)) is None
    signed = binary("add", Cast("i32", Cast("i8", _rounded(-128, 127.0))), Imm(5, "i32"))
    found = narrowed(Cast("i16", signed))
    assert found is not None
    assert (found.low, found.high, found.offset) == (-32768, 32767, 0)
    wrapped = Cast("u8", _rounded(0, 256.0))
    assert narrowed(Cast("i16", wrapped)) is None


@pytest.mark.parametrize("zero", [0, 7, 255])
@pytest.mark.parametrize("dtype", ["u8", "i8"])
def test_packed_integers_are_those_of_the_reference(dtype: str, zero: int) -> None:
    """Bytes, and pairs less their zero point, also of numbers far out of range."""
    target = target_of("cpu-avx2")
    assert instructions_of(target.features).packs_integers
    rng = np.random.default_rng(0)
    x = rng.integers(-400, 700, (3, 37)).astype("f4") / 2
    x[0, :9] = np.nan, np.inf, -np.inf, 3e9, -3e9, 2.0**31, 255.5, -0.5, 127.5
    point = np.asarray(zero - 128 * (dtype == "i8")).astype("i1" if dtype == "i8" else "u1")
    value: Expr = Var("x", TensorType(x.shape, "f32"))
    scaled = get_op("multiply")(value, Constant(np.float32(1)))
    byte = get_op("requantize")(scaled, Constant(np.float32(1)), Constant(point), dtype=dtype)
    wide = get_op("subtract")(get_op("cast")(byte, dtype="i32"), Constant(np.int32(point)))
    pair = get_op("cast")(wide, dtype="i16")
    assert isinstance(value, Var)
    main = Function([value], Tuple([byte, pair]), {"outputs": ("byte", "pair")})
    compiled = clew.compile(
        Module({"main": main}), target=target, threads=1, diagnostics=clew.Diagnostics(guard=True)
    )
    found = compiled(x)
    with np.errstate(invalid="ignore"):
        bounds = np.iinfo(point.dtype)
        rounded = np.clip(np.rint(x).astype("f8"), -1e6, 1e6) + int(point)
        expected = np.clip(np.where(np.isnan(x), bounds.min, rounded), bounds.min, bounds.max)
    np.testing.assert_array_equal(found[0], expected)
    np.testing.assert_array_equal(found[1], expected.astype("i2") - int(point))


@pytest.mark.parametrize(
    ("features", "packs"),
    [("+avx2", True), ("+avx2,+avx512bw", False), ("+avx2,+avxvnni", False), ("+sse2", False)],
)
def test_targets_that_pack(features: str, packs: bool) -> None:
    assert instructions_of(features).packs_integers is packs


def test_parts_that_are_shared_many_times_are_not_looked_into_each_time() -> None:
    number = _rounded(0, 255.0)
    for _ in range(200):
        number = binary("max", number, binary("min", number, Imm(7, "i32")))
    assert narrowed(Cast("u8", number)) is None  # it might be anything, as far as that was followed
