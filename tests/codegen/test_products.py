"""Dot products and matrix tiles in native code, with the target's features and without."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from products import Product, conv, dense, plain

from clew.codegen.artifact import KernelCode, ObjectCode
from clew.codegen.kernel import emit_kernel
from clew.codegen.worker import emit_object
from clew.ir.types import to_numpy
from clew.loop.ir import Buffer, Nest
from clew.loop.printer import print_nest
from clew.runtime.guard import GuardSide
from clew.runtime.jit import Library
from clew.runtime.memory import plan_segment
from clew.runtime.plan import BufferKind, BufferRef, BufferSpec, Step
from clew.runtime.segment import NativeSegment
from clew.runtime.threads import shared_pool
from clew.schedules.plan import schedule_kernel
from clew.target import Target, host

Array = np.ndarray[Any, Any]
LACKING: dict[str, tuple[str, ...]] = {
    "host": (),
    "no tiles": ("amx",),
    "no dots": ("amx", "avx512bf16", "avx512vnni"),
}
PRODUCTS = [
    dense(37, 58, 64),
    dense(3, 20, 31),
    dense(1, 33, 40),
    dense(70, 100, 96),
    dense(5, 16, 24),
    dense(33, 40, 48),
    dense(70, 58, 1024),
    dense(65, 33, 800),
    dense(37, 58, 64, "u8", "i8"),
    dense(2, 20, 31, "u8", "i8"),
    dense(37, 58, 128, "i8", "i8"),
    conv(14, 14, 64, 64, 3),
    conv(7, 7, 32, 64, 1),
    conv(9, 37, 32, 32, 3, stride=2),
    conv(5, 3, 16, 8, 3),
    conv(6, 20, 64, 32, 3, "u8", "i8"),
]


def target_without(lacking: tuple[str, ...]) -> Target:
    """This machine, less some features."""
    target = host()
    features = [
        f"-{f[1:]}" if lacking and f[1:].startswith(lacking) else f
        for f in target.features.split(",")
    ]
    return replace(target, features=",".join(features))


def run(nest: Nest, arrays: list[Array], target: Target, side: GuardSide, threads: int) -> Array:
    """Returns a nest's output by native code behind guard pages."""
    made = emit_kernel(nest, print_nest(nest), "kernel", target.triple, features=target.features)
    data = emit_object(made.llvm, target.triple, target.cpu, target.features)
    code = KernelCode("00", made.entries, made.scratch_bytes, made.workspace_bytes)
    refs = [BufferRef(BufferKind.INPUT, n) for n in range(len(nest.inputs))]
    refs += [BufferRef(BufferKind.OUTPUT, n) for n in range(len(nest.outputs))]
    refs += [BufferRef(BufferKind.ARENA, n) for n in range(len(made.workspace_bytes))]
    steps = [Step(code, tuple(refs), "kernel")]
    inputs, outputs = map(_specs, (nest.inputs, nest.outputs))
    plan = plan_segment(steps, inputs, outputs, [], list(made.workspace_bytes))
    library = Library([ObjectCode("00", data, tuple(e.symbol for e in made.entries))])
    return NativeSegment(plan, library, shared_pool(threads), guard=side)(arrays)[0]


def _specs(buffers: tuple[Buffer, ...]) -> list[BufferSpec]:
    return [BufferSpec(b.name, b.shape, to_numpy(b.dtype).name) for b in buffers]


@pytest.mark.parametrize("lacking", LACKING.values(), ids=LACKING)
@pytest.mark.parametrize("product", PRODUCTS, ids=str)
def test_native_products(product: Product, lacking: tuple[str, ...]) -> None:
    target = target_without(lacking)
    for tail in ("", "bf16") if product.data == "bf16" else ("", "f32"):
        nest, arrays, expected = plain(product, tail)
        schedule, _ = schedule_kernel(nest, target)
        sides: tuple[GuardSide, ...] = ("end", "start")
        for side, threads in zip(sides, (2, 1), strict=True):
            found = run(schedule.finished(), arrays, target, side, threads)
            np.testing.assert_array_equal(found, expected)


def test_code_for_tiles_runs_as_loops_elsewhere() -> None:
    if host().tile_shape("bf16", "bf16") is None:
        pytest.skip("this machine has no matrix tiles")
    nest, arrays, expected = plain(dense(19, 40, 64), "bf16")
    schedule, rules = schedule_kernel(nest, host())
    assert rules == ("tiles",)
    found = run(schedule.finished(), arrays, target_without(("amx", "avx512bf16")), "end", 1)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("product", "instruction"),
    [
        (dense(37, 58, 64), "tdpbf16ps"),
        (dense(37, 58, 64, "u8", "i8"), "tdpbusd"),
        (dense(2, 58, 64, "u8", "i8"), "vpdpbusd"),
    ],
    ids=str,
)
def test_instructions_are_used(product: Product, instruction: str) -> None:
    target = host()
    if target.tile_shape(product.data, product.weight) is None:
        pytest.skip("this machine has no matrix tiles")
    nest, _, _ = plain(product)
    schedule, _ = schedule_kernel(nest, target)
    finished = schedule.finished()
    made = emit_kernel(finished, print_nest(finished), "k", target.triple, features=target.features)
    assert instruction in made.llvm
    if instruction.startswith("tdp"):
        assert made.llvm.count("call void @llvm.x86.tilerelease") == len(made.entries)
