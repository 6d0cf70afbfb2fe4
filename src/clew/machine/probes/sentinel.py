"""Notices when something else uses the core: a short loop that then takes longer.

A hardware thread shares its core's load units, and often another program runs on the core's other
thread (another machine's program, if this one is virtual). Loads from the first-level cache at the
core's full rate then take about 1.5 times as long, while the clock and dependent operations are
unaffected. So does everything that uses most of the core, such as compiled kernels.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any, Final

import numpy as np

from clew.machine.probes.native_function import NativeFunction
from clew.machine.target import host
from clew.support.arrays import aligned_empty

_BYTES: Final = 8 << 10  # fits the first-level cache beside other data
_UNROLL: Final = 8
_PASSES: Final = 200
_WARM_PASSES: Final = 20
_CALIBRATED_AFTER_S: Final = 1.0  # disturbances usually end sooner
# Of the fastest loop seen. Undisturbed loops are within 4 % of each other on the machines measured.
_UNDISTURBED: Final = 1.1


class Sentinel:
    """A loop of some ten microseconds on the calling thread's core, and its best time so far."""

    def __init__(self) -> None:
        """Compiles the loop for this machine, and finds its time by running it for a second."""
        lanes = host().vector_lanes("f32")
        pointer, count = ctypes.c_void_p, ctypes.c_int64
        self._loop = NativeFunction(_source(lanes), "sentinel", pointer, pointer, count)
        self._elems = _BYTES // 4 // (_UNROLL * lanes) * _UNROLL * lanes
        self._room: np.ndarray[Any, Any] = aligned_empty((self._elems,), np.float32)
        self._room[...] = 0.0
        address = int(self._room.ctypes.data)
        self._ends = address, address + 4 * self._elems
        self._best_ns = self._took_ns()
        self._settle()

    def _settle(self) -> None:
        until = time.perf_counter() + _CALIBRATED_AFTER_S
        while time.perf_counter() < until:
            self.undisturbed()

    def _took_ns(self) -> int:
        self._loop(*self._ends, _WARM_PASSES)
        began = time.perf_counter_ns()
        self._loop(*self._ends, _PASSES)
        return time.perf_counter_ns() - began

    def undisturbed(self) -> bool:
        """Whether the core belongs to the calling thread alone, by one run of the loop."""
        took = self._took_ns()
        self._best_ns = min(self._best_ns, took)
        return took < _UNDISTURBED * self._best_ns

    def wait(self, most_s: float) -> bool:
        """Waits until the core is undisturbed, at most so long; returns whether it is."""
        until = time.perf_counter() + most_s
        while not self.undisturbed():
            if time.perf_counter() > until:
                return False
        return True


def _source(lanes: int) -> str:
    """Returns LLVM text of `sentinel(from, to, passes)`, which loads every vector in each pass."""
    vector = f"<{lanes} x float>"
    body = []
    for n in range(_UNROLL):
        body.append(f"  %p{n} = getelementptr {vector}, ptr %at, i64 {n}")
        body.append(f"  %v{n} = load volatile {vector}, ptr %p{n}, align 64")
    lines = "\n".join(body)
    return f"""
define void @sentinel(ptr %from, ptr %to, i64 %passes) {{
entry:
  br label %pass
pass:
  %k = phi i64 [ 0, %entry ], [ %again, %turn ]
  br label %loop
loop:
  %at = phi ptr [ %from, %pass ], [ %next, %loop ]
{lines}
  %next = getelementptr {vector}, ptr %at, i64 {_UNROLL}
  %more = icmp ult ptr %next, %to
  br i1 %more, label %loop, label %turn
turn:
  %again = add i64 %k, 1
  %other = icmp ult i64 %again, %passes
  br i1 %other, label %pass, label %done
done:
  ret void
}}
"""
