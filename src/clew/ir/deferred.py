"""A model whose graph depends on values or shapes of its inputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from clew.ir.defaults import Defaults
from clew.ir.module import Module
from clew.ir.types import Type
from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class DeclaredInput:
    """An input as declared in a file. `dtype` is None if it is not a tensor (see `type`); `shape`
    is None if any shape is allowed.
    """

    name: str
    dtype: str | None
    shape: tuple[int | str, ...] | None
    type: Type | None = None


@runtime_checkable
class DeferredModule(Protocol):
    """A model that makes a module from a run's inputs."""

    @property
    def inputs(self) -> Sequence[DeclaredInput]:
        """The inputs in order."""
        ...

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs in order."""
        ...

    @property
    def defaults(self) -> Defaults | None:
        """The inputs with a default value that callers may replace; None if there are none."""
        ...

    @property
    def deciding(self) -> tuple[str, ...]:
        """Names of the inputs known to decide the graph by their values. The set may grow."""
        ...

    def module_for(self, arrays: Mapping[str, Any]) -> Module:
        """Returns the module for the shapes of these inputs and the values of the deciding ones. It
        has all inputs, but does not read those whose values it contains.
        """
        ...

    def with_sizes(self, sizes: Mapping[str, int]) -> Module | DeferredModule:
        """Returns the model with some of its named sizes replaced by numbers: a module if the graph
        then depends on no run.
        """
        ...

    def with_ranks(self, ranks: Mapping[str, int]) -> Module | None:
        """Returns the module for inputs of these ranks, whose sizes have names; None if the graph
        depends on more than the ranks.
        """
        ...

    def with_ones(self, ones: Collection[str]) -> Module | None:
        """Returns the module for calls in which these named sizes are 1, and no others; None if the
        graph depends on more than that.
        """
        ...
