"""Models whose import waits for a run: axes, counts or sizes are inputs of the model.

For example, `TopK` with an input of the model as `k` has as many columns as that input says in a
run. If a graph can leave such a size open, the run binds it; otherwise the model is imported when
it is called, with the values of the inputs whose values were unknown at import.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random
from typing import Any, Final, Protocol, TypeAlias

import numpy as np

from clew.frontends.builder import GraphBuilder
from clew.frontends.given import blames_the_file, not_fitting
from clew.ir.defaults import Defaults
from clew.ir.deferred import DeclaredInput, DeferredModule
from clew.ir.module import Module
from clew.support.budgets import MAX_DECIDING_ELEMENTS
from clew.support.errors import ClewError, Hint
from clew.support.locks import Lock

Shapes: TypeAlias = "Mapping[str, Sequence[int | str]]"
"""Shapes of inputs by name."""
RUN_TELLS: Final = frozenset({"U002", "U006", "U101", "U102"})
"""Codes of errors about a value (of an axis, a shape) or size that is unknown before the run."""
# Codes of errors that unknown values may cause.
_CONSEQUENCES: Final = frozenset({"U005", "T007"})


class Importing(Protocol):
    """An import of a model for certain shapes and values of its inputs."""

    builder: GraphBuilder

    @property
    def output_names(self) -> Sequence[str]:
        """Names of the model's outputs."""
        ...

    def declared(self) -> list[DeclaredInput]:
        """Returns the model's inputs as declared in the file, with the given shapes."""
        ...

    def run(self) -> Module:
        """Returns the module."""
        ...


MakeImport: TypeAlias = "Callable[..., Importing]"
"""Makes imports of one model: `make(shapes, values, *, late, without_ones)`. With `late`, layers
that need values unknown before the run are imported when they run.
"""
Import: TypeAlias = "Callable[[Shapes], Module | DeferredModule]"
"""Imports a model with shapes of its inputs."""


class DeferredModel:
    """A model that is imported for the shapes and values of each call."""

    def __init__(
        self,
        make: MakeImport,
        importer: Importing,
        error: ClewError | None,
        again: Import,
        defaults: Defaults | None = None,
    ) -> None:
        self._make = make
        self._again = again
        self._asked = asked_for(importer, error)
        self.why = error
        self.defaults = defaults
        self._lock = Lock()
        self.inputs = tuple(importer.declared())
        self.output_names = tuple(importer.output_names)

    @property
    def deciding(self) -> tuple[str, ...]:
        """Names of the inputs whose values the import requested, in the inputs' order."""
        return tuple(i.name for i in self.inputs if i.name in self._asked)

    def with_sizes(self, sizes: Mapping[str, int]) -> Module | DeferredModule:
        """Returns the model imported again with numbers for some of its named sizes.

        Errors: those of an import.
        """
        return self._again(
            {
                i.name: [sizes.get(d, d) if isinstance(d, str) else d for d in i.shape]
                for i in self.inputs
                if i.dtype is not None and i.shape is not None
            }
        )

    def with_ranks(self, ranks: Mapping[str, int]) -> Module | None:
        """Returns the model imported again with inputs of these ranks, whose sizes have names
        (`x_0`); None if ranks alone do not suffice for an import.
        """
        try:
            found = self._again(
                {name: [f"{name}_{axis}" for axis in range(rank)] for name, rank in ranks.items()}
            )
        except ClewError:  # the import for the sizes of a call reports why
            return None
        return found if isinstance(found, Module) else None

    def with_ones(self, ones: Collection[str]) -> Module | None:
        """Returns the model imported for calls in which these named sizes are 1, and no others;
        None if that does not suffice for an import.
        """
        shapes = {
            i.name: tuple(1 if d in ones else d for d in i.shape)
            for i in self.inputs
            if i.dtype is not None and i.shape is not None
        }
        importer = self._make(shapes, None, without_ones=True)
        try:
            module = importer.run()
        except ClewError:  # the import for the sizes of a call reports why
            return None
        return None if asked_for(importer, None) else module

    def module_for(self, arrays: Mapping[str, Any]) -> Module:
        """Returns the module for these inputs.

        Errors: those of an import.
        """
        tensors = {i.name: arrays[i.name] for i in self.inputs if i.dtype is not None}
        shapes = {name: tuple(array.shape) for name, array in tensors.items()}
        with self._lock:
            while True:
                values = {name: np.array(tensors[name]) for name in self._asked}
                importer = self._make(shapes, values)
                failed: ClewError | None = None
                try:
                    module = importer.run()
                except ClewError as error:
                    failed = error
                more = [n for n in asked_for(importer, failed) if n not in self._asked]
                more = [n for n in more if tensors[n].size <= MAX_DECIDING_ELEMENTS]
                if not more and failed is not None:
                    return self._late(shapes, values, failed)
                if not more:
                    return module
                self._asked = (*self._asked, *more)

    def _late(self, shapes: Shapes, values: Mapping[str, Any], failed: ClewError) -> Module:
        """Returns the module with late layers, which are imported when they run: those that need
        more than the inputs determine. Raises the original error if late layers do not help.
        """
        if failed.code in RUN_TELLS:
            try:
                return self._make(shapes, values, late=True).run()
            except ClewError:
                pass
        raise failed if self._is_file(failed) else not_fitting(failed) from failed

    def _is_file(self, error: ClewError) -> bool:
        """Whether an error is probably not due to the inputs of a run: it does not blame the file,
        or the import without inputs raised the same error.
        """
        if not blames_the_file(error):
            return True
        return self.why is not None and (self.why.code, self.why.layer) == (error.code, error.layer)


