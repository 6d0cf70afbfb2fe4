"""Lookups in tables of 256 bytes, held in four registers.

A byte permutation of two registers finds 64 elements among 128. The highest bit of each index
selects between the results for the two halves of the table.
"""

from __future__ import annotations

from typing import Final

from clew.codegen.builder import Builder, Value, llvm_type
from clew.codegen.vectors import in_order
from clew.te.expr import INDEX, Cast, Load, Scalar

_ENTRIES: Final = 256
_WIDTH: Final = 64
_BYTES: Final = ("i8", "u8")


def byte_index(load: Load) -> Scalar | None:
    """Returns the `u8` that is the index of a load from a table of bytes; None for other loads."""
    if load.source.dtype not in _BYTES or load.source.shape != (_ENTRIES,):
        return None
    (index,) = load.indices
    found = isinstance(index, Cast) and index.dtype == INDEX and index.a.dtype == "u8"
    return index.a if found else None  # type: ignore[attr-defined]


def looked_up(b: Builder, dtype: str, table: str, index: Value) -> Value | None:
    """Returns the elements of a table in memory at the indices in 2 to 64 lanes; None for other
    numbers of lanes, or if the target has no byte permutation.
    """
    function = b.module.instructions.permutation_of_bytes
    if not function or not 1 < index.lanes <= _WIDTH:
        return None
    wide = llvm_type("u8", _WIDTH)
    places = in_order(b, index, index, [n if n < index.lanes else 0 for n in range(_WIDTH)])
    parts = []
    for n in range(0, _ENTRIES, _WIDTH):
        at = b.pointer(f"getelementptr i8, ptr {table}, i64 {n}")
        parts.append(b.value(f"load {wide}, ptr {at}, align 1", "u8", _WIDTH))
    low, high = (b.call(function, [parts[n], places, parts[n + 1]], "u8", _WIDTH) for n in (0, 2))
    upper = b.value(f"icmp slt {places.typed}, zeroinitializer", "bool", _WIDTH)
    found = b.value(f"select {upper.typed}, {high.typed}, {low.typed}", dtype, _WIDTH)
    return in_order(b, found, found, range(index.lanes))
