"""A build: one concrete module compiled, with its stages, kernels and program."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from clew.build.deferred_kernel import DeferredKernel
from clew.build.lowering import KernelBinary, KernelSource, operator_calls
from clew.build.program_builder import ProgramBuilder
from clew.build.schedule_choice import ScheduleFor, name_of, of_operators
from clew.build.wishes import idle_schedules, lost_regions
from clew.codegen.artifact import KernelCode, ObjectCode
from clew.codegen.objects import PendingObject, submit
from clew.ir.expr import Call, Function
from clew.ir.module import Module
from clew.ir.types import TensorType, leaves
from clew.ir.visit import inner_functions, post_order
from clew.machine.needs import check_machine, needs_of
from clew.machine.target import Target
from clew.passes.base import Pass, Unmet
from clew.passes.fusion.views import is_settled
from clew.passes.manager import PassManager
from clew.passes.specialize import Specialize
from clew.pipelines import pipeline_of_kernel
from clew.runtime.cache import Cache, default_cache
from clew.runtime.context import SymbolTable
from clew.runtime.guard import GuardSide
from clew.runtime.jit import Library
from clew.runtime.plan import SegmentPlan
from clew.runtime.program import Program
from clew.runtime.segment import NativeSegment
from clew.runtime.threads import ThreadPool
from clew.support.bounds import bounds_in_force
from clew.support.budgets import Budgets, current, exceeded
from clew.support.errors import CompileError, UnsupportedError, locate
from clew.support.lazy import cached_property
from clew.support.shown import Brief, Shown, counted
from clew.te.analysis import flops_of
from clew.trace.stages import StageRecord


@dataclass(frozen=True)
class Options:
    """What a build was asked for."""

    target: Target
    threads: int
    opt_level: int
    passes: tuple[Pass, ...]
    schedules: tuple[ScheduleFor, ...] = ()
    required: tuple[str, ...] = ()
    disabled: tuple[str, ...] = ()
    instruments: tuple[Any, ...] = ()
    trace: bool = True
    guard: bool | GuardSide = False
    on_progress: Callable[[str], None] = field(default=lambda text: None)
    budgets: Budgets | None = None
    bounds: str = "check"

    @property
    def has_user_code(self) -> bool:
        """Whether a user's passes or schedules take part, whose names say nothing about them."""
        return bool(self.schedules) or not all(p.is_builtin for p in self.passes)


@dataclass(frozen=True, repr=False)
class KernelUse(Brief):
    """One use of a kernel: the call in the last stage's graph, and the kernel it runs."""

    name: str
    call: Call
    source: KernelSource
    segment: int
    step: int

    @property
    def ops(self) -> list[str]:
        """Names of its operators in order."""
        assert isinstance(self.call.op, Function)
        return [call.op_name for call in operator_calls(self.call.op)]


@dataclass(repr=False)
class Build(Shown):
    """What compiling one concrete module gave. Times are seconds of wall clock."""

    stages: list[StageRecord]
    program: Program
    uses: list[KernelUse]
    segments: list[NativeSegment]
    binaries: dict[str, KernelBinary]
    seconds: dict[str, float]
    cached_kernels: int
    # What the user asked for and did not get.
    unmet: tuple[Unmet, ...] = ()

    def _about(self) -> str:
        return f"of {counted(len(self.uses), 'kernel')}, {counted(len(self.segments), 'segment')}"

    @property
    def constant_bytes(self) -> int:
        """Size of the weights that the program holds."""
        return sum(c.nbytes for segment in self.segments for c in segment.plan.constants)

    @cached_property
    def same_code(self) -> dict[str, list[str]]:
        """Names of the uses that share a kernel, by its key."""
        found: dict[str, list[str]] = {}
        for use in self.uses:
            found.setdefault(use.source.key, []).append(use.name)
        return found

    @cached_property
    def layer_order(self) -> dict[str, int]:
        """The position of each of the model's layers, in the order of the import."""
        nodes = post_order(self.stages[0].module.main)
        names = dict.fromkeys(layer for node in nodes for layer in node.span.layers)
        return {name: position for position, name in enumerate(names)}


