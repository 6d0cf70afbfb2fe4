"""Small programs of hand-written kernels, for the tests and for the processes they start."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np

from clew.codegen.artifact import EntryPoint, KernelCode, ObjectCode
from clew.codegen.worker import emit_object
from clew.runtime.library import Library
from clew.runtime.memory import plan_segment
from clew.runtime.plan import BufferKind, BufferRef, BufferSpec, SegmentPlan, Step

PARALLEL = 1e6  # a cost in nanoseconds that is worth threads

INPUT, OUTPUT = BufferKind.INPUT, BufferKind.OUTPUT
CONSTANT, ARENA = BufferKind.CONSTANT, BufferKind.ARENA


@functools.cache
def library() -> Library:
    text = (Path(__file__).parent / "kernels.ll").read_text()
    triple = llvm.get_process_triple()
    llvm.initialize_native_target()
    data = emit_object(text, triple, llvm.get_host_cpu_name(), "")
    symbols = tuple(re.findall(r"^define void @([\w.]+)", text, re.MULTILINE))
    return Library([ObjectCode("00", data, symbols)])


def code(*symbols: str, grid: int = 1, cost: float = 100.0, scratch: int = 0) -> KernelCode:
    return KernelCode("00", tuple(EntryPoint(s, grid, cost) for s in symbols), scratch)


def step(kernel: KernelCode, *args: BufferRef) -> Step:
    return Step(kernel, args, kernel.entries[0].symbol)


def ref(kind: BufferKind, index: int = 0, offset_bytes: int = 0) -> BufferRef:
    return BufferRef(kind, index, offset_bytes)


def f32(name: str, *shape: int) -> BufferSpec:
    return BufferSpec(name, shape, "float32")


def chain(elements: int, length: int, cost: float = PARALLEL) -> SegmentPlan:
    """A plan for `x + y + 1 + 1 + ...` with `length` steps in all."""
    kernel = code("add", grid=elements, cost=cost)
    steps = [step(kernel, ref(INPUT, 0), ref(INPUT, 1), ref(ARENA, 0))]
    for index in range(length - 2):
        steps.append(step(kernel, ref(ARENA, index), ref(CONSTANT), ref(ARENA, index + 1)))
    steps.append(step(kernel, ref(ARENA, length - 2), ref(CONSTANT), ref(OUTPUT)))
    return plan_segment(
        steps,
        [f32("x", elements), f32("y", elements)],
        [f32("out", elements)],
        [np.ones(elements, np.float32)],
        [4 * elements] * (length - 1),
    )


def single(
    kernel: KernelCode, inputs: Sequence[BufferSpec], outputs: Sequence[BufferSpec]
) -> SegmentPlan:
    """A plan of one step whose arguments are the inputs, then the outputs."""
    args = [ref(INPUT, i) for i in range(len(inputs))] + [
        ref(OUTPUT, i) for i in range(len(outputs))
    ]
    return plan_segment([step(kernel, *args)], inputs, outputs, [], [])
