"""Defects planted below the graph: operators, schedules, machine code, memory, threads, host."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import nets
import pytest

import clew
from clew import te
from clew.bisection import Verdict
from clew.build.host_steps import HostStep
from clew.codegen import polynomials
from clew.ir.module import Module
from clew.loop.ir import For, single
from clew.loop.primitives import loops as loop_primitives
from clew.loop.primitives.common import PRIMITIVES, rewrite_loops
from clew.ops.registry import register_op
from clew.runtime import grid, memory
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
    monkeypatch.setattr(memory, "check_plan", lambda plan: None)
    monkeypatch.setattr("clew.runtime.segment.check_plan", lambda plan: None)
    verdict = found(nets.conv())
    check(verdict, "memory")


def test_a_piece_of_work_that_no_thread_does(monkeypatch: pytest.MonkeyPatch) -> None:
    right = grid._ranges

    def short(whole: tuple[int, int], most: int) -> list[tuple[int, int]]:
        return right(whole, most)[:-1] if most > 1 else right(whole, most)

    monkeypatch.setattr(grid, "_ranges", short)
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
        return (result[0] + 1, result[1]) if self.op.name == "top_k" else result

    monkeypatch.setattr(HostStep, "__call__", wrong)
    body = """  %0 = exp(%x)  // first:Exp#0
  %1: (f32[4, 3], i64[4, 3]) = top_k(%0, k=3)  // best:TopK
  %2: f32[4, 3] = %1[0]  // best:TopK#0
  %3 = sigmoid(%2)  // last:Sigmoid#0
  %4 = (%3,)
  return %4"""
    module = nets.parsed(text(body, "f32[4, 3]"), {})
    verdict = found((module, {"x": nets.array(4, 6)}))
    check(verdict, "host", "best", most=1)
