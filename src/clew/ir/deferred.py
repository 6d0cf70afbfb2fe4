"""A model that is no graph yet: values or shapes of its inputs decide what graph it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from clew.ir.module import Module
from clew.ir.types import Type


@dataclass(frozen=True)
class DeclaredInput:
    """An input as a file declares it. `dtype` is None for what is no tensor: `type` says what it
    is; `shape` is None for one of any shape.
    """

    name: str
    dtype: str | None
    shape: tuple[int | str, ...] | None
    type: Type | None = None


@runtime_checkable
class DeferredModule(Protocol):
    """What gives a module once a run's inputs are there."""

    @property
    def inputs(self) -> Sequence[DeclaredInput]:
        """The inputs in order."""
        ...

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs in order."""
        ...

    @property
    def deciding(self) -> tuple[str, ...]:
        """Names of inputs whose values decide what the graph is, as far as is known. It grows."""
        ...

    def module_for(self, arrays: Mapping[str, Any]) -> Module:
        """Returns the module for the shapes of these inputs and the values of the deciding ones. It
        has all inputs; those whose values are in it are not read.
        """
        ...
