"""Windows: the numbers of many iterations of a loop, and the driver's tables that read them.

Each iteration begins with a step (`ROW`) that writes the next row of a table into the driver's
tables: what kernels take as sizes, ranges of grids, positions in buffers. Buffers have room for the
largest iteration of the window.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from sys import getrefcount
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from clew.codegen.driver import driver as native
from clew.codegen.driver import flow as native_flow
from clew.ir.dims import Sizes
from clew.machine.costs import DEFAULTS, FS_PER_NS
from clew.runtime.bound import Bound, Chunks
from clew.runtime.context import Context, Places
from clew.runtime.guard import GuardedBuffer
from clew.runtime.layout import SymbolTable
from clew.runtime.loop_body import LoopBody, LoopNumbers
from clew.runtime.plan import BufferSpec, Flow, LoopPlan
from clew.runtime.results import UNHELD, Results, Room
from clew.support.addresses import address_of
from clew.support.arrays import number_dtype
from clew.support.budgets import Budgets
from clew.support.dataclass import dataclass
from clew.support.lazy import cached_property

# The most bytes of a table: some thousand iterations, which take longer than to make it.
_TABLE_BYTES: Final = 1 << 20
# The idle contexts that a window keeps, and the most bytes that each may work in.
_IDLE_CONTEXTS, _IDLE_BYTES = 2, 1 << 22
_CHUNK_WORDS: Final = native.CHUNK_BYTES // 8
_POSITION, _COUNT = native_flow.ROWS_POSITION // 8, native_flow.ROWS_COUNT // 8

# A state that a window reads: its number, shape and dtype.
Given: TypeAlias = "tuple[int, tuple[int, ...], np.dtype[Any]]"
# A stacked value: its output, shape and dtype. A state has its number before them.
Stacked: TypeAlias = "tuple[int, tuple[int, ...], np.dtype[Any]]"
End: TypeAlias = "tuple[int, int, tuple[int, ...], np.dtype[Any]]"
# The memory of an output: an array, and where the output begins there.
Place: TypeAlias = "tuple[np.ndarray[Any, Any], int]"
# Room for results is made for a multiple of so many iterations, so that calls of various numbers
# of iterations use the same memory.
_ROWS_AT_ONCE: Final = 8


class ChunkRows(NamedTuple):
    """The division of work in each iteration: `words` is i64[rows, chunks, 5], with the number of a
    function in place of its address, `used` i64[rows, phases] the number of chunks of each phase,
    and `kept` i64[phases] the number that the driver's table has room for.
    """

    words: np.ndarray
    used: np.ndarray
    kept: np.ndarray

    @staticmethod
    def of(numbers: LoopNumbers, columns: Mapping[str, np.ndarray], rows: int) -> ChunkRows:
        """Returns the division among the threads of `numbers`: a phase of enough work has a chunk
        per entry point and thread, any other one per entry point.
        """
        threads, phases = numbers.threads, numbers.phases
        number = {symbol: n for n, symbol in enumerate(numbers.layout.symbols)}
        functions = np.array([number[entry.symbol] for entry in numbers.entries], np.int64)
        has_lines = np.array([bool(entry.lines) for entry in numbers.entries], bool)
        lines = columns["lines"][:, :rows].T
        grids = np.where(has_lines & (lines == 0), 0, columns["grids"][:, :rows].T)
        counts = np.array([len(phase) for phase in phases], np.int64)
        words = np.zeros((rows, len(functions) * threads, _CHUNK_WORDS), np.int64)
        used = np.tile(counts, (rows, 1))
        begin = 0
        for place, count in enumerate(counts.tolist()):
            mine = slice(begin, begin + count)
            part = words[:, begin * threads : (begin + count) * threads]
            part[:, :count, 0] = functions[mine]
            part[:, :count, 2], part[:, :count, 4] = grids[:, mine], lines[:, mine]
            begin += count
            if threads > 1:
                cost = columns["costs"][mine, :rows].sum(axis=0) / FS_PER_NS
                parts = (grids[:, mine] * lines[:, mine]).sum(axis=1)
                shared = (cost >= DEFAULTS.serial_below) & ((parts > 1) | (count > 1))
                used[shared, place] = count * threads
                _share(part, shared, functions[mine], grids[:, mine], lines[:, mine], threads)
        return ChunkRows(words, used, counts * threads)


def _share(
    part: np.ndarray,
    shared: np.ndarray,
    functions: np.ndarray,
    grids: np.ndarray,
    lines: np.ndarray,
    threads: int,
) -> None:
    """Divides a phase in the rows where threads share it: along pieces, or along lines if an entry
    point has more of these.
    """
    for entry, function in enumerate(functions.tolist()):
        pieces, own = grids[shared, entry], lines[shared, entry]
        across = pieces >= np.minimum(own, threads)
        for thread in range(threads):
            chunk = np.zeros((len(pieces), _CHUNK_WORDS), np.int64)
            chunk[:, 0] = function
            for word, total, cut in ((1, pieces, across), (3, own, ~across)):
                chunk[:, word] = np.where(cut, total * thread // threads, 0)
                chunk[:, word + 1] = np.where(cut, total * (thread + 1) // threads, total)
            part[shared, entry * threads + thread] = chunk


@dataclass
class Window:
    """Some iterations of a loop, from number `step` on. `room` is i64[outputs, rows]: the bytes
    that each output needs for so many iterations. With `is_whole`, the window cannot have more
    rows within `budgets`.
    """

    numbers: LoopNumbers
    library: SymbolTable
    step: int
    rows: int
    is_whole: bool
    budgets: Budgets
    bound: Bound
    columns: Mapping[str, np.ndarray]
    chunks: ChunkRows
    room: np.ndarray
    _idle: deque[LoopContext] = field(default_factory=deque)  # pop and append need no lock
    _results: dict[int, Results] = field(default_factory=dict)
    _ends: dict[int, tuple[list[End], list[Stacked]]] = field(default_factory=dict)

    @staticmethod
    def of(
        numbers: LoopNumbers,
        library: SymbolTable,
        sizes: Mapping[str, int],
        begin: tuple[int, ...],
        step: int,
        wanted: int,
        budgets: Budgets,
    ) -> Window | None:
        """Returns the window of up to `wanted` iterations from the one at sizes `begin` on, which
        is number `step`; None if there is none. It ends before the first iteration at whose sizes a
        kernel does not serve.
        """
        width = len(numbers.layout.size_slots) + 5 * len(numbers.entries) * numbers.threads
        rows = max(1, min(wanted, _TABLE_BYTES // (8 * (width + 1))))
        while True:
            columns = numbers.columns(sizes, begin, rows + 1)
            if columns is None:
                return None
            rows = _served(columns, rows)
            bound = _bound(numbers, sizes, columns, rows) if rows else None
            if bound is None:
                return None
            room = _room(numbers.body, columns["outputs"], rows)
            scratch = bound.scratch_stride_bytes * numbers.threads
            needed = bound.arena_bytes + scratch + int(room[:, -1].sum())
            if needed <= budgets.allocated_bytes:
                break
            rows //= 2
            if not rows:
                return None
        for turn in (0, rows - 1):
            numbers.check(columns, turn)
        chunks = ChunkRows.of(numbers, columns, rows)
        kept = np.zeros(numbers.layout.n_steps, np.int64)
        kept[numbers.layout.step_of >= 0] = chunks.kept
        bound = replace(bound, make_chunks=lambda: Chunks(chunks.words[0], kept))
        return Window(
            numbers, library, step, rows, rows < wanted, budgets, bound, columns, chunks, room
        )

    def serves(self, wanted: int, budgets: Budgets) -> bool:
        """Whether the window has as many rows as it can have, up to a number."""
        same = self.budgets is budgets or self.budgets == budgets
        return same and (self.rows >= wanted or self.is_whole)

    @cached_property
    def given(self) -> list[Given]:
        """The states that it reads."""
        specs, states = self.bound.inputs, self.numbers.body.inputs
        both = zip(states, specs, strict=True)
        return [(state, spec.shape, number_dtype(spec.dtype)) for state, spec in both]

    @cached_property
    def filled(self) -> list[tuple[int, int]]:
        """The inputs that are copied to an output: the states to which the loop appends."""
        body = self.numbers.body
        return [
            (body.inputs.index(state), output)
            for state, (output, _) in zip(body.moving, body.ends, strict=True)
            if state in body.appended
        ]

    def results_of(self, rows: int) -> Results:
        """Returns the memory of each output, in bytes, for at least so many iterations."""
        rows = min(self.rows, -(-rows // _ROWS_AT_ONCE) * _ROWS_AT_ONCE)
        found = self._results.get(rows)
        if found is None:
            sizes = self.room[:, rows - 1].tolist()
            found = self._results[rows] = Results([((size,), np.dtype(np.uint8)) for size in sizes])
        return found

    def results_after(self, iterations: int) -> tuple[list[End], list[Stacked]]:
        """Returns the states in `LoopBody.moving`, each with its value, and the stacked values
        after so many iterations. No state moves before the first.
        """
        found = self._ends.get(iterations)
        if found is None:
            body, outputs = self.numbers.body, self.bound.outputs
            ends = []
            for state, both in zip(body.moving, body.ends, strict=True) if iterations else ():
                output = both[1 - iterations % 2]
                shape = self._shape(body.inputs.index(state), iterations)
                ends.append((state, output, shape, number_dtype(outputs[output].dtype)))
            first = len(outputs) - body.stacks
            stacks = [
                (number, (iterations, *spec.shape), number_dtype(spec.dtype))
                for number, spec in enumerate(outputs[first:], first)
            ]
            found = self._ends[iterations] = ends, stacks
        return found

    def _shape(self, place: int, iterations: int) -> tuple[int, ...]:
        """Returns the shape of an input's state after so many iterations."""
        specs = self.bound.inputs
        begin = sum(len(spec.shape) for spec in specs[:place])
        rank = len(specs[place].shape)
        return tuple(self.columns["inputs"][begin : begin + rank, iterations].tolist())

    def context(self, places: Places) -> LoopContext:
        """Returns a context that works in a certain memory."""
        return LoopContext(self, places)

    def take(self) -> LoopContext | None:
        """Returns an idle context, if there is one."""
        try:
            return self._idle.pop()
        except IndexError:
            return None

    @cached_property
    def _keeps_contexts(self) -> bool:
        return self.bound.working_bytes(self.numbers.threads) <= _IDLE_BYTES

    def give(self, context: LoopContext) -> None:
        """Keeps a context for later calls."""
        if len(self._idle) < _IDLE_CONTEXTS and self._keeps_contexts:
            self._idle.append(context)


