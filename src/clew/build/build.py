"""Builds one concrete module: graph passes, then each backend's part, then the program."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from clew.backends.calls import kernel_calls, kernel_names
from clew.backends.cpu.native import NativeKernels
from clew.backends.engines import Engines
from clew.backends.host.engine import HostSteps
from clew.backends.options import Options
from clew.backends.regions import Regions
from clew.build.program_builder import ProgramBuilder
from clew.build.result import Build, BuildTemplate, KernelUse, RegionUse
from clew.build.specialized import KernelBuilder
from clew.build.standby import standby
from clew.build.wishes import idle_schedules, lost_regions
from clew.ir.dims import expecting
from clew.ir.expr import Call, Function
from clew.ir.module import Module
from clew.passes.manager import PassManager
from clew.passes.specialize import Specialize
from clew.runtime.cache import Cache
from clew.runtime.segment import NativeSegment
from clew.runtime.threads import ThreadPool
from clew.support.bounds import bounds_in_force
from clew.support.collection import rare_collections
from clew.support.errors import ClewWarning
from clew.trace.stages import Remark, StageRecord


def build_module(
    module: Module, options: Options, cache: Cache, pool: ThreadPool, specialize: Specialize | None
) -> Build:
    """Returns the build of a module for the sizes of `specialize`; a module without free dimensions
    needs none.
    """
    made = build_template(module, options, cache, pool, specialize)
    segments = [s for s in made.segments if isinstance(s, NativeSegment)]
    assert len(segments) == len(made.segments), "the module has free dimensions"
    return made.at(made.program, segments, {})


def build_template(
    module: Module,
    options: Options,
    cache: Cache,
    pool: ThreadPool,
    specialize: Specialize | None = None,
) -> BuildTemplate:
    """Returns the result of compiling a module: passes, kernels, native code, program. If it has
    free dimensions, the result is for all of their sizes (`build.all_sizes`).
    """
    with rare_collections():
        return _built(module, options, cache, pool, specialize)


def _built(
    module: Module,
    options: Options,
    cache: Cache,
    pool: ThreadPool,
    specialize: Specialize | None,
) -> BuildTemplate:
    clock = _Clock()
    passes = [specialize, *options.passes] if specialize is not None else list(options.passes)
    manager = PassManager(
        passes,
        options.opt_level,
        required=options.required,
        disabled=options.disabled,
        instruments=options.instruments,
        target=options.target,
        trace=options.trace,
    )
    options.on_progress("graph passes")
    with bounds_in_force(options.bounds), expecting(options.sizes.expected):
        fused = manager.run(module)
        clock.lap("passes")
        names = kernel_names(fused.main)
        native = NativeKernels(options, cache, pool, names, KernelBuilder(options, cache, pool))
        native.compile(kernel_calls(fused))
    clock.lap("kernels")
    options.on_progress("linking")
    regions = Regions(
        options.backends,
        options.target,
        cache,
        names,
        options.on_progress,
        (lambda f: standby(f, options, cache, pool, build_module)) if options.fallback else None,
    )
    engines = Engines(native, HostSteps(options.bounds), regions)
    builder = ProgramBuilder(fused.main, engines)
    program = builder.build()
    clock.lap("program")
    for number, kernel in enumerate(native.deferred_kernels, 1):
        of_all = f"{number} of {len(native.deferred_kernels)}"
        options.on_progress(f"kernel of data-dependent sizes, {of_all}")
        kernel.prepare()
    clock.lap("kernels of data-dependent sizes")
    uses = _uses(builder, native, names)
    unmet = [*manager.unmet, *lost_regions(manager.stages, options.passes)]
    stages = _with_moves(manager.stages, regions.moved)
    unmet += [ClewWarning("I313", text) for _, text in regions.moved]
    if options.schedules:
        held = {use.name: use.ops for use in uses}
        unmet += idle_schedules(options.schedules, native.used, held)
    return BuildTemplate(
        stages,
        program,
        uses,
        native.segments,
        native.binaries,
        clock.seconds,
        native.hits,
        tuple(unmet),
        tuple(RegionUse(*made) for made in regions.made),
        tuple((native.sources[key].name, why) for key, why in native.unsized.items()),
    )


def _with_moves(
    stages: Sequence[StageRecord], moved: Sequence[tuple[Call, str]]
) -> list[StageRecord]:
    """Returns the stages, with remarks at the last one about regions that run elsewhere."""
    if not moved:
        return list(stages)
    remarks = [Remark(call.id, "backends", text) for call, text in moved]
    *before, last = stages
    return [*before, replace(last, remarks=(*last.remarks, *remarks))]


class _Clock:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = now - self._last
        self._last = now


def _uses(
    builder: ProgramBuilder, native: NativeKernels, names: Mapping[int, str]
) -> list[KernelUse]:
    """Returns the uses of kernels in program order."""
    uses: list[KernelUse] = []
    for segment, calls in enumerate(builder.segment_calls):
        for step, call in enumerate(calls):
            assert isinstance(call.op, Function)
            source = native.source_of[call.op.id]
            uses.append(KernelUse(names[call.id], call, source, segment, step))
    return uses
