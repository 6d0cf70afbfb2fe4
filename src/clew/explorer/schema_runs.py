"""The part of the wire format that needs a run: values and measurements (see `schema.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Ref: TypeAlias = str
Number: TypeAlias = int

# --- values ---


@dataclass(frozen=True)
class LoopIteration:
    """One iteration of a loop, from 0, out of `iterations` (None if that varies). `loop` is the
    loop's layer.
    """

    loop: Number
    iteration: int
    iterations: int | None


@dataclass(frozen=True)
class Values:
    """A result of a layer in a run: its statistics, and its first elements as text.

    `outputs` are the numbers of the layer's results. For a layer in loops the value is that of
    iteration `iteration`, from 0, out of `iterations`, both counted over all entries of the loops;
    outside loops they are -1 and 0. `path` is the iteration of each surrounding loop, outermost
    first; it is empty if only a run determines it. In a branch (`in_branch`) only iterations that
    took the branch count. Statistics cover the finite elements and are None if there are none;
    `histogram` counts them between `least` and `most`.
    """

    layer: str
    output: int
    outputs: list[int]
    type: str
    iteration: int
    iterations: int
    path: list[LoopIteration]
    in_branch: bool
    elements: int
    least: float | None
    most: float | None
    mean: float | None
    deviation: float | None
    zeros: int
    nans: int
    infinities: int
    histogram: list[int]
    sample: list[str]


# --- measured ---

Metric: TypeAlias = Literal["time", "flops", "bytes", "peak", "error", "quantization"]


@dataclass(frozen=True)
class NodeFigures:
    """Figures of a stage's operators, as columns; operators without a figure are left out."""

    number: list[Number]
    figure: list[float]


@dataclass(frozen=True)
class Heat:
    """A figure for each layer, kernel, line of a loop nest and instruction; None if unknown.

    `nodes` has the operators of each stage, with their own shares; it is empty for a stage that
    changed nothing, whose figures are those of the previous stage. `unit` is ns, flop, B, share (of
    peak, 0 to 1) or relative (error). `lines[k][n]` is that of line n + 1 of kernel k,
    `instructions` likewise; empty lists if a level is not measured. `runs` is how often each kernel
    ran per inference, in loops once per iteration, if that was measured; a kernel's figure covers
    all its runs. `regions` has the figures of regions on other backends, for time only. Shares
    refer to `total`; `basis` names the measurement or estimate behind the figures.
    """

    metric: Metric
    unit: str
    total: float | None
    layers: list[float | None]
    kernels: list[float | None]
    regions: list[float | None]
    nodes: list[NodeFigures]
    lines: list[list[float | None]]
    instructions: list[list[float | None]]
    runs: list[float | None]
    basis: str
    notes: list[str]


@dataclass(frozen=True)
class RooflinePoint:
    """A kernel under the roofline: `intensity` in FLOP per byte, reached `gflops`, and its limit.
    It ran `runs` times in a run of the model, for `ns` in total.
    """

    kernel: Number
    intensity: float
    gflops: float
    ns: float
    runs: float
    limit: str
    limit_share: float


@dataclass(frozen=True)
class Roofline:
    """The machine's limits, and the throughput of kernels. `bandwidths` are GB/s by level of
    memory.
    """

    peak_gflops: float
    tile_gflops: float | None
    bandwidths: dict[str, float]
    threads: int
    points: list[RooflinePoint]


@dataclass(frozen=True)
class Slice:
    """A slice of the timeline: `track` is kernels, operators or layers; `ref` is the thing
    shown.
    """

    track: str
    start_ns: float
    ns: float
    text: str
    ref: Ref


@dataclass(frozen=True)
class Timeline:
    """One run of median times. `slices` of a track follow each other and do not overlap."""

    wall_ns: float
    slices: list[Slice]


@dataclass(frozen=True)
class Profiled:
    """A summary of a profile: wall time, kernel time, and notes."""

    wall_ns: float
    kernels_ns: float
    outside_ns: float
    rounds: int
    threads: int
    notes: list[str]


# --- language models ---


@dataclass(frozen=True)
class PartCost:
    """The cost of a decoder layer, or of another layer, in one call: the bytes of weights and
    caches that must be read, and the time. `layers` are the model's layers in it. `share` is that
    of the call's time; `bandwidth_share` is the time to read the bytes at the machine's bandwidth,
    divided by `ns`.
    """

    layer: str
    layers: list[Number]
    weight_bytes: int
    cache_bytes: int
    ns: float
    share: float
    bandwidth_share: float


@dataclass(frozen=True)
class StepCost:
    """A call that reads `tokens` tokens after `length` tokens in the caches; `gbps` is the
    machine's bandwidth for as many bytes as a decode step reads.
    """

    tokens: int
    length: int
    ns: float
    arena_bytes: int
    gbps: float
    weight_bytes: int
    cache_bytes: int
    bandwidth_share: float
    parts: list[PartCost]


@dataclass(frozen=True)
class TokenCosts:
    """The costs of tokens of a language model: the memory of weights, the bytes that each token
    adds to the caches and those of states of fixed size. Each token in the caches adds `slope_us`
    to the time of a decode step.
    """

    threads: int
    weight_bytes: int
    token_bytes: int
    state_bytes: int
    slope_us: float
    decode: StepCost
    prefill: StepCost
