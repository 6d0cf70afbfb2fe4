"""A build: one concrete module compiled, with its stages, kernels and program."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from clew.build.lowering import KernelBinary, KernelSource
from clew.build.program_builder import ProgramBuilder
from clew.build.schedule_choice import ScheduleFor, name_of, of_operators
from clew.codegen.artifact import KernelCode, ObjectCode
from clew.codegen.objects import PendingObject, submit
from clew.ir.dims import Dim, SymDim
from clew.ir.expr import ArgRef, Call, Expr, Function, Tuple, Var
from clew.ir.interpret import interpret_values
from clew.ir.module import Module
from clew.ir.parser import parse_module
from clew.ir.printer import printed
from clew.ir.rewrite import rebuild
from clew.ir.types import TensorType, Type, leaves
from clew.ir.visit import inner_functions, post_order
from clew.passes.base import Pass, PassContext
from clew.passes.decompose_ops import DecomposeOps
from clew.passes.fold_constant import FoldConstant
from clew.passes.fuse_ops import FuseOps
from clew.passes.manager import PassManager
from clew.passes.place_parts import PlaceParts
from clew.passes.specialize import Specialize
from clew.passes.views import is_settled
from clew.runtime.cache import Cache, default_cache
from clew.runtime.context import SymbolTable
from clew.runtime.cpu import check_machine, needs_of
from clew.runtime.guard import GuardSide
from clew.runtime.jit import Library
from clew.runtime.plan import SegmentPlan
from clew.runtime.program import Program
from clew.runtime.segment import NativeSegment
from clew.runtime.threads import ThreadPool
from clew.support.budgets import Budgets, current, exceeded
from clew.support.errors import CompileError, GraphTypeError, UnsupportedError, locate
from clew.support.lazy import cached_property
from clew.support.locks import Lock
from clew.target import Target
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

    @property
    def has_user_code(self) -> bool:
        """Whether a user's passes or schedules take part, whose names say nothing about them."""
        return bool(self.schedules) or not all(p.is_builtin for p in self.passes)


@dataclass(frozen=True)
class KernelUse:
    """One use of a kernel: the call in the last stage's graph, and the kernel it runs."""

    name: str
    call: Call
    source: KernelSource
    segment: int
    step: int


