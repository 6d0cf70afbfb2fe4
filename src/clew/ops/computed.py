"""Facts derived from an operator's `compute` and its traits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from clew.ir.dims import Dim
from clew.ir.expr import ArgRef, Attrs
from clew.ir.types import TensorType
from clew.ops.signature import Signature
from clew.ops.traits import Traits
from clew.te.analysis import Kind, kind_of, view_offsets
from clew.te.facts import (
    checks_indices,
    is_finite_of_finite,
    is_well_conditioned,
    moved_by,
    skips_checks,
)
from clew.te.tensor import Tensor, placeholder

T = TypeVar("T")

# The number of facts of calls that an operator caches.
_KEPT: Final = 1024


def argument_references(attrs: Mapping[str, Any]) -> dict[str, int]:
    """Returns the attributes whose values are in arguments, with the arguments' indices."""
    plain = attrs.plain if isinstance(attrs, Attrs) else attrs
    return {name: v.index for name, v in plain.items() if type(v) is ArgRef}


class Computed:
    """The part of an operator that analyzes its tensor expression."""

    name: str
    signature: Signature
    compute: Callable[..., Tensor | tuple[Tensor, ...]] | None
    kind_override: Kind | None
    host: bool
    traits: Traits
    _known: dict[Any, Any]

    def placeholders(self, types: Sequence[TensorType]) -> list[Tensor]:
        """Returns input tensors with the names of the signature."""
        names = list(self.signature.inputs)
        names += [f"{self.signature.variadic}{n}" for n in range(len(types) - len(names))]
        return [
            placeholder(t.shape, t.dtype, n, t.layout) for t, n in zip(types, names, strict=False)
        ]

    def is_computed(self, attrs: Attrs) -> bool:
        """Whether `compute` defines calls with these attributes: they run in a kernel, and no
        attribute is an argument.
        """
        return self.compute is not None and not self.host and not argument_references(attrs)

    def computed(self, types: Sequence[TensorType], attrs: Attrs) -> tuple[Tensor, ...]:
        """Returns the results over fresh placeholders. Asserts that the operator has a
        `compute`.
        """
        assert self.compute is not None, f"{self.name} has no compute"
        made = self.compute(*self.placeholders(types), **attrs)
        return made if isinstance(made, tuple) else (made,)

    def kind(self, types: Sequence[TensorType], attrs: Attrs) -> Kind:
        """Returns the call's fusion kind, derived from `compute` unless declared."""
        if self.kind_override is not None:
            return self.kind_override
        if not self.is_computed(attrs):
            return Kind.OPAQUE
        return self._read_off(kind_of, types, attrs)

    def view_offsets(self, types: Sequence[TensorType], attrs: Attrs) -> tuple[Dim, ...] | None:
        """Returns, for each result, the element offset at which it lies in the input's memory;
        `None` if one of them is not a view (`te.analysis.view_offset`).
        """
        return self.derived(view_offsets, types, attrs)

    def derived(
        self, analysis: Callable[[Sequence[Tensor]], T], types: Sequence[TensorType], attrs: Attrs
    ) -> T | None:
        """Returns the cached result of an analysis of a call's results; `None` if no kernel
        computes them.
        """
        return self._read_off(analysis, types, attrs) if self.is_computed(attrs) else None

    def _read_off(
        self, analysis: Callable[[Sequence[Tensor]], T], types: Sequence[TensorType], attrs: Attrs
    ) -> T:
        key = (analysis, tuple(types), attrs)
        if key not in self._known:
            found = analysis(self.computed(types, attrs))
            if len(self._known) >= _KEPT:
                self._known.clear()
            self._known[key] = found
        known: T = self._known[key]
        return known

    def moved_operands(self, types: Sequence[TensorType], attrs: Attrs) -> tuple[int, ...]:
        """Returns the positions of the operands whose elements make up the results; empty if the
        call does more than move data (`Traits.moves_data`).
        """
        moved, written = self.moved_and_written(types, attrs)
        return () if written else moved

    def moved_and_written(
        self, types: Sequence[TensorType], attrs: Attrs
    ) -> tuple[tuple[int, ...], tuple[Any, ...]]:
        """Returns the positions of the operands whose elements a call moves, and the other values
        that its results contain (those that `pad` writes); no positions if the call does more.
        """
        if self.traits.moves_data is not None:
            return (tuple(range(len(types))) if self.traits.moves_data else ()), ()
        moved = self.derived(moved_by, types, attrs)
        if moved is None:
            return (), ()
        placed = enumerate(self.placeholders(types))
        return tuple(n for n, t in placed if t.name in moved.inputs), moved.values

    def keeps_finite(self, types: Sequence[TensorType], attrs: Attrs) -> bool:
        """Whether finite operands give finite results (`Traits.keeps_finite`)."""
        if self.traits.keeps_finite is not None:
            return self.traits.keeps_finite
        if self.is_computed(attrs) and self.kind(types, attrs) <= Kind.INJECTIVE:
            return bool(self.derived(is_finite_of_finite, types, attrs))
        return False

    def checks_indices(self, types: Sequence[TensorType], attrs: Attrs) -> bool:
        """Whether a kernel of the call checks indices."""
        return bool(self.derived(checks_indices, types, attrs))

    def skips_checks(self, types: Sequence[TensorType], attrs: Attrs) -> bool:
        """Whether kernels skip a check of an index if the results have no elements."""
        return bool(self.derived(skips_checks, types, attrs))

    def selects(self, types: Sequence[TensorType], attrs: Attrs) -> bool:
        """Whether each element of the results is an element of an operand (`Traits.selects`)."""
        if self.traits.selects is not None:
            return self.traits.selects
        return bool(self.moved_operands(types, attrs))

    def well_conditioned(self, types: Sequence[TensorType], attrs: Attrs) -> bool:
        """Whether a call amplifies no rounding error of its operands
        (`Traits.well_conditioned`).
        """
        if self.traits.well_conditioned is not None:
            return self.traits.well_conditioned
        if self.is_computed(attrs) and self.kind(types, attrs) <= Kind.BROADCAST:
            return bool(self.derived(is_well_conditioned, types, attrs))
        return False