def build_module(
    module: Module, options: Options, cache: Cache, pool: ThreadPool, specialize: Specialize | None
) -> Build:
    """Returns the build of a module for concrete sizes: passes, kernels, native code, program."""
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
    with bounds_in_force(options.bounds):
        fused = manager.run(module)
    clock.lap("passes")
    names = kernel_names(fused.main)
    native = _Native(options, cache, pool, names)
    codes = native.compile(static_calls(fused))
    clock.lap("kernels")
    options.on_progress("linking")
    builder = ProgramBuilder(
        fused.main, codes, native.segment, native.deferred, bounds=options.bounds
    )
    program = builder.build()
    clock.lap("program")
    uses = _uses(builder, native, names)
    unmet = [*manager.unmet, *lost_regions(manager.stages, options.passes)]
    if options.schedules:
        held = {use.name: use.ops for use in uses}
        unmet += idle_schedules(options.schedules, native.used, held)
    return Build(
        manager.stages,
        program,
        uses,
        native.segments,
        native.binaries,
        clock.seconds,
        native.hits,
        tuple(unmet),
    )


class _Clock:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = now - self._last
        self._last = now


def static_calls(module: Module) -> list[Call]:
    """Returns a call of each primitive function whose shapes are known."""
    roots = [function for _, function in module]
    found: dict[int, Call] = {}
    for node in post_order(roots, into_functions=True):
        called = node.op if isinstance(node, Call) else None
        if isinstance(called, Function) and called.is_primitive and is_settled(called):
            assert isinstance(node, Call)
            found.setdefault(called.id, node)
    return list(found.values())


def kernel_names(main: Function) -> dict[int, str]:
    """Returns the name of each use of a kernel, by its call's id: unique, in the order they run."""
    names: dict[int, str] = {}
    taken: dict[str, int] = {}

    def visit(function: Function) -> None:
        for node in post_order(function.body):
            called = node.op if isinstance(node, Call) else None
            if isinstance(called, Function) and called.is_primitive and is_settled(called):
                base = name_of(called)
                count = taken.get(base, 0)
                taken[base] = count + 1
                names[node.id] = base if not count else f"{base}_{count}"
            else:
                for inner in inner_functions(node):
                    visit(inner)

    visit(main)
    return names


_LAYERS_SHOWN = 3


class _Native:
    """Compiles kernels, through the cache, and makes segments of them. `names` are those of the
    uses, by the calls' ids.
    """

    def __init__(
        self, options: Options, cache: Cache, pool: ThreadPool, names: Mapping[int, str]
    ) -> None:
        self.names = names
        self.options = options
        self.cache = cache
        self.pool = pool
        self.sources: dict[str, KernelSource] = {}
        self.source_of: dict[int, KernelSource] = {}
        self.binaries: dict[str, KernelBinary] = {}
        self.segments: list[NativeSegment] = []
        self.hits = 0
        # Ids of the schedules by hand that are for a kernel.
        self.used: set[int] = set()
        self._library: SymbolTable | None = None

    def compile(self, calls: Sequence[Call]) -> dict[int, KernelCode]:
        """Returns the code of each called primitive function; equal ones share a kernel."""
        waiting: list[tuple[KernelSource, PendingObject]] = []
        keys: dict[int, str] = {}
        for number, call in enumerate(calls, 1):
            function = call.op
            assert isinstance(function, Function)
            use, layers = self._use(call), ", ".join(call.layers[:_LAYERS_SHOWN])
            by_hand = self._by_hand(call, function)
            source = KernelSource(function, self.options.target, by_hand, self.options.bounds, use)
            with locate(layer=layers):
                source = self.sources.setdefault(source.key, source)
            self.source_of[function.id] = source
            keys[function.id] = source.key
            with locate(layer=layers):
                _check_bytes(call)
                _check_work(source, use)
            if source.key in self.binaries or any(s is source for s, _ in waiting):
                continue
            stored = self.cache.get(source.key)
            if stored is not None:
                self.binaries[source.key] = KernelBinary.from_bytes(stored)
                self.hits += 1
            else:
                self.options.on_progress(f"kernel {number} of {len(calls)}, {use}")
                with locate(layer=layers):
                    text = source.emitted.llvm
                waiting.append((source, submit(text, self.options.target)))
        for source, pending in waiting:
            symbols = tuple(e.symbol for e in source.code.entries)
            code = ObjectCode(source.key, pending.result(), symbols)
            binary = KernelBinary(source.code, code, source.rules)
            self.binaries[source.key] = binary
            self.cache.put(source.key, binary.to_bytes())
        self._library = self._linked([b.object for b in self.binaries.values()])
        return {node: self.binaries[key].code for node, key in keys.items()}

    def _linked(self, objects: list[ObjectCode]) -> SymbolTable:
        target = self.options.target
        try:
            check_machine(needs_of(target.triple, target.cpu, target.features))
        except CompileError as error:
            return _Elsewhere(error)
        return Library(objects)

    def _by_hand(self, call: Call, function: Function) -> list[ScheduleFor]:
        rules = of_operators(function, self.options.target)
        return [*self._chosen(call, function), *rules]

    def _use(self, call: Call) -> str:
        """Returns the name of a use of a kernel, unique in the model where its shapes are known."""
        assert isinstance(call.op, Function)
        return self.names.get(call.id, name_of(call.op))

    def _chosen(self, call: Call, function: Function) -> list[ScheduleFor]:
        """Returns the users' schedules that are for a kernel."""
        name = self._use(call)
        found = [s for s in self.options.schedules if s.fits(name, function)]
        self.used.update(map(id, found))
        return found

    def segment(self, plan: SegmentPlan) -> NativeSegment:
        """Returns a plan made ready to run."""
        assert self._library is not None
        made = NativeSegment(plan, self._library, self.pool, guard=self.options.guard)
        self.segments.append(made)
        return made

    def deferred(self, call: Call, sizes: tuple[str, ...]) -> Callable[..., Any]:
        """Returns what runs a kernel whose shapes only the run tells. `sizes` names what its last
        arguments say.

        Errors: U012 for a call of a function that is no kernel.
        """
        if not isinstance(call.op, Function) or not call.op.is_primitive:
            raise UnsupportedError(
                "U012",
                f"the passes left a call of the function {call.op_name}, which is no kernel",
                hint="put InlineComposites() before FuseOps() among the passes",
                layer=", ".join(call.layers[:3]),
            )
        self._chosen(call, call.op)
        make = partial(_specialized, self.options, self.cache, self.pool)
        return DeferredKernel(call.op, sizes, self.options.target, self.options.bounds, make)


