"""Measures the bytes per second that cores read and write, through llvmlite.

Source: McCalpin, Memory Bandwidth and Machine Balance in Current High Performance Computers, 1995
(STREAM's copy and triad). Only bytes that the program accesses count, not those that a cache reads
before they are overwritten.
"""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

import numpy as np

from clew.machine.probes.native_function import NativeFunction, seconds_together
from clew.machine.target import Target, host
from clew.support.arrays import aligned_empty

Pattern = Literal["read", "copy", "triad"]
# The number of arrays that each pattern reads, and the number it writes.
_ARRAYS: Final[dict[Pattern, tuple[int, int]]] = {
    "read": (1, 0),
    "copy": (1, 1),
    "triad": (2, 1),
}
_UNROLL = 4
_LINE_BYTES = 64
_AHEAD = 256  # elements from a load to its prefetch: hardware prefetchers start late
_BYTES_A_RUN = 64 << 20  # a few milliseconds
# The last-level cache may be shared with many cores, so its size does not limit one program's part.
_MOST_L3_BYTES = 32 << 20
_MOST_BYTES = 704 << 20  # twice the largest last-level caches; a profile may take 1 GB in all


@dataclass(frozen=True)
class Level:
    """A memory level: data that fits in `capacity_bytes` comes from it, at up to `gbps` GB/s."""

    name: str
    capacity_bytes: int
    gbps: float


