"""Lanes that lie in a few short runs of memory: loads of whole runs, ordered by shuffles.

Interleaving channels reads a run of pixels from each; a gather would load every element separately.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from clew.codegen import vectors
from clew.codegen.builder import Builder, Value, llvm_type
from clew.ir.dims import Dim
from clew.support.dataclass import dataclass

Offset: TypeAlias = "tuple[Dim, int]"
"""A lane's offset in elements: a part that only a run knows (0 if there is none), and a number."""

# More lanes that read one element make the mask of a run too costly.
_MOST_READERS: Final = 2
# A load and the shuffles of a run cost about as much as gathering this many elements.
_LEAST_LANES_OF_RUN = 4


@dataclass(frozen=True)
class Run:
    """Neighbors in memory: the offset of the first from the access's pointer, as `Offset`, and
    their number.
    """

    base: Dim
    start: int
    length: int


def runs_of(offsets: Sequence[Offset | None]) -> list[Run]:
    """Returns the runs that contain the lanes, by their offsets (None: a lane that is not read); []
    if the runs are too short to be profitable.
    """
    by_base: dict[Dim, set[int]] = {}
    for base, number in filter(None, offsets):
        by_base.setdefault(base, set()).add(number)
    runs: list[Run] = []
    for base, numbers in by_base.items():
        first = len(runs)
        for number in sorted(numbers):
            if len(runs) > first and number == runs[-1].start + runs[-1].length:
                runs[-1] = Run(base, runs[-1].start, runs[-1].length + 1)
            else:
                runs.append(Run(base, number, 1))
    wanted = sum(map(len, by_base.values()))
    return runs if wanted >= _LEAST_LANES_OF_RUN * len(runs) else []


def read_runs(
    b: Builder,
    stored: str,
    pointers: Sequence[str],
    size: int,
    offsets: Sequence[Offset | None],
    runs: list[Run],
    masks: Sequence[Value | None],
) -> Value:
    """Returns the lanes, with zeros where none is read. Each run has a pointer to its base and a
    mask (None: it is read completely). `size` is an element's size in bytes.
    """
    width = 1 << max(r.length - 1 for r in runs).bit_length()
    element = llvm_type(stored)
    parts: list[Value | None] = []
    for run, pointer, mask in zip(runs, pointers, masks, strict=True):
        at = b.pointer(f"getelementptr {element}, ptr {pointer}, i64 {run.start}")
        part = vectors.load_vector(b, stored, at, size, run.length, mask)
        parts.append(_widened(b, part, width))
    while len(parts) > 1:
        parts += [None] * (len(parts) % 2)
        parts = [_joined(b, *parts[n : n + 2]) for n in range(0, len(parts), 2)]
    whole = parts[0]
    assert whole is not None
    at_run = {
        (r.base, r.start + n): p * width + n for p, r in enumerate(runs) for n in range(r.length)
    }
    zeros = Value("zeroinitializer", stored, whole.lanes)
    order = [whole.lanes if o is None else at_run[o] for o in offsets]
    return _shuffled(b, whole, zeros if None in offsets else None, order)


def masks_of_runs(
    b: Builder, mask: Value, offsets: Sequence[Offset | None], runs: list[Run]
) -> list[Value | None]:
    """Returns a mask for each run: the elements that active lanes read. [] if many lanes read one
    element, or if a run is a single element.
    """
    readers: dict[Offset, list[int]] = {}
    for lane, offset in enumerate(offsets):
        if offset is not None:
            readers.setdefault(offset, []).append(lane)
    most = max(map(len, readers.values()))
    if most > _MOST_READERS or any(run.length == 1 for run in runs):
        return []
    found: list[Value | None] = []
    for run in runs:
        lanes = [readers[run.base, run.start + n] for n in range(run.length)]
        turns = range(max(map(len, lanes)))
        orders = [[own[turn] if turn < len(own) else mask.lanes for own in lanes] for turn in turns]
        found.append(vectors.masks_in_order(b, mask, orders))
    return found


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
