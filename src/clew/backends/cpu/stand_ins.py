"""Sizes that occur in a function only in an expression, such as `?3` in `min(20, ?3)`.

The kernel needs only the value of the expression: for 300 boxes and for 305, it is 20.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from clew.ir.dims import SymDim, substitute
from clew.ir.expr import Call, Expr, Function
from clew.ir.types import TensorType, leaves
from clew.ir.visit import post_order
from clew.support.caches import bounded_cache
from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class StandIn:
    """An expression that is the size of a parameter's axis. Its names occur nowhere else."""

    dim: SymDim
    param: int
    axis: int

    def sizes(self, arrays: Sequence[np.ndarray[Any, Any]]) -> dict[str, int]:
        """Returns values of the names for which the expression has the size of the axis; {} if
        simple values do not.
        """
        return _chosen(self.dim, int(arrays[self.param].shape[self.axis]))


@bounded_cache(1 << 20)
def _chosen(dim: SymDim, size: int) -> dict[str, int]:
    """Returns values of the names for which `dim` equals `size`; {} if no simple values do."""
    chosen = dict.fromkeys(sorted(dim.symbols), 0)
    chosen[min(chosen)] = size
    return chosen if substitute(dim, chosen) == size else {}


def stand_ins(function: Function) -> tuple[StandIn, ...]:
    """Returns the sizes of parameters that are expressions whose names occur nowhere else."""
    found: dict[SymDim, StandIn] = {}
    for number, param in enumerate(function.params):
        for axis, dim in enumerate(getattr(param.type, "shape", ())):
            if isinstance(dim, SymDim) and str(dim) not in dim.symbols:
                found.setdefault(dim, StandIn(dim, number, axis))
    for dim in dims_of(function) if found else ():
        for other in [d for d in found if d != dim and d.symbols & dim.symbols]:
            del found[other]
    return tuple(found.values())


def sizes_of(function: Function) -> frozenset[str]:
    """Returns the names of all sizes in the types and attributes of a function."""
    return frozenset().union(*(dim.symbols for dim in dims_of(function)))


def dims_of(function: Function) -> Iterator[SymDim]:
    """Yields the sizes in the types and attributes of all nodes."""
    nodes: list[Expr] = [*function.params, *post_order(function.body)]
    for node in nodes:
        for type_ in leaves(node.type):
            if isinstance(type_, TensorType):
                yield from _among(type_.shape)
        if isinstance(node, Call):
            yield from _among(node.attrs.values())


def _among(values: Iterable[Any]) -> Iterator[SymDim]:
    for value in values:
        if isinstance(value, SymDim):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _among(value)
