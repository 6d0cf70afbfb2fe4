"""Additions of two tensors of bytes as instructions.

Tensors of the same shape have the same order in DRAM, so an addition goes through them in chunks,
for any dimensions. The vector unit has no rounding to even: `half - 1 + bit`, where `bit` is
the lowest bit of the result before rounding, is added before the shift.
"""

from __future__ import annotations

from dataclasses import dataclass

from clew.backends.vta.builder import Builder
from clew.backends.vta.isa import MicroOp
from clew.backends.vta.names import AluOp, Memory
from clew.backends.vta.packing import blocks
from clew.backends.vta.program import Buffer
from clew.backends.vta.stages import emit_stages
from clew.support.errors import InputError

MOST_SHIFT = 14
"""Half of the unit of a result, and its double, are immediate operands of 16 bits."""
_TOP_BIT = 31


@dataclass(frozen=True)
class Addition:
    """`clip(round(((a << left) + (b << right)) / 2**shift), low, high)`, where ties round to even.

    Errors: I445.
    """

    left: int = 0
    right: int = 0
    shift: int = 0
    low: int = -128
    high: int = 127

    def __post_init__(self) -> None:
        if not (0 <= self.shift <= MOST_SHIFT and min(self.left, self.right) >= 0):
            raise InputError("I445", f"VTA: {self} shifts by no number from 0 to {MOST_SHIFT}")


def emit_addition(
    builder: Builder, addition: Addition, a: Buffer, b: Buffer, y: Buffer, parts: int = 2
) -> None:
    """Appends an addition to a program. `a`, `b` and `y` are bytes in the same form. With two
    parts, a chunk is added while the one before is stored. No instruction before may be running:
    `Builder.barrier` waits for them.
    """
    room = builder.config.depth(Memory.ACC) // parts
    most = room // 2

    def span(number: int) -> tuple[int, int, int]:
        """Returns the first accumulator of a chunk, its first element and its length."""
        at = number * most
        return number % parts * room, at, min(most, y.elements - at)

    def load(number: int) -> None:
        first, at, count = span(number)
        builder.load(Memory.ACC8, a, sram=first, at=at, x=count)
        builder.load(Memory.ACC8, b, sram=first + most, at=at, x=count)

    def compute(number: int) -> None:
        first, _, count = span(number)
        _add(builder, addition, MicroOp(first, first + most), count)

    def store(number: int) -> None:
        first, at, count = span(number)
        builder.store(y, sram=first, at=at, x=count)

    chunks = blocks(y.elements, most)
    emit_stages(builder, chunks, parts, load=load, compute=compute, store=store)


def _add(builder: Builder, addition: Addition, uop: MicroOp, count: int) -> None:
    """Emits the arithmetic of a chunk: `uop` has its first sum and its first second operand."""
    sums, other = MicroOp(uop.dst), MicroOp(uop.src)

    def alu(op: AluOp, at: MicroOp, imm: int | None = None) -> None:
        src = (0, 1) if imm is None else (0, 0)
        builder.alu(op, [at], (1, count), dst=(0, 1), src=src, imm=imm)

    if addition.left:
        alu(AluOp.SHR, sums, -addition.left)
    if addition.right:
        alu(AluOp.SHR, other, -addition.right)
    alu(AluOp.ADD, uop)
    if addition.shift:
        unit = 1 << addition.shift
        builder.gemm([other], (1, count), dst=(0, 1), reset=True)
        alu(AluOp.ADD, MicroOp(uop.src, uop.dst))
        alu(AluOp.ADD, other, unit)  # which inverts the lowest bit of the result
        alu(AluOp.SHR, other, addition.shift - _TOP_BIT)
        alu(AluOp.SHR, other, _TOP_BIT)  # 0 where the result is odd, else -1
        alu(AluOp.ADD, uop)
        alu(AluOp.ADD, sums, unit // 2)
        alu(AluOp.SHR, sums, addition.shift)
    alu(AluOp.MAX, sums, addition.low)
    alu(AluOp.MIN, sums, addition.high)
