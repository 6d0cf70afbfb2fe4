"""Finds accesses to memory that a run allows and the machine does not promise.

For each element of a memory, the position of its last write and of its last reads on their engines
are kept. An access is a hazard if an earlier one on another engine has not certainly ended
(`order.py`), even where the order of this run happens to be right. One write and one read per
engine suffice: if an older access is not certain to have ended, a younger one was reported.

Source: C. Flanagan and S. Freund, FastTrack: Efficient and Precise Dynamic Race Detection, 2009.
"""

from __future__ import annotations

import math
from typing import Any, Final, TypeAlias

import numpy as np

from clew.backends.vta.assembler import instruction_text
from clew.backends.vta.config import Config
from clew.backends.vta.isa import Load, Store
from clew.backends.vta.names import Engine, Memory
from clew.backends.vta.order import Order
from clew.backends.vta.program import Buffer, Program
from clew.support.errors import InputError

Ints: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
Places: TypeAlias = "slice | Ints"

_WRITER: Final = {
    Memory.UOP: Engine.COMPUTE,
    Memory.WGT: Engine.LOAD,
    Memory.INP: Engine.LOAD,
    Memory.ACC: Engine.COMPUTE,
}
"""The engine that writes a memory; one other engine may read it."""


class _History:
    """The last accesses to the elements of one memory, which one engine writes."""

    def __init__(self, name: str, writer: Engine, elements: int) -> None:
        self.name, self.writer = name, writer
        self.written = np.full(elements, -1, np.int64)
        self.read = {e: np.full(elements, -1, np.int64) for e in Engine if e is not writer}


