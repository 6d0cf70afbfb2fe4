"""Products of bytes that are added in pairs of 16 bits: where these hold the sums, and results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pytest

import clew
from clew.ir.expr import Call
from clew.ir.types import to_numpy
from clew.ir.visit import post_order
from clew.machine.target import target_of
from clew.passes.precision.narrow_integers import NarrowIntegers
from clew.runtime.guard import GuardSide

pytestmark = pytest.mark.usefixtures("shared_kernels")

AVX2 = target_of("cpu-avx2")
VNNI = replace(target_of("cpu-avx512"), features=f"{AVX2.features},+avx512vnni,+avx512vl")
# Largest magnitudes of two weights of a column and the largest number of the data: whether 16 bits
# hold the sum of both products.
PAIRS: Final = [
    ((64, 64), 255, True),
    ((-64, -64), 255, True),  # exactly -32640
    ((127, 1), 255, True),
    ((-128, 0), 255, True),
    ((64, 65), 255, False),
    ((127, 2), 255, False),
    ((-128, -1), 255, False),
    ((127, -128), 255, True),  # of different signs
    ((127, 127), 15, True),
    ((127, 127), 128, True),
    ((-128, -128), 129, False),
]


def draw(dtype: str, shape: tuple[int, ...], most: int = 255, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    low, high = (-most, most) if dtype == "i8" else (0, most)
    return rng.integers(low, high + 1, shape).astype(to_numpy(dtype))


def quantized(kit: Any, value: Any, zero: int | None, scale: float) -> Any:
    dtype = to_numpy(value.tensor.dtype)
    points = () if zero is None else (kit.const(np.array(zero, dtype)),)
    return kit.layer("dequantize", value, kit.const(np.float32(scale)), *points)


def product_of(module: Any, op: str) -> Call:
    calls = [n for n in post_order(module.main) if isinstance(n, Call) and n.op_name == op]
    assert len(calls) == 1
    return calls[0]


def narrowed(kit: Any, module: Any, target: Any) -> Any:
    return kit.PassManager([NarrowIntegers()], target=target).run(module)


def bounded(kit: Any, most: int) -> tuple[Any, Any]:
    """Returns an input and data between 0 and `most`, which a sum states."""
    if most == 255:
        x = kit.var("x", 5, 6, dtype="u8")
        return x, x
    x = kit.var("x", 5, 6, dtype="u4")
    least = kit.const(np.array(most - 15, np.uint8))
    return x, kit.layer("add", kit.layer("cast", x, dtype="u8"), least)


@pytest.mark.parametrize("layout", ["KN", "NK"])
@pytest.mark.parametrize(("two", "most", "fits"), PAIRS, ids=str)
def test_any_two_products_of_a_column(
    kit: Any, two: tuple[int, int], most: int, layout: str, *, fits: bool
) -> None:
    """Which ones an instruction adds is decided by layouts, so their places do not count."""
    x, data = bounded(kit, most)
    for places in ((0, 1), (1, 4)):
        weight = np.zeros((6, 3), np.int8)
        weight[list(places), 1] = two
        filters = kit.const(np.ascontiguousarray(weight if layout == "KN" else weight.T))
        operands = quantized(kit, data, 3, 0.5), quantized(kit, filters, None, 0.25)
        module = kit.module([x], kit.layer("nn.dense", *operands, weight_layout=layout))
        dense = product_of(narrowed(kit, module, AVX2), "nn.dense")
        assert dense.attrs.pairs_fit is fits
        assert dense.args[0].tensor.dtype == ("u8" if fits else "i16")
        plain = product_of(narrowed(kit, module, VNNI), "nn.dense")
        assert not plain.attrs.pairs_fit
        assert plain.args[1].tensor.dtype == "i8"


def test_what_stays_in_pairs_of_16_bits(kit: Any) -> None:
    """A large filter makes all filters wide; depthwise ones, and those of lines, are not bytes."""
    x = kit.var("x", 1, 16, 9, 9, dtype="u8")
    wide = draw("i8", (8, 16, 1, 1), 64)
    wide[5, :2] = 100
    for weight, groups, kept in (
        (draw("i8", (8, 16, 1, 1), 64), 1, False),
        (wide, 1, True),
        (draw("i8", (16, 1, 3, 3), 9), 16, True),
    ):
        operands = quantized(kit, x, 3, 0.5), quantized(kit, kit.const(weight), None, 0.25)
        module = kit.module([x], kit.layer("nn.conv2d", *operands, groups=groups))
        conv = product_of(narrowed(kit, module, AVX2), "nn.conv2d")
        assert (conv.args[0].tensor.dtype == "i16") is kept
    line = kit.var("x", 1, 16, 9, dtype="u8")
    weight = kit.const(draw("i8", (8, 16, 3), 9))
    operands = quantized(kit, line, 3, 0.5), quantized(kit, weight, None, 0.25)
    module = kit.module([line], kit.layer("nn.conv1d", *operands))
    assert product_of(narrowed(kit, module, AVX2), "nn.conv1d").args[0].tensor.dtype == "i16"


@pytest.mark.parametrize("known", [True, False])
def test_padding_with_zero_points(kit: Any, *, known: bool) -> None:
    x, zero = kit.var("x", 1, 16, 9, 9, dtype="u8"), kit.var("z", dtype="u8")
    point = kit.const(np.array(7, np.uint8)) if known else zero
    data = kit.layer("dequantize", x, kit.const(np.float32(0.5)), point)
    weight = quantized(kit, kit.const(draw("i8", (8, 16, 3, 3), 64)), None, 0.25)
    conv = kit.layer("nn.conv2d", data, weight, padding=(1, 1, 1, 1), strides=(2, 2))
    before = kit.module([x, zero], conv)
    found = narrowed(kit, before, AVX2)
    assert product_of(found, "nn.conv2d").args[0].tensor.dtype == "u8"
    inputs = {"x": draw("u8", (1, 16, 9, 9), 0), "z": np.uint8(211)}
    for a, b in zip(kit.interpret(before, inputs), kit.interpret(found, inputs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.parametrize(("zero", "fits"), [(15, True), (200, False)])
def test_padding_may_be_larger_than_the_image(kit: Any, zero: int, *, fits: bool) -> None:
    x = kit.var("x", 1, 16, 9, 9, dtype="u4")
    weight = quantized(kit, kit.const(draw("i8", (8, 16, 3, 3), 127)), None, 0.25)
    data = quantized(kit, kit.layer("cast", x, dtype="u8"), zero, 0.5)
    y = kit.layer("nn.conv2d", data, weight, padding=(1, 1, 1, 1), strides=(2, 2))
    conv = product_of(narrowed(kit, kit.module([x], y), AVX2), "nn.conv2d")
    assert conv.attrs.pairs_fit is fits


def test_transforms_of_pairs_are_faster_for_many_channels(kit: Any) -> None:
    """Winograd's algorithm on `i16` takes fewer products than a direct convolution of bytes."""
    for channels, strides, rules in ((32, 1, "winograd"), (32, 2, "dot_conv")):
        x = kit.var("x", 1, channels, 16, 16, dtype="u8")
        weight = quantized(kit, kit.const(draw("i8", (channels, channels, 3, 3), 64)), None, 0.25)
        attrs = {"padding": (1, 1, 1, 1), "strides": (strides, strides)}
        y = kit.layer("nn.conv2d", quantized(kit, x, 0, 0.5), weight, **attrs)
        compiled = clew.compile(kit.module([x], y), target=AVX2, threads=1)
        assert [k.rules for k in compiled.kernels if "conv2d" in k.name] == [(rules,)]


