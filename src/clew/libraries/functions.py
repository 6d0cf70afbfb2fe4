"""The functions and sections of an object."""

from __future__ import annotations

import importlib
import io
from typing import Any, Final

_WASM: Final = b"\0asm"
_ALLOC, _EXECUTABLE = 0x2, 0x4  # SHF_ALLOC, SHF_EXECINSTR
_IMPORTS, _FUNCTION, _TABLE, _MEMORY, _GLOBAL = 2, 0, 1, 2, 3


def undefined_in(data: bytes) -> list[str]:
    """Returns the names of an object's undefined symbols, sorted."""
    if data.startswith(_WASM):
        return sorted(_wasm_imports(data))
    elf: Any = importlib.import_module("elftools.elf.elffile").ELFFile(io.BytesIO(data))
    symbols = elf.get_section_by_name(".symtab").iter_symbols()
    return sorted(s.name for s in symbols if s.name and s["st_shndx"] == "SHN_UNDEF")


def function_bytes(data: bytes) -> dict[str, int]:
    """Returns the bytes of code of the functions in an ELF object."""
    elf: Any = importlib.import_module("elftools.elf.elffile").ELFFile(io.BytesIO(data))
    symbols = elf.get_section_by_name(".symtab").iter_symbols()
    return {s.name: s["st_size"] for s in symbols if s["st_info"]["type"] == "STT_FUNC"}


def loaded_bytes(data: bytes) -> tuple[int, int] | None:
    """Returns the bytes of code and of constants in an ELF object; None for other formats. All else
    are relocations, symbols and debug information.
    """
    if data.startswith(_WASM):
        return None
    elf: Any = importlib.import_module("elftools.elf.elffile").ELFFile(io.BytesIO(data))
    loaded = [s for s in elf.iter_sections() if s["sh_flags"] & _ALLOC]
    code = sum(s["sh_size"] for s in loaded if s["sh_flags"] & _EXECUTABLE)
    return code, sum(s["sh_size"] for s in loaded) - code


def _wasm_imports(data: bytes) -> list[str]:
    """Source: WebAssembly Core Specification 1.0, section 5.5."""
    reader = _Reader(data, 8)
    while reader.at < len(data):
        section, size = reader.byte(), reader.number()
        if section == _IMPORTS:
            return _functions(reader)
        reader.at += size
    return []


def _functions(reader: _Reader) -> list[str]:
    found: list[str] = []
    for _ in range(reader.number()):
        reader.name()
        name, kind = reader.name(), reader.byte()
        if kind == _FUNCTION:
            reader.number()
            found.append(name)
        elif kind in (_TABLE, _MEMORY):
            if kind == _TABLE:
                reader.byte()
            has_most = reader.byte() & 1
            reader.number()
            if has_most:
                reader.number()
        else:
            assert kind == _GLOBAL, "an import of the first version"
            reader.at += 2
    return found


class _Reader:
    """A position in the bytes of a module."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self.at = data, at

    def byte(self) -> int:
        self.at += 1
        return self._data[self.at - 1]

    def number(self) -> int:
        """Reads an unsigned LEB128 number."""
        found = shift = 0
        while True:
            byte = self.byte()
            found |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return found

    def name(self) -> str:
        size = self.number()
        self.at += size
        return self._data[self.at - size : self.at].decode()