class Tracker:
    """Checks the accesses of a run. `at` moves it to an instruction."""

    def __init__(self, program: Program, config: Config, order: Order) -> None:
        self._program, self._config, self._order = program, config, order
        self._sram = {
            memory: _History(memory.name.lower(), writer, config.depth(memory))
            for memory, writer in _WRITER.items()
        }
        self._in_out = np.zeros(config.depth(Memory.ACC), np.bool_)
        bytes_of = [config.element_bytes(m) for m in (Memory.OUT, Memory.INP, Memory.WGT)]
        self._granule = math.gcd(*bytes_of)
        self._dram: dict[str, _History] = {}
        self._index = -1

    def at(self, index: int) -> None:
        """Moves to an instruction."""
        self._index = index

    def fails(self, code: str, why: str, hint: str = "") -> InputError:
        """Returns an error about the instruction."""
        text = instruction_text(self._program.instructions[self._index])
        return InputError(
            code,
            f"VTA: instruction {self._index} ({text}) {why}",
            hint=hint,
            layer=", ".join(self._program.layers(self._index)),
        )

    def check_range(self, memory: Memory, last: int) -> None:
        """Checks that an index is in a memory.

        Errors: I435.
        """
        depth = self._config.depth(memory)
        if last >= depth:
            name = memory.name.lower()
            raise self.fails("I435", f"uses {name}[{last}], and {name} has {depth} elements")

    def buffer_of(self, instruction: Load | Store) -> Buffer:
        """Returns the buffer in DRAM that a transfer reads or writes.

        Errors: I436.
        """
        element_bytes = self._config.element_bytes(instruction.memory)
        rows = (instruction.y_size - 1) * instruction.x_stride
        begin = instruction.dram * element_bytes
        end = (instruction.dram + rows + instruction.x_size) * element_bytes
        verb = "writes" if isinstance(instruction, Store) else "reads"
        where = f"{verb} the bytes {begin:#x} to {end:#x} of DRAM"
        for buffer in self._program.buffers:
            buffer_end = buffer.address + buffer.size_bytes(self._config)
            if not buffer.address <= begin < buffer_end:
                continue
            if end > buffer_end:
                raise self.fails("I436", f"{where}, and {buffer.name} ends at {buffer_end:#x}")
            if isinstance(instruction, Store) and buffer.role in ("input", "constant"):
                raise self.fails("I436", f"{where}, which are in the {buffer.role} {buffer.name}")
            moved = self._config.element_dtype(instruction.memory)
            held = self._config.element_dtype(buffer.memory)
            if moved != held:
                raise self.fails("I436", f"moves {moved}, and {buffer.name} holds {held}")
            return buffer
        raise self.fails("I436", f"{where}, which are in no buffer")

    def read(self, memory: Memory, places: Places) -> None:
        """Checks a read of SRAM.

        Errors: I437, I438.
        """
        history = self._sram[memory]
        self._check_read(history, places)

    def read_out(self, places: slice) -> None:
        """Checks a read of accumulators by STORE, which GEMM or ALU must have written.

        Errors: I437, I438.
        """
        self._check_read(self._sram[Memory.ACC], places)
        if not self._in_out[places].all():
            first = places.start + int(np.argmin(self._in_out[places]))
            raise self.fails(
                "I437",
                f"reads out[{first}], and acc[{first}] was last written by LOAD or a GEMM with "
                "reset, which do not write out",
                hint="an ALU instruction that changes nothing (add with imm=0) writes it",
            )

    def write(self, memory: Memory, places: Places, *, to_out: bool = False) -> None:
        """Checks a write to SRAM. With `to_out`, STORE may read the written value.

        Errors: I438.
        """
        self._check_write(self._sram[memory], places)
        if memory is Memory.ACC:
            self._in_out[places] = to_out

    def read_dram(self, instruction: Load, buffer: Buffer) -> None:
        """Checks a read of DRAM.

        Errors: I437, I438.
        """
        if buffer.role in ("output", "scratch"):
            self._check_read(self._history(buffer), self._granules(instruction, buffer))

    def write_dram(self, instruction: Store, buffer: Buffer) -> None:
        """Checks a write to DRAM.

        Errors: I438.
        """
        self._check_write(self._history(buffer), self._granules(instruction, buffer))

    def unwritten(self, buffer: Buffer) -> int:
        """Returns how many bytes of an output no instruction has written."""
        return int((self._history(buffer).written < 0).sum()) * self._granule

    def _history(self, buffer: Buffer) -> _History:
        found = self._dram.get(buffer.name)
        if found is None:
            count = buffer.size_bytes(self._config) // self._granule
            found = _History(f"the buffer {buffer.name}", Engine.STORE, count)
            self._dram[buffer.name] = found
        return found

    def _granules(self, instruction: Load | Store, buffer: Buffer) -> Places:
        """Returns the units of a buffer that a transfer touches."""
        each = self._config.element_bytes(instruction.memory) // self._granule
        first = instruction.dram * each - buffer.address // self._granule
        wide, stride = instruction.x_size * each, instruction.x_stride * each
        if wide == stride or instruction.y_size == 1:
            return slice(first, first + instruction.y_size * wide)
        rows = first + np.arange(instruction.y_size, dtype=np.int64)[:, None] * stride
        return (rows + np.arange(wide)).ravel()

    def _check_read(self, history: _History, places: Places) -> None:
        engine = self._program.instructions[self._index].engine
        written = history.written[places]
        if int(written.min()) < 0:
            first = _element(places, int(np.argmin(written)))
            raise self.fails(
                "I437", f"reads {self._named(history, first)}, which nothing has written"
            )
        if engine is not history.writer:
            if int(written.max()) >= self._order.clocks[self._index][history.writer]:
                self._hazard(history, places, written, history.writer, "reads", "write")
            history.read[engine][places] = self._order.places[self._index]

    def _check_write(self, history: _History, places: Places) -> None:
        for engine, read in history.read.items():
            last = read[places]
            if int(last.max()) >= self._order.clocks[self._index][engine]:
                self._hazard(history, places, last, engine, "writes", "read")
        history.written[places] = self._order.places[self._index]

    def _hazard(
        self, history: _History, places: Places, last: Ints, engine: Engine, verb: str, what: str
    ) -> None:
        """Raises the error about an access that does not wait for one on another engine."""
        late = np.flatnonzero(last >= self._order.clocks[self._index][engine])
        first, end = _element(places, int(late[0])), _element(places, int(late[-1]))
        other = self._order.by_engine[engine][int(last[late[0]])]
        here = self._program.instructions[self._index].engine
        raise self.fails(
            "I438",
            f"{verb} {self._named(history, first, end)} and does not wait for the {what} by "
            f"instruction {other} ({instruction_text(self._program.instructions[other])})",
            hint=f"pass a token from {engine.name.lower()} to {here.name.lower()} between them",
        )

    def _named(self, history: _History, first: int, last: int | None = None) -> str:
        if history.name.startswith("the "):
            begin = first * self._granule
            end = ((first if last is None else last) + 1) * self._granule
            return f"the bytes {begin:#x} to {end:#x} of {history.name}"
        return (
            f"{history.name}[{first}]"
            if last in (None, first)
            else f"{history.name}[{first}..{last}]"
        )


def _element(places: Places, at: int) -> int:
    return places.start + at if isinstance(places, slice) else int(places[at])