# channels, filters, edge, window, attributes
CONVOLUTIONS: Final[list[tuple[int, int, int, int, dict[str, Any]]]] = [
    (32, 48, 7, 1, {}),
    (24, 40, 9, 3, {"padding": (1, 1, 1, 1), "strides": (2, 2)}),
    (8, 16, 12, 5, {"padding": (2, 2, 2, 2), "dilation": (2, 1)}),
    (3, 32, 17, 7, {"padding": (3, 3, 3, 3), "strides": (2, 2)}),
    (16, 16, 6, 2, {"strides": (2, 2)}),
    (10, 6, 5, 3, {}),  # no block divides the channels
]


def extreme(shape: tuple[int, ...], axis: int) -> Any:
    """Returns a weight of 7 bits; that of the first two results is all highest and all lowest."""
    weight = draw("i8", shape, 64)
    for n, value in enumerate((64, -64)):
        np.moveaxis(weight, axis, 0)[n] = value
    return weight


@pytest.mark.parametrize("data", ["u8", "i8"])
@pytest.mark.parametrize("number", range(len(CONVOLUTIONS)))
def test_convolutions(kit: Any, number: int, data: str, runs_here: Callable[[Any], None]) -> None:
    """Sums are those of NumPy's integers, also of the largest data times the largest weights."""
    runs_here(AVX2.name)
    channels, filters, edge, window, attrs = CONVOLUTIONS[number]
    shape, dtype = (2, channels, edge, edge), to_numpy(data)
    x = kit.var("x", *shape, dtype=data)
    weight = kit.const(extreme((filters, channels, window, window), 0))
    operands = quantized(kit, x, 9 if data == "u8" else -3, 0.5), quantized(kit, weight, None, 0.25)
    module = kit.module([x], kit.layer("nn.conv2d", *operands, **attrs))
    assert product_of(narrowed(kit, module, AVX2), "nn.conv2d").attrs.pairs_fit
    side = list(GuardSide)[(number + (data == "i8")) % 2]
    compiled = clew.compile(
        module, target=AVX2, threads=1 + number % 2, diagnostics=clew.Diagnostics(guard=side)
    )
    most = 255 if data == "u8" else 127
    for value in (draw(data, shape, most), np.full(shape, most, dtype)):
        (expected,) = kit.interpret(module, {"x": value})
        (found,) = compiled.run({"x": value}).values()
        np.testing.assert_array_equal(found, expected)
    if channels % 4 == 0 or channels == 3:
        (kernel,) = (k for k in compiled.kernels if "conv2d" in k.name)
        assert "vpmaddubsw" in kernel.asm


