"""The driver's tables for instructions whose sizes data decide (`counted.py`), and the memory that
they work in, for counts up to certain limits.

What keeps every access inside its buffer:

- A count is read once, by its `SIZES` step. Steps before that depend on no size that follows from
  it, and the step goes to the end of the run if the count is not from 0 to its limit.
- All memory is that of the largest value of each size within these limits, by interval arithmetic
  that refuses what may not fit in 64 bits and divisors that may be 0.
- What kernels need of the sizes is checked after the sizes are computed, and before any is written.
- A context serves one call at a time, and after an exception none. Its arena is never shown;
  results have memory of their own, which a later call uses only if nothing refers to it.
"""

from __future__ import annotations

import ctypes
import operator
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from sys import getrefcount
from typing import Any, Final

import numpy as np

from clew.codegen.artifact import EntryPoint
from clew.codegen.driver import driver as native
from clew.codegen.driver import sizes as native_sizes
from clew.cost.policy.sizes import LEAST_LIMIT
from clew.ir.dims import Dim, Sizes, SymDim, product
from clew.machine.costs import DEFAULTS, FS_PER_NS
from clew.runtime.bound import Bound, Chunks
from clew.runtime.context import Constants, Context, Places, plain_places
from clew.runtime.driver import driver
from clew.runtime.grid import lines_of, phases
from clew.runtime.guard import GuardedBuffer, GuardSide
from clew.runtime.large_results import LARGE_BYTES
from clew.runtime.layout import Layout, SymbolTable
from clew.runtime.plan import BufferKind
from clew.runtime.references import References
from clew.runtime.results import UNHELD, Results, Room, room_for
from clew.runtime.segment import readable
from clew.runtime.segment_template import SegmentTemplate
from clew.runtime.size_code import SizeCode, TooLarge
from clew.runtime.threads import ThreadPool
from clew.support.addresses import address_of, write_addresses
from clew.support.budgets import current
from clew.support.dataclass import dataclass
from clew.support.lazy import cached_property
from clew.support.locks import Lock

