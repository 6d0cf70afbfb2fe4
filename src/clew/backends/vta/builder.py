"""Builds programs: lays out DRAM, keeps micro-ops in their memory, and balances tokens."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import numpy as np

from clew.backends.vta.config import Config
from clew.backends.vta.isa import (
    Alu,
    Finish,
    Gemm,
    Instruction,
    Load,
    MicroOp,
    Store,
    encode_uops,
)
from clew.backends.vta.names import AluOp, Engine, Memory
from clew.backends.vta.program import (
    Array,
    Buffer,
    Origin,
    Program,
    Role,
    alignment_bytes,
)
from clew.support.errors import InputError

Pair: TypeAlias = "tuple[int, int]"
UOP_BUFFER: Final = "uops"
"""The buffer of all micro-ops of a program."""


class Builder:
    """Builds a program, instruction by instruction.

    Loops have the iterations and factors `(outer, inner)`. `push` and `pop` set the token bits of
    the instructions around them.
    """

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or Config.default()
        self._buffers: list[Buffer] = []
        self._end = 0
        self._instructions: list[Instruction] = []
        self._origins: dict[int, Origin] = {}
        self._origin: Origin | None = None
        self._waiting: set[tuple[Engine, Engine]] = set()
        self._left: Counter[tuple[Engine, Engine]] = Counter()
        self._last: dict[Engine, int] = {}
        self._kernels: dict[bytes, int] = {}  # where kernels are in the buffer of micro-ops
        self._words: list[Array] = []
        self._resident: dict[bytes, int] = {}  # and in their memory
        self._used = 0

    # ------------------------------------------------------------------------------------- buffers

    def input(self, name: str, memory: Memory, elements: int) -> Buffer:
        """Returns a new buffer that each run fills."""
        return self._buffer(name, memory, elements, "input")

    def output(self, name: str, elements: int) -> Buffer:
        """Returns a new buffer that each run returns."""
        return self._buffer(name, Memory.OUT, elements, "output")

    def scratch(self, name: str, elements: int) -> Buffer:
        """Returns a new buffer for intermediate values."""
        return self._buffer(name, Memory.OUT, elements, "scratch")

    def constant(self, name: str, memory: Memory, data: Array) -> Buffer:
        """Returns a new buffer with given values, `(elements, *element)`."""
        return self._buffer(name, memory, len(data), "constant", data)

    def _buffer(
        self, name: str, memory: Memory, elements: int, role: Role, data: Array | None = None
    ) -> Buffer:
        made = Buffer(name, memory, self._end, elements, role, data)
        step = alignment_bytes(self.config)
        self._end += -(-made.size_bytes(self.config) // step) * step
        self._buffers.append(made)
        return made

    # ------------------------------------------------------------------------------------- origins

    @contextmanager
    def origin(self, *layers: str, label: str = "") -> Iterator[None]:
        """Gives the instructions of the block their origin; without layers, those around it."""
        before = self._origin
        self._origin = Origin(layers or (before.layers if before else ()), label)
        try:
            yield
        finally:
            self._origin = before

    # -------------------------------------------------------------------------------------- tokens

    @property
    def count(self) -> int:
        """The number of instructions so far."""
        return len(self._instructions)

    def push(self, source: Engine, target: Engine) -> None:
        """Lets the last instruction of an engine give a token to a neighbour.

        Errors: I431 if the engines are not neighbours.
        """
        name = _token_bit("push", source, target)
        last = self._last.get(source)
        if last is None or getattr(self._instructions[last], name):
            last = self._add(_empty(source))
        self._set(last, name)
        self._left[source, target] += 1

    def pop(self, source: Engine, target: Engine) -> None:
        """Lets the next instruction of an engine take a token from a neighbour.

        Errors: I431 if the engines are not neighbours.
        """
        _token_bit("pop", target, source)
        if (source, target) in self._waiting:
            self._add(_empty(target))
        self._waiting.add((source, target))
        self._left[source, target] -= 1

    def barrier(self) -> None:
        """Lets all that follows wait for all instructions so far."""
        for engine in (Engine.LOAD, Engine.STORE):
            if engine in self._last:
                self._drain(Engine.COMPUTE, engine)
                self.push(engine, Engine.COMPUTE)
        for engine in (Engine.LOAD, Engine.STORE):
            self._drain(engine, Engine.COMPUTE)
        if any(target is Engine.COMPUTE for _, target in self._waiting):
            self._add(_empty(Engine.COMPUTE))
        for engine in (Engine.LOAD, Engine.STORE):
            if Engine.COMPUTE in self._last:
                self.push(Engine.COMPUTE, engine)
                self.pop(Engine.COMPUTE, engine)

    def _drain(self, source: Engine, target: Engine) -> None:
        """Takes all tokens of a queue, the last with the next instruction of the target."""
        for _ in range(self._left[source, target]):
            self.pop(source, target)

    def _set(self, index: int, name: str) -> None:
        changes: Any = {name: True}
        self._instructions[index] = dataclasses.replace(self._instructions[index], **changes)

    def _add(self, instruction: Instruction, *, waits: bool = True) -> int:
        """Appends an instruction. If it waits, it takes the tokens that its engine waits for."""
        index, engine = len(self._instructions), instruction.engine
        self._instructions.append(instruction)
        for pair in [p for p in self._waiting if p[1] is engine and waits]:
            self._waiting.remove(pair)
            self._set(index, _token_bit("pop", engine, pair[0]))
        if self._origin is not None:
            self._origins[index] = self._origin
        self._last[engine] = index
        return index

    # -------------------------------------------------------------------------------- instructions

    def load(
        self,
        memory: Memory,
        buffer: Buffer,
        *,
        sram: int = 0,
        at: int = 0,
        y: int = 1,
        x: int | None = None,
        stride: int | None = None,
        y_pad: Pair = (0, 0),
        x_pad: Pair = (0, 0),
    ) -> None:
        """Loads elements of a buffer from element `at` on; without `x`, all."""
        x = buffer.elements if x is None else x
        self._add(
            Load(
                memory=memory,
                sram=sram,
                dram=buffer.base(self.config, memory) + at,
                y_size=y,
                x_size=x,
                x_stride=x if stride is None else stride,
                y_pad_0=y_pad[0],
                y_pad_1=y_pad[1],
                x_pad_0=x_pad[0],
                x_pad_1=x_pad[1],
            )
        )

    def store(
        self,
        buffer: Buffer,
        *,
        sram: int = 0,
        at: int = 0,
        y: int = 1,
        x: int | None = None,
        stride: int | None = None,
    ) -> None:
        """Stores accumulators to a buffer from element `at` on; without `x`, fills the buffer."""
        x = buffer.elements if x is None else x
        base = buffer.base(self.config, Memory.OUT) + at
        step = x if stride is None else stride
        self._add(Store(sram=sram, dram=base, y_size=y, x_size=x, x_stride=step))

    def gemm(
        self,
        uops: Sequence[MicroOp],
        loop: Pair = (1, 1),
        *,
        dst: Pair = (0, 0),
        src: Pair = (0, 0),
        wgt: Pair = (0, 0),
        reset: bool = False,
    ) -> None:
        """Multiplies and accumulates."""
        begin, end = self._kernel(uops)
        self._add(
            Gemm(
                uop_begin=begin,
                uop_end=end,
                iter_out=loop[0],
                iter_in=loop[1],
                dst_out=dst[0],
                dst_in=dst[1],
                src_out=src[0],
                src_in=src[1],
                wgt_out=wgt[0],
                wgt_in=wgt[1],
                reset=reset,
            )
        )

    def alu(
        self,
        op: AluOp,
        uops: Sequence[MicroOp],
        loop: Pair = (1, 1),
        *,
        dst: Pair = (0, 0),
        src: Pair = (0, 0),
        imm: int | None = None,
    ) -> None:
        """Computes on accumulators; with `imm`, its second operand is this number."""
        begin, end = self._kernel(uops)
        self._add(
            Alu(
                op=op,
                uop_begin=begin,
                uop_end=end,
                iter_out=loop[0],
                iter_in=loop[1],
                dst_out=dst[0],
                dst_in=dst[1],
                src_out=src[0],
                src_in=src[1],
                use_imm=imm is not None,
                imm=imm or 0,
            )
        )

    def _kernel(self, uops: Sequence[MicroOp]) -> Pair:
        """Returns the range of micro-ops in their memory, after loading them if needed.

        Errors: I431 if there are more than the memory holds.
        """
        words = encode_uops(uops, self.config)
        key, count = words.tobytes(), len(words)
        depth = self.config.depth(Memory.UOP)
        if not 0 < count <= depth:
            raise InputError("I431", f"VTA: an instruction has {count} micro-ops, not 1 to {depth}")
        begin = self._resident.get(key)
        if begin is None:
            if self._used + count > depth:
                self._resident.clear()
                self._used = 0
            begin, self._used = self._used, self._used + count
            self._resident[key] = begin
            if key not in self._kernels:
                self._kernels[key] = sum(map(len, self._words))
                self._words.append(words)
            at = self._kernels[key]
            load = Load(
                memory=Memory.UOP, sram=begin, dram=at, y_size=1, x_size=count, x_stride=count
            )
            self._add(load, waits=False)  # it reads a constant, and compute alone uses its memory
        return begin, begin + count

    # --------------------------------------------------------------------------------- the program

    def program(self) -> Program:
        """Returns the program, which ends with FINISH after all other engines. FINISH, and empty
        transfers before it, take the tokens that are left.

        Errors: those of `Program.check`.
        """
        for engine in (Engine.LOAD, Engine.STORE):
            last = self._last.get(engine)
            if last is not None and not getattr(
                self._instructions[last], _token_bit("push", engine, Engine.COMPUTE)
            ):
                self.push(engine, Engine.COMPUTE)
        for engine in (Engine.LOAD, Engine.STORE):
            for _ in range(self._left[Engine.COMPUTE, engine]):
                self.pop(Engine.COMPUTE, engine)
            if any(target is engine for _, target in self._waiting):
                self._add(_empty(engine))
        for source in (Engine.LOAD, Engine.STORE):
            for _ in range(self._left[source, Engine.COMPUTE]):
                self.pop(source, Engine.COMPUTE)
        self._add(Finish())
        if self._words:
            data = np.concatenate(self._words)
            buffer = self._buffer(UOP_BUFFER, Memory.UOP, len(data), "constant", data)
            base = buffer.base(self.config)
            for index, each in enumerate(self._instructions):
                if isinstance(each, Load) and each.memory is Memory.UOP and not each.is_empty:
                    self._instructions[index] = dataclasses.replace(each, dram=each.dram + base)
        made = Program(tuple(self._instructions), tuple(self._buffers), dict(self._origins))
        made.check(self.config)
        return made


def _token_bit(kind: str, engine: Engine, neighbour: Engine) -> str:
    """Returns the bit with which an engine gives a token to a neighbour, or takes one.

    Errors: I431.
    """
    if abs(engine - neighbour) != 1:
        raise InputError(
            "I431", f"VTA: {engine.name.lower()} and {neighbour.name.lower()} pass no tokens"
        )
    return f"{kind}_{'prev' if neighbour < engine else 'next'}"


def _empty(engine: Engine) -> Instruction:
    """Returns an instruction of an engine that only passes tokens on."""
    if engine is Engine.STORE:
        return Store()
    return Load(memory=Memory.INP if engine is Engine.LOAD else Memory.UOP)
