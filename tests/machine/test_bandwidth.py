from __future__ import annotations

import re

import numpy as np
import pytest

from clew.machine.probes import bandwidth
from clew.machine.probes.bandwidth import Bandwidth, Level, Pattern, level_of
from clew.machine.target import Target
from clew.support.arrays import aligned_empty


@pytest.fixture(scope="module")
def loops() -> Bandwidth:
    return Bandwidth()


@pytest.mark.parametrize("pattern", ["read", "copy", "triad"])
def test_loops_touch_every_element_of_their_arrays_and_no_other(
    loops: Bandwidth, pattern: Pattern
) -> None:
    step, steps = 4 * loops._lanes, 3
    arrays = [aligned_empty((step * (steps + 1),), np.float32) for _ in range(3)]
    for n, array in enumerate(arrays):
        array[...] = np.arange(array.size) + n
    before = [array.copy() for array in arrays]
    loops._loops[pattern](*(a.ctypes.data for a in arrays), step * steps, 2)
    a, b, c = before
    n = step * steps
    if pattern == "copy":
        b[:n] = a[:n]
    elif pattern == "triad":
        c[:n] = a[:n] + 0.5 * b[:n]
    for array, wanted in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, wanted)


def test_reading_adds_up_every_load() -> None:
    source = bandwidth._source("read", 8)
    loaded = set(re.findall(r"(%a\d) = load", source))
    added = set(re.findall(r"fadd .*, (%a\d)", source))
    assert loaded == added
    assert len(loaded) == bandwidth._UNROLL
    assert len(re.findall(r"asm sideeffect", source)) == bandwidth._UNROLL


@pytest.mark.parametrize("threads", [1, 2])
def test_rates_are_plausible(loops: Bandwidth, threads: int) -> None:
    assert 0.1 < loops.gbps("triad", 1 << 16, threads) < 10_000


def test_levels_have_growing_capacity_and_the_last_takes_everything(
    loops: Bandwidth, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[int] = []
    monkeypatch.setattr(loops, "gbps", lambda pattern, size, threads: measured.append(size) or 1.0)
    target = Target("t", "", "", "", 256, 16, l2_bytes=1 << 20, l3_bytes=32 << 20)
    levels = loops.levels(2, target, repeats=1)
    assert [level.name for level in levels] == ["L2", "L3", "memory"]
    capacities = [level.capacity_bytes for level in levels]
    assert capacities == sorted(capacities)
    assert all(size <= capacity for size, capacity in zip(measured[::2], capacities, strict=True))
    assert measured[-1] > target.l3_bytes
    small = Target("t", "", "", "", 256, 16, l2_bytes=4 << 20, l3_bytes=4 << 20)
    assert [level.name for level in loops.levels(1, small, repeats=1)] == ["L2", "memory"]


def test_the_nearest_level_that_holds_the_operands_is_chosen() -> None:
    levels = [Level("L2", 100, 9.0), Level("memory", 1 << 62, 1.0)]
    assert [level_of(levels, n).name for n in (100, 101)] == ["L2", "memory"]
