"""A few values that take long and are read again and again are made before what reads them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from guarded import run

from clew import te
from clew.codegen.kernel import emit_kernel
from clew.loop.interpret import interpret
from clew.loop.ir import If, Nest, Store, loops, walk
from clew.loop.lower import lower
from clew.loop.printer import print_nest
from clew.machine.target import host
from clew.ops.images.image import resize
from clew.ops.images.regions import roi_align
from clew.runtime.guard import GuardSide
from clew.schedules.plan import schedule_kernel
from clew.schedules.stages import stage_infos
from clew.te.expr import Binary, conjuncts

REGIONS = np.array([[0, 0, 3, 3], [1.5, -2, 9, 4], [4, 4, 1, 1], [-9, 2, -5, 30]], "f4")


def pooled(channels: int, layout: str, **attrs: Any) -> Nest:
    shape = {"NCHW": (1, channels, 5, 4), "NHWC": (1, 5, 4, channels)}.get(
        layout, (1, channels, 5, 4, 4)
    )
    x, rois = te.placeholder(shape, "f32", "x"), te.placeholder((4, 4), "f32", "rois")
    images = te.placeholder((4,), "i64", "images")
    return lower(
        "pool",
        [x, rois, images],
        [roi_align.compute(x, rois, images, out=(2, 2), layout=layout, **attrs)],
    )


@pytest.mark.parametrize("side", list(GuardSide))
@pytest.mark.parametrize("attrs", [{"samples": 2}, {}, {"mode": "max"}], ids=str)
@pytest.mark.parametrize(("channels", "layout"), [(2, "NCHW"), (2, "NCHW4c"), (5, "NHWC")])
def test_places_and_weights_of_regions(
    channels: int, layout: str, attrs: dict[str, Any], side: GuardSide
) -> None:
    nest, target = pooled(channels, layout, **attrs), host()
    draw = np.random.default_rng(0)
    x = draw.standard_normal(nest.inputs[0].shape).astype("f4")
    arrays = [x, REGIONS, np.zeros(4, "i8")]
    schedule = schedule_kernel(nest, target).schedule
    # The tables of one region at a time: their memory does not grow with the number of regions.
    made = {b.name.split(".")[-1]: b for b in schedule.nest.temporaries}
    elements = {"y": 4, "x": 4} if "samples" in attrs else {"y": 32, "x": 28}
    for letter, count in elements.items():
        for name in ("at", "weights"):
            table = made[f"roi_align_{name}_{letter}"]
            assert (table.shape, table.scope) == ((1, 2, count), "scratch")
    (expected,) = interpret(schedule.nest, arrays)  # checks that each read was written
    np.testing.assert_allclose(
        run(schedule.nest, arrays, target, side, 2), expected, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("mode", ["avg", "max"])
def test_loops_over_points_end_where_the_points_of_a_bin_do(mode: str) -> None:
    nest = schedule_kernel(pooled(32, "NHWC", mode=mode), host()).schedule.nest
    inner = [s for s in loops(nest.body) if s.name.endswith((".of_y", ".of_x"))]
    assert inner
    for loop in inner:
        assert isinstance(loop.body, If)  # `if of_y < count[region, bin]`, before all others
        (first, *_) = conjuncts(loop.body.cond)
        assert isinstance(first, Binary)
        assert (first.op, first.a) == ("lt", loop.index)
    text = emit_kernel(nest, print_nest(nest), "kernel", host(), debug=False).llvm
    # Only the loops that clear the two tables of an axis run over all elements that may exist.
    for count in (32, 28):
        whole = rf"(%\w+) = icmp slt i64 %\w+, {count}\n\s*br i1 \1,"
        assert len(re.findall(whole, text)) == 2


def test_a_short_computation_is_done_where_it_is_read() -> None:
    scale, x = te.placeholder((8,), "f32", "scale"), te.placeholder((512, 8), "f32", "x")
    doubled = te.compute((8,), lambda i: scale[i] * 2.0, "doubled")
    y = te.compute((512, 8), lambda i, j: x[i, j] * doubled[j], "y")
    schedule = schedule_kernel(lower("k", [scale, x], [y]), host()).schedule
    assert list(stage_infos(schedule)) == ["y"]


@pytest.mark.parametrize("shape", [(1, 1, 9, 40), (1, 1, 40, 9), (1, 1, 50, 60)], ids=str)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_axes_are_resampled_in_vectors_by_weights_of_a_table(
    shape: tuple[int, ...], mode: str
) -> None:
    x = te.placeholder((1, 1, 33, 21), "f32", "x")
    nest = lower("k", [x], [resize.compute(x, shape=shape, mode=mode, antialias=True)])
    plan = schedule_kernel(nest, host())
    resampled = {d.root for d in plan.decisions if d.rule == "selected"}
    shrinks = [n for n in (2, 3) if mode == "cubic" or shape[n] < x.shape[n]]
    assert len(resampled) == len(shrinks)
    vectors = [s for s in loops(plan.schedule.nest.body) if s.kind == "vector"]
    stores = [s for v in vectors for s in walk(v.body) if isinstance(s, Store) and s.combiner]
    assert resampled <= {s.stage for s in stores}
    value = np.random.default_rng(0).standard_normal(nest.inputs[0].numbers).astype("f4")
    (expected,) = interpret(nest, [value])
    for side in GuardSide:
        found = run(plan.schedule.nest, [value], host(), side, 2)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_short_channels_join_the_pixels_of_a_line() -> None:
    """Lines are resampled in whole vectors of pixels and channels."""
    x = te.placeholder((2, 33, 21, 3), "f32", "x")
    nest = lower("k", [x], [resize.compute(x, shape=(2, 9, 21, 3), mode="linear", antialias=True)])
    schedule = schedule_kernel(nest, host()).schedule
    stores = [s for s in walk(schedule.nest.body) if isinstance(s, Store) and s.stage == "resize"]
    assert {len(s.indices) for s in stores} == {3}
    value = np.random.default_rng(0).standard_normal(nest.inputs[0].numbers).astype("f4")
    (expected,) = interpret(nest, [value])
    for side in GuardSide:
        found = run(schedule.nest, [value], host(), side, 2)
        np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=1e-5, atol=1e-6)
