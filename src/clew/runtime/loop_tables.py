"""The driver's data about loops (`codegen.driver.flow`)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Final

import numpy as np

from clew.codegen.driver import driver as native
from clew.codegen.driver import flow as native_flow
from clew.runtime.driver import driver
from clew.runtime.plan import BufferRef, Flow, FlowKind, LoopPlan
from clew.support.addresses import address_of

_ENDLESS: Final = 1 << 62


def trips_word(loop: LoopPlan) -> int:
    """Returns the driver's word for a loop's number of iterations."""
    if loop.trips is not None:
        return loop.trips
    return native_flow.BY_VALUE if loop.reads_trips else native_flow.BY_CONDITION


class LoopTables:
    """The driver's data about a plan's loops, for one call at a time."""

    def __init__(self, loops: Sequence[LoopPlan]) -> None:
        self._loops = loops
        owners = [n for n, loop in enumerate(loops) for _ in loop.moving_bytes]
        self._owners = owners
        self._moving = np.zeros(max(1, len(owners)), np.int64)
        self._rows = [np.array(loop.rows_bytes or (0,), np.int64) for loop in loops]
        self._patches: list[list[tuple[int, int, int]]] = [[] for _ in loops]
        words = native_flow.LOOP_BYTES // 8
        self._words = np.zeros((max(1, len(loops)), words), np.int64)
        self._fresh, self._limit = self._words, 0
        self._tests: dict[int, int] = {}

    def extra(self, entry: Flow) -> int:
        """Returns the extra word of a step of control flow: a loop's address, or a number of
        bytes.
        """
        if entry.kind in (FlowKind.BEGIN, FlowKind.TEST, FlowKind.NEXT):
            return self.address(entry.loop)
        return entry.size_bytes

    def address(self, loop: int) -> int:
        """Returns the address of a loop's words."""
        return address_of(self._words) + loop * native_flow.LOOP_BYTES

    def offset_address(self, moved: Sequence[tuple[int, BufferRef, int]], place: int) -> int:
        """Returns the address of the offset that the patch of a moving buffer adds, given all
        references to moving buffers, and the number of one of them.
        """
        owner = self._owners[moved[place][1].index]
        before = sum(self._owners[ref.index] == owner for _, ref, _ in moved[:place])
        table = self._tables[owner]
        return address_of(table) + native.PATCH_BYTES * before + native.PATCH_OFFSET

    def add_patch(self, address: int, ref: BufferRef) -> None:
        """Adds a patch: the loop that moves a buffer writes the buffer's address to `address`."""
        owner = self._owners[ref.index]
        column = ref.index - self._loops[owner].first
        self._patches[owner].append((address, column, ref.offset_bytes))

    def lay_out(self) -> None:
        """Writes the loops' words after all patches were added."""
        self._tables = [np.array(rows or [(0, 0, 0)], np.int64) for rows in self._patches]
        for number, loop in enumerate(self._loops):
            words = self._words[number]
            words[native_flow.LOOP_TRIPS // 8] = trips_word(loop)
            words[native_flow.LOOP_MOVING // 8] = address_of(self._moving) + 8 * loop.first
            words[native_flow.LOOP_STATES // 8] = len(loop.states_bytes)
            words[native_flow.LOOP_STACKS // 8] = len(loop.rows_bytes)
            words[native_flow.LOOP_STRIDES // 8] = address_of(self._rows[number])
            words[native_flow.LOOP_PATCHES // 8] = address_of(self._tables[number])
            words[native_flow.LOOP_N_PATCHES // 8] = len(self._patches[number])
            words[native_flow.LOOP_CAPACITY // 8] = _ENDLESS
        self._fresh = self._words.copy()
        self._limit = 0  # the one in these words

    @property
    def addresses(self) -> tuple[int, int]:
        """The addresses of the words of all loops, and of what they are before a run."""
        return address_of(self._words), address_of(self._fresh)

    def clear(self, most_iterations: int) -> None:
        """Resets all loops for the next call, in which each may take `most_iterations`."""
        if most_iterations != self._limit:
            self._fresh[:, native_flow.LOOP_LIMIT // 8] = most_iterations
            self._limit = most_iterations
        np.copyto(self._words, self._fresh)  # a run writes its other words before it reads them

    def note_test(self, loop: int, args_address: int) -> None:
        """Records the address of the arguments of a loop's `TEST`."""
        self._tests[loop] = args_address

    def trips_read(self, loop: int) -> int | None:
        """Returns the trip count that a loop reads from memory; None if it reads none."""
        if not self._loops[loop].reads_trips:
            return None
        address = ctypes.c_int64.from_address(self._tests[loop] + 8).value
        return ctypes.c_int64.from_address(address).value

    def total(self, loop: int) -> int:
        """Returns the number of iterations of a loop since `clear`."""
        return self._words.item(loop, native_flow.LOOP_TOTAL // 8)

    def is_full(self, loop: int) -> bool:
        """Whether the stacks of a loop have no memory for the rows of its next iteration."""
        return bool(self._words.item(loop, native_flow.LOOP_FULL // 8))

    def set_capacity(self, loop: int, rows: int) -> None:
        """Sets the number of rows for which the stacks of a loop have memory, and marks it as not
        full.
        """
        self._words[loop, native_flow.LOOP_CAPACITY // 8] = rows
        self._words[loop, native_flow.LOOP_FULL // 8] = 0

    def limit_rows(self, loop: int, rows: int) -> None:
        """Sets the number of rows for which the stacks of a loop have memory in all calls."""
        self._words[loop, native_flow.LOOP_CAPACITY // 8] = rows
        self._fresh[loop, native_flow.LOOP_CAPACITY // 8] = rows

    def move_stacks(self, loop: int, rows: Sequence[int]) -> None:
        """Makes the current iteration write the rows of its stacks to these addresses."""
        plan = self._loops[loop]
        end = plan.first + len(plan.moving_bytes)
        self._moving[end - len(rows) : end] = rows
        words = address_of(self._words) + loop * native_flow.LOOP_BYTES
        driver().patch_loop(words, address_of(self._moving) + 8 * plan.first)

    @property
    def stopped(self) -> bool:
        """Whether a loop was stopped at its limit."""
        fault = self._words.item  # for few loops faster than NumPy's sum over a column
        for number in range(len(self._words)):  # noqa: SIM110 - faster than a generator
            if fault(number, native_flow.LOOP_FAULT // 8):
                return True
        return False
