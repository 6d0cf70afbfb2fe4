"""A compiled model as the explorer sees it: its trace, numbers for its nodes, what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from clew.explorer.schema import Options
from clew.support.errors import InputError

if TYPE_CHECKING:
    from clew.compiled import CompiledModel
    from clew.trace.kernels import KernelTrace
    from clew.trace.trace import Trace


class Session:
    """One build that can be looked at. Everything is worked out when a view first needs it.

    `path` is the model's file, None for a model that has none. `measured` holds results of
    measurements by name, put there by actions: `profile`, `errors`.
    """

    def __init__(
        self,
        compiled: CompiledModel,
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

    @cached_property
    def trace(self) -> Trace:
        """The build's trace."""
        return self.compiled.trace

    @cached_property
    def numbers(self) -> dict[int, int]:
        """For ids of nodes their numbers, over all stages, in order of appearance."""
        found: dict[int, int] = {}
        for stage in range(len(self.trace.stages)):
            for node in self.trace.nodes(stage):
                found.setdefault(node, len(found))
        return found

    @cached_property
    def ids(self) -> list[int]:
        """For numbers of nodes their ids."""
        return list(self.numbers)

    @cached_property
    def layers(self) -> dict[str, int]:
        """For names of layers their places."""
        return {name: n for n, name in enumerate(self.trace.layers)}

    @cached_property
    def kernels(self) -> tuple[KernelTrace, ...]:
        """The uses of kernels in order of execution."""
        return self.trace.kernels

    @cached_property
    def kernel_of_call(self) -> dict[int, int]:
        """For ids of calls in the last stage the kernel's place."""
        return {k.call: n for n, k in enumerate(self.kernels)}

    @cached_property
    def kernels_of_node(self) -> dict[int, list[int]]:
        """For ids of the last stage's operators the kernels that compute them."""
        found: dict[int, list[int]] = {}
        for place, kernel in enumerate(self.kernels):
            for node in dict.fromkeys(kernel.ops):
                found.setdefault(node, []).append(place)
        return found

    def kernel(self, place: int) -> KernelTrace:
        """Returns a kernel by its place.

        Errors: I200 for a place that none has.
        """
        if not 0 <= place < len(self.kernels):
            raise InputError(
                "I200",
                f"no kernel {place}",
                hint=f"there are {len(self.kernels)}, numbered from 0",
            )
        return self.kernels[place]

    def stage(self, place: int) -> int:
        """Returns the place of a stage, if there is such a stage.

        Errors: I071 for one that does not exist.
        """
        return self.trace.stage_index(place)
