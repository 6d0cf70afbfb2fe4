"""Linear algebra, reductions and arithmetic."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import clew

from .one_node import agrees, draw, fails, run


@pytest.mark.parametrize("shape", [(3, 3), (2, 3, 4, 4), (0, 2, 2), (2, 0, 0), (2, 40, 40)])
def test_det(shape):
    agrees("Det", {"x": draw(*shape, dtype="f8")}, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ii", [(3, 3)]),
        ("iij->ji", [(3, 3, 4)]),
        ("...ii->...i", [(2, 3, 3)]),
        ("iijj->ij", [(2, 2, 3, 3)]),
        ("iii->i", [(3, 3, 3)]),
        (",->", [(), ()]),
        ("ij,kj->", [(3, 4), (2, 4)]),
        ("ij,ij->i", [(2, 1), (2, 4)]),
        ("ij,jk->ik", [(2, 3), (1, 4)]),
        ("...ij,...jk->...ik", [(2, 1, 2, 3), (5, 3, 4)]),
        ("ij,jk->ik", [(2, 0), (0, 4)]),
        ("Ba", [(2, 3)]),
    ],
)
def test_einsum(equation, shapes):
    inputs = {f"x{n}": draw(*shape) for n, shape in enumerate(shapes)}
    if equation == "ij,jk->ik" and shapes[1][0] == 1:  # numpy has no such broadcast
        agrees("Einsum", inputs, opset=12, equation=equation, by="onnxruntime")
    else:
        agrees("Einsum", inputs, opset=12, equation=equation)


@pytest.mark.parametrize("dtype", ["u1", "i1", "i2", "i8", "f8"])
def test_einsum_keeps_the_element_type(dtype):
    inputs = {"a": np.full((2, 3), 9, dtype), "b": np.full((3, 2), 11, dtype)}
    agrees("Einsum", inputs, opset=12, equation="ij,jk->ik")


@pytest.mark.parametrize(
    "equation", ["ij->ik", "i.j->i", "ij->ii", "i1->i", "ii", "ij->->i", "......", "i" * 2000, ""]
)
def test_bad_equations(equation):
    fails("M012", "Einsum", {"x": draw(2, 3)}, opset=12, equation=equation)


@pytest.mark.parametrize("op", ["ReduceL2", "ReduceLogSum", "ReduceLogSumExp"])
def test_reductions_of_integers_that_need_floats(op):
    x = np.arange(1, 13, dtype="i4").reshape(3, 4)
    _, _, (found,) = run(op, {"x": x, "axes": np.array([1])}, opset=18, known=("axes",))
    exact = {
        "ReduceL2": np.sqrt((x.astype("f8") ** 2).sum(1)),
        "ReduceLogSum": np.log(x.sum(1)),
        "ReduceLogSumExp": np.log(np.exp(x.astype("f8")).sum(1)),
    }[op]
    np.testing.assert_array_equal(found[:, 0], exact.astype("i4"))


def test_axes_that_only_a_run_tells():
    x = draw(3, 4)
    for axes in ([1], [-2], [0, 1]):
        agrees("ReduceSum", {"x": x, "axes": np.array(axes)}, opset=18)
        agrees("ReduceMax", {"x": x, "axes": np.array(axes)}, opset=18, keepdims=0)
    agrees("ReduceSum", {"x": x, "axes": np.zeros(0, "i8")}, opset=18)
    agrees("ReduceL1", {"x": x, "axes": np.zeros(0, "i8")}, opset=18, noop_with_empty_axes=1)
    agrees("CumSum", {"x": x, "axis": np.array(-1)})


def test_integer_powers_of_floats_are_exact_to_f64():
    base, exponent = np.array([2147483, 3, -7], "i4"), np.array([1.0, 2.0, 3.0], "f4")
    agrees("Pow", {"a": base, "b": exponent}, opset=15)


@pytest.mark.parametrize(
    ("op", "constant", "first"),
    [
        ("Add", 0.0, False),
        ("Add", 0.0, True),
        ("Add", -0.0, False),
        ("Sub", 0.0, False),
        ("Sub", 0.0, True),
        ("Sub", -0.0, False),
        ("Mul", 1.0, False),
        ("Div", 1.0, False),
        ("Pow", 0.5, False),
        ("Pow", -0.5, False),
        ("Pow", 2.0, False),
        ("Pow", -1.0, False),
    ],
)
def test_signs_of_zeros_with_constants(op, constant, first):
    """Whatever is an identity, or a simpler form, of other numbers."""
    names = ["c", "x"] if first else ["x", "c"]
    graph = helper.make_graph(
        [helper.make_node(op, names, ["t"]), helper.make_node("Reciprocal", ["t"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [5])],
        [numpy_helper.from_array(np.float32(constant), "c")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    x = np.array([-0.0, 0.0, -np.inf, np.inf, 4], np.float32)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, {"x": x})
    found = clew.compile(model, threads=1, cache=False).run({"x": x})["y"]
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(wanted))


@pytest.mark.parametrize("op", ["Sum", "Mean"])
def test_half_sums_of_inputs_round_once(op):
    inputs = {
        "a": np.array([60000, 1, 1024, -0.0], "f2"),
        "b": np.array([60000, 1, 0.5, -0.0], "f2"),
        "c": np.array([-60000, 1, 0.5, -0.0], "f2"),
    }
    _, _, (found,) = run(op, inputs)
    wide = sum(x.astype("f8") for x in inputs.values())
    np.testing.assert_array_equal(found, (wide / (3 if op == "Mean" else 1)).astype("f2"))
    assert np.signbit(found[3])
