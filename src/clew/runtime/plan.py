"""The plan of a segment: steps, and the buffers of their arguments."""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from clew.codegen.artifact import KernelCode
from clew.codegen.driver import flow as native_flow
from clew.ir.dims import Dim, Sizes
from clew.support.arrays import number_dtype
from clew.support.dataclass import dataclass
from clew.support.lazy import cached_property

Size = TypeVar("Size")


@functools.cache
def _itemsize(dtype: str) -> int:
    return number_dtype(dtype).itemsize


class BufferKind(enum.Enum):
    """The owner of a buffer."""

    INPUT = "input"
    OUTPUT = "output"
    CONSTANT = "constant"
    ARENA = "arena"
    MOVING = "moving"
    """Memory of one of the others; a loop selects which in each iteration."""


@dataclass(frozen=True)
class BufferRef:
    """A position in a buffer.

    `index` is the number of an input, output, constant, arena buffer (see `SegmentPlan.arena`) or
    moving buffer (see `LoopPlan`); `offset_bytes` counts from the buffer's start. In a template,
    `sized_bytes` is the part of the distance that depends on sizes; in a plan, it is 0.
    """

    kind: BufferKind
    index: int
    offset_bytes: int = 0
    sized_bytes: Dim = 0

    def beyond(self, distance_bytes: Dim) -> BufferRef:
        """Returns the position at a distance after this one."""
        if isinstance(distance_bytes, int):
            return replace(self, offset_bytes=self.offset_bytes + distance_bytes)
        return replace(self, sized_bytes=self.sized_bytes + distance_bytes)

    def at(self, sizes: Sizes) -> BufferRef:
        """Returns the position at given sizes."""
        if isinstance(self.sized_bytes, int):
            return self
        return BufferRef(self.kind, self.index, self.offset_bytes + sizes.value(self.sized_bytes))


@dataclass(frozen=True)
class BufferSpec:
    """An input or output: its name, shape and dtype (NumPy's name, or `bfloat16`).

    If `is_stack`, it is an output of an unknown number of rows, and `shape` is that of one row (see
    `SegmentPlan.stacks`).
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    is_stack: bool = False

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _itemsize(self.dtype)

    @cached_property
    def size_bytes(self) -> int:
        """Bytes of the whole buffer, without padding; of a stack, those of a row."""
        return math.prod(self.shape) * self.itemsize


@dataclass(frozen=True)
class Step:
    """One use of a kernel: inputs, then outputs, then workspaces. `label` is for display.

    `checked` holds the model's layers for each of the code's checks.
    """

    code: KernelCode
    args: tuple[BufferRef, ...]
    label: str
    checked: tuple[str, ...] = ()


@dataclass(frozen=True)
class ArenaBuffer:
    """A buffer inside the arena; buffers with disjoint lifetimes may share bytes."""

    size_bytes: int
    offset_bytes: int


class FlowKind(enum.Enum):
    """The kind of a step of control flow; `codegen.driver.flow` defines each and its arguments."""

    BEGIN = native_flow.BEGIN
    TEST = native_flow.TEST
    NEXT = native_flow.NEXT
    COPY = native_flow.COPY
    UNLESS = native_flow.UNLESS
    JUMP = native_flow.JUMP
    END = native_flow.END
    ROW = native_flow.ROW
    SIZES = native_flow.SIZES


@dataclass(frozen=True)
class Flow:
    """A step of control flow. `target` is a position in the plan's order, `loop` one of its loops.

    The arguments of an `END` are the locations of the results of its loop or branch. `node` is the
    graph's node, while there is a graph.
    """

    kind: FlowKind
    args: tuple[BufferRef, ...] = ()
    target: int = 0
    loop: int = -1
    size_bytes: int = 0
    node: int = -1


def moving_of(states: Sequence[Size], rows: Sequence[Size]) -> tuple[Size, ...]:
    """Returns the sizes of a loop's moving buffers, from those of its states and rows."""
    return (*(size for size in states for _ in range(3)), *rows)


@dataclass(frozen=True)
class LoopPlan:
    """A loop: its moving buffers, from number `first` on, and its trip count.

    Each of its states has three moving buffers of the state's size: one that an iteration reads,
    one that it writes, and a spare one. After them each stack has one, the row of the iteration.
    `trips` is None if a condition ends the loop or, with `reads_trips`, a trip count in memory. Its
    stacks then *grow*: their number of rows is known only after the run.
    """

    first: int
    states_bytes: tuple[int, ...] = ()
    rows_bytes: tuple[int, ...] = ()
    trips: int | None = None
    reads_trips: bool = False

    @property
    def moving_bytes(self) -> tuple[int, ...]:
        """The sizes in bytes of its moving buffers."""
        return moving_of(self.states_bytes, self.rows_bytes)

    @property
    def grows(self) -> bool:
        """Whether the loop has stacks that grow."""
        return self.trips is None and bool(self.rows_bytes)


@dataclass(frozen=True)
class SegmentPlan:
    """All steps of one native call, in order.

    If `arena` is empty, the arena is a single buffer of `arena_bytes`, and references into it are
    `BufferRef(ARENA, 0, offset)`. `order` holds the steps' numbers with control flow in between; it
    is empty if the steps run one after the other. `written` are the inputs that kernels write to.
    `runtime.memory.plan_segment` makes plans.
    """

    steps: tuple[Step, ...]
    inputs: tuple[BufferSpec, ...]
    outputs: tuple[BufferSpec, ...]
    constants: tuple[np.ndarray, ...]
    arena_bytes: int
    arena: tuple[ArenaBuffer, ...] = ()
    order: tuple[int | Flow, ...] = ()
    loops: tuple[LoopPlan, ...] = ()
    written: tuple[int, ...] = ()

    @property
    def entries(self) -> tuple[Step | Flow, ...]:
        """Steps and control flow, in order."""
        if not self.order:
            return self.steps
        return tuple(self.steps[n] if isinstance(n, int) else n for n in self.order)

    @property
    def stacks(self) -> dict[int, tuple[int, ...]]:
        """For each loop whose stacks grow, the outputs that are its stacks."""
        found: dict[int, tuple[int, ...]] = {}
        if not any(loop.grows for loop in self.loops):
            return found
        for entry in self.order:
            if isinstance(entry, Flow) and entry.kind is FlowKind.BEGIN:
                loop = self.loops[entry.loop]
                if loop.grows:
                    refs = entry.args[-len(loop.rows_bytes) :]
                    found[entry.loop] = tuple(ref.index for ref in refs)
        return found

    @property
    def arena_buffers(self) -> tuple[ArenaBuffer, ...]:
        """The arena's buffers, including the implicit one."""
        return self.arena or (ArenaBuffer(self.arena_bytes, 0),)
