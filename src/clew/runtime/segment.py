"""One native call: a static sequence of kernels on numpy arrays."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import numpy as np

from clew.codegen.artifact import RECORD_BYTES
from clew.codegen.driver import driver as native
from clew.runtime.context import (
    Context,
    GuardedMemory,
    SymbolTable,
    entry_starts,
    places_of_steps,
    plain_places,
    scratch_bytes,
)
from clew.runtime.driver import driver
from clew.runtime.guard import GuardSide
from clew.runtime.memory import (
    address_of,
    aligned_bytes,
    check_plan,
)
from clew.runtime.plan import BufferSpec, Flow, FlowKind, SegmentPlan
from clew.runtime.resident import Resident
from clew.runtime.threads import ThreadPool
from clew.runtime.watch import Watch
from clew.support.arrays import ALIGNMENT_BYTES, aligned_copy
from clew.support.budgets import current, exceeded, too_many_iterations
from clew.support.errors import CompileError, InputError
from clew.support.shown import Shown, counted

Run: TypeAlias = Callable[[], object]
# A context holds an arena. More exist while more calls run at once; this many are kept.
_IDLE_CONTEXTS = 4
_ENDLESS = 1 << 62


class NativeSegment(Shown):
    """A plan that is ready to run. May be called from several Python threads at once.

    The GIL is released while the kernels run. With `guard` every buffer of a call lies on its own
    between forbidden pages: an access outside kills the process (for tests; slow). `checked`
    leaves out the check of a plan that has passed it.
    """

    def __init__(
        self,
        plan: SegmentPlan,
        library: SymbolTable,
        pool: ThreadPool,
        *,
        guard: GuardSide | bool = False,
        checked: bool = False,
    ):
        if not checked:
            check_plan(plan)
            _check_bytes(plan, pool.threads)
        self.pool = pool
        self._library = library
        self._guard = GuardSide.END if guard is True else guard
        self._run = driver().run_segment
        # The plan holds the aligned constants too, lest it keep the others in memory.
        self._constants = [_readable(constant) for constant in plan.constants]
        self.plan = replace(plan, constants=tuple(self._constants))
        self._starts, self._places = entry_starts(plan), places_of_steps(plan)
        self._inputs = [(spec.shape, np.dtype(spec.dtype)) for spec in plan.inputs]
        self._outputs = [
            (spec.shape, np.dtype(spec.dtype), spec.size_bytes + ALIGNMENT_BYTES)
            for spec in plan.outputs
        ]
        self._no_records = bytes(RECORD_BYTES * sum(bool(s.code.checks) for s in plan.steps))
        self._idle: deque[Context] = deque()  # its pop and append need no lock
        self._resident = Resident(self._constants)
        self._watch: Watch | None = None
        self._watch_address: int | None = None

    def _about(self) -> str:
        return f"of {counted(len(self.plan.steps), 'kernel')}"

    def __call__(
        self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray] | None = None
    ) -> list[np.ndarray]:
        """Returns the outputs: fresh arrays, or `outputs` written in place.

        Errors: I030 (number of arrays), I031 (shape), I032 (dtype), I033 (`outputs` that cannot be
        written in place), I320 (an index out of range).
        """
        if self._guard:
            return self._call_guarded(self._guard, inputs, outputs)
        context, arrays, results = self._begin(inputs, outputs)
        self._go(context)
        self._finish(context)
        moved = self._resident.count_call()
        if moved is not None:
            self._settle(moved)
        del arrays  # until here the kernels read them
        return results

    def _go(self, context: Context) -> None:
        """Runs a call."""
        watch = self._watch_address
        run, segment, bases = self._run, context.segment_address, context.bases_address
        while run(segment, bases, self.pool.address, watch) == native.PAUSED:
            pass  # signals are seen to

    def _settle(self, constants: list[np.ndarray]) -> None:
        """Lets later calls read the constants where they are now."""
        self._constants = constants
        self.plan = replace(self.plan, constants=tuple(constants))
        self._idle.clear()

    def watched(self, watch: Watch) -> NativeSegment:
        """Returns this segment such that its calls are timed. They take the same way otherwise,
        through the same memory; the segment itself is left alone.
        """
        moved = self._resident.settle()
        if moved is not None:
            self._settle(moved)
        made = NativeSegment(self.plan, self._library, self.pool, guard=self._guard, checked=True)
        made._constants, made._idle, made._resident = self._constants, self._idle, self._resident
        made._watch, made._watch_address = watch, watch.address
        return made

    def profile(self, inputs: Sequence[np.ndarray], repeats: int = 1) -> np.ndarray:
        """Returns f64[repeats, steps]: the nanoseconds that each step of the plan took, stamped.

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
        """Returns i64[steps]: how often each step of the plan runs in a call with these inputs.

        Errors: as `__call__`.
        """
        watch = Watch(self.n_entries)
        self.watched(watch)(inputs)
        return watch.counts[[self._starts[place] for place in self._places]]

    def time_step(self, index: int, inputs: Sequence[np.ndarray], repeats: int = 10) -> np.ndarray:
        """Returns f64[repeats]: nanoseconds of one step, run again and again after one whole run.

        Its operands are whatever the whole run has left in its buffers.

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
        """How many steps the driver runs, and times: each phase of a kernel is one of its own."""
        return self._starts[-1]

    def entries_of(self, step: int) -> tuple[int, int]:
        """Returns the first of the driver's steps for one of the plan, and that after the last."""
        place = self._places[step]
        return self._starts[place], self._starts[place + 1]

    def by_step(self, entries: np.ndarray) -> np.ndarray:
        """Returns sums over the last axis, from the driver's steps to those of the plan."""
        if not self.plan.steps:
            return entries[..., :0]
        sums: np.ndarray = np.add.reduceat(entries, self._starts[:-1], axis=-1)
        return sums[..., self._places]

    def step_by_step(
        self,
        inputs: Sequence[np.ndarray],
        around: Callable[[int, list[int], Run], None],
        ended: Callable[[int, list[int]], None] | None = None,
    ) -> list[np.ndarray]:
        """Returns the outputs of a run in which each step is a call of its own.

        `around` is given the number of a step, the addresses of its arguments and what runs it,
        and runs it; in loops several times. `ended` is given the place in the plan's order of an
        `END` and the addresses of its arguments. Addresses hold for the time of a call. Neither
        arena nor fusion are other than in any run.

        Errors: as `__call__`.
        """
        context, arrays, results = self._begin(inputs, None)
        step_at = dict(zip(self._places, range(len(self.plan.steps)), strict=True))
        for place in range(len(self._starts) - 1):
            context.arguments_at(place)  # which writes them
        place = 0
        while place < len(self._starts) - 1:
            index = step_at.get(place)
            if index is None:
                flow = self.plan.order[place]
                if ended is not None and isinstance(flow, Flow) and flow.kind is FlowKind.END:
                    ended(place, context.arguments_at(place))
                place = context.go_on(place)
                continue
            begin, end = self._starts[place : place + 2]
            first = context.steps_address + begin * native.STEP_BYTES
            run = partial(driver().run_steps, first, end - begin, self.pool.address, None)
            around(index, context.arguments(index), run)
            place += 1
        self._finish(context)
        del arrays
        return results

    @contextmanager
    def prepared(self, inputs: Sequence[np.ndarray]) -> Iterator[Context]:
        """Gives the tables of one call, ready to run its steps, of which none has run.

        Errors: as `__call__`.
        """
        context, arrays, results = self._begin(inputs, None)
        context.loops.clear(_ENDLESS)
        context.begin_loops()
        yield context
        self._discard(context)
        del arrays, results

    def function_address(self, symbol: str) -> int:
        """Returns where an entry point of one of the kernels is."""
        return self._library.address(symbol)

    def _take(self) -> Context:
        try:
            return self._idle.pop()
        except IndexError:
            constants = self._constants
            places = plain_places(self.plan, constants, self.pool.threads)
            context = Context(self.plan, self._library, self.pool.threads, places)
            context.constants = constants
            return context

    def _finish(self, context: Context) -> None:
        """Makes a context that a call has used ready for others.

        Errors: I266 where a loop turned too often, I320 where the call met an index out of range.
        """
        self._heed(context)
        self._give_back(context)

    def _heed(self, context: Context) -> None:
        """Errors: I266, I320 where the call met what stops it; others may have the context."""
        if self.plan.loops and context.loops.stopped:
            self._give_back(context)
            self._heed_loops(context)
        if context.records != self._no_records:
            fault = context.first_fault()
            assert fault is not None, "records that are not zero"
            self._give_back(context)
            self._refuse(*fault)

    def _heed_loops(self, context: Context) -> None:
        """Errors: I266 where a loop of the call turned too often."""
        if context.loops.stopped:
            raise too_many_iterations(current().loop_steps)

    def _discard(self, context: Context) -> None:
        """Makes a context ready for others whose steps ran one by one, and may have read as indices
        what other steps have written there.
        """
        context.first_fault()
        self._give_back(context)

    def _refuse(self, number: int, check: int, index: int) -> None:
        """Errors: I320 for an index that a check of a step has found out of range."""
        step = self.plan.steps[number]
        places = step.code.checks[check].places
        raise places.error(places.unwrapped(index), step.checked[check])

    def _give_back(self, context: Context) -> None:
        up_to_date = context.constants is self._constants
        if up_to_date and len(self._idle) < _IDLE_CONTEXTS:
            self._idle.append(context)

    def _begin(
        self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray] | None
    ) -> tuple[Context, list[np.ndarray], list[np.ndarray]]:
        """Returns a context that points to the arrays its kernels read and write, and those.

        An input that the kernels cannot read in place is copied.
        """
        arrays = self._admit(inputs)
        if outputs is not None:
            results = self._admit_outputs(outputs)
            arrays = [
                array.copy() if any(np.may_share_memory(array, r) for r in results) else array
                for array in arrays
            ]
        context = self._take()
        if self.plan.loops:
            context.loops.clear(current().loop_steps)
        bases = context.bases
        position = 0
        for array in arrays:
            bases[position] = address_of(array)
            position += 1
        if outputs is None:
            results = []
            for shape, dtype, room_bytes in self._outputs:
                room = np.empty(room_bytes, np.uint8)
                address = address_of(room)
                shift = -address % ALIGNMENT_BYTES
                bases[position] = address + shift
                results.append(np.ndarray(shape, dtype, room, shift))
                position += 1
        else:
            for array in results:
                bases[position] = address_of(array)
                position += 1
        return context, arrays, results

    def _admit(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Returns the inputs, C-contiguous and aligned to their elements, or raises."""
        if len(inputs) != len(self._inputs):
            raise _wrong_number("inputs", len(self._inputs), len(inputs))
        arrays = list(inputs)
        for index, (shape, dtype) in enumerate(self._inputs):
            array = arrays[index]
            if array.shape != shape or array.dtype != dtype:
                raise _mismatch("input", self.plan.inputs[index], array)
            flags = array.flags
            if not (flags.c_contiguous and flags.aligned):
                copy = aligned_bytes(array.nbytes).view(dtype).reshape(shape)
                copy[...] = array
                arrays[index] = copy
        return arrays

    def _admit_outputs(self, outputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        if len(outputs) != len(self._outputs):
            raise _wrong_number("outputs", len(self._outputs), len(outputs))
        for spec, array, (shape, dtype, _) in zip(
            self.plan.outputs, outputs, self._outputs, strict=True
        ):
            if array.shape != shape or array.dtype != dtype:
                raise _mismatch("output", spec, array)
            if not array.flags.carray:
                raise InputError(
                    "I033",
                    f"output {spec.name!r} is not a writable, aligned, C-contiguous array",
                    hint="leave the outputs out to have them allocated",
                )
        return list(outputs)

    def _call_guarded(
        self,
        side: GuardSide,
        inputs: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray] | None,
    ) -> list[np.ndarray]:
        arrays = self._admit(inputs)
        memory = GuardedMemory(self.plan, side, self.pool.threads)
        memory.fill(arrays)
        context = Context(self.plan, self._library, self.pool.threads, memory.places())
        for position, buffer in enumerate([*memory.inputs, *memory.outputs]):
            context.bases[position] = buffer.address
        if self.plan.loops:
            context.loops.clear(current().loop_steps)
        self._go(context)
        memory.check(arrays)
        self._heed_loops(context)
        fault = context.first_fault()
        if fault is not None:
            self._refuse(*fault)
        results = [np.empty(shape, dtype) for shape, dtype, _ in self._outputs]
        if outputs is not None:
            results = self._admit_outputs(outputs)
        for result, buffer in zip(results, memory.outputs, strict=True):
            result[...] = buffer.data.view(result.dtype).reshape(result.shape)
        return results


def _check_bytes(plan: SegmentPlan, threads: int) -> None:
    """Errors: C140 for a plan that needs more memory than the machine has, or its budget allows."""
    made = plan.arena_bytes + sum(spec.size_bytes for spec in plan.outputs)
    total = made + threads * scratch_bytes(plan)
    budgets = current()
    if total > budgets.run_bytes:
        what = f"bytes that {len(plan.steps)} kernels need at once"
        raise exceeded(CompileError, "C140", what, total, "run_bytes", budgets.run_bytes)
    if total > budgets.allocated_bytes:
        raise CompileError(
            "C140",
            f"{len(plan.steps)} kernels need {total} bytes at once, and this machine has "
            f"{budgets.allocated_bytes}",
            hint="the model needs a larger machine, or smaller inputs",
        )


def _readable(constant: np.ndarray) -> np.ndarray:
    """Returns a constant that kernels can read: itself unless it is strided or misaligned.

    Weights on a path that matters are packed, and aligned, at compile time; a copy of what is read
    as it came (a table of embeddings) would only cost memory.
    """
    in_place = constant.flags.c_contiguous and constant.flags.aligned
    return constant if in_place else aligned_copy(constant)


def _wrong_number(what: str, expected: int, given: int) -> InputError:
    return InputError(
        "I030",
        f"{given} {what} given, the model has {expected}",
        hint=f"pass one array for each of the model's {what}, in their order",
    )


def _mismatch(what: str, spec: BufferSpec, array: np.ndarray) -> InputError:
    if array.shape != spec.shape:
        return InputError(
            "I031",
            f"{what} {spec.name!r} has shape {list(array.shape)}, expected {list(spec.shape)}",
            hint="reshape the array, or compile the model for this shape",
        )
    return InputError(
        "I032",
        f"{what} {spec.name!r} has dtype {array.dtype}, expected {spec.dtype}",
        hint=f"convert the array with .astype({spec.dtype!r})",
    )