def _served(columns: Mapping[str, np.ndarray], rows: int) -> int:
    """Returns the number of iterations at whose sizes all kernels serve."""
    fits = (columns["outputs"][:, 1:] >= 0).all(axis=0)
    for name in ("sizes", "grids", "lines", "scratch", "arena", "copied", "needs"):
        fits &= (columns[name][:, :-1] >= 0).all(axis=0)
    return rows if fits.all() else int(fits.argmin())


def _room(body: LoopBody, sizes: np.ndarray, rows: int) -> np.ndarray:
    """Returns i64[outputs, rows]: the bytes of each output for so many iterations."""
    room = np.maximum.accumulate(sizes[:, 1 : rows + 1], axis=1)
    for number, state in enumerate(body.moving):
        if state in body.appended:  # it holds the first value as well
            output, _ = body.outputs_of(number)
            room[output] = np.maximum(room[output], sizes[output, 0])
    if body.stacks:
        room[-body.stacks :] = sizes[-body.stacks :, :1] * np.arange(1, rows + 1)
    return room


def _bound(
    numbers: LoopNumbers, sizes: Mapping[str, int], columns: Mapping[str, np.ndarray], rows: int
) -> Bound:
    """Returns what a run needs, with the numbers of the first iteration, and room for the largest
    one.
    """
    body, segment = numbers.body, numbers.body.segment
    first = {name: values[:, 0].tolist() for name, values in columns.items()}
    arena, scratch = (columns[n][:, :rows].max(axis=1).tolist() for n in ("arena", "scratch"))
    offsets, total = segment.arena.offsets(arena)
    shape = iter(first["inputs"])
    inputs = [
        BufferSpec(spec.name, tuple([next(shape) for _ in spec.shape]), spec.dtype)
        for spec in segment.inputs
    ]
    flows = {place: e for place, e in enumerate(segment.entries) if isinstance(e, Flow)}
    for place, size in zip(segment.copied, first["copied"], strict=True):
        flows[place] = replace(flows[place], size_bytes=size)
    shape = iter(first["rows"])
    outputs = [
        BufferSpec(spec.name, tuple([next(shape) for _ in spec.shape]), spec.dtype)
        for spec in segment.outputs
    ]
    strides = first["outputs"][len(first["outputs"]) - body.stacks :]
    own = LoopPlan(0, (0,) * len(body.moving), tuple(strides))
    at = Sizes(sizes)
    return Bound(
        numbers.layout,
        tuple(inputs),
        tuple(outputs),
        offsets,
        total,
        scratch,
        first["sizes"],
        lambda: Chunks(np.empty(0), np.empty(0)),
        (own, *(loop.at(at) for loop in segment.loops[1:])),
        flows=flows,
        distances=first["distances"],
    )


