"""The tables of the native driver as data of a library.

A library keeps nothing between calls: its tables are constant data. Each call copies them to the
caller's workspace, where they are a *frame*, and adds the workspace's address to the words that
are addresses in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from clew.codegen.artifact import RECORD_BYTES
from clew.codegen.driver import driver as native
from clew.codegen.driver import flow as native_flow
from clew.runtime.bound import Bound
from clew.runtime.loop_tables import trips_word
from clew.runtime.memory import round_up
from clew.runtime.plan import FlowKind
from clew.support.arrays import ALIGNMENT_BYTES

_ENDLESS = 1 << 62
_WORD = 8


class Here(NamedTuple):
    """An address in the workspace, by its distance from the start."""

    offset: int


class Symbol(NamedTuple):
    """An address in the library: a symbol, and a distance from it."""

    name: str
    offset: int = 0


Word: TypeAlias = "int | Here | Symbol"


class Frame:
    """The words of the tables. `start` is their place in the workspace."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.words: list[Word] = []

    def add(self, words: Sequence[Word]) -> Here:
        """Adds words, and returns their place."""
        place = Here(self.start + _WORD * len(self.words))
        self.words += words
        return place

    @property
    def size_bytes(self) -> int:
        """The bytes of the frame."""
        return _WORD * len(self.words)

    @property
    def addresses(self) -> list[int]:
        """The numbers of the words that are addresses in the workspace."""
        return [n for n, word in enumerate(self.words) if isinstance(word, Here)]


class Tables(NamedTuple):
    """The frame of a segment, and places in it: the segment, the addresses of inputs and outputs,
    the records of index checks and the words of loops. `chunks` are the functions and ranges that
    its steps name, constant data named `CHUNKS`.
    """

    frame: Frame
    segment: Here
    bases: Here
    records: Here
    loops: Here
    chunks: Sequence[tuple[str, tuple[int, int, int, int]]]


CHUNKS, WEIGHTS = "clew_chunks", "clew_weights"


def tables_of(
    bound: Bound, threads: int, weights: Sequence[int], start: int, loop_steps: int
) -> Tables:
    """Returns the tables of a segment. The workspace begins with its arena and the scratch memory
    of all threads (`Bound.working_bytes`), and has the frame at `start`. `weights` are the places
    of its constants among the library's. Each loop may take `loop_steps` iterations.
    """
    layout = bound.layout
    frame = Frame(start)
    records = frame.add([0] * (RECORD_BYTES // _WORD * layout.n_records))
    bases = frame.add([0] * (len(bound.inputs) + len(bound.outputs)))
    args = frame.add(_arguments(bound, weights, records))
    patches = frame.add(
        [
            word
            for slot, base, offset in layout.patches.tolist()
            for word in (Here(args.offset + slot), base, offset)
        ]
    )
    loops = _add_loops(frame, bound, args, loop_steps)
    rows, counts = bound.chunks
    steps = frame.add(_steps(bound, args, loops, counts, threads))
    n_patches = len(layout.patches)
    segment = frame.add([steps, layout.n_steps, patches, n_patches, 0, 0])
    assert frame.start + frame.size_bytes - segment.offset == native.SEGMENT_BYTES
    chunks = [(layout.symbols[row[0]], tuple(row[1:])) for row in rows.tolist()]
    return Tables(frame, segment, bases, records, loops, chunks)


def _arguments(bound: Bound, weights: Sequence[int], records: Here) -> list[Word]:
    layout = bound.layout
    args: list[Word] = [0] * layout.first_args[-1]
    for slot, buffer, offset in layout.constants.T.tolist():
        args[slot] = Symbol(WEIGHTS, weights[buffer] + offset)
    for slot, buffer, offset in layout.arena.T.tolist():
        args[slot] = Here(bound.arena[buffer] + offset)
    for slot, value in zip(layout.size_slots.tolist(), bound.size_values, strict=True):
        args[slot] = value
    for number, slot in enumerate(layout.record_slots.tolist()):
        args[slot] = Here(records.offset + RECORD_BYTES * number)
    return args


def _steps(bound: Bound, args: Here, loops: Here, counts: np.ndarray, threads: int) -> list[Word]:
    layout = bound.layout
    scratch = Here(round_up(bound.arena_bytes, ALIGNMENT_BYTES))
    flows = {layout.starts[place]: flow for place, flow in bound.flows.items()}
    begins = (np.cumsum(counts) - counts).tolist()
    words: list[Word] = []
    for number, row in enumerate(layout.steps.tolist()):
        step: list[Word] = list(row)
        step[native.STEP_ARGS // _WORD] = Here(args.offset + row[native.STEP_ARGS // _WORD])
        use = int(layout.step_of[number])
        if use >= 0 and bound.scratch_bytes[use]:
            step[native.STEP_SCRATCH // _WORD] = scratch
            step[native.STEP_SCRATCH_STRIDE // _WORD] = bound.scratch_stride_bytes
        if use >= 0:
            place = Symbol(CHUNKS, native.CHUNK_BYTES * begins[number])
            step[native.STEP_TABLE // _WORD] = place
            step[native.STEP_CHUNKS // _WORD] = int(counts[number])
        flow = flows.get(number)
        if flow is not None:
            step[native.STEP_EXTRA // _WORD] = flow.size_bytes
            if flow.kind in (FlowKind.BEGIN, FlowKind.TEST, FlowKind.NEXT):
                at = Here(loops.offset + native_flow.LOOP_BYTES * flow.loop)
                step[native.STEP_EXTRA // _WORD] = at
        words += step
    return words


def _add_loops(frame: Frame, bound: Bound, args: Here, loop_steps: int) -> Here:
    """Adds the words of loops, and returns their place."""
    loops = bound.loops
    owners = [n for n, loop in enumerate(loops) for _ in loop.moving_bytes]
    moving = frame.add([0] * len(owners))
    patches: list[list[Word]] = [[] for _ in loops]
    for slot, ref, _ in bound.layout.moved:
        owner = owners[ref.index]
        column = ref.index - loops[owner].first
        patches[owner] += [Here(args.offset + _WORD * slot), column, ref.offset_bytes]
    words: list[Word] = []
    for loop, own in zip(loops, patches, strict=True):
        strides, table = frame.add(loop.rows_bytes), frame.add(own)
        made: dict[int, Word] = {
            native_flow.LOOP_LIMIT: loop_steps,
            native_flow.LOOP_TRIPS: trips_word(loop),
            native_flow.LOOP_MOVING: Here(moving.offset + _WORD * loop.first),
            native_flow.LOOP_STATES: len(loop.states_bytes),
            native_flow.LOOP_STACKS: len(loop.rows_bytes),
            native_flow.LOOP_STRIDES: strides,
            native_flow.LOOP_PATCHES: table,
            native_flow.LOOP_N_PATCHES: len(own) // 3,
            native_flow.LOOP_CAPACITY: _ENDLESS,
        }
        words += [made.get(at, 0) for at in range(0, native_flow.LOOP_BYTES, _WORD)]
    return frame.add(words)
