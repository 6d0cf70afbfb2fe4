"""Lanes that lie in a few short runs of memory: loads of whole runs, ordered by shuffles.

Interleaving channels reads a run of pixels from each; a gather would load every element separately.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clew.codegen.builder import Builder, Value, llvm_type

# A load and the shuffles of a run cost about as much as gathering this many elements.
_LEAST_LANES_OF_RUN = 4


@dataclass(frozen=True)
class Run:
    """Neighbors in memory: the offset of the first from the access's pointer, and their number."""

    start: int
    length: int


def runs_of(offsets: Sequence[int | None]) -> list[Run]:
    """Returns the runs that contain the lanes, by their offsets (None: a lane that is not read); []
    if the runs are too short to be profitable.
    """
    wanted = sorted({o for o in offsets if o is not None})
    runs: list[Run] = []
    for offset in wanted:
        if runs and offset == runs[-1].start + runs[-1].length:
            runs[-1] = Run(runs[-1].start, runs[-1].length + 1)
        else:
            runs.append(Run(offset, 1))
    return runs if len(wanted) >= _LEAST_LANES_OF_RUN * len(runs) else []


def read_runs(
    b: Builder, stored: str, pointer: str, size: int, offsets: Sequence[int | None], runs: list[Run]
) -> Value:
    """Returns the lanes, with zeros where none is read. `size` is an element's size in bytes."""
    width = 1 << max(r.length - 1 for r in runs).bit_length()
    element = llvm_type(stored)
    parts: list[Value | None] = []
    for run in runs:
        at = b.pointer(f"getelementptr {element}, ptr {pointer}, i64 {run.start}")
        text = f"load {llvm_type(stored, run.length)}, ptr {at}, align {size}"
        part = b.value(text, stored, run.length)
        parts.append(_widened(b, part, width))
    while len(parts) > 1:
        parts += [None] * (len(parts) % 2)
        parts = [_joined(b, *parts[n : n + 2]) for n in range(0, len(parts), 2)]
    whole = parts[0]
    assert whole is not None
    at_run = {r.start + n: p * width + n for p, r in enumerate(runs) for n in range(r.length)}
    zeros = Value("zeroinitializer", stored, whole.lanes)
    order = [whole.lanes if o is None else at_run[o] for o in offsets]
    return _shuffled(b, whole, zeros if None in offsets else None, order)


def _widened(b: Builder, part: Value, width: int) -> Value:
    if part.lanes == width:
        return part
    if part.lanes > 1:
        return _shuffled(b, part, None, range(width))
    vector = llvm_type(part.dtype, width)
    return b.value(f"insertelement {vector} poison, {part.typed}, i64 0", part.dtype, width)


def _joined(b: Builder, first: Value | None, second: Value | None) -> Value | None:
    assert first is not None
    return _shuffled(b, first, second, range(2 * first.lanes))


def _shuffled(b: Builder, first: Value, second: Value | None, order: Sequence[int]) -> Value:
    """Returns elements of two vectors by position in their concatenation; arbitrary ones for
    None.
    """
    known = first.lanes * (1 if second is None else 2)
    places = ", ".join(f"i32 {n}" if n < known else "i32 poison" for n in order)
    other = "poison" if second is None else second.text
    text = f"shufflevector {first.typed}, {first.type} {other}, <{len(order)} x i32> <{places}>"
    return b.value(text, first.dtype, len(order))
