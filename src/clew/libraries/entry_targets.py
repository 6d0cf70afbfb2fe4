"""LLVM text of the functions of a library that choose the code of a target.

A library for several targets has one run for each (`entry.Run`). Its first call with a workspace
asks the CPU for its features, with the instructions CPUID and XGETBV, and keeps the answer in the
workspace: a hypervisor may emulate CPUID, which takes microseconds. Workspaces may have any
contents before a call, so the answer is kept as two words that nothing else writes (`_keys`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from clew.codegen.objects import CodeTarget
from clew.libraries.entry_state import escaped
from clew.libraries.interface import NULL, TARGET
from clew.support.arrays import ALIGNMENT_BYTES

CHOICE_BYTES: Final = 64
"""What a library for several targets keeps in a workspace: the number of the target of the last
call, and the choice.
"""

_DEFINED: Final = re.compile(r"^define .*\) nounwind", re.MULTILINE)

ASKED: Final = "x86-64-v4+amx"
"""The target that calls never choose by themselves: the program must request its registers."""


class _Bits(NamedTuple):
    """The features of a target: bits of registers that CPUID returns for leaves 1, 7 and 80000001H,
    and of the register that XGETBV returns, XCR0.
    """

    ecx1: int
    ebx7: int = 0
    ecx_extended: int = 0
    xcr0: int = 0


def _mask(*bits: int) -> int:
    return sum(1 << bit for bit in bits)


# SSE3, SSSE3, CX16, SSE4.1, SSE4.2, POPCNT
_V2: Final = _Bits(_mask(0, 9, 13, 19, 20, 23))
# FMA, MOVBE, OSXSAVE, AVX, F16C; BMI1, AVX2, BMI2; LAHF, LZCNT
_V3: Final = _Bits(_V2.ecx1 | _mask(12, 22, 27, 28, 29), _mask(3, 5, 8), _mask(0, 5), _mask(1, 2))
# AVX512F, AVX512DQ, AVX512CD, AVX512BW, AVX512VL
_V4: Final = _Bits(
    _V3.ecx1, _V3.ebx7 | _mask(16, 17, 28, 30, 31), _V3.ecx_extended, _V3.xcr0 | _mask(5, 6, 7)
)
_LEVELS: Final = {"x86-64-v2": _V2, "x86-64-v3": _V3, "x86-64-v4": _V4}

TARGETS: Final = (*_LEVELS, ASKED)
"""The targets that a library can choose from. Each has the features of those before it.

Source: System V ABI, AMD64 supplement 1.0, table 3.1 (micro-architecture levels).
"""


def functions_of_targets(
    prefix: str, targets: Sequence[str], arguments: str, place: int
) -> list[str]:
    """Returns the functions of the header that run the model, or name the layer of a fault.
    `targets` is empty if the library has one run only; otherwise, they are in the order of
    `TARGETS`, and the workspace has `CHOICE_BYTES` for them at `place`.
    """
    parts = [_ALIGNED]
    if not targets:
        parts.append(
            f"define i32 @{prefix}_run_with({arguments}, ptr %threads) nounwind {{\n"
            f"  %r = call i32 @clew_run0({arguments}, ptr %threads)\n  ret i32 %r\n}}"
        )
    else:
        parts += [
            _INSTRUCTIONS,
            _choose(prefix, targets),
            _kept_choice(prefix, targets, arguments, place),
            f"define i32 @{prefix}_run_for(i32 %target, {arguments}, ptr %threads) nounwind {{\n"
            f"  {_switch('i32', targets)}\n{_runs(targets, arguments)}"
            f"none:\n  ret i32 {TARGET}\n}}",
        ]
    return [
        *parts,
        f"define i32 @{prefix}_run({arguments}) nounwind {{\n"
        f"  %r = call i32 @{prefix}_run_with({arguments}, ptr null)\n  ret i32 %r\n}}",
        _fault(prefix, targets, place),
    ]


_ALIGNED: Final = f"""\
; The first aligned address in a workspace.
define internal ptr @clew_aligned(ptr %workspace) alwaysinline nounwind {{
  %number = ptrtoint ptr %workspace to i64
  %beyond = add i64 %number, {ALIGNMENT_BYTES - 1}
  %begin = and i64 %beyond, -{ALIGNMENT_BYTES}
  %distance = sub i64 %begin, %number
  %base = getelementptr i8, ptr %workspace, i64 %distance
  ret ptr %base
}}"""


def for_target(text: str, target: CodeTarget) -> str:
    """Returns the module of a kernel with its functions compiled for a target, whatever that of the
    module that it becomes part of.
    """
    own = f'"target-cpu"="{target.cpu}" "target-features"="{target.features}"'
    return _DEFINED.sub(rf"\g<0> {own}", text)


def _keys(prefix: str, targets: Sequence[str]) -> list[int]:
    text = f"{prefix} chooses from {', '.join(targets)}"
    digest = hashlib.sha512(text.encode()).digest()
    return [int.from_bytes(digest[at : at + 8], "little", signed=True) for at in (0, 8, 16)]


def _kept_choice(prefix: str, targets: Sequence[str], arguments: str, place: int) -> str:
    """`NAME_run_with`. The first word that it keeps is the target's number XOR a key; the second
    word is a function of the first.
    """
    first, second, factor = _keys(prefix, targets)
    return f"""\
