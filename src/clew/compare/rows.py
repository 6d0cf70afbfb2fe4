"""The data of a report: two builds, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from clew.compare.precision import Deviation
from clew.compare.state import KernelPart, State
from clew.compare.times import Timing
from clew.compare.values import Numerics
from clew.support.errors import InputError
from clew.support.near import did_you_mean
from clew.support.shown import Brief

KINDS: Final = (
    "added", "removed", "conversion", "name", "operator", "attributes", "weights", "inputs",
    "backend", "fate", "fusion", "kernel", "schedule", "layout", "dtype", "packing", "passes",
    "time", "values",
)  # fmt: skip
"""The kinds of difference of a layer."""


@dataclass(frozen=True, repr=False)
class LayerDiff(Brief):
    """A layer of A and of B, either of which may be missing (`None`).

    `how` and `confidence` say how the two were matched (see `clew.compare.align.HOW`). `differs`
    has a sentence for each kind of difference: `name`, `operator`, `attributes`, `weights`,
    `inputs` (it reads other layers), `backend` (that runs it), `fate`, `fusion` (it shares kernels
    with other layers), `kernel` (other operators), `schedule`, `layout`, `dtype`, `packing` (types
    of its weights), `passes` (that treated it differently), `time`, `values`; or `added`,
    `removed`, or `conversion` for a layer in only one model that changes how a value is stored.
    """

    a: str | None
    b: str | None
    op_a: str
    op_b: str
    how: str
    confidence: float
    differs: Mapping[str, str]
    state_a: State | None
    state_b: State | None
    group: int
    time: Timing | None = None
    numerics: Numerics | None = None

    @property
    def name(self) -> str:
        """Its name in A, and that in B if it differs."""
        if self.a and self.b and self.a != self.b:
            return f"{self.a} = {self.b}"
        return self.a or self.b or ""

    @property
    def op(self) -> str:
        """Its operator type in the model; both if they differ."""
        if self.a and self.b and self.op_a != self.op_b:
            return f"{self.op_a} → {self.op_b}"
        return self.op_a or self.op_b

    @property
    def kernels_a(self) -> tuple[KernelPart, ...]:
        """Its parts in kernels of A."""
        return self.state_a.kernels if self.state_a else ()

    @property
    def kernels_b(self) -> tuple[KernelPart, ...]:
        """Its parts in kernels of B."""
        return self.state_b.kernels if self.state_b else ()


@dataclass(frozen=True, repr=False)
class Group(Brief):
    """Layers that share kernels only with each other, in A or in B: their kernels can be compared
    as a whole, without estimates.

    `layers` have their names in A; layers only in B have their names in B.
    """

    layers: tuple[str, ...]
    kernels_a: tuple[str, ...]
    kernels_b: tuple[str, ...]
    time: Timing | None = None


@dataclass(frozen=True, repr=False)
class BuildFacts(Brief):
    """Facts about one build. Sizes are in bytes: `arena` is the memory for intermediate values,
    `weights` that of constants, `code` that of the objects. `seconds` is the compilation time, with
    `cached_kernels` of `distinct_kernels` from the disk cache.

    `options` are the compile options as text. `error` is that of the worst output against f32 at
    opt level 0.
    """

    name: str
    options: Mapping[str, str]
    layers: int
    kernels: int
    distinct_kernels: int
    cached_kernels: int
    host_steps: int
    regions: int
    arena_bytes: int
    weights_bytes: int
    code_bytes: int
    seconds: Mapping[str, float]
    error: Deviation | None = None


@dataclass(frozen=True)
class PassFacts:
    """A pass, the number of layers it treated in each build (`None`: it did not run there), and the
    number it treated differently.
    """

    name: str
    a: int | None
    b: int | None
    otherwise: int


@dataclass(frozen=True, repr=False)
class Summary(Brief):
    """The summary: both builds, the number of paired layers and how they were paired, and the
    counts of differences.

    `first_rise` names the first layer whose values differ, `time` is that of whole runs in
    microseconds over `rounds` turns, and `error` is that of the worst output, B against A. `notes`
    report irregularities, such as shares of kernels that are estimates. `first_beyond` names the
    first layer whose `between.rms` is above the `bound`, if there are both.
    """

    a: BuildFacts
    b: BuildFacts
    paired: Mapping[str, int]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    differs: Mapping[str, int]
    passes: tuple[PassFacts, ...]
    time: Timing | None = None
    rounds: int = 0
    error: Deviation | None = None
    first_rise: str | None = None
    rises: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    bound: float | None = None
    first_beyond: str | None = None


@dataclass(frozen=True, repr=False)
class Rows:
    """The data of a report: see `DiffReport`."""

    summary: Summary
    layers: tuple[LayerDiff, ...]
    groups: tuple[Group, ...] = field(repr=False)

    @property
    def changed(self) -> tuple[LayerDiff, ...]:
        """The layers that differ in any way."""
        return tuple(layer for layer in self.layers if layer.differs)

    def layer(self, name: str) -> LayerDiff:
        """Returns a layer by its name in A or in B.

        Errors: I164 if neither model has the layer.
        """
        for layer in self.layers:
            if name in (layer.a, layer.b):
                return layer
        raise InputError(
            "I164",
            f"neither model has a layer {name!r}",
            hint=did_you_mean(name, (n for x in self.layers for n in (x.a, x.b) if n), "layers"),
        )
