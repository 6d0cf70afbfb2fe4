"""The tables that the native driver reads, laid out once and used by one call at a time."""

from __future__ import annotations

import bisect
import ctypes
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import TypeAlias

import numpy as np

from clew.codegen.artifact import RECORD_BYTES
from clew.codegen.driver import call as native_call
from clew.codegen.driver import driver as native
from clew.runtime.bound import Bound
from clew.runtime.driver import driver
from clew.runtime.guard import GuardedBuffer, GuardSide
from clew.runtime.layout import SymbolTable
from clew.runtime.loop_tables import LoopTables
from clew.runtime.memory import (
    HUGE_PAGE_BYTES,
    aligned_bytes,
    growing_bytes,
    mapping_of,
    release_pages,
    round_up,
)
from clew.runtime.plan import BufferKind, BufferRef, Flow, FlowKind, SegmentPlan
from clew.runtime.resident import Resident
from clew.runtime.stacks import Stacks
from clew.support.addresses import address_of
from clew.support.arrays import ALIGNMENT_BYTES
from clew.support.dataclass import dataclass
from clew.support.lazy import cached_property
from clew.support.locks import Lock
from clew.support.shown import Shown

# After this time in a loop, Python handles signals, so that Ctrl-C stops it.
_SLICE_NS = 5e7
IDLE_ARENAS = 4
# Idle memory is freed if it exceeds twice the largest need of this many recent calls by this many
# bytes. The page faults of new memory took 1 % of the encoder's run that filled it (24 MiB).
_RECENT_CALLS, SPARE_BYTES = 32, 1 << 20
# Contexts that the segments of a template keep before they use each other's.
_CONTEXTS = 16
# Those of few steps take little memory: more are kept, up to so many, and to so many steps. These
# are at least the limits of programs at sizes, so none of these has to make its tables again.
_MOST_CONTEXTS, _KEPT_STEPS = 1024, 8192
_MemoryWords = ctypes.c_int64 * (native_call.MEMORY_BYTES // 8)
_ContextWords = ctypes.c_int64 * (native_call.CONTEXT_BYTES // 8)


class Constants(Shown):
    """Weights that kernels read, at fixed addresses."""

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        self.arrays = tuple(arrays)

    def _about(self) -> str:
        return f"of {sum(array.nbytes for array in self.arrays)} bytes"

    @cached_property
    def addresses(self) -> np.ndarray:
        """The addresses of the arrays, i64[n]."""
        return np.array([address_of(array) for array in self.arrays], np.int64)


@dataclass(frozen=True)
class Places:
    """Addresses of the memory that a context works on; `owners` keeps it alive.

    `scratch` has a slice per thread, `scratch_stride_bytes` apart.
    """

    constants: Sequence[int] | np.ndarray
    arena: Sequence[int] | np.ndarray
    scratch: int
    scratch_stride_bytes: int
    owners: object
    base: int = 0


def size_of(plan: SegmentPlan, ref: BufferRef) -> int:
    """Returns the bytes from an offset in an arena buffer or output to its end."""
    if ref.kind is BufferKind.ARENA:
        return plan.arena_buffers[ref.index].size_bytes - ref.offset_bytes
    assert ref.kind is BufferKind.OUTPUT, "memory that kernels write"
    return plan.outputs[ref.index].size_bytes - ref.offset_bytes


def plain_places(bound: Bound, constants: Constants, threads: int) -> Places:
    """Returns a fresh arena and scratch memory, with the given constants."""
    arena = aligned_bytes(bound.arena_bytes)
    stride = bound.scratch_stride_bytes
    scratch = aligned_bytes(stride * threads)
    return Places(
        constants=constants.addresses,
        arena=address_of(arena) + np.array(bound.arena, np.int64),
        scratch=address_of(scratch) if stride else 0,
        scratch_stride_bytes=stride,
        owners=(arena, scratch, constants),
    )


def places_in(bound: Bound, constants: Constants, memory: WorkingMemory) -> Places:
    """Returns an arena and scratch memory within given memory of `Bound.working_bytes`. Its owner
    is to be noted for each call (`Context.memory`).
    """
    base, stride = memory.address, bound.scratch_stride_bytes
    return Places(
        constants=constants.addresses,
        arena=base + np.array(bound.arena, np.int64),
        scratch=base + round_up(bound.arena_bytes, ALIGNMENT_BYTES) if stride else 0,
        scratch_stride_bytes=stride,
        owners=None,
        base=base,
    )


class WorkingMemory:
    """Memory that contexts work in, one at a time. Native code reads its `words`."""

    __slots__ = ("address", "array", "size_bytes", "words")

    def __init__(self, size_bytes: int) -> None:
        self.array = growing_bytes(size_bytes)
        self.address = address_of(self.array)
        self.size_bytes = self.array.nbytes
        self.words = _MemoryWords(self.address, size_bytes)

    @property
    def used_bytes(self) -> int:
        """The number of bytes at the beginning that have been used."""
        return self.words[native_call.MEMORY_USED // 8]

    @used_bytes.setter
    def used_bytes(self, size_bytes: int) -> None:
        self.words[native_call.MEMORY_USED // 8] = size_bytes


IdleContexts: TypeAlias = "list[tuple[int, Context]]"


class SharedMemory:
    """The state that segments of one template share at different sizes: weights, and memory to work
    in, which their contexts take in turns.

    The memory of the largest recent sizes serves all others. Much larger memory, which earlier
    sizes needed, is freed. Large memory grows in place, since new pages take longer than a run that
    fills them. Several threads may use a `SharedMemory` at once.
    """

    def __init__(self, constants: Sequence[np.ndarray], steps: int = 0) -> None:
        """`steps` is the number of steps of a segment."""
        self._kept = max(_CONTEXTS, min(_MOST_CONTEXTS, _KEPT_STEPS // steps) if steps else 0)
        self.constants = Constants(constants)
        self.resident = Resident(self.constants.arrays)
        # Each with the address of its words; that which was used last is at the end. Native calls
        # take and return entries, too. Pop and append need no lock.
        self.idle: list[tuple[int, WorkingMemory]] = []
        # The idle contexts of each segment that called `share`, the oldest first.
        self._contexts: deque[IdleContexts] = deque()
        # Contexts for the next segment that has none.
        self._spare: list[Context] = []
        self._recent: deque[int] = deque(maxlen=_RECENT_CALLS)
        self._lock = Lock()

    def share(self, idle: IdleContexts) -> Context | None:
        """Returns a context that was given up, or an idle one of the segment that called this
        longest ago, for a segment whose own idle contexts are `idle`. None if that segment should
        make a new context.
        """
        self._contexts.append(idle)
        if len(self._contexts) > self._kept:
            with suppress(IndexError):  # another thread was faster
                self.give_up(self._contexts.popleft())
        with suppress(IndexError):  # there is none
            return self._spare.pop()
        return None

    def give_up(self, idle: IdleContexts) -> None:
        """Takes a context from a segment's idle ones for the segments at other sizes."""
        with suppress(IndexError):  # none is idle
            self._spare.append(idle.pop()[1])

    def take(self, size_bytes: int) -> WorkingMemory:
        """Returns aligned memory of at least this size, which the caller owns until `give`."""
        try:
            _, memory = self.idle.pop()
        except IndexError:
            return WorkingMemory(size_bytes)
        if memory.size_bytes < size_bytes:
            memory = self._larger(memory, size_bytes)
        if memory.used_bytes < size_bytes:
            memory.used_bytes = size_bytes
        return memory

    def _larger(self, memory: WorkingMemory, size_bytes: int) -> WorkingMemory:
        """Returns other idle memory of at least this size in exchange for `memory`; new memory,
        which takes its place, if there is none.
        """
        with suppress(IndexError):  # another thread took the rest
            for _ in range(len(self.idle)):
                entry = self.idle.pop(0)
                if entry[1].size_bytes >= size_bytes:
                    self.idle.insert(0, _entry(memory))
                    return entry[1]
                self.idle.append(entry)
        return WorkingMemory(size_bytes)

    def give(self, memory: WorkingMemory, size_bytes: int) -> None:
        """Takes memory back after a call that needed so many bytes, and frees what recent calls did
        not need.
        """
        fits = memory.used_bytes < SPARE_BYTES or self._trimmed(memory, size_bytes)
        if fits and len(self.idle) < IDLE_ARENAS:
            self.idle.append(_entry(memory))

    def _trimmed(self, memory: WorkingMemory, size_bytes: int) -> bool:
        """Frees what recent calls did not need. Returns whether anything is left."""
        with self._lock:
            self._recent.append(size_bytes)
            kept = 2 * max(self._recent)
            if memory.used_bytes - kept >= SPARE_BYTES:
                mapping = mapping_of(memory.array)
                if mapping is None:
                    return False
                unused = memory.array[kept : memory.used_bytes]
                release_pages(unused, mapping, HUGE_PAGE_BYTES)
                memory.used_bytes = kept
            return True


def _entry(memory: WorkingMemory) -> tuple[int, WorkingMemory]:
    """Returns working memory as lists of idle memory hold it."""
    return ctypes.addressof(memory.words), memory


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
        scratch_bytes = max((step.code.scratch for step in plan.steps), default=0)
        self.scratch = GuardedBuffer(scratch_bytes, side=side, count=threads)
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
        """Asserts that padding, inputs and constants are unchanged since before the call. Copies
        the inputs that kernels write to back.
        """
        for number in self._plan.written:
            whole = self.inputs[number].data.view(inputs[number].dtype)
            inputs[number][...] = whole.reshape(inputs[number].shape)
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
        read = [n for n in range(len(inputs)) if n not in self._plan.written]
        for name, buffers, arrays in (
            ("input", [self.inputs[n] for n in read], [inputs[n] for n in read]),
            ("constant", self.constants, self._constants),
        ):
            for number, (buffer, array) in enumerate(zip(buffers, arrays, strict=True)):
                same = buffer.data.tobytes() == np.ascontiguousarray(array).tobytes()
                assert same, f"{name} {number}: overwritten"


def _fill(buffer: GuardedBuffer, array: np.ndarray) -> None:
    buffer.data[:] = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)


class Context(Shown):
    """The step table, argument tables and patches for one call at a time.

    Before a call, `bases` must hold the addresses of its inputs, then of its outputs. Each phase of
    a step is a driver step; `first_entries` holds the first of each step. After a call, `records`
    are zeros unless an index was out of range. Without control flow, `bind` prepares a context for
    other sizes of its layout, which takes less time than a new context.
    """

    def __init__(self, bound: Bound, symbols: SymbolTable, places: Places):
        layout = bound.layout
        self._layout = layout
        self._functions = layout.functions(symbols)
        # The constants it was made for, since a segment may move them.
        self.constants: object = None
        # The memory of the current call, which begins at `base`, if contexts take turns in it.
        self.memory: WorkingMemory | None = None
        # What native calls read: see `codegen.driver.call`.
        self._words = _ContextWords()
        n_inputs = len(bound.inputs)
        self.bases = (ctypes.c_int64 * max(1, n_inputs + len(bound.outputs)))()
        self.bases_address = ctypes.addressof(self.bases)
        self.records = bytearray(RECORD_BYTES * layout.n_records)
        self.loops = LoopTables(bound.loops)
        self.stacks = Stacks(bound.stacks, bound.outputs, self.loops, self.bases, n_inputs)
        self._args = self._fixed_arguments(places)
        self._patches = layout.patches.copy()
        self._patches[:, native.PATCH_ADDRESS // 8] += address_of(self._args)
        self._steps = layout.steps.copy()
        assert self._steps.itemsize * self._steps.shape[1] == native.STEP_BYTES
        self._steps[:, native.STEP_ARGS // 8] += address_of(self._args)
        self._has_scratch = False
        self._chunks: np.ndarray = np.empty(0, np.int64)
        # What its tables hold: the division of work, and the places of arena and scratch memory
        # from `base` on.
        self._bound_rows: np.ndarray | None = None
        self._bound_scratch: tuple[Sequence[int], tuple[int, int]] | None = None
        self._counts: np.ndarray | None = None
        self._bound_arena: object = None
        self.bind(bound, places)
        self._lay_out_flow(bound)
        self.steps_address = address_of(self._steps)
        slice_ticks = int(_SLICE_NS / driver().ns_per_tick()) if bound.loops else 0
        self._segment = np.array(
            [
                *(self.steps_address, layout.n_steps),
                *(address_of(self._patches), len(self._patches)),
                *(0, slice_ticks),
            ],
            np.int64,
        )
        assert self._segment.nbytes == native.SEGMENT_BYTES
        self.segment_address = address_of(self._segment)
        records = address_of(np.frombuffer(self.records, np.uint8)) if self.records else 0
        self._words[:] = [
            *(self.segment_address, self.bases_address, records, len(self.records) // 8),
            *(self.base, *self.loops.addresses, len(bound.loops)),
        ]

    @property
    def entry(self) -> tuple[int, Context]:
        """The context as lists of idle contexts hold it: with the address of its words."""
        return ctypes.addressof(self._words), self

    @property
    def base(self) -> int:
        """The address of the working memory that its tables refer to, if contexts share it."""
        return self._words[native_call.CONTEXT_MEMORY // 8]

    @base.setter
    def base(self, address: int) -> None:
        self._words[native_call.CONTEXT_MEMORY // 8] = address

    def bind(self, bound: Bound, places: Places) -> None:
        """Prepares the context for calls at the sizes of `bound`, which has the same layout, and in
        the memory of `places`. Constants stay where they are.
        """
        layout, args = bound.layout, self._args
        if places.owners is None and bound.arena is self._bound_arena and not layout.sized_slots:
            self.move_to(places.base)  # the buffers have the same places there
        else:
            self._bound_arena = bound.arena if places.owners is None else None
            self._bound_scratch = None
            slots, buffers, offsets = layout.arena
            args[slots] = np.asarray(places.arena, np.int64)[buffers] + offsets
        self._owners = places.owners
        self.base = places.base
        for slot, sized in layout.sized_slots:
            args[slot] += bound.distances[sized]
        for row, sized in layout.sized_patches:
            offset = layout.patches[row, native.PATCH_OFFSET // 8] + bound.distances[sized]
            self._patches[row, native.PATCH_OFFSET // 8] = offset
        args[layout.size_slots] = bound.size_values
        self._bind_chunks(bound)
        if bound.scratch_stride_bytes or self._has_scratch:
            self._bind_scratch(bound, places)

    def _fixed_arguments(self, places: Places) -> np.ndarray:
        """Returns the table of arguments with those that are the same at all sizes."""
        layout = self._layout
        args = np.zeros(layout.first_args[-1], np.int64)
        slots, buffers, offsets = layout.constants
        args[slots] = np.asarray(places.constants, np.int64)[buffers] + offsets
        if self.records:
            records = address_of(np.frombuffer(self.records, np.uint8))
            args[layout.record_slots] = records + RECORD_BYTES * np.arange(layout.n_records)
        return args

    def _bind_chunks(self, bound: Bound) -> None:
        """Writes the division of work to the tables of chunks and of driver steps."""
        rows, counts = bound.chunks
        if rows is self._bound_rows:
            return
        self._bound_rows = rows
        function = native.CHUNK_FUNCTION // 8
        if counts is self._counts:  # the same functions, with other ranges
            self._chunks[:, function + 1 :] = rows[:, function + 1 :]
            return
        self._counts = counts
        self._chunks = rows.copy()
        self._chunks[:, function] = self._functions[rows[:, function]]
        assert self._chunks.itemsize * self._chunks.shape[1] == native.CHUNK_BYTES
        begins = np.cumsum(counts) - counts
        table = address_of(self._chunks) + native.CHUNK_BYTES * begins
        self._steps[:, native.STEP_TABLE // 8] = table
        self._steps[:, native.STEP_CHUNKS // 8] = counts

    def _bind_scratch(self, bound: Bound, places: Places) -> None:
        """Writes addresses of scratch memory to the table of driver steps."""
        distances = (places.scratch - places.base, places.scratch_stride_bytes)
        scratch_of = (bound.scratch_bytes, distances)
        if scratch_of == self._bound_scratch:  # `move_to` has moved it
            return
        self._bound_scratch = scratch_of
        self._has_scratch = bound.scratch_stride_bytes > 0
        needed = np.array([*bound.scratch_bytes, 0], np.int64)  # control flow needs none
        scratch = needed[bound.layout.step_of] != 0
        self._steps[:, native.STEP_SCRATCH // 8] = scratch * places.scratch
        self._steps[:, native.STEP_SCRATCH_STRIDE // 8] = scratch * places.scratch_stride_bytes

    def _lay_out_flow(self, bound: Bound) -> None:
        """Connects the tables of steps and of loops."""
        layout, args_address = bound.layout, address_of(self._args)
        for place, entry in bound.flows.items():
            extra = self.loops.extra(entry)
            self._steps[layout.starts[place], native.STEP_EXTRA // 8] = extra
            if entry.kind is FlowKind.TEST:
                first = args_address + 8 * layout.first_args[place]
                self.loops.note_test(entry.loop, first)
        for slot, ref, sized in layout.moved:
            distance = 0 if sized < 0 else bound.distances[sized]
            self.loops.add_patch(args_address + 8 * slot, ref.beyond(distance))
        self.loops.lay_out()

    @property
    def first_entries(self) -> list[int]:
        """The first driver step of each step."""
        return [self._layout.starts[place] for place in self._layout.places]

    @property
    def n_entries(self) -> int:
        """The number of driver steps."""
        return self._layout.n_steps

    def _about(self) -> str:
        return ""

    def move_to(self, base: int) -> None:
        """Makes the next calls use other memory, of `working_bytes` from this address on."""
        if base == self.base:
            return
        self._args[self._layout.arena[0]] += base - self.base
        scratch = self._steps[:, native.STEP_SCRATCH // 8]
        scratch[scratch != 0] += base - self.base
        self.base = base

    def arguments(self, step: int) -> list[int]:
        """Returns the addresses of a step's arguments in the call that `bases` describes.

        They are also written to the step's argument table, as in a run of the segment.
        """
        place = self._layout.places[step]
        return self.arguments_at(place)[: len(self._layout.entries[place].args)]

    def arguments_at(self, place: int) -> list[int]:
        """`arguments` for a position in the plan's order, including the record of a step's
        checks.
        """
        begin, end = self._layout.first_args[place : place + 2]
        slots = self._args[begin:end]
        for number, row in self._layout.bases.get(place, ()):
            _, base, offset = self._patches[row]
            slots[number] = self.bases[base] + offset
        return [int(a) for a in slots]

    def begin_loops(self) -> None:
        """Places the moving buffers of loops for their first iterations, and writes arguments."""
        for place, entry in enumerate(self._layout.entries):
            self.arguments_at(place)
            if isinstance(entry, Flow) and entry.kind is FlowKind.BEGIN:
                self.go_on(place)

    def go_on(self, place: int) -> int:
        """Executes control flow at a position in the plan's order, and returns the next position.
        Arguments must have been written.
        """
        at = self._layout.starts[place]
        step = self.steps_address + at * native.STEP_BYTES
        while (following := driver().go_on(step, at + 1)) == at:
            self.stacks.grow()
        return bisect.bisect_left(self._layout.starts, following)

    def first_fault(self) -> tuple[int, int, int] | None:
        """Returns the first step, check and index that was out of range in the last run, counted
        from the front, and clears all records.
        """
        words = np.frombuffer(self.records, np.int64).reshape(-1, 2)
        found = None
        for step, number in reversed(self._layout.record_of.items()):
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
                slot = self._layout.first_args[self._layout.places[step]] + source
                return int(self._args[slot]), size_of(plan, ref)
        return 0, 0
