"""Dimensions in files: each is written once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clew.ir.dim_records import DimRows, DimTable
from clew.ir.dims import Dim, SymDim, dim_max, dim_min

N, M = SymDim.symbol("n"), SymDim.symbol("m", least=0)


def nested(depth: int) -> Dim:
    """A dimension whose text doubles with each step."""
    dim: Dim = N
    for number in range(depth):
        dim = (dim + 1) // 2 + dim_min(dim, number) * M
    return dim


def test_dimensions_share_their_parts() -> None:
    table = DimTable()
    dims: list[Dim] = [nested(10), 7, nested(9), dim_max(nested(10), M), -N, nested(10)]
    text = json.dumps([[table.record(dim) for dim in dims], table.rows])
    records, rows = json.loads(text)
    read = DimRows(rows)
    assert [read.dim(record) for record in records] == dims
    assert records[0] == records[-1]
    assert len(rows) < 60
    assert len(text) < len(str(dims[0])) / 5


def test_rows_are_read_when_they_are_asked_for() -> None:
    table = DimTable()
    first = table.record(nested(3))
    read = DimRows([*table.rows, "damaged"])
    assert read.symbolic(first) == nested(3)
    with pytest.raises((ValueError, TypeError)):
        read.dim([len(table.rows)])


@pytest.mark.parametrize(
    "rows",
    [
        [[[1, [[0, 1]]]]],  # itself
        [[[1, [[1, 1]]]], "n"],  # a later row
        [["//", [1], 2], [[1, [[0, 1]]]]],
        ["n", [[1, [[-1, 1]]]]],
        ["n", [[1, [[True, 1]]]]],
        ["n", [[1, [["n", 1]]]]],
        ["n", [[1.5, [[0, 1]]]]],
        ["n", [[1, [[0, 65]]]]],
        ["n", [[1, [[0, 0]]]]],
        [["import", 1, 2], [[1, [[0, 1]]]]],
        [[7], [[1, [[0, 1]]]]],
        [3, [[1, [[0, 1]]]]],
    ],
)
def test_damaged_rows(rows: list[Any]) -> None:
    read = DimRows(rows)
    for record in ([len(rows) - 1], [0], [len(rows)], [-1], ["0"], [0, 0], [], "n", None):
        if record == [0] and rows[0] in ("n", ["//", [1], 2]):
            continue  # an atom, which no record names
        with pytest.raises((ValueError, TypeError)):
            read.dim(record)
    with pytest.raises(ValueError, match="not symbolic"):
        read.symbolic(3)
