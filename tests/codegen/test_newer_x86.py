"""Instructions that the disassembler library does not know, their bytes as GNU's assembler gives
them.
"""

from __future__ import annotations

import pytest

from clew.codegen.newer_x86 import Decoded, decode

INSTRUCTIONS = {
    "c4e27b49d8": "tilezero tmm3",
    "c4e27849c0": "tilerelease",
    "c4e2784900": "ldtilecfg [rax]",
    "c4c278494540": "ldtilecfg [r13 + 0x40]",
    "c4a27b4b2410": "tileloadd tmm4, [rax + r10]",
    "c4827b4b7c1f40": "tileloadd tmm7, [r15 + r11 + 0x40]",
    "c4e27b4b848b00f0ffff": "tileloadd tmm0, [rbx + rcx*4 - 0x1000]",
    "c4a27a4b8c2480000000": "tilestored [rsp + r12 + 0x80], tmm1",
    "c4e24a5cc4": "tdpbf16ps tmm0, tmm4, tmm6",
    "c4e2415edd": "tdpbusd tmm3, tmm5, tmm7",
    "c4e2435edd": "tdpbssd tmm3, tmm5, tmm7",
    "c4c21d50c5": "vpdpbusd ymm0, ymm12, ymm13",
    "c4623950d3": "vpdpbusd xmm10, xmm8, xmm3",
    "c4a27551bc8280000000": "vpdpbusds ymm7, ymm1, [rdx + r8*4 + 0x80]",
    "62e27e4872dd": "vcvtneps2bf16 ymm19, zmm5",
    "62127e4a72c9": "vcvtneps2bf16 ymm9 {k2}, zmm25",
    "62b27e48727c1202": "vcvtneps2bf16 ymm7, [rdx + r10 + 0x80]",
    "62823f4872cf": "vcvtne2ps2bf16 zmm17, zmm8, zmm31",
    "62f25e4052cb": "vdpbf16ps zmm1, zmm20, zmm3",
}


@pytest.mark.parametrize("code", INSTRUCTIONS)
def test_decoded(code: str) -> None:
    data = bytes.fromhex(code)
    expected = Decoded(len(data), INSTRUCTIONS[code])
    assert decode(data) == expected
    assert decode(data + b"\x90" * 9) == expected


@pytest.mark.parametrize("code", INSTRUCTIONS)
def test_cut_off_or_changed(code: str) -> None:
    data = bytes.fromhex(code)
    for size in range(len(data)):
        assert decode(data[:size]) is None
    assert decode(b"\x0f" + data) is None
    for at in range(len(data)):  # whatever it is then: no exception, and no longer than there is
        for value in range(256):
            found = decode(data[:at] + bytes([value]) + data[at + 1 :])
            assert found is None or found.length <= len(data)
