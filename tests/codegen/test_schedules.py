"""Whatever schedule a nest has, its native code computes what the nest does, or is refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from computations import KINDS, check_drawn, draw_schedule, plain

from clew import te
from clew.codegen.artifact import KernelCode, ObjectCode
from clew.codegen.kernel import emit_kernel
from clew.codegen.worker import emit_object
from clew.ir.types import to_numpy
from clew.loop.ir import Buffer, Nest
from clew.loop.lower import lower
from clew.loop.printer import print_nest
from clew.loop.schedule import Schedule
from clew.machine.target import host
from clew.runtime.guard import GuardSide
from clew.runtime.library import Library
from clew.runtime.memory import plan_segment
from clew.runtime.plan import BufferKind, BufferRef, BufferSpec, Step
from clew.runtime.segment import NativeSegment
from clew.runtime.threads import shared_pool
from clew.support.errors import ScheduleError

Array = np.ndarray[Any, Any]


def _run(
    nest: Nest, arrays: list[Array], side: GuardSide, *, masks_cheap: bool = False
) -> list[Array]:
    """Returns the outputs of a nest's native code on two threads, behind guard pages."""
    target = replace(host(), masked_memory=masks_cheap)
    made = emit_kernel(nest, print_nest(nest), "kernel", target)
    data = emit_object(made.llvm, target.triple, target.cpu, target.features)
    code = KernelCode("00", made.entries, made.scratch_bytes, made.workspace_bytes)
    refs = [BufferRef(BufferKind.INPUT, n) for n in range(len(nest.inputs))]
    refs += [BufferRef(BufferKind.OUTPUT, n) for n in range(len(nest.outputs))]
    refs += [BufferRef(BufferKind.ARENA, n) for n in range(len(made.workspace_bytes))]
    steps = [Step(code, tuple(refs), "kernel")]
    inputs, outputs = map(_specs, (nest.inputs, nest.outputs))
    plan = plan_segment(steps, inputs, outputs, [], list(made.workspace_bytes))
    library = Library([ObjectCode("00", data, tuple(e.symbol for e in made.entries))])
    flat = [a.reshape(b.shape) for a, b in zip(arrays, nest.inputs, strict=True)]
    return NativeSegment(plan, library, shared_pool(2), guard=side)(flat)


def _specs(buffers: tuple[Buffer, ...]) -> list[BufferSpec]:
    return [BufferSpec(b.name, b.shape, to_numpy(b.dtype).name) for b in buffers]


def _check_drawn(seeds: range) -> None:
    applied: Counter[str] = Counter()
    refused = 0
    for seed in seeds:
        draw = Random(seed)
        kind = draw.choice(sorted(KINDS))
        nest, arrays, expected = plain(kind, draw.randint(1, 6), draw.randint(1, 19))
        schedule = Schedule(nest)
        made = draw_schedule(draw, kind, schedule)
        assert made, f"seed {seed}: no step was applied"
        side, masks_cheap = draw.choice(list(GuardSide)), draw.random() < 0.5
        try:
            found = _run(schedule.finished(), arrays, side, masks_cheap=masks_cheap)
        except ScheduleError as error:
            if error.code not in ("S040", "S041", "S042"):
                raise
            refused += 1
            continue
        for a, b in zip(found, expected, strict=True):
            steps = "\n".join(map(str, schedule.steps))  # one of them may have joined axes of `a`
            np.testing.assert_array_equal(a.reshape(b.shape), b, err_msg=f"seed {seed}\n{steps}")
        applied.update(made)
    assert refused < 0.3 * len(seeds)
    check_drawn(applied)


def test_native_code_of_any_schedule() -> None:
    """All primitives and tails are among the steps of the drawn schedules that have native code."""
    _check_drawn(range(160))


@pytest.mark.exhaustive
def test_native_code_of_any_of_many_schedules() -> None:
    _check_drawn(range(160, 2000))


def _product() -> Schedule:
    return Schedule(plain("matmul", 6, 8)[0])


def test_a_register_tile_is_indexed_by_literals() -> None:
    schedule = _product()
    schedule.compute_at("product", "out.i", "register")
    with pytest.raises(ScheduleError) as caught:
        _run(schedule.finished(), [], GuardSide.END)
    assert caught.value.code == "S040"
    assert "product" in caught.value.message
    assert "unroll" in caught.value.hint


def test_lanes_write_elements_of_their_own() -> None:
    x = te.placeholder((8,), "f32", "x")
    doubled = te.compute((8,), lambda i: x[i] * 2.0, "doubled")
    out = te.compute((8, 4), lambda i, j: doubled[i] + 1.0, "out")
    schedule = Schedule(lower("lanes", [x], [out]))
    schedule.compute_at("doubled", "out.i", "scratch")
    schedule.vectorize("doubled.i")
    schedule.vectorize("out.j")
    arrays = [np.arange(8, dtype=np.float32)]
    found = _run(schedule.finished(), arrays, GuardSide.END)[0]
    np.testing.assert_array_equal(found, np.repeat(arrays[0][:, None] * 2 + 1, 4, axis=1))


@pytest.mark.parametrize("unrolled", [False, True])
@pytest.mark.parametrize(
    ("source", "to"),
    [("f32", "i8"), ("f32", "bf16"), ("f32", "f16"), ("i64", "i32"), ("i32", "i8")],
)
def test_one_lane_that_is_left_stores_its_own_width(source: str, to: str, unrolled: bool) -> None:
    x = te.placeholder((2, 17), source, "x")
    out = te.compute((2, 17), lambda i, j: te.cast(to, x[i, j]), "out")
    schedule = Schedule(lower("narrowed", [x], [out]))
    outer, inner = schedule.split("out.j", 16, tail="guard")
    schedule.vectorize(inner)
    if unrolled:
        schedule.unroll(outer)
        schedule.unroll("out.i")
    array = np.arange(34).astype(to_numpy(source)).reshape(2, 17)
    found = _run(schedule.finished(), [array], GuardSide.END)[0]
    np.testing.assert_array_equal(found.astype("f8"), array.astype("f8"))


@pytest.mark.parametrize("masks_cheap", [False, True])
@pytest.mark.parametrize("side", GuardSide)
def test_what_lies_outside_is_not_read(side: GuardSide, masks_cheap: bool) -> None:
    """Rows before and after the image are zeros, under one condition for all lanes."""
    x = te.placeholder((3, 16), "f32", "x")
    inside = lambda i: te.all_of(i >= 2, i < 5)  # noqa: E731
    out = te.compute((7, 16), lambda i, j: te.select(inside(i), x[i - 2, j], 0.0), "out")
    schedule = Schedule(lower("padded", [x], [out]))
    schedule.vectorize("out.j")
    array = np.arange(48, dtype=np.float32).reshape(3, 16) + 1
    found = _run(schedule.finished(), [array], side, masks_cheap=masks_cheap)[0]
    np.testing.assert_array_equal(found, np.pad(array, [(2, 2), (0, 0)]))
