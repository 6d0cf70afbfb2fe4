"""The division of work among threads, as constant data of a library.

A chunk is a function and two ranges, of pieces and of lines. Most chunks continue the previous one
along one axis. A *group* of such chunks is a few numbers and the cuts along that axis. Each call
expands the groups into the driver's table in its workspace.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from clew.codegen.driver import driver as native

Chunk = tuple[int, int, int, int, int]
"""The number of a function, then the ends of its pieces and those of its lines."""

# Numbers before the cuts: the function, the axis, the ends along the other axis, and the chunks.
_HEAD: Final = 5
EXPAND: Final = "clew_expand"


def groups_of(chunks: Sequence[Chunk]) -> list[int]:
    """Returns the groups of chunks, one after the other."""
    numbers: list[int] = []
    for function, axis, other, cuts in _grouped(chunks):
        numbers += [function, axis, *other, len(cuts) - 1, *cuts]
    return numbers


def _grouped(chunks: Sequence[Chunk]) -> Iterator[tuple[int, int, Sequence[int], list[int]]]:
    place = 0
    while place < len(chunks):
        function, *ends = chunks[place]
        found = max(
            ((axis, _length(chunks, place, axis)) for axis in (0, 1)), key=lambda pair: pair[1]
        )
        axis, length = found
        own, other = ends[2 * axis : 2 * axis + 2], ends[2 - 2 * axis : 4 - 2 * axis]
        cuts = [own[0]]
        cuts += [chunk[2 + 2 * axis] for chunk in chunks[place : place + length]]
        yield function, axis, other, cuts
        place += length


def _length(chunks: Sequence[Chunk], place: int, axis: int) -> int:
    """Returns the number of chunks from `place` on that continue each other along an axis."""
    end = place + 1
    other = slice(3 - 2 * axis, 5 - 2 * axis)
    while end < len(chunks):
        before, chunk = chunks[end - 1], chunks[end]
        fits = before[0] == chunk[0] and before[other] == chunk[other]
        if not fits or before[2 + 2 * axis] != chunk[1 + 2 * axis]:
            break
        end += 1
    return end - place


def expand_text(bits: int) -> str:
    """Returns the function `clew_expand<bits>(groups, end, functions, table)`, which writes the
    chunks of groups up to an address. Numbers have `bits` bits.
    """
    size = bits // 8
    words = {
        "function": native.CHUNK_FUNCTION,
        "begin": native.CHUNK_BEGIN,
        "end": native.CHUNK_END,
        "first": native.CHUNK_FIRST,
        "last": native.CHUNK_LAST,
    }
    wide = "bitcast i64" if bits == 64 else f"sext i{bits}"
    lines = [
        f"define internal void @{EXPAND}{bits}(ptr %groups, ptr %limit, ptr %functions, "
        "ptr %table) noinline nounwind {",
        "entry:",
        "  br label %next",
        "next:",
        "  %group = phi ptr [ %groups, %entry ], [ %following, %chunk ]",
        "  %row0 = phi ptr [ %table, %entry ], [ %row1, %chunk ]",
        "  %more = icmp ult ptr %group, %limit",
        "  br i1 %more, label %head, label %exit",
        "head:",
    ]
    for n, name in enumerate(("function", "axis", "low", "high", "count")):
        lines += [
            f"  %{name}p = getelementptr i8, ptr %group, i64 {size * n}",
            f"  %{name}n = load i{bits}, ptr %{name}p, align {size}",
            f"  %{name} = {wide} %{name}n to i64",
        ]
    lines += [
        "  %entryp = getelementptr ptr, ptr %functions, i64 %function",
        "  %address = load ptr, ptr %entryp",
        "  %by_lines = icmp ne i64 %axis, 0",
        f"  %cuts = getelementptr i8, ptr %group, i64 {size * _HEAD}",
        f"  %cut0n = load i{bits}, ptr %cuts, align {size}",
        f"  %cut0 = {wide} %cut0n to i64",
        "  br label %chunk",
        "chunk:",
        "  %n = phi i64 [ 0, %head ], [ %n1, %chunk ]",
        "  %row = phi ptr [ %row0, %head ], [ %row1, %chunk ]",
        "  %cut = phi i64 [ %cut0, %head ], [ %to, %chunk ]",
        "  %n1 = add i64 %n, 1",
        f"  %top = getelementptr i{bits}, ptr %cuts, i64 %n1",
        f"  %ton = load i{bits}, ptr %top, align {size}",
        f"  %to = {wide} %ton to i64",
        "  %vbegin = select i1 %by_lines, i64 %low, i64 %cut",
        "  %vend = select i1 %by_lines, i64 %high, i64 %to",
        "  %vfirst = select i1 %by_lines, i64 %cut, i64 %low",
        "  %vlast = select i1 %by_lines, i64 %to, i64 %high",
        "  %vfunction = ptrtoint ptr %address to i64",
    ]
    for name, offset in words.items():
        lines += [
            f"  %w{name} = getelementptr i8, ptr %row, i64 {offset}",
            f"  store i64 %v{name}, ptr %w{name}, align 8",
        ]
    lines += [
        f"  %row1 = getelementptr i8, ptr %row, i64 {native.CHUNK_BYTES}",
        f"  %following = getelementptr i{bits}, ptr %top, i64 1",
        "  %again = icmp ult i64 %n1, %count",
        "  br i1 %again, label %chunk, label %next",
        "exit:",
        "  ret void",
        "}",
    ]
    return "\n".join(lines)
