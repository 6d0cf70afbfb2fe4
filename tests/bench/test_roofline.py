from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import clew
import zoo
from clew import te
from clew.cost.work import ProductWork, Work, work_of
from clew.machine.probes.bandwidth import Level
from clew.profile.roofline import Roof, described, rooflines, total
from clew.serving.ready import KernelTime

LEVELS = [Level("L2", 1 << 14, 10.0), Level("memory", 1 << 62, 1.0)]


@dataclass(frozen=True)
class Fake:
    """What a roof asks of a kernel."""

    name: str
    tensors: tuple[Any, ...]
    object_code: bytes
    layers: tuple[str, ...] = ("layer",)

    @property
    def work(self) -> Work:
        """Its work; all sizes are numbers."""
        return work_of(self.tensors, int)


def alike(gflops: float) -> Callable[[str, str], float]:
    """The same peak for all dtypes."""
    return lambda data, weight: gflops


def product_of(data: str, weight: str, n: int) -> Any:
    """A matrix product whose factors are stored as given and multiplied in 32 bits."""
    a, b = te.placeholder((n, n), data, "a"), te.placeholder((n, n), weight, "b")
    wide = "f32" if data == "bf16" else "i32"
    k = te.reduce_axis(n)
    return te.compute(
        (n, n), lambda i, j: te.sum(te.cast(wide, a[i, k]) * te.cast(wide, b[k, j]), k), "product"
    )


def roof(kernel: str, microseconds: float, share: float, limit_share: float) -> Roof:
    return Roof(kernel, (), 1, microseconds, share, 1.0, 0.5, 1.0, "compute", limit_share)


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
    products = (ProductWork("f32", "f32", 2 * 32**3),)
    assert kernel.work == Work(2 * 32**3, 3 * 32 * 32 * 4, products)


@pytest.mark.parametrize(("data", "weight"), [("bf16", "bf16"), ("u8", "i8"), ("i16", "i16")])
def test_products_count_at_the_peak_of_their_dtypes(data: str, weight: str) -> None:
    def peak(first: str, second: str) -> float:
        return 8.0 if (first, second) == (data, weight) else 2.0

    kernel: Any = Fake("product", (product_of(data, weight, 16),), b"")
    work = kernel.work
    assert [(p.data, p.weight) for p in work.products] == [(data, weight)]
    assert work.compute_ns(peak) == pytest.approx(2 * 16**3 / 8.0 + (work.flops - 2 * 16**3) / 2.0)
    assert work.compute_ns(alike(0.0)) == 0.0


def test_all_kernels_together_are_held_against_the_sum_of_their_limits() -> None:
    roofs = [roof("a", 6_000, 0.6, 0.9), roof("b", 3_800, 0.38, 0.5), roof("c", 200, 0.02, 1.5)]
    whole = total(roofs)
    assert whole.kernels_ms == pytest.approx(10)
    assert whole.limits_ms == pytest.approx(5.4 + 1.9 + 0.2)  # none counts with more than its time
    assert whole.limit_share == pytest.approx(0.75)
    assert whole.low == ("b",)
    assert described(roofs) == [
        "kernels 10 ms; limits 7.5 ms: 75 % of the roof",
        "above 3 % of the time, below 75 % of the roof: b (38 %, compute 50 %)",
    ]
    assert len(described(roofs[:1])) == 1
    assert total([]).limit_share == 0


def test_the_limit_is_what_takes_longer() -> None:
    product, large = Fake("mm", (matmul(32),), b"m"), Fake("scale", (scale(4096),), b"s")
    small = Fake("small", (scale(1024),), b"t")
    times = [timed(small, 1638.4, 0.1), timed(product, 65_536, 0.8), timed(large, 40_960, 0.1)]
    first, second, third = rooflines(times, alike(2.0), LEVELS)
    assert (first.kernel, first.limit) == ("mm", "compute")
    assert first.gflops == pytest.approx(1.0)
    assert first.peak_share == first.limit_share == pytest.approx(0.5)
    assert (second.kernel, second.limit) == ("scale", "memory")
    assert second.gbps == second.limit_share == pytest.approx(0.8)
    assert (third.kernel, third.limit) == ("small", "L2")
    assert third.limit_share == pytest.approx(0.5)


def test_uses_of_the_same_code_are_one_row() -> None:
    uses = [Fake(f"mm_{n}", (matmul(8),), b"same", (f"layer{n}",)) for n in range(3)]
    (roof,) = rooflines([timed(k, 1024.0, 0.25) for k in uses], alike(2.0), LEVELS)
    assert (roof.uses, roof.kernel, roof.layers) == (3, "mm_0", ("layer0", "layer1", "layer2"))
    assert roof.share == 0.75
    assert roof.microseconds == pytest.approx(3.072)
    assert roof.gflops == pytest.approx(1.0)
    assert roof.peak_share == pytest.approx(0.5)


def test_all_kernels_of_a_model_are_under_roofs() -> None:
    compiled = clew.compile(clew.load(zoo.path("bert_tiny")), threads=1)
    feed = zoo.inputs("bert_tiny")
    times = compiled.time_kernels(*(feed[n] for n in compiled.input_names), repeats=1)
    roofs = rooflines(times, alike(1e9), LEVELS)
    assert sum(r.uses for r in roofs) == len(compiled.kernels)
    assert sum(r.share for r in roofs) == pytest.approx(1)
    assert [r.microseconds for r in roofs] == sorted((r.microseconds for r in roofs), reverse=True)
