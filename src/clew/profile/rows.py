"""The rows of a profile: kernels, operators, layers, limits.

All times are nanoseconds of one run, medians over the runs. They are multiples of 2⁻¹⁰ ns, so sums
are exact: the times of layers, of operators and of kernels add up to the same number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal

from clew.profile.timing import Time
from clew.support.errors import InputError
from clew.support.shown import Brief

SCHEMA: Final = "clew.profile/2"
NO_LAYER: Final = ""
"""The name of the row for work that serves no layer of the model."""

Basis = Literal["alone", "measured", "flops", "bytes", "undivided"]
"""The basis of a part's time: timers alone, samples of the kernel's instructions, FLOPs or bytes of
operators (estimates), or undivided, if nothing is known.
"""

# The maximum number of kernels named in an error.
_NAMED: Final = 8

ESTIMATES: Final[tuple[Basis, ...]] = ("flops", "bytes")


@dataclass(frozen=True)
class Roof:
    """A kernel's minimum work, and its time compared with the machine's limits.

    `peak_share` is relative to the peak for its products, on all threads. `limit` is the binding
    limit: "compute", or the memory level that holds its operands, at `bandwidth_share` of that
    level's bandwidth. `limit_share` is the time at that limit divided by the measured time.
    """

    flops: int
    bytes: int
    gflops: float
    peak_share: float
    gbps: float
    bandwidth_share: float
    limit: str
    limit_share: float


@dataclass(frozen=True)
class LineShare:
    """A line of the loop nest, counted from 1, and its share of the kernel's samples."""

    line: int
    text: str
    samples: float
    share: float


@dataclass(frozen=True, slots=True)
class InstructionShare:
    """An instruction: its position in the disassembly, from 0, its address in bytes from the start
    of the code, its line of the loop nest, and its share of the kernel's samples.
    """

    place: int
    address: int
    line: int
    samples: float
    share: float


@dataclass(frozen=True)
class LayerPart:
    """The time of an operator for one layer."""

    layer: str
    ns: float
    basis: Basis


