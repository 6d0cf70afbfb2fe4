"""A compiled model as the explorer sees it: its trace, node numbers, and measurements."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from clew.explorer.schema import Options
from clew.frontends.format import Format
from clew.frontends.formats import format_of
from clew.frontends.listing import Listing
from clew.support.errors import InputError, ModelError
from clew.support.locks import Lock, Turn

if TYPE_CHECKING:
    from clew.build.kernel import Kernel
    from clew.build.result import RegionUse
    from clew.serving.built_model import BuiltModel
    from clew.trace.kernels import KernelTrace
    from clew.trace.trace import Trace

T = TypeVar("T")


def _stamp(path: Path) -> tuple[int, int] | None:
    """Returns a value that identifies a file's version; None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


# A step of a module's path, with the number of a module in a list: `layer.0`.
_STEP: Final = re.compile(r"[^.]+(?:\.\d+)*")


class Session:
    """One build to look at. Everything is computed when a view first needs it.

    `path` is the model's file, None for a model without one. `measured` holds results of
    measurements by name, stored by actions: `profile`, `errors`.
    """

    def __init__(
        self,
        compiled: BuiltModel,
        *,
        model: str,
        path: Path | None = None,
        options: Options | None = None,
        seconds: Mapping[str, float] | None = None,
    ) -> None:
        self.compiled: Final = compiled
        self.model: Final = model
        self.path: Final = path
        self.options: Final = options or Options()
        self.seconds: Final = dict(seconds or {})
        self.measured: Final[dict[str, Any]] = {}
        # Inputs of measurements, in order; drawn if empty.
        self.inputs: list[Any] | None = None
        # Held by code that runs the model: nothing else runs during a measurement.
        self.running: Final = Lock()
        # The action that measures the model, while it does.
        self.measuring: Final = Turn()
        self._made: dict[Any, Any] = {}
        self._file: Final = None if path is None else _stamp(path)

    def once(self, make: Callable[[Session], T]) -> T:
        """Returns a function's result for the session, computed once; views cache their tables with
        it.
        """
        if make not in self._made:
            self._made[make] = make(self)
        found: T = self._made[make]
        return found

    @cached_property
    def trace(self) -> Trace:
        """The trace of a build at the sizes of a run.

        Errors: I044 before the first run of a model with symbolic sizes.
        """
        _ = self.compiled.build
        return self.compiled.trace

    @cached_property
    def numbers(self) -> dict[int, int]:
        """Node numbers by node id, over all stages, in order of appearance."""
        found: dict[int, int] = {}
        for stage in range(len(self.trace.stages)):
            for node in self.trace.nodes(stage):
                found.setdefault(node, len(found))
        return found

    @cached_property
    def ids(self) -> list[int]:
        """Node ids by number."""
        return list(self.numbers)

    @cached_property
    def layers(self) -> dict[str, int]:
        """Places of layers by name."""
        return {name: n for n, name in enumerate(self.trace.layers)}

    @cached_property
    def kernels(self) -> tuple[KernelTrace, ...]:
        """The uses of kernels in order of execution."""
        return self.trace.kernels

    @cached_property
    def uses(self) -> list[Kernel]:
        """The same uses of kernels as the compiled model gives them."""
        return self.compiled.kernels

    @cached_property
    def kernel_of_call(self) -> dict[int, int]:
        """Places of kernels by the id of their call in the last stage."""
        return {k.call: n for n, k in enumerate(self.kernels)}

    @cached_property
    def kernels_of_node(self) -> dict[int, list[int]]:
        """For the id of each operator in the last stage, the kernels that compute it."""
        found: dict[int, list[int]] = {}
        for place, kernel in enumerate(self.kernels):
            for node in dict.fromkeys(kernel.ops):
                found.setdefault(node, []).append(place)
        return found

    @cached_property
    def regions(self) -> list[RegionUse]:
        """The regions on other backends, in order of execution."""
        return self.compiled.regions

    @cached_property
    def region_of_call(self) -> dict[int, int]:
        """Places of regions by the id of their call in the last stage."""
        return {use.call.id: n for n, use in enumerate(self.regions)}

    @cached_property
    def region_ops(self) -> list[list[int]]:
        """The ids of each region's operators in the last stage, in order."""
        return [[call.id for call in use.operators] for use in self.regions]

    @cached_property
    def region_of_node(self) -> dict[int, int]:
        """Places of regions by the ids of their operators in the last stage."""
        return {op: place for place, ops in enumerate(self.region_ops) for op in ops}

    # --- the model ---

    @cached_property
    def _format(self) -> Format | None:
        return None if self.path is None else format_of(self.path)

    @property
    def lists(self) -> bool:
        """Whether the model came from a file whose layers clew lists."""
        return self._format is not None and self._format.lists

    @cached_property
    def listing(self) -> Listing | None:
        """The model's file as data; None if it has none that clew lists, or the file has changed
        since the session began.
        """
        if self.path is None or self._format is None or not self._format.lists:
            return None
        try:
            found = self._format.listing(self.path, self.operator_types)
        except ModelError:
            return None
        return found if self._file == _stamp(self.path) else None

    @cached_property
    def operator_types(self) -> dict[str, str]:
        """The layers' operator types in the model, by layer name."""
        found = {
            source.layer: source.op
            for node in self.trace.nodes(0).values()
            for source in node.span.sources
            if source.op
        }
        gone = self.trace.stages[0].module.main.attrs.get("eliminated", ())
        return {layer: op for layer, op, _ in gone} | found

    @cached_property
    def output_types(self) -> dict[str, dict[int, str]]:
        """The types of layers' results, by layer name and position."""
        found: dict[str, dict[int, str]] = {}
        for node in self.trace.nodes(0).values():
            for source in node.span.sources:
                if source.output is not None:
                    found.setdefault(source.layer, {})[source.output] = str(node.type)
        return found

    @cached_property
    def input_types(self) -> dict[str, str]:
        """The types of the model's inputs by name, with the sizes of the build."""
        return {p.name: str(p.type) for p in self.trace.stages[0].module.main.params}

    @cached_property
    def _paths(self) -> dict[str, tuple[str, ...]]:
        """The modules around layers, by layer name, if the exporter recorded them."""
        if self.listing is None:
            return {}
        return {line.name: line.path for line in self.listing.lines if line.path}

    def group_of(self, layer: str) -> list[str]:
        """Returns the groups of a layer, outermost first: the modules that its exporter recorded or
        that call it, else the path in its name: `/encoder/layer.0/MatMul` is in `encoder` and
        `layer.0`.
        """
        noted = self._paths.get(layer)
        if noted is not None:
            return list(noted)
        place = self.trace.places.get(layer)
        if place is not None:
            path = place.module if layer != place.module else place.module.rpartition(".")[0]
            return [part.lstrip(".") for part in _STEP.findall(path)]
        return [part for part in layer.split("/")[:-1] if part]

    # --- places ---

    def kernel(self, place: int) -> KernelTrace:
        """Returns a kernel by its place.

        Errors: I200 for a place without a kernel.
        """
        return self.kernels[self.place(place)]

    def place(self, kernel: int) -> int:
        """Returns the place of a kernel after checking it.

        Errors: I200 for a place without a kernel.
        """
        if not 0 <= kernel < len(self.kernels):
            raise InputError(
                "I200",
                f"no kernel {kernel}",
                hint=f"there are {len(self.kernels)}, numbered from 0",
            )
        return kernel

    def region(self, place: int) -> RegionUse:
        """Returns a region by its place.

        Errors: I244 for a place without a region.
        """
        if not 0 <= place < len(self.regions):
            raise InputError(
                "I244",
                f"no region {place}",
                hint=f"there are {len(self.regions)}, numbered from 0"
                if self.regions
                else "the CPU runs the whole model",
            )
        return self.regions[place]

    # --- naming ---

    def ref(self, stage: int, node: int) -> str:
        """Returns the ref of a node, by its id, at a stage."""
        return f"node:{stage}:{self.numbers[node]}"

    def remark_ref(self, stage: int, node: int) -> str:
        """Returns the ref of the node that a stage's remark is about: in the previous stage, which
        the pass was given; or the ref of the stage, if no stage has the node.
        """
        for place in (max(stage - 1, 0), stage):
            if node in self.trace.nodes(place):
                return self.ref(place, node)
        return f"stage:{stage}"

    def stage(self, place: int) -> int:
        """Returns the place of a stage after checking it.

        Errors: I071 for one that does not exist.
        """
        return self.trace.stage_index(place)