@dataclass
class Build:
    """What compiling one concrete module gave. Times are seconds of wall clock."""

    stages: list[StageRecord]
    program: Program
    uses: list[KernelUse]
    segments: list[NativeSegment]
    binaries: dict[str, KernelBinary]
    seconds: dict[str, float]
    cached_kernels: int

    @property
    def constant_bytes(self) -> int:
        """Size of the weights that the program holds."""
        return sum(c.nbytes for segment in self.segments for c in segment.plan.constants)

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
    fused = manager.run(module)
    clock.lap("passes")
    names = kernel_names(fused.main)
    native = _Native(options, cache, pool, names)
    codes = native.compile(static_calls(fused))
    clock.lap("kernels")
    options.on_progress("linking")
    builder = ProgramBuilder(fused.main, codes, native.segment, native.deferred)
    program = builder.build()
    clock.lap("program")
    uses = _uses(builder, native, names)
    return Build(
        manager.stages, program, uses, native.segments, native.binaries, clock.seconds, native.hits
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
        self._library: SymbolTable | None = None

    def compile(self, calls: Sequence[Call]) -> dict[int, KernelCode]:
        """Returns the code of each called primitive function; equal ones share a kernel."""
        waiting: list[tuple[KernelSource, PendingObject]] = []
        keys: dict[int, str] = {}
        for number, call in enumerate(calls, 1):
            function = call.op
            assert isinstance(function, Function)
            source = KernelSource(function, self.options.target, self._by_hand(call, function))
            source = self.sources.setdefault(source.key, source)
            self.source_of[function.id] = source
            keys[function.id] = source.key
            _check_bytes(call)
            _check_work(source)
            if source.key in self.binaries or any(s is source for s, _ in waiting):
                continue
            stored = self.cache.get(source.key)
            if stored is not None:
                self.binaries[source.key] = KernelBinary.from_bytes(stored)
                self.hits += 1
            else:
                self.options.on_progress(f"kernel {number} of {len(calls)}, {source.name}")
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
        name = self.names.get(call.id, name_of(function))
        rules = of_operators(function, self.options.target)
        return [*(s for s in self.options.schedules if s.fits(name, function)), *rules]

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
        return DeferredKernel(call.op, sizes, self.options, self.cache, self.pool)


class _Elsewhere:
    """Code for another machine: it may be looked at and saved, and is refused when it is to run."""

    def __init__(self, error: CompileError) -> None:
        self._error = error

    def address(self, symbol: str) -> int:
        """Raises what the machine lacks.

        Errors: C056, C057.
        """
        raise self._error


# Kernels that a function keeps for the shapes it met.
_KEPT_SHAPES = 64
# For so many values that decide sizes kernels are compiled; with more it is cheaper without.
_COMPILED_VALUES = 8


class DeferredKernel:
    """A primitive function that is specialised to the shapes it meets (and to the values that
    decide sizes, such as the bounds of a slice); the last ones are kept. `sizes` names what its
    last arguments say: sizes that no other argument has.
    """

    def __init__(
        self,
        function: Function,
        sizes: tuple[str, ...],
        options: Options,
        cache: Cache,
        pool: ThreadPool,
    ) -> None:
        self.function = function
        self.sizes = sizes
        self.options = options
        self.cache = cache
        self.pool = pool
        self._deciding = deciding_params(function)
        self._values_met = 0
        self._known: OrderedDict[tuple[Any, ...], Callable[..., Any]] = OrderedDict()
        self._lock = Lock()

    def to_json(self) -> dict[str, Any]:
        """Returns the kernel as JSON values: its operators as text, from which it is compiled where
        the model is loaded.

        Errors: C058 where the text alone does not say what its constants are.
        """
        form = printed(Module({"main": self.function}))
        if form.constants:
            raise CompileError(
                "C058",
                f"{self.function.attrs.get('name', 'a kernel')} has shapes that only a run tells, "
                "and constants of its own",
                hint="such a model cannot be saved; fix the shapes, or keep the compiled model",
                layer=", ".join(self.function.span.layers),
            )
        target = asdict(self.options.target)
        return {"kernel": form.text, "sizes": self.sizes, "target": target}

    @staticmethod
    def from_json(step: Mapping[str, Any], pool: ThreadPool) -> DeferredKernel:
        """Returns the kernel that `to_json` gave."""
        function = parse_module(step["kernel"]).main
        options = Options(Target(**step["target"]), pool.threads, 3, ())
        return DeferredKernel(function, tuple(step["sizes"]), options, default_cache(), pool)

    def __call__(self, *arrays: np.ndarray[Any, Any]) -> Any:
        count = len(self.function.params)
        given = [np.asarray(a) for a in arrays[:count]]
        sizes = tuple(map(int, arrays[count:]))
        key = (
            tuple((a.shape, a.dtype) for a in given),
            tuple(given[n].tobytes() for n in self._deciding),
            sizes,
        )
        found = self._known.get(key)
        if found is None:
            with self._lock, locate(layer=", ".join(self.function.span.layers)):
                found = self._known.get(key) or self._specialize(given, sizes)
                self._known[key] = found
                while len(self._known) > _KEPT_SHAPES:
                    self._known.popitem(last=False)
        return found(*given)

    def _specialize(
        self, arrays: Sequence[np.ndarray[Any, Any]], given: Sequence[int]
    ) -> Callable[..., Any]:
        sizes = dict(zip(self.sizes, given, strict=True))
        for param, array in zip(self.function.params, arrays, strict=True):
            bind_sizes(param, array.shape, sizes)
        module, names = self._alone()
        values = tuple((names[n], arrays[n].copy()) for n in self._deciding)
        context = PassContext(self.options.target)
        # Its operators again, and in kernels anew: with all sizes known some are views, or nothing.
        for step in (
            Specialize(tuple(sizes.items()), values), DecomposeOps(), FoldConstant(), FuseOps(),
            PlaceParts(),
        ):  # fmt: skip
            module = step.run(module, context)
        if any(isinstance(d, SymDim) for n in post_order(module.main) for d in _dims_of(n.type)):
            return self._interpreted(sizes)
        self._values_met += bool(values)
        if self._values_met > _COMPILED_VALUES:
            return self._interpreted(sizes)
        native = _Native(self.options, self.cache, self.pool, {})
        codes = native.compile(static_calls(module))
        program = ProgramBuilder(module.main, codes, native.segment, native.deferred).build()

        def run(*values: np.ndarray[Any, Any]) -> Any:
            return tuple(program(values))

        return run

    def _alone(self) -> tuple[Module, list[str]]:
        """Returns a module of the function's operators, and the names of its parameters."""
        names = [f"p{n}" for n in range(len(self.function.params))]
        params = [Var(n, p.type) for n, p in zip(names, self.function.params, strict=True)]
        body = _over(self.function, params)
        outs = list(body.fields) if isinstance(body, Tuple) else [body]
        attrs = {"outputs": tuple(f"out{n}" for n in range(len(outs)))}
        return Module({"main": Function(params, Tuple(outs), attrs)}), names

    def _interpreted(self, sizes: Mapping[str, int]) -> Callable[..., Any]:
        """Returns what runs the function with the operators' references."""
        module = Module({"main": self.function})
        settled = Specialize(tuple(sizes.items())).run(module, PassContext()).main

        def run(*values: np.ndarray[Any, Any]) -> Any:
            (result,) = interpret_values(settled, values, [settled.body.id]).values()
            return result

        return run


def _over(function: Function, args: Sequence[Expr]) -> Expr:
    """Returns a function's body over arguments."""
    values: dict[int, Expr] = {p.id: a for p, a in zip(function.params, args, strict=True)}
    for node in post_order(function.body):
        if node.id not in values:
            children = [values.get(c.id, c) for c in node.children]
            values[node.id] = rebuild(node, children) if node.children else node
    return values[function.body.id]


def _dims_of(type_: Type) -> list[Dim]:
    return [d for t in leaves(type_) if isinstance(t, TensorType) for d in t.shape]


def deciding_params(function: Function) -> tuple[int, ...]:
    """Returns the positions of parameters whose values decide shapes: those that attributes bound
    at run time depend on.
    """
    wanted: list[Expr] = []
    for node in post_order(function):
        if isinstance(node, Call):
            refs = [v.index for v in node.attrs.values() if isinstance(v, ArgRef)]
            wanted += [node.args[i] for i in refs]
    if not wanted:
        return ()
    reached = {n.id for n in post_order(wanted)}
    return tuple(n for n, p in enumerate(function.params) if p.id in reached)


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


def _check_work(source: KernelSource) -> None:
    """Errors: C141 for a kernel that does more than the budget allows."""
    budgets = current()
    if not budgets.bounds_work:
        return
    count = flops_of(source.stages.outputs)
    assert isinstance(count, int), "a kernel's shapes are known"
    if count > budgets.run_operations:
        what = f"operations of {source.name}"
        raise exceeded(CompileError, "C141", what, count, "run_operations", budgets.run_operations)


def bind_sizes(param: Var, shape: Sequence[int], sizes: dict[str, int]) -> None:
    """Binds the named sizes in a parameter's type to those of an array.

    Errors: T030 when a size is bound to two values, or the array's rank differs.
    """
    type_ = param.type
    assert isinstance(type_, TensorType)
    if len(shape) != type_.rank:
        raise GraphTypeError("T030", f"{param.name} has rank {len(shape)}, expected {type_}")
    for dim, size in zip(type_.shape, shape, strict=True):
        if isinstance(dim, int):
            continue
        names = dim.symbols
        if str(dim) in names:
            bound = sizes.setdefault(str(dim), int(size))
            if bound != size:
                raise GraphTypeError(
                    "T030", f"size {dim} is {bound} in one input and {size} in {param.name}"
                )


def _uses(builder: ProgramBuilder, native: _Native, names: Mapping[int, str]) -> list[KernelUse]:
    """Returns the uses of kernels in program order."""
    uses: list[KernelUse] = []
    for segment, calls in enumerate(builder.segment_calls):
        for step, call in enumerate(calls):
            assert isinstance(call.op, Function)
            source = native.source_of[call.op.id]
            uses.append(KernelUse(names[call.id], call, source, segment, step))
    return uses
