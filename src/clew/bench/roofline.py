"""How near each kernel comes to what the machine allows.

Source: Williams, Waterman and Patterson, Roofline: An Insightful Visual Performance Model for
Multicore Architectures, 2009.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clew.bench.bandwidth import Level, level_of
from clew.compiled import Kernel
from clew.runtime.model import KernelTime
from clew.te.analysis import bytes_of, flops_of


@dataclass(frozen=True)
class Work:
    """What a kernel does at least: FLOPs of its expressions, bytes of its operands."""

    flops: int
    bytes: int


@dataclass(frozen=True)
class Roof:
    """One kernel under its roof.

    `share` is of the model's kernels' time. `limit` is what would stop it first: "compute", or the
    level of memory that holds its operands. `limit_share` is the time that this limit alone would
    take, over the time measured; above 1 where operands come from a nearer level.
    """

    kernel: str
    layers: tuple[str, ...]
    microseconds: float
    share: float
    gflops: float
    peak_share: float
    gbps: float
    limit: str
    limit_share: float


def work_of(kernel: Kernel) -> Work:
    """Returns a kernel's work, derived from its tensor expressions."""
    outputs = kernel.tensors
    flops = flops_of(outputs)
    assert isinstance(flops, int), "kernels have known sizes"
    return Work(flops, bytes_of(outputs))


def rooflines(
    times: Sequence[KernelTime[Kernel]], peak_gflops: float, levels: list[Level]
) -> list[Roof]:
    """Returns the kernels, those that take longest first. `peak_gflops` is of all threads."""
    ordered = sorted(times, key=lambda t: -t.median_ns)
    return [_roof(t, work_of(t.kernel), peak_gflops, levels) for t in ordered]


def _roof(time: KernelTime[Kernel], work: Work, peak_gflops: float, levels: list[Level]) -> Roof:
    level = level_of(levels, work.bytes)
    nanoseconds = max(time.median_ns, 1.0)
    computing = work.flops / peak_gflops if peak_gflops else 0.0
    moving = work.bytes / level.gbps if level.gbps else 0.0
    return Roof(
        kernel=time.kernel.name,
        layers=time.kernel.layers,
        microseconds=time.median_ns / 1e3,
        share=time.share,
        gflops=work.flops / nanoseconds,
        peak_share=computing / nanoseconds,
        gbps=work.bytes / nanoseconds,
        limit="compute" if computing >= moving else level.name,
        limit_share=max(computing, moving) / nanoseconds,
    )
