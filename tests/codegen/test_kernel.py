"""Kernels: what their instructions lead to, phases, register tiles, and that text is stable."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import clew
from clew import te
from clew.api.compiled_model import CompiledModel
from clew.backends.cpu.kernel_stages import operator_calls
from clew.codegen.builder import ModuleBuilder
from clew.codegen.disassemble import disassemble
from clew.codegen.kernel import emit_kernel
from clew.ir.expr import Constant, Expr, Function, Tuple, Var
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.loop.lower import lower
from clew.loop.printer import print_nest
from clew.loop.schedule import Schedule
from clew.machine.target import host
from clew.ops.registry import get_op


def _weight(*shape: int) -> Constant:
    return Constant(np.random.default_rng(1).standard_normal(shape).astype(np.float32))


def _block() -> tuple[list[Var], list[Expr]]:
    """A convolution with bias, residual and ReLU; a matrix product; a softmax; a transpose."""
    x = Var("x", TensorType((1, 16, 9, 9), "f32"))
    conv = get_op("nn.conv2d")(x, _weight(16, 16, 3, 3), padding=(1, 1, 1, 1))
    biased = get_op("add")(conv, _weight(16, 1, 1))
    block = get_op("nn.relu")(get_op("add")(biased, x))
    pooled = get_op("reshape")(get_op("nn.global_avg_pool2d")(block), shape=(1, 16))
    scores = get_op("nn.dense")(pooled, _weight(21, 16))
    return [x], [
        get_op("nn.softmax")(get_op("sigmoid")(scores), axis=-1),
        get_op("transpose")(block, axes=(0, 2, 3, 1)),
    ]


def _compiled(**options: object) -> CompiledModel:
    params, results = _block()
    names = tuple(f"y{n}" for n in range(len(results)))
    module = Module({"main": Function(params, Tuple(results), {"outputs": names})})
    return clew.compile(module, threads=2, cache=False, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def compiled() -> CompiledModel:
    return _compiled()


def test_instructions_lead_to_loop_lines_stages_and_operators(compiled: CompiledModel) -> None:
    total = placed = 0
    for kernel, use in zip(compiled.kernels, compiled.build.uses, strict=True):
        printed = use.source.printed
        operators = operator_calls(use.call.op)
        for instruction in disassemble(kernel.object_code).instructions:
            assert 1 <= instruction.line <= len(printed.lines)
            if instruction.text.split()[0] not in ("nop", "push", "pop"):  # of the whole
                total += 1
                placed += instruction.line > 1
        for line, stages in zip(printed.lines, printed.stages, strict=True):
            assert stages, f"{kernel.name}: {line}"
            for stage in stages:
                position = use.source.stage_op(stage)
                assert position is not None, stage
                assert operators[position].op_name
    # The rest (zeroed accumulators, spills, moves) has no debug location: it was 893 of 971 with
    # vectors of 512 bits, 667 of 725 with 256, and 1092 of 1420 with half as many registers.
    least = 0.9 if host().vector_registers > 16 else 0.75
    assert placed >= least * total, f"{placed} of {total} instructions have a line of their own"


def test_every_operator_of_a_kernel_has_a_line(compiled: CompiledModel) -> None:
    for use in compiled.build.uses:
        stages = {s for line in use.source.printed.stages for s in line}
        reached = {use.source.stage_op(s) for s in stages}
        assert reached == set(range(len(operator_calls(use.call.op)))), use.name


def test_fused_operators_are_told_apart_down_to_instructions() -> None:
    compiled = _compiled(passes=clew.Passes(disabled=["SelectConvAlgorithm"]))
    kernel = next(k for k in compiled.kernels if "nn.conv2d" in k.ops and "nn.relu" in k.ops)
    lines = {i.line for i in disassemble(kernel.object_code).instructions}
    by_stage = {
        stage: number
        for number, stages in enumerate(kernel._use.source.printed.stages, 1)
        for stage in stages
        if len(stages) == 1
    }
    for name in ("conv2d", "add", "relu"):
        assert any(s.split("_")[0] == name and n in lines for s, n in by_stage.items()), name


def test_the_trace_changes_no_byte_of_code(compiled: CompiledModel) -> None:
    plain = _compiled(diagnostics=clew.Diagnostics(trace=False))
    assert [k.object_code for k in plain.kernels] == [k.object_code for k in compiled.kernels]
    assert [k.llvm for k in plain.kernels] == [k.llvm for k in compiled.kernels]


_PRINT = """
import sys
sys.path.insert(0, {folder!r})
from test_kernel import _compiled
for kernel in _compiled().kernels:
    print(kernel.loops, kernel.llvm)
