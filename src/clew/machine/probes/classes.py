"""Measures the throughput and the latency of classes of vector instructions, by loops of chains.

The throughput of the ports limits many independent chains; the latency limits a single chain.

Source: Abel and Reineke, uops.info, 2019; Derumigny et al., Palmed, 2022.
"""

from __future__ import annotations

import ctypes
import time
from typing import Final

import numpy as np

from clew.machine.probes.native_function import NativeFunction
from clew.machine.target import host
from clew.support.arrays import aligned_empty

_ITERATIONS: Final = 40_000
_CHAINS: Final = 12
_CONSTANTS: Final = 2

STEPS: Final = {
    "fma": "%x = call %F @llvm.fma.%N(%F %a, %F %b, %F %c)",
    "add": "%x = fadd %F %a, %b",
    "compare": "%t0 = fcmp ogt %F %a, %b\n%x = select %M %t0, %F %a, %F %b",
    "logic": "%t0 = bitcast %F %a to %I\n%t1 = bitcast %F %b to %I\n%t2 = add %I %t0, %t1\n"
             "%x = bitcast %I %t2 to %F",
    "shuffle": "%x = shufflevector %F %a, %F %b, %S",
    "convert": "%t0 = bitcast %F %a to %I\n%x = sitofp %I %t0 to %F",
    "divide": "%x = fdiv %F %b, %a",
}  # fmt: skip
"""One step of a chain from %a to %x in LLVM text, by class."""


class Steps:
    """A loop of steps. Run it many times and take the best, since other work only adds time."""

    def __init__(self, loads: str, lines: str, kept: str, count: int) -> None:
        """Compiles the loop for this machine. An iteration has `count` steps."""
        lanes = host().vector_lanes("f32")
        floats = f"<{lanes} x float>"
        text = f"""
declare {floats} @llvm.fma.v{lanes}f32({floats}, {floats}, {floats})
define void @steps(ptr %buffer) {{
entry:
{loads}
  br label %loop
loop:
  %n = phi i64 [ 0, %entry ], [ %next, %loop ]
{lines}
  %next = add i64 %n, 1
  %more = icmp ult i64 %next, {_ITERATIONS}
  br i1 %more, label %loop, label %done
done:
{kept}
  ret void
}}
"""
        self.count = count
        self._run = NativeFunction(text, "steps", ctypes.c_void_p)
        self._buffer = aligned_empty((lanes * _CHAINS,), np.float32)

    def ns(self) -> float:
        """Returns the nanoseconds of a step in one run, in CPU time of this thread, which excludes
        the time of other programs.
        """
        self._buffer[:] = 1.5
        began = time.thread_time_ns()
        self._run(self._buffer.ctypes.data)
        return (time.thread_time_ns() - began) / (_ITERATIONS * self.count)


def chains(kind: str, count: int | None = None) -> Steps:
    """Returns a loop of `count` independent chains of a class of instructions; by default, of as
    many as registers hold.
    """
    lanes = host().vector_lanes("f32")
    floats = f"<{lanes} x float>"
    # Interleaves within 128 bits, which takes one instruction on all machines.
    order = [base + n for base in range(0, lanes, 4) for n in (0, lanes, 1, lanes + 1)]
    mixed = ", ".join(f"i32 {n}" for n in order)
    words = {"%F": floats, "%I": f"<{lanes} x i32>", "%M": f"<{lanes} x i1>",
             "%N": f"v{lanes}f32", "%S": f"<{lanes} x i32> <{mixed}>"}  # fmt: skip
    phis, steps, kept = [], [], []
    number = min(_CHAINS, host().vector_registers - _CONSTANTS - 1) if count is None else count
    for n in range(number):
        phis.append(f"  %a{n} = phi {floats} [ %c, %entry ], [ %x{n}, %loop ]")
        text = STEPS[kind]
        for word, meaning in words.items():
            text = text.replace(word, meaning)
        for name in ("%a", "%x", "%t0", "%t1", "%t2"):
            text = text.replace(name, f"{name}_{n}" if name[1] == "t" else f"{name}{n}")
        steps.append("\n".join(f"  {line}" for line in text.splitlines()))
        kept.append(f"  store volatile {floats} %x{n}, ptr %buffer, align 4")
    loads = "\n".join(
        f"  %p{name} = getelementptr {floats}, ptr %buffer, i64 {place}\n"
        f"  %{name} = load {floats}, ptr %p{name}, align 4"
        for place, name in enumerate("bc")
    )
    return Steps(loads, "\n".join((*phis, *steps)), "\n".join(kept), number)


def accesses(*, stores: bool) -> Steps:
    """Returns a loop of vector loads from the first-level cache, or of stores to it."""
    floats = f"<{host().vector_lanes('f32')} x float>"
    lines = [
        f"  %q{n} = getelementptr {floats}, ptr %buffer, i64 {n}\n"
        + (
            f"  store volatile {floats} %b, ptr %q{n}, align 4"
            if stores
            else f"  %v{n} = load volatile {floats}, ptr %q{n}, align 4"
        )
        for n in range(_CHAINS)
    ]
    loads = f"  %b = load {floats}, ptr %buffer, align 4"
    return Steps(loads, "\n".join(lines), "", _CHAINS)