def asked_for(importer: Importing, error: ClewError | None) -> tuple[str, ...]:
    """Returns the inputs whose values were unknown at import, if that may be why the import failed;
    for a successful import, those that decide between different branches.
    """
    if error is None:
        return importer.builder.asked.left_open(importer.builder.params)
    if error.code in RUN_TELLS | _CONSEQUENCES:
        return importer.builder.asked.in_vain(importer.builder.params)
    return ()


def can_wait(importer: Importing, error: ClewError) -> bool:
    """Whether a failed import may succeed once inputs are known."""
    if asked_for(importer, error):
        return True
    if error.code not in RUN_TELLS:
        return False
    return any(
        i.shape is None or not all(isinstance(d, int) for d in i.shape)
        for i in importer.declared()
        if i.dtype is not None
    )


# First, all free sizes at once: powers of two for grids that are halved, then common image sizes.
_PROBED: Final = (16, 64, 224, 1)
# Then some drawn from the concrete sizes of the inputs and of the layer that failed. Models with
# more free names than this are not tried.
_DRAWS: Final = 8
_FEW_NAMES: Final = 2


def needs_numbers(make: MakeImport, importer: Importing, shapes: Shapes) -> bool:
    """Whether an import that failed with free sizes may succeed with numbers for them. A model that
    cannot be imported for any size is wrong, and should be rejected before a call: the result is
    False if the failing layer knew all its sizes, or if no tried numbers help. Models with more
    than two free names are not tried.
    """
    failed = importer.builder.failed
    if failed is None or not failed.symbolic:
        return False
    declared = [i for i in importer.declared() if i.dtype is not None and i.shape is not None]
    if all(isinstance(d, int) for i in declared for d in i.shape or ()):
        return False
    names = {str(d) for i in declared for d in i.shape or () if not isinstance(d, int)}
    if len(names) > _FEW_NAMES:
        return True
    numbers = {d for i in declared for d in i.shape or () if isinstance(d, int)}
    numbers |= failed.sizes
    draw, drawn = Random(0).choice, sorted(numbers)
    draws = [{n: draw(drawn) for n in sorted(names)} for _ in range(_DRAWS) if drawn]
    for sizes in [*(dict.fromkeys(names, size) for size in _PROBED), *draws]:
        probe = {
            i.name: [d if isinstance(d, int) else sizes[str(d)] for d in i.shape or ()]
            for i in declared
        }
        tried = make({**shapes, **probe}, None, late=True)
        try:
            tried.run()
        except ClewError as error:
            if not can_wait(tried, error):
                continue
        return True
    return False


def advice(importer: Importing, error: ClewError) -> Hint:
    """Returns a hint for an import that can wait."""
    names = asked_for(importer, error)
    given = f"constants={{{names[0]!r}: ...}}" if names else "inputs={...} with numbers as shapes"
    return Hint(
        f"use clew.compile(file), which imports it when it is called; or pass {given}",
        cli="use clew run MODEL, which imports it when it runs"
        + ("" if names else "; or give all shapes, as in --shape NAME=1,3,224,224"),
    )