class LoopContext(Context):
    """The tables of a window, for one call at a time."""

    def __init__(self, window: Window, places: Places) -> None:
        super().__init__(window.bound, window.library, places)
        self.room: Room | None = None
        self.spare: Room | None = None
        self._room_of: Results | None = None
        self._first = len(window.bound.inputs)
        body = window.numbers.body
        targets, numbers = self._written(window)
        varies = (numbers != numbers[0]).any(axis=0)
        varies[: 2 + len(window.columns["shapes"])] = True  # nothing else writes these
        data = np.ascontiguousarray(numbers[:, varies])
        goals = np.ascontiguousarray(targets[varies])
        moved = any(sized >= 0 for _, _, sized in self._layout.moved)
        loop = self.loops.address(0) if moved else 0
        self._rows = np.array(
            [0, 0, data.shape[1], address_of(data), address_of(goals), loop], np.int64
        )
        assert self._rows.nbytes == native_flow.ROWS_BYTES
        self._owned = data, goals
        kernels = self._layout.step_of >= 0
        self._steps[kernels, native.STEP_CHUNKS // 8] = window.chunks.used[0]
        place = self._layout.starts[body.rows]
        self._steps[place, native.STEP_EXTRA // 8] = address_of(self._rows)

    def results_in(self, results: Results, guarded: Sequence[GuardedBuffer]) -> list[Place]:
        """Returns the memory of the outputs of a call, and writes its addresses to `bases`. The
        memory is `guarded` if that is given. For small results, it is that of an earlier call if
        nothing refers to it.
        """
        if results.are_small and not guarded:
            room = self.room
            if room is None or self._room_of is not results or getrefcount(room.memory) != UNHELD:
                room = self._new_room(results)
            memory = room.memory
            return [(memory, begin) for _, _, begin in room.views]
        self._room_of = None
        if guarded:
            self._write([buffer.address for buffer in guarded])
            return [(buffer.data, 0) for buffer in guarded]
        arrays, addresses = results.apart()
        self._write(addresses)
        return [(array, 0) for array in arrays]

    def _new_room(self, results: Results) -> Room:
        """Gives the context other memory for small results: that before the last, or new memory if
        that is in use, too. Writes its addresses to `bases`.
        """
        if self._room_of is results:
            room, self.spare = self.spare, self.room
        else:
            room = self.spare = None
        if room is None or getrefcount(room.memory) != UNHELD:
            room = Room(results)
        self.room, self._room_of = room, results
        self._write([room.address + offset for offset in results.offsets])
        return room

    def _write(self, addresses: Sequence[int]) -> None:
        """Writes the addresses of outputs to `bases`."""
        for position, address in enumerate(addresses, self._first):
            self.bases[position] = address

    def begin(self, rows: int, most_iterations: int) -> None:
        """Prepares a run of so many rows. No loop may take more iterations than given."""
        self.loops.clear(most_iterations)
        self._rows[_POSITION] = 0
        self._rows[_COUNT] = rows

    def _written(self, window: Window) -> tuple[np.ndarray, np.ndarray]:
        """Returns the addresses that numbers go to, i64[n], and the numbers, i64[rows, n]. The
        first are the counters, and the shapes that the body reads.
        """
        rows, columns, layout = window.rows, window.columns, self._layout
        args, steps = address_of(self._args), address_of(self._steps)
        turns = window.step + np.arange(rows)
        first = layout.first_args[window.numbers.body.rows]
        targets: list[np.ndarray] = [self._args[first : first + 2]]
        numbers: list[np.ndarray] = [np.stack([turns, turns + 1], axis=1)]
        for number, shape in enumerate(window.numbers.body.shapes, first + 2):
            targets.append(self._args[number] + 8 * np.arange(len(shape)))
        numbers.append(columns["shapes"][:, :rows].T)
        targets.append(args + 8 * layout.size_slots)
        numbers.append(columns["sizes"][:, :rows].T)
        chunks = address_of(self._chunks)
        words = window.chunks.words.copy()
        words[:, :, 0] = self._functions[words[:, :, 0]]
        targets.append(chunks + 8 * np.arange(words[0].size))
        numbers.append(words.reshape(rows, -1))
        kernels = np.flatnonzero(layout.step_of >= 0)
        targets.append(steps + native.STEP_BYTES * kernels + native.STEP_CHUNKS)
        numbers.append(window.chunks.used)
        copies = [layout.starts[place] for place in window.numbers.body.segment.copied]
        targets.append(steps + native.STEP_BYTES * np.array(copies, np.int64) + native.STEP_EXTRA)
        numbers.append(columns["copied"][:, :rows].T)
        begin = {slot: self._args[slot] for slot, _ in layout.sized_slots}
        for slot, sized in layout.sized_slots:
            distance = columns["distances"][sized, :rows]
            targets.append(np.array([args + 8 * slot]))
            numbers.append((begin[slot] + distance - distance[0])[:, None])
        for place, (_, ref, sized) in enumerate(layout.moved):
            if sized >= 0:
                targets.append(np.array([self.loops.offset_address(layout.moved, place)]))
                numbers.append((ref.offset_bytes + columns["distances"][sized, :rows])[:, None])
        return np.concatenate(targets), np.concatenate(numbers, axis=1)
