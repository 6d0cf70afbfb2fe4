"""Simulated devices count with the time that they would take."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import clew
from clew.ir.interpret import interpreted
from clew.ir.parser import parse_module
from clew.placement.clock import in_turns

MODEL = """
clew 1
def @main(
  %x: f32[512, 512],  // input x
  %w: f32[512, 512]  // input w
) -> (f32[512, 512],) with outputs=["y"] {
  %0 = nn.matmul(%x, %w)  // first:MatMul#0
  %1 = nn.softmax(%0)  // soft:Softmax#0
  %2 = (%1,)
  return %2
}
"""


class Simulated(clew.Backend):
    """Takes products; a simulation takes 30 ms, the device some seconds of its own."""

    name = "device"
    key = "1"

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def takes(self, call: Any) -> bool:
        return bool(call.op_name == "nn.matmul")

    def compile(self, region: Any, target: Any) -> Any:
        run = interpreted(region)

        class Call:
            seconds = self.seconds

            def __call__(self, *arrays: Any) -> Any:
                time.sleep(0.03)
                return run(arrays, {})

        return Call()


@pytest.mark.parametrize(("seconds", "taken"), [(1e-6, True), (0.5, False)])
def test_placement_counts_the_device_s_time(seconds: float, taken: bool) -> None:
    module = parse_module(MODEL)
    found = clew.place(module, [Simulated(seconds)], threads=1, seconds=0.5, tuned=None)
    assert (found.backends == ("device",)) is taken
    (alone,) = [p for p in found.plans if p.name == "device"]
    assert alone.seconds is not None
    assert (alone.seconds < 0.03) is taken


def test_calls_in_turns_count_it_too() -> None:
    compiled = clew.compile(parse_module(MODEL), backends=[Simulated(0.25)], cache=False)
    x = np.ones((512, 512), np.float32)
    times = in_turns({"device": lambda: compiled(x, x)}, 0.1)
    assert times["device"] == pytest.approx(0.25, abs=0.02)
