"""The inputs of a model as its chain sees them: keys, sizes and checks of calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import numpy as np

from clew.ir.dim_places import SizePlace
from clew.ir.dims import Dim, Sizes
from clew.runtime.input_spec import InputSpec, bound_sizes, check_sizes, places_of, shape_sizes
from clew.runtime.kinds import common_rank
from clew.runtime.sizes_key import SizesKey, sizes_key
from clew.support.errors import GraphTypeError, locate
from clew.support.lazy import cached_property
from clew.support.size_ranges import SizeRanges

_FEW: Final = 8


class Interface:
    """The inputs of a model, the ranges of its free dimensions, and the positions of the inputs
    whose values decide sizes.
    """

    def __init__(
        self, inputs: Sequence[InputSpec], ranges: SizeRanges, deciding: Sequence[int] = ()
    ) -> None:
        self.inputs = tuple(inputs)
        self.ranges = ranges
        self.deciding: tuple[int, ...] = ()
        self.decide_by(deciding)
        self._by_rank = [n for n, spec in enumerate(inputs) if spec.by_rank]
        self.takes_any_rank = bool(self._by_rank) or any(s.takes_any_shape for s in inputs)

    @property
    def plain_dtypes(self) -> tuple[np.dtype[Any], ...] | None:
        """The dtypes of the inputs; None if one is no tensor, or may be given as another value."""
        specs = self.inputs
        is_plain = not any(spec.kind is not None or spec.is_count for spec in specs)
        dtypes = [spec.dtype for spec in specs if spec.dtype is not None]
        return tuple(dtypes) if is_plain and len(dtypes) == len(specs) else None

    @property
    def is_free(self) -> bool:
        """Whether sizes of the inputs, or values that decide sizes, are known only in a call."""
        return bool(self.deciding) or any(not spec.is_static for spec in self.inputs)

    @cached_property
    def _places(self) -> list[SizePlace]:
        return places_of(self.inputs)

    def decide_by(self, positions: Sequence[int]) -> None:
        """Sets which inputs' values decide sizes."""
        for number, spec in enumerate(self.inputs):
            spec.decides = number in positions
        self.deciding = tuple(positions)

    def key(self, arrays: Sequence[Any]) -> SizesKey:
        """Returns the key of a call with checked inputs."""
        key = sizes_key(arrays, self.deciding)
        if not self._by_rank:
            return key
        shapes = list(key[0])
        for number in self._by_rank:
            rank = common_rank(arrays[number])
            shapes[number] = None if rank is None else (rank,)
        return tuple(shapes), key[1]

    def sizes(self, arrays: Sequence[Any]) -> Mapping[str, int]:
        """Returns the values of free dimensions and of named elements, by name.

        Errors: I042 if sizes contradict each other.
        """
        return bound_sizes(self.inputs, arrays, self._places)

    def check(self, arrays: Sequence[Any]) -> None:
        """Checks the sizes of checked inputs.

        Errors: I042, I317 and I318.
        """
        if not self._may_differ(arrays):
            return
        check_sizes(self.inputs, arrays, self.ranges, self._places)

    def _may_differ(self, arrays: Sequence[Any]) -> bool:
        """Whether there is anything to check besides sizes that follow from others, or such a size
        differs.
        """
        axes, expected = self._following
        if self.ranges or expected is None:
            return True
        sizes = Sizes(shape_sizes(self.inputs, arrays, self._places))
        try:
            found = list(map(sizes.value, expected))
        except (KeyError, GraphTypeError):
            return True
        return [arrays[n].shape[axis] for n, axis in axes] != found

    @cached_property
    def _following(self) -> tuple[list[tuple[int, int]], list[Dim] | None]:
        """The axes whose sizes follow from other sizes, by input, and these sizes; None instead of
        them if there are rules.
        """
        if any(spec.rules for spec in self.inputs):
            return [], None
        found = [(n, *e) for n, spec in enumerate(self.inputs) for e in spec.expressions.items()]
        return [(n, axis) for n, axis, _ in found], [dim for _, _, dim in found]

    def about(self, arrays: Sequence[Any]) -> AbstractContextManager[None]:
        """Returns a context that adds the shapes of a call's inputs to errors."""
        return locate(inputs=lambda: described(self.inputs, arrays))


def described(specs: Sequence[InputSpec], arrays: Sequence[Any]) -> str:
    """Returns a description of the shapes of a call's inputs and of the declared shapes."""
    texts = []
    for spec, array in zip(specs, arrays, strict=True):
        shape = getattr(array, "shape", None)
        if shape is not None:
            declared = "" if spec.is_static else f" (declared {spec.shown_shape})"
            # Such values decide sizes and axes.
            few = array.size <= _FEW and array.dtype.kind in "iu"
            value = f" = {array.tolist()}" if few else ""
            texts.append(f"{spec.name} {list(shape)}{declared}{value}")
    return ", ".join(texts)
