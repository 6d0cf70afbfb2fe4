"""Measures how many f32 operations a second this machine's vector units do, through llvmlite."""

from __future__ import annotations

import ctypes
from functools import partial

import numpy as np

from clew.bench.jit import NativeFunction, seconds_together
from clew.target import host

_CHAINS = 20  # independent accumulators: more than latency × units on any current core
_STEPS = 400_000


class FmaPeak:
    """A kernel of nothing but fused multiply-adds on registers, callable on several threads."""

    def __init__(self) -> None:
        """Compiles the kernel for the machine it runs on."""
        self.lanes = host().vector_lanes("f32")
        self._kernel = NativeFunction(_source(self.lanes), "fma_peak", ctypes.c_void_p)

    def gflops(self, threads: int, runs: int = 3) -> float:
        """Returns GFLOP/s on `threads` threads at once: the best of a few runs of a millisecond,
        for a peak that another thread disturbed is none.
        """
        return max(self._once(threads) for _ in range(runs))

    def _once(self, threads: int) -> float:
        buffers = [np.full(_CHAINS * self.lanes, 0.5, np.float32) for _ in range(threads)]
        jobs = [partial(self._kernel, buffer.ctypes.data) for buffer in buffers]
        return threads * _STEPS * _CHAINS * self.lanes * 2 / seconds_together(jobs) / 1e9


def _source(lanes: int) -> str:
    """Returns LLVM text: a loop over `_CHAINS` independent chains x = x · 0.999 + 0.001."""
    vector = f"<{lanes} x float>"

    def splat(value: float) -> str:
        bits = int(np.float64(np.float32(value)).view(np.uint64))
        return "<" + ", ".join([f"float 0x{bits:016X}"] * lanes) + ">"

    chains = range(_CHAINS)
    loads = "\n".join(
        f"  %p{i} = getelementptr {vector}, ptr %buffer, i64 {i}\n"
        f"  %x{i} = load {vector}, ptr %p{i}, align 4"
        for i in chains
    )
    phis = "\n".join(f"  %a{i} = phi {vector} [ %x{i}, %entry ], [ %b{i}, %loop ]" for i in chains)
    fmas = "\n".join(
        f"  %b{i} = call {vector} @llvm.fma.v{lanes}f32"
        f"({vector} %a{i}, {vector} {splat(0.999)}, {vector} {splat(0.001)})"
        for i in chains
    )
    stores = "\n".join(f"  store {vector} %b{i}, ptr %p{i}, align 4" for i in chains)
    return f"""
declare {vector} @llvm.fma.v{lanes}f32({vector}, {vector}, {vector})
define void @fma_peak(ptr %buffer) {{
entry:
{loads}
  br label %loop
loop:
  %n = phi i64 [ 0, %entry ], [ %next, %loop ]
{phis}
{fmas}
  %next = add i64 %n, 1
  %more = icmp ult i64 %next, {_STEPS}
  br i1 %more, label %loop, label %done
done:
{stores}
  ret void
}}
"""
