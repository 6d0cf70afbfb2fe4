"""Defects in models of free sizes, whose kernels take sizes as arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nets
import numpy as np
import pytest

import clew
import zoo
from clew import te
from clew.bisection import Verdict
from clew.bisection.cases import Case
from clew.bisection.kernels import alone
from clew.codegen.math import polynomials
from clew.ir.module import Module
from clew.loop.ir import For
from clew.loop.primitives import loops as loop_primitives
from clew.ops.registry import register_op
from clew.te.tensor import Tensor

ROWS = """
clew 1
def @main(%x: f32[batch, seq, 6]  // input x
) -> (f32[batch, seq, 6],) with outputs=["y"] {
  %0 = reshape(%x, shape=[dim[batch*seq], 6])  // flat:Reshape#0
  %1 = nn.matmul(%0, @w)  // mm:MatMul#0
  %2 = tanh(%1)  // act:Tanh#0
  %3 = reshape(%2, shape=[dim[batch], dim[seq], 6])  // back:Reshape#0
  %4 = (%3,)
  return %4
}
"""


def rows() -> tuple[Module, dict[str, Any]]:
    return nets.parsed(ROWS, {"w": nets.array(6, 6)}), {"x": nets.array(3, 7, 6)}


def found(case: tuple[Module, dict[str, Any]], **options: Any) -> Verdict:
    verdict = clew.bisect(*case, **{"threads": 1, "cache": False, **options})
    if verdict.reduced is not None:
        assert verdict.reduced.fails()
    return verdict


def test_a_right_model_is_right() -> None:
    assert found(rows()).kind == "none"
    module = clew.load(zoo.path("bert_tiny_dynamic"))
    inputs = zoo.inputs("bert_tiny_dynamic", batch=2, sequence=5)
    assert found((module, inputs)).kind == "none"


def test_a_polynomial_that_is_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    off = tuple(c * 1.3 for c in polynomials.TANH_F32)
    monkeypatch.setattr(polynomials, "TANH_F32", off)
    verdict = found(rows())
    assert verdict.kind == "codegen", f"{verdict}\n{verdict.evidence}"
    assert "act" in verdict.layers
    assert verdict.reduced is not None
    assert verdict.reduced.operators == 1


def test_an_operator_whose_compute_is_not_its_reference() -> None:
    @register_op("test_bisect.free_step")
    def free_step(x: Tensor) -> Tensor:
        """Its tensor form is not its reference."""
        return te.compute(x.shape, lambda *i: x[i] / (x[i] + 1.25), "soft")

    @free_step.reference
    def _(x: Any) -> Any:
        return x / (x + 1)

    module = nets.parsed(ROWS.replace("tanh", "test_bisect.free_step"), {"w": nets.array(6, 6)})
    verdict = found((module, {"x": np.abs(nets.array(3, 7, 6))}))
    assert verdict.kind == "compute", f"{verdict}\n{verdict.evidence}"
    assert verdict.ops == ("test_bisect.free_step",)


def test_a_split_that_is_wrong_only_for_sizes_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels of fixed sizes are right: the defect shows in the build for all sizes alone."""
    right = loop_primitives._split_size

    def short(loop: For, factor: int, tail: str, simplifier: Any) -> Any:
        made = right(loop, factor, tail, simplifier)
        if isinstance(loop.size, int):
            return made
        return made[:1]  # without the tiles of the rest

    monkeypatch.setattr(loop_primitives, "_split_size", short)
    verdict = found((rows()[0], {"x": nets.array(1, 3, 6)}))  # less than a tile
    assert verdict.kind == "schedule", f"{verdict}\n{verdict.evidence}"
    assert verdict.step.startswith("split(loop=")
    assert verdict.reduced is not None
    (main,) = [f for _, f in verdict.reduced.module]
    assert any("seq" in str(p.type) or "batch" in str(p.type) for p in main.params)


def test_a_kernel_alone_gets_the_sizes_that_none_of_its_operands_has() -> None:
    compiled = clew.compile(rows()[0], threads=1, cache=False)
    compiled(rows()[1]["x"])
    use = next(u for u in compiled.build.uses if "tanh" in u.ops)
    operands = [np.zeros(compiled.build.type_at(a.type).concrete) for a in use.call.args]  # type: ignore[union-attr]
    x = np.zeros((21, 6))
    case = alone(use.call.op, operands, x, compiled.build.sizes)  # type: ignore[arg-type]
    assert isinstance(case, Case)
    assert case.sizes == {"batch": 3, "seq": 7}
