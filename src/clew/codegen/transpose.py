"""Loads with strided lanes whose neighbors are the next iterations of an unrolled loop: pieces of
rows are loaded and transposed in registers. A gather would access a cache line per lane of every
vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from clew.codegen.address import element_bytes, memory_type, stored_dtype
from clew.codegen.builder import Builder, Value
from clew.codegen.lanes import literal
from clew.loop.affine import Linear, contains
from clew.loop.ir import Buffer
from clew.te.expr import Index, Load

ROWS_OF_POINTER: Final = 4
"""Rows at free distances that are addressed from one pointer."""
# Shuffles within this many bytes are fast on every machine.
_PIECE_BYTES: Final = 16


def columns_at_once(dtype: str, lanes: int) -> int:
    """Returns the number of vectors that are transposed together: the elements of a piece of a
    row.
    """
    return min(_PIECE_BYTES // element_bytes(dtype), lanes)


def unrolled_beside(
    load: Load, form: Linear, numbers: dict[int, int], inside: bool
) -> tuple[int, int] | None:
    """Returns the number and the extent of the unrolled loop whose next iterations read adjacent
    elements; None if there is none, or if a load would exceed the buffer.

    `numbers` are the current numbers of unrolled loops, by the id of their variables; `inside`:
    whether the offset is within the buffer over all loops.
    """
    if not inside or load.source.scope == "register":
        return None
    for atom, coefficient in form.terms:
        if not isinstance(atom, Index) or id(atom) not in numbers or coefficient != 1:
            continue
        if not isinstance(atom.extent, int):
            continue  # a loop of a free size that runs at most once
        if any(contains(other, atom) for other, _ in form.terms if other is not atom):
            continue
        return numbers[id(atom)], atom.extent
    return None


def rows_from(
    b: Builder, buffer: Buffer, pointer: str, offset: int, steps: Sequence[Value], lanes: int
) -> list[tuple[str, int]]:
    """Returns the rows of lanes that a free distance separates, each as a pointer and an offset in
    elements. `steps` are multiples of the distance: once to `ROWS_OF_POINTER` times.

    Rows share a few pointers, to which x86 adds a small multiple of a register and a literal offset
    for free; with a pointer each, they would not fit the registers.
    """
    element = memory_type(buffer.dtype)
    rows: list[tuple[str, int]] = []
    for lane in range(lanes):
        turn = lane % ROWS_OF_POINTER
        if lane and not turn:
            pointer = b.pointer(f"getelementptr {element}, ptr {pointer}, {steps[-1].typed}")
        at = pointer
        if turn:
            at = b.pointer(f"getelementptr {element}, ptr {pointer}, {steps[turn - 1].typed}")
        rows.append((at, offset))
    return rows


def turned(
    b: Builder,
    buffer: Buffer,
    places: Sequence[tuple[str, int]],
    columns: int,
    active: Sequence[bool],
) -> list[Value]:
    """Returns `columns` vectors: lane n of the m-th is element m of the row at the n-th place, or
    zero in inactive lanes.
    """
    dtype, lanes = stored_dtype(buffer.dtype), len(places)
    width = columns_at_once(buffer.dtype, lanes)
    assert columns <= width
    rows = [
        _piece(b, buffer, *place, width, columns) if wanted else literal(0, dtype, width)
        for place, wanted in zip(places, active, strict=True)
    ]
    # Vector n holds rows n, n + width, ...; it remains to transpose adjacent squares.
    vectors = [_joined(b, rows[n::width]) for n in range(width)]
    half = width // 2
    for _ in range(width.bit_length() - 1):
        vectors = [
            _interleaved(b, vectors[n // 2], vectors[n // 2 + half], width, start=n % 2 * half)
            for n in range(width)
        ]
    return vectors[:columns]


def _piece(
    b: Builder, buffer: Buffer, pointer: str, offset: int, width: int, columns: int
) -> Value:
    """Returns the piece of a row, with zeros beyond its columns."""
    dtype, size = stored_dtype(buffer.dtype), element_bytes(buffer.dtype)
    value = literal(0, dtype, width)
    if columns == width:
        at = b.pointer(f"getelementptr i8, ptr {pointer}, i64 {offset * size}")
        return b.value(f"load {value.type}, ptr {at}, align {size}", dtype, width)
    element = literal(0, dtype).type
    for n in range(columns):
        at = b.pointer(f"getelementptr i8, ptr {pointer}, i64 {(offset + n) * size}")
        one = b.value(f"load {element}, ptr {at}, align {size}", dtype)
        value = b.value(f"insertelement {value.typed}, {one.typed}, i64 {n}", dtype, width)
    return value


def _joined(b: Builder, pieces: list[Value]) -> Value:
    """Returns the concatenation of vectors."""
    while len(pieces) > 1:
        pieces = [
            _shuffled(b, x, y, range(2 * x.lanes))
            for x, y in zip(pieces[::2], pieces[1::2], strict=True)
        ]
    return pieces[0]


def _interleaved(b: Builder, x: Value, y: Value, width: int, start: int) -> Value:
    """Returns half of each piece of `x` and `y`, from `start` on, their elements in turn."""
    order = [
        piece + start + n + side * x.lanes
        for piece in range(0, x.lanes, width)
        for n in range(width // 2)
        for side in (0, 1)
    ]
    return _shuffled(b, x, y, order)


def _shuffled(b: Builder, x: Value, y: Value, order: Sequence[int]) -> Value:
    places = ", ".join(f"i32 {n}" for n in order)
    lanes = len(order)
    text = f"shufflevector {x.typed}, {y.typed}, <{lanes} x i32> <{places}>"
    return b.value(text, x.dtype, lanes)
