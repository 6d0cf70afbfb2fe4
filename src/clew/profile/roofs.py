"""The limits of the machine, and kernels' times relative to them."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Final

from clew.build.kernel import Kernel
from clew.cost.work import Work
from clew.machine.probes.bandwidth import Bandwidth, Level, level_of
from clew.machine.probes.peak import FmaPeak, TilePeak
from clew.machine.probes.products import ProductPeaks
from clew.profile.rows import Limits, Roof

_RUNS: Final = 5  # runs of each loop over each level of memory
_QUICK_RUNS: Final = 2


@dataclass(frozen=True)
class Machine:
    """The rates for a number of threads: GFLOP/s of f32 and of bf16 tiles, and memory levels."""

    threads: int
    peak_gflops: float
    tile_gflops: float | None
    levels: list[Level]

    def limits(self) -> Limits:
        """Returns the limits in the form of a profile."""
        gbps = {level.name: level.gbps for level in self.levels}
        return Limits(self.threads, self.peak_gflops, self.tile_gflops, gbps)


@functools.cache
def machine(threads: int, *, quick: bool = False) -> Machine:
    """Returns the machine's rates for a number of threads, measured once per process. They are the
    best of several runs; with `quick`, of two.
    """
    tiles = TilePeak().gflops(threads) if TilePeak.available() else None
    levels = Bandwidth().levels(threads, repeats=_QUICK_RUNS if quick else _RUNS)
    return Machine(threads, FmaPeak().gflops(threads), tiles, levels)


class Roofs:
    """Roofs of kernels; the work of equal kernels is computed once."""

    def __init__(self, here: Machine) -> None:
        self._here = here
        self._peaks = ProductPeaks(here.peak_gflops, here.threads)
        self._works: dict[Any, tuple[Work, float]] = {}

    def of(self, kernel: Kernel, runs: float, ns: float) -> Roof:
        """Returns the roof of a kernel that took `ns` for all its runs."""
        known = self._works.get(kernel.key)
        if known is None:
            work = kernel.work
            known = self._works[kernel.key] = (work, work.compute_ns(self._peak))
        work, compute_ns = known
        level = level_of(self._here.levels, work.bytes)
        took = max(ns, 1.0)
        computing = runs * compute_ns
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

    def _peak(self, data: str, weight: str) -> float:
        """Returns the peak GFLOP/s for products of two dtypes."""
        tiles = self._here.tile_gflops
        if tiles is not None and data == weight == "bf16":
            return tiles
        return self._peaks(data, weight)
