"""The memory of the new values of states in a run that cannot fail, where each state may change as
soon as its old value has been read for the last time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from clew.libraries.entry import InState, Move, Place
from clew.libraries.frame import Here
from clew.libraries.interface import Interface, State
from clew.libraries.straight import Span, spans_of
from clew.libraries.whole_program import Made, WholeProgram
from clew.runtime.memory import round_up
from clew.runtime.plan import BufferKind, SegmentPlan
from clew.support.arrays import ALIGNMENT_BYTES


class _Kept(NamedTuple):
    """A new value that waits in the workspace, at an offset there, until the old one is unused."""

    span: Span
    size_bytes: int
    offset: int


class StatePlaces:
    """The places of those outputs of a segment that are only new values of states.

    An output is written to its state directly if steps before its first write read the old value
    for the last time. Otherwise it lies in the workspace until then, and outputs that are there at
    different times share memory.
    """

    def __init__(
        self, interface: Interface, whole: WholeProgram, inputs: Sequence[Place], start: int
    ) -> None:
        """`inputs` are the places of the segment's inputs; the memory begins at `start` in the
        workspace.
        """
        plan = whole.plan
        assert isinstance(plan, SegmentPlan)
        self.places: dict[int, Place] = {}
        # By number of the step after which they take place.
        self.moves: dict[int, list[Move]] = {}
        self.size_bytes = 0
        spans, kept = spans_of(plan), list[_Kept]()
        made = [place for place in whole.outputs if isinstance(place, Made)]
        for state in interface.states:
            place = whole.outputs[state.output]
            if not isinstance(place, Made):
                # It is an old value, which other states must not replace before it is copied.
                self.places, self.moves, self.size_bytes = {}, {}, 0
                return
            span = spans.get((BufferKind.OUTPUT, place.number))
            if place.offset_bytes or span is None:
                continue
            if sum(other.number == place.number for other in made) > 1:
                continue
            if plan.outputs[place.number].size_bytes != state.tensor.most_bytes:
                continue
            read = max(
                (
                    spans[key].last
                    for n, base in enumerate(inputs)
                    if _lies_in(base, state) and (key := (BufferKind.INPUT, n)) in spans
                ),
                default=-1,
            )
            if read < span.first:
                self.places[place.number] = InState(state.offset)
                continue
            span = Span(span.first, max(span.last, read))
            size_bytes = round_up(state.tensor.most_bytes, ALIGNMENT_BYTES)
            found = _Kept(span, size_bytes, _free_offset(kept, span, size_bytes))
            kept.append(found)
            self.size_bytes = max(self.size_bytes, found.offset + size_bytes)
            self.places[place.number] = source = Here(start + found.offset)
            move = Move(source, InState(state.offset), state.tensor.most_bytes)
            self.moves.setdefault(span.last, []).append(move)


def _lies_in(place: Place, state: State) -> bool:
    if not isinstance(place, InState):
        return False
    return state.offset <= place.offset_bytes < state.offset + max(1, state.tensor.most_bytes)


def _free_offset(kept: Sequence[_Kept], span: Span, size_bytes: int) -> int:
    """Returns the lowest offset whose memory is free at all steps of a span."""
    offset = 0
    for other in sorted(kept, key=lambda other: other.offset):
        apart = other.span.last < span.first or span.last < other.span.first
        if not apart and other.offset < offset + size_bytes:
            offset = max(offset, other.offset + other.size_bytes)
    return offset
