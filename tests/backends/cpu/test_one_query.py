"""Attention of one query whose heads share keys and values, against the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clew
from clew.backends.cpu.one_query import one_query
from clew.ir.expr import Function
from clew.ir.interpret import interpret
from clew.ir.module import Module
from clew.ir.parser import parse_module

CASES = {
    # by layout of queries, groups, and mask
    "heads-first": ("BHSD", 2, "bool[s, t]"),
    "heads-last": ("BSHD", 1, "f32[1, 4, s, t]"),
}
SHAPES = {"BSHD": "[b, s, 4, 8]", "BHSD": "[b, 4, s, 8]"}


def module(layout: str, groups: int, mask: str, rows: str = "s", causal: bool = False) -> Module:
    shape, keys = SHAPES[layout].replace("s", rows), f"f32[b, {groups}, t, 8]"
    mask = mask.replace("s,", f"{rows},")
    param, arg = (f", %m: {mask}", ", %m") if mask else ("", "")
    attrs = f'causal={str(causal).lower()}, q_layout="{layout}", layout="{layout}"'
    return parse_module(f"""clew 1, frontend test
def @main(%q: f32{shape}, %k: {keys}, %v: {keys}{param}) -> (f32{shape}) with outputs=["y"] {{
  %0: f32{shape} = nn.attention(%q, %k, %v{arg}, {attrs})
  %1: (f32{shape}) = (%0)
  return %1
}}
""")


def drawn(given: Module, **sizes: int) -> dict[str, Any]:
    rng = np.random.default_rng(sizes["s"])
    found = {}
    for param in given.main.params:
        shape = [d if isinstance(d, int) else sizes[str(d)] for d in param.tensor.shape]
        value = rng.standard_normal(shape)
        found[param.name] = value > -0.5 if param.tensor.dtype == "bool" else value.astype("f4")
        if param.tensor.dtype == "bool":
            found[param.name][..., 0] = True
    return found


def kernel_of(given: Module) -> Function:
    (call,) = given.main.body.children
    return Function(given.main.params, call, {"primitive": True, "name": "attention"})


@pytest.mark.parametrize("case", CASES)
def test_one_query_and_several(case: str) -> None:
    given = module(*CASES[case])
    compiled = clew.compile(given, threads=1, target="cpu-avx2")
    assert one_query(kernel_of(given)) is not None
    for rows, keys in ((1, 1), (1, 19), (3, 19), (1, 40)):
        inputs = drawn(given, b=2, s=rows, t=keys)
        expected = interpret(given, inputs)["y"]
        np.testing.assert_allclose(compiled.run(inputs)["y"], expected, rtol=2e-5, atol=2e-6)


def test_a_model_of_one_query() -> None:
    given = module("BSHD", 2, "", rows="1")
    compiled = clew.compile(given, threads=1, target="cpu-avx2")
    inputs = drawn(given, b=1, s=1, t=19)
    expected = interpret(given, inputs)["y"]
    np.testing.assert_allclose(compiled.run(inputs)["y"], expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    "given", [module("BSHD", 4, ""), module("BSHD", 2, "", causal=True), module("BSHD", 2, "", "3")]
)
def test_other_kernels_keep_their_form(given: Module) -> None:
    assert one_query(kernel_of(given)) is None
