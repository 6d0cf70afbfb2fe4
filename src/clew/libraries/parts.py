"""The layout of the workspace of a call, for one target of a library."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from clew.codegen.artifact import EntryPoint
from clew.codegen.driver import driver as native
from clew.ir.dims import Dim, SymDim, at_least, dim_min
from clew.libraries.entry import Argument, InState, Move, Place, Run, SizeWords
from clew.libraries.frame import WEIGHTS, Here, Numbers, Sized, Symbol, Tables, tables_of
from clew.libraries.interface import Interface, Tensor
from clew.libraries.sizing import Sizing
from clew.libraries.state_places import StatePlaces
from clew.libraries.straight import StraightCall, is_straight, straight_calls
from clew.libraries.weights import Weights
from clew.libraries.whole_program import Given, Kept, Made, WholeProgram
from clew.machine.costs import DEFAULTS, FS_PER_NS
from clew.runtime.bound import Bound
from clew.runtime.grid import lines_of, phases
from clew.runtime.layout import Layout
from clew.runtime.memory import round_up
from clew.runtime.plan import BufferSpec, Flow, SegmentPlan
from clew.runtime.segment_template import SegmentTemplate, SizedSpec
from clew.support.arrays import ALIGNMENT_BYTES, number_dtype
from clew.support.budgets import current

_POOL_BYTES = round_up(native.POOL_LOCKED + 8, ALIGNMENT_BYTES)


class Parts:
    """The layout of a library's workspace, for one target."""

    def __init__(
        self,
        whole: WholeProgram,
        interface: Interface,
        sizing: Sizing,
        threads: int,
        weights: Weights,
        outside: bool = False,
    ) -> None:
        """With `outside`, the weights are an input."""
        self._outside, self._weights = outside, weights
        self._whole, self._interface, self._sizing = whole, interface, sizing
        self.own_weights: set[int] = set()
        self._inputs: list[Argument | InState] = [
            Argument(False, number) for number in range(len(interface.inputs))
        ]
        for state in sorted(interface.states, key=lambda state: state.input):
            self._inputs.insert(state.input, InState(state.offset))
        plan = whole.plan
        self.threads = threads
        if isinstance(plan, SegmentPlan):
            self._bound = Numbers.of(Bound.of(plan, threads))
        else:
            self._bound = _sized_numbers(plan, sizing, threads, is_counted=bool(whole.counted))
        self._constants = [self._add(array) for array in whole.plan.constants]
        self._end = round_up(self._bound.working_bytes(self.threads), ALIGNMENT_BYTES)
        self.workspace_bytes = self._end

    def _add(self, array: np.ndarray[Any, Any]) -> int:
        """Returns the offset of a constant in the weights."""
        place = self._weights.add(array)
        self.own_weights.add(place)
        return place

    def _reserve(self, size_bytes: int) -> int:
        """Reserves memory in the workspace, and returns its offset."""
        place = self._end
        self._end += round_up(size_bytes, ALIGNMENT_BYTES)
        return place

    def run(self) -> Run:
        """Returns the run."""
        plan, outputs = self._whole.plan, self._interface.outputs
        results = self._results()
        straight = is_straight(plan, self._bound, self.threads)
        direct: dict[int, int] = {}
        for number, place in enumerate(results):
            if (
                isinstance(place, Made)
                and not place.offset_bytes
                and place.number not in direct
                and self._fills(plan.outputs[place.number], outputs[number])
            ):
                direct[place.number] = number
        bases: list[Place] = [self._given(p) for p in self._whole.inputs]
        states = None
        if straight and not any(isinstance(place, Given) for place in results):
            states = StatePlaces(self._interface, self._whole, bases, self._end)
            self._reserve(states.size_bytes)
        early = {} if states is None else states.places
        specs: Sequence[BufferSpec | SizedSpec] = plan.outputs
        for number, spec in enumerate(specs):
            if number in early:
                bases.append(early[number])
            elif number in direct:
                bases.append(Argument(True, direct[number]))
            else:
                most = self._sizing.most(_bytes(spec), "a result")
                bases.append(Here(self._reserve(most)))
        moves = [
            Move(
                self._made(place, bases[len(plan.inputs) :]),
                Argument(True, number),
                outputs[number].size_bytes,
            )
            for number, place in enumerate(results)
            if not (isinstance(place, Made) and direct.get(place.number) == number)
        ]
        moves += self._state_moves(bases[len(plan.inputs) :], early)
        if straight:
            return self._straight_run(bases, moves, {} if states is None else states.moves)
        pool = self._reserve(_POOL_BYTES)
        n_chunks = 0 if self._bound.is_sized else len(self._bound.chunks)
        chunks = Here(self._reserve(native.CHUNK_BYTES * n_chunks))
        steps = current().loop_steps
        tables = tables_of(self._bound, chunks, self._constants, self._end, steps, self._outside)
        if self._outside:
            bases.append(Argument(False, len(self._interface.inputs)))
        for number, move in enumerate(moves):
            if isinstance(move.size_bytes, SymDim):
                word = tables.frame.add([Sized(0, move.size_bytes)])
                moves[number] = move._replace(size_bytes=word)
        shapes = [
            [_word(tables, dim) for dim in outputs[number].shape]
            for number, _ in self._interface.shape_fields
        ]
        words = None
        if self._interface.sizes or self._whole.counted is not None:
            words = SizeWords(*self._sizing.add_to(tables, self._bound.layout))
        self.workspace_bytes = round_up(self._end + tables.frame.size_bytes, ALIGNMENT_BYTES)
        layers = [step.checked for step in plan.steps if step.code.checks]
        return Run(tables, bases, moves, layers, len(self._bound.loops), pool, words, shapes)

    def _straight_run(
        self, bases: list[Place], moves: Sequence[Move], after: Mapping[int, Sequence[Move]]
    ) -> Run:
        """Returns the run of a plan without tables. Other moves follow the steps of `after`."""
        plan = self._whole.plan
        assert isinstance(plan, SegmentPlan)
        outside = len(bases) if self._outside else None
        if self._outside:
            bases.append(Argument(False, len(self._interface.inputs)))
        calls = straight_calls(plan, self._bound, self._constants, outside)
        parts: list[StraightCall | Move] = []
        for step, own in itertools.groupby(calls, key=lambda call: call.step):
            parts += own
            parts += after.get(step, ())
        self.workspace_bytes = self._end
        return Run(None, bases, moves, (), 0, straight=parts)

    def _fills(self, spec: BufferSpec | SizedSpec, output: Tensor) -> bool:
        """Whether an output of the segment may be written directly to the caller's memory."""
        size_bytes = _bytes(spec)
        if self._whole.counted is None:
            return size_bytes == output.size_bytes
        return self._sizing.most(size_bytes, "a result") == output.most_bytes

    def _results(self) -> list[Given | Kept | Made]:
        """Returns the places of the outputs that are not states."""
        feed = {state.output for state in self._interface.states}
        return [place for n, place in enumerate(self._whole.outputs) if n not in feed]

    def _state_moves(self, outputs: Sequence[Place], early: Collection[int]) -> list[Move]:
        """Returns the copies that make new values the states after a run, except for the segment's
        outputs that become states earlier. Values that lie in states are copied before any state
        changes.
        """
        first: list[Move] = []
        last: list[Move] = []
        for state in self._interface.states:
            size_bytes, target = state.tensor.most_bytes, InState(state.offset)
            made = self._whole.outputs[state.output]
            if isinstance(made, Made) and made.number in early:
                continue
            place = self._made(made, outputs)
            if place == target:
                continue
            if isinstance(place, InState):
                kept = Here(self._reserve(size_bytes))
                first.append(Move(place, kept, size_bytes))
                place = kept
            last.append(Move(place, target, size_bytes))
        return first + last

    def _given(self, place: Given | Kept) -> Place:
        if isinstance(place, Given):
            found = self._inputs[place.number]
            if isinstance(found, InState):
                return InState(found.offset_bytes + place.offset_bytes)
            return Argument(False, found.number, place.offset_bytes)
        at = self._add(place.array) + place.offset_bytes
        return (
            Argument(False, len(self._interface.inputs), at)
            if self._outside
            else Symbol(WEIGHTS, at)
        )

    def _made(self, place: Given | Kept | Made, outputs: Sequence[Place]) -> Place:
        if not isinstance(place, Made):
            return self._given(place)
        found = outputs[place.number]
        if isinstance(found, Argument):
            return Argument(True, found.number, place.offset_bytes)
        assert isinstance(found, Here)
        return Here(found.offset + place.offset_bytes)


