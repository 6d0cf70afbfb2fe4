"""Products of quantized tensors: every kind of zero point and scale, and what stays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import clew
from clew.ir.expr import Call
from clew.ir.interpret import interpret
from clew.ir.module import Module
from clew.ir.types import to_numpy
from clew.ir.visit import post_order
from clew.machine.target import target_of
from clew.passes.precision.narrow_integers import NarrowIntegers
from clew.runtime.guard import GuardSide

pytestmark = pytest.mark.usefixtures("shared_kernels")

ROWS, DEPTH, UNITS = 5, 12, 7


PLAIN = target_of("cpu-avx512")  # without any instruction for 8-bit integers, but for i16
NONE = replace(PLAIN, features="+sse4.2")
SIGNED = replace(PLAIN, features=f"{PLAIN.features},+avx512vnni,+amx-tile,+amx-int8")


def draw(dtype: str, *shape: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    low, high = (-128, 128) if dtype == "i8" else (0, 256)
    return rng.integers(low, high, shape).astype("int8" if dtype == "i8" else "uint8")


def operand(kit: Any, value: Any, zero: Any, scale: Any = None) -> Any:
    """`scale * (value - zero)` as it is imported."""
    if scale is not None and (zero is None or isinstance(zero, np.ndarray)):
        points = () if zero is None else (kit.const(zero.astype(to_numpy(value.tensor.dtype))),)
        return kit.layer("dequantize", value, kit.const(scale), *points)
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
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6 * float(np.abs(a).max()))
            assert a.dtype == b.dtype


ROW_ZEROS = np.arange(ROWS, dtype=np.uint8)[:, None] * 20
ZEROS = [None, np.array(0, np.uint8), np.array(3, np.uint8), np.array([200], np.uint8), ROW_ZEROS]
WEIGHT_ZEROS = {
    "i8": [None, np.array(0, np.int8), np.array(-100, np.int8), np.arange(UNITS, dtype=np.int8)],
    "u8": [None, np.array(128, np.uint8), np.array(17, np.uint8),
           np.arange(120, 120 + UNITS).astype(np.uint8)],
}  # fmt: skip


@pytest.mark.parametrize("target", [SIGNED, None, PLAIN], ids=["signed", "unsigned", "pairs"])
def test_operands_keep_their_signs_before_regions_are_formed(kit: Any, target: Any) -> None:
    for data in ("i8", "u8"):
        zeros = np.array(3, np.uint8), np.array(0, np.int8)
        before = product(kit, data, draw("i8", DEPTH, UNITS, seed=3), zeros)
        passes = NarrowIntegers(signed=True), NarrowIntegers()
        found = kit.PassManager(passes[:1], target=target or kit.lanes()).run(before)
        dense = dense_of(found)
        assert dense is not None
        assert [a.tensor.dtype for a in dense.args] == [data, "i8"]
        check(kit, before, found)
        check(kit, before, kit.PassManager(passes, target=target or kit.lanes()).run(before))


@pytest.mark.parametrize("weight", ["i8", "u8"])
@pytest.mark.parametrize("data", ["i8", "u8"])
@pytest.mark.parametrize("target", [SIGNED, None, PLAIN], ids=["signed", "unsigned", "pairs"])
def test_all_zero_points(kit: Any, data: str, weight: str, target: Any) -> None:
    matrix = draw(weight, DEPTH, UNITS, seed=3)
    for zero in ZEROS:
        for weight_zero in WEIGHT_ZEROS[weight]:
            before = product(kit, data, matrix, (zero, weight_zero))
            found = after(kit, before, target or kit.lanes())
            dense = dense_of(found)
            assert dense is not None
            kept = target is not PLAIN or (weight == "i8" and not np.any(weight_zero))
            assert dense.args[1].tensor.dtype == ("i8" if kept else "i16")
            check(kit, before, found)


@pytest.mark.parametrize(("rows", "expected"), [(1, "i8"), (16, "i8"), (17, "i16")])
def test_few_rows_widen_a_weight_as_they_read_it(kit: Any, rows: int, expected: str) -> None:
    before = product(
        kit, "i8", draw("i8", DEPTH, UNITS, seed=3), (np.array(3, np.uint8), None), rows=rows
    )
    found = after(kit, before, PLAIN)
    dense = dense_of(found)
    assert dense is not None
    assert [a.tensor.dtype for a in dense.args] == ["i16", expected]
    check(kit, before, found)


@pytest.mark.parametrize("units", [7, 40])
@pytest.mark.parametrize("depth", [12, 13])
def test_bytes_beside_pairs_are_widened_in_vectors(kit: Any, depth: int, units: int) -> None:
    x = kit.var("x", 3, depth, dtype="i8")
    factors = (
        operand(kit, x, np.array(3, np.uint8)),
        operand(kit, kit.const(draw("i8", depth, units)), None),
    )
    module = kit.module([x], kit.layer("nn.matmul", *factors))
    target = target_of("cpu-avx2")
    model = clew.compile(module, target=target, threads=1)
    (kernel,) = [k for k in model.kernels if "dense" in k.name]
    if units > 8 and depth % 2 == 0:
        assert "pmovsxbw" in str(kernel.asm)
        assert "pmaddwd" in str(kernel.asm)
    if set(target.features.split(",")) <= set(target_of("cpu").features.split(",")):
        given = draw("i8", 3, depth, seed=5)
        expected = interpret(module, {"x": given})
        assert np.array_equal(model(given), next(iter(expected.values())))


def test_a_weight_may_consist_of_moved_elements(kit: Any) -> None:
    both = kit.const(draw("i8", 2, UNITS, DEPTH))
    part = kit.layer("slice", both, begin=(1,), end=(2,), axes=(0,))
    matrix = kit.layer("transpose", kit.layer("reshape", part, shape=(UNITS, DEPTH)), axes=(1, 0))
    x = kit.var("x", ROWS, DEPTH, dtype="u8")
    y = kit.layer("nn.matmul", operand(kit, x, None), operand(kit, matrix, None))
    before = kit.module([x], y)
    found = after(kit, before, kit.lanes())
    assert dense_of(found) is not None
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


@pytest.mark.parametrize("target", [None, PLAIN], ids=["bytes", "pairs"])
@pytest.mark.parametrize("layout", ["KN", "NK"])
@pytest.mark.parametrize("each", [False, True])
def test_scales(kit: Any, layout: str, target: Any, *, each: bool) -> None:
    x = kit.var("x", 2, ROWS, DEPTH, dtype="u8")
    shape = (DEPTH, UNITS) if layout == "KN" else (UNITS, DEPTH)
    along = (UNITS,) if layout == "KN" else (UNITS, 1)
    scale = kit.random(*along) if each else np.float32(0.5)
    zero = np.arange(UNITS, dtype=np.int8).reshape(along) if each else None
    data = operand(kit, x, np.array(7, np.uint8), np.float32(0.25))
    weight = operand(kit, kit.const(draw("i8", *shape)), zero, scale)
    y = kit.layer("nn.dense", data, weight, weight_layout=layout)
    before = kit.module([x], y)
    found = after(kit, before, target or kit.lanes())
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
    assert after(kit, whole, NONE) is whole  # without an instruction
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


# ------------------------------------------------------------------------------------ convolutions

CHANNELS, FILTERS, SIDE = 16, 24, 7
TARGETS = {"tiles": SIGNED, "dots": None, "pairs": PLAIN}


def convolution(
    kit: Any,
    data: str,
    weight: str,
    zeros: tuple[Any, Any] = (None, None),
    scales: tuple[Any, Any] = (None, None),
    channels: int = CHANNELS,
    **attrs: Any,
) -> Any:
    x = kit.var("x", 2, channels, SIDE, SIDE, dtype=data)
    inner = channels // attrs.get("groups", 1)
    filters = kit.const(draw(weight, FILTERS, inner, 3, 3, seed=5))
    given = (x, filters)
    operands = [operand(kit, *each) for each in zip(given, zeros, scales, strict=True)]
    return kit.module([x], kit.layer("nn.conv2d", *operands, **attrs))


def conv_of(module: Module) -> Call:
    calls = [n for n in post_order(module.main) if isinstance(n, Call)]
    (found,) = (n for n in calls if n.op_name == "nn.conv2d")
    return found


def by_filter(values: Any) -> Any:
    return np.asarray(values).reshape(FILTERS, 1, 1, 1)


ATTRS: list[dict[str, Any]] = [
    {},
    {"padding": (1, 1, 1, 1)},
    {"padding": (2, 0, 1, 3), "strides": (2, 1), "dilation": (1, 2)},
]
EACH = np.arange(FILTERS, dtype=np.int8) - 9
CENTERED = (np.arange(FILTERS) % 3 + 127).astype(np.uint8)


@pytest.mark.parametrize("attrs", ATTRS, ids=str)
@pytest.mark.parametrize("data", ["i8", "u8"])
@pytest.mark.parametrize("target", TARGETS)
def test_convolutions(kit: Any, data: str, target: str, attrs: Any) -> None:
    for zero in (None, np.array(0, np.uint8), np.array(9, np.uint8), np.array([113], np.uint8)):
        for weight, weight_zero in (("i8", None), ("u8", np.array(128, np.uint8))):
            before = convolution(kit, data, weight, (zero, weight_zero), **attrs)
            found = after(kit, before, TARGETS[target] or kit.lanes())
            dtypes = {a.tensor.dtype for a in conv_of(found).args}
            assert dtypes == {"i16"} if target == "pairs" else dtypes <= {"i8", "u8"}
            check(kit, before, found)


@pytest.mark.parametrize("target", TARGETS)
def test_convolutions_with_scales(kit: Any, target: str) -> None:
    """The scale of each filter is applied to its sums."""
    zero, attrs = np.array(130, np.uint8), {"padding": (1, 1, 1, 1)}
    for scale in (np.float32(0.5), by_filter(kit.random(FILTERS))):
        before = convolution(kit, "u8", "i8", (zero, None), (np.float32(0.25), scale), **attrs)
        found = after(kit, before, TARGETS[target] or kit.lanes())
        assert conv_of(found).tensor.dtype == "i32"
        check(kit, before, found)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("zero", [EACH, CENTERED], ids=["signed", "unsigned"])
def test_zero_points_of_filters(kit: Any, target: str, zero: Any) -> None:
    """Pairs of `i16` hold all differences, bytes only those that fit, which these do not."""
    weight = "i8" if zero.dtype == np.int8 else "u8"
    point = kit.layer("cast", kit.const(by_filter(zero)), dtype="i32")
    before = convolution(kit, "u8", weight, (None, point), padding=(1, 1, 1, 1))
    found = after(kit, before, TARGETS[target] or kit.lanes())
    assert {a.tensor.dtype for a in conv_of(found).args} == {"i16"}
    check(kit, before, found)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("data", ["i8", "u8"])
def test_depthwise_convolutions_and_those_of_few_channels(kit: Any, data: str, target: str) -> None:
    zero = np.array(9, to_numpy(data))
    for channels, groups in ((FILTERS, FILTERS), (3, 1), (2, 1), (5, 1)):
        before = convolution(
            kit, data, "i8", (zero, None), (np.float32(0.25), np.float32(0.5)), channels,
            groups=groups, padding=(1, 0, 1, 2), strides=(1, 2),
        )  # fmt: skip
        found = after(kit, before, TARGETS[target] or kit.lanes())
        assert conv_of(found).tensor.dtype == "i32"
        check(kit, before, found)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("channels", "groups"), [(16, 4), (16, 2), (12, 6), (24, 12)])
def test_groups_of_several_channels(kit: Any, channels: int, groups: int, target: str) -> None:
    zero = np.array(9, np.uint8)
    before = convolution(
        kit, "u8", "i8", (zero, None), (np.float32(0.25), np.float32(0.5)), channels,
        groups=groups, padding=(1, 0, 1, 2), strides=(1, 2),
    )  # fmt: skip
    found = after(kit, before, TARGETS[target] or kit.lanes())
    assert conv_of(found).tensor.dtype == "i32"
    check(kit, before, found)


@pytest.mark.parametrize("target", TARGETS)
def test_convolutions_that_stay(kit: Any, target: str) -> None:
    chosen = TARGETS[target] or kit.lanes()
    of_inputs = np.float32(1) + np.arange(CHANNELS, dtype=np.float32).reshape(1, CHANNELS, 1, 1)
    for module in (
        convolution(kit, "u8", "i8", channels=1),
        convolution(kit, "u8", "i8", scales=(np.float32(1), of_inputs)),
    ):
        assert after(kit, module, chosen) is module
    x = kit.var("x", 2, CHANNELS, SIDE, SIDE)
    weight = operand(kit, kit.const(draw("i8", FILTERS, CHANNELS, 3, 3)), None, np.float32(2))
    module = kit.module([x], kit.layer("nn.conv2d", x, weight))
    assert after(kit, module, chosen) is module  # data in floats


@pytest.mark.parametrize("zero", [300, -5, 40000, -33000])
@pytest.mark.parametrize("target", TARGETS)
def test_zero_points_that_are_none_of_8_bits(kit: Any, target: str, zero: int) -> None:
    """Neither padding of 8 bits nor differences of 16 hold them."""
    chosen, point = TARGETS[target] or kit.lanes(), kit.const(np.int32(zero))
    for attrs in ATTRS:
        before = convolution(kit, "u8", "i8", (point, None), **attrs)
        check(kit, before, after(kit, before, chosen))
        before = convolution(kit, "u8", "i8", (None, point), **attrs)
        check(kit, before, after(kit, before, chosen))
    for zeros in ((point, None), (None, point)):
        before = product(kit, "u8", draw("i8", DEPTH, UNITS), zeros)
        check(kit, before, after(kit, before, chosen))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("known", [True, False])
def test_zero_points_of_data_that_a_run_tells(kit: Any, target: str, *, known: bool) -> None:
    """An `i32` may be any number, which neither padding nor differences of 16 bits might hold."""
    chosen = TARGETS[target] or kit.lanes()
    for padding in ((0,) * 4, (1,) * 4):
        x = kit.var("x", 2, CHANNELS, SIDE, SIDE, dtype="u8")
        zero = kit.var("z", dtype="u8" if known else "i32")
        point = kit.layer("cast", zero, dtype="i32") if known else zero
        filters = kit.const(draw("i8", FILTERS, CHANNELS, 3, 3))
        operands = operand(kit, x, point), operand(kit, filters, None)
        before = kit.module([x, zero], kit.layer("nn.conv2d", *operands, padding=padding))
        found = after(kit, before, chosen)
        expected = ("i16" if target == "pairs" else "u8") if known else "i32"
        assert conv_of(found).args[0].tensor.dtype == expected
        for number in (0, 17, 255):
            value = np.asarray(number, np.uint8 if known else np.int32)
            inputs = {"x": draw("u8", 2, CHANNELS, SIDE, SIDE), "z": value}
            outputs = kit.interpret(before, inputs), kit.interpret(found, inputs)
            for a, b in zip(*outputs, strict=True):
                np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("target", TARGETS)
def test_weights_that_zero_points_broadcast_stay(kit: Any, target: str) -> None:
    chosen = TARGETS[target] or kit.lanes()
    x = kit.var("x", 2, CHANNELS, SIDE, SIDE, dtype="u8")
    points = kit.layer("cast", kit.const(by_filter(EACH)), dtype="i32")
    weight = operand(kit, kit.const(draw("i8", CHANNELS, 3, 3)), points)
    module = kit.module([x], kit.layer("nn.conv2d", operand(kit, x, None), weight))
    assert after(kit, module, chosen) is module
    x = kit.var("x", ROWS, 1, dtype="u8")
    points = kit.const(np.arange(UNITS, dtype=np.int32)[None])
    weight = operand(kit, kit.const(draw("i8", 1)), points)
    module = kit.module([x], kit.layer("nn.matmul", operand(kit, x, None), weight))
    assert after(kit, module, chosen) is module


@pytest.mark.parametrize("target", TARGETS)
def test_sums_of_floats_that_32_bits_may_not_hold_stay(kit: Any, target: str) -> None:
    chosen, scale = TARGETS[target] or kit.lanes(), np.float32(0.5)
    for depth, stays in ((40_000, True), (30_000, False)):
        x = kit.var("x", 2, depth, dtype="u8")
        weight = operand(kit, kit.const(np.full((depth, 3), 255, np.uint8)), None, scale)
        y = kit.layer("nn.matmul", operand(kit, x, None, scale), weight)
        module = kit.module([x], y)
        found = after(kit, module, chosen)
        assert (found is module) is stays
        inputs = {"x": np.full((2, depth), 255, np.uint8)}
        for a, b in zip(kit.interpret(module, inputs), kit.interpret(found, inputs), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.parametrize("side", list(GuardSide))
@pytest.mark.parametrize("size", [(16, 24, 7), (32, 64, 13), (8, 3, 5), (24, 17, 9)], ids=str)
def test_native_convolutions(kit: Any, size: tuple[int, int, int], side: GuardSide) -> None:
    """Sums of integers are exact: all engines give the same bits, up to one multiplication."""
    channels, filters, edge = size
    x = kit.var("x", 2, channels, edge, edge, dtype="u8")
    for kernel, stride in ((1, 1), (3, 1), (3, 2)):
        weight = draw("i8", filters, channels, kernel, kernel, seed=kernel)
        operands = (
            operand(kit, x, np.array(121, np.uint8), np.float32(0.02)),
            operand(kit, kit.const(weight), None, np.float32(0.01)),
        )
        attrs = {"padding": (kernel // 2,) * 4, "strides": (stride, stride)}
        y = kit.layer("nn.relu", kit.layer("nn.conv2d", *operands, **attrs))
        module = kit.module([x], y)
        value = draw("u8", 2, channels, edge, edge, seed=kernel)
        (expected,) = kit.interpret(module, {"x": value})
        compiled = clew.compile(
            module, threads=1, cache=False, diagnostics=clew.Diagnostics(guard=side)
        )
        (found,) = compiled.run({"x": value}).values()
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
        assert compiled.trace.verify({"x": value}).ok


@pytest.mark.parametrize("target", ["cortex-m4", "cortex-m7", "cortex-m55"])
@pytest.mark.parametrize("rows", [1, 40])
def test_microcontrollers_keep_bytes(kit: Any, target: str, rows: int) -> None:
    """Their kernels widen bytes as they read them, as memory is scarce."""
    before = product(kit, "i8", draw("i8", DEPTH, UNITS), (np.array(-3, np.int8), None), rows=rows)
    found = after(kit, before, target_of(target))
    dense = dense_of(found)
    assert dense is not None
    assert [a.tensor.dtype for a in dense.args] == ["i8", "i8"]
    check(kit, before, found)
