"""Names of Relay's passes are answered with clew's."""

from __future__ import annotations

import pytest

import clew
from clew.ir.parser import parse_module
from clew.passes.relay_names import COUNTERPARTS
from clew.pipelines import pipeline
from clew.support.errors import ClewError

PLAIN = """
clew 1
def @main(%x: f32[4]) -> (f32[4],) with outputs=["y"] {
  %0 = exp(%x)
  %1 = (%0,)
  return %1
}
"""


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("AlterOpLayout", "Relay's AlterOpLayout is clew's AlterLayout"),
        ("ToMixedPrecision", "is clew's ConvertPrecision, which is not among the passes"),
        ("InferType", "not needed: nodes are typed when they are built"),
        ("PartitionGraph", "pass backends="),
        ("FuseOp", "did you mean FuseOps?"),
    ],
)
def test_hints(name: str, hint: str) -> None:
    with pytest.raises(ClewError, match="no pass is called") as caught:
        clew.compile(parse_module(PLAIN), passes=clew.Passes(disabled=[name]), cache=False)
    assert caught.value.code == "I020"
    assert hint in str(caught.value)


def test_places_of_passes() -> None:
    passed = clew.graph_pass(before="CombineParallelConv2D")(lambda module, ctx: module)
    with pytest.raises(ClewError, match="is clew's CombineParallelMatmul"):
        clew.compile(parse_module(PLAIN), extend=[passed], cache=False)


def test_counterparts_are_passes() -> None:
    known = {p.name for how in ("f32", "bf16") for p in pipeline(precision=how)}
    assert set(COUNTERPARTS.values()) <= known