def _bytes(spec: BufferSpec | SizedSpec) -> Dim:
    total: Dim = number_dtype(spec.dtype).itemsize
    for size in spec.shape:
        total = total * size
    return total


def _word(tables: Tables, dim: Dim) -> Dim | Here:
    """Returns a number, or the word that a call writes a dimension to."""
    return tables.frame.add([Sized(0, dim)]) if isinstance(dim, SymDim) else dim


def _sized_numbers(
    template: SegmentTemplate, sizing: Sizing, threads: int, *, is_counted: bool
) -> Numbers:
    """Returns the numbers of a segment whose sizes are known only in a call. The arena is that of
    the largest sizes.
    """
    layout = Layout(template.entries, len(template.inputs))
    number = {symbol: n for n, symbol in enumerate(layout.symbols)}
    phased = [phase for step in template.steps for phase in phases(step.code.entries)]
    most = [sizing.most(size, "the memory of a value") for size in template.arena_bytes]
    offsets, total = template.arena.offsets(most)
    scratch = [s.code.scratch_bytes for s in template.steps]
    for step in () if is_counted else template.steps:
        for need in step.code.needs:
            sizing.need(need)
    for size in template.copied.values():
        sizing.need(size)
    divided = [_divided(phase, sizing, threads, number) for phase in phased]
    counts = np.zeros(layout.n_steps, np.int64)
    counts[layout.step_of >= 0] = [len(chunks) for chunks in divided]
    return Numbers(
        layout,
        len(template.inputs) + len(template.outputs),
        offsets,
        total,
        [sizing.most(size, "the scratch memory of a kernel") for size in scratch],
        [size for step in template.steps for size in step.code.sizes],
        [chunk for chunks in divided for chunk in chunks],
        counts,
        [sized.ref.sized_bytes for sized in layout.sized],
        template.loops,
        {n: flow for n, flow in enumerate(template.order) if isinstance(flow, Flow)},
        template.copied,
        {n: rows for n in range(len(template.loops)) if (rows := sizing.rows_of(n)) is not None},
    )


