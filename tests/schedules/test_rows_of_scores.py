"""Attention of a few queries: scores are rows of keys, and values are right at all lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clew
from clew.ir.interpret import interpret
from clew.ir.module import Module
from clew.ir.parser import parse_module
from clew.ir.types import to_numpy
from clew.ops.math.attention import scores_lie_along_keys

CASES = {
    # by target, queries, elements of a key and of a value, dtype of the cache, and mask
    "one": ("cpu", 1, 64, 64, "f32", ""),
    "three": ("cpu-avx2", 3, 64, 64, "f32", "bool[b, 1, 1, t]"),
    "four": ("cpu", 4, 24, 80, "f32", "f32[4, t]"),
    "odd": ("cpu-avx2", 2, 33, 17, "f32", "bool[b, 3, 2, t]"),
    "narrow": ("cpu-sse", 3, 6, 1, "f32", "bool[3, t]"),
    "f16": ("cpu", 3, 33, 64, "f16", "bool[3, t]"),
    "bf16": ("cpu-avx2", 4, 64, 8, "bf16", ""),
}


def module(rows: int, width: int, depth: int, cache: str, mask: str) -> Module:
    param, arg = (f", %m: {mask}", ", %m") if mask else ("", "")
    q, y = f"f32[b, 3, {rows}, {width}]", f"f32[b, 3, {rows}, {depth}]"
    k, v = f"{cache}[b, 3, t, {width}]", f"{cache}[b, 3, t, {depth}]"
    return parse_module(f"""clew 1, frontend test
def @main(%q: {q}, %k: {k}, %v: {v}{param}) -> ({y}) with outputs=["y"] {{
  %0: {y} = nn.attention(%q, %k, %v{arg}, guard="empty")
  %1: ({y}) = (%0)
  return %1
}}
""")


def drawn(given: Module, keys: int) -> dict[str, Any]:
    rng = np.random.default_rng(keys)
    found = {}
    for param in given.main.params:
        shape = [
            d if isinstance(d, int) else {"t": keys, "b": 2}[str(d)] for d in param.tensor.shape
        ]
        value = rng.standard_normal(shape)
        is_bool = param.tensor.dtype == "bool"
        found[param.name] = value > 0 if is_bool else value.astype(to_numpy(param.tensor.dtype))
    return found


@pytest.mark.parametrize("case", CASES)
def test_values_at_any_length(case: str) -> None:
    target, rows, width, *others = CASES[case]
    given = module(rows, width, *others)
    assert scores_lie_along_keys(rows, width, "BHSD")
    compiled = clew.compile(
        given, threads=1, target=target, diagnostics=clew.Diagnostics(guard=True), cache=False
    )
    for keys in (0, 1, 7, 40):
        inputs = drawn(given, keys)
        expected = interpret(given, inputs)["y"]
        np.testing.assert_allclose(compiled.run(inputs)["y"], expected, rtol=2e-5, atol=2e-6)


def test_lanes_are_elements_of_a_key() -> None:
    for rows, lanes in ((4, "i"), (5, "m")):
        given = module(rows, 64, 64, "f32", "")
        (kernel,) = clew.compile(given, threads=1, target="cpu-avx2").kernels
        assert f"vector attention.scores.{lanes}" in str(kernel.schedule)
