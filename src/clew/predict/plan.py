"""The kernels of a model as they would be compiled: passes, schedules and LLVM text, no code."""

from __future__ import annotations

from dataclasses import dataclass

from clew.build.build import KernelUse, kernel_names
from clew.build.lowering import KernelSource
from clew.build.schedule_choice import name_of, of_operators
from clew.compiler import narrowed
from clew.ir.expr import Call, Function
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.ir.visit import inner_functions, post_order
from clew.ops.registry import Op
from clew.passes.fuse_ops import FuseOps
from clew.passes.manager import PassManager
from clew.passes.views import has_static_shapes
from clew.pipelines import pipeline
from clew.runtime.threads import thread_count
from clew.support.errors import InputError
from clew.target import Target, target_of


@dataclass(frozen=True)
class Plan:
    """The uses of kernels in the order in which they run, and what is not native: host steps,
    and kernels whose shapes only a run tells.
    """

    uses: tuple[KernelUse, ...]
    host_steps: tuple[str, ...]
    threads: int
    target: Target


def plan(
    module: Module,
    target: str | Target = "cpu",
    *,
    threads: int | None = None,
    opt_level: int = 3,
    precision: str = "f32",
    fuse: str | None = "auto",
) -> Plan:
    """Returns the kernels that `clew.compile` would make with the same options.

    Errors: those of the passes, I010 and I012; I188 for a model with named sizes.
    """
    machine = target_of(target)
    for param in module.main.params:
        if not (isinstance(param.type, TensorType) and param.type.is_static):
            raise InputError(
                "I188",
                f"the size of input {param.name!r} is open: {param.type}",
                hint="say it, as in --shape NAME=1,128, or clew.load(model, inputs={...})",
            )
    dtype = narrowed(precision, machine)
    passes = list(pipeline(opt_level, dtype, ()))
    if fuse is None:
        passes = [FuseOps(mode="none") if isinstance(p, FuseOps) else p for p in passes]
    manager = PassManager(passes, opt_level, target=machine, trace=False)
    main = manager.run(module).main
    names = kernel_names(main)
    uses: list[KernelUse] = []
    host: list[str] = []
    sources: dict[str, KernelSource] = {}
    made: dict[int, KernelSource] = {}

    def visit(function: Function) -> None:
        for node in post_order(function.body):
            if not isinstance(node, Call):
                for inner in inner_functions(node):
                    visit(inner)
                continue
            called = node.op
            if isinstance(called, Function) and called.is_primitive and has_static_shapes(called):
                source = made.get(called.id)
                if source is None:
                    source = KernelSource(called, machine, of_operators(called, machine))
                    source = made[called.id] = sources.setdefault(source.key, source)
                uses.append(KernelUse(names[node.id], node, source, 0, len(uses)))
            elif isinstance(called, Function):
                host.append(name_of(called))
            elif isinstance(called, Op) and called.host:
                host.append(called.name)

    visit(main)
    return Plan(tuple(uses), tuple(host), thread_count(threads), machine)
