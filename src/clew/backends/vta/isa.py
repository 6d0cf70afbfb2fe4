"""The instructions of VTA: typed, with their encoding in 128 bits.

Widths of indices follow from the sizes of the memories, so encoding and decoding take a `Config`.
Unused bits are 0.

Source: `hw_spec.h` of VTA (TVM, Apache Software Foundation), version 0.0.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np

from clew.backends.vta.config import Config
from clew.backends.vta.names import AluOp, Engine, Memory, Opcode
from clew.support.errors import InputError

INSTRUCTION_BYTES: Final = 16
_TOKENS: Final = ("pop_prev", "pop_next", "push_prev", "push_next")
_LOADED_BY_COMPUTE: Final = (Memory.UOP, Memory.ACC, Memory.ACC8)
_PADDED: Final = (Memory.INP, Memory.ACC, Memory.ACC8)
_WORD_BITS: Final = 64


@dataclass(frozen=True, kw_only=True)
class _Instruction:
    """The bits that all instructions have: tokens to take before they start, and to give when they
    end. *prev* and *next* are the neighbours in the row load, compute, store.
    """

    opcode: ClassVar[Opcode]

    pop_prev: bool = False
    pop_next: bool = False
    push_prev: bool = False
    push_next: bool = False

    @property
    def engine(self) -> Engine:
        """The engine that runs the instruction."""
        return Engine.COMPUTE

    @property
    def pops(self) -> tuple[Engine, ...]:
        """The engines from which the instruction takes a token before it starts."""
        return _neighbours(self.engine, self.pop_prev, self.pop_next)

    @property
    def pushes(self) -> tuple[Engine, ...]:
        """The engines to which the instruction gives a token when it ends."""
        return _neighbours(self.engine, self.push_prev, self.push_next)


def _neighbours(engine: Engine, previous: bool, following: bool) -> tuple[Engine, ...]:
    found = ([engine - 1] if previous else []) + ([engine + 1] if following else [])
    return tuple(Engine(e) for e in found if 0 <= e <= Engine.STORE)


@dataclass(frozen=True, kw_only=True)
class _Transfer(_Instruction):
    """LOAD and STORE: `y_size` rows of `x_size` elements, `x_stride` elements apart in DRAM and
    without gaps in SRAM. Bases are in elements. An empty transfer only passes tokens on.
    """

    memory: Memory
    sram: int = 0
    dram: int = 0
    y_size: int = 0
    x_size: int = 0
    x_stride: int = 0
    y_pad_0: int = 0
    y_pad_1: int = 0
    x_pad_0: int = 0
    x_pad_1: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing is moved."""
        return self.y_size == 0 or self.x_size == 0

    @property
    def width(self) -> int:
        """The elements of a row in SRAM."""
        return self.x_pad_0 + self.x_size + self.x_pad_1

    @property
    def sram_elements(self) -> int:
        """The elements in SRAM, padding included."""
        return 0 if self.is_empty else (self.y_pad_0 + self.y_size + self.y_pad_1) * self.width


@dataclass(frozen=True, kw_only=True)
class Load(_Transfer):
    """Fills a memory from DRAM. Padding is 0. The load engine fills `inp` and `wgt`, the compute
    engine the others.
    """

    opcode = Opcode.LOAD

    @property
    def engine(self) -> Engine:
        return Engine.COMPUTE if self.memory in _LOADED_BY_COMPUTE else Engine.LOAD


@dataclass(frozen=True, kw_only=True)
class Store(_Transfer):
    """Writes the low bits of accumulators to DRAM."""

    opcode = Opcode.STORE

    memory: Memory = Memory.OUT

    @property
    def engine(self) -> Engine:
        return Engine.STORE


@dataclass(frozen=True, kw_only=True)
class _Loop(_Instruction):
    """GEMM and ALU: micro-ops `uop_begin` to `uop_end` (exclusive) in two loops. Each iteration
    adds the factors of its loops to the indices of the micro-ops.
    """

    uop_begin: int
    uop_end: int
    iter_out: int = 1
    iter_in: int = 1
    dst_out: int = 0
    dst_in: int = 0
    src_out: int = 0
    src_in: int = 0

    @property
    def steps(self) -> int:
        """The micro-ops that the instruction runs."""
        return max(self.uop_end - self.uop_begin, 0) * self.iter_out * self.iter_in


