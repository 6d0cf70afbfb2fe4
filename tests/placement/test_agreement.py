"""When outputs of engines agree with the CPU's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import clew
from clew.ir.expr import Constant
from clew.ir.module import Module
from clew.ir.parser import parse_module
from clew.ir.visit import post_order
from clew.placement.agreement import Reference, disagreement, nearby

ROUNDED = """
clew 1
def @main(
  %x: f32[6]  // input x
) -> (DTYPE[6], f32[6]) with outputs=["y", "z"] {
  %s: f32[] = const splat 1.0  // q:QuantizeLinear
  %0: i8[6] = quantize(%x, %s, dtype="i8")  // q:QuantizeLinear#0
  %1: f32[6] = dequantize(%0, %s)  // d:DequantizeLinear#0
  %2: f32[6] = tanh(%x)  // act:Tanh#0
  %3 = (RESULT, %2)
  return %3
}
"""
FLOATS = ROUNDED.replace("DTYPE", "f32").replace("RESULT", "%1")
CODES = ROUNDED.replace("DTYPE", "i8").replace("RESULT", "%0")
VALUES = np.float32([0.2, 1.0, 2.49995, 3.0, -2.0, 2.3])  # the third is close to a tie


def reference(text: str) -> tuple[Reference, list[Module]]:
    ran: list[Module] = []

    def run(module: Module) -> Sequence[Any]:
        ran.append(module)
        return list(clew.compile(module, threads=1, cache=False).run({"x": VALUES}).values())

    return Reference(parse_module(text), run), ran


def moved(outputs: Sequence[Any], place: int, by: float) -> list[Any]:
    y, z = (np.array(o) for o in outputs)
    y[place] += y.dtype.type(by)
    return [y, z]


@pytest.mark.parametrize("text", [FLOATS, CODES], ids=["floats", "codes"])
def test_what_a_model_does_not_determine_may_differ(text: str) -> None:
    found, ran = reference(text)
    assert found.disagreement(found.outputs) == ""
    assert len(ran) == 1  # no other model was run
    assert found.disagreement(moved(found.outputs, 2, 1)) == ""
    assert len(ran) == 3
    assert found.slack[0] == pytest.approx(2 / 3, rel=1e-3)
    assert found.slack[1] < 1e-6


@pytest.mark.parametrize("text", [FLOATS, CODES], ids=["floats", "codes"])
def test_what_a_model_determines_may_not(text: str) -> None:
    found, _ = reference(text)
    assert "output 0 differs" in found.disagreement(moved(found.outputs, 2, 3))
    y, z = found.outputs
    assert "output 1 differs" in found.disagreement([y, z + 0.1])
    steady = np.float32([0.2, 1.0, 2.2, 3.0, -2.0, 2.3])
    run = clew.compile(parse_module(text), threads=1, cache=False)
    sure = Reference(parse_module(text), lambda m: list(run.run({"x": steady}).values()))
    assert sure.slack == [0, 0]


def test_models_of_floats_have_one_tolerance() -> None:
    text = FLOATS.replace('quantize(%x, %s, dtype="i8")', 'cast(%x, dtype="i8")').replace(
        "dequantize(%0, %s)", 'cast(%0, dtype="f32")'
    )
    found, ran = reference(text)
    assert "output 0 differs" in found.disagreement(moved(found.outputs, 2, 1))
    assert len(ran) == 1


def test_nearby_models_differ_in_float_constants_alone() -> None:
    text = FLOATS.replace("splat 1.0", "splat 3e38")
    module = parse_module(text)
    for seed in range(4):
        constants = [
            [n.data for n in post_order(m.main.body) if isinstance(n, Constant)]
            for m in (module, nearby(module, seed))
        ]
        for a, b in zip(*constants, strict=True):
            assert a.dtype == b.dtype
            assert np.isfinite(b).all()
            np.testing.assert_allclose(a, b, rtol=2**-11)
    assert str(nearby(module, 0)) == str(nearby(module, 0)) != str(nearby(module, 1))


def test_the_tolerance_is_for_each_output() -> None:
    a, b = [np.zeros(3), np.ones(3)], [np.zeros(3), np.ones(3) * 1.2]
    assert "output 1" in disagreement(b, a, 0.05)
    assert disagreement(b, a, 0.05, [0.0, 0.3]) == ""
    assert "output 1" in disagreement(b, a, 0.05, [0.3, 0.0])