@pytest.mark.parametrize("size", [(37, 64, 58), (1, 96, 33), (5, 31, 20)], ids=str)
def test_products(kit: Any, size: tuple[int, int, int], runs_here: Callable[[Any], None]) -> None:
    """The data's zero point may be known only when the model runs."""
    runs_here(AVX2.name)
    rows, depth, units = size
    x, zero = kit.var("x", rows, depth, dtype="u8"), kit.var("z", dtype="u8")
    weight = extreme((depth, units), 1)
    point = kit.layer("cast", zero, dtype="i32")
    wide = [kit.layer("cast", each, dtype="i32") for each in (x, kit.const(weight))]
    y = kit.layer("nn.matmul", kit.layer("subtract", wide[0], point), wide[1])
    side = list(GuardSide)[rows % 2]
    compiled = clew.compile(
        kit.module([x, zero], y), target=AVX2, threads=1, diagnostics=clew.Diagnostics(guard=side)
    )
    for value in (draw("u8", (rows, depth)), np.full((rows, depth), 255, np.uint8)):
        (found,) = compiled.run({"x": value, "z": np.array(7, np.uint8)}).values()
        expected = (value.astype(np.int32) - 7) @ weight.astype(np.int32)
        np.testing.assert_array_equal(found, expected)
    assert any("vpmaddubsw" in k.asm for k in compiled.kernels)
