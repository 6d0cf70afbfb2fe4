"""Kernels of unknown shapes, compiled during a run for the shapes it has."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from clew.backends.calls import kernel_calls
from clew.backends.cpu.deferred_kernel import DeferredKernel
from clew.backends.cpu.native import NativeKernels
from clew.backends.engines import Engines
from clew.backends.host.engine import HostSteps
from clew.backends.options import Options
from clew.backends.regions import Regions
from clew.build.program_builder import ProgramBuilder
from clew.ir.module import Module
from clew.ir.types import TensorType, leaves
from clew.ir.visit import post_order
from clew.machine.target import Target
from clew.passes.manager import PassManager
from clew.passes.specialize import Specialize
from clew.pipelines import pipeline_of_kernel
from clew.runtime.cache import Cache, default_cache
from clew.runtime.program import Program
from clew.runtime.threads import ThreadPool


def specialized(
    options: Options, cache: Cache, pool: ThreadPool, specialize: Specialize, module: Module
) -> Program | None:
    """Returns the program of a kernel's operators for known sizes; None if some shapes remain
    unknown.
    """
    passes = pipeline_of_kernel(specialize)
    manager = PassManager(
        passes,
        disabled=set(options.disabled) & {p.name for p in passes},
        instruments=options.instruments,
        target=options.target,
        trace=False,
    )
    module = manager.run(module)
    types = (t for n in post_order(module.main) for t in leaves(n.type))
    if any(isinstance(t, TensorType) and not t.is_static for t in types):
        return None
    native = NativeKernels(options, cache, pool, {}, partial(specialized, options, cache, pool))
    native.compile(kernel_calls(module))
    regions = Regions((), options.target, cache)
    engines = Engines(native, HostSteps(options.bounds), regions)
    return ProgramBuilder(module.main, engines).build()


def saved_kernel(step: Mapping[str, Any], pool: ThreadPool) -> DeferredKernel:
    """Returns a kernel of a saved model, which is compiled for the shapes it meets."""
    target, bounds = Target.of_record(step["target"]), step.get("bounds", "check")
    options = Options(target, pool.threads, 3, (), bounds=bounds)
    make = partial(specialized, options, default_cache(), pool)
    return DeferredKernel.from_json(step, target, bounds, make)
