"""Variants of a model: the sizes that are 0 in a call, and ranks that the model does not declare.

A build for all sizes serves inputs of known ranks, and sizes of at least 1, or of at least 0 for
the names in `ProgramTemplate.from_zero`. In a *variant*, certain sizes are fixed at 0, the axes of
inputs that may have any rank have names, and the elements of lists have a rank. A variant is a
model with a build for all its remaining sizes. If the graph depends on which sizes are 1, as that
of a `Squeeze` without axes does, these are fixed as well, and all others are more than 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clew.runtime.input_spec import InputSpec, shape_sizes
from clew.runtime.kinds import common_rank
from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class Variant:
    """The names of sizes that are 0, in order, and the ranks of the inputs that may have any rank,
    or whose elements may, by name. `ones` names the sizes that are 1, if no others are; None if
    that does not matter. `held` are the inputs that a session holds, each with the output that
    feeds it: those that grow lie in buffers (`HeldForm`). `branch` is the branch of a merged
    decoder that this variant runs, as the input that selects it and the value of that input; None
    for other models.
    """

    empty: tuple[str, ...] = ()
    ranks: tuple[tuple[str, int], ...] = ()
    ones: tuple[str, ...] | None = None
    held: tuple[tuple[str, str], ...] = ()
    branch: tuple[str, bool] | None = None

    def __str__(self) -> str:
        parts = [f"{name} = 0" for name in self.empty]
        parts += [f"{name} of rank {rank}" for name, rank in self.ranks]
        if self.ones is not None:
            parts += [f"{name} = 1" for name in self.ones]
            parts.append("other sizes of at least 2" if self.ones else "sizes of at least 2")
        if self.held:
            parts.append("growing states in buffers")
        if self.branch is not None:
            parts.append(f"{self.branch[0]} = {str(self.branch[1]).lower()}")
        return ", ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Returns the variant as JSON values."""
        found: dict[str, Any] = {"empty": self.empty, "ranks": self.ranks}
        found |= {} if self.ones is None else {"ones": self.ones}
        found |= {"held": self.held} if self.held else {}
        return found if self.branch is None else {**found, "branch": self.branch}

    @staticmethod
    def from_json(record: Any) -> Variant:
        """Returns the variant of JSON values from `to_json`."""
        ranks = tuple((str(name), int(rank)) for name, rank in record["ranks"])
        ones = tuple(map(str, record["ones"])) if "ones" in record else None
        held = tuple((str(given), str(fed)) for given, fed in record.get("held", ()))
        branch = None
        if "branch" in record:
            name, value = record["branch"]
            branch = str(name), bool(value)
        return Variant(tuple(map(str, record["empty"])), ranks, ones, held, branch)

    @staticmethod
    def by_ones(inputs: Sequence[InputSpec], arrays: Sequence[Any]) -> Variant | None:
        """Returns the variant for checked inputs by the sizes that are 1; None if some are 0.

        Errors: I042 if a size has two values.
        """
        sizes = shape_sizes(inputs, arrays)
        if not all(sizes.values()):
            return None
        return Variant(ones=tuple(sorted(name for name, size in sizes.items() if size == 1)))

    @staticmethod
    def of(inputs: Sequence[InputSpec], arrays: Sequence[Any]) -> Variant | None:
        """Returns the variant for checked inputs; None if the model itself serves them.

        Errors: I042 if a size has two values.
        """
        found = (
            (spec.name, common_rank(array))
            for spec, array in zip(inputs, arrays, strict=True)
            if spec.takes_any_shape or spec.by_rank
        )
        ranks = tuple((name, rank) for name, rank in found if rank is not None)
        if not ranks and not is_empty(arrays):
            return None
        sizes = shape_sizes(inputs, arrays)
        empty = tuple(sorted(name for name, size in sizes.items() if size == 0))
        return Variant(empty, ranks) if empty or ranks else None


def is_empty(arrays: Sequence[Any]) -> bool:
    """Whether an array has no elements."""
    return 0 in [getattr(array, "size", 1) for array in arrays]
