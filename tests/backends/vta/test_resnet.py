"""Residual networks of floats, quantized by powers of two, on VTA."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clew
import zoo
from clew.backends.vta import Config
from clew.backends.vta.backend import Vta
from clew.quantization import Scheme
from clew.runtime.program import RunRegion


def quantized(name: str) -> clew.Module:
    feeds = [zoo.inputs(name, seed) for seed in range(3)]
    module = clew.load(zoo.path(name))
    found: clew.Module = clew.quantize(module, feeds, scheme=Scheme.shifting()).module
    return found


def regions_of(compiled: Any) -> list[Any]:
    steps = [i for i in compiled.build.program.instructions if isinstance(i, RunRegion)]
    return [i.function.compiled for i in steps]


@pytest.mark.parametrize(
    ("name", "convolutions", "regions"),
    [
        ("resnet_tiny", 4, 2),
        pytest.param("resnet18", 19, 1, marks=pytest.mark.exhaustive),
    ],
)
def test_all_but_the_ends_runs_on_vta_bit_for_bit(
    name: str, convolutions: int, regions: int
) -> None:
    module = quantized(name)
    compiled = clew.compile(module, threads=1, backends=["vta"])
    plain = clew.compile(module, threads=1)
    taken = [op for r in compiled.regions for op in r.ops if op == "nn.conv2d"]
    assert len(taken) >= convolutions
    assert len(compiled.regions) <= regions + 2
    for seed in range(40, 43):
        inputs = zoo.inputs(name, seed)
        for output, value in plain.run(inputs).items():
            np.testing.assert_array_equal(compiled.run(inputs)[output], value)
    assert compiled.trace.check() == []


@pytest.mark.exhaustive
def test_placement_gives_vta_what_pays_at_its_clock() -> None:
    """At 100 MHz nothing does; a machine of 20 GHz gets all convolutions that it computes."""
    module = quantized("resnet18")
    for clock, taken in ((100, False), (20_000, True)):
        vta = Vta(Config.default().replace(clock_mhz=clock))
        found = clew.place(module, [vta], threads=1, seconds=3.0, tuned=None)
        assert (found.backends == ("vta",)) is taken, str(found)
