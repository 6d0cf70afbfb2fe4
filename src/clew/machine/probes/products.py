"""Measures how fast this machine sums products, by the dtypes of the factors."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Final

import numpy as np

from clew.ir.types import bits, is_integer
from clew.machine.instructions import DotInstruction, instructions_of
from clew.machine.probes.native_function import NativeFunction, seconds_together
from clew.machine.probes.peak import TilePeak
from clew.machine.target import host
from clew.machine.units import DotUnit, TileUnit

_CHAINS: Final = 16  # independent sums: more than latency × units on any current core
_FACTORS: Final = 2  # registers of the factors
_STEPS: Final = 100_000


class DotPeak:
    """A kernel that only executes a dot-product instruction on registers, callable on several
    threads.
    """

    def __init__(self, unit: DotUnit) -> None:
        """Compiles the kernel for this machine, which must have the unit."""
        self._unit = unit
        # With more sums than registers, one would be stored and loaded at each step.
        self._chains = min(_CHAINS, host().vector_registers - _FACTORS - 1)
        found = instructions_of(host().features).dot(
            unit.data, unit.weight, unit.lanes, pairs_fit=True
        )
        assert found is not None, "no such instruction"
        source = _source(unit, found, self._chains)
        self._kernel = NativeFunction(source, "dot_peak", ctypes.c_void_p)

    def gflops(self, threads: int, runs: int = 3) -> float:
        """Returns operations per nanosecond on `threads` threads at once, two for each
        multiply-add: the best of a few runs of a fraction of a millisecond.
        """
        return max(self._once(threads) for _ in range(runs))

    def _once(self, threads: int) -> float:
        unit = self._unit
        size = (_FACTORS + self._chains) * unit.lanes
        buffers = [np.zeros(size, np.int32) for _ in range(threads)]
        jobs = [partial(self._kernel, buffer.ctypes.data) for buffer in buffers]
        products = threads * _STEPS * self._chains * unit.lanes * unit.group
        return 2 * products / seconds_together(jobs) / 1e9


class ProductPeaks:
    """The peaks of sums of products on a number of threads; `f32_gflops` is that of f32, and each
    other is measured when it is first asked for.
    """

    def __init__(self, f32_gflops: float, threads: int) -> None:
        self._threads = threads
        self._known: dict[DotUnit | TileUnit | None, float] = {None: f32_gflops}

    def __call__(self, data: str, weight: str) -> float:
        """Returns operations per nanosecond, two for each multiply-add, of the fastest unit that
        multiplies such factors, in either order. Factors without an instruction of their own are
        multiplied at the rate of f32.
        """
        unit = unit_of(data, weight)
        known = self._known.get(unit)
        if known is None:
            assert unit is not None, "the peak of f32 is given"
            known = self._known[unit] = _measured(unit, self._threads)
        return known


def unit_of(data: str, weight: str) -> DotUnit | TileUnit | None:
    """Returns this machine's unit for products of two dtypes, matrix units first; None if they are
    multiplied like f32.

    Factors of 8 bits may have either sign: one of them can be shifted to the sign that a unit
    takes, at no cost for each product.
    """
    here = host()
    units: list[DotUnit | TileUnit] = [*here.tile_units, *here.dot_units]
    for unit in units:
        pair = (unit.data, unit.weight)
        bytes_alike = all(is_integer(d) and bits(d) == 8 for d in (data, weight, *pair))
        if bytes_alike or pair in ((data, weight), (weight, data)):
            return unit
    return None


def _measured(unit: DotUnit | TileUnit, threads: int) -> float:
    if isinstance(unit, DotUnit):
        return DotPeak(unit).gflops(threads)
    # All products of tiles take the same time: rows of tiles have a number of bytes.
    return TilePeak().gflops(threads) * bits("bf16") / bits(unit.data)


def _source(unit: DotUnit, found: DotInstruction, chains: int) -> str:
    """Returns LLVM text: a loop over independent sums of the products of the same two registers."""
    total = f"<{unit.lanes} x {'float' if unit.data == 'bf16' else 'i32'}>"
    factor = f"<{unit.lanes * unit.group} x {found.element}>"
    takes = f"{total}, {factor}, {factor}" if found.accumulates else f"{factor}, {factor}"
    declared, lines = [f"declare {total} @{found.function}({takes})"], []
    if found.pairs:
        pairs = f"<{unit.lanes * unit.group // 2} x i16>"
        declared = [
            f"declare {pairs} @{found.pairs}({takes})",
            f"declare {total} @{found.function}({pairs}, {pairs})",
        ]
    for n in range(chains):
        if found.accumulates:
            arguments = f"{total} %a{n}, {factor} %x, {factor} %y"
            lines.append(f"  %b{n} = call {total} @{found.function}({arguments})")
        else:
            # The sum takes part in a factor, so that no product can be moved out of the loop.
            lines.append(f"  %f{n} = bitcast {total} %a{n} to {factor}")
            arguments = f"{factor} %f{n}, {factor} %y"
            if found.pairs:
                lines.append(f"  %h{n} = call {pairs} @{found.pairs}({arguments})")
                arguments = f"{pairs} %h{n}, {pairs} splat (i16 1)"
            lines.append(f"  %p{n} = call {total} @{found.function}({arguments})")
            lines.append(f"  %b{n} = add {total} %a{n}, %p{n}")
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
    steps = "\n".join(lines)
    stores = "\n".join(f"  store {total} %b{n}, ptr %ps{n}, align 4" for n in sums)
    declarations = "\n".join(declared)
    return f"""
{declarations}
define void @dot_peak(ptr %buffer) {{
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