"""


def test_text_is_the_same_in_another_process(
    compiled: CompiledModel, request: pytest.FixtureRequest
) -> None:
    program = _PRINT.format(folder=str(request.path.parent))
    other = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert other.returncode == 0, other.stderr
    assert other.stdout == "".join(f"{k.loops} {k.llvm}\n" for k in compiled.kernels)


# ------------------------------------------------------------------------------------ single nests


def _emit(schedule: Schedule) -> str:
    nest = schedule.finished()
    return emit_kernel(nest, print_nest(nest), "kernel", host()).llvm


def _row_sums(m: int, n: int) -> Schedule:
    x = te.placeholder((m, n), "f32", "x")
    k = te.reduce_axis(n, "k")
    total = te.compute((m,), lambda i: te.sum(x[i, k], k), "total")
    out = te.compute((m, n), lambda i, j: x[i, j] / total[i], "out")
    return Schedule(lower("rows", [x], [out]))


def test_parallel_loops_one_after_another_are_entry_functions() -> None:
    schedule = _row_sums(6, 40)
    schedule.parallel("total.i")
    schedule.parallel("out.i")
    nest = schedule.finished()
    emitted = emit_kernel(nest, print_nest(nest), "rows", host())
    assert [e.symbol for e in emitted.entries] == ["rows.0", "rows.1", "rows.2"]
    assert [e.grid for e in emitted.entries] == [6, 6, 6]
    assert emitted.workspace_bytes == (24,)
    assert emitted.scratch_bytes == 0


def test_serial_neighbors_share_an_entry_function() -> None:
    schedule = _row_sums(6, 40)
    nest = schedule.finished()
    emitted = emit_kernel(nest, print_nest(nest), "rows", host())
    assert [(e.symbol, e.grid) for e in emitted.entries] == [("rows", 1)]


def test_scratch_is_laid_out_in_cache_lines() -> None:
    schedule = _row_sums(6, 40)
    schedule.compute_at("total", "out.i", "scratch")
    nest = schedule.finished()
    emitted = emit_kernel(nest, print_nest(nest), "rows", host())
    assert (emitted.scratch_bytes, emitted.workspace_bytes) == (64, ())


def test_register_tiles_are_carried_by_phi_nodes() -> None:
    schedule = _row_sums(6, 40)
    schedule.compute_at("total", "out.i", "register")
    text = _emit(schedule)
    assert "phi float" in text
    assert "alloca" not in text
    assert "%scratch," not in text.split("{", 1)[1]


def test_guards_of_unrolled_loops_leave_no_branch() -> None:
    x = te.placeholder((21,), "f32", "x")
    schedule = Schedule(lower("copy", [x], [te.compute((21,), lambda i: x[i] + 1.0, "out")]))
    outer, inner = schedule.split("out.i", 8, tail="guard")
    schedule.unroll(outer)
    schedule.vectorize(inner)
    text = _emit(schedule)
    assert "br i1" not in text
    assert text.count("load <8 x float>") == 2  # the third holds the mask of the five that are left
    assert text.count("call <8 x float> @llvm.masked.load") == 1


def test_debug_information_is_all_that_debug_adds() -> None:
    schedule = _row_sums(3, 8)
    nest = schedule.finished()
    printed = print_nest(nest)
    plain = emit_kernel(nest, printed, "kernel", host(), debug=False).llvm
    assert "!dbg" not in plain
    stripped = [
        line.split(", !dbg")[0].split(" !dbg")[0]
        for line in _emit(schedule).splitlines()
        if not line.startswith("!")
    ]
    assert [x.replace(" {", "") for x in stripped] == [
        x.replace(" {", "") for x in plain.splitlines() if not x.startswith("!")
    ]


def test_locations_are_kept_once_a_line() -> None:
    module = ModuleBuilder("kernel.loops", host().triple)
    module.begin_debug_scope("f")
    assert module.location(3) == module.location(3) != module.location(4)
