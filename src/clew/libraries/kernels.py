"""The kernels of a library: those of its build, and the kernels for all sizes that the build's
program prepares for data-dependent shapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from clew.backends.cpu.deferred_kernel import DeferredKernel, Prepared
from clew.backends.cpu.lowering import KernelBinary
from clew.build.result import BuildTemplate, KernelUse
from clew.ir.expr import Function
from clew.runtime.plan import SegmentPlan
from clew.runtime.program import Branch, Program, Repeat, RunHost
from clew.runtime.segment_template import SegmentTemplate
from clew.support.errors import UnsupportedError


class Kernels(NamedTuple):
    """The uses of kernels, and the compiled kernels by key."""

    uses: Sequence[KernelUse]
    binaries: Mapping[str, KernelBinary]

    def texts(self, plan: SegmentPlan | SegmentTemplate) -> list[str]:
        """Returns the LLVM text of each kernel of a plan.

        Errors: U080 if a kernel is compiled only during a run.
        """
        sources = {use.source.key: use.source for use in self.uses}
        keys = dict.fromkeys(step.code.key for step in plan.steps)
        if not keys.keys() <= sources.keys():
            raise UnsupportedError("U080", "cannot export kernels that are compiled during a run")
        return [sources[key].emitted.llvm for key in keys]


def kernels_of(build: BuildTemplate) -> Kernels:
    """Returns the kernels of a build."""
    uses, binaries = list(build.uses), dict(build.binaries)
    for prepared in _prepared(build.program):
        for call, source in prepared.sources:
            assert isinstance(call.op, Function)
            uses.append(KernelUse(source.use, call, source, -1, len(uses)))
        binaries.update(prepared.binaries)
    return Kernels(uses, binaries)


def _prepared(program: Program) -> Iterator[Prepared]:
    for instruction in program.instructions:
        match instruction:
            case RunHost(function=DeferredKernel() as kernel):
                prepared = kernel.prepare()
                if prepared is not None:
                    yield prepared
            case Repeat():
                yield from _prepared(instruction.body)
            case Branch():
                yield from _prepared(instruction.then)
                yield from _prepared(instruction.orelse)
