"""Lookups in tables of 256 bytes, which lie in four registers.

A permutation of two registers by bytes finds 64 elements among 128; the highest bit of each index
selects between the results for both halves of the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from clew.codegen.builder import Value, llvm_type
from clew.codegen.vectors import in_order
from clew.te.expr import INDEX, Cast, Load

if TYPE_CHECKING:
    from clew.codegen.values import Values

_ENTRIES: Final = 256
_WIDTH: Final = 64
_BYTES: Final = ("i8", "u8")


def looked_up(v: Values, load: Load) -> Value | None:
    """Returns the elements of a table of bytes at indices that are bytes; None if the load is none,
    or if the target has no such instruction.
    """
    buffer, function = load.source, v.b.module.instructions.permutation_of_bytes
    if not function or buffer.dtype not in _BYTES or buffer.shape != (_ENTRIES,):
        return None
    (index,) = load.indices
    if not isinstance(index, Cast) or index.dtype != INDEX or index.a.dtype != "u8":
        return None
    given = v.value(index.a)
    if not 1 < given.lanes <= _WIDTH:
        return None
    wide = llvm_type("u8", _WIDTH)
    places = in_order(v.b, given, given, [n if n < given.lanes else 0 for n in range(_WIDTH)])
    base = v.base(buffer)
    parts = []
    for n in range(0, _ENTRIES, _WIDTH):
        at = v.b.pointer(f"getelementptr i8, ptr {base}, i64 {n}")
        parts.append(v.b.value(f"load {wide}, ptr {at}, align 1", "u8", _WIDTH))
    low, high = (v.b.call(function, [parts[n], places, parts[n + 1]], "u8", _WIDTH) for n in (0, 2))
    upper = v.b.value(f"icmp slt {places.typed}, zeroinitializer", "bool", _WIDTH)
    found = v.b.value(f"select {upper.typed}, {high.typed}, {low.typed}", buffer.dtype, _WIDTH)
    return in_order(v.b, found, found, range(given.lanes))
