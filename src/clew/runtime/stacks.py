"""Memory of stacks whose number of rows is known only after the run.

Data decide how often the loop that stacks the values iterates, so no output of the right size can
exist before the run. The rows go to memory for a number of rows, the loop's *capacity*. When the
memory is full, the driver returns before the next iteration. The existing rows then move to memory
of twice the size, or of the right size if the loop only counts to a number. The output is the used
part.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from sys import getrefcount
from typing import Any, Final, Protocol

import numpy as np

from clew.runtime.loop_tables import LoopTables
from clew.runtime.plan import BufferSpec, LoopPlan
from clew.runtime.results import UNHELD, room_for
from clew.support.arrays import number_dtype
from clew.support.budgets import check_run_bytes, current
from clew.support.dataclass import dataclass

# The capacity of a loop that has not run yet: this many bytes, but at least this many rows.
_FIRST_BYTES: Final = 4096
_FIRST_ROWS: Final = 4
# The most bytes for the stacks of a loop that an idle context keeps.
_KEPT_BYTES: Final = 1 << 14
_ENDLESS: Final = 1 << 62


class Memory(Protocol):
    """The memory of one stack: `data` is `u8[n]`, at `address`."""

    @property
    def address(self) -> int: ...

    @property
    def data(self) -> np.ndarray: ...


class AlignedMemory:
    """Memory aligned to 64 bytes."""

    __slots__ = ("_begin", "_size_bytes", "address", "memory")

    def __init__(self, output: int, size_bytes: int) -> None:
        """Allocates memory of this size, for any output."""
        self.memory, self._begin, self.address = room_for(size_bytes)
        self._size_bytes = size_bytes

    @property
    def data(self) -> np.ndarray:
        """The memory, `u8[n]`."""
        return self.memory[self._begin : self._begin + self._size_bytes]


@dataclass
class _Kept:
    """Memory for rows of a loop's stacks, which a later call uses again if nobody holds results in
    it.
    """

    rows: int
    parts: list[AlignedMemory]

    def serves(self, rows: int) -> bool:
        """Whether it has room for the rows of a call."""
        if self.rows < rows:
            return False
        for part in self.parts:  # noqa: SIM110 - faster than a generator
            if getrefcount(part.memory) != UNHELD:
                return False
        return True


@dataclass(frozen=True)
class _Stack:
    """A stack: the number of its output, and the size, shape and dtype of a row."""

    output: int
    row_bytes: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class Stacks:
    """The stacks of a plan that grow, for one call at a time.

    `stacks` are those of the plan, and `outputs` its outputs. `bases` holds the addresses of a
    call's buffers; those of outputs begin at `first`.
    """

    def __init__(
        self,
        stacks: Mapping[int, Sequence[int]],
        outputs: Sequence[BufferSpec],
        loops: LoopTables,
        bases: ctypes.Array[ctypes.c_int64],
        first: int,
    ) -> None:
        self._loops = loops
        self._bases, self._first = bases, first
        self._stacks = {
            loop: [_stack(number, outputs[number]) for number in numbers]
            for loop, numbers in stacks.items()
        }
        self._row_bytes = {n: sum(s.row_bytes for s in ss) for n, ss in self._stacks.items()}
        # By output.
        self._memory: dict[int, Memory] = {}
        self._make: Callable[[int, int], Memory] = AlignedMemory
        # By loop.
        self._kept: dict[int, _Kept] = {}

    def begin(
        self,
        capacity: Mapping[int, int],
        make: Callable[[int, int], Memory] = AlignedMemory,
    ) -> None:
        """Allocates the memory of a call. `capacity` holds the number of rows for each loop.
        `make` returns memory for an output, given its number and the size in bytes.
        """
        self._make = make
        for loop, rows in capacity.items():
            kept = self._kept.get(loop)
            if kept is None or not kept.serves(rows):
                self._allocate(loop, rows)
                continue
            for stack, memory in zip(self._stacks[loop], kept.parts, strict=True):
                self._memory[stack.output] = memory
            self._loops.set_capacity(loop, kept.rows)

    def grow(self) -> None:
        """Moves the rows of each full loop to larger memory.

        Errors: I265 if the stacks would exceed the budget or the machine's memory.
        """
        for loop, stacks in self._stacks.items():
            if not self._loops.is_full(loop):
                continue
            rows, trips = self._loops.total(loop), self._loops.trips_read(loop)
            exact = trips is not None and rows < trips <= current().loop_steps
            needed = trips if trips is not None and exact else rows + 1
            check_run_bytes("values that a loop stacks", self._row_bytes[loop] * needed)
            before = [self._memory[stack.output] for stack in stacks]
            self._allocate(loop, needed if exact else 2 * rows)
            ends = []
            for stack, old in zip(stacks, before, strict=True):
                new, used = self._memory[stack.output], rows * stack.row_bytes
                new.data[:used] = old.data[:used]
                ends.append(new.address + used)
            self._loops.move_stacks(loop, ends)

    def _allocate(self, loop: int, rows: int) -> None:
        """Allocates memory for `rows`, or as many as the budget allows, but at least one."""
        row = self._row_bytes[loop]
        capacity = max(1, min(rows, current().allocated_bytes // row)) if row else _ENDLESS
        made = [self._make(s.output, capacity * s.row_bytes) for s in self._stacks[loop]]
        for stack, memory in zip(self._stacks[loop], made, strict=True):
            self._memory[stack.output] = memory
            self._bases[self._first + stack.output] = memory.address
        self._loops.set_capacity(loop, capacity)
        parts = [memory for memory in made if isinstance(memory, AlignedMemory)]
        if len(parts) == len(made) and capacity * row <= _KEPT_BYTES:
            self._kept[loop] = _Kept(capacity, parts)
        else:
            self._kept.pop(loop, None)

    def rows(self, loop: int) -> int:
        """Returns the number of rows of a loop in the last call."""
        return self._loops.total(loop)

    def take(self, results: list[np.ndarray]) -> dict[int, int]:
        """Puts the stacks of a call into `results`, at the numbers of their outputs, and releases
        unused memory. Returns the number of rows of each loop.
        """
        counts = {}
        for loop, stacks in self._stacks.items():
            rows = counts[loop] = self._loops.total(loop)
            for stack in stacks:
                data, used = self._memory[stack.output].data, rows * stack.row_bytes
                if data.nbytes > 2 * used + _FIRST_BYTES:
                    data = data[:used].copy()
                results[stack.output] = np.ndarray((rows, *stack.shape), stack.dtype, data)
        return counts

    def leave(self) -> None:
        """Releases the memory of a call."""
        self._memory.clear()


def _stack(output: int, spec: BufferSpec) -> _Stack:
    return _Stack(output, spec.size_bytes, spec.shape, number_dtype(spec.dtype))


def first_capacity(loops: Sequence[LoopPlan], stacks: Iterable[int]) -> dict[int, int]:
    """Returns the capacity in the first call of each loop whose stacks grow."""
    rows = {loop: sum(loops[loop].rows_bytes) for loop in stacks}
    return {n: max(_FIRST_ROWS, _FIRST_BYTES // max(1, row)) for n, row in rows.items()}
