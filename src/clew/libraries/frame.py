"""The tables of the native driver as constant data of a library.

A library keeps no state between calls. Each call copies the tables to the caller's workspace, where
they are a *frame*, and relocates them: it adds the address of the workspace or of the weights to
the words that are addresses there. So the constant has no addresses, which a dynamic linker would
relocate, and its words take 32 bits if all of them fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import numpy as np

from clew.codegen.artifact import RECORD_BYTES
from clew.codegen.driver import driver as native
from clew.codegen.driver import flow as native_flow
from clew.ir.dims import Dim, SymDim
from clew.libraries.chunks import Chunk
from clew.runtime.bound import Bound
from clew.runtime.layout import Layout
from clew.runtime.memory import round_up
from clew.runtime.plan import Flow, FlowKind, LoopPlan, moving_of
from clew.runtime.segment_template import LoopTemplate
from clew.support.arrays import ALIGNMENT_BYTES

_ENDLESS = 1 << 62
_WORD = 8


class Here(NamedTuple):
    """An address in the workspace, as an offset from its start."""

    offset: int


class Symbol(NamedTuple):
    """An address in the library: a symbol and an offset."""

    name: str
    offset: int = 0


Word: TypeAlias = "int | Here | Symbol"


class Sized(NamedTuple):
    """A word to which the driver adds a number that depends on sizes."""

    base: int | Here
    dim: SymDim


class Frame:
    """The words of the tables. `start` is their offset in the workspace. `sized` maps the places of
    words that depend on sizes to their values.
    """

    def __init__(self, start: int) -> None:
        self.start = start
        self.words: list[Word] = []
        self.sized: dict[Here, Sized] = {}

    def add(self, words: Sequence[Word | Sized]) -> Here:
        """Adds words, and returns their place."""
        place = Here(self.start + _WORD * len(self.words))
        for word in words:
            if isinstance(word, Sized):
                self.sized[Here(self.start + _WORD * len(self.words))] = word
                self.words.append(word.base)
            else:
                self.words.append(word)
        return place

    def __getitem__(self, place: Here) -> Word:
        return self.words[(place.offset - self.start) // _WORD]

    def __setitem__(self, place: Here, word: Word) -> None:
        self.words[(place.offset - self.start) // _WORD] = word

    def add_step(self, args: Here, table: Here) -> Here:
        """Adds a step that computes sizes, and returns its place."""
        step: dict[int, Word] = {
            native.STEP_ARGS: args,
            native.STEP_KIND: native_flow.SIZES,
            native.STEP_TARGET: 1,
            native.STEP_EXTRA: table,
        }
        return self.add([step.get(at, 0) for at in range(0, native.STEP_BYTES, _WORD)])

    @property
    def size_bytes(self) -> int:
        """The bytes of the frame."""
        return _WORD * len(self.words)

    @property
    def numbers(self) -> list[int]:
        """The words, with addresses as offsets from what they are relative to."""
        return [word if isinstance(word, int) else word.offset for word in self.words]

    def relative_to(self, symbol: str | None) -> list[int]:
        """Returns the positions of the addresses that are relative to a symbol, or to the start of
        the workspace.
        """
        return [
            n
            for n, word in enumerate(self.words)
            if (isinstance(word, Here) and symbol is None)
            or (isinstance(word, Symbol) and word.name == symbol)
        ]

    def others(self, symbols: Sequence[str]) -> list[tuple[int, str]]:
        """Returns the positions of other symbols' addresses, and the symbols."""
        return [
            (n, word.name)
            for n, word in enumerate(self.words)
            if isinstance(word, Symbol) and word.name not in symbols
        ]


class Tables(NamedTuple):
    """The frame of a segment, and places in it: the segment, its arguments and steps, the addresses
    of inputs and outputs, the records of index checks and the words of loops. `chunks` are those
    that a call writes to `chunk_table`; `symbols` are the functions of all chunks. `patched` maps
    the offsets in patches that depend on sizes to the argument that each patch writes and to the
    address that it adds.
    """

    frame: Frame
    segment: Here
    args: Here
    steps: Here
    bases: Here
    records: Here
    loops: Here
    chunk_table: Here
    chunks: Sequence[Chunk]
    symbols: Sequence[str]
    patched: Mapping[Here, tuple[Here, Here]]


