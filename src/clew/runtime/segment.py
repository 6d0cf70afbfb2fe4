"""Segments: a static sequence of kernels on NumPy arrays, run by one native call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from clew.codegen.artifact import RECORD_BYTES
from clew.codegen.driver import driver as native
from clew.runtime.arguments import mismatch, wrong_number
from clew.runtime.bound import Bound
from clew.runtime.context import (
    IDLE_ARENAS,
    SPARE_BYTES,
    Constants,
    Context,
    GuardedMemory,
    IdleContexts,
    SharedMemory,
    WorkingMemory,
    places_in,
    plain_places,
)
from clew.runtime.driver import driver
from clew.runtime.guard import GuardSide
from clew.runtime.large_results import LARGE_BYTES
from clew.runtime.layout import SymbolTable
from clew.runtime.memory import aligned_bytes, check_plan
from clew.runtime.native_call import Input, NativeCall, Result, Running, State, native_call
from clew.runtime.plan import FlowKind, SegmentPlan
from clew.runtime.resident import Resident
from clew.runtime.results import Results, blocks_of
from clew.runtime.stacks import first_capacity
from clew.runtime.threads import ThreadPool
from clew.runtime.watch import Watch
from clew.support.addresses import address_of, write_addresses
from clew.support.arrays import aligned_copy, number_dtype
from clew.support.budgets import current, too_many_iterations
from clew.support.errors import InputError
from clew.support.shown import Shown, counted

_ARRAY = np.ndarray
Run: TypeAlias = Callable[[], object]
# The number of idle contexts to keep, each with an arena. More exist while more calls run at once.
_IDLE_CONTEXTS = 4
_ENDLESS = 1 << 62


class NativeSegment(Shown):
    """A plan that is ready to run. Several Python threads may call it at once.

    The GIL is released while the kernels run. With `guard`, every buffer of a call is placed
    between inaccessible pages, and an access outside kills the process (for tests; slow).
    """

    def __init__(
        self,
        plan: SegmentPlan | Callable[[], SegmentPlan],
        library: SymbolTable,
        pool: ThreadPool,
        *,
        guard: GuardSide | bool = False,
        bound: Bound | None = None,
        memory: SharedMemory | None = None,
    ):
        """`bound` is what a run needs of the plan, if both have already been checked: then the plan
        may be made on first use. Segments of one plan at different sizes share `memory`, which has
        their constants.
        """
        self.pool = pool
        self._library = library
        self._guard = GuardSide.END if guard is True else guard
        self._memory = memory
        self._run = driver().run_segment
        if bound is None:
            if not isinstance(plan, SegmentPlan):
                raise AssertionError("a plan to check")
            check_plan(plan)
            bound = Bound.of(plan, pool.threads)
            bound.check_memory(pool.threads)
        self._make_plan = plan if callable(plan) else None
        self._plan = plan if isinstance(plan, SegmentPlan) else None
        if memory is None:
            self._constants = Constants([readable(constant) for constant in self.plan.constants])
            self._resident = Resident(self._constants.arrays)
        else:
            self._constants, self._resident = memory.constants, memory.resident
        if self._plan is not None:  # so that it does not keep unaligned originals in memory
            self._plan = replace(self._plan, constants=self._constants.arrays)
        self._bound = bound
        self._starts, self._places = bound.layout.starts, bound.layout.places
        self._inputs = [(spec.shape, number_dtype(spec.dtype)) for spec in bound.inputs]
        self._outputs = [
            # Stacks have no rows yet.
            ((0,) if spec.is_stack else spec.shape, number_dtype(spec.dtype))
            for spec in bound.outputs
        ]
        self._results = Results(
            self._outputs, {n for n in range(len(bound.outputs)) if bound.outputs[n].is_stack}
        )
        # The native form of a call, which the second call makes.
        self._native: NativeCall | None = None
        self._makes_native = not (guard or bound.stacks)
        self._no_records = bytes(RECORD_BYTES * bound.layout.n_records)
        self._idle: IdleContexts = []  # pop and append need no lock
        # For each loop whose stacks grow, the number of rows to allocate memory for at first.
        self._capacity = self._first_capacity = first_capacity(bound.loops, bound.stacks)
        self._may_stop = bool(bound.loops or self._capacity)
        self._was_called = False
        self._working_bytes = 0 if memory is None else bound.working_bytes(pool.threads)
        self._is_serial = pool.threads == 1
        self._watch: Watch | None = None
        self._watch_address: int | None = None

    def has_types_of(self, bound: Bound) -> bool:
        """Whether its inputs and outputs are those of a run at other sizes, so that `at` makes the
        segment for these.
        """
        own = self._bound
        return bound.inputs is own.inputs and bound.outputs is own.outputs and not own.stacks

    def at(self, plan: Callable[[], SegmentPlan], bound: Bound) -> NativeSegment:
        """Returns a segment at other sizes with the same memory, which takes less time than to make
        one from nothing.
        """
        made = copy(self)
        made._make_plan, made._plan, made._bound = plan, None, bound
        made._native, made._makes_native, made._was_called = None, not self._guard, False
        made._idle = []
        made._working_bytes = bound.working_bytes(self.pool.threads)
        return made

    @property
    def plan(self) -> SegmentPlan:
        """The plan. A segment at given sizes makes it on first use, since runs need only its
        numbers.
        """
        if self._plan is None:
            assert self._make_plan is not None
            self._plan = replace(self._make_plan(), constants=self._constants.arrays)
        return self._plan

    @property
    def threads(self) -> int:
        """The maximum number of threads that share its kernels' grids."""
        return self.pool.threads

    def _about(self) -> str:
        return f"of {counted(len(self._places), 'kernel')}"

    @property
    def constants(self) -> tuple[np.ndarray, ...]:
        """The weights that its kernels read."""
        return self._constants.arrays

    def __call__(
        self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray | None] | None = None
    ) -> list[np.ndarray]:
        """Returns the outputs: fresh arrays, or `outputs` written in place. Stacks that grow are
        always fresh arrays, and `outputs` may have None in their places.

        Errors: I030 (number of arrays), I031 (shape), I032 (dtype), I033 (`outputs` that cannot be
        written in place), I320 (an index out of range).
        """
        if outputs is None and self._native is not None:
            found: list[np.ndarray] | None = self._native(tuple(inputs))
            if found is not None:
                return found
        if self._guard:
            return self._call_guarded(self._guard, inputs, outputs)
        context, arrays, results = self._begin(inputs, outputs)
        self._complete(context, results)
        del arrays  # keeps the arrays alive while kernels read them
        if self._makes_native and not self._resident.is_pending:
            self._prepare_native()
        return results

    def _prepare_native(self) -> None:
        """Makes the native form of a call, if this is not the first one: segments at sizes that no
        other call has would not use it. Constants do not move any more.
        """
        if not self._was_called:
            self._was_called = True
            return
        self._makes_native = False
        inputs = [Input(*spec, n) for n, spec in enumerate(self._inputs)]
        first = len(inputs)
        results = [Result(*spec, first + n) for n, spec in enumerate(self._outputs)]
        self._native = self.native_call(inputs, results)

    @property
    def types(self) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
        """The shapes and dtypes of its inputs, then of its outputs."""
        return [*self._inputs, *self._outputs]

    @property
    def has_stacks(self) -> bool:
        """Whether it has outputs of as many rows as the run finds."""
        return bool(self._bound.stacks)

    @property
    def is_native(self) -> bool:
        """Whether calls have a native form."""
        return self._native is not None

    def native_call(
        self,
        inputs: Sequence[Input],
        results: Sequence[Result],
        ahead: ctypes.c_int64 | None = None,
        state: State | None = None,
    ) -> NativeCall | None:
        """Returns the native form of a call with these inputs that returns these results, which are
        all of the segment's outputs (`runtime.native_call`). Only a segment whose `is_native` holds
        has one.
        """
        if sum(result.size_bytes for result in results) >= LARGE_BYTES:
            return None
        memory = self._memory if self._working_bytes else None
        running = Running(
            self._idle,
            None if memory is None else memory.idle,
            (_IDLE_CONTEXTS, IDLE_ARENAS),
            self._working_bytes,
            SPARE_BYTES,
            None if self._is_serial else self.pool.cell,
            (self._library, self.pool, self._memory, self._watch),
            self._watch_address,
            bool(self._bound.loops),
            any(loop.trips is None for loop in self._bound.loops),
        )
        return native_call(inputs, results, blocks_of(results), running, ahead, state)

    @property
    def runs_in_place(self) -> bool:
        """Whether `run_at` may be called: no call is guarded, and no output grows."""
        return not self._guard and not self._capacity

    def run_at(self, addresses: Sequence[int]) -> None:
        """Runs the kernels on the caller's memory, and checks nothing: `addresses` are those of the
        inputs, then of the outputs. Each is a C-contiguous buffer of the plan's shape and dtype;
        inputs are aligned to their elements, outputs to `ALIGNMENT_BYTES`. An output shares memory
        with no other buffer.

        Errors: I266, I320 (see `__call__`).
        """
        context = self._take()
        if self._bound.loops:
            context.loops.clear(current().loop_steps)
        bases = context.bases
        for position, address in enumerate(addresses):
            bases[position] = address
        self._complete(context, [])

    def _complete(self, context: Context, results: list[np.ndarray]) -> None:
        """Runs a call whose addresses are in place. Errors: I266, I320."""
        pool = None if self._is_serial else self.pool.address
        run, bases = self._run, context.bases_address
        status = run(context.segment_address, bases, pool, self._watch_address)
        if status >= native.PAUSED:
            self._go_on(context, status)
        if self._may_stop or (self._no_records and context.records != self._no_records):
            self._finish(context, results)
        else:
            self._give_back(context)
        if self._resident.is_pending:
            moved = self._resident.count_call()
            if moved is not None:
                self._move(moved)

    def _go(self, context: Context) -> None:
        """Runs a call, and nothing else."""
        self._go_on(context, native.PAUSED)

    def _go_on(self, context: Context, status: int) -> None:
        """Continues a call that was paused, or begins one."""
        watch, pool = self._watch_address, self.pool.address
        run, segment, bases = self._run, context.segment_address, context.bases_address
        while status >= native.PAUSED:
            if status == native.FULL:
                context.stacks.grow()
            # Python handles signals here
            status = run(segment, bases, pool, watch)

    def _move(self, moved: Sequence[np.ndarray]) -> None:
        """Makes later calls read the constants at other addresses, where they stay."""
        self._settle(Constants(moved))
        self._resident.is_pending = False

    def _settle(self, constants: Constants) -> None:
        """Makes later calls read the constants at their new addresses."""
        if self._memory is not None:
            self._memory.constants = constants
        self._constants = constants
        if self._plan is not None:
            self._plan = replace(self._plan, constants=constants.arrays)
        self._idle.clear()

    def watched(self, watch: Watch) -> NativeSegment:
        """Returns a copy of the segment whose calls are timed by `watch`. It shares the memory of
        the segment, which stays unchanged.
        """
        moved = self._resident.settle()
        if moved is not None:
            self._move(moved)
        made = NativeSegment(
            self._plan or (lambda: self.plan),
            self._library,
            self.pool,
            guard=self._guard,
            bound=self._bound,
            memory=self._memory,
        )
        made._constants, made._idle, made._resident = self._constants, self._idle, self._resident
        made._watch, made._watch_address = watch, watch.address
        return made

    def profile(self, inputs: Sequence[np.ndarray], repeats: int = 1) -> np.ndarray:
        """Returns f64[repeats, steps]: the nanoseconds of each step of the plan, including stamps.

        `runtime.timing` times whole programs.

        Errors: as `__call__`.
        """
        watch = Watch(self.n_entries)
        watched = self.watched(watch)
        times = np.zeros((repeats, self.n_entries))
        for number in range(repeats):
            watch.clear()
            watched(inputs)
            times[number] = watch.ns()
        return self.by_step(times)

    def iterations(self, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """Returns i64[steps]: the number of runs of each step of the plan in a call.

        Errors: as `__call__`.
        """
        watch = Watch(self.n_entries)
        self.watched(watch)(inputs)
        return watch.counts[[self._starts[place] for place in self._places]]

    def time_step(self, index: int, inputs: Sequence[np.ndarray], repeats: int = 10) -> np.ndarray:
        """Returns f64[repeats]: the nanoseconds of one step, repeated after one whole run.

        Its operands are the values that the whole run left in its buffers.

        Errors: as `__call__`.
        """
        context, arrays, results = self._begin(inputs, None)
        self._go(context)
        self._heed(context)
        begin, end = self.entries_of(index)
        first = context.steps_address + begin * native.STEP_BYTES
        watch = Watch(end - begin)
        times = np.zeros(repeats)
        for number in range(repeats):
            watch.clear()
            driver().run_steps(first, end - begin, self.pool.address, watch.address)
            times[number] = watch.ns().sum()
        self._discard(context)
        del arrays, results
        return times

    @property
    def n_entries(self) -> int:
        """The number of steps that the driver runs and times. Each phase of a kernel is a step."""
        return self._starts[-1]

    def entries_of(self, step: int) -> tuple[int, int]:
        """Returns the range of the driver's steps for a step of the plan: the first, and the one
        after the last.
        """
        place = self._places[step]
        return self._starts[place], self._starts[place + 1]

    def by_step(self, entries: np.ndarray) -> np.ndarray:
        """Returns values per step of the plan, summed from values per driver step along the last
        axis.
        """
        if not self._places:
            return entries[..., :0]
        sums: np.ndarray = np.add.reduceat(entries, self._starts[:-1], axis=-1)
        return sums[..., self._places]

    def step_by_step(
        self,
        inputs: Sequence[np.ndarray],
        around: Callable[[int, list[int], Run], None],
        ended: Callable[[int, list[int], int], None] | None = None,
    ) -> list[np.ndarray]:
        """Returns the outputs of a run in which each step is a separate native call.

        `around` receives the number of a step, the addresses of its arguments, and a function that
        runs the step; it must call the function. Steps in loops have several calls. `ended`
        receives the position of each `END` in the plan's order, the addresses of its arguments, and
        the number of rows of its loop's stacks, if they grow (otherwise 0). Addresses are valid
        during the call. The arena and the kernels are those of any other run.

        Errors: as `__call__`.
        """
        context, arrays, results = self._begin(inputs, None)
        step_at = {place: number for number, place in enumerate(self._places)}
        for place in range(len(self._starts) - 1):
            context.arguments_at(place)  # this call writes them
        place = 0
        while place < len(self._starts) - 1:
            index = step_at.get(place)
            if index is None:
                flow = self._bound.flows[place]
                if ended is not None and flow.kind is FlowKind.END:
                    rows = context.stacks.rows(flow.loop) if flow.loop in self._capacity else 0
                    ended(place, context.arguments_at(place), rows)
                place = context.go_on(place)
                continue
            begin, end = self._starts[place : place + 2]
            first = context.steps_address + begin * native.STEP_BYTES
            run = partial(driver().run_steps, first, end - begin, self.pool.address, None)
            around(index, context.arguments(index), run)
            place += 1
        self._finish(context, results)
        del arrays
        return results

    def in_pieces(
        self, inputs: Sequence[np.ndarray], ends: Sequence[int], between: Callable[[bool], None]
    ) -> tuple[list[np.ndarray], np.ndarray]:
        """Returns the outputs of a run, and f64[steps]: the nanoseconds of each step of the plan.

        The run is one native call for the steps before each of `ends`, which are numbers of steps
        in ascending order, and one for the rest. `between` runs before each of these calls and
        after the last; it receives whether there is another. A segment with branches or loops is
        one call.

        Errors: as `__call__`.
        """
        watch = Watch(self.n_entries)
        watched = self.watched(watch)
        if self._bound.flows or self._bound.loops or not self.n_entries:
            between(True)
            results = watched(inputs)
            between(False)
            return results, self.by_step(watch.ns())
        context, arrays, results = watched._begin(inputs, None)
        for place in range(len(self._starts) - 1):
            context.arguments_at(place)  # this call writes them
        times, begin = np.zeros(self.n_entries), 0
        for end in [*(self.entries_of(step)[0] for step in ends), self.n_entries]:
            between(True)
            first = context.steps_address + begin * native.STEP_BYTES
            watch.clear()
            driver().run_steps(first, end - begin, self.pool.address, watch.address)
            times[begin:end] = watch.ns()[: end - begin]
            begin = end
        between(False)
        watched._finish(context, results)
        del arrays  # keeps the arrays alive while kernels read them
        return results, self.by_step(times)

    @contextmanager
    def prepared(self, inputs: Sequence[np.ndarray]) -> Iterator[Context]:
        """Yields the tables of one call, ready to run its steps, before any has run.

        Errors: as `__call__`.
        """
        context, arrays, results = self._begin(inputs, None)
        context.loops.clear(_ENDLESS)
        context.begin_loops()
        yield context
        self._discard(context)
        del arrays, results

    def function_address(self, symbol: str) -> int:
        """Returns the address of an entry point of a kernel."""
        return self._library.address(symbol)

    def _take(self) -> Context:
        """Returns a context for one call, with memory to work in."""
        shared = self._memory
        if shared is None:
            try:
                return self._idle.pop()[1]
            except IndexError:
                return self._new_context(None)
        if shared.constants is not self._constants:  # another size has moved them
            self._settle(shared.constants)
        memory = shared.take(self._working_bytes) if self._working_bytes else None
        try:
            _, context = self._idle.pop()
        except IndexError:
            context = self._new_context(memory)
        if memory is not None:
            context.memory = memory
            if context.base != memory.address:
                context.move_to(memory.address)
        return context

    def _new_context(self, memory: WorkingMemory | None) -> Context:
        """Returns a context for this size, with `memory` to work in if sizes share it."""
        bound, constants = self._bound, self._constants
        if memory is None:
            places = plain_places(bound, constants, self.pool.threads)
        else:
            places = places_in(bound, constants, memory)
        if self._memory is not None and self._binds:
            shared = self._memory.share(self._idle)
            if shared is not None and shared.constants is constants:
                shared.bind(bound, places)
                return shared
        context = Context(bound, self._library, places)
        context.constants = constants
        return context

    def retire(self) -> None:
        """Leaves a context to segments at other sizes, since calls at these are not expected."""
        if self._memory is not None and self._binds:
            self._memory.give_up(self._idle)

    @property
    def _binds(self) -> bool:
        """Whether contexts of segments at other sizes serve this one."""
        return not (self._bound.flows or self._bound.loops or self._bound.stacks)

    def _finish(self, context: Context, results: list[np.ndarray]) -> None:
        """Prepares a context for other calls after a call has used it. Puts the stacks that have
        grown into `results`.

        Errors: I266 for too many iterations of a loop, I320 for an index out of range.
        """
        self._heed(context)
        if self._capacity:
            self._show_stacks(context, results)
        self._give_back(context)

    def _show_stacks(self, context: Context, results: list[np.ndarray]) -> None:
        """Puts the stacks that have grown into the results of a call. The next call begins with
        memory for as many rows.
        """
        rows = context.stacks.take(results)
        self._capacity = {loop: max(n, rows[loop]) for loop, n in self._first_capacity.items()}

    def _heed(self, context: Context) -> None:
        """Raises the error that stopped the call, if any, after the context was given back.

        Errors: I266 for too many iterations of a loop, I320 for an index out of range.
        """
        if self._bound.loops and context.loops.stopped:
            self._give_back(context)
            self._heed_loops(context)
        if context.records != self._no_records:
            fault = context.first_fault()
            assert fault is not None, "nonzero records without a fault"
            self._give_back(context)
            self._refuse(*fault)

    def _heed_loops(self, context: Context) -> None:
        """Errors: I266 if a loop of the call ran too many iterations."""
        if context.loops.stopped:
            raise too_many_iterations(current().loop_steps)

    def _discard(self, context: Context) -> None:
        """Prepares a context for other calls after its steps ran one by one. They may have recorded
        faults, because they may read values of other steps as indices.
        """
        context.first_fault()
        self._give_back(context)

    def _refuse(self, number: int, check: int, index: int) -> None:
        """Errors: I320 for an index that a check of a step found out of range."""
        step = self.plan.steps[number]
        places = step.code.checks[check].places
        raise places.error(places.unwrapped(index), step.checked[check])

    def _give_back(self, context: Context) -> None:
        if self._capacity:
            context.stacks.leave()
        memory = context.memory
        if memory is not None and self._memory is not None:
            context.memory = None
            self._memory.give(memory, self._working_bytes)
        if context.constants is self._constants and len(self._idle) < _IDLE_CONTEXTS:
            self._idle.append(context.entry)

    def _begin(
        self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray | None] | None
    ) -> tuple[Context, Sequence[np.ndarray], list[np.ndarray]]:
        """Returns a context whose tables point to the inputs and outputs, and these arrays.

        Inputs that the kernels cannot read in place are copied.
        """
        arrays = self._admit(inputs)
        if outputs is not None:
            results = self._admit_outputs(outputs)
            arrays = [
                array.copy() if any(np.may_share_memory(array, r) for r in results) else array
                for array in arrays
            ]
        context = self._take()
        if self._bound.loops:
            context.loops.clear(current().loop_steps)
        bases = context.bases
        position = write_addresses(arrays, bases)
        if outputs is None:
            results, addresses = self._results.apart()
        else:
            stacks = self._results.later
            addresses = [0 if n in stacks else address_of(a) for n, a in enumerate(results)]
        for address in addresses:
            if address:  # stacks that grow have theirs
                bases[position] = address
            position += 1
        if self._capacity:
            context.stacks.begin(self._capacity)
        return context, arrays, results

    def _admit(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Checks the inputs; returns them C-contiguous and aligned to their elements."""
        if len(inputs) != len(self._inputs):
            raise wrong_number("inputs", len(self._inputs), len(inputs))
        for array, (shape, dtype) in zip(inputs, self._inputs):  # noqa: B905 - just checked, faster
            if type(array) is not _ARRAY or array.dtype is not dtype or array.shape != shape:
                return self._admitted(inputs)
            flags = array.flags
            if not (flags.c_contiguous and flags.aligned):
                return self._admitted(inputs)
        return inputs

    def _admitted(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Returns what `_admit` does for inputs of other types, or that need to be copied."""
        arrays = list(map(np.asarray, inputs))
        for index, (shape, dtype) in enumerate(self._inputs):
            array = arrays[index]
            if array.shape != shape or array.dtype != dtype:
                raise mismatch("input", self._bound.inputs[index], array)
            flags = array.flags
            if not (flags.c_contiguous and flags.aligned):
                copy = aligned_bytes(array.nbytes).view(dtype).reshape(shape)
                copy[...] = array
                arrays[index] = copy
        return arrays

    def _admit_outputs(self, outputs: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        """Checks the arrays for outputs; returns them, with empty arrays for stacks that grow.

        Errors: I030, I031, I032, I033 (see `__call__`).
        """
        admitted = []
        if len(outputs) != len(self._outputs):
            raise wrong_number("outputs", len(self._outputs), len(outputs))
        for spec, array, (shape, dtype) in zip(
            self._bound.outputs, outputs, self._outputs, strict=True
        ):
            if spec.is_stack:
                admitted.append(np.empty(shape, dtype))
                continue
            if array is not None and (array.shape != shape or array.dtype != dtype):
                raise mismatch("output", spec, array)
            if array is None or not array.flags.carray:
                raise InputError(
                    "I033",
                    f"output {spec.name!r} is not a writable, aligned, C-contiguous array",
                    hint="pass no outputs to have them allocated",
                )
            admitted.append(array)
        return admitted

    def _call_guarded(
        self,
        side: GuardSide,
        inputs: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray | None] | None,
    ) -> list[np.ndarray]:
        arrays = self._admit(inputs)
        memory = GuardedMemory(self.plan, side, self.pool.threads)
        memory.fill(arrays)
        context = Context(self._bound, self._library, memory.places())
        for position, buffer in enumerate([*memory.inputs, *memory.outputs]):
            context.bases[position] = buffer.address
        if self._bound.loops:
            context.loops.clear(current().loop_steps)
        context.stacks.begin(dict.fromkeys(self._capacity, 1), memory.stack)
        self._go(context)
        memory.check(arrays)
        self._heed_loops(context)
        fault = context.first_fault()
        if fault is not None:
            self._refuse(*fault)
        results = [np.empty(shape, dtype) for shape, dtype in self._outputs]
        if outputs is not None:
            results = self._admit_outputs(outputs)
        for spec, result, buffer in zip(self.plan.outputs, results, memory.outputs, strict=True):
            if not spec.is_stack:
                result[...] = buffer.data.view(result.dtype).reshape(result.shape)
        context.stacks.take(results)
        return results


def readable(constant: np.ndarray) -> np.ndarray:
    """Returns a constant that kernels can read: a copy if it is strided or misaligned, otherwise
    the constant.

    Performance-critical weights are packed and aligned at compile time. Copying others, such as
    embedding tables, would only cost memory.
    """
    in_place = constant.flags.c_contiguous and constant.flags.aligned
    return constant if in_place else aligned_copy(constant)
