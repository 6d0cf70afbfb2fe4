"""The program of a segment: steps, and which buffer each of their arguments is."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

import ml_dtypes  # noqa: F401  (teaches numpy the name "bfloat16")
import numpy as np

from clew.codegen.artifact import KernelCode


class BufferKind(enum.Enum):
    """Who owns a buffer."""

    INPUT = "input"
    OUTPUT = "output"
    CONSTANT = "constant"
    ARENA = "arena"


@dataclass(frozen=True)
class BufferRef:
    """A place in a buffer.

    `index` says which input, output, constant or arena buffer (see `SegmentPlan.arena`);
    `offset_bytes` counts from that buffer's start.
    """

    kind: BufferKind
    index: int
    offset_bytes: int = 0


@dataclass(frozen=True)
class BufferSpec:
    """An input or output: its name, shape and dtype (numpy's name, or `bfloat16`)."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return np.dtype(self.dtype).itemsize

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole buffer, without padding."""
        return math.prod(self.shape) * self.itemsize


@dataclass(frozen=True)
class Step:
    """One use of a kernel: inputs, then outputs, then workspaces. `label` is for people.

    `checked` has the model's layers that each of the code's checks is for.
    """

    code: KernelCode
    args: tuple[BufferRef, ...]
    label: str
    checked: tuple[str, ...] = ()


@dataclass(frozen=True)
class ArenaBuffer:
    """A buffer inside the arena; buffers whose lifetimes do not meet may share bytes."""

    size_bytes: int
    offset_bytes: int


@dataclass(frozen=True)
class SegmentPlan:
    """Everything that one native call runs, in order.

    With an empty `arena` the arena is a single buffer of `arena_bytes`, so that references into it
    are `BufferRef(ARENA, 0, offset)`. `runtime.memory.plan_segment` makes plans.
    """

    steps: tuple[Step, ...]
    inputs: tuple[BufferSpec, ...]
    outputs: tuple[BufferSpec, ...]
    constants: tuple[np.ndarray, ...]
    arena_bytes: int
    arena: tuple[ArenaBuffer, ...] = ()

    @property
    def arena_buffers(self) -> tuple[ArenaBuffer, ...]:
        """The arena's buffers, also when the plan keeps them implicit."""
        return self.arena or (ArenaBuffer(self.arena_bytes, 0),)
