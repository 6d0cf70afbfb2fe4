"""The result of a build: its stages, kernels and program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from clew.backends.cpu.kernel_stages import operator_calls
from clew.backends.cpu.lowering import KernelBinary, KernelSource
from clew.backends.regions import layers_of
from clew.ir.dims import Dim, Sizes, SymDim, substitute
from clew.ir.expr import Attrs, Call, Function
from clew.ir.types import Type, substitute_type
from clew.ir.visit import post_order
from clew.passes.base import Unmet
from clew.runtime.program import Program
from clew.runtime.segment import NativeSegment
from clew.runtime.sized_segment import SizedSegment
from clew.support.dataclass import dataclass
from clew.support.lazy import cached_property
from clew.support.shown import Brief, Shown, counted
from clew.trace.stages import StageRecord


@dataclass(frozen=True, repr=False)
class KernelUse(Brief):
    """One use of a kernel: the call in the last stage's graph, and the kernel it runs."""

    name: str
    call: Call
    source: KernelSource
    segment: int
    step: int

    @property
    def ops(self) -> list[str]:
        """Names of its operators in order."""
        assert isinstance(self.call.op, Function)
        return [call.op_name for call in operator_calls(self.call.op)]


@dataclass(frozen=True, repr=False)
class RegionUse(Brief):
    """A region of the last stage's graph that a backend runs: its call and its unique name.

    Equal regions have one `key`: they are compiled once.
    """

    name: str
    backend: str
    call: Call
    key: str

    @property
    def ops(self) -> list[str]:
        """Names of its operators in order."""
        return [call.op_name for call in self.operators]

    @property
    def operators(self) -> list[Call]:
        """The calls of its operators in order."""
        assert isinstance(self.call.op, Function)
        return operator_calls(self.call.op)

    @property
    def layers(self) -> tuple[str, ...]:
        """The model's layers that it computes, in the order of its operators."""
        assert isinstance(self.call.op, Function)
        return layers_of(self.call.op)


@dataclass(repr=False)
class BuildTemplate(Shown):
    """The result of compiling a module. Segments whose sizes only a run knows run in a `Build` made
    by `at`. Times are wall-clock seconds.
    """

    stages: list[StageRecord]
    program: Program
    uses: list[KernelUse]
    segments: Sequence[NativeSegment | SizedSegment]
    binaries: dict[str, KernelBinary]
    seconds: dict[str, float]
    cached_kernels: int
    # The user's requests that had no effect.
    unmet: tuple[Unmet, ...] = ()
    regions: tuple[RegionUse, ...] = ()
    # Why kernels cannot serve all sizes, by their names.
    unsized: tuple[tuple[str, str], ...] = ()

    def _about(self) -> str:
        return f"of {counted(len(self.uses), 'kernel')}, {counted(len(self.segments), 'segment')}"

    @property
    def constant_bytes(self) -> int:
        """The size of the weights in the program."""
        return sum(c.nbytes for segment in self.segments for c in segment.constants)

    @cached_property
    def same_code(self) -> dict[str, list[str]]:
        """The names of the uses of each kernel, by its key."""
        found: dict[str, list[str]] = {}
        for use in self.uses:
            found.setdefault(use.source.key, []).append(use.name)
        return found

    def rules_of(self, source: KernelSource) -> tuple[str, ...]:
        """Returns the names of the schedule rules that were applied to a kernel."""
        # Reading the rules from the cache is faster than scheduling the kernel again. A manual
        # schedule may have been renamed since.
        return source.rules if source.by_hand else self.binaries[source.key].rules

    @cached_property
    def layer_order(self) -> dict[str, int]:
        """The position of each of the model's layers, in the order of the import."""
        nodes = post_order(self.stages[0].module.main)
        names = dict.fromkeys(layer for node in nodes for layer in node.span.layers)
        return {name: position for position, name in enumerate(names)}

    def kernel_layers(self, use: KernelUse) -> tuple[str, ...]:
        """Returns the model's layers that a kernel serves, ordered by its operators, then by the
        model.
        """
        found: dict[str, None] = {}
        order = self.layer_order
        assert isinstance(use.call.op, Function)
        for node in operator_calls(use.call.op):
            layers = sorted(node.span.layers, key=lambda la: order.get(la, len(order)))
            found.update(dict.fromkeys(layers))
        return tuple(found)

    def at(
        self, program: Program, segments: Sequence[NativeSegment], sizes: Mapping[str, int]
    ) -> Build:
        """Returns the build with the program for given sizes, and that program's segments."""
        # Each call with new sizes comes here, and a dataclass collects its fields slowly.
        made = Build.__new__(Build)
        changed = {"program": program, "segments": segments, "sizes": dict(sizes)}
        made.__dict__.update(self.__dict__, **changed)
        return made


@dataclass(repr=False)
class Build(BuildTemplate):
    """The result of compiling a module, ready to run at its sizes.

    `stages` and the kernels' sources may have sizes by name. Then `sizes` holds their values, which
    `number`, `type_at`, `attrs_at` and others substitute.
    """

    segments: Sequence[NativeSegment]
    sizes: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def _values(self) -> Sizes:
        return Sizes(self.sizes)

    def known(self, dim: Dim) -> int | None:
        """Returns the value of a dimension of a stage; None if only the run determines it."""
        if isinstance(dim, SymDim) and not dim.symbols <= self.sizes.keys():
            return None
        return self._values.value(dim)

    def number(self, dim: Dim) -> int:
        """Returns the value of a dimension of a kernel, whose sizes are known."""
        return self._values.value(dim)

    def type_at(self, type_: Type) -> Type:
        """Returns the type of a value of a stage at the sizes of this build. Sizes that only the
        run determines keep their names.
        """
        return substitute_type(type_, self.sizes) if self.sizes else type_

    def settled(self, value: Any) -> Any:
        """Returns an attribute's value at the sizes of this build."""
        if not self.sizes:
            return value
        if isinstance(value, tuple):
            return tuple(map(self.settled, value))
        return substitute(value, self.sizes) if isinstance(value, SymDim) else value

    def attrs_at(self, attrs: Attrs) -> Attrs:
        """Returns the attributes of a call of a stage at the sizes of this build."""
        if not self.sizes:
            return attrs
        return Attrs({name: self.settled(value) for name, value in attrs.items()})
