"""What the machine gives, and how near to it kernels come."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Final

from clew.bench.roofline import Work, work_of
from clew.compiled import Kernel
from clew.machine.probes.bandwidth import Bandwidth, Level, level_of
from clew.machine.probes.peak import FmaPeak, TilePeak
from clew.profile.rows import Limits, Roof

_RUNS: Final = 5  # of each loop over each level of memory
_QUICK_RUNS: Final = 2


@dataclass(frozen=True)
class Machine:
    """What a number of threads gets: GFLOP/s of f32, and of bf16 tiles, and levels of memory."""

    threads: int
    peak_gflops: float
    tile_gflops: float | None
    levels: list[Level]

    def limits(self) -> Limits:
        """Returns what a profile says of it."""
        gbps = {level.name: level.gbps for level in self.levels}
        return Limits(self.threads, self.peak_gflops, self.tile_gflops, gbps)


@functools.cache
def machine(threads: int, *, quick: bool = False) -> Machine:
    """Returns what the machine gives to so many threads, measured once in a process. It is the best
    of several runs, of two where it has to be `quick`.
    """
    tiles = TilePeak().gflops(threads) if TilePeak.available() else None
    levels = Bandwidth().levels(threads, repeats=_QUICK_RUNS if quick else _RUNS)
    return Machine(threads, FmaPeak().gflops(threads), tiles, levels)


class Roofs:
    """Roofs of kernels; the work of equal ones is counted once."""

    def __init__(self, here: Machine) -> None:
        self._here = here
        self._works: dict[Any, tuple[Work, float]] = {}

    def of(self, kernel: Kernel, runs: float, ns: float) -> Roof:
        """Returns the roof of a kernel that took `ns` for all its runs."""
        known = self._works.get(kernel.key)
        if known is None:
            known = self._works[kernel.key] = (work_of(kernel), self._peak(kernel))
        work, peak = known
        level = level_of(self._here.levels, work.bytes)
        took = max(ns, 1.0)
        computing = runs * work.flops / peak if peak else 0.0
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

    def _peak(self, kernel: Kernel) -> float:
        """Returns the GFLOP/s that a kernel's products allow."""
        here = self._here
        tiles = here.tile_gflops is not None and kernel.multiplies_tiles
        return here.tile_gflops or 0.0 if tiles else here.peak_gflops
