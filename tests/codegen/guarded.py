"""Runs a nest's native code behind guard pages."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from clew.codegen.artifact import IndexCheck, KernelCode, ObjectCode
from clew.codegen.kernel import emit_kernel
from clew.codegen.worker import emit_object
from clew.ir.types import to_numpy
from clew.loop.ir import Buffer, Nest, expressions, walk
from clew.loop.printer import print_nest
from clew.machine.target import Target
from clew.runtime.guard import GuardSide
from clew.runtime.library import Library
from clew.runtime.memory import plan_segment
from clew.runtime.plan import BufferKind, BufferRef, BufferSpec, Step
from clew.runtime.segment import NativeSegment
from clew.runtime.threads import shared_pool
from clew.support.bounds import Places
from clew.te.expr import Checked
from clew.te.walk import nodes

Array = np.ndarray[Any, Any]


def run(nest: Nest, arrays: list[Array], target: Target, side: GuardSide, threads: int) -> Array:
    """Returns a nest's output by native code behind guard pages."""
    made = emit_kernel(nest, print_nest(nest), "kernel", target)
    data = _object(made.llvm, target.triple, target.cpu, target.features)
    sizes = made.scratch_bytes, made.workspace_bytes
    code = KernelCode("00", made.entries, *sizes, checks=_checks(nest))
    refs = [BufferRef(BufferKind.INPUT, n) for n in range(len(nest.inputs))]
    refs += [BufferRef(BufferKind.OUTPUT, n) for n in range(len(nest.outputs))]
    refs += [BufferRef(BufferKind.ARENA, n) for n in range(len(made.workspace_bytes))]
    checked = tuple(check.places.operator for check in code.checks)
    steps = [Step(code, tuple(refs), "kernel", checked)]
    inputs, outputs = map(_specs, (nest.inputs, nest.outputs))
    plan = plan_segment(steps, inputs, outputs, [], list(made.workspace_bytes))
    library = Library([ObjectCode("00", data, tuple(e.symbol for e in made.entries))])
    flat = [a.reshape(b.shape) for a, b in zip(arrays, nest.inputs, strict=True)]
    return NativeSegment(plan, library, shared_pool(threads), guard=side)(flat)[0]


# A nest runs several times in a row: at both sides, with one thread and with two.
_object = lru_cache(maxsize=8)(emit_object)


def _checks(nest: Nest) -> tuple[IndexCheck, ...]:
    found = {
        node.site: node.places
        for stmt in walk(nest.body)
        for expr in expressions(stmt)
        for node in nodes(expr)
        if isinstance(node, Checked)
    }
    unused = Places("unused", 0, 1, 1)  # a check that simplification has removed
    return tuple(IndexCheck(found.get(n, unused), 0) for n in range(max(found, default=-1) + 1))


def _specs(buffers: tuple[Buffer, ...]) -> list[BufferSpec]:
    return [BufferSpec(b.name, b.shape, to_numpy(b.dtype).name) for b in buffers]