define internal i64 @clew_second_word(i64 %target) alwaysinline nounwind {{
  %product = mul i64 %target, {factor | 1}
  %word = xor i64 %product, {second}
  ret i64 %word
}}
define i32 @{prefix}_run_with({arguments}, ptr %threads) nounwind {{
  %null = icmp eq ptr %workspace, null
  br i1 %null, label %none, label %given
none:
  ret i32 {NULL}
given:
  %base = call ptr @clew_aligned(ptr %workspace)
  %at = getelementptr i8, ptr %base, i64 {place + 8}
  %after = getelementptr i8, ptr %base, i64 {place + 16}
  %word = load i64, ptr %at, align 8
  %other = load i64, ptr %after, align 8
  %kept = xor i64 %word, {first}
  %wanted = call i64 @clew_second_word(i64 %kept)
  %is_kept = icmp eq i64 %other, %wanted
  br i1 %is_kept, label %run, label %ask
ask:
  %asked = call i32 @{prefix}_target()
  %found = sext i32 %asked to i64
  %new = xor i64 %found, {first}
  %more = call i64 @clew_second_word(i64 %found)
  store i64 %new, ptr %at, align 8
  store i64 %more, ptr %after, align 8
  br label %run
run:
  %chosen = phi i64 [ %kept, %given ], [ %found, %ask ]
  %target = trunc i64 %chosen to i32
  %r = call i32 @{prefix}_run_for(i32 %target, {arguments}, ptr %threads)
  ret i32 %r
}}"""


def _switch(type_: str, targets: Sequence[str]) -> str:
    cases = " ".join(f"{type_} {n}, label %target{n}" for n in range(len(targets)))
    return f"switch {type_} %target, label %none [ {cases} ]"


def _runs(targets: Sequence[str], arguments: str) -> str:
    return "".join(
        f"target{n}:\n  %r{n} = call i32 @clew_run{n}({arguments}, ptr %threads)\n  ret i32 %r{n}\n"
        for n in range(len(targets))
    )


def _fault(prefix: str, targets: Sequence[str], place: int) -> str:
    """`NAME_fault`. Without a call, the number of the target is any number."""
    if targets:
        find = (
            f"  %at = getelementptr i8, ptr %base, i64 {place}\n"
            f"  %target = load i64, ptr %at, align 8\n  {_switch('i64', targets)}\n"
        )
    else:
        find = "  br label %target0\n"
    calls = "".join(
        f"target{n}:\n  %r{n} = call ptr @clew_fault{n}(ptr %base)\n  ret ptr %r{n}\n"
        for n in range(max(1, len(targets)))
    )
    return (
        f"define ptr @{prefix}_fault(ptr %workspace) nounwind {{\n"
        "  %null = icmp eq ptr %workspace, null\n  br i1 %null, label %none, label %given\n"
        f"given:\n  %base = call ptr @clew_aligned(ptr %workspace)\n{find}{calls}"
        "none:\n  ret ptr null\n}"
    )


def _choose(prefix: str, targets: Sequence[str]) -> str:
    """`NAME_target()`: the number of the last target, other than `ASKED`, whose features the CPU
    has and the operating system supports; -1 if there is none. Leaves 7 and 80000001H are there if
    leaf 1 reports XSAVE.
    """
    lines = [f"define i32 @{prefix}_target() nounwind {{", "entry:", *_cpuid("leaf1", 1)]
    chosen, wide = "-1", False
    for number, name in enumerate(targets):
        if name == ASKED:
            continue
        bits = _LEVELS[name]
        lines += _has(f"has{number}", "%leaf1.c", bits.ecx1)
        lines.append(f"  br i1 %has{number}, label %some{number}, label %chosen{number}")
        lines.append(f"some{number}:")
        if bits.ebx7 and not wide:
            wide = True
            lines += [
                *_cpuid("leaf7", 7),
                *_cpuid("extended", 0x8000_0001),
                "  %xcr0 = call i32 @clew_xgetbv()",
            ]
        if bits.ebx7:
            tests = (("b", "%leaf7.b", bits.ebx7), ("e", "%extended.c", bits.ecx_extended))
            for key, word, mask in (*tests, ("x", "%xcr0", bits.xcr0)):
                lines += _has(f"has{number}.{key}", word, mask)
            lines += [
                f"  %both{number} = and i1 %has{number}.b, %has{number}.e",
                f"  %all{number} = and i1 %both{number}, %has{number}.x",
                f"  br i1 %all{number}, label %next{number}, label %chosen{number}",
            ]
        else:
            lines.append(f"  br label %next{number}")
        lines += [f"chosen{number}:", f"  ret i32 {chosen}", f"next{number}:"]
        chosen = str(number)
    return "\n".join([*lines, f"  ret i32 {chosen}", "}"])


_XCR0: Final = "  %xcr0 = call i32 @clew_xgetbv()"


def _has(name: str, word: str, mask: int) -> list[str]:
    return [
        f"  %{name}.own = and i32 {word}, {mask}",
        f"  %{name} = icmp eq i32 %{name}.own, {mask}",
    ]


def _cpuid(name: str, leaf: int) -> list[str]:
    return [
        f"  %{name} = call i64 @clew_cpuid(i32 {leaf})",
        f"  %{name}.b = trunc i64 %{name} to i32",
        f"  %{name}.high = lshr i64 %{name}, 32",
        f"  %{name}.c = trunc i64 %{name}.high to i32",
    ]


# Machine code for the System V ABI, placed at the entry of a function: LLVM has no intrinsic for
# CPUID, and llvmlite no assembler for another architecture than this machine's.
_CPUID: Final = (
    b"\x53"  # push rbx
    b"\x89\xf8"  # mov eax, edi
    b"\x31\xc9"  # xor ecx, ecx
    b"\x0f\xa2"  # cpuid
    b"\x48\xc1\xe1\x20"  # shl rcx, 32
    b"\x48\x8d\x04\x19"  # lea rax, [rcx + rbx]
    b"\x5b"  # pop rbx
    b"\xc3"  # ret
)
_XGETBV: Final = (
    b"\x31\xc9"  # xor ecx, ecx
    b"\x0f\x01\xd0"  # xgetbv
    b"\xc3"  # ret
)
_INSTRUCTIONS: Final = f"""\
; Registers ECX (high half) and EBX that CPUID returns for the first subleaf of a leaf.
define internal i64 @clew_cpuid(i32 %leaf) noinline nounwind
    prologue [{len(_CPUID)} x i8] c"{escaped(_CPUID)}" {{
  ret i64 0
}}
; The low half of XCR0: the registers that the operating system saves.
define internal i32 @clew_xgetbv() noinline nounwind
    prologue [{len(_XGETBV)} x i8] c"{escaped(_XGETBV)}" {{
  ret i32 0
}}"""
