"""The trace's view of a kernel use: its loops, LLVM lines and instructions, computed on first
use.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from clew.backends.cpu.kernel_stages import operator_calls
from clew.backends.cpu.lowering import KernelSource
from clew.build.result import BuildTemplate, KernelUse
from clew.codegen.disassemble import disassemble
from clew.ir.expr import Function
from clew.loop.printer import PrintedNest
from clew.support.lazy import cached_property
from clew.support.near import listed
from clew.support.shown import Shown
from clew.trace.kernels import InstructionRecord

# The forms in which `codegen/builder.py` writes debug locations. They are read from the text when
# a query asks for them: a map made during emission would cost each compilation, and LLVM's parser
# does not say in which line of the text an instruction is.
_LOCATION: Final = re.compile(r"^!(\d+) = !DILocation\(line: (\d+),")
_DEBUG: Final = re.compile(r"!dbg !(\d+)")
_OTHERS: Final = 4


class _Code:
    """A kernel's loop nest, LLVM text and instructions, shared by all its uses."""

    def __init__(self, source: KernelSource, build: BuildTemplate) -> None:
        self.source = source
        self._build = build

    @property
    def uses(self) -> Sequence[str]:
        """The names of the kernel's uses."""
        return self._build.same_code.get(self.source.key, ())

    @cached_property
    def loop_stages(self) -> Mapping[int, str]:
        return single_stages(self.source.printed)

    @cached_property
    def llvm(self) -> Sequence[str]:
        return self.source.emitted.llvm.splitlines()

    @cached_property
    def llvm_lines(self) -> Mapping[int, int]:
        """For LLVM lines the line of the loop nest, by their debug locations."""
        locations = {
            m[1]: int(m[2]) for m in (_LOCATION.match(line) for line in self.llvm) if m is not None
        }
        found: dict[int, int] = {}
        for number, text in enumerate(self.llvm, 1):
            debug = _DEBUG.search(text)
            if debug is not None and debug[1] in locations:
                found[number] = locations[debug[1]]
        return found

    @cached_property
    def asm(self) -> Sequence[InstructionRecord]:
        data = self._build.binaries[self.source.key].object.data
        return tuple(
            InstructionRecord(i.address, i.text, i.line) for i in disassemble(data).instructions
        )


class UseTrace(Shown):
    """One use of a kernel; implements `clew.trace.kernels.KernelTrace`."""

    def __init__(self, use: KernelUse, code: _Code) -> None:
        self._use = use
        self._code = code

    def _about(self) -> str:
        return f"of {self.name}"

    @property
    def name(self) -> str:
        """The use's name, unique in the model."""
        return self._use.name

    @property
    def call(self) -> int:
        """The id of the call in the last stage."""
        return self._use.call.id

    @cached_property
    def ops(self) -> Sequence[int]:
        """The ids of the operator nodes of this use, in order."""
        assert isinstance(self._use.call.op, Function)
        return tuple(c.id for c in operator_calls(self._use.call.op))

    @cached_property
    def loops(self) -> Sequence[str]:
        """The lines of the scheduled loop nest; the first names the use."""
        return named_lines(self._code.source.printed.lines, self.name, self._code.uses)

    @property
    def loop_stages(self) -> Mapping[int, str]:
        """The te stage of each line that belongs to only one."""
        return self._code.loop_stages

    @property
    def stage_ops(self) -> Mapping[str, int]:
        """The position of the operator of each te stage."""
        return self._code.source.stages.ops

    @property
    def llvm(self) -> Sequence[str]:
        """The lines of the LLVM text."""
        return self._code.llvm

    @property
    def llvm_lines(self) -> Mapping[int, int]:
        """For LLVM lines the line of the loop nest, by their debug locations."""
        return self._code.llvm_lines

    @property
    def asm(self) -> Sequence[InstructionRecord]:
        """The instructions of the linked object."""
        return self._code.asm


def named_lines(lines: Sequence[str], name: str, uses: Sequence[str]) -> list[str]:
    """Returns the lines of a loop nest that several `uses` of a kernel share. The first line has
    the name of one of them.
    """
    if len(uses) < 2:
        return list(lines)
    head, _, rest = lines[0].partition("(")
    others = [use for use in uses if use != name]
    kind = head.split(" ", 1)[0]
    first = f"{kind} {name}({rest}  // the same code as {listed(others, _OTHERS)}"
    return [first, *lines[1:]]


def single_stages(printed: PrintedNest) -> dict[int, str]:
    """Returns the te stage of each line of a loop nest (from 1) that belongs to only one."""
    plain = [tuple({s.split("@", 1)[0]: None for s in names}) for names in printed.stages]
    return {n: names[0] for n, names in enumerate(plain, 1) if len(names) == 1}


def kernel_traces(build: BuildTemplate) -> list[UseTrace]:
    """Returns the uses of kernels in execution order. Uses of equal kernels share their code."""
    codes: dict[str, _Code] = {}
    return [
        UseTrace(use, codes.setdefault(use.source.key, _Code(use.source, build)))
        for use in build.uses
    ]