class Numbers(NamedTuple):
    """The numbers of a segment's run; see `Bound`. A chunk is the index of a function in the
    layout's symbols, and its ranges. `copied` has the bytes of copies that depend on sizes, by
    their position in the order, and `capacities` the largest number of rows that each loop stacks.
    """

    layout: Layout
    n_bases: int
    arena: Sequence[int]
    arena_bytes: int
    scratch_bytes: Sequence[int]
    size_values: Sequence[Dim]
    chunks: Sequence[tuple[int, Dim, Dim, Dim, Dim]]
    counts: np.ndarray
    distances: Sequence[Dim] = ()
    loops: Sequence[LoopPlan | LoopTemplate] = ()
    flows: Mapping[int, Flow] = MappingProxyType({})
    copied: Mapping[int, Dim] = MappingProxyType({})
    capacities: Mapping[int, int] = MappingProxyType({})

    @staticmethod
    def of(bound: Bound) -> Numbers:
        """Returns the numbers of a run at given sizes."""
        rows, counts = bound.chunks
        return Numbers(
            bound.layout,
            len(bound.inputs) + len(bound.outputs),
            bound.arena,
            bound.arena_bytes,
            bound.scratch_bytes,
            bound.size_values,
            [tuple(row) for row in rows.tolist()],
            counts,
            bound.distances,
            bound.loops,
            bound.flows,
        )

    @property
    def scratch_stride_bytes(self) -> int:
        """The distance between the scratch memory of two threads."""
        return round_up(max(self.scratch_bytes, default=0), ALIGNMENT_BYTES)

    def working_bytes(self, threads: int) -> int:
        """Returns the bytes of the arena and of the scratch memory of all threads."""
        return round_up(self.arena_bytes, ALIGNMENT_BYTES) + self.scratch_stride_bytes * threads

    @property
    def is_sized(self) -> bool:
        """Whether grids depend on sizes."""
        return any(isinstance(n, SymDim) for row in self.chunks for n in row)


WEIGHTS = "clew_weights"


