"""The provider of variants of a model (`runtime.variant`), each of which has a chain of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, Generic, TypeAlias

from clew.runtime.variant import Variant
from clew.serving.chain import Chain
from clew.serving.interface import Interface
from clew.serving.served import B, Declined, Request, Served
from clew.support.errors import ClewError

Find: TypeAlias = "Callable[[Variant], Chain[B] | Declined]"


class Whole(Generic[B]):
    """Serves every call by the program of a model without free sizes."""

    name: Final = "the build for all ranks"

    def __init__(self, served: Served[B]) -> None:
        self._served = served

    def serve(self, request: Request) -> Served[B]:
        """Never fails."""
        return replace(self._served, key=request.key, is_own=False)


class Variants(Generic[B]):
    """Serves calls with sizes of 0, and models that depend on ranks or on sizes of 1."""

    name: Final = "a variant"

    def __init__(self, interface: Interface, find: Find[B], *, by_ones: bool) -> None:
        """`find` returns the chain of a variant, or why there is none. With `by_ones`, the graph
        depends on which sizes are 1.
        """
        self._interface = interface
        self._find = find
        self._by_ones = by_ones

    def serve(self, request: Request) -> Served[B] | Declined:
        """Errors: those of a build, if sizes are 0: no other build is valid there."""
        inputs, arrays = self._interface.inputs, request.arrays
        by_class = self._interface.takes_any_rank or self._by_ones
        if not (by_class or request.is_empty):
            return Declined(self.name, "no size is 0")
        variant = Variant.of(inputs, arrays)
        if variant is None and self._by_ones:
            variant = Variant.by_ones(inputs, arrays)
        if variant is None:
            return Declined(self.name, "no variant has these sizes")
        chain = self._find(variant)
        if isinstance(chain, Declined):
            return chain
        try:
            served = chain.serve(arrays)
        except ClewError as error:
            if not by_class:
                raise
            # An import for these sizes may succeed, or reports why not.
            return Declined(self.name, error.message)
        name = f"the variant with {variant}: {served.provider}"
        return replace(served, provider=name, key=request.key, is_own=False, declined=())
