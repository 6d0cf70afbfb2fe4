"""Operators that passes created, and what explains them."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import clew
from clew.ir.expr import Call, Expr, Function, Tuple
from clew.ir.module import Module
from clew.ir.parser import parse_module
from clew.ops.registry import get_op
from clew.passes.base import PassContext

CONV = """
clew 1
def @main(
  %x: f32[1, 16, 8, 8],  // input x
  %w: f32[16, 16, 3, 3]  // input w
) -> (f32[1, 16, 6, 6],) with outputs=["y"] {
  %0 = nn.conv2d(%x, %w)  // conv:Conv#0
  %1 = nn.relu(%0)  // act:Relu#0
  %2 = (%1,)
  return %2
}
"""


def convolved() -> bytes:
    weight = np.random.default_rng(0).standard_normal((16, 16, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], name="conv", pads=[1] * 4),
            helper.make_node("Relu", ["c"], ["y"], name="act"),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    data: bytes = model.SerializeToString()
    return data


def test_conversions_are_created_for_their_layer() -> None:
    trace = clew.compile(convolved(), cache=False).trace
    found = trace.created()
    assert found[0].pass_name == "AlterLayout"
    assert "layout_transform" in {c.op for c in found}
    assert all(c.is_explained and set(c.layers) <= {"conv", "act"} for c in found)
    for c in found:  # each place is that of the operator
        assert c.op in trace.lines(c.ref.stage)[c.line - 1]
        assert f"{c.pass_name}, line {c.line}: {c.op}: " in str(c)


def test_operators_that_compute_an_old_value_are_not_created() -> None:
    trace = clew.compile(convolved(), cache=False).trace
    created = {c.op for c in trace.created()}
    assert not created & {"nn.conv2d", "nn.relu"}  # AlterLayout builds both again


def test_an_operator_for_no_layer() -> None:
    @clew.graph_pass(before="FuseOps")
    def beside(module: Module, ctx: PassContext) -> Module:
        main = module.main
        assert isinstance(main.body, Tuple)
        extra: Expr = get_op("exp")(main.params[0])
        total = get_op("sum")(extra, axes=(0, 1, 2, 3), keepdims=False)
        body = Tuple([get_op("add")(main.body.fields[0], total)])
        return module.with_functions({"main": Function(main.params, body, main.attrs)})

    trace = clew.compile(parse_module(CONV), extend=[beside], cache=False).trace
    alone = [c for c in trace.created() if not c.is_explained]
    assert [c.op for c in alone] == ["exp", "sum", "add"]
    assert all(c.pass_name == "beside" and str(c).endswith("for no layer") for c in alone)
    assert isinstance(trace.nodes(alone[0].ref.stage)[alone[0].ref.node], Call)
