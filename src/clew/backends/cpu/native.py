"""Compiles primitive functions to native kernels through the cache, and creates segments."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from clew.backends.calls import name_of
from clew.backends.cpu.deferred_kernel import BuildsKernels, DeferredKernel
from clew.backends.cpu.joined_counts import joined_counts
from clew.backends.cpu.joined_loop import with_native_steps
from clew.backends.cpu.kernel_stages import operator_calls
from clew.backends.cpu.kernel_workers import PendingKernel, shared_workers
from clew.backends.cpu.limits import check_bytes, check_work
from clew.backends.cpu.lowering import KernelBinary, KernelSource
from clew.backends.cpu.portable import is_portable, packed
from clew.backends.cpu.schedule_choice import ScheduleFor, of_operators
from clew.backends.loop_types import LoopTypes
from clew.backends.options import Options
from clew.codegen.artifact import KernelCode, ObjectCode
from clew.codegen.objects import PendingObject, submit
from clew.cost.policy.threads import KERNELS_FOR_WORKERS
from clew.ir.dims import at_least
from clew.ir.expr import Call, Function
from clew.ir.types import TensorType
from clew.machine.needs import check_machine, needs_of
from clew.ops.registry import Op
from clew.runtime.cache import Cache
from clew.runtime.layout import SymbolTable
from clew.runtime.library import Library
from clew.runtime.memory import plan_segment
from clew.runtime.plan import SegmentPlan
from clew.runtime.program import Program, Repeat, Stretch
from clew.runtime.segment import NativeSegment
from clew.runtime.segment_template import SegmentTemplate
from clew.runtime.sized_segment import SizedSegment
from clew.runtime.threads import ThreadPool
from clew.support.collection import no_collections
from clew.support.dataclass import dataclass
from clew.support.errors import CompileError, ScheduleError, UnsupportedError, locate
from clew.te.analysis import product_sums_and_stages

_LAYERS_SHOWN = 3


@dataclass(frozen=True, eq=False)
class _Missing:
    """A kernel to compile, and the first layers that it serves."""

    source: KernelSource
    layers: str


class NativeKernels:
    """The CPU as a backend: compiles kernels through the cache, and joins them to segments.

    `names` maps the ids of calls to the names of kernel uses. `codes` maps the ids of primitive
    functions to the kernels from `compile`.
    """

    def __init__(
        self,
        options: Options,
        cache: Cache,
        pool: ThreadPool,
        names: Mapping[int, str],
        builder: BuildsKernels,
    ) -> None:
        self.names = names
        self.options = options
        self.cache = cache
        self.pool = pool
        self._builder = builder
        self.sources: dict[str, KernelSource] = {}
        self.source_of: dict[int, KernelSource] = {}
        self.binaries: dict[str, KernelBinary] = {}
        self.segments: list[NativeSegment | SizedSegment] = []
        # Why kernels of sizes that only a run knows cannot serve all sizes, by their keys.
        self.unsized: dict[str, str] = {}
        self.codes: dict[int, KernelCode] = {}
        self.deferred_kernels: list[DeferredKernel] = []
        self.hits = 0
        # Ids of the users' schedules that fit some kernel.
        self.used: set[int] = set()
        self._library: SymbolTable | None = None

    def compile(self, calls: Sequence[Call]) -> None:
        """Compiles each called primitive function; equal functions share a kernel."""
        with no_collections():
            keys, missing, twins = self._sources(calls)
            self._make(missing)
        self._add(twins, {kernel.source.key for kernel in missing})
        objects = {b.object.key: b.object for b in self.binaries.values()}
        self._library = self._linked(list(objects.values()))
        made = ((node, self.binaries.get(key)) for node, key in keys.items())
        self.codes = {node: binary.code for node, binary in made if binary is not None}

    def _sources(
        self, calls: Sequence[Call]
    ) -> tuple[dict[int, str], list[_Missing], dict[str, str]]:
        """Returns the keys of the kernels, by the ids of functions, the kernels to be compiled, and
        by the keys of kernels that share another one's code, that one's key. Adds the kernels found
        in the cache to `binaries`.
        """
        missing: dict[str, _Missing] = {}
        twins: dict[str, str] = {}
        first: dict[str, KernelSource] = {}
        keys: dict[int, str] = {}
        for call in calls:
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
                check_bytes(call)
                check_work(source, use)
            if source.key in self.binaries or source.key in missing or source.key in twins:
                continue
            twin = first.setdefault(source.own_key, source) if source.own_key else source
            if twin is not source:
                twins[source.key] = twin.key
                source.share(twin)
                continue
            stored = self.cache.get(source.key)
            if stored is not None:
                self.binaries[source.key] = KernelBinary.from_bytes(stored, source)
                self.hits += 1
            elif source.is_sized and any(at_least(-1 - need) for need in source.stages.needs):
                self.unsized[source.key] = "no sizes meet what its operators assume"
                first.pop(source.own_key, None)
            else:
                missing[source.key] = _Missing(source, layers)
        return keys, list(missing.values()), twins

    def _add(self, twins: Mapping[str, str], compiled: Collection[str]) -> None:
        """Adds the kernels that share the code of others, some of which were just compiled."""
        for key, other in twins.items():
            source = self.sources[key]
            if any(at_least(-1 - need) for need in source.stages.needs):
                self.unsized[key] = "no sizes meet what its operators assume"
            elif other in self.unsized:
                self.unsized[key] = self.unsized[other]
            else:
                self.binaries[key] = self.binaries[other].of(source)
                self.hits += other not in compiled

    def _make(self, missing: Sequence[_Missing]) -> None:
        """Compiles kernels: workers those that they have taken by the time that this process gets
        to them. A long one that is begun last would leave the other cores idle.
        """
        workers = shared_workers()
        missing = _longest_first(missing)
        given = self._given(missing) if workers.count else {}
        here: list[tuple[_Missing, PendingObject]] = []
        try:
            for number, kernel in enumerate(missing, 1):
                self.options.on_progress(f"kernel {number} of {len(missing)}, {kernel.source.use}")
                job = given.get(kernel.source.key)
                if job is None or workers.take_back(job):
                    here += self._begun(kernel)
            for kernel in missing:
                job = given.get(kernel.source.key)
                if job is not None and not job.is_taken_back:
                    answer = workers.answer(job)
                    if answer is None:
                        here += self._begun(kernel)
                    else:
                        self._keep(KernelBinary.from_bytes(answer, kernel.source))
        finally:
            workers.cancel(given.values())
        for kernel, pending in here:
            self._keep(kernel.source.binary(pending.result()))

    def _given(self, missing: Sequence[_Missing]) -> dict[str, PendingKernel]:
        """Offers kernels to the workers; returns those that may be lowered there, by their keys."""
        if len(missing) < KERNELS_FOR_WORKERS:
            return {}
        sources = [kernel.source for kernel in missing if is_portable(kernel.source)]
        given = {source.key: PendingKernel(partial(packed, source)) for source in sources}
        shared_workers().add(*given.values())
        return given

    def _begun(self, kernel: _Missing) -> list[tuple[_Missing, PendingObject]]:
        """Lowers a kernel here, and returns it with its object, which LLVM begins to compile."""
        with locate(layer=kernel.layers):
            text = self._text(kernel.source)
        return [] if text is None else [(kernel, submit(text, self.options.target))]

    def _keep(self, binary: KernelBinary) -> None:
        self.binaries[binary.code.key] = binary
        self.cache.put(binary.code.key, binary.to_bytes())

    def _text(self, source: KernelSource) -> str | None:
        """Returns the LLVM text of a kernel. None if its sizes are known only in a run, and its
        schedule needs numbers: it is compiled for the sizes of each run instead.
        """
        if not source.is_sized:
            return source.emitted.llvm
        try:
            return source.emitted.llvm
        except ScheduleError as error:
            self.unsized[source.key] = error.message
            return None

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
        """Returns the name of a kernel use; it is unique in the model if its shapes are known."""
        assert isinstance(call.op, Function)
        return self.names.get(call.id, name_of(call.op))

    def _chosen(self, call: Call, function: Function) -> list[ScheduleFor]:
        """Returns the users' schedules that fit a kernel."""
        name = self._use(call)
        found = [s for s in self.options.schedules if s.fits(name, function)]
        self.used.update(map(id, found))
        return found

    def segment(self, template: SegmentTemplate) -> NativeSegment | SizedSegment:
        """Returns the segment of a template: ready to run, or for all sizes."""
        made: NativeSegment | SizedSegment
        if template.is_static:
            made = self._of_plan(plan_segment(*template.parts))
        else:
            assert self._library is not None
            made = SizedSegment(template, self._library, self.pool, guard=self.options.guard)
        self.segments.append(made)
        return made

    def loop(self, loop: Repeat, types: LoopTypes) -> Repeat:
        """Returns a loop that Python runs, with native steps where they can replace it."""
        return with_native_steps(loop, types, self.pool, self.options.guard)

    @staticmethod
    def stretches(program: Program) -> Sequence[Stretch]:
        """Returns the parts of a program that may run as one native call each."""
        return joined_counts(program)

    def _of_plan(self, plan: SegmentPlan) -> NativeSegment:
        assert self._library is not None
        return NativeSegment(plan, self._library, self.pool, guard=self.options.guard)

    def deferred(self, call: Call, sizes: tuple[str, ...]) -> Callable[..., Any]:
        """Returns the function that runs a kernel with data-dependent shapes. Its last arguments
        are the sizes named by `sizes`.

        Errors: U012 for a call of a function that is not primitive.
        """
        if not isinstance(call.op, Function) or not call.op.is_primitive:
            raise UnsupportedError(
                "U012",
                f"the passes left a call of the function {call.title}, which is not primitive",
                hint="put InlineComposites() before FuseOps() among the passes",
                layer=", ".join(call.layers[:3]),
            )
        self._chosen(call, call.op)
        target, bounds = self.options.target, self.options.bounds
        kernel = DeferredKernel(call.op, sizes, target, bounds, self._builder)
        self.deferred_kernels.append(kernel)
        return kernel


