"""One use of a kernel in a compiled model: its code, its loops, and the layers it serves."""

from __future__ import annotations

from typing import Any

from clew.backends.cpu.kernel_stages import operator_calls
from clew.build.kernel_html import kernel_html
from clew.build.kernel_trace import UseTrace, kernel_traces, named_lines
from clew.build.result import Build, BuildTemplate, KernelUse
from clew.codegen.artifact import KernelCode
from clew.codegen.disassemble import disassemble
from clew.cost.work import Work, work_of
from clew.ir.dims import Sizes
from clew.ir.expr import Call
from clew.machine.target import Target
from clew.schedules import Decision
from clew.support.errors import Hint, InputError


class Kernel:
    """One use of a kernel in a compiled model."""

    def __init__(self, use: KernelUse, build: BuildTemplate) -> None:
        self._use = use
        self._build = build

    def __repr__(self) -> str:
        return f"<Kernel {self.name}: {', '.join(self.layers)}>"

    def _repr_html_(self) -> str:
        return kernel_html(self)

    @property
    def name(self) -> str:
        """The kernel's name, unique in the model."""
        return self._use.name

    @property
    def layers(self) -> tuple[str, ...]:
        """The model's layers it serves, ordered by its operators, then by the model."""
        return self._build.kernel_layers(self._use)

    @property
    def build(self) -> Build:
        """The build that the kernel is part of, at the sizes of a run.

        Errors: I044 if the kernel was read before the first run of a model with symbolic sizes.
        """
        if not isinstance(self._build, Build):
            raise never_built()
        return self._build

    @property
    def call(self) -> Call:
        """The kernel's call in the last stage's graph. The trace identifies uses by its id."""
        return self._use.call

    @property
    def function(self) -> Any:
        """The primitive function of this use, in the last stage's graph."""
        return self._use.call.op

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls of the kernel's operators in order, in the last stage's graph."""
        return tuple(operator_calls(self.function))

    @property
    def ops(self) -> tuple[str, ...]:
        """Names of the kernel's operators in order."""
        return tuple(c.op_name for c in self.calls)

    @property
    def key(self) -> str:
        """Hash of everything the native code depends on. Uses with equal keys share a kernel."""
        return self._use.source.key

    @property
    def target(self) -> Target:
        """The machine the kernel is compiled for."""
        return self._use.source.target

    @property
    def threads(self) -> int:
        """The maximum number of threads that share the kernel's grid."""
        return self._build.segments[self._use.segment].threads

    @property
    def code(self) -> KernelCode:
        """The kernel's phases, and the memory they need, at the sizes of the build; before a run,
        as dimensions.
        """
        code, build = self._build.binaries[self.key].code, self._build
        if code.sizes and isinstance(build, Build):
            return code.at(Sizes(build.sizes))
        return code

    @property
    def tensors(self) -> tuple[Any, ...]:
        """The kernel's outputs as unscheduled tensor expressions over its inputs."""
        return self._use.source.stages.outputs

    @property
    def parameters(self) -> tuple[Any, ...]:
        """The inputs of `tensors`, in the order of the call's arguments."""
        return self._use.source.stages.inputs

    @property
    def work(self) -> Work:
        """The kernel's minimum work at the sizes of the build."""
        return work_of(self.tensors, self.build.number)

    @property
    def loops(self) -> str:
        """The scheduled loop nest as text. If several uses share the kernel, the first line says
        which use this is.
        """
        lines = self._use.source.printed.lines
        return "\n".join(named_lines(lines, self.name, self._build.same_code[self.key])) + "\n"

    @property
    def schedule(self) -> Any:
        """The recorded schedule."""
        return self._use.source.schedule

    @property
    def choices(self) -> tuple[Decision, ...]:
        """The rules that were used, each with its space of choices and the values it took."""
        return self._use.source.plan.decisions

    @property
    def rules(self) -> tuple[str, ...]:
        """Names of the schedule rules that were applied."""
        return self._build.rules_of(self._use.source)

    @property
    def llvm(self) -> str:
        """The LLVM IR."""
        return self._use.source.emitted.llvm

    @property
    def object_code(self) -> bytes:
        """The ELF object that is linked into the program."""
        return self._build.binaries[self._use.source.key].object.data

    @property
    def asm(self) -> str:
        """The instructions, disassembled from the linked object."""
        return disassemble(self.object_code).text

    @property
    def traced(self) -> UseTrace:
        """Loop nest, LLVM text and instructions line by line, as the trace links them."""
        return next(t for t in kernel_traces(self._build) if t.call == self.call.id)


def never_built() -> InputError:
    """Returns the error of reading a build that does not exist yet."""
    return InputError(
        "I044",
        "the model has symbolic sizes and has not been built for any yet",
        hint=Hint(
            "run it once, or call build_for(inputs)",
            cli="fix its sizes, as in --shape NAME=1,3,224,224",
            page="give its input shapes when compiling it",
        ),
    )
