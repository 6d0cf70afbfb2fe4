"""Composites by name: made by `partition`, they lower through a user's fusion, schedule or
operator.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clew
from clew.ir.module import Module
from clew.ir.parser import parse_module
from clew.passes.base import PassContext
from clew.patterns import is_composite, is_op, partition, rewrite, rule, wildcard
from clew.support.errors import ClewError

Array = np.ndarray[Any, Any]

TWICE = """
clew 1
def @main(
  %x: f32[4, 24]  // input x
) -> (f32[4, 24],) with outputs=["y"] {
  %0 = exp(%x)  // e1:Exp#0
  %1 = sum(%0, axes=[1], keepdims=true)  // s1:ReduceSum#0
  %2 = divide(%0, %1)  // d1:Div#0
  %3 = tanh(%2)  // between:Tanh#0
  %4 = exp(%3)  // e2:Exp#0
  %5 = sum(%4, axes=[1], keepdims=true)  // s2:ReduceSum#0
  %6 = divide(%4, %5)  // d2:Div#0
  %7 = (%6,)
  return %7
}
"""
data = wildcard()
POWER = is_op("exp")(data)
BLOCK = is_op("divide")(POWER, is_op("sum")(POWER))


@pytest.fixture
def x() -> Array:
    return np.random.default_rng(0).standard_normal((4, 24)).astype(np.float32)


def divided() -> Module:
    return partition(parse_module(TWICE), BLOCK, "mine.block")


def test_a_fusion_of_a_composite_makes_its_kernels(x: Array) -> None:
    steps: list[str] = []

    def by_hand(schedule: Any, target: Any) -> None:
        steps.append(schedule.nest.name)

    @clew.fusion(is_composite("mine.block"), schedule=by_hand)
    def block(found: Any) -> None:
        assert found.root.op.attrs["composite"] == "mine.block"

    compiled = clew.compile(divided(), extend=[block], cache=False)
    kernels = {k.name: k.layers for k in compiled.kernels}
    assert kernels["block"] == ("e1", "s1", "d1")
    assert kernels["block_1"] == ("e2", "s2", "d2")
    assert steps
    np.testing.assert_allclose(compiled(x), clew.compile(parse_module(TWICE))(x), rtol=1e-6)
    assert compiled.trace.check() == []


def test_a_function_called_twice_is_two_kernels(x: Array) -> None:
    shared = parse_module("""
    clew 1
    def @main(%x: f32[4, 24]) -> (f32[4, 24],) with outputs=["y"] {
      %0 = fn(%p: f32[4, 24]) -> f32[4, 24] with composite="pair" {
        %0 = exp(%p)
        %1 = tanh(%0)
        return %1
      }
      %1 = %0(%x)  // one:A#0
      %2 = sum(%1, axes=[1], keepdims=true)
      %3 = subtract(%1, %2)
      %4 = %0(%3)  // two:B#0
      %5 = (%4,)
      return %5
    }
    """)

    @clew.fusion(is_composite("pair"))
    def pair(found: Any) -> None: ...

    with pytest.warns(clew.ClewWarning, match="make more kernels than they save"):
        compiled = clew.compile(shared, extend=[pair], cache=False)
    assert [k.name for k in compiled.kernels if k.name.startswith("pair")] == ["pair", "pair_1"]
    once = np.tanh(np.exp(x))
    want = np.tanh(np.exp(once - once.sum(1, keepdims=True)))
    np.testing.assert_allclose(compiled(x), want, rtol=1e-5, atol=1e-6)


def test_a_composite_becomes_an_operator_of_the_user(x: Array) -> None:
    given = wildcard()

    @clew.graph_pass(before="InlineComposites")
    def lower(module: Module, ctx: PassContext) -> Module:
        @rule(is_composite("mine.block", given))
        def to_softmax(found: Any) -> Any:
            return clew.get_op("nn.softmax")(found[given], axis=1)

        return rewrite(module, to_softmax)

    compiled = clew.compile(divided(), extend=[lower], cache=False)
    kernels = [k.name for k in compiled.kernels]
    assert any("softmax" in name for name in kernels), kernels
    np.testing.assert_allclose(compiled(x), clew.compile(parse_module(TWICE))(x), rtol=1e-6)


def test_a_pass_makes_the_composites_that_a_fusion_names() -> None:
    @clew.graph_pass
    def divide(module: Module, ctx: PassContext) -> Module:
        return partition(module, BLOCK, "mine.block")

    @clew.fusion(is_composite("mine.block"))
    def block(found: Any) -> None: ...

    compiled = clew.compile(parse_module(TWICE), extend=[divide, block], cache=False)
    assert {k.name for k in compiled.kernels} >= {"block", "block_1"}


def test_a_required_composite_that_is_not_there_is_an_error() -> None:
    @clew.fusion(is_composite("mine.blocks"))
    def block(found: Any) -> None: ...

    with pytest.raises(ClewError, match="block is required and matches nothing") as caught:
        clew.compile(divided(), extend=[block], cache=False)
    assert caught.value.code == "U030"
