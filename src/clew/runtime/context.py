"""The tables that the native driver reads, laid out once and used by one call at a time."""

from __future__ import annotations

import bisect
import ctypes
import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from clew.codegen.artifact import RECORD_BYTES
from clew.codegen.driver import driver as native
from clew.runtime.driver import driver
from clew.runtime.grid import Use, choose_cuts, phases, split
from clew.runtime.guard import GuardedBuffer, GuardSide
from clew.runtime.loop_tables import LoopTables
from clew.runtime.memory import address_of, aligned_bytes, round_up
from clew.runtime.plan import BufferKind, BufferRef, Flow, FlowKind, SegmentPlan, Step
from clew.runtime.resident import Resident
from clew.runtime.stacks import Stacks
from clew.support.arrays import ALIGNMENT_BYTES
from clew.support.locks import Lock
from clew.support.shown import Shown

# After this time in a loop, Python handles signals, so that Ctrl-C stops it.
_SLICE_NS = 5e7
_IDLE_ARENAS = 4
# Idle memory is freed if it exceeds twice the largest need of this many recent calls by this many
# bytes. The page faults of new memory took 1 % of the encoder's run that filled it (24 MiB).
_RECENT_CALLS, _SPARE_BYTES = 32, 1 << 20


class SymbolTable(Protocol):
    """The addresses of compiled functions."""

    def address(self, symbol: str) -> int:
        """Returns the address of a function."""
        ...


@dataclass(frozen=True)
class Places:
    """Addresses of the memory that a context works on; `owners` keeps it alive.

    `scratch` has a slice per thread, `scratch_stride_bytes` apart.
    """

    constants: Sequence[int]
    arena: Sequence[int]
    scratch: int
    scratch_stride_bytes: int
    owners: object
    base: int = 0


def working_bytes(plan: SegmentPlan, threads: int) -> int:
    """Returns the bytes of a plan's arena and of the scratch memory of all threads."""
    stride = round_up(scratch_bytes(plan), ALIGNMENT_BYTES)
    return round_up(plan.arena_bytes, ALIGNMENT_BYTES) + stride * threads


def scratch_bytes(plan: SegmentPlan) -> int:
    """Returns the scratch memory that a thread needs for any of the plan's steps."""
    return max((step.code.scratch for step in plan.steps), default=0)


def size_of(plan: SegmentPlan, ref: BufferRef) -> int:
    """Returns the bytes from an offset in an arena buffer or output to its end."""
    if ref.kind is BufferKind.ARENA:
        return plan.arena_buffers[ref.index].size_bytes - ref.offset_bytes
    assert ref.kind is BufferKind.OUTPUT, "memory that kernels write"
    return plan.outputs[ref.index].size_bytes - ref.offset_bytes


def plain_places(plan: SegmentPlan, constants: Sequence[np.ndarray], threads: int) -> Places:
    """Returns a fresh arena and scratch memory, with the given constants."""
    arena = aligned_bytes(plan.arena_bytes)
    base = address_of(arena)
    stride = round_up(scratch_bytes(plan), ALIGNMENT_BYTES)
    scratch = aligned_bytes(stride * threads)
    return Places(
        constants=[address_of(constant) for constant in constants],
        arena=[base + buffer.offset_bytes for buffer in plan.arena_buffers],
        scratch=address_of(scratch) if stride else 0,
        scratch_stride_bytes=stride,
        owners=(arena, scratch, constants),
    )


def places_in(
    plan: SegmentPlan, constants: Sequence[np.ndarray], threads: int, memory: np.ndarray
) -> Places:
    """Returns an arena and scratch memory within given memory of `working_bytes`."""
    base = address_of(memory)
    stride = round_up(scratch_bytes(plan), ALIGNMENT_BYTES)
    return Places(
        constants=[address_of(constant) for constant in constants],
        arena=[base + buffer.offset_bytes for buffer in plan.arena_buffers],
        scratch=base + round_up(plan.arena_bytes, ALIGNMENT_BYTES) if stride else 0,
        scratch_stride_bytes=stride,
        owners=memory,
        base=base,
    )


