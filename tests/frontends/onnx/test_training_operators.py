"""Optimizers and gradients."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from clew.support.errors import ClewError

from .one_node import agrees, compiled, draw, fails

TRAINING = "ai.onnx.preview.training"


@pytest.mark.parametrize("count", [0, 3])
@pytest.mark.parametrize(
    ("op", "carried", "attributes"),
    [
        ("Adagrad", 1, {"norm_coefficient": 0.1, "decay_factor": 0.2}),
        ("Adam", 2, {"norm_coefficient": 0.1, "norm_coefficient_post": 0.2}),
        ("Momentum", 1, {"mode": "standard"}),
        ("Momentum", 1, {"mode": "nesterov"}),
    ],
)
def test_optimizers(op, carried, attributes, count):
    if op == "Momentum":
        attributes = {"alpha": 0.9, "beta": 0.8, "norm_coefficient": 0.1, **attributes}
    inputs = {"rate": np.array(0.1, "f4"), "count": np.array(count)}
    for kind in range(carried + 2):
        inputs |= {f"t{kind}{n}": np.abs(draw(2, n + 1)) for n in range(2)}
    agrees(op, inputs, domain=TRAINING, count=2 * (carried + 1), **attributes)


def test_bad_optimizers():
    inputs = {"rate": np.array(0.1, "f4"), "count": np.array(1), "x": draw(2), "g": draw(2)}
    fails("M012", "Adagrad", inputs, domain=TRAINING)


def chain(nodes, sources, target, inputs):
    """Returns the gradients of a chain of layers by its inputs, and the target's value."""
    made = [helper.make_node(op, names.split(), [out], **more) for op, names, out, more in nodes]
    grads = [f"d{n}" for n in sources]
    made.append(helper.make_node("Gradient", sources, grads, domain=TRAINING, xs=sources, y=target))
    infos = [
        helper.make_tensor_value_info(n, TensorProto.DOUBLE, a.shape) for n, a in inputs.items()
    ]
    results = [helper.make_empty_tensor_value_info(n) for n in (*grads, target)]
    graph = helper.make_graph(made, "g", infos, results)
    sets = [helper.make_opsetid("", 17), helper.make_opsetid(TRAINING, 1)]
    return compiled(helper.make_model(graph, opset_imports=sets, ir_version=10))


@pytest.mark.parametrize(
    "nodes",
    [
        [("Mul", "a b", "c", {}), ("Add", "c a", "y", {})],
        [("Gemm", "a b", "c", {"transB": 1}), ("Tanh", "c", "y", {})],
        [("Sub", "a b", "c", {}), ("Div", "c b", "d", {}), ("Sigmoid", "d", "y", {})],
        [("Pow", "b a", "c", {}), ("ReduceMean", "c", "y", {"axes": [1], "keepdims": 0})],
        [("Max", "a b", "c", {}), ("Transpose", "c", "d", {}), ("MatMul", "d a", "y", {})],
        [("Exp", "a", "c", {}), ("Concat", "c b", "d", {"axis": 0}), ("Softmax", "d", "e", {}),
         ("Mul", "e d", "y", {})],
        [("Erf", "a", "c", {}), ("Sqrt", "b", "d", {}), ("Min", "c d", "e", {}),
         ("ReduceSum", "e", "y", {"keepdims": 0})],
    ],
)  # fmt: skip
def test_gradients_agree_with_differences(nodes):
    inputs = {"a": np.abs(draw(3, 4, dtype="f8")) + 0.1, "b": np.abs(draw(3, 4, dtype="f8")) + 0.2}
    made = chain(nodes, ["a", "b"], "y", inputs)
    found = made.run(inputs)
    for name in inputs:
        for place in ((0, 0), (2, 3), (1, 2)):
            sums = []
            for step in (1e-6, -1e-6):
                moved = {n: v.copy() for n, v in inputs.items()}
                moved[name][place] += step
                sums.append(made.run(moved)["y"].sum())
            slope = (sums[0] - sums[1]) / 2e-6
            np.testing.assert_allclose(found[f"d{name}"][place], slope, rtol=1e-5, atol=1e-7)


def test_gradients_that_are_refused():
    inputs = {"a": draw(3, 4, dtype="f8")}
    axis = ("Constant", "", "n", {"value_int": 0})
    summed = [axis, ("CumSum", "a n", "y", {})]
    with pytest.raises(ClewError, match="cumsum has no derivative rule"):
        chain(summed, ["a"], "y", inputs)
    with pytest.raises(ClewError, match="not a value before it"):
        chain([("Exp", "a", "y", {})], ["a"], "z", inputs)
