"""What CPUs have, by LLVM's features; and that nothing outside its room knows these by name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import clew
from clew.ir.expr import Constant, Function, Tuple, Var
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.machine.instructions import Instructions
from clew.machine.target import target_of
from clew.ops.registry import get_op

CLIENT = "+avx2,+bmi,+bmi2,+f16c,+fma,+lzcnt,+movbe,+popcnt"
VNNI = "+avx512vnni,+avx512vl"


@pytest.mark.parametrize(
    ("features", "lanes", "function"),
    [
        (VNNI, 16, "llvm.x86.avx512.vpdpbusd.512"),
        (VNNI, 8, "llvm.x86.avx512.vpdpbusd.256"),
        ("+avx512vnni", 16, ""),  # shorter vectors are asked for, too
        ("+avxvnni", 8, "llvm.x86.avx512.vpdpbusd.256"),
        ("+avxvnni", 16, ""),
        ("+avxvnni", 5, ""),
        ("+avx512f", 16, ""),
        ("", 8, ""),
        ("+neon,+i8mm", 4, "llvm.aarch64.neon.usdot.v4i32.v16i8"),
        ("+neon,+dotprod", 4, "llvm.aarch64.neon.sdot.v4i32.v16i8"),
        ("+neon", 4, ""),
    ],
)
def test_dot_products_of_bytes(features: str, lanes: int, function: str) -> None:
    found = Instructions(features).dot("u8", "i8", lanes)
    assert (found.function if found else "") == function


@pytest.mark.parametrize(
    ("features", "lanes", "pairs"),
    [
        ("+avx2", 8, "llvm.x86.avx2.pmadd.ub.sw"),
        ("+ssse3,+sse2", 4, "llvm.x86.ssse3.pmadd.ub.sw.128"),
        ("+avx512bw", 16, "llvm.x86.avx512.pmaddubs.w.512"),
        ("+avx2,+avxvnni", 8, ""),  # sums of 32 bits need no promise
        (f"{VNNI},+avx2", 8, ""),
        ("+sse2", 4, None),
    ],
)
def test_dot_products_of_bytes_in_short_pairs(features: str, lanes: int, pairs: str | None) -> None:
    found = Instructions(features).dot("u8", "i8", lanes, pairs_fit=True)
    assert (found.pairs if found else None) == pairs
    if pairs:
        assert Instructions(features).dot("u8", "i8", lanes) is None


def test_dot_products_that_are_slow_are_none() -> None:
    quick = Instructions("+avx512bf16,+avx512vl")
    assert quick.dot("bf16", "bf16", 16) is not None
    assert Instructions(f"{quick.features},+avx512fp16").dot("bf16", "bf16", 16) is None


def test_a_client_cpu_multiplies_bytes_in_256_bits() -> None:
    target = replace(
        target_of("cpu-avx2"), name="client", cpu="alderlake", features=f"{CLIENT},+avxvnni"
    )
    x = Var("x", TensorType((32, 256), "u8"))
    weight = Constant(np.random.default_rng(0).integers(-9, 9, (64, 256)).astype("i1"))
    body = Tuple([get_op("nn.dense")(x, weight)])
    module = Module({"main": Function([x], body, {"outputs": ("y",)})})
    assert target.dot_lanes("u8", "i8") == 8
    (kernel,) = clew.compile(module, target=target, threads=1, cache=False).kernels
    assert kernel.rules == ("dot",)
    assert "vpdpbusd" in kernel.asm
    assert "zmm" not in kernel.asm


_FEATURE = re.compile(r"avx|amx-|vnni|f16c|\bneon|sse4")
# Named targets, which users write, are no features.
_NAMED = re.compile(r"cpu-\w+")


def test_features_are_named_in_their_room_only() -> None:
    source = Path(clew.__file__).parent
    room = set((source / "machine").glob("*.py"))
    found = [
        f"{file.relative_to(source)}:{line}: {text!r}"
        for file in source.rglob("*.py")
        if file not in room
        for line, text in _literals(file)
        if _FEATURE.search(_NAMED.sub("", text))
    ]
    assert not found


def _literals(file: Path) -> Iterator[tuple[int, str]]:
    """Yields the texts in a program that are no docstrings."""
    tree = ast.parse(file.read_text())
    docs = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.lineno, node.value
