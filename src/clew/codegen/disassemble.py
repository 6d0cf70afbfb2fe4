"""Disassembles objects: instructions with their loop-nest lines, from the bytes that are
executed.
"""

from __future__ import annotations

import importlib
import io
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from clew.codegen.newer_x86 import decode
from clew.support.caches import bounded_cache
from clew.support.errors import CompileError
from clew.support.lazy import cached_property


@dataclass(frozen=True)
class Instruction:
    """One machine instruction: its section offset in bytes, text, and loop-nest line.

    Instructions that LLVM adds for a whole function (saved registers, spills, padding) have no line
    and belong to the kernel's head, line 1.
    """

    address: int
    text: str
    line: int
    function: str


@dataclass(frozen=True)
class Disassembly:
    """The instructions of an object."""

    instructions: tuple[Instruction, ...]

    @cached_property
    def targets(self) -> frozenset[int]:
        """The addresses that jumps lead to."""
        found = (_JUMP.match(i.text) for i in self.instructions)
        return frozenset(int(m[1], 16) for m in found if m is not None)

    @property
    def text(self) -> str:
        """The listing: functions as labels, with the loop-nest line after each instruction."""
        lines: list[str] = []
        function = ""
        for i in self.instructions:
            if i.function != function:
                function = i.function
                lines.append(f"{function}:")
            lines.append(f"  {i.address:6x}  {i.text:<60} ; {i.line}")
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class CodeLines:
    """The functions of an object's code by name, with offset and size in bytes, and the offsets,
    ascending, at which the loop-nest line changes.
    """

    functions: Mapping[str, tuple[int, int]]
    offsets: tuple[int, ...]
    lines: tuple[int, ...]

    def line_at(self, offset: int) -> int:
        """Returns the line of the instruction at an offset; line 1 if it has none."""
        position = bisect_right(self.offsets, offset) - 1
        return (self.lines[position] if position >= 0 else 0) or _HEAD


# A jump to a fixed address in capstone's notation for x86 and AArch64.
_JUMP: Final = re.compile(r"(?:j\w+|b|b\.\w+|cbn?z|tbn?z) (?:.*, )?#?(0x[0-9a-f]+)$")
_HEAD = 1
_LONGEST_BYTES = 15  # an x86 instruction
# Architecture and mode, with capstone's names, by ELF machine.
_MACHINES: Final = {
    "EM_X86_64": ("CS_ARCH_X86", "CS_MODE_64"),
    "EM_AARCH64": ("CS_ARCH_ARM64", "CS_MODE_ARM"),
}


@bounded_cache(1 << 24)
def disassemble(data: bytes) -> Disassembly:
    """Returns the instructions of an ELF object.

    Errors: C030 for a machine without a disassembler.
    """
    # Both are slow to import, and few compilations need instructions.
    capstone: Any = importlib.import_module("capstone")
    elf = _elf(data)
    machine = _MACHINES.get(elf["e_machine"])
    if machine is None:
        raise CompileError("C030", f"no disassembler for {elf['e_machine']}")
    engine = capstone.Cs(*(getattr(capstone, name) for name in machine))
    places = code_lines(data)
    found: list[Instruction] = []
    for address, size, name, code in _functions(elf):
        for at, text in _instructions(engine, code[:size], address):
            found.append(Instruction(at, text, places.line_at(at), name))
    return Disassembly(tuple(found))


@bounded_cache(1 << 24)
def code_lines(data: bytes) -> CodeLines:
    """Returns the functions and lines of an ELF object, or of a linked file, without its
    instructions. Offsets in a linked file are addresses.
    """
    elf = _elf(data)
    functions = {name: (start, size) for start, size, name, _ in _symbols(elf)}
    starts, lines = _line_table(elf)
    return CodeLines(functions, tuple(starts), tuple(lines))


def _elf(data: bytes) -> Any:
    return importlib.import_module("elftools.elf.elffile").ELFFile(io.BytesIO(data))


def _instructions(engine: Any, code: bytes, address: int) -> Iterator[tuple[int, str]]:
    """Yields each instruction's address and text; bytes that begin no instruction are printed as
    data.
    """
    start = 0
    while start < len(code):
        for at, length, mnemonic, operands in engine.disasm_lite(code[start:], address + start):
            yield at, f"{mnemonic} {operands}".strip()
            start = at - address + length
        if start < len(code):
            known = decode(code[start : start + _LONGEST_BYTES])
            yield address + start, known.text if known else f".byte {code[start]:#04x}"
            start += known.length if known else 1


def _functions(elf: Any) -> list[tuple[int, int, str, bytes]]:
    """Returns address, size, name and code of each function of an object, by address."""
    return [
        (start, size, name, section.data()[start : start + size])
        for start, size, name, section in _symbols(elf)
    ]


def _symbols(elf: Any) -> list[tuple[int, int, str, Any]]:
    """Returns address, size, name and section of each function, by address."""
    symbols = elf.get_section_by_name(".symtab")
    result = []
    for symbol in symbols.iter_symbols() if symbols is not None else ():
        if symbol["st_info"]["type"] == "STT_FUNC" and isinstance(symbol["st_shndx"], int):
            section = elf.get_section(symbol["st_shndx"])
            result.append((symbol["st_value"], symbol["st_size"], symbol.name, section))
    return sorted(result, key=lambda found: found[:3])


def _line_table(elf: Any) -> tuple[list[int], list[int]]:
    """Returns the addresses at which lines begin, ascending, and the lines."""
    if not elf.has_dwarf_info():
        return [], []
    rows: dict[int, int] = {}
    dwarf = elf.get_dwarf_info(relocate_dwarf_sections=True)
    for unit in dwarf.iter_CUs():
        program = dwarf.line_program_for_CU(unit)
        if program is None:
            continue
        for entry in program.get_entries():
            state = entry.state
            if state is not None and not state.end_sequence:
                rows[state.address] = state.line
    addresses = sorted(rows)
    return addresses, [rows[a] for a in addresses]
