"""The pairs of outputs and inputs that are a model's state: by name, and by what users give."""

from __future__ import annotations

from typing import Any

import pytest
from onnx import TensorProto, helper
from session_models import compiled, elementwise, failing, floats, model

import clew

NAMES = {
    "past": "present",
    "past_k": "present_k",
    "past.3.key": "present.3.key",
    "past_key_values.0.decoder.key": "present.0.decoder.key",
    "state_in": "state_out",
    "h0": "hn",
    "c_0": "c_n",
    "h": "hn",
    "state": "stateN",
    "initial_h": "Y_h",
    "prev_mem": "next_mem",
    "cache_last_time": "cache_last_time_next",
    "mem": "new_mem",
}


@pytest.mark.parametrize("name", NAMES)
def test_conventional_names_are_pairs(name: str) -> None:
    shape: list[int | str] = [2]
    graph = elementwise({"x": shape, name: shape}, {"y": ("Neg", "x"), NAMES[name]: ("Abs", name)})
    session = clew.compile(graph, threads=1).session()
    assert repr(session).endswith(f"state: {name} <- {NAMES[name]}>")


def test_several_states_are_in_the_models_order() -> None:
    graph = elementwise({"c0": [2], "h0": [2]}, {"hn": ("Neg", "h0"), "cn": ("Abs", "c0")})
    assert clew.compile(graph, threads=1).session().state_names == ("c0", "h0")


def test_names_without_a_convention_are_refused() -> None:
    graph = elementwise({"x": [2], "m": [2], "s": [3]}, {"y": ("Neg", "x"), "z": ("Neg", "s")})
    text = failing("I370", clew.compile(graph, threads=1).session)
    assert "the model names no state that clew recognizes" in text
    assert "hint: name the state: state={input: output}; types allow x <- y, m <- y, s <- z" in text


def test_types_decide_whether_names_are_a_pair() -> None:
    graph = elementwise({"h": [2], "x": [3]}, {"hn": ("Neg", "x")})
    text = failing("I370", clew.compile(graph, threads=1).session)
    assert "types allow x <- hn" in text
    graph = elementwise({"h": [2], "x": [3]}, {"y": ("Size", "x")})
    graph.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    del graph.graph.output[0].type.tensor_type.shape.dim[:]
    text = failing("I370", clew.compile(graph, threads=1).session)
    assert "no output has the type of an input" in text


def test_ambiguous_names_are_refused() -> None:
    graph = elementwise({"h": [2]}, {"hn": ("Neg", "h"), "h_next": ("Abs", "h")})
    one = clew.compile(graph, threads=1)
    assert "the model's names allow several states: h <- hn, h <- h_next" in failing(
        "I370", one.session
    )
    assert one.session({"h": "hn"}).output_names == ("h_next",)


@pytest.mark.parametrize(
    ("state", "message", "hint"),
    [
        ({"hh": "hn"}, "the input 'hh', which the model does not have", "did you mean h?"),
        ({"h": "hm"}, "the output 'hm', which the model does not have", "outputs are y, hn"),
        ({"hn": "h"}, "the input 'hn'", "state maps inputs to outputs: state={'h': 'hn'}"),
        (["h"], "state is a list, expected a mapping", "state={input: output}"),
    ],
)
def test_names_of_the_state_must_be_those_of_the_model(state: Any, message: str, hint: str) -> None:
    text = failing("I371", lambda: compiled("cell").session(state))
    assert message in text
    assert hint in text


def test_types_of_a_pair_must_agree() -> None:
    text = failing("I372", lambda: compiled("cell").session({"h": "y"}))
    assert (
        "output 'y' (float32[2, 2]) cannot be the next value of input 'h' (float32[2, 4])" in text
    )


def test_a_state_is_a_tensor() -> None:
    text_in = helper.make_tensor_sequence_value_info("list_in", TensorProto.FLOAT, [2])
    text_out = helper.make_tensor_sequence_value_info("list_out", TensorProto.FLOAT, [2])
    node = helper.make_node("SequenceInsert", ["list_in", "x"], ["list_out"])
    one = clew.compile(model([node], [text_in, floats("x", [2])], [text_out], []), threads=1)
    assert one.outputs[0].shown_type == "no tensor"
    failing("I370", one.session)
    text = failing("I372", lambda: one.session({"list_in": "list_out"}))
    assert "output 'list_out' (no tensor) cannot be the next value" in text
    assert "hint: state={input: output} needs tensors of the same dtype and shape" in text
