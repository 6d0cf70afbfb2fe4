"""Kernels of unknown shapes, compiled during a run: for all sizes, or for those it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from clew.backends.calls import kernel_calls
from clew.backends.cpu.deferred_kernel import DeferredKernel, Prepared
from clew.backends.cpu.native import NativeKernels
from clew.backends.engines import Engines
from clew.backends.host.engine import HostSteps
from clew.backends.options import Options
from clew.backends.regions import Regions
from clew.build.conditions import conditions_of, sizes_from_zero
from clew.build.program_builder import ProgramBuilder
from clew.ir.dims import is_unknown
from clew.ir.expr import Function
from clew.ir.module import Module
from clew.ir.types import TensorType, Type, UnrankedType, leaves
from clew.ir.visit import post_order
from clew.machine.target import Target
from clew.passes.manager import PassManager
from clew.passes.specialize import Specialize
from clew.pipelines import pipeline_of_kernel
from clew.runtime.cache import Cache, default_cache
from clew.runtime.program import Program
from clew.runtime.template import ProgramTemplate
from clew.runtime.threads import ThreadPool


class KernelBuilder:
    """Compiles the operators of a deferred kernel during a run."""

    def __init__(self, options: Options, cache: Cache, pool: ThreadPool) -> None:
        self.options = options
        self.cache = cache
        self.pool = pool

    def program(self, specialize: Specialize, module: Module) -> Program | None:
        """Returns the program of a module for known sizes; None if some shapes remain unknown."""
        made = self._built(specialize, module, _is_known)
        return None if made is None else made[0]

    def template(self, specialize: Specialize, module: Module) -> Prepared | None:
        """Returns the program of a module for all sizes that `specialize` names; None if some of
        its shapes have other sizes, or if some kernel needs its sizes as numbers.
        """
        made = self._built(specialize, module, _is_named)
        if made is None or made[1].unsized:
            return None
        program, native, main = made
        conditions = conditions_of(main, native.binaries.values())
        from_zero = sizes_from_zero(main, conditions)
        template = ProgramTemplate(program, native.segments, conditions, from_zero)
        sources = [
            (call, native.source_of[call.op.id])
            for call in kernel_calls(Module({"main": main}))
            if isinstance(call.op, Function) and call.op.id in native.codes
        ]
        return Prepared(template, native.binaries, sources)

    def _built(
        self, specialize: Specialize, module: Module, accepts: Callable[[Type], bool]
    ) -> tuple[Program, NativeKernels, Function] | None:
        """Returns the program of a module, its kernels, and its operators after the passes; None
        if a type is not accepted.
        """
        passes = pipeline_of_kernel(specialize)
        manager = PassManager(
            passes,
            disabled=set(self.options.disabled) & {p.name for p in passes},
            instruments=self.options.instruments,
            target=self.options.target,
            trace=False,
        )
        main = manager.run(module).main
        if not all(accepts(t) for n in post_order(main) for t in leaves(n.type)):
            return None
        native = NativeKernels(self.options, self.cache, self.pool, {}, self)
        native.compile(kernel_calls(Module({"main": main})))
        regions = Regions((), self.options.target, self.cache)
        engines = Engines(native, HostSteps(self.options.bounds), regions)
        return ProgramBuilder(main, engines).build(), native, main


def _is_known(type_: Type) -> bool:
    return not isinstance(type_, TensorType) or type_.is_static


def _is_named(type_: Type) -> bool:
    if isinstance(type_, TensorType):
        return not any(map(is_unknown, type_.shape))
    return not isinstance(type_, UnrankedType)


def saved_kernel(
    step: Mapping[str, Any], pool: ThreadPool, template: ProgramTemplate | None
) -> DeferredKernel:
    """Returns a kernel of a saved model. `template` is its program for all sizes, if it has one. At
    sizes that the program does not serve, the kernel is compiled for the shapes it meets.
    """
    target, bounds = Target.of_record(step["target"]), step.get("bounds", "check")
    options = Options(target, pool.threads, 3, (), bounds=bounds)
    builder = KernelBuilder(options, default_cache(), pool)
    return DeferredKernel.from_json(step, target, bounds, builder, template)
