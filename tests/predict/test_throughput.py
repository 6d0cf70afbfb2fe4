"""The cycles of loops: each part of the model, by code that only it limits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clew.machine.mnemonics import x86
from clew.machine.rates import DEFAULT_RATES
from clew.predict.assembly import Block, Loop, loops_of
from clew.predict.throughput import Core

_RATES = replace(DEFAULT_RATES, reached=1.0, loop_end=1e-9, guard=1e-9)
_CORE = Core(_RATES)
_AROUND = ("incq\t%rax", "cmpq\t%rbx, %rax", "jl\t.LBB0_1")


def _loop(*lines: str, trips: float = 1000.0) -> Loop:
    return Loop(1, trips, parts=[Block(1.0, [x86(line) for line in (*lines, *_AROUND)])])


def _each(*lines: str, core: Core = _CORE) -> float:
    return core.run(_loop(*lines)).cycles / 1000


def _independent(operation: str, count: int) -> list[str]:
    return [f"{operation}\t%ymm14, %ymm15, %ymm{n}" for n in range(count)]


def test_ports_of_one_class() -> None:
    assert _each(*_independent("vmulps", 12)) == pytest.approx(6)
    assert _each(*_independent("vpaddd", 12)) == pytest.approx(3)


def test_classes_that_share_ports_and_those_that_do_not() -> None:
    both = (*_independent("vmulps", 6), *_independent("vaddps", 6))
    assert _each(*both) == pytest.approx(3)
    shared = Core(replace(_RATES, fma_add=2.0))
    assert _each(*both, core=shared) == pytest.approx(6)


def test_loads_and_stores() -> None:
    loads = [f"vmovups\t{32 * n}(%rdi), %ymm{n}" for n in range(12)]
    stores = [f"vmovups\t%ymm1, {32 * n}(%rdi)" for n in range(12)]
    assert _each(*loads) == pytest.approx(6)
    assert _each(*stores) == pytest.approx(12)
    assert _each(*loads, *stores) == pytest.approx(12)


def test_instructions_issued() -> None:
    moves = [f"vmovaps\t%ymm15, %ymm{n}" for n in range(14)]
    assert _each(*moves) == pytest.approx((len(moves) + 2) / 6)  # the branch is fused


def test_a_chain_takes_its_latency() -> None:
    assert _each("vfmadd231ps\t%ymm1, %ymm2, %ymm3") == pytest.approx(4, rel=0.05)
    assert _each("vaddps\t%ymm1, %ymm3, %ymm3") == pytest.approx(3, rel=0.05)
    assert _each("vxorps\t%xmm3, %xmm3, %xmm3", "vaddps\t%ymm1, %ymm3, %ymm3") < 2


def test_a_sum_in_memory_waits_for_its_store() -> None:
    there = ("vaddps\t(%rdi), %ymm1, %ymm2", "vmovups\t%ymm2, (%rdi)")
    moving = ("addq\t$32, %rdi", *there)
    latency = _RATES.forward_latency + _RATES.add_latency
    assert _each(*there) == pytest.approx(latency, rel=0.05)
    assert _each(*moving) < 2


def test_long_chains_overlap_as_far_as_the_window_reaches() -> None:
    chain = ["vmovups\t(%rdi), %ymm3", *["vfmadd213ps\t%ymm1, %ymm2, %ymm3"] * 60]
    wide = Core(replace(_RATES, window=1000.0, vector_window=1000.0))
    narrow = Core(replace(_RATES, window=16.0, vector_window=16.0))
    assert _each(*chain, core=wide) < _each(*chain) < _each(*chain, core=narrow)
    assert _each(*chain, core=narrow) > 0.7 * 60 * _RATES.fma_latency


def test_short_inner_loops_overlap_with_what_is_around_them() -> None:
    inner = _loop(*_independent("vmulps", 4), trips=4)
    outer = Loop(
        2, 100, parts=[Block(1.0, [x86(line) for line in _independent("vpaddd", 8)]), inner]
    )
    assert _CORE.run(outer).cycles == pytest.approx(100 * 8, rel=0.01)  # only multiplications
    inner.trips = 100
    assert _CORE.run(outer).cycles == pytest.approx(100 * (200 + 2), rel=0.01)


def test_ends_of_long_loops_and_guards_cost() -> None:
    core = Core(replace(_RATES, loop_end=50.0, guard=20.0))
    assert core.run(_loop(*_independent("vmulps", 8))).cycles == pytest.approx(4050)
    guarded = _loop(*_independent("vmulps", 8))
    block = guarded.parts[0]
    assert isinstance(block, Block)
    guarded.parts.append(Block(0.5, []))
    assert core.run(guarded).cycles == pytest.approx(14050)


def test_shares_weigh_blocks_and_loops() -> None:
    half = Loop(1, 1000.0, parts=[Block(0.5, [x86(line) for line in _independent("vmulps", 12)])])
    assert _CORE.run(half).cycles == pytest.approx(3000)


_ASSEMBLY = """
kernel:                                 # @kernel
# %bb.0:                                # %entry
	xorl	%eax, %eax
	.p2align	4
.LBB0_1:                                # %loop5
                                        # =>This Loop Header: Depth=1
                                        #     Child Loop BB0_2 Depth 2
	xorl	%ecx, %ecx
.LBB0_2:                                # %loop7
                                        #   Parent Loop BB0_1 Depth=1
                                        # =>  This Inner Loop Header: Depth=2
	incq	%rcx
	cmpq	$8, %rcx                # imm = 0x8
	jl	.LBB0_2
# %bb.3:                                # %if9
                                        #   in Loop: Header=BB0_1 Depth=1
	incq	%rax
	jl	.LBB0_1
# %bb.4:                                # %done
	retq
.Lfunc_end0:
"""


def test_assembly_gives_loops_with_the_trips_of_the_text() -> None:
    trips, shares = {"kernel": {5: 10.0, 7: 8.0}}, {"kernel": {"if9": 0.25}}
    root = loops_of(_ASSEMBLY, trips, shares)["kernel"]
    (outer,) = root.inner
    (inner,) = outer.inner
    assert (root.number, outer.number, outer.trips, inner.trips) == (0, 5, 10.0, 8.0)
    blocks = [part for part in outer.parts if isinstance(part, Block)]
    assert [(block.share, len(block.code)) for block in blocks] == [(1.0, 1), (0.25, 2)]
    assert [len(p.code) for p in inner.parts if isinstance(p, Block)] == [3]
    assert [len(p.code) for p in root.parts if isinstance(p, Block)] == [1, 1]
