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

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from clew.codegen.driver import driver as native
from clew.runtime.context import Places, plain_places
from clew.runtime.driver import driver
from clew.runtime.guard import GuardedBuffer, GuardSide
from clew.runtime.layout import SymbolTable
from clew.runtime.loop_body import LoopBody, LoopNumbers
from clew.runtime.loop_window import Window
from clew.runtime.memory import SMALL_BYTES, aligned_bytes, round_up, small_bytes
from clew.runtime.segment import readable
from clew.runtime.threads import ThreadPool
from clew.runtime.watch import Watch
from clew.support.addresses import address_of
from clew.support.arrays import ALIGNMENT_BYTES, number_dtype
from clew.support.budgets import current
from clew.support.dataclass import dataclass
from clew.support.locks import Lock
from clew.support.shown import Shown, counted

# The iterations of the first window of a loop that a condition ends; the next one has as many as
# have run so far.
_FIRST_ROWS: Final = 64
_ENDLESS: Final = 1 << 62
_KEPT_WINDOWS: Final = 16
# A result may have as much unused room as data, and this many bytes.
_SPARE_BYTES: Final = 4096


@dataclass(frozen=True)
class Ran:
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
        self._windows: OrderedDict[tuple[int, ...], Window | None]
        self._windows = OrderedDict() if like is None else like._windows
        self._lock: Lock = Lock() if like is None else like._lock
        self._watch: Watch | None = None

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
        begin = None if budgets.bounds_work else self._sizes_of(states)
        if begin is None:
            return None
        wanted = min(budgets.loop_steps, _ENDLESS if trips is None else trips) - step
        if self._guard:
            wanted = min(wanted, 1)
        elif trips is None:
            wanted = min(wanted, max(_FIRST_ROWS, step))
        window = self._window(step, begin, wanted) if wanted > 0 else None
        return None if window is None else self._run(window, states, min(wanted, window.rows))

    def _sizes_of(self, states: Sequence[Any]) -> tuple[int, ...] | None:
        """Returns the sizes that change, in the order of `growth`; None if a state has another
        shape or dtype than the loop's input.
        """
        begin = tuple(
            [
                int(states[g.state]) if g.axis is None else states[g.state].shape[g.axis]
                for g in self.body.growth
            ]
        )
        shapes = self._numbers.shapes(self._sizes, begin)
        for state, (shape, dtype) in zip(self.body.inputs, shapes, strict=True):
            array = states[state]
            if type(array) is not np.ndarray or array.shape != shape or array.dtype != dtype:
                return None
        return begin

    def _window(self, step: int, begin: tuple[int, ...], wanted: int) -> Window | None:
        """Returns the window from an iteration on, of at least one row; None if there is none."""
        budgets, key = current(), (*self._sizes.values(), step, *begin)
        with self._lock:
            known, found = key in self._windows, self._windows.get(key)
        if known and (found is None or found.serves(wanted, budgets)):
            return found
        rows = wanted if found is None else max(wanted, 2 * found.rows)
        made = Window.of(self._numbers, self._library, self._sizes, begin, step, rows, budgets)
        with self._lock:
            self._windows[key] = made
            self._windows.move_to_end(key)
            while len(self._windows) > _KEPT_WINDOWS:
                self._windows.popitem(last=False)
        return made

    def _run(self, window: Window, states: Sequence[Any], rows: int) -> Ran | None:
        context = None if self._guard else window.take()
        if context is None:
            context = window.context(self._places(window))
        given = [readable(states[n]) for n in self.body.inputs]
        memory = _Outputs(window, rows, self._guard)
        memory.fill(states)
        addresses = (*map(address_of, given), *memory.addresses)
        for position, address in enumerate(addresses):
            context.bases[position] = address
        context.begin(rows, current().loop_steps)
        run, segment, bases = driver().run_segment, context.segment_address, context.bases_address
        watch = None if self._watch is None else self._watch.address
        while run(segment, bases, self._pool.address, watch) >= native.PAUSED:
            pass  # Python handles signals here
        del given
        done = context.loops.total(0)
        if context.loops.stopped or any(context.records):
            return None  # the context is not used again
        memory.check()
        if not self._guard:
            window.give(context)
        return Ran(done, *memory.after(done, states), is_over=done < rows)

    def _places(self, window: Window) -> Places:
        """Returns memory for the arena and scratch of a context."""
        bound, constants, threads = window.bound, self._numbers.constants, self._pool.threads
        if not self._guard:
            return plain_places(bound, constants, threads)
        arena = [
            GuardedBuffer(int(size), side=self._guard)
            for size in window.columns["arena"][:, : window.rows].max(axis=1)
        ]
        scratch = GuardedBuffer(max(bound.scratch_bytes), side=self._guard, count=threads)
        return Places(
            constants.addresses,
            [buffer.address for buffer in arena],
            scratch.address,
            scratch.stride_bytes,
            (arena, scratch),
        )