def _longest_first(missing: Sequence[_Missing]) -> list[_Missing]:
    """Returns kernels in an order in which those that take longer to compile tend to come first: a
    sum of products gets register tiles, and code grows with the stages.
    """
    found: dict[str, tuple[int, int]] = {}  # by operator: types change little

    def sums_and_stages(call: Call) -> tuple[int, int]:
        if not isinstance(call.op, Op) or not all(
            isinstance(a.type, TensorType) for a in call.args
        ):
            return 0, 0
        if call.op.name not in found:
            types = [a.tensor for a in call.args]
            counted = call.op.derived(product_sums_and_stages, types, call.attrs)
            found[call.op.name] = counted or (0, 0)
        return found[call.op.name]

    def work(kernel: _Missing) -> tuple[int, int]:
        counts = [sums_and_stages(call) for call in operator_calls(kernel.source.function)]
        return sum(sums for sums, _ in counts), sum(count for _, count in counts)

    return sorted(missing, key=work, reverse=True)


class _Elsewhere:
    """Code for another machine. It can be inspected and saved, but running it is an error."""

    def __init__(self, error: CompileError) -> None:
        self._error = error

    def address(self, symbol: str) -> int:
        """Raises the error that states why this machine cannot run the code.

        Errors: C056, C057.
        """
        raise self._error
