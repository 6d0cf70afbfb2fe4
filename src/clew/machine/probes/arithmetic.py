"""Measures the clock of a core, and the latency and throughput of its arithmetic."""

from __future__ import annotations

import ctypes
import time
from typing import Final

import numpy as np

from clew.machine.probes.native_function import NativeFunction
from clew.machine.target import host

_ADDS: Final = 64  # per iteration, each dependent on the previous one
_DIVISIONS: Final = 8  # independent of each other: more than any core executes at once
_ITERATIONS: Final = 50_000
_ROUNDS: Final = 9


def clock_ghz() -> float:
    """Returns the clock rate of a busy core in GHz: dependent integer additions take one cycle
    each.
    """
    lines = ["  %x0 = phi i64 [ %seed, %entry ], [ %last, %loop ]"]
    for n in range(_ADDS):
        # The empty asm statement keeps LLVM from combining the steps.
        lines.append(f"  %y{n} = add i64 %x{n}, %step")
        name = f"x{n + 1}" if n + 1 < _ADDS else "last"
        lines.append(f'  %{name} = call i64 asm sideeffect "", "=r,0"(i64 %y{n})')
    body = "\n".join(lines)
    text = f"""
define void @clock(i64 %seed, i64 %step) {{
entry:
  br label %loop
loop:
  %n = phi i64 [ 0, %entry ], [ %next, %loop ]
{body}
  %next = add i64 %n, 1
  %more = icmp ult i64 %next, {_ITERATIONS}
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""
    run = NativeFunction(text, "clock", ctypes.c_int64, ctypes.c_int64)
    return _ITERATIONS * _ADDS / _best_ns(lambda: run(1, 3))


def multiply_add_latency_ns() -> float:
    """Returns the nanoseconds from an f32 multiply-add to the next one that needs its result."""
    lanes = host().vector_lanes("f32")
    return _chains_ns(1, f"call <{lanes} x float> @llvm.fma.v{lanes}f32(%v %a, %v %b, %v %b)")


def division_ns() -> float:
    """Returns the nanoseconds per division of a full vector of f32, with independent divisions."""
    return _chains_ns(_DIVISIONS, "fdiv %v %b, %a") / _DIVISIONS


def _chains_ns(chains: int, step: str) -> float:
    """Returns the nanoseconds of one iteration of independent chains `a = step(a, b)`."""
    lanes = host().vector_lanes("f32")
    vector = f"<{lanes} x float>"
    phis, steps, kept = [], [], []
    for n in range(chains):
        phis.append(f"  %a{n} = phi {vector} [ %b, %entry ], [ %c{n}, %loop ]")
        line = step.replace("%v", vector).replace("%a", f"%a{n}")
        steps.append(f"  %c{n} = {line}")
        kept.append(f"  store volatile {vector} %c{n}, ptr %buffer, align 4")
    lines = "\n".join((*phis, *steps))
    text = f"""
declare {vector} @llvm.fma.v{lanes}f32({vector}, {vector}, {vector})
define void @chains(ptr %buffer) {{
entry:
  %b = load {vector}, ptr %buffer, align 4
  br label %loop
loop:
  %n = phi i64 [ 0, %entry ], [ %next, %loop ]
{lines}
  %next = add i64 %n, 1
  %more = icmp ult i64 %next, {_ITERATIONS}
  br i1 %more, label %loop, label %done
done:
{chr(10).join(kept)}
  ret void
}}
"""
    run = NativeFunction(text, "chains", ctypes.c_void_p)
    buffer = np.full(lanes, 0.5, np.float32)

    def once() -> None:
        buffer[:] = 0.5
        run(buffer.ctypes.data)

    return _best_ns(once) / _ITERATIONS


def _best_ns(run: object) -> float:
    """Returns the nanoseconds of the fastest of a few runs, as the least disturbed one."""
    assert callable(run)
    times = []
    for _ in range(_ROUNDS):
        start = time.perf_counter_ns()
        run()
        times.append(time.perf_counter_ns() - start)
    return float(min(times))
