from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

import clew
import zoo
from clew import te
from clew.bench.roofline import Work, rooflines, work_of
from clew.machine.probes.bandwidth import Level
from clew.runtime.model import KernelTime

LEVELS = [Level("L2", 1 << 14, 10.0), Level("memory", 1 << 62, 1.0)]


@dataclass(frozen=True)
class Fake:
    """What a roof asks of a kernel."""

    name: str
    tensors: tuple[Any, ...]
    object_code: bytes
    layers: tuple[str, ...] = ("layer",)

    @property
    def build(self) -> Any:
        """Its build, whose sizes are all numbers."""
        return SimpleNamespace(number=int)


def matmul(n: int) -> Any:
    a, b = te.placeholder((n, n), "f32", "a"), te.placeholder((n, n), "f32", "b")
    k = te.reduce_axis(n)
    return te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], k), "matmul")


def scale(n: int) -> Any:
    x = te.placeholder((n,), "f32", "x")
    return te.compute((n,), lambda i: x[i] * 2.0, "scale")


def timed(kernel: Fake, nanoseconds: float, share: float) -> KernelTime[Any]:
    return KernelTime(kernel, nanoseconds, share)


def test_work_is_derived_from_what_is_computed() -> None:
    kernel: Any = Fake("mm", (matmul(32),), b"")
    assert work_of(kernel) == Work(2 * 32**3, 3 * 32 * 32 * 4)


def test_the_limit_is_what_takes_longer() -> None:
    product, large = Fake("mm", (matmul(32),), b"m"), Fake("scale", (scale(4096),), b"s")
    small = Fake("small", (scale(1024),), b"t")
    times = [timed(small, 1638.4, 0.1), timed(product, 65_536, 0.8), timed(large, 40_960, 0.1)]
    first, second, third = rooflines(times, 2.0, LEVELS)
    assert (first.kernel, first.limit) == ("mm", "compute")
    assert first.gflops == pytest.approx(1.0)
    assert first.peak_share == first.limit_share == pytest.approx(0.5)
    assert (second.kernel, second.limit) == ("scale", "memory")
    assert second.gbps == second.limit_share == pytest.approx(0.8)
    assert (third.kernel, third.limit) == ("small", "L2")
    assert third.limit_share == pytest.approx(0.5)


def test_uses_of_the_same_code_are_one_row() -> None:
    uses = [Fake(f"mm_{n}", (matmul(8),), b"same", (f"layer{n}",)) for n in range(3)]
    (roof,) = rooflines([timed(k, 1024.0, 0.25) for k in uses], 2.0, LEVELS)
    assert (roof.uses, roof.kernel, roof.layers) == (3, "mm_0", ("layer0", "layer1", "layer2"))
    assert roof.share == 0.75
    assert roof.microseconds == pytest.approx(3.072)
    assert roof.gflops == pytest.approx(1.0)
    assert roof.peak_share == pytest.approx(0.5)


def test_all_kernels_of_a_model_are_under_roofs() -> None:
    compiled = clew.compile(clew.load(zoo.path("bert_tiny")), threads=1)
    feed = zoo.inputs("bert_tiny")
    times = compiled.time_kernels(*(feed[n] for n in compiled.input_names), repeats=1)
    roofs = rooflines(times, 1e9, LEVELS)
    assert sum(r.uses for r in roofs) == len(compiled.kernels)
    assert sum(r.share for r in roofs) == pytest.approx(1)
    assert [r.microseconds for r in roofs] == sorted((r.microseconds for r in roofs), reverse=True)