def _specialized(
    options: Options, cache: Cache, pool: ThreadPool, specialize: Specialize, module: Module
) -> Program | None:
    """Returns the program of a kernel's operators for what a run has told; None where shapes remain
    that it has not.
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
    native = _Native(options, cache, pool, {})
    codes = native.compile(static_calls(module))
    builder = ProgramBuilder(
        module.main, codes, native.segment, native.deferred, bounds=options.bounds
    )
    return builder.build()


def saved_kernel(step: Mapping[str, Any], pool: ThreadPool) -> DeferredKernel:
    """Returns a kernel of a saved model that is compiled for the shapes it meets."""
    target, bounds = Target.of_record(step["target"]), step.get("bounds", "check")
    options = Options(target, pool.threads, 3, (), bounds=bounds)
    make = partial(_specialized, options, default_cache(), pool)
    return DeferredKernel.from_json(step, target, bounds, make)


class _Elsewhere:
    """Code for another machine: it may be looked at and saved, and is refused when it is to run."""

    def __init__(self, error: CompileError) -> None:
        self._error = error

    def address(self, symbol: str) -> int:
        """Raises what the machine lacks.

        Errors: C056, C057.
        """
        raise self._error


def _check_bytes(call: Call) -> None:
    """Errors: C140 for a value that the machine, or the budget, has no room for."""
    budgets = current()
    for value in (*call.args, call):
        for leaf in leaves(value.type):
            size_bytes = leaf.size_bytes if isinstance(leaf, TensorType) else 0
            if size_bytes > budgets.run_bytes:
                what = f"bytes of {leaf}"
                raise exceeded(
                    CompileError, "C140", what, size_bytes, "run_bytes", budgets.run_bytes
                )
            if size_bytes > budgets.allocated_bytes:
                raise CompileError(
                    "C140",
                    f"{leaf} takes {size_bytes} bytes, and this machine has "
                    f"{budgets.allocated_bytes}",
                    hint="the model needs a larger machine, or smaller inputs",
                )


def _check_work(source: KernelSource, use: str) -> None:
    """Errors: C141 for a kernel that does more than the budget allows."""
    budgets = current()
    if not budgets.bounds_work:
        return
    count = flops_of(source.stages.outputs)
    assert isinstance(count, int), "a kernel's shapes are known"
    if count > budgets.run_operations:
        what = f"operations of {use}"
        raise exceeded(CompileError, "C141", what, count, "run_operations", budgets.run_operations)


def _uses(builder: ProgramBuilder, native: _Native, names: Mapping[int, str]) -> list[KernelUse]:
    """Returns the uses of kernels in program order."""
    uses: list[KernelUse] = []
    for segment, calls in enumerate(builder.segment_calls):
        for step, call in enumerate(calls):
            assert isinstance(call.op, Function)
            source = native.source_of[call.op.id]
            uses.append(KernelUse(names[call.id], call, source, segment, step))
    return uses
