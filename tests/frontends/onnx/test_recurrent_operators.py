"""Recurrent nets and scans."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import clew
from clew.ir.interpret import interpret
from clew.support.errors import ClewError

from .one_node import agrees, draw, fails, run

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def recurrent(op, directions=1, lengths=None, peepholes=False, layout=0, dtype="f4"):
    seq, batch, wide, hidden, gates = 4, 3, 4, 5, GATES[op]
    first = draw(directions, batch, hidden, dtype=dtype)
    inputs = {
        "x": draw(seq, batch, wide, dtype=dtype),
        "w": draw(directions, gates * hidden, wide, dtype=dtype),
        "r": draw(directions, gates * hidden, hidden, dtype=dtype),
        "b": draw(directions, 2 * gates * hidden, dtype=dtype),
        "n": None if lengths is None else np.array(lengths, "i4"),
        "h": first,
    }
    if op == "LSTM":
        inputs["c"] = draw(directions, batch, hidden, dtype=dtype)
    if peepholes:
        inputs["p"] = draw(directions, 3 * hidden, dtype=dtype)
    if layout:
        inputs = {n: a.swapaxes(0, 1).copy() if n in "xhc" else a for n, a in inputs.items()}
    return inputs


def options(op, directions=1, **attributes):
    named = {1: "forward", 2: "bidirectional"}[directions]
    return {"count": 3 if op == "LSTM" else 2, "hidden_size": 5, "direction": named} | attributes


@pytest.mark.parametrize("op", GATES)
def test_sequences_of_unequal_length(op):
    for direction, count in (("forward", 1), ("reverse", 1), ("bidirectional", 2)):
        inputs = recurrent(op, count, lengths=[4, 1, 3])
        agrees(op, inputs, by="onnxruntime", **options(op, count, direction=direction))
    agrees(op, recurrent(op, lengths=[4, 0, 3]), by="onnxruntime", **options(op))


@pytest.mark.parametrize("op", GATES)
def test_recurrent_batch_first(op):
    agrees(op, recurrent(op, 2, layout=1), **options(op, 2, layout=1))


@pytest.mark.parametrize("op", GATES)
def test_states_of_narrow_floats_are_not_rounded_between_steps(op):
    """As in ONNX Runtime, which computes these operators in f32."""
    inputs = recurrent(op, lengths=[4, 1, 3], peepholes=op == "LSTM", dtype="f2")
    agrees(op, inputs, by="onnxruntime", rtol=2**-10, atol=0, **options(op))


@pytest.mark.parametrize("op", ["GRU", "RNN"])
def test_recurrent_clip(op):
    agrees(op, recurrent(op), by="onnxruntime", **options(op, clip=0.3))


def test_peepholes_and_coupled_gates():
    agrees("LSTM", recurrent("LSTM", peepholes=True), **options("LSTM"))
    inputs = recurrent("LSTM", 2, lengths=[2, 4, 1], peepholes=True)
    agrees("LSTM", inputs, by="onnxruntime", **options("LSTM", 2))
    inputs = recurrent("LSTM", peepholes=True)
    agrees("LSTM", inputs, by="onnxruntime", **options("LSTM", input_forget=1))


def test_activations_take_their_parameters_in_order():
    chosen = {
        "activations": ["HardSigmoid", "ScaledTanh", "Affine"],
        "activation_alpha": [0.3, 0.7, 0.9],
        "activation_beta": [0.4, 0.6, 0.1],
    }
    agrees("LSTM", recurrent("LSTM"), by="onnxruntime", **options("LSTM", **chosen))
    chosen = {"activations": ["LeakyRelu", "Elu"], "activation_alpha": [0.3, 0.5]}
    agrees("RNN", recurrent("RNN", 2), by="onnxruntime", **options("RNN", 2, **chosen))
    for name in ("Softsign", "Softplus", "Relu"):
        chosen = options("RNN", activations=[name])
        agrees("RNN", recurrent("RNN"), by="onnxruntime", **chosen)


@pytest.mark.parametrize(
    "attributes",
    [{"activations": ["Foo"]}, {"direction": "up"}, {"direction": "bidirectional"}, {"clip": -1.0}],
)
def test_bad_recurrent_attributes(attributes):
    fails("M012", "RNN", recurrent("RNN"), **options("RNN", **attributes))


def body():
    def info(name):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])

    nodes = [helper.make_node("Add", ["s", "n"], ["t"]), helper.make_node("Mul", ["t", "n"], ["o"])]
    return helper.make_graph(nodes, "b", [info("s"), info("n")], [info("t"), info("o")])


@pytest.mark.parametrize(
    "attributes",
    [
        {"scan_input_directions": [1]},
        {"scan_output_directions": [1]},
        {"scan_output_axes": [-1], "scan_output_directions": [1], "scan_input_directions": [1]},
        {"scan_input_axes": [-1]},
    ],
)
def test_scan_along_axes_and_from_the_end(attributes):
    x = draw(2, 3) if "scan_input_axes" in attributes else draw(3, 2)
    more = {"count": 2, "opset": 16, "body": body(), "num_scan_inputs": 1, **attributes}
    agrees("Scan", {"s": draw(2), "x": x}, by="onnxruntime", **more)


def test_scan_of_a_batch():
    more = {"opset": 8, "body": body(), "num_scan_inputs": 1}
    inputs = {"n": None, "s": draw(2, 2), "x": draw(2, 4, 2)}
    agrees("Scan", inputs, by="onnxruntime", count=2, directions=[1], **more)
    inputs["n"] = np.array([4, 2])
    found = run("Scan", inputs, **more)[2][0]
    wanted = [inputs["s"][b] + inputs["x"][b, : inputs["n"][b]].sum(0) for b in range(2)]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.parametrize(
    "attributes",
    [
        {"scan_input_axes": [5]},
        {"scan_output_axes": [5]},
        {"scan_input_directions": [1, 1]},
        {"scan_input_directions": [3]},
        {"num_scan_inputs": 9},
        {"num_scan_inputs": 0},
    ],
)
def test_bad_scans(attributes):
    more = {"count": 2, "opset": 16, "body": body(), "num_scan_inputs": 1, **attributes}
    fails("M012", "Scan", {"s": draw(2), "x": draw(3, 2)}, **more)


@pytest.mark.parametrize("op", GATES)
def test_states_have_the_size_of_the_batch_whatever_its_name_is(op):
    """A state of another size, `h_1`, kept the loop on the host: 1.3 ms instead of 0.03 ms."""
    inputs = {n: a for n, a in recurrent(op).items() if a is not None}
    free = {"x": [None, None, 4], "h": [1, None, 5], "c": [1, None, 5]}
    outputs = ["y", "yh", "yc"][: 3 if op == "LSTM" else 2]
    names = [n if n in inputs else "" for n in "xwrbnhc"]
    node = helper.make_node(op, names[: 7 if op == "LSTM" else 6], outputs, hidden_size=5)
    given = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, free[n]) for n in inputs if n in free
    ]
    made = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
    weights = [numpy_helper.from_array(a, n) for n, a in inputs.items() if n not in free]
    model = helper.make_model(helper.make_graph([node], "g", given, made, weights))
    module = clew.load(model)
    assert "?" not in str(module)
    feeds = {n: inputs[n] for n in inputs if n in free}
    assert interpret(module, feeds)["yh"].shape == (1, 3, 5)
    with pytest.raises(ClewError) as raised:
        interpret(module, {**feeds, "h": inputs["h"][:, :2]})
    assert raised.value.code == "T108"
