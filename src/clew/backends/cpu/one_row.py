"""Kernels of one row of a product whose number of rows is free.

Products of one row read each weight once. Rules have other schedules for them than for tiles of
several rows: wider tiles, which read more streams of weights at once.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Final

from clew.ir.dims import Dim, SymDim, dim_max, dim_min, product, value_at
from clew.loop.ir import Nest
from clew.loop.schedule import Schedule
from clew.schedules.stages import axes_of_rows, stage_infos
from clew.support.dataclass import dataclass
from clew.support.errors import GraphTypeError

_LARGEST: Final = 1 << 20


@dataclass(frozen=True)
class OneRow:
    """The sizes at which a nest computes one row, and a dimension that is 1 there, else 0."""

    sizes: dict[str, int]
    where: Dim

    @staticmethod
    def of(nest: Nest) -> OneRow | None:
        """Returns where a nest computes one row of each matrix; None if it has no sum of products
        of a free number of rows.
        """
        rows = _rows_of(nest)
        count = product(rows)
        if len(nest.outputs) != 1 or not isinstance(count, SymDim):
            return None
        free = [dim for dim in rows if isinstance(dim, SymDim)]
        sizes = _where_all_are_1(free)
        if sizes is None:
            return None
        if all(dim == SymDim.symbol(name) for dim in free for name in dim.symbols):
            return OneRow(sizes, 1 - dim_min(count - 1, 1))  # there is at least one row
        if sizes.keys() != {*nest.sizes} or any(
            not _follows(dim, [*free, count]) for dim in nest.dims
        ):
            return None
        return OneRow(sizes, dim_max(dim_min(count, 2 - count), 0))


def _rows_of(nest: Nest) -> tuple[Dim, ...]:
    """Returns the sizes of the axes of rows that share a matrix, in the products of a nest; () if
    it has no sum of products over one axis, or several with different rows. Sums over several axes,
    such as those of blocks of codes, are parts of these.
    """
    anchors = [info for info in stage_infos(Schedule(nest)).values() if info.is_anchor]
    parts = [info.store.buffer for info in anchors if len(info.reduction_axes) > 1]
    found = dict.fromkeys(
        tuple(n.size for n in axes_of_rows(info, parts))
        for info in anchors
        if info.axes and len(info.reduction_axes) == 1
    )
    return next(iter(found)) if len(found) == 1 else ()


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