@dataclass(frozen=True, kw_only=True)
class Gemm(_Loop):
    """`acc[dst] += inp[src] · wgt[wgt]ᵀ` for each micro-op, or `acc[dst] = 0` with `reset`."""

    opcode = Opcode.GEMM

    wgt_out: int = 0
    wgt_in: int = 0
    reset: bool = False


@dataclass(frozen=True, kw_only=True)
class Alu(_Loop):
    """`acc[dst] = op(acc[dst], acc[src])` for each micro-op, or `op(acc[dst], imm)`."""

    opcode = Opcode.ALU

    op: AluOp
    use_imm: bool = False
    imm: int = 0


@dataclass(frozen=True, kw_only=True)
class Finish(_Instruction):
    """Ends the program."""

    opcode = Opcode.FINISH


Instruction: TypeAlias = Load | Store | Gemm | Alu | Finish


@dataclass(frozen=True)
class MicroOp:
    """One step: the indices of the destination (`acc`), the source (`inp` for GEMM, `acc` for ALU)
    and the weight.
    """

    dst: int
    src: int = 0
    wgt: int = 0


_CLASSES: Final[dict[Opcode, type[Instruction]]] = {
    c.opcode: c for c in (Load, Store, Gemm, Alu, Finish)
}
_Layout: TypeAlias = "tuple[tuple[str, int], ...]"


def layout(opcode: Opcode, config: Config) -> tuple[_Layout, _Layout]:
    """Returns the fields of an instruction's two 64-bit words with their widths, low bits first."""
    head: _Layout = (("opcode", 3), *((name, 1) for name in _TOKENS))
    if opcode is Opcode.FINISH:
        return head, ()
    if opcode in (Opcode.LOAD, Opcode.STORE):
        pads: _Layout = tuple((f"{axis}_pad_{end}", 4) for axis in "yx" for end in (0, 1))
        sizes: _Layout = (("y_size", 16), ("x_size", 16), ("x_stride", 16))
        return (*head, ("memory", 3), ("sram", 16), ("dram", 32)), (*sizes, *pads)
    uop, acc = config.index_bits(Memory.UOP), config.index_bits(Memory.ACC)
    loops: _Layout = (("iter_out", 14), ("iter_in", 14))
    first = (*head, ("reset", 1), ("uop_begin", uop), ("uop_end", uop + 1), *loops)
    if opcode is Opcode.GEMM:
        inp, wgt = config.index_bits(Memory.INP), config.index_bits(Memory.WGT)
        widths = (("dst", acc), ("src", inp), ("wgt", wgt))
        return first, tuple((f"{n}_{loop}", bits) for n, bits in widths for loop in ("out", "in"))
    factors: _Layout = tuple((f"{n}_{loop}", acc) for n in ("dst", "src") for loop in ("out", "in"))
    return first, (*factors, ("op", 3), ("use_imm", 1), ("imm", 16))


