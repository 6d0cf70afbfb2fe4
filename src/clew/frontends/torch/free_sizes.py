"""The free sizes that a user gives to an export (`dynamic_shapes`)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from torch.export import Dim, ExportedProgram
from torch.export.dynamic_shapes import _DerivedDim, _DimHint
from torch.utils import _pytree as pytree


class FreeSizes:
    """What `dynamic_shapes` says of axes: dims, hints such as `Dim.AUTO`, and fixed sizes."""

    def __init__(self, dynamic_shapes: Any) -> None:
        self._shapes = dynamic_shapes
        self._leaves = pytree.tree_leaves(dynamic_shapes)

    @property
    def names(self) -> bool:
        """Whether there may be free sizes."""
        return any(leaf is not None and not isinstance(leaf, int) for leaf in self._leaves)

    @property
    def can_be_hints(self) -> bool:
        """Whether each dim could be a hint: none is an expression of another."""
        return all(
            isinstance(leaf, (Dim, _DimHint, int, type(None))) and not isinstance(leaf, _DerivedDim)
            for leaf in self._leaves
        )

    @property
    def least(self) -> Mapping[str, int]:
        """The lower bounds of dims by name."""
        return {leaf.__name__: leaf.min for leaf in self._leaves if isinstance(leaf, Dim)}

    def hints(self) -> Any:
        """Returns `dynamic_shapes` with hints of the same range in place of dims."""
        return pytree.tree_map(_as_hint, self._shapes)


def _as_hint(leaf: Any) -> Any:
    if not isinstance(leaf, Dim):
        return leaf
    bounds = (b if isinstance(b, int) and b < sys.maxsize else None for b in (leaf.min, leaf.max))
    low, high = bounds
    return Dim.AUTO(min=low, max=high)


def debug_names(program: ExportedProgram) -> Mapping[str, str]:
    """Returns the names of a program's sizes by their sources in the arguments."""
    for node in program.graph.find_nodes(op="placeholder"):
        for size in getattr(node.meta.get("val"), "shape", ()):
            if not isinstance(size, int):
                names: Mapping[str, str] = size.node.shape_env.source_name_to_debug_name
                return names
    return {}