class SharedMemory:
    """What the segments of one template at different sizes share: weights, and memory to work in,
    which their contexts take in turns.

    The memory of the largest recent sizes serves all others. Much larger memory, which earlier
    sizes needed, is freed. Several threads may use a `SharedMemory` at once.
    """

    def __init__(self, constants: Sequence[np.ndarray]) -> None:
        self.constants = list(constants)
        self.resident = Resident(self.constants)
        self._idle: list[np.ndarray] = []
        self._recent: deque[int] = deque(maxlen=_RECENT_CALLS)
        self._lock = Lock()

    def take(self, size_bytes: int) -> np.ndarray:
        """Returns aligned memory of at least this size, which the caller owns until `give`."""
        with self._lock:
            self._recent.append(size_bytes)
            fitting = [n for n, memory in enumerate(self._idle) if memory.nbytes >= size_bytes]
            if fitting:
                return self._idle.pop(fitting[0])
            if self._idle:
                self._idle.pop()  # the new memory takes its place
        return aligned_bytes(size_bytes)

    def give(self, memory: np.ndarray) -> None:
        """Takes memory back, or frees it if recent calls needed much less."""
        with self._lock:
            spare = memory.nbytes - 2 * max(self._recent)
            if len(self._idle) < _IDLE_ARENAS and spare < _SPARE_BYTES:
                self._idle.append(memory)


class GuardedMemory:
    """The buffers of one call, each between forbidden pages and poisoned beforehand.

    Inputs and outputs are as close to the forbidden page as their elements' alignment allows, all
    others as close as an alignment of 64 bytes allows.
    """

    def __init__(self, plan: SegmentPlan, side: GuardSide, threads: int):
        self.inputs = [
            GuardedBuffer(spec.size_bytes, align_bytes=spec.itemsize, side=side)
            for spec in plan.inputs
        ]
        self.outputs = [
            GuardedBuffer(spec.size_bytes, align_bytes=spec.itemsize, side=side)
            for spec in plan.outputs
        ]
        self.constants = [GuardedBuffer(c.nbytes, side=side) for c in plan.constants]
        for buffer, constant in zip(self.constants, plan.constants, strict=True):
            _fill(buffer, constant)
        self.arena = [GuardedBuffer(b.size_bytes, side=side) for b in plan.arena_buffers]
        self.scratch = GuardedBuffer(scratch_bytes(plan), side=side, count=threads)
        self.stacks: list[GuardedBuffer] = []
        self._plan, self._side = plan, side
        self._constants = plan.constants

    def places(self) -> Places:
        """Returns the addresses of the buffers."""
        return Places(
            constants=[buffer.address for buffer in self.constants],
            arena=[buffer.address for buffer in self.arena],
            scratch=self.scratch.address,
            scratch_stride_bytes=self.scratch.stride_bytes,
            owners=self,
        )

    def stack(self, output: int, size_bytes: int) -> GuardedBuffer:
        """Returns guarded memory for rows of the stack that is this output."""
        align_bytes = self._plan.outputs[output].itemsize
        self.stacks.append(GuardedBuffer(size_bytes, align_bytes=align_bytes, side=self._side))
        return self.stacks[-1]

    def fill(self, inputs: Sequence[np.ndarray]) -> None:
        """Copies a call's inputs in."""
        for buffer, array in zip(self.inputs, inputs, strict=True):
            _fill(buffer, array)

    def check(self, inputs: Sequence[np.ndarray]) -> None:
        """Asserts that padding, inputs and constants are unchanged since before the call."""
        groups = {
            "input": self.inputs,
            "output": self.outputs,
            "constant": self.constants,
            "arena buffer": self.arena,
            "scratch": [self.scratch],
            "stack": self.stacks,
        }
        for name, buffers in groups.items():
            for number, buffer in enumerate(buffers):
                buffer.check(f"{name} {number}")
        for name, buffers, arrays in (
            ("input", self.inputs, inputs),
            ("constant", self.constants, self._constants),
        ):
            for number, (buffer, array) in enumerate(zip(buffers, arrays, strict=True)):
                same = buffer.data.tobytes() == np.ascontiguousarray(array).tobytes()
                assert same, f"{name} {number}: overwritten"


def _fill(buffer: GuardedBuffer, array: np.ndarray) -> None:
    buffer.data[:] = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)


def _slots(entry: Step | Flow) -> int:
    """Returns the number of a step's arguments, including sizes and the record of its checks."""
    if isinstance(entry, Flow):
        return len(entry.args)
    return len(entry.args) + len(entry.code.size_values) + bool(entry.code.checks)


def entry_starts(plan: SegmentPlan) -> list[int]:
    """Returns, for each of a plan's entries, its first driver step, and the end of the last: each
    phase of a kernel is a separate driver step.
    """
    counts = [1 if isinstance(e, Flow) else len(phases(e.code.entries)) for e in plan.entries]
    return [0, *itertools.accumulate(counts)]


