"""The kernels of a model as they would be compiled: passes, schedules and LLVM text, but no
code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clew.backends.backend import Backend
from clew.backends.calls import kernel_calls, kernel_names, name_of
from clew.backends.compile_options import AUTO, CompileOptions, Limits, Passes, Sizes, keywords_of
from clew.backends.cpu.lowering import KernelSource
from clew.backends.cpu.schedule_choice import of_operators
from clew.backends.engines import Engines
from clew.backends.host.engine import HostSteps
from clew.backends.loop_types import LoopTypes
from clew.backends.regions import results_of
from clew.backends.registry import backends_of
from clew.build.program_builder import ProgramBuilder
from clew.build.result import KernelUse
from clew.build.sizes import sized
from clew.codegen.artifact import KernelCode
from clew.compiling.applied_records import with_records
from clew.compiling.compile import passes_for
from clew.compiling.extensions import extended, extensions_of
from clew.ir.expr import Call, Constant, Expr, Function
from clew.ir.loops import iterations_of, loops_around
from clew.ir.module import Module
from clew.ir.types import TensorType, to_numpy
from clew.machine.target import Target, target_of
from clew.partitioning import check_rule, rule_of
from clew.passes.manager import PassManager
from clew.runtime.cache import default_cache
from clew.runtime.memory import plan_segment
from clew.runtime.plan import SegmentPlan
from clew.runtime.program import Program, Repeat, Segment, Stretch
from clew.runtime.regions import RegionCall
from clew.runtime.segment_template import SegmentTemplate
from clew.runtime.spaces import HOST
from clew.runtime.threads import thread_count
from clew.support.bounds import bounds_in_force
from clew.support.errors import Hint, InputError


@dataclass(frozen=True)
class Plan:
    """The kernel uses in the order in which they run, their segments, and steps that are not
    native: host steps, kernels whose shapes are known only during the run, and regions on other
    backends.

    `iterations` is the number of runs of each use in a call: 1 outside loops, the product of the
    iterations of its loops otherwise, None if known only during the run. Branches count as taken.
    """

    uses: tuple[KernelUse, ...]
    iterations: tuple[int | None, ...]
    segments: tuple[SegmentPlan, ...]
    host_steps: tuple[str, ...]
    threads: int
    target: Target


@keywords_of(CompileOptions)
def plan(module: Module, options: CompileOptions) -> Plan:
    """Returns the kernels that `clew.compile` would make with the same options. Regions are not
    compiled.

    Errors: those of the passes, of `extend`, I010 to I013, I315, I316, I321, I350 to I357, I380 to
    I382; I188 for a model with named sizes that `sizes` does not fix.
    """
    if isinstance(options.place, str) and options.place == AUTO:
        raise InputError(
            "I357",
            "predictions measure nothing, and place='auto' decides by measured costs",
            hint=Hint(
                "give a result of clew.place, or layers by backend",
                cli="give layers: --place BACKEND=LAYER,...",
            ),
        )
    machine = target_of(options.target)
    module, _ = sized(module, options.group(Sizes).sizes)
    for param in module.main.params:
        if not (isinstance(param.type, TensorType) and param.type.is_static):
            raise InputError(
                "I188",
                f"input {param.name!r} has symbolic sizes: {param.type}",
                hint=Hint(
                    f"fix them, as in clew.load(model, inputs={{{param.name!r}: [1, 128]}})",
                    cli=f"fix them, as in --shape {param.name}=1,128",
                ),
            )
    count, cache, rule = thread_count(options.threads), default_cache(), rule_of(options.place)
    extend, bounds = extensions_of(options.extend), options.group(Limits).bounds
    given = [*options.backends, *(x for x in extend if isinstance(x, Backend))] or rule.backends
    others = tuple(b.at_threads(count) for b in backends_of(given))
    check_rule(rule, others)
    passes, by_hand = extended(passes_for(options, others, rule), extend)
    passes = with_records(passes, options.tuned, machine, count, cache, bounds, by_hand)
    about = options.group(Passes)
    manager = PassManager(
        passes,
        options.opt_level,
        required=about.required,
        disabled=about.disabled,
        target=machine,
        trace=False,
    )
    with bounds_in_force(bounds):
        fused = manager.run(module)
    main = fused.main
    names = kernel_names(main)
    sources: dict[str, KernelSource] = {}
    made: dict[int, KernelSource] = {}
    for call in kernel_calls(fused):
        assert isinstance(call.op, Function)
        own = [s for s in by_hand if s.fits(names.get(call.id, name_of(call.op)), call.op)]
        source = KernelSource(call.op, machine, [*own, *of_operators(call.op, machine)], bounds)
        made[call.op.id] = sources.setdefault(source.key, source)
    codes = {number: source.code for number, source in made.items()}
    regions = _NoRegions(others, names)
    engines = Engines(_NoKernels(codes), HostSteps(), regions)
    builder = _Layout(main, engines)
    builder.build()
    uses = [
        KernelUse(names[call.id], call, made[call.op.id], segment, step)
        for segment, calls in enumerate(builder.segment_calls)
        for step, call in enumerate(calls)
        if isinstance(call.op, Function)
    ]
    loops = loops_around(main)
    iterations = tuple(iterations_of(loops[use.call.id]) for use in uses)
    return Plan(
        tuple(uses),
        iterations,
        tuple(plan_segment(*template.parts) for template in builder.templates),
        (*builder.host, *regions.made),
        count,
        machine,
    )


class _Layout(ProgramBuilder):
    """Lays out a program without weights: only their sizes matter."""

    host: list[str]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.host = []

    def _collect(self, node: Expr) -> None:
        if isinstance(node, Constant):
            (slot,) = self._new_slots(node)
            self.constants[slot] = np.empty(node.tensor.concrete, to_numpy(node.tensor.dtype))
        else:
            super()._collect(node)

    def _run_on_host(self, function: Any, reads: list[int], node: Call) -> None:
        self.host.append(node.op_name)
        super()._run_on_host(function, reads, node)


class _NoRegions:
    """Regions of which only the interface is known. `made` has their names and backends."""

    def __init__(self, backends: Sequence[Backend], names: Mapping[int, str]) -> None:
        self._spaces = {b.name: b.memory for b in backends}
        self._names = names
        self.made: list[str] = []

    def region(self, call: Call) -> RegionCall:
        function = call.op
        assert isinstance(function, Function)
        name, backend = self._names.get(call.id, call.title), function.backend
        self.made.append(f"{name} on {backend}")
        space = self._spaces.get(backend, HOST)
        return RegionCall(backend, name, space, tuple, results_of(function))


@dataclass(frozen=True)
class _NoSegment:
    """A segment of which only the interface is known."""

    has_stacks: bool

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        raise AssertionError("a plan is not run")


@dataclass
class _NoKernels:
    """Kernels of which only the interface is known."""

    codes: Mapping[int, KernelCode]

    def segment(self, template: SegmentTemplate) -> Segment:
        return _NoSegment(any(output.is_stack for output in template.outputs))

    def loop(self, loop: Repeat, types: LoopTypes) -> Repeat:
        return loop

    def stretches(self, program: Program) -> Sequence[Stretch]:
        return ()

    def deferred(self, call: Call, sizes: tuple[str, ...]) -> Callable[..., Any]:
        return _not_run


def _not_run(*_: Any) -> Any:
    raise AssertionError("a plan is not run")