def encode(instruction: Instruction, config: Config) -> bytes:
    """Returns an instruction as 16 bytes, little-endian.

    Errors: I431 for values that do not fit their fields or their engine.
    """
    check(instruction, config)
    words = []
    for word in layout(instruction.opcode, config):
        bits = shift = 0
        for name, width in word:
            bits |= (int(getattr(instruction, name, 0)) & ((1 << width) - 1)) << shift
            shift += width
        words.append(bits)
    return b"".join(w.to_bytes(INSTRUCTION_BYTES // 2, "little") for w in words)


def check(instruction: Instruction, config: Config) -> None:
    """Checks that an instruction can be encoded.

    Errors: I431.
    """
    for word in layout(instruction.opcode, config):
        for name, width in word:
            value = int(getattr(instruction, name, 0))
            low, high = (-(1 << 15), (1 << 15) - 1) if name == "imm" else (0, (1 << width) - 1)
            if not low <= value <= high:
                raise _wrong(instruction, f"{name} is {value}, not from {low} to {high}")
    engine = instruction.engine
    for name in _TOKENS:
        if getattr(instruction, name):
            at_end = engine is Engine.LOAD if name.endswith("prev") else engine is Engine.STORE
            if at_end:
                raise _wrong(
                    instruction,
                    f"{name}, but the {engine.name.lower()} engine has no such neighbour",
                )
    if isinstance(instruction, Load | Store):
        _check_transfer(instruction)


def _check_transfer(instruction: Load | Store) -> None:
    memory = instruction.memory
    if (memory is Memory.OUT) is isinstance(instruction, Load):
        raise _wrong(instruction, f"the memory is {memory.name.lower()}")
    padded = any(getattr(instruction, f"{a}_pad_{e}") for a in "yx" for e in (0, 1))
    if padded and (memory not in _PADDED or isinstance(instruction, Store)):
        raise _wrong(instruction, f"transfers of {memory.name.lower()} have no padding")
    if memory is Memory.UOP and instruction.y_size > 1:
        raise _wrong(instruction, "micro-ops are loaded in one row")


def _wrong(instruction: Instruction, why: str) -> InputError:
    return InputError("I431", f"VTA: {type(instruction).__name__.upper()}: {why}")


def decode(data: bytes, config: Config) -> Instruction:
    """Returns the instruction that 16 bytes encode.

    Errors: I432.
    """
    if len(data) != INSTRUCTION_BYTES:
        raise InputError(
            "I432", f"VTA: an instruction has {INSTRUCTION_BYTES} bytes, not {len(data)}"
        )
    try:
        opcode = Opcode(data[0] & 7)
    except ValueError:
        raise InputError("I432", f"VTA: {data[0] & 7} is not an opcode: {data.hex()}") from None
    made, half = _CLASSES[opcode], INSTRUCTION_BYTES // 2
    named = {field.name for field in fields(made)}
    values: dict[str, Any] = {}
    for word, part in zip(layout(opcode, config), (data[:half], data[half:]), strict=True):
        bits = int.from_bytes(part, "little")
        for name, width in word:
            value, bits = bits & ((1 << width) - 1), bits >> width
            if name in named:
                values[name] = _value(name, value, data)
            elif value and name != "opcode":
                raise InputError("I432", f"VTA: {opcode.name} has the bit {name}: {data.hex()}")
        if bits:
            raise InputError("I432", f"VTA: bits are set that {opcode.name} lacks: {data.hex()}")
    return made(**values)


def _value(name: str, value: int, data: bytes) -> Any:
    try:
        if name == "memory":
            return Memory(value)
        if name == "op":
            return AluOp(value)
    except ValueError:
        raise InputError("I432", f"VTA: {value} is no {name}: {data.hex()}") from None
    if name == "imm":
        return value - (1 << 16) if value >> 15 else value
    return bool(value) if name in (*_TOKENS, "reset", "use_imm") else value


def encode_uops(uops: Sequence[MicroOp], config: Config) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Returns micro-ops as `u32[n]`.

    Errors: I431.
    """
    made = np.zeros(len(uops), np.uint32)
    widths = _uop_widths(config)
    for at, uop in enumerate(uops):
        bits = shift = 0
        for name, width in widths:
            value = getattr(uop, name)
            if not 0 <= value < 1 << width:
                most = (1 << width) - 1
                raise InputError("I431", f"VTA: micro-op: {name} is {value}, not from 0 to {most}")
            bits, shift = bits | value << shift, shift + width
        made[at] = bits
    return made


def uop_indices(
    words: np.ndarray[Any, np.dtype[np.uint32]], config: Config
) -> tuple[np.ndarray[Any, np.dtype[np.int64]], ...]:
    """Returns the destinations, sources and weights of encoded micro-ops."""
    found, shift = [], 0
    for _, width in _uop_widths(config):
        found.append((words.astype(np.int64) >> shift) & ((1 << width) - 1))
        shift += width
    return tuple(found)


def decode_uops(words: np.ndarray[Any, np.dtype[np.uint32]], config: Config) -> tuple[MicroOp, ...]:
    """Returns the micro-ops of `u32[n]`."""
    return tuple(MicroOp(*map(int, row)) for row in zip(*uop_indices(words, config), strict=True))


def _uop_widths(config: Config) -> _Layout:
    acc, wgt = config.index_bits(Memory.ACC), config.index_bits(Memory.WGT)
    return ("dst", acc), ("src", config.source_bits), ("wgt", wgt)