class _Outputs:
    """The memory of the outputs of a call."""

    def __init__(self, window: Window, rows: int, guard: GuardSide | bool) -> None:
        self._window = window
        self._body = window.numbers.body
        # The memory of each output: an array, and where it begins there.
        self._arrays: list[tuple[np.ndarray, int]] = []
        self._guarded: list[GuardedBuffer] = []
        self.addresses: list[int] = []
        self._room = window.room[:, rows - 1].tolist()
        for spec, size in zip(window.bound.outputs, self._room, strict=True):
            if isinstance(guard, GuardSide):
                buffer = GuardedBuffer(size, align_bytes=spec.itemsize, side=guard)
                self._guarded.append(buffer)
                self._arrays.append((buffer.data, 0))
                self.addresses.append(buffer.address)
            elif size <= SMALL_BYTES:
                array, begin, address = small_bytes(round_up(size, ALIGNMENT_BYTES))
                self._arrays.append((array, begin))
                self.addresses.append(address)
            else:
                array = aligned_bytes(size)
                self._arrays.append((array, 0))
                self.addresses.append(address_of(array))

    def fill(self, states: Sequence[Any]) -> None:
        """Copies states in to which the loop appends."""
        for number, state in enumerate(self._body.moving):
            if state in self._body.appended:
                output, _ = self._body.outputs_of(number)
                array, value = self._array(output, states[state].shape), states[state]
                array[...] = value

    def _array(self, output: int, shape: tuple[int, ...]) -> np.ndarray:
        array, begin = self._arrays[output]
        dtype = number_dtype(self._window.bound.outputs[output].dtype)
        return np.ndarray(shape, dtype, array, begin)

    def check(self) -> None:
        """Asserts that nothing was written beside guarded outputs."""
        for number, buffer in enumerate(self._guarded):
            buffer.check(f"output {number} of a loop")

    def after(self, done: int, states: Sequence[Any]) -> tuple[list[Any], list[np.ndarray]]:
        """Returns the states and the stacked values after so many iterations."""
        body, window = self._body, self._window
        found = list(states)
        for number, state in enumerate(body.moving if done else ()):
            output = body.outputs_of(number)[1 - done % 2]
            shape = window.shape(body.inputs.index(state), done)
            found[state] = self._shown(output, shape)
        specs = window.bound.outputs
        first = len(specs) - body.stacks
        stacks = [
            self._shown(number, (done, *spec.shape))
            for number, spec in enumerate(specs[first:], first)
        ]
        return found, stacks

    def _shown(self, output: int, shape: tuple[int, ...]) -> np.ndarray:
        """Returns a result; a copy if much of its memory is unused."""
        array = self._array(output, shape)
        room = self._room[output]
        is_spare = room > SMALL_BYTES and room > 2 * array.nbytes + _SPARE_BYTES
        return array.copy() if self._guarded or is_spare else array
