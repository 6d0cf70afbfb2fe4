"""Links objects of x86-64 into this process without LLVM, which takes longer to import than most
models take to start.

It knows what clew's own objects contain: code and read-only data with relative relocations, and
calls of functions outside. Whatever else an object contains is left to LLVM (`jit.py`).

Source: System V Application Binary Interface, AMD64 Architecture Processor Supplement, chapter 4.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from clew.codegen.artifact import ObjectCode
from clew.runtime.memory import round_up
from clew.support.addresses import address_of

_ELF: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_RELOCATION: Final = struct.Struct("<QIIq")
_DISTANCE: Final = struct.Struct("<i")
_MAGIC: Final = b"\x7fELF\x02\x01\x01"
_RELOCATABLE, _X86_64 = 1, 62
_PROGBITS, _SYMBOLS, _RELOCATIONS, _NOBITS = 1, 2, 4, 8
_WRITE, _ALLOCATED, _EXECUTABLE = 1, 2, 4
_KNOWN_FLAGS: Final = _ALLOCATED | _EXECUTABLE | 0x30  # and those of mergeable constants
_UNDEFINED, _RESERVED = 0, 0xFF00
_GLOBAL: Final = 1
_PC32, _PLT32 = 2, 4
# Sections begin at lines of the cache, so that the speed of code does not depend on its neighbors.
_ALIGNMENT: Final = 64
# jmp *0(%rip), and the address.
_STUB: Final = b"\xff\x25\x00\x00\x00\x00"
_STUB_BYTES: Final = 16


class Unlinkable(Exception):
    """The objects hold something that only LLVM links."""


class _Section(NamedTuple):
    """A section of an object in memory: its content and its place."""

    content: bytes
    place: int


class Code:
    """Linked objects in memory, which is freed with this object: `addresses` of their symbols."""

    def __init__(self, objects: Sequence[ObjectCode], imports: Mapping[str, int]) -> None:
        """Errors: Unlinkable; OSError if there is no memory, or it cannot be made executable."""
        try:
            self._link([_Object(code) for code in objects], imports)
        except (struct.error, ValueError, IndexError, OverflowError) as error:
            raise Unlinkable(f"a damaged object: {error}") from error

    def _link(self, objects: Sequence[_Object], imports: Mapping[str, int]) -> None:
        code_bytes = 0
        for each in objects:
            code_bytes = each.lay_out(code_bytes, executable=True)
        known: dict[str, int] = {}
        outside = dict.fromkeys(n for each in objects for n in each.undefined)
        stubs = {name: code_bytes + _STUB_BYTES * n for n, name in enumerate(outside)}
        code_bytes = round_up(code_bytes + _STUB_BYTES * len(stubs), mmap.PAGESIZE)
        end = code_bytes
        for each in objects:
            end = each.lay_out(end, executable=False)
        memory = bytearray(round_up(max(end, 1), mmap.PAGESIZE))
        for each in objects:
            for section in each.placed.values():
                memory[section.place : section.place + len(section.content)] = section.content
            for name, place in each.defined():
                if known.setdefault(name, place) != place:
                    raise Unlinkable(f"{name} is defined twice")
        for each in objects:
            for at, target, addend in each.relocations():
                place = target if isinstance(target, int) else known.get(target, stubs[target])
                _DISTANCE.pack_into(memory, at, place + addend - at)
        for name, place in stubs.items():
            if name not in known:
                address = imports.get(name) or _of_process(name)
                stub = _STUB + address.to_bytes(8, "little")
                memory[place : place + len(stub)] = stub
        self._pages = mmap.mmap(-1, len(memory), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._pages[:] = memory
        self._view = np.frombuffer(self._pages, np.uint8)
        base = address_of(self._view)
        _protect(base, code_bytes, mmap.PROT_READ | mmap.PROT_EXEC)
        _protect(base + code_bytes, len(memory) - code_bytes, mmap.PROT_READ)
        self.addresses = {name: base + place for name, place in known.items()}


class _Object:
    """The parts of an object that are linked."""

    def __init__(self, code: ObjectCode) -> None:
        self._data = data = code.data
        ident, kind, machine, *_, place, _, _, _, _, entry_bytes, count, _ = _ELF.unpack_from(data)
        if not ident.startswith(_MAGIC) or (kind, machine) != (_RELOCATABLE, _X86_64):
            raise Unlinkable("another kind of object")
        if entry_bytes != _SECTION.size:
            raise Unlinkable("another size of sections")
        self._sections = [_SECTION.unpack_from(data, place + n * entry_bytes) for n in range(count)]
        self.placed: dict[int, _Section] = {}
        self._symbols = self._read_symbols()

    def lay_out(self, begin: int, *, executable: bool) -> int:
        """Places the sections with code, or those with data; returns the end."""
        for number, (_, kind, flags, _, offset, size, *_, alignment, _) in enumerate(
            self._sections
        ):
            if not flags & _ALLOCATED or bool(flags & _EXECUTABLE) != executable:
                continue
            if kind != _PROGBITS or flags & ~_KNOWN_FLAGS or alignment > mmap.PAGESIZE:
                raise Unlinkable("a section of another kind")
            content = self._data[offset : offset + size]
            if len(content) != size:
                raise Unlinkable("a section beyond the end")
            begin = round_up(begin, max(alignment, _ALIGNMENT))
            self.placed[number] = _Section(content, begin)
            begin += size
        return begin

    def _read_symbols(self) -> list[tuple[str, int, int, int]]:
        """Returns name, binding, section and value of each symbol."""
        tables = [s for s in self._sections if s[1] == _SYMBOLS]
        if len(tables) != 1:
            raise Unlinkable("no single table of symbols")
        _, _, _, _, offset, size, link, *_ = tables[0]
        names = self._content(link)
        found = []
        for at in range(offset, offset + size, _SYMBOL.size):
            name, info, _, section, value, _ = _SYMBOL.unpack_from(self._data, at)
            text = names[name : names.index(b"\0", name)].decode()
            found.append((text, info >> 4, section, value))
        return found

    def _content(self, number: int) -> bytes:
        _, _, _, _, offset, size, *_ = self._sections[number]
        return self._data[offset : offset + size]

    @property
    def undefined(self) -> list[str]:
        """The names of functions outside of the object."""
        return [name for name, _, section, _ in self._symbols if not section and name]

    def defined(self) -> list[tuple[str, int]]:
        """Returns the names and places of global symbols."""
        found = []
        for name, binding, section, value in self._symbols:
            if section and binding:
                if binding != _GLOBAL:
                    raise Unlinkable("a weak symbol")
                found.append((name, self._place(section, value)))
        return found

    def _place(self, section: int, value: int) -> int:
        if section >= _RESERVED or section not in self.placed:
            raise Unlinkable("a symbol outside of the sections")
        return self.placed[section].place + value

    def relocations(self) -> list[tuple[int, int | str, int]]:
        """Returns the relocations of the placed sections: a place of 4 bytes, what it refers to (a
        place, or the name of a function outside), and what is added.
        """
        found = []
        targets: dict[int, int | str] = {}  # by symbol, of which one has many relocations
        for _, kind, _, _, offset, size, _, target, *_ in self._sections:
            if target not in self.placed or kind not in (_RELOCATIONS, 9):
                continue
            if kind != _RELOCATIONS:
                raise Unlinkable("relocations without addends")
            content, place = self.placed[target]
            last = len(content) - _DISTANCE.size
            rows = self._data[offset : offset + size]
            for where, code, symbol, addend in _RELOCATION.iter_unpack(rows):
                if code not in (_PC32, _PLT32) or where > last:
                    raise Unlinkable(f"relocation {code}")
                wanted = targets.get(symbol)
                if wanted is None:
                    name, _, home, value = self._symbols[symbol]
                    wanted = targets[symbol] = self._place(home, value) if home else name
                if code != _PLT32 and isinstance(wanted, str):
                    raise Unlinkable("data outside of the object")
                found.append((place + where, wanted, addend))
        return found


def _of_process(name: str) -> int:
    """Returns the address of a function of this process."""
    try:
        address = ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value
    except AttributeError:
        address = None
    if not address:
        raise Unlinkable(f"{name} is not defined")
    return address


def _protect(address: int, size_bytes: int, protection: int) -> None:
    if not size_bytes:
        return
    function = ctypes.CDLL(None, use_errno=True).mprotect
    function.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    if function(address, size_bytes, protection):
        raise OSError(ctypes.get_errno(), "memory cannot be made executable")
