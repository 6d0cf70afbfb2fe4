"""What the machine gives, and how near to it kernels come."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from clew.bench.bandwidth import Bandwidth, Level, level_of
from clew.bench.peak import FmaPeak
from clew.bench.roofline import Work, work_of
from clew.compiled import Kernel
from clew.profile.rows import Limits, Roof


@dataclass(frozen=True)
class Machine:
    """What a number of threads gets: GFLOP/s, and the levels of memory."""

    threads: int
    peak_gflops: float
    levels: list[Level]

    def limits(self) -> Limits:
        """Returns what a profile says of it."""
        gbps = {level.name: level.gbps for level in self.levels}
        return Limits(self.threads, self.peak_gflops, gbps)


@functools.cache
def machine(threads: int) -> Machine:
    """Returns what the machine gives to so many threads, measured once in a process."""
    return Machine(threads, FmaPeak().gflops(threads), Bandwidth().levels(threads))


class Roofs:
    """Roofs of kernels; the work of equal ones is counted once."""

    def __init__(self, here: Machine) -> None:
        self._here = here
        self._works: dict[Any, Work] = {}

    def of(self, kernel: Kernel, runs: float, ns: float) -> Roof:
        """Returns the roof of a kernel that took `ns` for all its runs."""
        work = self._works.get(kernel.key)
        if work is None:
            work = self._works[kernel.key] = work_of(kernel)
        level = level_of(self._here.levels, work.bytes)
        took = max(ns, 1.0)
        computing = runs * work.flops / self._here.peak_gflops if self._here.peak_gflops else 0.0
        moving = runs * work.bytes / level.gbps if level.gbps else 0.0
        return Roof(
            flops=work.flops,
            bytes=work.bytes,
            gflops=runs * work.flops / took,
            peak_share=computing / took,
            gbps=runs * work.bytes / took,
            bandwidth_share=moving / took,
            limit="compute" if computing >= moving else level.name,
            limit_share=max(computing, moving) / took,
        )
