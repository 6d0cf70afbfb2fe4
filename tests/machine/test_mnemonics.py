"""Instructions in assembly: what they do, read and write."""

from __future__ import annotations

import pytest

from clew.machine.mnemonics import x86


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("vfmadd231ps\t%ymm14, %ymm13, %ymm9", "fma"),
        ("vmulps\t%ymm1, %ymm2, %ymm3", "fma"),
        ("vpdpbusd\t%zmm1, %zmm2, %zmm3", "fma"),
        ("vaddps\t(%rsi,%rdx,4), %ymm9, %ymm9", "add"),
        ("vmaxps\t%ymm1, %ymm2, %ymm3", "compare"),
        ("vblendvps\t%ymm1, %ymm2, %ymm3, %ymm4", "select"),
        ("vpaddd\t%ymm1, %ymm2, %ymm3", "logic"),
        ("vunpcklps\t%ymm1, %ymm2, %ymm3", "shuffle"),
        ("vcvtdq2ps\t%ymm1, %ymm2", "convert"),
        ("vdivps\t%ymm1, %ymm2, %ymm3", "divide"),
        ("vmovq\t%rax, %xmm1", "transfer"),
        ("vgatherdps\t%ymm1, (%rax,%ymm2,4), %ymm3", "gather"),
        ("vmaskmovps\t%ymm1, %ymm2, (%rax)", "masked_store"),
        ("vmaskmovps\t(%rax), %ymm2, %ymm3", "none"),
        ("vbroadcastss\t32(%r14,%r12,4), %ymm13", "none"),
        ("vmovaps\t%ymm1, %ymm2", "none"),
        ("orb\t%al, %cl", "scalar"),
        ("imulq\t$1568, %r13, %r14", "multiply"),
        ("jl\t.LBB0_11", "branch"),
        ("prefetcht1\t(%r15,%rax)", "prefetch"),
    ],
)
def test_each_class_of_instruction(line: str, kind: str) -> None:
    assert x86(line).kind == kind


def test_registers_have_the_name_of_their_widest_form() -> None:
    found = x86("vfmadd231ps\t%ymm14, %xmm13, %zmm9")
    assert found.writes == ("v9",)
    assert set(found.reads) == {"v14", "v13", "v9"}
    assert found.bits == 512
    assert x86("movb\t%r10b, %al").writes == x86("movq\t%r10, %rax").writes == ("ax",)


def test_sums_of_three_operands_do_not_read_what_they_write() -> None:
    assert x86("vaddps\t%ymm1, %ymm2, %ymm3").reads == ("v1", "v2")
    assert "dx" in x86("addq\t%rax, %rdx").reads


def test_zeroing_waits_for_nothing() -> None:
    assert x86("vxorps\t%xmm9, %xmm9, %xmm9").reads == ()
    assert x86("vxorps\t%xmm9, %xmm8, %xmm9").reads == ("v9", "v8")


def test_accesses_to_memory() -> None:
    load = x86("vaddps\t(%rsi,%rdx,4), %ymm9, %ymm9")
    store = x86("vmovups\t%ymm9, 32(%rsi)")
    both = x86("addq\t$8, (%rsp)")
    assert (load.load, load.store) == ("(%rsi,%rdx,4)", "")
    assert (store.load, store.store) == ("", "32(%rsi)")
    assert both.load == both.store == "(%rsp)"
    assert x86("cmpq\t(%rax), %rbx").store == ""
    assert x86("leaq\t8(%rax), %rbx").load == ""


def test_masks_are_read() -> None:
    merged = x86("vmovups\t(%rax), %zmm0 {%k1}")
    assert set(merged.reads) == {"ax", "k1", "v0"}
    assert "v0" not in x86("vmovups\t(%rax), %zmm0 {%k1} {z}").reads
