"""Measures the f32 operations per second of this machine's vector units, through llvmlite."""

from __future__ import annotations

import ctypes
from functools import partial

import numpy as np

from clew.machine.probes.native_function import NativeFunction, seconds_together
from clew.machine.target import host

_CHAINS = 20  # independent accumulators: more than latency × units on any current core
_OPERANDS = 2  # registers of the other factor and the summand
_STEPS = 400_000


class FmaPeak:
    """A kernel that only executes fused multiply-adds on registers, callable on several threads."""

    def __init__(self) -> None:
        """Compiles the kernel for this machine."""
        self.lanes = host().vector_lanes("f32")
        # With more accumulators than registers, one would be stored and loaded at each step.
        self.chains = min(_CHAINS, host().vector_registers - _OPERANDS - 1)
        source = _source(self.lanes, self.chains)
        self._kernel = NativeFunction(source, "fma_peak", ctypes.c_void_p)

    def gflops(self, threads: int, runs: int = 3) -> float:
        """Returns GFLOP/s on `threads` threads at once: the best of a few runs of a millisecond,
        since a run disturbed by another thread does not reach the peak.
        """
        return max(self._once(threads) for _ in range(runs))

    def _once(self, threads: int) -> float:
        buffers = [np.full(self.chains * self.lanes, 0.5, np.float32) for _ in range(threads)]
        jobs = [partial(self._kernel, buffer.ctypes.data) for buffer in buffers]
        return threads * _STEPS * self.chains * self.lanes * 2 / seconds_together(jobs) / 1e9


class TilePeak:
    """A kernel that only multiplies bf16 tiles on the matrix unit."""

    def __init__(self) -> None:
        """Compiles the kernel for this machine, which must have the unit."""
        assert self.available(), "no matrix unit for bf16"
        self._kernel = NativeFunction(_tile_source(), "tile_peak", ctypes.c_void_p)

    @staticmethod
    def available() -> bool:
        """Whether this machine multiplies bf16 tiles."""
        return host().tile_shape("bf16", "bf16") is not None

    def gflops(self, threads: int, runs: int = 3) -> float:
        """Returns GFLOP/s on `threads` threads at once, two for each multiply-add: the best of a
        few runs of a millisecond.
        """
        jobs = [partial(self._kernel, _tile_config().ctypes.data) for _ in range(threads)]
        work = threads * _TILE_STEPS * _TILE_SUMS**2 * 16 * 16 * 32 * 2
        return max(work / seconds_together(jobs) / 1e9 for _ in range(runs))

    def products_per_ns(self) -> float:
        """Returns the products of full tiles per nanosecond on one core."""
        return self.gflops(1) / (16 * 16 * 32 * 2)


_TILE_STEPS = 20_000
_TILE_SUMS = 2  # side length of the block of sums: each step multiplies two tiles by two
_CONFIG = np.zeros(64, np.uint8)


def _tile_config() -> np.ndarray:
    """Returns the configuration of eight tiles of 16 rows of 64 bytes (Intel, ldtilecfg)."""
    _CONFIG[0] = 1  # palette
    _CONFIG[16:32].view(np.uint16)[:] = 64
    _CONFIG[48:56] = 16
    return _CONFIG


def _tile_source() -> str:
    """Returns LLVM text: a loop over sums in tiles 0 to 3 of products of tiles 4, 5 and 6, 7."""
    sums = range(_TILE_SUMS**2)
    zero = "\n".join(f"  call void @llvm.x86.tilezero(i8 {n})" for n in range(8))
    products = "\n".join(
        f"  call void @llvm.x86.tdpbf16ps(i8 {n}, i8 {4 + n // 2}, i8 {6 + n % 2})" for n in sums
    )
    return f"""
declare void @llvm.x86.ldtilecfg(ptr)
declare void @llvm.x86.tilezero(i8 immarg)
declare void @llvm.x86.tdpbf16ps(i8 immarg, i8 immarg, i8 immarg)
declare void @llvm.x86.tilerelease()
define void @tile_peak(ptr %config) {{
entry:
  call void @llvm.x86.ldtilecfg(ptr %config)
{zero}
  br label %loop
loop:
  %n = phi i64 [ 0, %entry ], [ %next, %loop ]
{products}
  %next = add i64 %n, 1
  %more = icmp ult i64 %next, {_TILE_STEPS}
  br i1 %more, label %loop, label %done
done:
  call void @llvm.x86.tilerelease()
  ret void
}}
"""


def _source(lanes: int, count: int) -> str:
    """Returns LLVM text: a loop over `count` independent chains x = x · 0.999 + 0.001."""
    vector = f"<{lanes} x float>"

    def splat(value: float) -> str:
        bits = int(np.float64(np.float32(value)).view(np.uint64))
        return "<" + ", ".join([f"float 0x{bits:016X}"] * lanes) + ">"

    chains = range(count)
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