def _divided(
    phase: Sequence[EntryPoint], sizing: Sizing, threads: int, number: Mapping[str, int]
) -> list[tuple[int, Dim, Dim, Dim, Dim]]:
    """Returns the chunks of a phase. If the work at the largest sizes is enough, threads get equal
    shares of the pieces, or of the lines if there are more lines.
    """
    cost = sum(
        entry.cost if entry.cost_fs is None else sizing.highest(entry.cost_fs, "a cost") / FS_PER_NS
        for entry in phase
    )
    shares = threads if cost >= DEFAULTS.serial_below else 1
    chunks: list[tuple[int, Dim, Dim, Dim, Dim]] = []
    for entry in phase:
        pieces, lines = entry.grid, lines_of(entry)
        if entry.lines and not at_least(lines, 1):
            pieces = pieces * dim_min(lines, 1)  # without lines, there are no pieces
        most = [sizing.most(dim, "a grid") for dim in (pieces, lines)]
        by_pieces = most[0] >= min(most[1], shares)
        for share in range(shares):
            part, whole = (share, share + 1), (0, shares)
            cuts = (part, whole) if by_pieces else (whole, part)
            begin, end = (pieces * cut // shares for cut in cuts[0])
            first, last = (lines * cut // shares for cut in cuts[1])
            chunks.append((number[entry.symbol], begin, end, first, last))
    return chunks
