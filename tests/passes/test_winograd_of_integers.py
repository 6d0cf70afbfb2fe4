"""Convolutions of integers between transforms: chosen where they are exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clew.ir.dims import Dim, SymDim
from clew.ir.expr import Call, Function
from clew.ir.module import Module
from clew.ir.visit import calls
from clew.machine.target import target_of
from clew.passes.convolution.alter_layout import AlterLayout
from clew.passes.convolution.select_conv_algorithm import SelectConvAlgorithm
from clew.passes.integer_bounds import integer_bounds
from clew.passes.precision.narrow_integers import NarrowIntegers
from clew.passes.simplify.dead_code import DeadCode
from clew.passes.simplify.fold_constant import FoldConstant

PAIRS = target_of("cpu-avx2")


def network(
    kit: Any, weight: Any, size: int = 28, batch: Dim = 1, zero: Any = 128, dtype: str = "u8",
    **attrs: Any,
) -> Module:  # fmt: skip
    x = kit.var("x", batch, weight.shape[1], size, size, dtype=dtype)
    data = kit.layer("cast", x, dtype="i32")
    data = kit.layer("subtract", data, kit.const(np.asarray(zero, np.int32)))
    filters = kit.layer("cast", kit.const(weight), dtype="i32")
    return kit.module([x], kit.layer("nn.conv2d", data, filters, **attrs))


def drawn(outer: int, inner: int, most: int = 127, dtype: str = "i1") -> Any:
    return np.random.default_rng(0).integers(-most, most + 1, (outer, inner, 3, 3)).astype(dtype)


def selected(kit: Any, before: Module, **options: Any) -> tuple[Module, Call]:
    passes = (
        NarrowIntegers(), FoldConstant(), AlterLayout(), SelectConvAlgorithm(**options),
        FoldConstant(), DeadCode(),
    )  # fmt: skip
    after = kit.PassManager(passes, target=PAIRS).run(before)
    (conv,) = [c for c in calls(after.main) if "conv2d" in c.op_name]
    return after, conv


def check(kit: Any, before: Module, after: Module) -> None:
    (param,) = before.main.params
    low, high = (-128, 128) if param.tensor.dtype == "i8" else (0, 256)
    shape = [n if isinstance(n, int) else 2 for n in param.tensor.shape]
    x = np.random.default_rng(1).integers(low, high, shape)
    inputs = {"x": x.astype("i1" if low else "u1")}
    for a, b in zip(kit.interpret(before, inputs), kit.interpret(after, inputs), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("padding", [(0, 0, 0, 0), (1, 1, 1, 1), (1, 0, 2, 1)])
@pytest.mark.parametrize(("zero", "dtype"), [(0, "u8"), (255, "u8"), (-128, "i8")])
def test_padding_is_part_of_it(kit: Any, padding: Any, zero: int, dtype: str) -> None:
    before = network(kit, drawn(32, 32), zero=zero, dtype=dtype, padding=padding)
    after, conv = selected(kit, before)
    assert (conv.op_name, conv.attrs.tile) == ("nn.conv2d_winograd", 4)
    assert conv.attrs.padding == padding
    assert "pad" not in kit.op_names(after)
    check(kit, before, after)


def test_dilated_windows(kit: Any) -> None:
    before = network(kit, drawn(64, 64), padding=(2, 2, 2, 2), dilation=(2, 2))
    after, conv = selected(kit, before)
    assert conv.op_name == "nn.conv2d_winograd"
    assert {"space_to_batch", "batch_to_space"} < set(kit.op_names(after))
    check(kit, before, after)


@pytest.mark.parametrize(
    "attrs",
    [{"strides": (2, 2)}, {"groups": 32}, {"batch": SymDim.symbol("n")}],
    ids=["strides", "groups", "free"],
)
def test_others_stay_direct(kit: Any, attrs: dict[str, Any]) -> None:
    weight = drawn(32, 1 if attrs.get("groups") else 32)
    x = kit.var("x", attrs.pop("batch", 1), 32, 28, 28, dtype="u8")
    data, filters = (kit.layer("cast", v, dtype="i32") for v in (x, kit.const(weight)))
    before = kit.module([x], kit.layer("nn.conv2d", data, filters, **attrs))
    after, conv = selected(kit, before, min_gain=0)
    assert conv.op_name == "nn.conv2d"
    check(kit, before, after)


def test_tiles_whose_transforms_need_more_than_16_bits_are_not_offered(kit: Any) -> None:
    """Weights of 9 bits, as a zero point makes them; an image of any `i16`."""
    weight = drawn(32, 32, 255, "i2")
    for dtype, bound, tiles in (("u8", 255, {2}), ("i16", 1 << 15, set())):
        x = kit.var("x", 1, 32, 28, 28, dtype=dtype)
        image = kit.layer("cast", x, dtype="i16")
        assert max(map(abs, integer_bounds(image) or ())) == bound
        before = kit.module([x], kit.layer("nn.conv2d", image, kit.const(weight)))
        found = {selected(kit, before, tiles=(tile,), min_gain=0)[1] for tile in (2, 4)}
        assert {c.attrs.tile for c in found if c.op_name == "nn.conv2d_winograd"} == tiles


def test_sums_that_the_shift_would_cut_are_not_offered(kit: Any) -> None:
    """With 127 in every weight, 2**25 / (9 * 127 * 255) is 115 channels."""
    for channels, tile in ((112, 4), (128, 2)):
        weight = np.full((32, channels, 3, 3), 127, "i1")
        _, conv = selected(kit, network(kit, weight, zero=0))
        assert conv.attrs.tile == tile


# --- bounds ---------------------------------------------------------------------------------------


def test_bounds_follow_arithmetic_and_movement(kit: Any) -> None:
    x, y = kit.var("x", 1, 2, 3, 3, dtype="u8"), kit.var("y", 1, 2, 3, 3, dtype="i8")
    wide = kit.layer("cast", x, dtype="i32")
    assert integer_bounds(wide) == (0, 255)
    less = kit.layer("subtract", wide, kit.const(np.arange(3, 6, dtype=np.int32)))
    assert integer_bounds(less) == (-5, 252)
    pair = kit.layer("cast", less, dtype="i16")
    assert integer_bounds(kit.layer("pad", pair, pads=[0, 0, 1, 0] * 2, value=300)) == (-5, 300)
    both = kit.layer("concatenate", pair, kit.layer("cast", y, dtype="i16"), axis=1)
    assert integer_bounds(kit.layer("reshape", both, shape=(36,))) == (-128, 252)
    total = kit.layer("add", wide, kit.layer("cast", y, dtype="i32"))
    assert integer_bounds(total) == (-128, 382)
    assert integer_bounds(kit.layer("cast", total, dtype="i8")) == (-128, 127)  # it wraps


def test_bounds_of_what_is_not_followed_are_those_of_the_dtype(kit: Any) -> None:
    x = kit.var("x", 4, dtype="i16")
    assert integer_bounds(x) == (-(1 << 15), (1 << 15) - 1)
    assert integer_bounds(kit.layer("multiply", x, x)) == (-(1 << 15), (1 << 15) - 1)
    assert integer_bounds(kit.layer("add", x, x)) == (-(1 << 15), (1 << 15) - 1)
    assert integer_bounds(kit.var("z", 4)) is None


def test_bounds_of_long_chains_with_shared_parts_take_linear_time(kit: Any) -> None:
    x = kit.var("x", 4, dtype="i32")
    for _ in range(3000):
        x = kit.layer("add", x, x)
    assert integer_bounds(x) == (-(1 << 31), (1 << 31) - 1)


def test_functions_named_like_operators_have_no_bounds(kit: Any) -> None:
    a = kit.var("a", 4, dtype="u8")
    for name in ("cast", "arange"):
        own = Function([a], kit.layer("cast", a, dtype="i16"), {"name": name}, span=a.span)
        call = Call(own, [kit.var("x", 4, dtype="u8")], span=a.span)
        assert integer_bounds(call) == (-(1 << 15), (1 << 15) - 1)


def test_bounds_of_ranges_and_constants(kit: Any) -> None:
    up, down = (
        kit.layer("arange", start=3, stop=n, step=s, dtype="i64") for n, s in ((9, 2), (0, -1))
    )
    assert integer_bounds(up) == (3, (1 << 63) - 1)
    assert integer_bounds(down) == (-(1 << 63), 3)
    assert integer_bounds(kit.layer("arange", start=3, stop=9, step=2, dtype="i8")) == (-128, 127)
    assert integer_bounds(kit.const(np.array([5, -7], np.int16))) == (-7, 5)
    assert integer_bounds(kit.const(np.arange(1 << 17, dtype=np.int32))) == (
        -(1 << 31),
        (1 << 31) - 1,
    )
