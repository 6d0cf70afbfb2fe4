"""Kernels of one row of a product whose number of rows is free.

Products of one row read each weight once. Rules have other schedules for them than for tiles of
several rows: wider tiles, which read more streams of weights at once.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Final

from clew.ir.dims import Dim, SymDim, dim_max, dim_min, product, value_at
from clew.loop.ir import Nest, Store, buffer_loads, walk
from clew.support.dataclass import dataclass
from clew.support.errors import GraphTypeError
from clew.te.expr import Binary
from clew.te.walk import nodes

_LARGEST: Final = 1 << 20


@dataclass(frozen=True)
class OneRow:
    """The sizes at which a nest computes one row, and a dimension that is 1 there, else 0."""

    sizes: dict[str, int]
    where: Dim

    @staticmethod
    def of(nest: Nest) -> OneRow | None:
        """Returns where a nest computes one row; None if it has no sum of products whose rows are
        the only free size.
        """
        if len(nest.outputs) != 1 or not nest.outputs[0].shape or not _multiplies(nest):
            return None
        *leading, columns = nest.outputs[0].shape
        rows = product(tuple(leading))
        if not isinstance(rows, SymDim) or not isinstance(columns, int):
            return None
        free = [dim for dim in leading if isinstance(dim, SymDim)]
        sizes = _where_all_are_1(free)
        if sizes is None or sizes.keys() != {*nest.sizes}:
            return None
        if all(dim == SymDim.symbol(name) for dim in free for name in dim.symbols):
            return OneRow(sizes, 1 - dim_min(rows - 1, 1))  # there is at least one row
        if any(not _follows(dim, [*free, rows]) for dim in nest.dims):
            return None
        return OneRow(sizes, dim_max(dim_min(rows, 2 - rows), 0))


def _where_all_are_1(dims: Sequence[SymDim]) -> dict[str, int] | None:
    """Returns the least sizes at which all dimensions are 1; None if they are not found: each is
    expected to have its own size, and to grow with it.
    """
    found: dict[str, int] = {}
    for dim in dims:
        if len(dim.symbols) != 1 or dim.symbols <= found.keys():
            return None
        (name,) = dim.symbols
        at = bisect.bisect_left(range(_LARGEST), 1, 1, key=lambda n: _value(dim, name, n))
        if at == _LARGEST or _value(dim, name, at) != 1:
            return None
        found[name] = at
    return found


def _value(dim: SymDim, name: str, size: int) -> int:
    try:
        return value_at(dim, {name: size})
    except GraphTypeError:  # a division by 0
        return 0


def _follows(dim: SymDim, rows: Sequence[SymDim]) -> bool:
    """Whether a dimension has one value wherever all of `rows` are 1."""
    for known in rows:
        monomial, coefficient = next(term for term in known.terms if term[0])
        times = dict(dim.terms).get(monomial, 0) // coefficient
        if isinstance(dim - known * times, int):
            return True
    return False


def _multiplies(nest: Nest) -> bool:
    """Whether a statement sums products of elements of two buffers."""
    return any(
        isinstance(stmt, Store)
        and stmt.combiner == "sum"
        and any(isinstance(node, Binary) and node.op == "mul" for node in nodes(stmt.value))
        and len({id(load.source) for load in buffer_loads(stmt.value)}) > 1
        for stmt in walk(nest.body)
    )
