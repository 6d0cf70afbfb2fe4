"""Dot products and matrix tiles: what schedules of them compute, and which are refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from products import Product, conv, dense, plain

from clew.loop.interpret import interpret
from clew.loop.ir import TileProduct, loops, walk
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.plan import schedule_kernel
from clew.support.errors import ScheduleError

WITHOUT = Target("test", "x86_64-unknown-linux-gnu", "x86-64", "", 512, 32, masked_memory=True)
DOTS = replace(WITHOUT, features="+avx512vl,+avx512bf16,+avx512vnni")
TILES = replace(DOTS, features=f"{DOTS.features},+amx-tile,+amx-bf16,+amx-int8")

SMALL = [
    (dense(7, 20, 32), "tiles"),
    (dense(3, 20, 9), "dot"),
    (dense(19, 33, 12, "u8", "i8"), "dot"),
    (dense(6, 18, 64, "i8", "i8"), "tiles"),
    (conv(5, 7, 32, 32, 3), "tiles"),
    (conv(4, 3, 8, 8, 2, stride=2), "tiles"),
    (conv(4, 5, 4, 16, 7), "tiles"),
    (conv(4, 3, 2, 8, 3, stride=2), "dot_conv"),
]


@pytest.mark.parametrize(("product", "rule"), SMALL, ids=lambda p: str(p))
def test_rules_compute_the_product(product: Product, rule: str) -> None:
    nest, arrays, expected = plain(product)
    plan = schedule_kernel(nest, TILES)
    schedule, rules = plan.schedule, plan.rules
    assert rules == (rule,)
    for found in (schedule.finished(), Schedule.replay(nest, schedule.steps).finished()):
        np.testing.assert_array_equal(interpret(found, arrays)[0], expected)


@pytest.mark.parametrize("target", [WITHOUT, DOTS], ids=["without", "dots"])
@pytest.mark.parametrize(("product", "rule"), SMALL[:3], ids=lambda p: str(p))
def test_targets_without_tiles(product: Product, rule: str, target: Target) -> None:
    nest, arrays, expected = plain(product)
    plan = schedule_kernel(nest, target)
    schedule, rules = plan.schedule, plan.rules
    assert rules == ("matmul" if product.data == "u8" and target is WITHOUT else "dot",)
    np.testing.assert_array_equal(interpret(schedule.finished(), arrays)[0], expected)


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_bands_of_rows_may_differ_in_height(dtype: str) -> None:
    nest, arrays, expected = plain(dense(113, 40, 32, dtype, dtype))
    plan = schedule_kernel(nest, replace(TILES, l2_bytes=2048))
    schedule, rules = plan.schedule, plan.rules
    assert rules == ("tiles" if dtype == "bf16" else "matmul",)
    tail = "balance" if dtype == "bf16" else "once"
    assert f"split(loop='dense@out.i', factor=38, tail={tail!r})" in map(str, schedule.steps)
    np.testing.assert_array_equal(interpret(schedule.finished(), arrays)[0], expected)


def test_chunks_of_the_depth_share_sums_in_scratch() -> None:
    nest, arrays, expected = plain(dense(67, 33, 96))
    plan = schedule_kernel(nest, replace(TILES, l1_bytes=6 << 10))
    schedule, rules = plan.schedule, plan.rules
    assert rules == ("tiles",)
    assert any("within='dense.i.o'" in str(step) for step in schedule.steps)
    np.testing.assert_array_equal(interpret(schedule.finished(), arrays)[0], expected)


@pytest.mark.parametrize(
    ("window", "channels", "depth"), [(7, 4, 28), (5, 8, 20), (3, 16, 24), (3, 32, 32)]
)
def test_columns_of_a_filter_and_few_channels_are_one_depth(
    window: int, channels: int, depth: int
) -> None:
    nest, arrays, expected = plain(conv(3, 6, channels, 16, window))
    plan = schedule_kernel(nest, TILES)
    schedule, rules = plan.schedule, plan.rules
    assert rules == ("tiles",)
    joined = [s for s in map(str, schedule.steps) if s == "fuse(outer='conv.kw', inner='conv.ci')"]
    assert len(joined) == (channels < 32)
    tiles = {s.depth for s in walk(schedule.nest.body) if isinstance(s, TileProduct)}
    assert {n.extent for n in loops(schedule.nest.body) if n.name in tiles} == {depth}
    np.testing.assert_array_equal(interpret(schedule.finished(), arrays)[0], expected)


def test_a_dot_product_is_one_step_in_each_lane() -> None:
    schedule = schedule_kernel(plain(dense(3, 16, 8))[0], DOTS).schedule
    text = str(schedule)
    assert re.search(r"vector dense.j.i in 16:\n +dot dense.k.i in 2:\n +dense.acc\[.*\+=", text)


def test_a_rest_of_the_depth_is_a_shorter_loop() -> None:
    schedule = schedule_kernel(plain(dense(3, 16, 9))[0], DOTS).schedule
    kinds = {(n.kind, n.extent) for n in loops(schedule.nest.body) if n.name == "dense.k.i"}
    assert kinds == {("dot", 2), ("dot", 1)}


def test_tiles_hold_zeros_and_sum() -> None:
    schedule = schedule_kernel(plain(dense(40, 48, 64))[0], TILES).schedule
    tiles = [s for s in walk(schedule.nest.body) if isinstance(s, TileProduct)]
    assert tiles
    assert "tiles dense.i x dense.j x dense.k.i:" in str(schedule)


def prepared() -> Schedule:
    """A block of a product in scratch, as a matrix unit takes it."""
    schedule = Schedule(plain(dense(32, 32, 64))[0])
    schedule.cache_write("dense")
    schedule.split("dense@out.i", 32)
    schedule.compute_at("dense", "dense@out.i.o", "scratch")
    schedule.split("dense.k", 32)
    return schedule


def tensorize(s: Schedule, rows: str = "i", columns: str = "j", depth: str = "k.i") -> Schedule:
    return s.tensorize("dense", f"dense.{rows}", f"dense.{columns}", f"dense.{depth}")


REFUSED: list[tuple[str, str, Callable[[Schedule], object]]] = [
    ("S028", "not a step", lambda s: s.dot("dense.k.i")),
    ("S028", "not a step", lambda s: s.dot("dense.i")),
    ("S002", "no adjacent zeros and sum", lambda s: s.tensorize("nothing", "a", "b", "c")),
    ("S029", "or depth is one", lambda s: tensorize(s, rows="k.o")),
    ("S029", "not stored in rows", lambda s: tensorize(s, rows="j", columns="i")),
    ("S029", "not directly nested", lambda s: tensorize(s, rows="m")),
    ("S029", "a depth of 64", lambda s: tensorize(s, depth="k.i+i")),
    ("S006", "already dot", lambda s: (s.split("dense.k.i", 2), s.dot("dense.k.i.i"),
                                       s.split("dense.k.i.i", 2))),
]  # fmt: skip


@pytest.mark.parametrize(("code", "text", "step"), REFUSED)
def test_what_instructions_do_not_do_is_refused(
    code: str, text: str, step: Callable[[Schedule], object]
) -> None:
    schedule = prepared()
    if text == "a depth of 64":
        schedule = Schedule(plain(dense(32, 32, 64))[0])
        schedule.cache_write("dense")
        schedule.split("dense@out.i", 32)
        schedule.compute_at("dense", "dense@out.i.o", "scratch")
        step = lambda s: tensorize(s, depth="k")  # noqa: E731
    with pytest.raises(ScheduleError, match=f"{code}.*{text}"):
        step(schedule)


def test_too_many_tiles_are_refused() -> None:
    schedule = Schedule(plain(dense(96, 32, 32))[0])
    schedule.cache_write("dense")
    schedule.split("dense@out.i", 96)
    schedule.compute_at("dense", "dense@out.i.o", "scratch")
    with pytest.raises(ScheduleError, match=r"S029.*exceed 8 tiles"):
        tensorize(schedule, depth="k")


def test_f32_is_no_narrow_product() -> None:
    nest, _, _ = plain(dense(8, 16, 32, "f32", "f32"))
    rules = schedule_kernel(nest, TILES).rules
    assert rules == ("matmul",)
