"""The work of putting programs together, counted."""

from __future__ import annotations

import numpy as np
import pytest

import clew
from clew.build.program_builder import ProgramBuilder
from clew.ir.expr import Expr, Function, If, Var
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.ops.registry import get_op


def nested_branches(depth: int) -> Module:
    """Returns a module of branches around branches, the innermost of which runs on the host."""

    def parameters() -> list[Var]:
        return [Var("c", TensorType((), "bool")), Var("x", TensorType((4,), "f32"))]

    params = parameters()
    places = get_op("cast")(get_op("nonzero")(params[1]), dtype="f32")
    body: Expr = get_op("add")(params[1], get_op("sum")(places, axes=(0, 1), keepdims=False))
    for _ in range(depth):
        then = Function(params, body)
        other = parameters()
        orelse = Function(other, get_op("nn.relu")(other[1]))
        params = parameters()
        body = If(params[0], then, orelse, params)
    return Module({"main": Function(params, body)})


def test_nested_branches_are_collected_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    count = [0]
    collect = ProgramBuilder.collect

    def counted(self: ProgramBuilder) -> list[int]:
        count[0] += 1
        return collect(self)

    def collected(depth: int) -> int:
        count[0] = 0
        compiled = clew.compile(nested_branches(depth))
        x = np.array([1, 0, 2, 3], np.float32)
        assert compiled(c=np.array(True), x=x).tolist() == (x + 5).tolist()
        return count[0]

    monkeypatch.setattr(ProgramBuilder, "collect", counted)
    assert collected(12) < 2.3 * collected(6)
