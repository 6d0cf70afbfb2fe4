"""The calls of a segment's kernels as straight-line code.

A run on one thread with known sizes, without control flow and checks, needs no tables: the library
calls each kernel in turn, with a list of arguments on the stack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from clew.libraries.frame import WEIGHTS, Here, Numbers, Symbol
from clew.runtime.memory import round_up
from clew.runtime.plan import BufferKind, BufferRef, SegmentPlan
from clew.support.arrays import ALIGNMENT_BYTES


class Based(NamedTuple):
    """An address: an offset in an input or output of the segment, by its number among both."""

    number: int
    offset: int = 0


class StraightCall(NamedTuple):
    """One call of a kernel: its function, the words of its arguments, its scratch memory and its
    ranges of the grid and of the lines. `step` is the number of the step.
    """

    step: int
    symbol: str
    args: Sequence[int | Here | Symbol | Based]
    scratch: Here
    ranges: Sequence[int]


def is_straight(plan: object, bound: Numbers, threads: int) -> bool:
    """Whether a run needs no tables."""
    return (
        threads == 1
        and isinstance(plan, SegmentPlan)
        and not (bound.loops or bound.flows or bound.is_sized or bound.layout.n_records)
        and not bound.layout.sized
        and all(isinstance(value, int) for value in bound.size_values)
    )


def straight_calls(
    plan: SegmentPlan, bound: Numbers, weights: Sequence[int], outside: int | None
) -> Iterator[StraightCall]:
    """Yields the calls of a run in order. The workspace begins with the arena and the scratch
    memory. `weights` are the offsets of the constants in the library's weights, or in the base with
    the number `outside`.
    """
    layout = bound.layout
    scratch = Here(round_up(bound.arena_bytes, ALIGNMENT_BYTES))
    sizes = iter(bound.size_values)

    def word(ref: BufferRef) -> Here | Symbol | Based:
        offset = ref.offset_bytes
        if ref.kind is BufferKind.CONSTANT:
            at = weights[ref.index] + offset
            return Symbol(WEIGHTS, at) if outside is None else Based(outside, at)
        if ref.kind is BufferKind.ARENA:
            return Here(bound.arena[ref.index] + offset)
        assert ref.kind in (BufferKind.INPUT, BufferKind.OUTPUT)
        return Based(ref.index + layout.n_inputs * (ref.kind is BufferKind.OUTPUT), offset)

    args: list[list[int | Here | Symbol | Based]] = []
    for step in plan.steps:
        code = step.code
        own = [next(sizes) for _ in range(len(code.sizes) + len(code.size_values))]
        args.append([*map(word, step.args), *own])  # type: ignore[list-item]
    chunks = iter(bound.chunks)
    for number, count in zip(layout.step_of.tolist(), bound.counts.tolist(), strict=True):
        for _ in range(count):
            function, *ranges = next(chunks)
            begin, end, first, last = ranges
            if begin < end and first < last:  # type: ignore[operator]
                symbol = layout.symbols[function]
                yield StraightCall(number, symbol, args[number], scratch, ranges)  # type: ignore[arg-type]


class Text(NamedTuple):
    """How instructions are written: `do` adds one, `value` adds one and returns its result, and
    `address` returns the address of a place.
    """

    do: Callable[[str], None]
    value: Callable[[str], str]
    address: Callable[[Here | Symbol | Based], str]


def most_words(parts: Sequence[object]) -> int:
    """Returns the number of words that lists of arguments need."""
    return max((len(part.args) for part in parts if isinstance(part, StraightCall)), default=0)


def write_call(text: Text, call: StraightCall, written: dict[int, object]) -> None:
    """Writes a call. The list of arguments is at `%args`, which has room for those of any call.
    `written` has the words that are there, by slot: these are not written again.
    """
    for slot, word in enumerate(call.args):
        known = written.get(slot)
        if known == word and type(known) is type(word):
            continue
        at = text.value(f"getelementptr i64, ptr %args, i64 {slot}") if slot else "%args"
        value = f"i64 {word}" if isinstance(word, int) else f"ptr {text.address(word)}"
        text.do(f"store {value}, ptr {at}, align 8")
        written[slot] = word
    ranges = ", ".join(f"i64 {n}" for n in call.ranges)
    scratch = text.address(call.scratch)
    text.do(f"call void @{call.symbol}(ptr %args, ptr {scratch}, {ranges})")


class Span(NamedTuple):
    """The steps from the first to the last that uses memory."""

    first: int
    last: int


def spans_of(plan: SegmentPlan) -> Mapping[tuple[BufferKind, int], Span]:
    """Returns when a run uses its inputs and outputs."""
    found: dict[tuple[BufferKind, int], Span] = {}
    for number, step in enumerate(plan.steps):
        for ref in step.args:
            key = ref.kind, ref.index
            found[key] = Span(found[key].first if key in found else number, number)
    return found