_ARRAY: Final = np.ndarray
_IDLE_CONTEXTS: Final = 2
# Results may have as much unused memory as data, and this many bytes.
_SPARE_BYTES: Final = 4096
# The most bytes of idle contexts at all sizes of a model together, and those of the tables of one.
_KEPT_BYTES: Final = 1 << 25
_TABLE_BYTES: Final = 1 << 14
# The largest limit.
_MOST: Final = 1 << 40
_CHUNK_WORDS: Final = native.CHUNK_BYTES // 8
# Words of a chunk: the ends of the two axes of its grid.
_FAULT: Final = native_sizes.SIZES_FAULT // 8
_Table: Final = ctypes.c_int64 * (native_sizes.SIZES_BYTES // 8)
_RANGES: Final = ((1, 2), (3, 4))


@dataclass(frozen=True)
class Result:
    """A result: the output whose memory has it, and where it begins there, in bytes."""

    output: int
    offset: Dim
    shape: tuple[Dim, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class CountedBody:
    """The instructions as a segment. `stages` holds, for each `SIZES` step, its place and the names
    of the counts that it reads; `shapes` the shapes that steps read as values, which the last step
    before them writes, with the step's number and the number of its argument. All of `needs` must
    be at least 0. `capacities` has the loops that stack as many rows as the run finds, each with
    the name of that count. `read_off` has the sizes of inputs that are counts, each as the number
    of an input and an axis; if there are any, the segment's last input has them. `most` has upper
    bounds of counts, where they are known.
    """

    segment: SegmentTemplate
    stages: tuple[tuple[int, tuple[str, ...]], ...]
    shapes: tuple[tuple[int, int, tuple[Dim, ...]], ...]
    needs: tuple[SymDim, ...]
    results: tuple[Result, ...]
    capacities: Mapping[int, str] = field(default_factory=dict)
    read_off: tuple[tuple[int, int], ...] = ()
    most: Mapping[str, Dim] = field(default_factory=dict)

    @cached_property
    def names(self) -> list[str]:
        """The names of all counts, in order."""
        return [name for _, names in self.stages for name in names]


class Shared:
    """What the runs at all sizes have in common."""

    def __init__(self, body: CountedBody) -> None:
        """Asserts that the steps use existing buffers."""
        segment = body.segment
        self.constants = Constants([readable(constant) for constant in segment.constants])
        self.layout = Layout(segment.entries, len(segment.inputs))
        counts = {
            BufferKind.INPUT: len(segment.inputs),
            BufferKind.OUTPUT: len(segment.outputs),
            BufferKind.CONSTANT: len(segment.constants),
            BufferKind.ARENA: len(segment.arena_bytes),
            BufferKind.MOVING: sum(loop.moving for loop in segment.loops),
        }
        self.references = References(segment.entries, counts)
        self.references.check(BufferKind.CONSTANT, [c.nbytes for c in segment.constants])
        # Those of the latest tables, at any sizes.
        self.limits: Sequence[int] = (LEAST_LIMIT,) * len(body.names)
        # What keeps idle contexts, the oldest first, with the bytes of these.
        self._keeping: deque[tuple[Tables, int]] = deque()
        self._kept_bytes = 0
        self._lock = Lock()

    def keeps(self, tables: Tables) -> None:
        """Notes that tables have one more context. Has the oldest ones drop theirs if contexts at
        all sizes take too much memory.
        """
        size = tables.needed_bytes + _TABLE_BYTES
        with self._lock:
            self._keeping.append((tables, size))
            self._kept_bytes += size
            while self._kept_bytes > _KEPT_BYTES and len(self._keeping) > 1:
                oldest, size = self._keeping.popleft()
                self._kept_bytes -= size
                oldest.drop()


@dataclass(frozen=True)
class Source:
    """What tables are made from: the instructions, what all sizes share, where the functions are,
    the threads, and the sizes of the model.
    """

    body: CountedBody
    shared: Shared
    library: SymbolTable
    pool: ThreadPool
    guard: GuardSide | None
    sizes: Mapping[str, int]


class Limits(tuple[int, ...]):
    """Larger limits, with which a run is to be repeated."""


class Tables:
    """Tables and memory for counts up to some limits."""

    def __init__(self, source: Source, limits: Sequence[int]) -> None:
        """Asserts that steps stay inside of their buffers. Errors: TooLarge; KeyError for a size
        that is not known, ZeroDivisionError for a size that is divided by 0.
        """
        body, shared = source.body, source.shared
        self.source, self.limits = source, tuple(limits)
        left = iter(limits)
        by_stage = [{name: next(left) for name in names} for _, names in body.stages]
        self.most = Sizes({**source.sizes, **{n: c for part in by_stage for n, c in part.items()}})
        self.code = SizeCode(source.sizes, by_stage)
        segment = body.segment
        self.threads = source.pool.threads
        plan = segment.at(self.most, self.threads)
        self.bound = Bound.of(plan, self.threads, shared.layout)
        # By stage: registers, the word in a table that each goes to, and what is added there.
        self._needs: list[list[int]] = [[] for _ in range(len(body.stages) + 1)]
        self._bind(body, shared)
        self._idle: deque[_Context] = deque()  # pop and append need no lock
        counted = set(body.read_off)
        specs = self.bound.inputs[: len(self.bound.inputs) - bool(counted)]
        # By input: the rank, the axes whose sizes are not counts, with these, and the dtype.
        self._inputs = [
            (
                len(spec.shape),
                [(a, size) for a, size in enumerate(spec.shape) if (n, a) not in counted],
                np.dtype(spec.dtype),
            )
            for n, spec in enumerate(specs)
        ]
        self._read_off = body.read_off
        register = self.code.register
        self._results = [
            (r.output, register(r.offset), tuple([register(d) for d in r.shape]), r.dtype)
            for r in body.results
        ]

    def _bind(self, body: CountedBody, shared: Shared) -> None:
        """Collects what the steps that compute sizes write, and the memory that they may need."""
        code, segment, layout = self.code, body.segment, shared.layout
        register = code.register
        for dim in body.needs:
            self._need(register(dim))
        arena = [self._most(dim) for dim in segment.arena_bytes]
        scratch = [self._most(step.code.scratch_bytes) for step in segment.steps]
        outputs = [self._most(_bytes_of(s.shape, s.dtype)) for s in segment.outputs]
        distances = [self._most(sized.ref.sized_bytes) for sized in layout.sized]
        shared.references.check(BufferKind.ARENA, arena, distances)
        shared.references.check(BufferKind.OUTPUT, outputs, distances)
        inputs = [spec.size_bytes for spec in self.bound.inputs]
        shared.references.check(BufferKind.INPUT, inputs, distances)
        offsets, total = segment.arena.offsets(arena)
        self.arena_bytes, self.outputs_bytes = arena, outputs
        self._outputs = Results([((size,), np.dtype(np.uint8)) for size in outputs])
        self.bound = replace(
            self.bound, arena=offsets, arena_bytes=total, scratch_bytes=scratch, stacks={}
        )
        working = self.bound.working_bytes(self.threads)
        self.needed_bytes = max(working + sum(outputs), 8 * max(self.limits, default=0))
        self.sizes = [register(d) for step in segment.steps for d in step.code.sizes]
        self.copied = {place: self._register_of_size(dim) for place, dim in segment.copied.items()}
        self.distances = [register(sized.ref.sized_bytes) for sized in layout.sized]
        self.shapes = [
            (stage, number, [register(size) for size in shape])
            for stage, number, shape in body.shapes
        ]
        self._bind_chunks(body)

    def _bind_chunks(self, body: CountedBody) -> None:
        """Divides work among threads. Where counts decide it, threads get equal shares of what the
        run finds, if the largest counts are enough work.
        """
        rows, counts = self.bound.chunks
        symbols = self.source.shared.layout.symbols
        number = {symbol: n for n, symbol in enumerate(symbols)}
        made: list[list[int]] = []
        kept = counts.copy()
        # Registers of words of the table of chunks, by place there.
        self.words: dict[tuple[int, int], int] = {}
        ends = np.cumsum(counts)
        found = (phase for step in body.segment.steps for phase in phases(step.code.entries))
        for place in np.flatnonzero(self.source.shared.layout.step_of >= 0).tolist():
            phase = next(found)
            extents = [self._extents(entry) for entry in phase]
            if not any(self.code.stage_of[r] for pair in extents for r in pair):
                made += rows[ends[place] - counts[place] : ends[place]].tolist()
                continue
            cost = sum(self._cost(entry) for entry in phase)
            shares = self.threads if cost >= DEFAULTS.serial_below else 1
            kept[place] = shares * len(phase)
            for entry, pair in zip(phase, extents, strict=True):
                for share in range(shares):
                    words = self._chunk(len(made), pair, share, shares)
                    made.append([number[entry.symbol], *words])
        table = np.array(made, np.int64).reshape(-1, _CHUNK_WORDS)
        self.bound = replace(self.bound, make_chunks=lambda: Chunks(table, kept))

    def _extents(self, entry: EntryPoint) -> tuple[int, int]:
        """Returns the registers of an entry point's pieces and lines. Without lines, there are no
        pieces.
        """
        code, lines = self.code, lines_of(entry)
        pieces, count = self._register_of_size(entry.grid), self._register_of_size(lines)
        if entry.lines and code.intervals[count][0] == 0:
            some = code.binary(native_sizes.LEAST, count, code.register(1))
            pieces = code.binary(native_sizes.MULTIPLY, pieces, some)
        return pieces, count

    def _cost(self, entry: EntryPoint) -> float:
        """Returns the nanoseconds of an entry point at the largest counts."""
        if entry.cost_fs is None:
            return entry.cost
        return self.most.value(entry.cost_fs) / FS_PER_NS

    def _chunk(self, row: int, extents: tuple[int, int], share: int, shares: int) -> list[int]:
        """Has the run write the ranges of a chunk: a share of the pieces, or of the lines if there
        are more of these. Returns those that counts do not decide.
        """
        code = self.code
        most = [code.intervals[extent][1] for extent in extents]
        words: list[int] = []
        shared = 0 if most[0] >= min(most[1], shares) else 1
        for axis, extent in enumerate(extents):
            cuts = (share, share + 1) if axis == shared else (0, shares)
            for word, cut in zip(_RANGES[axis], cuts, strict=True):
                part = code.binary(native_sizes.MULTIPLY, extent, code.register(cut))
                found = code.binary(native_sizes.DIVIDE, part, code.register(shares))
                self.words[row, word] = found
                words.append(code.initial[found])
        return words

    def _register_of_size(self, dim: Dim) -> int:
        """Returns the register of a size, which must not be negative in a run."""
        register = self.code.register(dim)
        if self.code.intervals[register][0] < 0:
            self._need(register)
        return register

    def _most(self, dim: Dim) -> int:
        """Returns the largest value of a size."""
        return max(0, self.code.intervals[self._register_of_size(dim)][1])

    def _need(self, register: int) -> None:
        """Has a run stop if a register is negative."""
        stage = self.code.stage_of[register]
        if stage:
            self._needs[stage].append(register)
        elif self.code.initial[register] < 0:
            raise TooLarge

    def needs(self, stage: int) -> list[int]:
        """Returns the registers that must not be negative in a stage."""
        return list(dict.fromkeys(self._needs[stage]))

    def run(self, arrays: Sequence[Any]) -> list[Any] | Limits | None:
        """Returns the results, larger limits, or None if the instructions must run one by one. Only
        the first arrays, one for each input, are read.
        """
        given = []
        for array, (rank, fixed, dtype) in zip(arrays, self._inputs):  # noqa: B905 - faster
            if type(array) is not _ARRAY:
                return None
            if array.dtype is not dtype and array.dtype != dtype:
                return None
            shape = array.shape
            if len(shape) != rank:
                return None
            for axis, size in fixed:  # a generator takes longer than the rest
                if shape[axis] != size:
                    return None
            flags = array.flags
            given.append(array if flags.c_contiguous and flags.aligned else readable(array))
        read_off = self._read_off
        sizes = [given[n].shape[axis] for n, axis in read_off] if read_off else None
        guard = self.source.guard
        if guard:
            found = [np.array(sizes, np.int64)] if sizes else []
            return self._run_guarded([*given, *found], guard)
        try:
            context = self._idle.pop()
        except IndexError:
            places = plain_places(self.bound, self.source.shared.constants, self.threads)
            context = _Context(self, places)
            self.source.shared.keeps(self)
        first = write_addresses(given, context.bases)
        if sizes:
            context.read_off[:] = sizes
            context.bases[first] = context.read_off_address
            first += 1
        memory = self._memory(context, first)
        stopped = context.go()
        results = self._shown(context, memory) if stopped is None else self._after(stopped)
        if context.is_usable and len(self._idle) < _IDLE_CONTEXTS:
            self._idle.append(context)
        return results

    def drop(self) -> None:
        """Drops idle contexts."""
        self._idle.clear()

    def _memory(self, context: _Context, first: int) -> list[tuple[np.ndarray, int]]:
        """Returns memory for each output, with the place where it begins. Writes the addresses to
        the context's bases from number `first` on.
        """
        if self._outputs.total_bytes >= LARGE_BYTES:
            rooms = [room_for(size) for size in self.outputs_bytes]
            context.bases[first:] = [room[2] for room in rooms]
            return [(memory, begin) for memory, begin, _ in rooms]
        room = context.room
        if room is None or getrefcount(room.memory) != UNHELD:
            room = context.room = Room(self._outputs)
            context.bases[first:] = [room.address + at for at in self._outputs.offsets]
        return [(room.memory, begin) for _, _, begin in room.views]

    def _shown(self, context: _Context, memory: list[tuple[np.ndarray, int]]) -> list[Any]:
        """Returns the results of a run; copies if much of their memory is unused."""
        registers, results = context.registers, []
        for output, at, dims, dtype in self._results:
            whole, begin = memory[output]
            shape = tuple([registers[d] for d in dims])
            results.append(_ARRAY(shape, dtype, whole, begin + registers[at]))
        spare = self._outputs.total_bytes - 2 * _SPARE_BYTES
        if spare > 0 and spare > 2 * sum([result.nbytes for result in results]):
            return [result.copy() for result in results]
        return results

    def _after(self, stopped: tuple[int, ...]) -> Limits | None:
        """Returns the limits for counts with which a run stopped, or None if they are not what
        stopped it. `stopped` has the counts that were found.
        """
        found = zip(self.limits, stopped, strict=False)
        limits = Limits(
            [n if c <= n else 1 << (c - 1).bit_length() for n, c in found]
            + list(self.limits[len(stopped) :])
        )
        is_larger = limits != self.limits and all(0 <= c <= _MOST for c in stopped)
        return limits if is_larger else None

    def _run_guarded(
        self, given: Sequence[np.ndarray], side: GuardSide
    ) -> list[Any] | Limits | None:
        """Finds the counts; then runs with buffers of exactly the sizes that they need."""
        places = plain_places(self.bound, self.source.shared.constants, self.threads)
        context = _Context(self, places)
        memory = self._memory(context, write_addresses(given, context.bases))
        stopped = context.go()
        del memory  # was needed for as long
        if stopped is not None:
            return self._after(stopped)
        # Counts in loops may have been larger in earlier iterations.
        limits = list(context.registers[: len(self.limits)])
        while True:
            found = Tables(self.source, limits)._guarded(given, side)
            if not isinstance(found, Limits):
                return found
            assert all(map(operator.le, found, self.limits)), "larger counts in another run"
            limits = list(found)

    def _guarded(self, given: Sequence[np.ndarray], side: GuardSide) -> list[Any] | Limits:
        arena = [GuardedBuffer(size, side=side) for size in self.arena_bytes]
        scratch = GuardedBuffer(self.bound.most_scratch_bytes, side=side, count=self.threads)
        specs = self.bound.outputs
        outputs = [
            GuardedBuffer(size, align_bytes=spec.itemsize, side=side)
            for size, spec in zip(self.outputs_bytes, specs, strict=True)
        ]
        inputs = [GuardedBuffer(a.nbytes, align_bytes=a.itemsize, side=side) for a in given]
        for buffer, array in zip(inputs, given, strict=True):
            buffer.data[:] = array.reshape(-1).view(np.uint8)
        places = Places(
            self.source.shared.constants.addresses,
            [buffer.address for buffer in arena],
            scratch.address,
            scratch.stride_bytes,
            (arena, scratch),
        )
        context = _Context(self, places)
        context.bases[:] = [buffer.address for buffer in (*inputs, *outputs)]
        stopped = context.go()
        for buffer in (*arena, scratch, *outputs, *inputs):
            buffer.check("a buffer of counted sizes")
        if stopped is not None:
            assert any(map(operator.gt, stopped, self.limits)), "the same counts stop a run"
            left = self.limits[len(stopped) :]
            return Limits([*map(max, self.limits, stopped), *left])
        results = self._shown(context, [(buffer.data, 0) for buffer in outputs])
        return [result.copy() for result in results]


class _Context(Context):
    """The tables of a run, for one call at a time."""

    def __init__(self, tables: Tables, places: Places) -> None:
        super().__init__(tables.bound, tables.source.library, places)
        code, body = tables.code, tables.source.body
        self.registers = (ctypes.c_int64 * len(code.initial))(*code.initial)
        self.is_usable = True
        self.room: Room | None = None  # the memory of its results, whose addresses are in `bases`
        self.read_off = (ctypes.c_int64 * len(body.read_off))()
        self.read_off_address = ctypes.addressof(self.read_off)
        self._pool = tables.source.pool.address
        self._has_loops = bool(tables.bound.loops)
        self._run = driver().run_segment
        self._no_records = bytes(len(self.records))
        self._limits = tables.limits
        # The loops that stack rows, each with the number of the count of its rows.
        self._capacities = {n: body.names.index(name) for n, name in body.capacities.items()}
        for loop, number in self._capacities.items():
            self.loops.limit_rows(loop, tables.limits[number])
        # By stage: how many counts are known then. Their registers are the first.
        self._ends = [*code.first[1:], len(tables.limits)]
        args, chunks = address_of(self._args), address_of(self._chunks)
        steps = address_of(self._steps)
        zero = self._zero = ctypes.c_int64()
        nothing = ctypes.addressof(zero)
        # Targets: a register, its destination address, and two addends: a number, and one in
        # memory.
        goals: list[tuple[int, int, int, int]] = []
        slots = self._layout.size_slots.tolist()
        goals += [
            (register, args + 8 * slot, 0, nothing)
            for register, slot in zip(tables.sizes, slots, strict=True)
        ]
        goals += [
            (register, chunks + 8 * (row * _CHUNK_WORDS + word), 0, nothing)
            for (row, word), register in tables.words.items()
        ]
        for place, register in tables.copied.items():
            step = self._layout.starts[place]
            extra = steps + native.STEP_BYTES * step + native.STEP_EXTRA
            goals.append((register, extra, 0, nothing))
        for slot, sized in self._layout.sized_slots:
            base = int(self._args[slot]) - tables.bound.distances[sized]
            goals.append((tables.distances[sized], args + 8 * slot, base, nothing))
        for row, sized in self._layout.sized_patches:
            at, base, offset = self._layout.patches[row].tolist()
            output = self.bases_address + 8 * base
            goals.append((tables.distances[sized], args + at, offset, output))
        shapes: list[list[tuple[int, int, int, int]]] = [[] for _ in body.stages]
        starts = self._layout.first_args
        for stage, number, registers in tables.shapes:
            address = int(self._args[starts[body.stages[stage][0]] + number])
            shapes[stage] += [(r, address + 8 * n, 0, nothing) for n, r in enumerate(registers)]
        self._tables = [_Table() for _ in body.stages]
        self._owned: list[np.ndarray] = []
        for stage, (place, names) in enumerate(body.stages):
            own = [goal for goal in goals if code.stage_of[goal[0]] == stage + 1]
            first = code.first[stage]
            limits = tables.limits[first : first + len(names)]
            parts = (limits, code.stages[stage + 1], tables.needs(stage + 1), own + shapes[stage])
            words = [np.array(part, np.int64).reshape(-1) for part in parts]
            self._owned += words
            self._tables[stage][:] = [
                *(len(names), address_of(words[0]), ctypes.addressof(self.registers), first),
                *(len(parts[1]), address_of(words[1]), len(parts[2]), address_of(words[2])),
                *(len(parts[3]), address_of(words[3]), 0),
            ]
            table = ctypes.addressof(self._tables[stage])
            self._steps[self._layout.starts[place], native.STEP_EXTRA // 8] = table

    def go(self) -> tuple[int, ...] | None:
        """Runs with the inputs and outputs at `bases`. Returns None if that succeeded; otherwise
        the counts that were found until the run stopped.
        """
        if self._has_loops:
            self.loops.clear(current().loop_steps)
        run, status = self._run, native.PAUSED
        places = self.segment_address, self.bases_address, self._pool, None
        while status >= native.PAUSED and status != native.FULL:  # Python handles signals here
            status = run(*places)
        if status == native.FULL:
            self.is_usable = False
            return self._counts_if_full()
        for stage, table in enumerate(self._tables):
            if table[_FAULT]:
                table[_FAULT] = 0
                return tuple(self.registers[: self._ends[stage]])
        if (self._has_loops and self.loops.stopped) or self.records != self._no_records:
            self.is_usable = False
            return ()
        return None

    def _counts_if_full(self) -> tuple[int, ...]:
        """Returns the counts that stop a run in which a loop has no memory for another row."""
        counts = list(self._limits)
        for loop, number in self._capacities.items():
            if self.loops.is_full(loop):
                counts[number] += 1
        return tuple(counts)


def _bytes_of(shape: Sequence[Dim], dtype: str) -> Dim:
    return product((*shape, np.dtype(dtype).itemsize))