class Bandwidth:
    """Loops over arrays that are reused between calls, on any number of threads."""

    def __init__(self) -> None:
        """Compiles the loops for this machine."""
        self._lanes = host().vector_lanes("f32")
        pointer, count = ctypes.c_void_p, ctypes.c_int64
        self._loops: dict[Pattern, NativeFunction] = {
            pattern: NativeFunction(
                _source(pattern, self._lanes), pattern, pointer, pointer, pointer, count, count
            )
            for pattern in _ARRAYS
        }
        self._arrays: dict[int, np.ndarray] = {}

    def gbps(self, pattern: Pattern, working_set_bytes: int, threads: int) -> float:
        """Returns GB/s of one short run over arrays of `working_set_bytes` in total.

        The working set is divided among the threads. The loop runs over its arrays once before it
        is timed.
        """
        count = sum(_ARRAYS[pattern])
        step = _UNROLL * self._lanes
        elements = max(step, working_set_bytes // (4 * count * threads) // step * step)
        array_bytes = 4 * elements
        passes = max(1, _BYTES_A_RUN // (array_bytes * count))
        room = self._room(array_bytes * count * threads)
        jobs, warming = [], []
        for thread in range(threads):
            starts = [room + (thread * count + n) * array_bytes for n in range(count)]
            pointers = (starts * 3)[:3]
            warming.append(partial(self._loops[pattern], *pointers, elements, 1))
            jobs.append(partial(self._loops[pattern], *pointers, elements, passes))
        seconds_together(warming)
        return threads * array_bytes * count * passes / seconds_together(jobs) / 1e9

    def line_ns(self, working_set_bytes: int) -> float:
        """Returns the nanoseconds per cache line for repeated reads of `working_set_bytes`, in CPU
        time of this thread, which excludes the time of other programs.
        """
        step = _UNROLL * self._lanes
        elements = max(step, working_set_bytes // 4 // step * step)
        passes = max(1, _BYTES_A_RUN // (8 * elements))
        start = self._room(4 * elements)
        self._loops["read"](start, start, start, elements, 1)
        began = time.thread_time_ns()
        self._loops["read"](start, start, start, elements, passes)
        return (time.thread_time_ns() - began) * _LINE_BYTES / (4 * elements * passes)

    def reading(self, size_bytes: int, threads: int, repeats: int = 3) -> float:
        """Returns the GB/s at which `threads` cores read `size_bytes` again and again, the best of
        `repeats` runs. Far more than the caches hold is read at the rate of memory.
        """
        size = min(size_bytes, _MOST_BYTES, max(4 * host().l3_bytes, 64 << 20))
        found = max(self.gbps("read", size, threads) for _ in range(repeats))
        self._arrays.clear()
        return found

    def _room(self, size_bytes: int) -> int:
        """Returns the address of at least `size_bytes` bytes of initialized numbers."""
        for size, array in self._arrays.items():
            if size >= size_bytes:
                return int(array.ctypes.data)
        room = aligned_empty((size_bytes // 4,), np.float32)
        room[...] = 0.5
        self._arrays = {size_bytes: room}
        return int(room.ctypes.data)

    def levels(self, threads: int, target: Target | None = None, repeats: int = 5) -> list[Level]:
        """Returns the memory levels of `threads` cores, nearest first.

        The bandwidth of a level is the best of `repeats` runs of the read and triad patterns: no
        kernel exceeds it. The last level holds everything.
        """
        here = target or host()
        private = here.l2_bytes * threads
        sizes = [("L2", private, private // 2)]
        if here.l3_bytes > 4 * private:
            shared = max(2 * private, min(here.l3_bytes // 2, _MOST_L3_BYTES))
            sizes.append(("L3", shared, shared))
        beyond = min(_MOST_BYTES, max(4 * here.l3_bytes, 64 << 20))
        sizes.append(("memory", 1 << 62, beyond))
        patterns: tuple[Pattern, Pattern] = ("read", "triad")
        found = [
            Level(
                name,
                capacity,
                max(self.gbps(p, measured, threads) for p in patterns for _ in range(repeats)),
            )
            for name, capacity, measured in sizes
        ]
        self._arrays.clear()  # they are large
        return found


def level_of(levels: list[Level], footprint_bytes: int) -> Level:
    """Returns the nearest level that holds `footprint_bytes`."""
    return next(level for level in levels if footprint_bytes <= level.capacity_bytes)


def _source(pattern: Pattern, lanes: int) -> str:
    """Returns LLVM text of `pattern(a, b, c, n, passes)` over f32[n] arrays.

    read: sums a (kept alive in an asm statement); copy: b = a; triad: c = a + 0.5 · b.
    """
    vector = f"<{lanes} x float>"
    half = "<" + ", ".join(["float 0.5"] * lanes) + ">"
    reads, writes = _ARRAYS[pattern]
    names = "abc"
    lines: list[str] = []
    for n in range(_UNROLL):
        lines.append(f"  %i{n} = add i64 %i, {n * lanes}")
        for name in names[: reads + writes]:
            lines.append(f"  %p{name}{n} = getelementptr float, ptr %{name}, i64 %i{n}")
        for name in names[:reads]:
            lines.append(f"  %f{name}{n} = getelementptr float, ptr %p{name}{n}, i64 {_AHEAD}")
            lines.append(f"  call void @llvm.prefetch.p0(ptr %f{name}{n}, i32 0, i32 3, i32 1)")
            lines.append(f"  %{name}{n} = load {vector}, ptr %p{name}{n}, align 64")
        if pattern == "read":
            lines.append(f"  %r{n} = fadd {vector} %s{n}, %a{n}")
        elif pattern == "copy":
            lines.append(f"  store {vector} %a{n}, ptr %pb{n}, align 64")
        else:
            lines.append(
                f"  %r{n} = call {vector} @llvm.fma.v{lanes}f32"
                f"({vector} %b{n}, {vector} {half}, {vector} %a{n})"
            )
            lines.append(f"  store {vector} %r{n}, ptr %pc{n}, align 64")
    summing = pattern == "read"
    chains = range(_UNROLL if summing else 0)
    zero = "zeroinitializer"
    outer = [f"  %o{n} = phi {vector} [ {zero}, %entry ], [ %r{n}, %turn ]" for n in chains]
    inner = [f"  %s{n} = phi {vector} [ %o{n}, %pass ], [ %r{n}, %loop ]" for n in chains]
    kept = [f'  call void asm sideeffect "", "x"({vector} %r{n})' for n in chains]
    body = "\n".join
    return f"""
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
declare {vector} @llvm.fma.v{lanes}f32({vector}, {vector}, {vector})
define void @{pattern}(ptr %a, ptr %b, ptr %c, i64 %n, i64 %passes) {{
entry:
  br label %pass
pass:
  %k = phi i64 [ 0, %entry ], [ %next_pass, %turn ]
{body(outer)}
  br label %loop
loop:
  %i = phi i64 [ 0, %pass ], [ %next, %loop ]
{body(inner)}
{body(lines)}
  %next = add i64 %i, {_UNROLL * lanes}
  %more = icmp ult i64 %next, %n
  br i1 %more, label %loop, label %turn
turn:
  %next_pass = add i64 %k, 1
  %again = icmp ult i64 %next_pass, %passes
  br i1 %again, label %pass, label %done
done:
{body(kept)}
  ret void
}}
"""
