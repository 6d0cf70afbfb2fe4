"""The numbers that instructions use: opcodes, memories, operations, engines."""

from __future__ import annotations

from enum import IntEnum


class Opcode(IntEnum):
    """The first three bits of an instruction."""

    LOAD = 0
    STORE = 1
    GEMM = 2
    FINISH = 3
    ALU = 4


class Memory(IntEnum):
    """The memories of LOAD and STORE. OUT is ACC truncated; ACC8 is ACC filled from int8."""

    UOP = 0
    WGT = 1
    INP = 2
    ACC = 3
    OUT = 4
    ACC8 = 5


class AluOp(IntEnum):
    """The operations of ALU. SHR shifts left by negative amounts."""

    MIN = 0
    MAX = 1
    ADD = 2
    SHR = 3
    MUL = 4


class Engine(IntEnum):
    """The engines, each of which runs its instructions in order."""

    LOAD = 0
    COMPUTE = 1
    STORE = 2