def places_of_steps(plan: SegmentPlan) -> list[int]:
    """Returns the positions of the steps in the plan's order."""
    if not plan.order:
        return list(range(len(plan.steps)))
    return [place for place, entry in enumerate(plan.order) if isinstance(entry, int)]


class Context(Shown):
    """The step table, argument tables and patches for one call at a time.

    Before a call, `bases` must hold the addresses of its inputs, then of its outputs. Each phase of
    a step is a driver step; `first_entries` holds the first of each step. After a call, `records`
    are zeros unless an index was out of range.
    """

    def __init__(self, plan: SegmentPlan, symbols: SymbolTable, threads: int, places: Places):
        self._owners = places.owners
        # Where its memory begins, if it is shared with other contexts.
        self._base = places.base
        self._entries = plan.entries
        self._starts = entry_starts(plan)
        # The constants it was made for, since a segment may move them.
        self.constants: object = None
        self._n_inputs = len(plan.inputs)
        self.bases = (ctypes.c_int64 * max(1, len(plan.inputs) + len(plan.outputs)))()
        self.bases_address = ctypes.addressof(self.bases)
        entries, places_of = plan.entries, places_of_steps(plan)
        self._args = np.zeros(max(1, sum(map(_slots, entries))), np.int64)
        checking = [n for n, step in enumerate(plan.steps) if step.code.checks]
        self.records = bytearray(RECORD_BYTES * len(checking))
        self._record_of = {step: number for number, step in enumerate(checking)}
        self._place_of = places_of
        self.loops = LoopTables(plan)
        self.stacks = Stacks(plan, self.loops, self.bases, self._n_inputs)
        self._patches = self._lay_out_args(plan, places)
        starts = self._starts
        self.first_entries = [starts[place] for place in places_of]
        self.n_entries = starts[-1]
        steps: list[tuple[int, ...]] = []
        tables: list[list[tuple[int, ...]]] = []
        uses = [Use(tuple(p), s.args) for s in plan.steps for p in phases(s.code.entries)]
        cuts = iter(choose_cuts(uses, threads))
        args_address = address_of(self._args)
        for entry in entries:
            if isinstance(entry, Flow):
                extra = self.loops.extra(entry)
                if entry.kind is FlowKind.TEST:
                    self.loops.note_test(entry.loop, args_address)
                row = (args_address, 0, 0, 0, 0, entry.kind.value, starts[entry.target], extra)
                tables.append([])
                steps.append(row)
            else:
                scratch = places.scratch if entry.code.scratch_bytes else 0
                stride = places.scratch_stride_bytes if entry.code.scratch_bytes else 0
                for phase in phases(entry.code.entries):
                    chunks = split(phase, threads, next(cuts))
                    tables.append([(symbols.address(c.symbol), *c.ranges) for c in chunks])
                    steps.append((args_address, scratch, stride, 0, len(chunks), 0, 0, 0))
            args_address += 8 * _slots(entry)
        assert len(steps) == self.n_entries
        self._steps = np.array(steps or [(0,) * 8], np.int64)
        assert self._steps.itemsize * self._steps.shape[1] == native.STEP_BYTES
        self._chunks = np.array([row for rows in tables for row in rows] or [(0,) * 5], np.int64)
        assert self._chunks.itemsize * self._chunks.shape[1] == native.CHUNK_BYTES
        begins = np.cumsum([0, *map(len, tables)])[: len(tables)]
        self._steps[: len(tables), native.STEP_TABLE // 8] = (
            address_of(self._chunks) + native.CHUNK_BYTES * begins
        )
        self.steps_address = address_of(self._steps)
        slice_ticks = int(_SLICE_NS / driver().ns_per_tick()) if plan.loops else 0
        self._segment = np.array(
            [
                *(self.steps_address, len(steps)),
                *(address_of(self._patches), self._n_patches),
                *(0, slice_ticks),
            ],
            np.int64,
        )
        assert self._segment.nbytes == native.SEGMENT_BYTES
        self.segment_address = address_of(self._segment)

    def _about(self) -> str:
        return ""

    def move_to(self, memory: np.ndarray) -> None:
        """Has the next call work in other memory, of `working_bytes`."""
        base = address_of(memory)
        self._owners = memory
        if base == self._base:
            return
        self._args[self._arena_slots] += base - self._base
        scratch = self._steps[:, native.STEP_SCRATCH // 8]
        scratch[scratch != 0] += base - self._base
        self._base = base

    def leave(self) -> np.ndarray:
        """Returns the memory that the context was moved to, which others may use from now on."""
        memory, self._owners = self._owners, None
        assert isinstance(memory, np.ndarray)
        return memory

    def arguments(self, step: int) -> list[int]:
        """Returns the addresses of a step's arguments in the call that `bases` describes.

        They are also written to the step's argument table, as in a run of the segment.
        """
        place = self._place_of[step]
        return self.arguments_at(place)[: len(self._entries[place].args)]

    def arguments_at(self, place: int) -> list[int]:
        """`arguments` for a position in the plan's order, including the record of a step's
        checks.
        """
        slots = self._args[self._first_args[place] : self._first_args[place + 1]]
        for number, base, offset in self._moving.get(place, ()):
            slots[number] = self.bases[base] + offset
        return [int(a) for a in slots]

    def begin_loops(self) -> None:
        """Places the moving buffers of loops for their first iterations, and writes arguments."""
        for place, entry in enumerate(self._entries):
            self.arguments_at(place)
            if isinstance(entry, Flow) and entry.kind is FlowKind.BEGIN:
                self.go_on(place)

    def go_on(self, place: int) -> int:
        """Executes control flow at a position in the plan's order, and returns the next position.
        Arguments must have been written.
        """
        at = self._starts[place]
        step = self.steps_address + at * native.STEP_BYTES
        while (following := driver().go_on(step, at + 1)) == at:
            self.stacks.grow()
        return bisect.bisect_left(self._starts, following)

    def first_fault(self) -> tuple[int, int, int] | None:
        """Returns the first step, check and index that was out of range in the last run, counted
        from the front, and clears all records.
        """
        words = np.frombuffer(self.records, np.int64).reshape(-1, 2)
        found = None
        for step, number in reversed(self._record_of.items()):
            if words[number, 0]:
                found = step, int(words[number, 0]) - 1, int(words[number, 1])
        self.records[:] = bytes(len(self.records))
        return found

    def overwritten(self, plan: SegmentPlan, step: int) -> tuple[int, int]:
        """Returns the address and size in bytes of the operand that a step overwrites with a
        result; size 0 for steps that can be repeated.
        """
        args, code = plan.steps[step].args, plan.steps[step].code
        for source, _ in code.in_place:
            ref = args[source]
            shared = args.count(ref) > 1 and ref.kind in (BufferKind.ARENA, BufferKind.OUTPUT)
            if shared:
                slot = self._first_args[self._place_of[step]] + source
                return int(self._args[slot]), size_of(plan, ref)
        return 0, 0

    def _lay_out_args(self, plan: SegmentPlan, places: Places) -> np.ndarray:
        """Writes the known addresses; returns the patches that write the others."""
        patches = []
        address = address_of(self._args)
        records = address_of(np.frombuffer(self.records, np.uint8)) if self.records else 0
        slot = 0
        self._first_args = [0]
        self._moving: dict[int, list[tuple[int, int, int]]] = {}
        in_arena: list[int] = []
        steps = dict(zip(self._place_of, range(len(plan.steps)), strict=True))
        for position, entry in enumerate(self._entries):
            for number, ref in enumerate(entry.args):
                if ref.kind is BufferKind.CONSTANT:
                    self._args[slot] = places.constants[ref.index] + ref.offset_bytes
                elif ref.kind is BufferKind.ARENA:
                    self._args[slot] = places.arena[ref.index] + ref.offset_bytes
                    in_arena.append(slot)
                elif ref.kind is BufferKind.MOVING:
                    self.loops.add_patch(address + 8 * slot, ref)
                else:
                    output = ref.kind is BufferKind.OUTPUT
                    base = ref.index + self._n_inputs * output
                    patches.append((address + 8 * slot, base, ref.offset_bytes))
                    self._moving.setdefault(position, []).append((number, base, ref.offset_bytes))
                slot += 1
            if isinstance(entry, Step):
                for value in entry.code.size_values:
                    self._args[slot] = value
                    slot += 1
            record = self._record_of.get(steps.get(position, -1))
            if record is not None:
                self._args[slot] = records + record * RECORD_BYTES
                slot += 1
            self._first_args.append(slot)
        self._arena_slots = np.array(in_arena, np.int64)
        self.loops.lay_out()
        self._n_patches = len(patches)
        return np.array(patches or [(0, 0, 0)], np.int64)
