"""The interface of a compiled kernel for the trace, implemented by the code that lowers kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class InstructionRecord:
    """One instruction: `address` in bytes from the kernel's start, `loop_line` is 0 if unknown."""

    address: int
    text: str
    loop_line: int = 0


class KernelTrace(Protocol):
    """One use of a kernel. The trace reads attributes only when a query needs them, so they may be
    lazy.
    """

    @property
    def name(self) -> str:
        """The kernel's name; equal kernels share it."""
        ...

    @property
    def call(self) -> int:
        """Id of the call in the last stage that uses the kernel."""
        ...

    @property
    def ops(self) -> Sequence[int]:
        """Ids of the fused function's operator nodes in order."""
        ...

    @property
    def loops(self) -> Sequence[str]:
        """Lines of the printed loop nest."""
        ...

    @property
    def loop_stages(self) -> Mapping[int, str]:
        """Maps lines of the loop nest (from 1) the te stage they compute; heads may lack one."""
        ...

    @property
    def stage_ops(self) -> Mapping[str, int]:
        """Maps te stages to the position of their operator in `ops`."""
        ...

    @property
    def llvm(self) -> Sequence[str]:
        """Lines of the LLVM text."""
        ...

    @property
    def llvm_lines(self) -> Mapping[int, int]:
        """Maps lines of the LLVM text (from 1) to lines of the loop nest."""
        ...

    @property
    def asm(self) -> Sequence[InstructionRecord]:
        """The instructions, disassembled."""
        ...


@dataclass(frozen=True)
class KernelRecord:
    """A `KernelTrace` with all attributes in memory."""

    name: str
    call: int
    ops: tuple[int, ...] = ()
    loops: tuple[str, ...] = ()
    loop_stages: Mapping[int, str] = field(default_factory=dict)
    stage_ops: Mapping[str, int] = field(default_factory=dict)
    llvm: tuple[str, ...] = ()
    llvm_lines: Mapping[int, int] = field(default_factory=dict)
    asm: tuple[InstructionRecord, ...] = ()
