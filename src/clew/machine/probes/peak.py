"""Measures how fast this machine's units compute on registers: f32 multiply-adds, dot products of
narrow dtypes, and tiles.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from clew.machine.instructions import instructions_of
from clew.machine.probes.native_function import NativeFunction, seconds_together
from clew.machine.target import host
from clew.machine.units import DotUnit

_CHAINS: Final = 20  # independent sums: more than latency × units on any current core
_FACTORS: Final = 2  # registers beside the sums
_STEPS: Final = 400_000
_TILE_STEPS: Final = 20_000
_TILE_SUMS: Final = 2  # side length of the block of sums: each step multiplies two tiles by two
_TILE_FLOPS: Final = 16 * 16 * 32 * 2


class Peak:
    """A kernel that only computes on registers, callable on several threads."""

    def __init__(self, source: str, buffer: np.ndarray[Any, Any], flops: float) -> None:
        """Compiles the function `peak` of a text for this machine. It takes the address of a copy
        of the buffer, and does a number of operations, two for each multiply-add.
        """
        self._kernel = NativeFunction(source, "peak", ctypes.c_void_p)
        self._buffer = buffer
        self._flops = flops

    def gflops(self, threads: int, runs: int = 3) -> float:
        """Returns operations per nanosecond on `threads` threads at once: the best of a few runs of
        a millisecond, since a run disturbed by another thread does not reach the peak.
        """
        return max(self._once(threads) for _ in range(runs))

    def _once(self, threads: int) -> float:
        buffers = [self._buffer.copy() for _ in range(threads)]
        jobs = [partial(self._kernel, buffer.ctypes.data) for buffer in buffers]
        return threads * self._flops / seconds_together(jobs) / 1e9


class FmaPeak(Peak):
    """Fused multiply-adds of f32: chains of x · 0.999 + 0.001."""

    def __init__(self) -> None:
        """Compiles the kernel for this machine."""
        self.lanes = host().vector_lanes("f32")
        self.chains = _chains()
        vector = f"<{self.lanes} x float>"
        name = f"llvm.fma.v{self.lanes}f32"
        declared = f"declare {vector} @{name}({vector}, {vector}, {vector})"
        source = _source(
            vector, vector, self.chains, declared,
            lambda n: f"  %b{n} = call {vector} @{name}({vector} %a{n}, {vector} %x, {vector} %y)",
        )  # fmt: skip
        values = np.repeat([0.999, 0.001, *[0.5] * self.chains], self.lanes).astype(np.float32)
        super().__init__(source, values, 2.0 * _STEPS * self.chains * self.lanes)


class DotPeak(Peak):
    """A dot-product instruction: sums of the products of the same two registers."""

    def __init__(self, unit: DotUnit) -> None:
        """Compiles the kernel for this machine, which must have the unit."""
        instructions = instructions_of(host().features)
        found = instructions.dot(unit.data, unit.weight, unit.lanes, pairs_fit=True)
        assert found is not None, "no such instruction"
        total = f"<{unit.lanes} x {'float' if unit.data == 'bf16' else 'i32'}>"
        factor = f"<{unit.lanes * unit.group} x {found.element}>"
        takes = f"{total}, {factor}, {factor}" if found.accumulates else f"{factor}, {factor}"
        pairs = f"<{unit.lanes * unit.group // 2} x i16>"

        def step(n: int) -> str:
            if found.accumulates:
                arguments = f"{total} %a{n}, {factor} %x, {factor} %y"
                return f"  %b{n} = call {total} @{found.function}({arguments})"
            # The sum takes part in a factor, so that no product can be moved out of the loop.
            lines = [f"  %f{n} = bitcast {total} %a{n} to {factor}"]
            arguments = f"{factor} %f{n}, {factor} %y"
            if found.pairs:
                lines.append(f"  %h{n} = call {pairs} @{found.pairs}({arguments})")
                arguments = f"{pairs} %h{n}, {pairs} splat (i16 1)"
            lines += [
                f"  %q{n} = call {total} @{found.function}({arguments})",
                f"  %b{n} = add {total} %a{n}, %q{n}",
            ]
            return "\n".join(lines)

        chains = _chains()
        declared = f"declare {total} @{found.function}({takes})"
        if found.pairs:
            declared = (
                f"declare {pairs} @{found.pairs}({takes})\n"
                f"declare {total} @{found.function}({pairs}, {pairs})"
            )
        source = _source(total, factor, chains, declared, step)
        values = np.zeros((_FACTORS + chains) * unit.lanes, np.int32)
        super().__init__(source, values, 2.0 * _STEPS * chains * unit.lanes * unit.group)


class TilePeak(Peak):
    """Products of bf16 tiles on the matrix unit."""

    def __init__(self) -> None:
        """Compiles the kernel for this machine, which must have the unit."""
        assert self.available(), "no matrix unit for bf16"
        super().__init__(_tile_source(), _tile_config(), _TILE_STEPS * _TILE_SUMS**2 * _TILE_FLOPS)

    @staticmethod
    def available() -> bool:
        """Whether this machine multiplies bf16 tiles."""
        return host().tile_shape("bf16", "bf16") is not None

    def products_per_ns(self) -> float:
        """Returns the products of full tiles per nanosecond on one core."""
        return self.gflops(1) / _TILE_FLOPS


def _chains() -> int:
    """Returns the number of sums. With more than there are registers, one would be stored and
    loaded at each step; one register is free for a product.
    """
    return min(_CHAINS, host().vector_registers - _FACTORS - 1)


def _source(total: str, factor: str, chains: int, declared: str, step: Callable[[int], str]) -> str:
    """Returns LLVM text of `peak(buffer)`: a loop over independent sums. The buffer holds the
    factors %x and %y and the first values of the sums. The lines of `step` make %bN from %aN.
    """
    sums = range(chains)
    loads = "\n".join(
        f"  %p{name} = getelementptr {total}, ptr %buffer, i64 {place}\n"
        f"  %{name} = load {kind}, ptr %p{name}, align 4"
        for name, kind, place in (
            ("x", factor, 0),
            ("y", factor, 1),
            *((f"s{n}", total, _FACTORS + n) for n in sums),
        )
    )
    phis = "\n".join(f"  %a{n} = phi {total} [ %s{n}, %entry ], [ %b{n}, %loop ]" for n in sums)
    steps = "\n".join(map(step, sums))
    stores = "\n".join(f"  store {total} %b{n}, ptr %ps{n}, align 4" for n in sums)
    return f"""
{declared}
define void @peak(ptr %buffer) {{
entry:
{loads}
  br label %loop
loop:
  %n = phi i64 [ 0, %entry ], [ %next, %loop ]
{phis}
{steps}
  %next = add i64 %n, 1
  %more = icmp ult i64 %next, {_STEPS}
  br i1 %more, label %loop, label %done
done:
{stores}
  ret void
}}
"""


def _tile_config() -> np.ndarray[Any, Any]:
    """Returns the configuration of eight tiles of 16 rows of 64 bytes (Intel, ldtilecfg)."""
    made = np.zeros(64, np.uint8)
    made[0] = 1  # palette
    made[16:32].view(np.uint16)[:] = 64
    made[48:56] = 16
    return made


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
define void @peak(ptr %config) {{
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
