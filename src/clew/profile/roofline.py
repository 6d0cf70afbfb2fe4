"""Compares each kernel with the limits of the machine.

Source: Williams, Waterman and Patterson, Roofline: An Insightful Visual Performance Model for
Multicore Architectures, 2009.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from clew.build.kernel import Kernel
from clew.cost.work import Peak
from clew.machine.probes.bandwidth import Level, level_of
from clew.serving.ready import KernelTime

LARGE_SHARE: Final = 0.03
LOW_SHARE: Final = 0.75


@dataclass(frozen=True)
class Roof:
    """The roof of one kernel, over all its uses in the model.

    `share` is relative to the time of the model's kernels. `peak_share` is the time that its
    operations take at the peaks for their dtypes, divided by the measured time. `limit` is the
    binding limit: "compute", or the memory level that holds its operands. `limit_share` is the time
    at that limit divided by the measured time; it exceeds 1 if operands come from a nearer level.
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

    @property
    def bound(self) -> str:
        """The binding limit and the kernel's share of it, as in `compute 84 %`."""
        return f"{self.limit} {100 * self.limit_share:.0f} %"

    @property
    def is_low(self) -> bool:
        """Whether the kernel takes a large part of the time, and stands far below its limit."""
        return self.share > LARGE_SHARE and self.limit_share < LOW_SHARE


@dataclass(frozen=True)
class Total:
    """The kernels of a model together: their measured time and their time at their limits, in
    milliseconds, and the names of those that are `low`, which take more than 3 % of the time and
    stand below 75 % of their limit.
    """

    kernels_ms: float
    limits_ms: float
    low: tuple[str, ...]

    @property
    def limit_share(self) -> float:
        """The time at the limits divided by the measured time."""
        return self.limits_ms / self.kernels_ms if self.kernels_ms else 0.0

    def __str__(self) -> str:
        """As in `kernels 34.8 ms; limits 29.1 ms: 84 % of the roof`."""
        share = f"{100 * self.limit_share:.0f} % of the roof"
        return f"kernels {self.kernels_ms:.3g} ms; limits {self.limits_ms:.3g} ms: {share}"


def total(roofs: Sequence[Roof]) -> Total:
    """Returns the kernels of a model together.

    A kernel counts with at most its measured time: one that exceeds the bandwidth of a level,
    because its operands come from a nearer one, does not make up for another.
    """
    return Total(
        kernels_ms=sum(roof.microseconds for roof in roofs) / 1e3,
        limits_ms=sum(min(roof.limit_share, 1) * roof.microseconds for roof in roofs) / 1e3,
        low=tuple(roof.kernel for roof in roofs if roof.is_low),
    )


def described(roofs: Sequence[Roof]) -> list[str]:
    """Returns a line about the kernels of a model together, and one about those that are low."""
    low = [
        f"{roof.kernel} ({100 * roof.share:.0f} %, {roof.bound})" for roof in roofs if roof.is_low
    ]
    large, least = f"{100 * LARGE_SHARE:.0f} %", f"{100 * LOW_SHARE:.0f} %"
    lines = [str(total(roofs))]
    if low:
        lines.append(f"above {large} of the time, below {least} of the roof: {', '.join(low)}")
    return lines


def rooflines(times: Sequence[KernelTime[Kernel]], peak: Peak, levels: list[Level]) -> list[Roof]:
    """Returns the kernels, sorted by total time, the longest first; uses with the same code are
    merged.

    `peak` and `levels` are those of all threads.
    """
    same: dict[bytes, list[KernelTime[Kernel]]] = {}
    for time in times:
        same.setdefault(time.kernel.object_code, []).append(time)
    roofs = [_roof(uses, peak, levels) for uses in same.values()]
    return sorted(roofs, key=lambda roof: -roof.microseconds)


def _roof(uses: Sequence[KernelTime[Kernel]], peak: Peak, levels: list[Level]) -> Roof:
    first = uses[0].kernel
    work = first.work
    level = level_of(levels, work.bytes)
    nanoseconds = max(sum(use.median_ns for use in uses), 1.0)
    computing = len(uses) * work.compute_ns(peak)
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
