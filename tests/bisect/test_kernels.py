"""Defects planted below the graph: operators, schedules, machine code, memory, threads, host."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import nets
import numpy as np
import pytest

import clew
import zoo
from clew import te
from clew.backends.cpu import kernel_stages, lowering
from clew.backends.host.steps import HostStep
from clew.bisection import Verdict
from clew.bisection.checks import BuildCheck
from clew.bisection.inside import racing_step
from clew.bisection.kernels import alone
from clew.codegen.math import polynomials
from clew.ir.expr import Function
from clew.ir.module import Module
from clew.loop.ir import For, single
from clew.loop.primitives import common
from clew.loop.primitives import loops as loop_primitives
from clew.loop.primitives.common import PRIMITIVES, rewrite_loops
from clew.ops.registry import register_op
from clew.runtime import division, memory
from clew.runtime.cache import Cache
from clew.te.tensor import Tensor


def check(verdict: Verdict, kind: str, *layers: str, most: int = 5) -> None:
    assert verdict.kind == kind, f"{verdict}\n{verdict.evidence}"
    assert set(layers) <= set(verdict.layers), str(verdict)
    assert verdict.reduced is not None, f"{verdict}\n{verdict.evidence}"
    assert verdict.reduced.operators <= most, str(verdict.reduced.module)
    assert verdict.reduced.fails()


def found(case: tuple[Module, dict[str, Any]], **options: Any) -> Verdict:
    return clew.bisect(*case, **{"threads": 1, "cache": False, **options})


@register_op("test_bisect.soft_step")
def soft_step(x: Tensor) -> Tensor:
    """Its tensor form is not its reference."""
    return te.compute(x.shape, lambda *i: x[i] / (x[i] + 1.25), "soft")


@soft_step.reference
def _(x: Any) -> Any:
    return x / (x + 1)


def text(body: str, result: str, inputs: str = "%x: f32[4, 6]  // input x") -> str:
    return f'\nclew 1\ndef @main({inputs}\n) -> ({result},) with outputs=["y"] {{\n{body}\n}}\n'


def test_an_operator_whose_compute_is_not_its_reference() -> None:
    body = """  %0 = sigmoid(%x)  // first:Sigmoid#0
  %1 = test_bisect.soft_step(%0)  // step:SoftStep#0
  %2 = exp(%1)  // last:Exp#0
  %3 = (%2,)
  return %3"""
    module = nets.parsed(text(body, "f32[4, 6]"), {})
    verdict = found((module, {"x": nets.array(4, 6)}))
    check(verdict, "compute", "step", most=1)
    assert verdict.ops == ("test_bisect.soft_step",)


def test_a_schedule_step_that_drops_the_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_tail(
        nest: Any, simplifier: Any, *, loop: str, factor: int, tail: str = "peel"
    ) -> Any:
        def rewrite(at: For) -> Any:
            whole = max(1, at.extent // factor)
            piece = loop_primitives._piece(at, 0, whole, min(factor, at.extent), simplifier)
            return single([piece])

        return rewrite_loops(nest, loop, rewrite)

    monkeypatch.setitem(PRIMITIVES, "split", without_tail)
    verdict = found(nets.mlp())
    check(verdict, "schedule", most=1)
    assert verdict.step.startswith("split(loop=")
    assert verdict.kernel


def test_a_polynomial_that_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    off = tuple(c * 1.3 for c in polynomials.TANH_F32)
    monkeypatch.setattr(polynomials, "TANH_F32", off)
    verdict = found(nets.mlp())
    check(verdict, "codegen", "act", most=1)
    assert "tanh" in verdict.reduced.module.__str__()  # type: ignore[union-attr]


def test_buffers_that_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    right = memory.plan_arena

    def overlapping(lifetimes: Any) -> Any:
        short = [replace(x, last_step=x.first_step) for x in lifetimes]
        return right(short)

    monkeypatch.setattr(memory, "plan_arena", overlapping)
    monkeypatch.setattr(memory, "check_plan", lambda plan, **options: None)
    monkeypatch.setattr("clew.runtime.segment.check_plan", lambda plan, **options: None)
    verdict = found(nets.conv())
    check(verdict, "memory")


def test_a_piece_of_work_that_no_thread_does(monkeypatch: pytest.MonkeyPatch) -> None:
    right = division._evenly

    def short(count: Any, most: Any, exact: Any = False) -> tuple[np.ndarray, np.ndarray]:
        size, parts = right(count, most, exact)
        return size, parts - (most > 1)

    monkeypatch.setattr(division, "_evenly", short)
    body = """  %0 = nn.matmul(%x, @w)  // mm:MatMul#0
  %1 = nn.relu(%0)  // act:Relu#0
  %2 = (%1,)
  return %2"""
    module = nets.parsed(
        text(body, "f32[256, 256]", "%x: f32[256, 128]  // input x"), {"w": nets.array(128, 256)}
    )
    verdict = found((module, {"x": nets.array(256, 128)}), threads=2, seconds=4.0)
    check(verdict, "threads", "mm", most=2)


def test_a_host_step_that_is_not_its_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    right = HostStep.__call__

    def wrong(self: HostStep, *arrays: Any) -> Any:
        result = right(self, *arrays)
        return result + 1 if self.op.name == "inverse" else result

    monkeypatch.setattr(HostStep, "__call__", wrong)
    body = """  %0 = exp(%x)  // first:Exp#0
  %1: f32[4, 6, 6] = inverse(%0)  // turned:Inverse#0
  %2 = sigmoid(%1)  // last:Sigmoid#0
  %3 = (%2,)
  return %3"""
    module = nets.parsed(text(body, "f32[4, 6, 6]", "%x: f32[4, 6, 6]  // input x"), {})
    verdict = found((module, {"x": nets.array(4, 6, 6)}))
    check(verdict, "host", "turned", most=1)


def test_memory_that_is_taken_over_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    right = lowering.in_place_pairs

    def wrong(nest: Any) -> Any:
        return right(nest) if "softmax" in nest.name else ((0, 0),)

    monkeypatch.setattr(lowering, "in_place_pairs", wrong)
    body = """  %0 = nn.softmax(%x, axis=1)  // rows:Softmax#0
  %1 = nn.matmul(%0, @w)  // mix:MatMul#0
  %2 = nn.softmax(%1, axis=1)  // last:Softmax#0
  %3 = (%2,)
  return %3"""
    module = nets.parsed(
        text(body, "f32[64, 64]", "%x: f32[64, 64]  // input x"), {"w": nets.array(64, 64)}
    )
    verdict = found(
        (module, {"x": nets.array(64, 64)}), passes=clew.Passes(disabled=["SplitProducts"])
    )
    check(verdict, "memory", "mix")
    assert "alone is right" in verdict.evidence[-1]


def test_operands_the_wrong_way_round(monkeypatch: pytest.MonkeyPatch) -> None:
    right = kernel_stages._compute

    def swapped(op: Any, node: Any, args: list[Tensor], way: int) -> Any:
        return right(op, node, args[::-1] if op.name == "subtract" else args, way)

    monkeypatch.setattr(kernel_stages, "_compute", swapped)
    body = """  %0 = exp(%x)  // first:Exp#0
  %1 = subtract(%0, %x)  // minus:Sub#0
  %2 = nn.relu(%1)  // last:Relu#0
  %3 = (%2,)
  return %3"""
    module = nets.parsed(text(body, "f32[4, 6]"), {})
    verdict = found((module, {"x": nets.array(4, 6)}))
    check(verdict, "compute", "minus", most=1)


def test_a_loop_that_threads_must_not_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "carries_dependence", lambda loop: None)

    @clew.schedule_for(op="sum")
    def racing(schedule: Any, target: Any) -> None:
        schedule.reorder("sum.k", "sum.i0", "sum.i1")
        schedule.vectorize("sum.i1")
        schedule.parallel("sum.k")

    body = """  %0 = abs(%x)  // first:Abs#0
  %1 = sum(%0, axes=[0])  // total:ReduceSum#0
  %2 = (%1,)
  return %2"""
    module = nets.parsed(text(body, "f32[1, 48]", "%x: f32[20000, 48]  // input x"), {})
    compiled = clew.compile(module, threads=2, cache=False, extend=[racing])
    (kernel,) = compiled.kernels
    inputs = {"x": nets.array(20000, 48)}
    function = compiled.build.uses[0].call.op
    case = alone(function, [inputs["x"]], np.zeros((1, 48), np.float32))  # type: ignore[arg-type]
    check_ = BuildCheck(1e-4, compiled.options)
    step, problem = racing_step(case, check_, lambda said: None)
    assert step == "parallel(loop='sum.k')", kernel.loops
    assert "written elsewhere" in problem or "again" in problem


def test_a_kernel_in_a_loop_and_one_in_a_branch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polynomials, "EXP_F32", tuple(c * 1.5 for c in polynomials.EXP_F32))
    for model, layer in (("loop_recurrence", "body/tanh"), ("if_branches", "else/tanh")):
        verdict = clew.bisect(
            zoo.path(model), zoo.inputs(model), reference="onnxruntime", threads=1, cache=False
        )
        check(verdict, "codegen", layer, most=1)


def test_a_kernel_that_was_kept_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for user in ("clew.compiling.compile", "clew.bisection.session"):
        monkeypatch.setattr(f"{user}.default_cache", lambda: Cache(tmp_path))
    module, inputs = nets.mlp()
    with monkeypatch.context() as plant:
        plant.setattr(polynomials, "TANH_F32", tuple(c * 1.3 for c in polynomials.TANH_F32))
        clew.compile(module, threads=1)
    verdict = clew.bisect(module, inputs, threads=1)
    assert verdict.kind == "codegen", str(verdict)
    assert "clew cache clear" in verdict.summary


def test_a_reference_that_is_wrong_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    right = lowering.to_stages

    def wrong(function: Function, way: int) -> Any:
        if lowering.name_of(function) == "tanh":  # at higher levels it is fused
            body = clew.get_op("sigmoid")(function.params[0])
            function = Function(function.params, body, function.attrs)
        return right(function, way)

    monkeypatch.setattr(lowering, "to_stages", wrong)
    verdict = found(nets.mlp(), reference="opt0")
    check(verdict, "compute", "act", most=1)
    assert verdict.summary.startswith("level 0, which this is compared with, is wrong itself")
