"""Dot products and matrix tiles in native code, with the target's features and without."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from guarded import run
from products import Product, conv, dense, plain

from clew.codegen.kernel import emit_kernel
from clew.loop.printer import print_nest
from clew.machine.target import Target, host
from clew.runtime.guard import GuardSide
from clew.schedules.plan import schedule_kernel

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
    conv(9, 37, 4, 64, 7, stride=2),
    conv(5, 17, 8, 32, 5),
    conv(6, 6, 4, 32, 4, stride=4),
    conv(5, 9, 2, 16, 4),
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


@pytest.mark.parametrize("lacking", LACKING.values(), ids=LACKING)
@pytest.mark.parametrize("product", PRODUCTS, ids=str)
def test_native_products(product: Product, lacking: tuple[str, ...]) -> None:
    target = target_without(lacking)
    for tail in ("", "bf16") if product.data == "bf16" else ("", "f32"):
        nest, arrays, expected = plain(product, tail)
        schedule = schedule_kernel(nest, target).schedule
        sides: tuple[GuardSide, ...] = ("end", "start")
        for side, threads in zip(sides, (2, 1), strict=True):
            found = run(schedule.finished(), arrays, target, side, threads)
            np.testing.assert_array_equal(found.reshape(expected.shape), expected)


def test_code_for_tiles_runs_as_loops_elsewhere() -> None:
    if host().tile_shape("bf16", "bf16") is None:
        pytest.skip("this machine has no matrix tiles")
    nest, arrays, expected = plain(dense(19, 40, 64), "bf16")
    plan = schedule_kernel(nest, host())
    schedule, rules = plan.schedule, plan.rules
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
    schedule = schedule_kernel(nest, target).schedule
    finished = schedule.finished()
    made = emit_kernel(finished, print_nest(finished), "k", target)
    assert instruction in made.llvm
    if instruction.startswith("tdp"):
        assert made.llvm.count("call void @llvm.x86.tilerelease") == len(made.entries)
