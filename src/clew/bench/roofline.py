"""Compares each kernel with the limits of the machine.

Source: Williams, Waterman and Patterson, Roofline: An Insightful Visual Performance Model for
Multicore Architectures, 2009.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clew.kernel import Kernel
from clew.machine.probes.bandwidth import Level, level_of
from clew.runtime.model import KernelTime
from clew.te.analysis import bytes_of, flops_of


@dataclass(frozen=True)
class Work:
    """A kernel's minimum work: FLOPs of its expressions, bytes of its operands."""

    flops: int
    bytes: int


@dataclass(frozen=True)
class Roof:
    """The roof of one kernel, over all its uses in the model.

    `share` is relative to the time of the model's kernels. `limit` is the binding limit: "compute",
    or the memory level that holds its operands. `limit_share` is the time at that limit divided by
    the measured time; it exceeds 1 if operands come from a nearer level.
    """

    kernel: str
    layers: tuple[str, ...]
    uses: int
    microseconds: float
    share: float
    gflops: float
    peak_share: float
    gbps: float
    limit: str
    limit_share: float


def work_of(kernel: Kernel) -> Work:
    """Returns the work of one use of a kernel, derived from its tensor expressions."""
    outputs, number = kernel.tensors, kernel.build.number
    return Work(number(flops_of(outputs)), number(bytes_of(outputs)))


def rooflines(
    times: Sequence[KernelTime[Kernel]], peak_gflops: float, levels: list[Level]
) -> list[Roof]:
    """Returns the kernels, sorted by total time, the longest first; uses with the same code are
    merged.

    `peak_gflops` is the peak of all threads.
    """
    same: dict[bytes, list[KernelTime[Kernel]]] = {}
    for time in times:
        same.setdefault(time.kernel.object_code, []).append(time)
    roofs = [_roof(uses, peak_gflops, levels) for uses in same.values()]
    return sorted(roofs, key=lambda roof: -roof.microseconds)


def _roof(uses: Sequence[KernelTime[Kernel]], peak_gflops: float, levels: list[Level]) -> Roof:
    first = uses[0].kernel
    work = work_of(first)
    level = level_of(levels, work.bytes)
    nanoseconds = max(sum(use.median_ns for use in uses), 1.0)
    computing = len(uses) * work.flops / peak_gflops if peak_gflops else 0.0
    moving = len(uses) * work.bytes / level.gbps if level.gbps else 0.0
    return Roof(
        kernel=first.name,
        layers=tuple(dict.fromkeys(layer for use in uses for layer in use.kernel.layers)),
        uses=len(uses),
        microseconds=nanoseconds / 1e3,
        share=sum(use.share for use in uses),
        gflops=len(uses) * work.flops / nanoseconds,
        peak_share=computing / nanoseconds,
        gbps=len(uses) * work.bytes / nanoseconds,
        limit="compute" if computing >= moving else level.name,
        limit_share=max(computing, moving) / nanoseconds,
    )
