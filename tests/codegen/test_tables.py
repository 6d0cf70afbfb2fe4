"""A few values that take long and are read again and again are made before what reads them."""

from __future__ import annotations

import numpy as np
import pytest
from guarded import run

from clew import te
from clew.loop.interpret import interpret
from clew.loop.ir import Nest
from clew.loop.lower import lower
from clew.machine.target import host
from clew.ops.images.regions import roi_align
from clew.runtime.guard import GuardSide
from clew.schedules.plan import schedule_kernel
from clew.schedules.stages import stage_infos

REGIONS = np.array([[0, 0, 3, 3], [1.5, -2, 9, 4], [4, 4, 1, 1], [-9, 2, -5, 30]], "f4")


def pooled(channels: int, layout: str) -> Nest:
    shape = (1, channels, 9, 11, 16) if layout != "NCHW" else (1, channels, 9, 11)
    x, rois = te.placeholder(shape, "f32", "x"), te.placeholder((4, 4), "f32", "rois")
    images = te.placeholder((4,), "i64", "images")
    return lower(
        "pool",
        [x, rois, images],
        [roi_align.compute(x, rois, images, out=(7, 7), samples=2, layout=layout)],
    )


@pytest.mark.parametrize("side", list(GuardSide))
@pytest.mark.parametrize(("channels", "layout"), [(3, "NCHW"), (2, "NCHW16c")])
def test_places_and_weights_of_regions(channels: int, layout: str, side: GuardSide) -> None:
    nest, target = pooled(channels, layout), host()
    draw = np.random.default_rng(0)
    x = draw.standard_normal(nest.inputs[0].shape).astype("f4")
    arrays = [x, REGIONS, np.zeros(4, "i8")]
    schedule = schedule_kernel(nest, target).schedule
    # The tables are made for all regions at once: they stand beside the loops of the result.
    made = {b.name.split(".")[-1]: b.shape for b in schedule.nest.temporaries}
    for name in ("at_y", "at_x", "weights_y", "weights_x"):
        assert made[f"roi_align_{name}"] == (4, 7, 4)
    (expected,) = interpret(nest, arrays)
    np.testing.assert_allclose(
        run(schedule.nest, arrays, target, side, 2), expected, rtol=1e-5, atol=1e-6
    )


def test_a_short_computation_is_done_where_it_is_read() -> None:
    scale, x = te.placeholder((8,), "f32", "scale"), te.placeholder((512, 8), "f32", "x")
    doubled = te.compute((8,), lambda i: scale[i] * 2.0, "doubled")
    y = te.compute((512, 8), lambda i, j: x[i, j] * doubled[j], "y")
    schedule = schedule_kernel(lower("k", [scale, x], [y]), host()).schedule
    assert list(stage_infos(schedule)) == ["y"]
