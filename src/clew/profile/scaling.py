"""Kernels measured on one thread, and their makespan on more threads by simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from clew.build.kernel import Kernel
from clew.cost.policy.threads import WORTH_DIVIDING
from clew.machine.costs import DEFAULTS
from clew.runtime.makespan import makespan
from clew.serving.ready import KernelTime


@dataclass(frozen=True)
class Scaled:
    """One kernel over all its uses: measured on one thread, and simulated on several. `tasks` is
    the number of parts that threads take in its longest phase.
    """

    kernel: str
    layers: tuple[str, ...]
    uses: int
    microseconds: float
    tasks: int
    simulated_microseconds: float

    @property
    def speedup(self) -> float:
        """The time on one thread divided by the simulated time."""
        return self.microseconds / self.simulated_microseconds

    def leaves_idle(self, threads: int) -> bool:
        """Whether the kernel has fewer parts than threads, and enough work for more."""
        each = self.microseconds / self.uses
        worth = int(each * 1e3 / DEFAULTS.least_chunk)
        return each >= WORTH_DIVIDING and self.tasks < min(threads, worth)


@dataclass(frozen=True)
class Simulated:
    """The kernels of a model on `threads` simulated threads, the longest first."""

    threads: int
    kernels: tuple[Scaled, ...]

    @property
    def one_thread_ms(self) -> float:
        """The measured time of all kernels on one thread."""
        return sum(k.microseconds for k in self.kernels) / 1e3

    @property
    def makespan_ms(self) -> float:
        """The simulated time of all kernels, one after another."""
        return sum(k.simulated_microseconds for k in self.kernels) / 1e3

    @property
    def speedup(self) -> float:
        """The time on one thread divided by the makespan."""
        return self.one_thread_ms / self.makespan_ms if self.makespan_ms else 1.0

    @property
    def idle(self) -> tuple[str, ...]:
        """The kernels that leave threads idle although they take long."""
        return tuple(k.kernel for k in self.kernels if k.leaves_idle(self.threads))

    def to_json(self) -> dict[str, Any]:
        """Returns the simulation as `clew bench --simulate --json` prints it."""
        return {
            "threads": self.threads,
            "one_thread_ms": self.one_thread_ms,
            "makespan_ms": self.makespan_ms,
            "speedup": self.speedup,
            "idle": list(self.idle),
            "kernels": [{**asdict(k), "speedup": k.speedup} for k in self.kernels],
        }


def simulated(times: Sequence[KernelTime[Kernel]], threads: int) -> Simulated:
    """Returns the kernels on `threads` threads, from their times on one. Uses with the same code
    are merged.
    """
    same: dict[str, list[KernelTime[Kernel]]] = {}
    for time in times:
        same.setdefault(time.kernel.key, []).append(time)
    found = []
    for uses in same.values():
        kernel = uses[0].kernel
        microseconds = max(sum(use.median_ns for use in uses), 1.0) / 1e3
        tasks, share = makespan(kernel.code.entries, threads)
        layers = tuple(dict.fromkeys(layer for use in uses for layer in use.kernel.layers))
        found.append(
            Scaled(kernel.name, layers, len(uses), microseconds, tasks, microseconds * share)
        )
    return Simulated(threads, tuple(sorted(found, key=lambda k: -k.simulated_microseconds)))
