"""What code generation hands to the runtime: entry points, kernels and object code."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EntryPoint:
    """One parallel phase of a kernel: a function `void(ptr args, ptr scratch, i64 begin, i64 end)`.

    `grid` is the number of independent pieces of work; 1 means the phase is serial. `cost` is a
    rough number of nanoseconds one run takes on one core; it decides threading and chunk sizes and
    never the result.
    """

    symbol: str
    grid: int
    cost: float


@dataclass(frozen=True)
class KernelCode:
    """One compiled kernel: its entry points in the order in which they must run.

    `key` is the hex hash of everything the code depends on. `scratch_bytes` is the per-thread
    scratch memory that each entry point needs; `workspace_bytes` are the kernel-wide temporaries
    passed after the outputs. `in_place` has the inputs whose memory an output may take, as
    positions of both: each of its elements is written after the same element of the input was read
    for the last time.
    """

    key: str
    entries: tuple[EntryPoint, ...]
    scratch_bytes: int = 0
    workspace_bytes: tuple[int, ...] = ()
    in_place: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class ObjectCode:
    """One relocatable object file and the functions it defines."""

    key: str
    data: bytes
    symbols: tuple[str, ...]
