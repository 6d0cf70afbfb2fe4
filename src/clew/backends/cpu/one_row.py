"""Kernels of one row of a product whose number of rows is free.

Products of one row read each weight once. Rules have other schedules for them than for tiles of
several rows: wider tiles, which read more streams of weights at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from clew.ir.dims import Dim, SymDim, dim_min, product
from clew.loop.ir import Nest, Store, buffer_loads, walk
from clew.te.expr import Binary
from clew.te.walk import nodes


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
        if rows != product(tuple(map(SymDim.symbol, rows.symbols))) or rows.symbols != {
            *nest.sizes
        }:
            return None
        return OneRow(dict.fromkeys(rows.symbols, 1), 1 - dim_min(rows - 1, 1))


def _multiplies(nest: Nest) -> bool:
    """Whether a statement sums products of elements of two buffers."""
    return any(
        isinstance(stmt, Store)
        and stmt.combiner == "sum"
        and any(isinstance(node, Binary) and node.op == "mul" for node in nodes(stmt.value))
        and len({id(load.source) for load in buffer_loads(stmt.value)}) > 1
        for stmt in walk(nest.body)
    )
