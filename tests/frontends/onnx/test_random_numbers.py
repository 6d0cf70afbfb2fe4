"""Random numbers: seeds, distributions, and that no value of one is known at import."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from clew.frontends.onnx import load
from clew.ir.printer import print_module

from .one_node import compiled, fails, model, run


@pytest.mark.parametrize("op", ["RandomUniform", "RandomNormal"])
@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.BFLOAT16])
def test_a_seed_gives_the_same_numbers_on_any_threads(op, dtype):
    made = model(op, {}, shape=[200, 101], dtype=dtype, seed=3.0)
    one, two = compiled(made), compiled(made, threads=2)
    first = one.run({})["y0"]
    for again in (one.run({})["y0"], two.run({})["y0"]):
        np.testing.assert_array_equal(first, again)
    other = compiled(model(op, {}, shape=[200, 101], dtype=dtype, seed=4.0)).run({})["y0"]
    assert (first != other).mean() > 0.9
    wide = first.astype("f8")
    mean, spread = (0.5, 12**-0.5) if op == "RandomUniform" else (0.0, 1.0)
    assert abs(wide.mean() - mean) < 0.02
    assert abs(wide.std() - spread) < 0.02
    if op == "RandomUniform":
        assert wide.min() >= 0
        assert wide.max() < 1


def test_without_a_seed_each_run_draws_anew():
    made = compiled(model("RandomUniform", {}, shape=[50]))
    assert (made.run({})["y0"] != made.run({})["y0"]).any()
    nodes = [helper.make_node("RandomNormal", [], [n], shape=[50]) for n in "ab"]
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [50]) for n in "ab"]
    graph = helper.make_graph(nodes, "g", [], outputs)
    sets = [helper.make_opsetid("", 22)]
    both = compiled(helper.make_model(graph, opset_imports=sets, ir_version=10)).run({})
    assert (both["a"] != both["b"]).any()


def test_a_random_condition_is_not_settled_at_import():
    """What a host operator without inputs gives is never a known value."""
    nodes = [
        helper.make_node("RandomUniform", [], ["r"], shape=[1]),
        helper.make_node("Cast", ["r"], ["k"], to=TensorProto.INT64),
        helper.make_node("Expand", ["x", "k"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y])
    sets = [helper.make_opsetid("", 22)]
    module = load(helper.make_model(graph, opset_imports=sets, ir_version=10))
    assert "random_key" in print_module(module)


def test_bernoulli_and_multinomial_follow_their_probabilities():
    x = np.full((100, 100), 0.3, "f4")
    drawn = run("Bernoulli", {"x": x}, seed=1.0, dtype=TensorProto.INT32)[2][0]
    assert drawn.dtype == np.int32
    assert set(np.unique(drawn)) == {0, 1}
    assert abs(drawn.mean() - 0.3) < 0.02
    share = np.array([[0.1, 0.2, 0.7], [0.5, 0.5, 0.0]])
    with np.errstate(divide="ignore"):
        logs = np.log(share).astype("f4")
    drawn = run("Multinomial", {"x": logs}, seed=1.0, sample_size=20000)[2][0]
    for row, wanted in zip(drawn, share, strict=True):
        np.testing.assert_allclose(np.bincount(row, minlength=3) / 20000, wanted, atol=0.02)


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("RandomUniform", {"shape": [3, -1]}),
        ("RandomUniform", {"shape": [3], "dtype": TensorProto.INT32}),
    ],
)
def test_bad_random_numbers(op, attributes):
    fails("M012", op, {}, **attributes)


def test_random_numbers_that_no_machine_holds():
    fails("M006", "RandomNormal", {}, shape=[2**40, 2**20])
