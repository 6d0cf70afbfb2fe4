"""Lanes at known places that are not evenly spaced: resampled lines, short last axes, folded
positions.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from guarded import Array, run

from clew import te
from clew.ir.types import to_numpy
from clew.loop.interpret import interpret
from clew.loop.ir import For, Nest, walk
from clew.loop.lower import lower
from clew.machine.target import Target, host, target_of
from clew.runtime.guard import GuardSide
from clew.schedules.plan import schedule_kernel

TARGETS = ("cpu", "cpu-avx2")


def machine(name: str) -> Target:
    return host() if name == "cpu" else replace(target_of(name), triple=host().triple)


def values(shape: tuple[int, ...], dtype: str) -> Array:
    numbers = np.random.default_rng(sum(shape)).integers(0, 100, shape)
    return numbers.astype(to_numpy(dtype))


def agrees(nest: Nest, arrays: list[Array], target: Target) -> Nest:
    """Checks native code behind guard pages against the nest without a schedule; returns the
    scheduled nest.
    """
    scheduled = schedule_kernel(nest, target).schedule.finished()
    wanted = interpret(nest, arrays)[0]
    for side in GuardSide:
        for threads in (1, 2):
            np.testing.assert_array_equal(run(scheduled, arrays, target, side, threads), wanted)
    return scheduled


def unrolled(nest: Nest) -> int:
    return max((s.extent for s in walk(nest.body) if isinstance(s, For) and s.kind == "unroll"),
               default=0)  # fmt: skip


def nearest(rows: int, size: int, out: int, dtype: str) -> Nest:
    x = te.placeholder((rows, size), dtype, "x")
    return lower("near", [x], [te.compute((rows, out), lambda i, j: x[i, j * size // out], "y")])


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize(
    ("size", "out"),
    [(60, 90), (48, 21), (7, 100), (100, 7), (30, 31), (90, 60), (480, 224), (50, 400), (64, 640)],
)
def test_nearest_elements(size: int, out: int, name: str) -> None:
    for dtype in ("f32", "i8", "f64", "bf16"):
        agrees(nearest(3, size, out, dtype), [values((3, size), dtype)], machine(name))


def test_a_pattern_is_unrolled() -> None:
    target = machine("cpu-avx2")  # 8 lanes
    for size, out, vectors in ((60, 90, 3), (100, 150, 3), (60, 120, 0), (480, 224, 7)):
        nest = schedule_kernel(nearest(3, size, out, "f32"), target).schedule.finished()
        assert unrolled(nest) == vectors, (size, out)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize(("size", "out"), [(60, 90), (20, 13), (13, 26), (9, 100), (40, 64)])
def test_sums_of_clamped_neighbors(size: int, out: int, name: str) -> None:
    x = te.placeholder((4, size), "f32", "x")

    def element(i: te.Scalar, j: te.Scalar) -> te.Scalar:
        below = ((j * 2 + 1) * size - out) // (out * 2)
        left = te.minimum(te.maximum(below, 0), size - 1)
        right = te.minimum(te.maximum(below + 1, 0), size - 1)
        return x[i, left] + x[i, right] * 2.0

    nest = lower("linear", [x], [te.compute((4, out), element, "y")])
    agrees(nest, [values((4, size), "f32")], machine(name))


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("last", [1, 2, 3, 5, 8])
def test_short_last_axes(last: int, name: str) -> None:
    target = machine(name)
    for rows, columns in ((5, 7), (4, 33), (1, 3)):
        for dtype in ("f32", "i8"):
            x = te.placeholder((rows, columns, last), dtype, "x")
            w = te.placeholder((last,), dtype, "w")
            plain = te.placeholder((last, rows, columns), dtype, "plain")
            sums = te.compute(x.shape, lambda i, j, k, x=x, w=w: x[i, j, k] + w[k], "sums")
            turned = te.compute(x.shape, lambda i, j, k, p=plain: p[k, i, j], "turned")
            arrays = [values((rows, columns, last), dtype), values((last,), dtype)]
            agrees(lower("sums", [x, w], [sums]), arrays, target)
            agrees(lower("turn", [plain], [turned]), [values((last, rows, columns), dtype)], target)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("shape", [(3, 5, 2, 3), (2, 9, 4, 4), (40, 2, 2, 2)])
def test_several_short_axes(shape: tuple[int, ...], name: str) -> None:
    x = te.placeholder(shape, "f32", "x")
    y = te.placeholder((shape[2], 1), "f32", "y")
    total = te.compute(shape, lambda a, b, c, d: x[a, b, c, d] * y[c, 0], "total")
    arrays = [values(shape, "f32"), values((shape[2], 1), "f32")]
    agrees(lower("scale", [x, y], [total]), arrays, machine(name))


def test_a_short_axis_of_threes_is_part_of_whole_vectors() -> None:
    x = te.placeholder((16, 64, 3), "f32", "x")
    w = te.placeholder((3,), "f32", "w")
    nest = lower("sums", [x, w], [te.compute(x.shape, lambda i, j, k: x[i, j, k] + w[k], "y")])
    found = schedule_kernel(nest, machine("cpu-avx2")).schedule.finished()
    lanes = {s.extent for s in walk(found.body) if isinstance(s, For) and s.kind == "vector"}
    assert lanes == {8}
    assert unrolled(found) == 3


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("step", [3, 4, 5, 7])
def test_lanes_far_apart_are_loaded_as_vectors(step: int, name: str) -> None:
    """The last vector that is read ends at the last lane, not beyond the operand."""
    for count in (16, 37, 64):
        x = te.placeholder((2, (count - 1) * step + 1), "f32", "x")
        nest = lower("apart", [x], [te.compute((2, count), lambda i, j, x=x: x[i, j * step], "y")])
        agrees(nest, [values((2, (count - 1) * step + 1), "f32")], machine(name))


@pytest.mark.parametrize("name", TARGETS)
def test_lanes_divided_by_constants(name: str) -> None:
    """More vectors than are unrolled, whose pattern does not repeat."""
    for size, out in ((331, 997), (997, 331)):
        agrees(nearest(2, size, out, "f32"), [values((2, size), "f32")], machine(name))
