"""Products of quantized tensors: every kind of zero point and scale, and what stays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from clew.ir.expr import Call
from clew.ir.module import Module
from clew.ir.visit import post_order
from clew.machine.target import target_of
from clew.passes.precision.narrow_integers import NarrowIntegers

ROWS, DEPTH, UNITS = 5, 12, 7


PLAIN = target_of("cpu-avx512")  # without any instruction for 8-bit integers
SIGNED = replace(PLAIN, features=f"{PLAIN.features},+avx512vnni,+amx-tile,+amx-int8")


def draw(dtype: str, *shape: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    low, high = (-128, 128) if dtype == "i8" else (0, 256)
    return rng.integers(low, high, shape).astype("int8" if dtype == "i8" else "uint8")


def operand(kit: Any, value: Any, zero: Any, scale: Any = None) -> Any:
    """`scale * (value - zero)` as it is imported."""
    value = kit.layer("cast", value, dtype="i32")
    if zero is not None:
        if isinstance(zero, np.ndarray):
            zero = kit.layer("cast", kit.const(zero), dtype="i32")
        value = kit.layer("subtract", value, zero)
    if scale is None:
        return value
    return kit.layer("multiply", kit.layer("cast", value, dtype="f32"), kit.const(scale))


def product(kit: Any, data: str, weight: Any, zeros: tuple[Any, Any], *, rows: int = ROWS) -> Any:
    x = kit.var("x", rows, DEPTH, dtype=data)
    operands = operand(kit, x, zeros[0]), operand(kit, kit.const(weight), zeros[1])
    return kit.module([x], kit.layer("nn.matmul", *operands))


def after(kit: Any, module: Module, target: Any) -> Module:
    found: Module = kit.PassManager([NarrowIntegers()], target=target).run(module)
    return found


def dense_of(module: Module) -> Call | None:
    calls = [n for n in post_order(module.main) if isinstance(n, Call)]
    return next((n for n in calls if n.op_name == "nn.dense"), None)


def check(kit: Any, before: Module, found: Module) -> None:
    param = before.main.params[0].tensor
    for dtype_seed in range(2):
        x = draw(param.dtype, *param.concrete, seed=dtype_seed)
        for a, b in zip(
            kit.interpret(before, {"x": x}), kit.interpret(found, {"x": x}), strict=True
        ):
            np.testing.assert_allclose(a, b, rtol=1e-5)
            assert a.dtype == b.dtype


ROW_ZEROS = np.arange(ROWS, dtype=np.uint8)[:, None] * 20
ZEROS = [None, np.array(0, np.uint8), np.array(3, np.uint8), np.array([200], np.uint8), ROW_ZEROS]
WEIGHT_ZEROS = {
    "i8": [None, np.array(0, np.int8), np.array(-100, np.int8), np.arange(UNITS, dtype=np.int8)],
    "u8": [None, np.array(128, np.uint8), np.array(17, np.uint8),
           np.arange(120, 120 + UNITS).astype(np.uint8)],
}  # fmt: skip


@pytest.mark.parametrize("weight", ["i8", "u8"])
@pytest.mark.parametrize("data", ["i8", "u8"])
@pytest.mark.parametrize("target", [SIGNED, None], ids=["signed", "unsigned"])
def test_all_zero_points(kit: Any, data: str, weight: str, target: Any) -> None:
    matrix = draw(weight, DEPTH, UNITS, seed=3)
    for zero in ZEROS:
        for weight_zero in WEIGHT_ZEROS[weight]:
            before = product(kit, data, matrix, (zero, weight_zero))
            found = after(kit, before, target or kit.lanes())
            dense = dense_of(found)
            assert dense is not None
            assert dense.args[1].tensor.dtype == "i8"
            check(kit, before, found)


def test_a_zero_point_that_a_run_tells(kit: Any) -> None:
    x, zero = kit.var("x", ROWS, DEPTH, dtype="u8"), kit.var("z", dtype="u8")
    weight = kit.const(draw("i8", DEPTH, UNITS))
    point = kit.layer("cast", zero, dtype="i32")
    y = kit.layer("nn.matmul", operand(kit, x, point), operand(kit, weight, None))
    before = kit.module([x, zero], y)
    found = after(kit, before, kit.lanes())
    assert dense_of(found) is not None
    inputs = {"x": draw("u8", ROWS, DEPTH), "z": np.array(9, np.uint8)}
    for a, b in zip(kit.interpret(before, inputs), kit.interpret(found, inputs), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("layout", ["KN", "NK"])
@pytest.mark.parametrize("each", [False, True])
def test_scales(kit: Any, layout: str, *, each: bool) -> None:
    x = kit.var("x", 2, ROWS, DEPTH, dtype="u8")
    shape = (DEPTH, UNITS) if layout == "KN" else (UNITS, DEPTH)
    along = (UNITS,) if layout == "KN" else (UNITS, 1)
    scale = kit.random(*along) if each else np.float32(0.5)
    zero = np.arange(UNITS, dtype=np.int8).reshape(along) if each else None
    data = operand(kit, x, np.array(7, np.uint8), np.float32(0.25))
    weight = operand(kit, kit.const(draw("i8", *shape)), zero, scale)
    y = kit.layer("nn.dense", data, weight, weight_layout=layout)
    before = kit.module([x], y)
    found = after(kit, before, kit.lanes())
    dense = dense_of(found)
    assert dense is not None
    assert dense.tensor.dtype == "i32"
    check(kit, before, found)


def test_many_rows_of_signed_data_stay_signed(kit: Any) -> None:
    for rows, dtype in ((32, "i8"), (3, "u8")):
        before = product(kit, "i8", draw("i8", DEPTH, UNITS), (None, None), rows=rows)
        dense = dense_of(after(kit, before, SIGNED))
        assert dense is not None
        assert dense.args[0].tensor.dtype == dtype


def test_what_stays(kit: Any) -> None:
    whole = product(kit, "u8", draw("i8", DEPTH, UNITS), (None, None))
    assert after(kit, whole, PLAIN) is whole  # without an instruction
    x = kit.var("x", ROWS, DEPTH, dtype="u8")
    weight = kit.const(draw("i8", DEPTH, UNITS))
    along_depth = kit.random(DEPTH, 1)
    y = kit.layer(
        "nn.matmul",
        operand(kit, x, None, np.float32(0.5)),
        operand(kit, weight, None, along_depth),
    )
    module = kit.module([x], y)
    assert after(kit, module, kit.lanes()) is module  # a scale of each step is none of the sum
    wide = kit.const(kit.random(DEPTH, UNITS))
    y = kit.layer("nn.matmul", operand(kit, x, None, np.float32(0.5)), wide)
    module = kit.module([x], y)
    assert after(kit, module, kit.lanes()) is module