def tables_of(
    bound: Numbers,
    chunk_table: Here,
    weights: Sequence[int],
    start: int,
    loop_steps: int,
    outside: bool = False,
) -> Tables:
    """Returns the tables of a segment. The workspace begins with its arena and the scratch memory
    of all threads (`Numbers.working_bytes`), and has the frame at `start`. `weights` are the
    offsets of its constants in the library's weights, or with `outside`, in memory whose address is
    one more base. Each loop may take `loop_steps` iterations.
    """
    layout = bound.layout
    frame = Frame(start)
    records = frame.add([0] * (RECORD_BYTES // _WORD * layout.n_records))
    bases = frame.add([0] * (bound.n_bases + outside))
    args = frame.add(_arguments(bound, None if outside else weights, records))
    patched = _patches(bound, args)
    if outside:
        for slot, buffer, offset in layout.constants.T.tolist():
            at = Here(args.offset + _WORD * slot)
            patched += [at, bound.n_bases, weights[buffer] + offset]
    patches = frame.add(patched)
    loops = _add_loops(frame, bound, args, loop_steps)
    fixed: list[Chunk] = [] if bound.is_sized else bound.chunks  # type: ignore[assignment]
    table = _sized_chunks(frame, bound) if bound.is_sized else chunk_table
    steps = frame.add(_steps(bound, args, loops, table))
    n_patches = len(patched) // 3
    segment = frame.add([steps, layout.n_steps, patches, n_patches, 0, 0])
    assert frame.start + frame.size_bytes - segment.offset == native.SEGMENT_BYTES
    places = (segment, args, steps, bases, records, loops)
    by_offset = dict(_sized_patches(layout, patches, args, bases))
    return Tables(frame, *places, chunk_table, fixed, layout.symbols, by_offset)


def _sum(base: int | Here, dim: Dim) -> Word | Sized:
    """Returns the sum of a word and a dimension."""
    if isinstance(dim, SymDim):
        return Sized(base, dim)
    return Here(base.offset + dim) if isinstance(base, Here) else base + dim


def _sized_chunks(frame: Frame, bound: Numbers) -> Here:
    """Adds chunks whose ranges depend on sizes, and returns their place."""
    return frame.add(
        [
            word
            for number, *ranges in bound.chunks
            for word in (Symbol(bound.layout.symbols[number]), *(_sum(0, dim) for dim in ranges))
        ]
    )


def _patches(bound: Numbers, args: Here) -> list[Word | Sized]:
    added: dict[int, Dim] = {
        row: bound.distances[sized] for row, sized in bound.layout.sized_patches
    }
    return [
        word
        for row, (slot, base, offset) in enumerate(bound.layout.patches.tolist())
        for word in (Here(args.offset + slot), base, _sum(offset, added.get(row, 0)))
    ]


def _sized_patches(
    layout: Layout, patches: Here, args: Here, bases: Here
) -> Iterator[tuple[Here, tuple[Here, Here]]]:
    """Yields `Tables.patched`."""
    for row, _ in layout.sized_patches:
        slot, base, _ = layout.patches[row].tolist()
        offset = Here(patches.offset + _WORD * (3 * row + 2))
        yield offset, (Here(args.offset + slot), Here(bases.offset + _WORD * base))


def _arguments(bound: Numbers, weights: Sequence[int] | None, records: Here) -> list[Word | Sized]:
    layout = bound.layout
    added: dict[int, Dim] = {slot: bound.distances[sized] for slot, sized in layout.sized_slots}
    args: list[Word | Sized] = [0] * layout.first_args[-1]
    constants = [] if weights is None else layout.constants.T.tolist()
    for slot, buffer, offset in constants:
        assert weights is not None
        args[slot] = Symbol(WEIGHTS, weights[buffer] + offset)
    for slot, buffer, offset in layout.arena.T.tolist():
        args[slot] = _sum(Here(bound.arena[buffer] + offset), added.get(slot, 0))
    for slot, value in zip(layout.size_slots.tolist(), bound.size_values, strict=True):
        args[slot] = _sum(0, value)
    for number, slot in enumerate(layout.record_slots.tolist()):
        args[slot] = Here(records.offset + RECORD_BYTES * number)
    return args


def _steps(bound: Numbers, args: Here, loops: Here, table: Here) -> list[Word | Sized]:
    layout = bound.layout
    scratch = Here(round_up(bound.arena_bytes, ALIGNMENT_BYTES))
    flows = {layout.starts[place]: flow for place, flow in bound.flows.items()}
    copied = {layout.starts[place]: size for place, size in bound.copied.items()}
    counts = bound.counts
    begins = (np.cumsum(counts) - counts).tolist()
    words: list[Word | Sized] = []
    for number, row in enumerate(layout.steps.tolist()):
        step: list[Word | Sized] = list(row)
        step[native.STEP_ARGS // _WORD] = Here(args.offset + row[native.STEP_ARGS // _WORD])
        use = int(layout.step_of[number])
        if use >= 0 and bound.scratch_bytes[use]:
            step[native.STEP_SCRATCH // _WORD] = scratch
            step[native.STEP_SCRATCH_STRIDE // _WORD] = bound.scratch_stride_bytes
        if use >= 0:
            distance = native.CHUNK_BYTES * begins[number]
            step[native.STEP_TABLE // _WORD] = Here(table.offset + distance)
            step[native.STEP_CHUNKS // _WORD] = int(counts[number])
        flow = flows.get(number)
        if flow is not None:
            step[native.STEP_EXTRA // _WORD] = _sum(0, copied.get(number, flow.size_bytes))
            if flow.kind in (FlowKind.BEGIN, FlowKind.TEST, FlowKind.NEXT):
                at = Here(loops.offset + native_flow.LOOP_BYTES * flow.loop)
                step[native.STEP_EXTRA // _WORD] = at
        words += step
    return words


def _add_loops(frame: Frame, bound: Numbers, args: Here, loop_steps: int) -> Here:
    """Adds the words of loops, and returns their place."""
    loops = bound.loops
    owners = [n for n, p in enumerate(loops) for _ in moving_of(p.states_bytes, p.rows_bytes)]
    moving = frame.add([0] * len(owners))
    patches: list[list[Word | Sized]] = [[] for _ in loops]
    for slot, ref, sized in bound.layout.moved:
        owner = owners[ref.index]
        column = ref.index - loops[owner].first
        offset = _sum(ref.offset_bytes, 0 if sized < 0 else bound.distances[sized])
        patches[owner] += [Here(args.offset + _WORD * slot), column, offset]
    words: list[Word | Sized] = []
    for number, (loop, own) in enumerate(zip(loops, patches, strict=True)):
        strides, table = frame.add([_sum(0, size) for size in loop.rows_bytes]), frame.add(own)
        made: dict[int, Word | Sized] = {
            native_flow.LOOP_LIMIT: loop_steps,
            native_flow.LOOP_TRIPS: _trips(loop),
            native_flow.LOOP_MOVING: Here(moving.offset + _WORD * loop.first),
            native_flow.LOOP_STATES: len(loop.states_bytes),
            native_flow.LOOP_STACKS: len(loop.rows_bytes),
            native_flow.LOOP_STRIDES: strides,
            native_flow.LOOP_PATCHES: table,
            native_flow.LOOP_N_PATCHES: len(own) // 3,
            native_flow.LOOP_CAPACITY: bound.capacities.get(number, _ENDLESS),
        }
        words += [made.get(at, 0) for at in range(0, native_flow.LOOP_BYTES, _WORD)]
    return frame.add(words)


def _trips(loop: LoopPlan | LoopTemplate) -> Word | Sized:
    if loop.trips is not None:
        return _sum(0, loop.trips)
    return native_flow.BY_VALUE if loop.reads_trips else native_flow.BY_CONDITION
