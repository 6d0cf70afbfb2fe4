"""MoveQuantization, RequantizeSums and Tabulate keep what models compute, and what they leave."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clew.ir.expr import Call, Expr
from clew.ir.module import Module
from clew.ir.visit import post_order
from clew.passes.base import Pass
from clew.passes.precision.move_quantization import MoveQuantization
from clew.passes.precision.requantize_sums import RequantizeSums
from clew.passes.precision.tabulate import Tabulate

DTYPES = {"u8": np.uint8, "i8": np.int8, "i32": np.int32, "f32": np.float32}


def dequantized(kit: Any, x: Expr, scale: Any = 0.1, zero: Any = 7) -> Call:
    points = () if zero is None else (kit.const(np.array(zero, DTYPES[x.tensor.dtype])),)
    call: Call = kit.layer("dequantize", x, kit.const(np.array(scale, np.float32)), *points)
    return call


def quantized(kit: Any, x: Expr, scale: Any = 0.1, zero: Any = 7, dtype: str = "u8") -> Call:
    point = kit.const(np.array(zero, DTYPES[dtype]))
    made = kit.layer("quantize", x, kit.const(np.array(scale, np.float32)), point, dtype=dtype)
    call: Call = made
    return call


def drawn(module: Module, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    found = {}
    for param in module.main.params:
        dtype, shape = param.tensor.dtype, param.tensor.concrete
        if dtype == "f32":
            found[param.name] = rng.standard_normal(shape).astype(np.float32) * 9
        else:
            low, high = {"u8": (0, 256), "i8": (-128, 128), "i32": (-90_000, 90_000)}[dtype]
            found[param.name] = rng.integers(low, high, shape).astype(DTYPES[dtype])
    return found


def changed(kit: Any, module: Module, *passes: Pass, steps: int = 0) -> list[str]:
    """Names of the operators after the passes, whose results differ by at most `steps`."""
    found = kit.apply(module, *passes)
    for seed in range(3):
        inputs = drawn(module, seed)
        for a, b in zip(kit.interpret(module, inputs), kit.interpret(found, inputs), strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            if a.dtype.kind == "f":
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 + 0.1 * steps)
            else:
                assert np.abs(a.astype(int) - b.astype(int)).max() <= steps
    names: list[str] = kit.op_names(found)
    return names


MOVES: list[tuple[str, dict[str, Any]]] = [
    ("nn.max_pool2d", {"kernel": (2, 2), "strides": (2, 2)}),
    ("reshape", {"shape": (2, 4, 36)}),
    ("transpose", {"axes": (0, 2, 3, 1)}),
    ("pad", {"pads": (0, 0, 1, 0, 0, 0, 2, 1)}),
    ("slice", {"begin": (1,), "end": (3,), "strides": (1,), "axes": (2,)}),
]


@pytest.mark.parametrize("dtype", ["u8", "i8"])
@pytest.mark.parametrize(("op", "attrs"), MOVES, ids=[m[0] for m in MOVES])
def test_elements_are_moved_as_integers(
    kit: Any, op: str, attrs: dict[str, Any], dtype: str
) -> None:
    x = kit.var("x", 2, 4, 6, 6, dtype=dtype)
    moved = kit.layer(op, dequantized(kit, x), **attrs)
    assert changed(kit, kit.module([x], moved), MoveQuantization()) == [op, "dequantize"]
    back = kit.module([x], quantized(kit, kit.layer(op, dequantized(kit, x), **attrs), dtype=dtype))
    assert changed(kit, back, MoveQuantization()) == [op]
    other = quantized(kit, kit.layer(op, dequantized(kit, x), **attrs), scale=0.2, dtype=dtype)
    names = changed(kit, kit.module([x], other), MoveQuantization())
    assert sorted(names) == sorted([op, "dequantize", "quantize"])


def test_quantization_moves_before_movement_of_floats(kit: Any) -> None:
    x = kit.var("x", 2, 4, 6)
    y = kit.layer("transpose", kit.layer("reshape", kit.layer("exp", x), shape=(8, 6)), axes=(1, 0))
    module = kit.module([x], quantized(kit, y))
    names = changed(kit, module, MoveQuantization())
    assert names == ["exp", "quantize", "reshape", "transpose"]
    shared = kit.module([x], quantized(kit, y), y)
    assert changed(kit, shared, MoveQuantization()) == ["exp", "reshape", "transpose", "quantize"]


def test_parameters_per_channel_follow_movement_along_axes(kit: Any) -> None:
    x = kit.var("x", 2, 3, 5, dtype="i8")
    scale, zero = np.float32([[0.1], [2], [30]]), [[1], [-2], [3]]
    value = dequantized(kit, x, scale, zero)
    transposed = kit.layer("transpose", value, axes=(1, 2, 0))
    first = kit.layer("slice", value, begin=(1, 1), end=(2, 3), strides=(1, 1), axes=(0, -2))
    for moved in (transposed, first, kit.layer("reshape", first, shape=(2, 1, 5))):
        names = changed(kit, kit.module([x], moved), MoveQuantization())
        assert names[-1] == "dequantize"
        assert names.count("dequantize") == 1
    merged = kit.layer("reshape", value, shape=(6, 5))
    assert changed(kit, kit.module([x], merged), MoveQuantization()) == ["dequantize", "reshape"]
    pooled = kit.module([x], kit.layer("max", value, axes=(1,)))
    assert changed(kit, pooled, MoveQuantization()) == ["dequantize", "max"]


def test_what_stays_in_floats(kit: Any) -> None:
    x = kit.var("x", 2, 4, 6, 6, dtype="u8")
    pool = {"kernel": (2, 2), "strides": (2, 2)}
    negative = kit.layer("nn.max_pool2d", dequantized(kit, x, -0.1), **pool)
    padded = kit.layer("pad", dequantized(kit, x), pads=(0, 0, 1, 1, 0, 0, 1, 1), value=2.5)
    average = kit.layer("nn.avg_pool2d", dequantized(kit, x), **pool)
    for y in (negative, padded, average):
        names = changed(kit, kit.module([x], y), MoveQuantization())
        assert names == ["dequantize", y.op_name]


def test_concatenations_of_one_grid_and_of_several(kit: Any) -> None:
    x, y = (kit.var(name, 2, 3, dtype="u8") for name in "xy")
    for scale, count in ((0.1, 0), (0.3, 1)):
        operands = dequantized(kit, x), dequantized(kit, y, scale)
        joined = kit.layer("concatenate", *operands, axis=1)
        names = changed(kit, kit.module([x, y], quantized(kit, joined)), MoveQuantization())
        assert names.count("dequantize") == names.count("quantize") == count


@pytest.mark.parametrize("zero", [0, 7, 200])
@pytest.mark.parametrize("after", [None, "nn.relu", "clip"])
@pytest.mark.parametrize("channels", [False, True])
def test_sums_are_requantized_once(kit: Any, zero: int, after: str | None, channels: bool) -> None:
    x = kit.var("x", 6, 5, dtype="i32")
    unit = np.float32([1e-4, 2e-4, 5e-5, 1e-4, 3e-4]) if channels else np.float32(1e-4)
    bias = kit.const((np.arange(5) * 700 - 1400).astype(np.float32) * unit)
    y = kit.layer("add", bias, dequantized(kit, x, unit, None))
    if after:
        y = kit.layer(after, y, **({"min": -0.5, "max": 4.0} if after == "clip" else {}))
    module = kit.module([x], quantized(kit, y, 0.03, zero))
    names = changed(kit, module, RequantizeSums(), steps=1)
    assert "requantize" in names
    assert not {"dequantize", "quantize", "nn.relu"} & {*names}


def test_biases_between_steps_are_added_in_floats(kit: Any) -> None:
    x = kit.var("x", 6, 5, dtype="i32")
    y = kit.layer("add", dequantized(kit, x, 1e-2, None), kit.const(np.float32(0.0137)))
    names = changed(kit, kit.module([x], y), RequantizeSums())
    assert names == ["dequantize", "add"]


def test_inputs_are_divided(kit: Any) -> None:
    x = kit.var("x", 6, 5)
    assert changed(kit, kit.module([x], quantized(kit, x)), RequantizeSums()) == ["quantize"]
    summed = kit.module([x], quantized(kit, kit.layer("add", x, x)))
    assert changed(kit, summed, RequantizeSums(), steps=1) == ["add", "divide", "requantize"]


def test_only_one_kernel_keeps_a_number_of_a_grid(kit: Any) -> None:
    """The other operand of an addition is stored as an integer."""
    x, y = (kit.var(name, 6, 5, dtype="i32") for name in "xy")
    parts = [
        dequantized(kit, quantized(kit, dequantized(kit, v, 1e-4, None), 0.03), 0.03)
        for v in (x, y)
    ]
    module = kit.module([x, y], kit.layer("add", *parts))
    names = changed(kit, module, RequantizeSums(), steps=1)
    assert names.count("fake_quantize") == names.count("dequantize") == 1
    both = kit.module([x], parts[0], kit.layer("exp", parts[0]))
    assert "fake_quantize" not in changed(kit, both, RequantizeSums(), steps=1)


@pytest.mark.parametrize("dtype", ["u8", "i8"])
def test_functions_of_bytes_become_tables(kit: Any, dtype: str) -> None:
    x = kit.var("x", 3, 2, 5, dtype=dtype)
    value = dequantized(kit, x, 0.05, 3)
    gate = dequantized(kit, quantized(kit, kit.layer("sigmoid", value), 0.004, 0), 0.004, 0)
    y = quantized(kit, kit.layer("multiply", value, gate), 0.02, 9, "i8")
    assert changed(kit, kit.module([x], y), Tabulate()) == ["apply_table", "cast"]


def test_what_is_no_function_of_one_byte(kit: Any) -> None:
    x, y = (kit.var(name, 4, 5, dtype="u8") for name in "xy")
    sums = kit.layer("sigmoid", kit.layer("add", dequantized(kit, x), dequantized(kit, y)))
    channels = kit.layer(
        "exp", dequantized(kit, x, np.float32([0.01, 0.02, 0.03, 0.04, 0.05]), None)
    )
    cheap = dequantized(kit, x)
    for value in (sums, channels, cheap):
        module = kit.module([x, y], quantized(kit, value))
        assert "apply_table" not in changed(kit, module, Tabulate())


def test_moved_values_know_their_layers(kit: Any) -> None:
    """A moved operator keeps its layer alone, and a moved `dequantize` also its own."""
    x = kit.var("x", 2, 4, dtype="u8")
    y = kit.layer("exp", kit.layer("reshape", dequantized(kit, x), shape=(8,)))
    found = kit.apply(kit.module([x], y), MoveQuantization())
    calls = {n.op_name: n for n in post_order(found.main) if isinstance(n, Call)}
    names = {op: {s.layer for s in call.span.sources} for op, call in calls.items()}
    assert names["reshape"] == {"reshape_2"}
    assert names["dequantize"] == {"reshape_2", "dequantize_1"}
