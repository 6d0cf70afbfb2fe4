"""Decodes instructions that the disassembler library does not support: those of Intel AMX, of
AVX-VNNI, and of AVX-512 for `bf16`.

The last have an EVEX prefix, the others a three-byte VEX prefix; all opcodes are in the second map.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, chapter 2.3 and the
instructions' own pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_VEX: Final = 0xC4
_EVEX: Final = 0x62
_MAP_0F38: Final = 2
_REGISTERS: Final = (
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi",
    "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
)  # fmt: skip
_NONE, _66, _F3, _F2 = range(4)
# By opcode and the prefix implied by VEX.
_PRODUCTS: Final = {
    (0x5C, _F3): "tdpbf16ps", (0x5C, _F2): "tdpfp16ps", (0x5E, _F2): "tdpbssd",
    (0x5E, _F3): "tdpbsud", (0x5E, _66): "tdpbusd", (0x5E, _NONE): "tdpbuud",
}  # fmt: skip
_MOVES: Final = {(0x4B, _F2): "tileloadd", (0x4B, _66): "tileloaddt1", (0x4B, _F3): "tilestored"}
_CONFIGURE: Final = {(0x49, _NONE): "ldtilecfg", (0x49, _66): "sttilecfg"}
_VECTORS: Final = {
    (0x72, _F3): "vcvtneps2bf16", (0x72, _F2): "vcvtne2ps2bf16", (0x52, _F3): "vdpbf16ps",
}  # fmt: skip
_DOTS: Final = {
    (0x50, _66): "vpdpbusd", (0x51, _66): "vpdpbusds",
    (0x52, _66): "vpdpwssd", (0x53, _66): "vpdpwssds",
}  # fmt: skip
_REGISTER_FORM: Final = 3
_NO_INDEX: Final = 4
_RELATIVE: Final = 5


@dataclass(frozen=True)
class Decoded:
    """An instruction: its length in bytes, and its text."""

    length: int
    text: str


def decode(code: bytes) -> Decoded | None:
    """Returns the instruction at the start of `code`; None unless it is one of these."""
    return _narrow_float(code) if code[:1] == bytes([_EVEX]) else _tile(code)


def _narrow_float(code: bytes) -> Decoded | None:
    """Decodes conversions to, and products of, `bf16` vectors."""
    if len(code) < 6 or code[1] & 7 != _MAP_0F38:
        return None
    name = _VECTORS.get((code[4], code[2] & 3))
    if name is None:
        return None
    extend, high = ~code[1] >> 5 & 7, ~code[1] >> 4 & 1  # R, X, B; R'
    second = (~code[2] >> 3 & 15) | (~code[3] >> 3 & 1) << 4
    width, mask, memory = code[3] >> 5 & 3, code[3] & 7, code[5] >> 6 != _REGISTER_FORM
    broadcast = code[3] >> 4 & 1
    vector = "xyz"[min(width, 2)] + "mm"
    narrow = "xyz"[max(min(width, 2) - 1, 0)] + "mm" if name == "vcvtneps2bf16" else vector
    target = (code[5] >> 3 & 7) | (extend >> 2 & 1) << 3 | high << 4
    operands = [f"{narrow}{target}" + (f" {{k{mask}}}" if mask else "")]
    if name != "vcvtneps2bf16":
        operands.append(f"{vector}{second}")
    length = 6
    if memory:
        place = _place(code[1:], extend, 4 if broadcast else 16 << min(width, 2))
        if place is None:
            return None
        length = place.length + 1
        operands.append(f"[{place.text}]" + (f"{{1to{4 << min(width, 2)}}}" if broadcast else ""))
    else:
        operands.append(f"{vector}{code[5] & 7 | (extend & 1) << 3 | (extend >> 1 & 1) << 4}")
    return Decoded(length, f"{name} {', '.join(operands)}")


def _tile(code: bytes) -> Decoded | None:
    if len(code) < 5 or code[0] != _VEX or code[1] & 0x1F != _MAP_0F38:
        return None
    extend = ~code[1] >> 5 & 7  # R, X, B
    prefix, third, opcode = code[2] & 3, ~code[2] >> 3 & 15, code[3]
    key, mod = (opcode, prefix), code[4] >> 6
    tile = code[4] >> 3 & 7
    if key in _DOTS:
        return _dot(code, extend, _DOTS[key])
    if mod == _REGISTER_FORM:
        if key in _PRODUCTS:
            return Decoded(5, f"{_PRODUCTS[key]} tmm{tile}, tmm{code[4] & 7}, tmm{third & 7}")
        if key == (0x49, _F2):
            return Decoded(5, f"tilezero tmm{tile}")
        return Decoded(5, "tilerelease") if key == (0x49, _NONE) else None
    name = _MOVES.get(key) or _CONFIGURE.get(key)
    place = _place(code, extend) if name else None
    if name is None or place is None:
        return None
    if key in _CONFIGURE:
        return Decoded(place.length, f"{name} [{place.text}]")
    operands = f"tmm{tile}, [{place.text}]"
    if name == "tilestored":
        operands = f"[{place.text}], tmm{tile}"
    return Decoded(place.length, f"{name} {operands}")


def _dot(code: bytes, extend: int, name: str) -> Decoded | None:
    """Decodes an AVX-VNNI dot product."""
    if code[2] >> 7:
        return None
    vector = "y" if code[2] >> 2 & 1 else "x"
    target = (code[4] >> 3 & 7) | (extend >> 2 & 1) << 3
    names = [f"{vector}mm{n}" for n in (target, ~code[2] >> 3 & 15)]
    if code[4] >> 6 == _REGISTER_FORM:
        names.append(f"{vector}mm{code[4] & 7 | (extend & 1) << 3}")
        return Decoded(5, f"{name} {', '.join(names)}")
    place = _place(code, extend)
    return place and Decoded(place.length, f"{name} {', '.join(names)}, [{place.text}]")


def _place(code: bytes, extend: int, step: int = 1) -> Decoded | None:
    """Returns the address operand of an instruction, and the end of the instruction; `step` is the
    unit of a short offset.
    """
    mod, base, at = code[4] >> 6, code[4] & 7, 5
    parts: list[str] = []
    if base == _NO_INDEX:
        if len(code) < 6:
            return None
        scale, index, base, at = 1 << (code[5] >> 6), code[5] >> 3 & 7, code[5] & 7, 6
        index |= (extend >> 1 & 1) << 3
        if index != _NO_INDEX:
            parts.append(f"{_REGISTERS[index]}*{scale}" if scale > 1 else _REGISTERS[index])
    relative = mod == 0 and base == _RELATIVE
    if relative:
        parts.insert(0, "rip" if at == 5 else "")
    else:
        parts.insert(0, _REGISTERS[base | (extend & 1) << 3])
    size = 4 if relative or mod == 2 else mod
    if len(code) < at + size:
        return None
    offset = int.from_bytes(code[at : at + size], "little", signed=True)
    offset *= step if mod == 1 else 1
    text = " + ".join(p for p in parts if p)
    if offset:
        text += f" {'-' if offset < 0 else '+'} {abs(offset):#x}"
    return Decoded(at + size, text)