@dataclass(frozen=True, repr=False)
class OperatorProfile(Brief):
    """An operator of a kernel, or a host step. `share` is relative to the kernel's time.

    `measured` is its share by `samples` of the kernel's instructions, None if there are too few;
    `by_flops` and `by_bytes` are estimates, None if nothing is known. `share` is one of the three,
    as `basis` says. `parts` are the times of its layers. `facts` describe it: attributes, types,
    sizes and FLOPs of one execution (`correlate.describe_operator`); empty for saved models.
    """

    kernel: str
    position: int
    op: str
    layers: tuple[str, ...]
    ns: float
    share: float
    basis: Basis
    samples: float
    measured: float | None
    by_flops: float | None
    by_bytes: float | None
    parts: tuple[LayerPart, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class KernelProfile(Brief):
    """A kernel, a host step, or a region that another backend runs.

    It ran `runs` times in a run; `time` is the total. `share` is relative to the run's wall time.
    `lines` has the share of each line of the loop nest, if `samples` were taken, and `instructions`
    those with samples; `error` is the standard error of the operators' measured shares. `node` is
    the graph node of a host step or region. `facts` describe its code and one execution of it
    (`correlate.describe_kernel`); empty for saved models, host steps and regions.
    """

    name: str
    kind: Literal["kernel", "host", "region"]
    ops: tuple[str, ...]
    layers: tuple[str, ...]
    runs: float
    time: Time
    share: float
    operators: tuple[OperatorProfile, ...]
    samples: int = 0
    error: float = 0.0
    lines: tuple[LineShare, ...] = ()
    instructions: tuple[InstructionShare, ...] = ()
    roof: Roof | None = None
    node: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ns(self) -> float:
        """The kernel's time in a run: the median."""
        return self.time.ns


@dataclass(frozen=True)
class OperatorPart:
    """The time of a layer in one operator: that at `position` in a kernel."""

    kernel: str
    position: int
    op: str
    ns: float
    basis: Basis


@dataclass(frozen=True, repr=False)
class LayerProfile(Brief):
    """A layer of the model: `ns` is the time of its operators in all `kernels` that serve it.

    `ns` is the sum of `alone_ns`, times of kernels that serve no other layer; `measured_ns`, parts
    of kernels by samples; `estimated_ns`, parts by FLOPs or bytes; and `undivided_ns`. `op` is its
    type in the model. `share` is relative to the run's wall time. `parts` are its times in each
    operator that serves it, in the order of the kernels. `facts` describe its operator in the model
    (`correlate.describe_operator`): of several, the one with the most products; empty for saved
    models.
    """

    layer: str
    op: str
    ns: float
    share: float
    alone_ns: float
    measured_ns: float
    estimated_ns: float
    undivided_ns: float
    kernels: tuple[str, ...]
    parts: tuple[OperatorPart, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class ModuleProfile(Brief):
    """A module of a PyTorch model. `ns` is the time of its `layers` in all calls of the module;
    `layers` include those of modules inside it.

    `module` is its path, which is empty for the whole model. `kind` is its class; empty if only
    modules inside it have layers.
    """

    module: str
    kind: str
    ns: float
    share: float
    layers: tuple[str, ...]
    kernels: tuple[str, ...]


@dataclass(frozen=True)
class Outside:
    """Work outside kernels and host steps: `count` times, about `ns` in total."""

    what: str
    count: int
    ns: float


@dataclass(frozen=True)
class Limits:
    """The limits of the machine for `threads` threads: GFLOP/s of f32 multiply-adds, and of
    products of bf16 tiles if it has a matrix unit; GB/s by memory level.
    """

    threads: int
    peak_gflops: float
    tile_gflops: float | None
    bandwidth_gbps: Mapping[str, float]


@dataclass(frozen=True)
class Gain:
    """The gain of a layer from fusion: times with one kernel per operator, and fused.

    `layer` is `None` for the whole run (wall times).
    """

    layer: str | None
    op: str
    unfused_ns: float
    fused_ns: float
    unfused_kernels: int
    fused_kernels: int

    @property
    def saved_ns(self) -> float:
        """The time saved by fusion; negative if fusion is slower."""
        return self.unfused_ns - self.fused_ns

    @property
    def speedup(self) -> float:
        """The speedup by fusion; infinite if the fused time is zero."""
        return self.unfused_ns / self.fused_ns if self.fused_ns else math.inf

    def derived(self) -> dict[str, float | None]:
        """Returns values derived from the times, for JSON: null if infinite."""
        return {"saved_ns": self.saved_ns, "speedup": self.speedup if self.fused_ns else None}


@dataclass(frozen=True, repr=False)
class ProfileRows:
    """The data of a profile: see `Profile`."""

    mode: Literal["fused", "unfused"]
    target: str
    threads: int
    warmup: int
    rounds: int
    runs_a_round: int
    wall: Time
    timed_wall: Time
    overhead: float
    kernels: tuple[KernelProfile, ...]
    layers: tuple[LayerProfile, ...]
    outside: tuple[Outside, ...]
    limits: Limits | None = None
    notes: tuple[str, ...] = ()
    unfused: ProfileRows | None = None
    gains: tuple[Gain, ...] = ()
    modules: tuple[ModuleProfile, ...] = ()

    @property
    def operators(self) -> tuple[OperatorProfile, ...]:
        """The operators of all kernels in order."""
        return tuple(operator for kernel in self.kernels for operator in kernel.operators)

    @property
    def kernels_ns(self) -> float:
        """The time in kernels and host steps: the sum of their times, and of the layers'."""
        return sum(kernel.ns for kernel in self.kernels)

    @property
    def outside_ns(self) -> float:
        """The rest of the wall time: the call, its checks and memory, branches and loops. 0 where
        noise makes the kernels' sum exceed the run.
        """
        return max(0.0, self.wall.ns - self.kernels_ns)

    def kernel(self, name: str) -> KernelProfile:
        """Returns a kernel by its name.

        Errors: I113.
        """
        for kernel in self.kernels:
            if kernel.name == name:
                return kernel
        like = [k.name for k in self.kernels if name in k.name] or [k.name for k in self.kernels]
        more = " ..." if len(like) > _NAMED else ""
        raise InputError(
            "I113",
            f"no kernel named {name!r} has run",
            hint=f"kernels that have: {', '.join(like[:_NAMED])}{more}",
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the profile as lists and dictionaries; see `docs/profile.md`."""
        return {
            "schema": SCHEMA,
            "mode": self.mode,
            "target": self.target,
            "threads": self.threads,
            "warmup": self.warmup,
            "rounds": self.rounds,
            "runs_a_round": self.runs_a_round,
            "wall": self.wall.to_json(),
            "timed_wall": self.timed_wall.to_json(),
            "overhead": self.overhead,
            "kernels_ns": self.kernels_ns,
            "outside_ns": self.outside_ns,
            "outside": [asdict(row) for row in self.outside],
            "limits": asdict(self.limits) if self.limits else None,
            "notes": list(self.notes),
            "kernels": [_kernel_json(kernel) for kernel in self.kernels],
            "layers": [asdict(layer) for layer in self.layers],
            "modules": [asdict(module) for module in self.modules],
            "unfused": self.unfused.to_json() if self.unfused else None,
            "gains": [asdict(gain) | gain.derived() for gain in self.gains],
        }


def _kernel_json(kernel: KernelProfile) -> dict[str, Any]:
    """Returns a kernel as JSON, with the lines of its loop nest that have samples, and instructions
    as columns, since there may be thousands.
    """
    lines = tuple(line for line in kernel.lines if line.samples)
    instructions = {
        "place": [i.place for i in kernel.instructions],
        "address": [i.address for i in kernel.instructions],
        "line": [i.line for i in kernel.instructions],
        "samples": [i.samples for i in kernel.instructions],
    }
    plain = asdict(replace(kernel, lines=lines, instructions=()))
    plain["time"] = kernel.time.to_json()
    del plain["node"]  # an object of this process's graph
    return plain | {"instructions": instructions}
