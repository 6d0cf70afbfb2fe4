"""Masks of lanes from one comparison: equal to the comparison of all positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from clew.codegen.address import element_bytes
from clew.codegen.builder import Builder, Value
from clew.codegen.lane_masks import lanes_at_least_zero
from clew.codegen.math import arith
from clew.codegen.vectors import literal_mask, load_every_other, load_vector, masks_in_order
from clew.ir.types import to_numpy
from clew.machine.target import target_of

FAR = 2**62


@pytest.mark.parametrize("lanes", [2, 4, 8, 16, 32, 64])
@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000, 2**26, -1, -2, -5, -(2**40)])
def test_lanes_at_least_zero(
    compile_lanes: Callable[..., Callable[..., np.ndarray]], step: int, lanes: int
) -> None:
    def emit(b: Builder, args: Sequence[Value]) -> Value:
        rest = b.value(f"extractelement {args[0].typed}, i64 0", "i64")
        mask = lanes_at_least_zero(b, step, rest, lanes)
        return b.value(f"zext {mask.typed} to <{lanes} x i64>", "i64", lanes)

    run = compile_lanes(emit, ["i64"], lanes)
    near = [k * step + d for k in range(-lanes - 1, lanes + 2) for d in (-1, 0, 1)]
    for rest in (*near, FAR, -FAR, 2**31, 2**32, -(2**32), 2**40):
        expected = step * np.arange(lanes) + rest >= 0
        found = run(np.full(lanes, rest, np.int64))
        np.testing.assert_array_equal(found.astype(bool), expected, str(rest))


@pytest.mark.parametrize("lanes", [2, 4, 8, 16])
def test_every_other_element_under_a_mask(
    compile_lanes: Callable[..., Callable[..., np.ndarray]], lanes: int
) -> None:
    def emit(b: Builder, args: Sequence[Value]) -> Value:
        values, wanted = args
        memory = b.pointer(f"alloca [{2 * lanes} x float], align 64")
        b.emit(f"store {values.typed}, ptr {memory}, align 4")
        after = b.pointer(f"getelementptr float, ptr {memory}, i64 {lanes}")
        b.emit(f"store {values.typed}, ptr {after}, align 4")
        mask = b.value(f"trunc {wanted.typed} to <{lanes} x i1>", "bool", lanes)
        return load_every_other(b, "f32", memory, 4, lanes, mask)

    run = compile_lanes(emit, ["f32", "i32"], lanes)
    values = np.arange(1, lanes + 1, dtype=np.float32)
    every: Any = np.concatenate([values, values])[::2]
    for wanted in np.random.default_rng(lanes).integers(0, 2, (20, lanes)).astype(np.int32):
        np.testing.assert_array_equal(run(values, wanted), np.where(wanted, every, 0))


@pytest.mark.parametrize("lanes", [2, 8, 16, 32, 64])
def test_masks_in_order(
    compile_lanes: Callable[..., Callable[..., np.ndarray]], lanes: int
) -> None:
    rng = np.random.default_rng(lanes)
    orders = rng.integers(0, lanes + 1, (2, lanes))  # `lanes`: a lane that does not hold

    def emit(b: Builder, args: Sequence[Value]) -> Value:
        mask = b.value(f"trunc {args[0].typed} to <{lanes} x i1>", "bool", lanes)
        found = masks_in_order(b, mask, orders.tolist())
        return b.value(f"zext {found.typed} to <{lanes} x i32>", "i32", lanes)

    run = compile_lanes(emit, ["i32"], lanes)
    for given in rng.integers(0, 2, (5, lanes)).astype(np.int32):
        held = np.append(given, 0)
        np.testing.assert_array_equal(run(given), held[orders[0]] | held[orders[1]])


@pytest.mark.parametrize("name", ["cpu-avx2", "cpu-avx512"])
@pytest.mark.parametrize(("dtype", "llvm"), [("f32", "float"), ("i64", "i64"), ("i16", "i16")])
@pytest.mark.parametrize("lanes", [2, 4, 5, 8, 11, 16, 21, 32, 64])
def test_halves_without_an_active_lane(
    compile_lanes: Callable[..., Callable[..., np.ndarray]],
    runs_here: Callable[[str], None],
    lanes: int,
    dtype: str,
    llvm: str,
    name: str,
) -> None:
    runs_here(name)
    known = [lane < max(1, lanes // 2 - 1) for lane in range(lanes)]

    def emit(b: Builder, args: Sequence[Value]) -> Value:
        values, wanted = args
        memory = b.pointer(f"alloca [{lanes} x {llvm}], align 64")
        b.emit(f"store {values.typed}, ptr {memory}, align 4")
        first = b.value(f"extractelement {wanted.typed}, i64 0", "i32")
        any_lane = b.splat(b.value(f"icmp ne {first.typed}, 0", "bool"), lanes)
        mask = arith.binary(b, "and", any_lane, literal_mask(known))
        return load_vector(b, dtype, memory, element_bytes(dtype), lanes, mask)

    run = compile_lanes(emit, [dtype, "i32"], lanes, target_of(name))
    values = np.arange(1, lanes + 1).astype(to_numpy(dtype))
    for wanted in (0, 1):
        found = run(values, np.full(lanes, wanted, np.int32))
        np.testing.assert_array_equal(found, np.where(known, values * wanted, 0))
