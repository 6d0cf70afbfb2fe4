"""The ceiling: the least time of a call with the same work, and the kernels that are far above it.

The roof of a kernel is the longer of the times that its operations and its bytes take at the
machine's measured rates (`profile/roofs.py`). A change that keeps the work of a layer cannot go
below the sum of its roofs; one that removes work can.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from clew.profile.report import Profile

_BAR: Final = 32
_SHOWN: Final = 12


@dataclass(frozen=True)
class LayerCeiling:
    """A kernel, its layers, its measured nanoseconds, and those at its roof; `limit` is what bounds
    it: `compute`, or a level of memory.
    """

    kernel: str
    layers: tuple[str, ...]
    ns: float
    roof_ns: float
    limit: str

    @property
    def above_ns(self) -> float:
        """The nanoseconds above the roof."""
        return max(0.0, self.ns - self.roof_ns)


@dataclass(frozen=True)
class Ceiling:
    """The time of a call, the sum of the roofs of its kernels, the bytes of its weights and the
    time to read them once, and each kernel in descending order of the time above its roof.
    """

    call_ns: float
    roof_ns: float
    weights_bytes: int
    weights_ns: float | None
    kernels: tuple[LayerCeiling, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Returns the ceiling as text: for each kernel, a bar of its time, whose filled part is the
        time at the roof.
        """
        share = self.roof_ns / self.call_ns if self.call_ns else 0.0
        found = [
            f"a call takes {_ms(self.call_ns)}; the roofs of its kernels sum to "
            f"{_ms(self.roof_ns)} ({100 * share:.0f} %)"
        ]
        if self.weights_ns is not None:
            found.append(
                f"reading the weights ({self.weights_bytes / 1e6:.1f} MB) once from memory takes "
                f"{_ms(self.weights_ns)}"
            )
        longest = max((k.ns for k in self.kernels), default=0.0)
        for kernel in self.kernels[:_SHOWN]:
            full = round(_BAR * min(kernel.roof_ns, kernel.ns) / longest) if longest else 0
            rest = round(_BAR * kernel.above_ns / longest) if longest else 0
            bar = "█" * full + "░" * rest
            layers = ", ".join(kernel.layers[:2]) + (" ..." if len(kernel.layers) > 2 else "")
            found.append(
                f"{bar:{_BAR + 1}} {_ms(kernel.ns):>10}  {100 * kernel.ns / self.call_ns:3.0f} %  "
                f"{kernel.limit:8} {layers or kernel.kernel}"
            )
        if len(self.kernels) > _SHOWN:
            rest_ns = sum(k.ns for k in self.kernels[_SHOWN:])
            found.append(f"{len(self.kernels) - _SHOWN} more kernels take {_ms(rest_ns)}")
        return found


def ceiling_of(profile: Profile, weights_bytes: int) -> Ceiling:
    """Returns the ceiling of a profiled model."""
    found = []
    for kernel in profile.kernels:
        roof = kernel.roof
        at_roof = 0.0 if roof is None else min(1.0, roof.limit_share) * kernel.ns
        limit = kernel.kind if roof is None else roof.limit
        found.append(LayerCeiling(kernel.name, kernel.layers, kernel.ns, at_roof, limit))
    rates = profile.limits.bandwidth_gbps if profile.limits is not None else {}
    slowest = min(rates.values(), default=0.0)
    return Ceiling(
        profile.wall.ns,
        sum(k.roof_ns for k in found),
        weights_bytes,
        weights_bytes / slowest if slowest else None,
        tuple(sorted(found, key=lambda k: -k.above_ns)),
    )


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.3g} ms" if ns >= 1e5 else f"{ns / 1e3:.3g} µs"
