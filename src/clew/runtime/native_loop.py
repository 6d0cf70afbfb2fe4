"""Runs loops whose sizes change with the iterations in the native driver, without Python between
iterations.

The loop runs in *windows* of iterations (`loop_window.py`). A state moves between two buffers, so
that its value before the window stays as it is. A state to which the body only appends stays in one
buffer; each iteration writes behind the rows of the one before.

A window ends before the first iteration that the kernels for all sizes do not serve, and has as
many iterations as the budgets of memory allow. If an index is out of range, the results of the
window are discarded. The instruction `Repeat` then goes on in Python, from the last values of the
states, and reports errors in the iteration and the layer where they occur.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ctypes import memmove
from typing import Any, Final, NamedTuple

import numpy as np

from clew.codegen.driver import driver as native
from clew.runtime.context import Places, plain_places
from clew.runtime.driver import driver
from clew.runtime.guard import GuardedBuffer, GuardSide
from clew.runtime.layout import SymbolTable
from clew.runtime.loop_body import LoopBody, LoopNumbers
from clew.runtime.loop_window import Given, Place, Window
from clew.runtime.results import Results, Spec
from clew.runtime.segment import readable
from clew.runtime.threads import ThreadPool
from clew.runtime.watch import Watch
from clew.support.addresses import write_addresses
from clew.support.budgets import Budgets, current
from clew.support.locks import Lock
from clew.support.shown import Shown, counted

# The iterations of the first window of a loop that a condition ends, before its first call; the
# next window has as many as have run so far.
_FIRST_ROWS: Final = 64
# A call of such a loop has room for as many iterations as recent calls took, and for so many.
_FEWEST_ROWS: Final = 8
_ARRAY: Final = np.ndarray
_KEPT_WINDOWS: Final = 16
# A result may have as much unused room as data, and this many bytes.
_SPARE_BYTES: Final = 4096


class Ran(NamedTuple):
    """Iterations that have run: their number, the states and the stacked values after them, and
    whether the condition has ended the loop.
    """

    iterations: int
    states: list[Any]
    stacks: list[np.ndarray]
    is_over: bool


class NativeLoop(Shown):
    """A loop that is ready to run; `sizes` are those of the model. Several threads may use it at
    once.
    """

    def __init__(
        self,
        body: LoopBody,
        library: SymbolTable,
        pool: ThreadPool,
        *,
        guard: GuardSide | bool = False,
        sizes: Mapping[str, int] | None = None,
        like: NativeLoop | None = None,
    ) -> None:
        """`like` is the loop at other sizes of the model. With `guard`, each buffer is placed
        between inaccessible pages and has the exact size of an iteration (for tests; slow).
        """
        self.body = body
        self._library, self._pool = library, pool
        self._guard = GuardSide.END if guard is True else guard
        self._sizes = dict(sorted((sizes or {}).items()))
        self._numbers: LoopNumbers
        self._numbers = LoopNumbers(body, pool.threads) if like is None else like._numbers
        # By sizes of the model, first iteration, and sizes of the loop there.
        self._windows: dict[tuple[int, ...], Window | None]
        self._windows = {} if like is None else like._windows
        self._lock: Lock = Lock() if like is None else like._lock
        self._watch: Watch | None = None
        self._key = tuple(self._sizes.values())
        self._is_serial = pool.threads == 1
        self._growing = [(growth.state, growth.axis) for growth in body.growth]
        # The iterations that recent calls took, if a condition ends the loop.
        self._usual = _FIRST_ROWS - 1

    def _about(self) -> str:
        return f"of {counted(len(self.body.segment.steps), 'kernel')}"

    def at(self, sizes: Mapping[str, int]) -> NativeLoop:
        """Returns the loop at given sizes of the model."""
        return NativeLoop(
            self.body, self._library, self._pool, guard=self._guard, sizes=sizes, like=self
        )

    def watched(self, watch: Watch) -> NativeLoop:
        """Returns a copy of the loop whose runs are timed by `watch`."""
        made = NativeLoop(
            self.body, self._library, self._pool, guard=self._guard, sizes=self._sizes, like=self
        )
        made._watch = watch
        return made

    @property
    def n_entries(self) -> int:
        """The number of steps that the driver runs and times."""
        return self._numbers.layout.n_steps

    def by_step(self, entries: np.ndarray) -> np.ndarray:
        """Returns values per step of the body's segment, summed from values per driver step."""
        step_of = self._numbers.layout.step_of
        kernels = step_of >= 0
        return np.bincount(step_of[kernels], entries[kernels], len(self.body.origins))

    def trips(self, states: Sequence[Any]) -> int | None:
        """Returns the number that iterations are counted to, if nothing else ends the loop."""
        limit = self.body.limit
        return None if limit is None else int(states[limit])

    def run(self, states: Sequence[Any], step: int, trips: int | None) -> Ran | None:
        """Runs iterations from number `step` on, up to `trips` if that is known, which is larger.
        Returns None if the next iteration needs Python.
        """
        budgets = current()
        if budgets.bounds_work:
            return None
        wanted = max(_FIRST_ROWS, step) if trips is None else trips - step
        if wanted > budgets.loop_steps - step:
            wanted = budgets.loop_steps - step
        if self._guard:
            wanted = min(wanted, 1)
        window = self._window(states, step, wanted, budgets) if wanted > 0 else None
        if window is None:
            return None
        rows = wanted if wanted < window.rows else window.rows
        if trips is not None:
            return self._run(window, states, rows, budgets)
        if not step:
            rows = min(rows, max(_FEWEST_ROWS, 1 << self._usual.bit_length()))
        ran = self._run(window, states, rows, budgets)
        if ran is not None and ran.is_over:
            self._usual = max(step + ran.iterations, self._usual // 2)
        return ran

    def _window(
        self, states: Sequence[Any], step: int, wanted: int, budgets: Budgets
    ) -> Window | None:
        """Returns the window from an iteration on, of at least one row; None if there is none, or
        if a state has another shape or dtype than the loop's input.
        """
        begin = tuple(
            [int(states[s]) if axis is None else states[s].shape[axis] for s, axis in self._growing]
        )
        key = (*self._key, step, *begin)
        found = self._windows.get(key)
        if found is not None and found.serves(wanted, budgets):
            return found if _fit(states, found.given) else None
        if found is None and key in self._windows:
            return None
        shapes = self._numbers.shapes(self._sizes, begin)
        if not _fit(states, [(n, *s) for n, s in zip(self.body.inputs, shapes, strict=True)]):
            return None
        rows = wanted if found is None else max(wanted, 2 * found.rows)
        made = Window.of(self._numbers, self._library, self._sizes, begin, step, rows, budgets)
        with self._lock:
            self._windows.pop(key, None)
            self._windows[key] = made
            while len(self._windows) > _KEPT_WINDOWS:
                del self._windows[next(iter(self._windows))]
        return made

    def _run(
        self, window: Window, states: Sequence[Any], rows: int, budgets: Budgets
    ) -> Ran | None:
        context = None if self._guard else window.take()
        if context is None:
            context = window.context(self._places(window))
        given = []
        for state in self.body.inputs:
            array = states[state]
            given.append(array if array.flags.carray else readable(array))
        write_addresses(given, context.bases)
        results = window.results_of(rows)
        buffers = self._buffers(window, results)
        memory = context.results_in(results, buffers)
        bases, first = context.bases, len(given)
        for place, output in window.filled:
            memmove(bases[first + output], bases[place], given[place].nbytes)
        context.begin(rows, budgets.loop_steps)
        run, segment, at = driver().run_segment, context.segment_address, context.bases_address
        pool = None if self._is_serial else self._pool.address
        watch = None if self._watch is None else self._watch.address
        while run(segment, at, pool, watch) >= native.PAUSED:
            pass  # Python handles signals here
        del given
        done = context.loops.total(0)
        if context.loops.stopped or (context.records and any(context.records)):
            return None  # the context is not used again
        for number, buffer in enumerate(buffers):
            buffer.check(f"output {number} of a loop")
            memory[number] = buffer.data.copy(), 0
        copies = None if results.are_small else results
        found, stacks = _results(window, memory, done, states, copies)
        if not self._guard:
            window.give(context)
        return Ran(done, found, stacks, done < rows)

    def _buffers(self, window: Window, results: Results) -> list[GuardedBuffer]:
        """Returns the memory of the outputs of a guarded call."""
        if not self._guard:
            return []
        return [
            GuardedBuffer(shape[0], align_bytes=spec.itemsize, side=self._guard)
            for spec, (shape, _) in zip(window.bound.outputs, results.specs, strict=True)
        ]

    def _places(self, window: Window) -> Places:
        """Returns memory for the arena and scratch of a context."""
        bound, constants, threads = window.bound, self._numbers.constants, self._pool.threads
        if not self._guard:
            return plain_places(bound, constants, threads)
        arena = [
            GuardedBuffer(int(size), side=self._guard)
            for size in window.columns["arena"][:, : window.rows].max(axis=1)
        ]
        scratch = GuardedBuffer(bound.most_scratch_bytes, side=self._guard, count=threads)
        return Places(
            constants.addresses,
            [buffer.address for buffer in arena],
            scratch.address,
            scratch.stride_bytes,
            (arena, scratch),
        )


def _fit(states: Sequence[Any], given: Sequence[Given]) -> bool:
    """Whether the states that a window reads have its shapes and dtypes."""
    for state, shape, dtype in given:
        array = states[state]
        if type(array) is not _ARRAY or array.shape != shape or array.dtype != dtype:
            return False
    return True


def _results(
    window: Window,
    memory: Sequence[Place],
    done: int,
    states: Sequence[Any],
    room: Results | None,
) -> tuple[list[Any], list[np.ndarray]]:
    """Returns the states and the stacked values after so many iterations, from the memory of each
    output. They are copies if much of their memory, of the sizes in `room`, is unused.
    """
    ends, stacked = window.results_after(done)
    found, stacks = list(states), []
    for state, output, shape, dtype in ends:
        array, begin = memory[output]
        found[state] = _ARRAY(shape, dtype, array, begin)
    for output, shape, dtype in stacked:
        array, begin = memory[output]
        stacks.append(_ARRAY(shape, dtype, array, begin))
    if room is not None:
        specs = room.specs
        for state, output, _, _ in ends:
            found[state] = _without_spare(found[state], specs[output])
        for number, (output, _, _) in enumerate(stacked):
            stacks[number] = _without_spare(stacks[number], specs[output])
    return found, stacks


def _without_spare(array: np.ndarray, room: Spec) -> np.ndarray:
    ((room_bytes,), _) = room
    return array.copy() if room_bytes > 2 * array.nbytes + _SPARE_BYTES else array
