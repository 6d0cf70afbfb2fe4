"""A requested backend that takes nothing says so, with the nearest refusal of each pattern."""

from __future__ import annotations

import warnings

import pytest

import clew
from clew.backends.backend import Backend, CompiledRegion
from clew.ir.expr import Call, Function
from clew.ir.parser import parse_module
from clew.machine.target import Target
from clew.passes.placement.claims import RegionPattern
from clew.patterns import Match, is_op, wildcard
from clew.support.errors import ClewError, ClewWarning

FLOATS = """
clew 1
def @main(
  %x: f32[1, 8, 8, 8],  // input x
  %w: f32[8, 8, 3, 3]  // input w
) -> (f32[1, 8, 6, 6],) with outputs=["y"] {
  %0 = nn.conv2d(%x, %w)  // conv:Conv#0
  %1 = nn.relu(%0)  // act:Relu#0
  %2 = (%1,)
  return %2
}
"""


class Picky(Backend):
    """Takes convolutions of one kind, and says why it does not take others."""

    name = "picky"

    def __init__(self, refuses: bool = True) -> None:
        self.refuses = refuses
        pattern = is_op("nn.conv2d")(wildcard(), wildcard())
        tail = is_op("tanh")(pattern)
        self.patterns = (
            RegionPattern("conv", pattern, lambda found: not self.refuses),
            RegionPattern("conv_tanh", tail),
        )

    def why_not_match(self, found: Match) -> str:
        return "its window is 3x3"

    def cost(self, region: Function, target: Target) -> float | None:
        return 1e9

    def compile(self, region: Function, target: Target) -> CompiledRegion:
        raise AssertionError


class Alone(Picky):
    """Takes single operators only."""

    name = "alone"

    def __init__(self) -> None:
        self.patterns = ()

    def takes(self, call: Call) -> bool:
        return False

    def why_not(self, call: Call) -> str:
        return "no memory" if call.op_name == "nn.relu" else ""


def test_each_pattern_has_its_nearest_refusal() -> None:
    with pytest.warns(ClewWarning, match="picky takes nothing of the model") as caught:
        compiled = clew.compile(parse_module(FLOATS), backends=[Picky()], cache=False)
    (warning,) = (w.message for w in caught if isinstance(w.message, ClewWarning))
    assert warning.code == "I354"
    assert "conv: conv is refused: its window is 3x3" in str(warning)
    assert "conv_tanh: the model has no call of tanh" in str(warning)
    assert not compiled.regions


def test_operators_say_why_they_are_not_taken() -> None:
    with pytest.warns(ClewWarning, match="nn.relu: no memory") as caught:
        clew.compile(parse_module(FLOATS), backends=[Alone()], cache=False)
    assert "it does not take nn.conv2d" in str(caught[0].message)


def test_a_required_backend_that_takes_nothing_is_an_error() -> None:
    with pytest.raises(ClewError, match="picky takes nothing of the model") as caught:
        clew.compile(
            parse_module(FLOATS),
            backends=[Picky()],
            passes=clew.Passes(required=["picky"]),
            cache=False,
        )
    assert caught.value.code == "I354"


def test_regions_that_cost_more_are_told() -> None:
    with pytest.warns(ClewWarning, match="faster on the CPU"):
        clew.compile(parse_module(FLOATS), backends=[Picky(refuses=False)], cache=False)


def test_a_backend_whose_operators_went_to_an_earlier_one_is_silent() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clew.compile(parse_module(FLOATS), backends=["numpy", Picky(refuses=False)], cache=False)
    with pytest.raises(ClewError, match="other backends took it first"):
        clew.compile(
            parse_module(FLOATS),
            backends=["numpy", Picky(refuses=False)],
            passes=clew.Passes(required=["picky"]),
            cache=False,
        )
