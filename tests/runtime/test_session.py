"""Sessions give what the model gives when its state is passed by hand."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from session_models import (
    HEAD,
    HEADS,
    KEY,
    VALUE,
    WIDTH,
    Array,
    cell,
    compiled,
    decoder,
    elementwise,
    failing,
    floats,
    growing,
    loaded,
    model,
    passing,
    random,
    weight,
)

import clew
from clew.runtime.container import read_container, write_container
from clew.support.errors import ClewError

# --- what sessions compute ---


def decode_by_hand(steps: list[Array]) -> list[Array]:
    key = value = np.zeros((steps[0].shape[0], HEADS, 0, HEAD), np.float32)
    found = []
    for x in steps:
        logits, key, value = compiled("decoder")(x, key, value)
        found.append(logits)
    return found


STEPS = [random(1, 3, WIDTH), random(1, 1, WIDTH, seed=1), random(1, 1, WIDTH, seed=2)]


@pytest.mark.parametrize("which", ["compiled", "loaded"])
def test_a_cache_grows_from_call_to_call(which: str, tmp_path: Path) -> None:
    wanted = decode_by_hand(STEPS)
    one = compiled("decoder")
    session = (
        one.session()
        if which == "compiled"
        else loaded("decoder", tmp_path, *((x,) for x in STEPS)).session()
    )
    assert session.input_names == ("x",)
    assert session.output_names == ("logits",)
    assert session.state_names == (KEY, VALUE)
    assert dict(session.state) == {}  # the first call determines the batch
    for number, (x, logits) in enumerate(zip(STEPS, wanted, strict=True)):
        np.testing.assert_array_equal(session(x), logits, strict=True)
        assert session.state[KEY].shape == (1, HEADS, 3 + number, HEAD)
    # The same positions at once, computed by the model without a cache.
    empty = np.zeros((1, HEADS, 0, HEAD), np.float32)
    whole = one(np.concatenate(STEPS, axis=1), empty, empty)
    np.testing.assert_allclose(session.state[KEY], whole[1], rtol=1e-6)
    np.testing.assert_allclose(session.state[VALUE], whole[2], rtol=1e-6)


def test_a_named_size_of_the_state_is_that_of_the_first_call() -> None:
    session = compiled("decoder").session()
    two = random(2, 1, WIDTH)
    (wanted,) = decode_by_hand([two])
    np.testing.assert_array_equal(session(two), wanted, strict=True)
    session.reset()
    session(STEPS[1])  # another batch after a reset
    assert session.state[KEY].shape == (1, HEADS, 1, HEAD)


@pytest.mark.parametrize("name", ["cell", "cells"])
def test_a_hidden_state_of_a_recurrent_cell(name: str) -> None:
    one = compiled(name)
    session = one.session()
    hidden = np.zeros((2, 4), np.float32)
    for number in range(4):
        x = random(2, 3, seed=number)
        y, hidden = one(x, hidden)
        np.testing.assert_array_equal(session(x), y, strict=True)
        np.testing.assert_array_equal(session.state["h"], hidden, strict=True)


@pytest.mark.parametrize("which", ["compiled", "loaded"])
def test_a_stream_in_blocks_is_the_stream_at_once(which: str, tmp_path: Path) -> None:
    samples = random(1, 1, 16)
    session = compiled("stream").session()
    if which == "loaded":
        session = loaded("stream", tmp_path).session()
    blocks = [session.run(block=b)["filtered"] for b in np.split(samples, 4, axis=2)]
    padded = np.concatenate([np.zeros((1, 1, 3), np.float32), samples], axis=2)
    taps = numpy_helper.to_array(weight("taps", 1, 1, 4))[0, 0]
    wanted = np.correlate(padded[0, 0], taps, "valid")
    np.testing.assert_allclose(np.concatenate(blocks, 2)[0, 0], wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(session.state["buffer_in"], samples[:, :, -3:])


def test_files_without_types_of_outputs_pair_by_name(tmp_path: Path) -> None:
    compiled("cell").save(tmp_path / "new.clew")
    container = read_container(tmp_path / "new.clew")
    text = {k: v for k, v in container.text.items() if k not in ("output_types", "blobs")}
    write_container(tmp_path / "old.clew", text, container.blobs)
    old = clew.load_compiled(tmp_path / "old.clew", threads=1)
    assert [o.shown_type for o in old.outputs] == ["of unknown type"] * 2
    session, x = old.session(), random(2, 3)
    np.testing.assert_array_equal(session(x), compiled("cell").session()(x))
    assert failing("I372", lambda: old.session({"h": "y"})(x))


def test_inputs_are_given_in_every_way() -> None:
    x = random(2, 3)
    wanted = compiled("cell")(x, np.zeros((2, 4), np.float32))[0]
    session = compiled("cell").session()
    for call in (
        lambda: session(x),
        lambda: session({"x": x}),
        lambda: session(x=x),
        lambda: session.run(x)["y"],
    ):
        session.reset()
        np.testing.assert_array_equal(call(), wanted, strict=True)
    assert list(session.run(x)) == ["y"]


def test_a_model_imported_when_it_is_called_pairs_by_name() -> None:
    graph = elementwise({"x": [2], "h": [2]}, {"y": ("Abs", "x"), "hn": ("Neg", "h")})
    graph.graph.input[1].type.tensor_type.ClearField("shape")
    one = clew.compile(graph, threads=1)
    assert [o.shown_type for o in one.outputs] == ["of unknown type"] * 2
    session = one.session(initial={"h": random(2, 3)})
    session(random(2))
    np.testing.assert_array_equal(session.state["h"], -random(2, 3))
    text = failing("I373", lambda: one.session()(random(2)))
    assert "state 'h' (float32[...]) is unknown: the rank is not known" in text
    assert "hint: pass initial={'h': ...}" in text


def test_states_have_the_dtype_of_the_model() -> None:
    graph = elementwise({"h": [2, 3]}, {"hn": ("Neg", "h"), "y": ("Abs", "h")})
    for value in (*graph.graph.input, *graph.graph.output):
        value.type.tensor_type.elem_type = TensorProto.BFLOAT16
    session = clew.compile(graph, threads=1).session()
    assert session.state_names == ("h",)
    assert str(session().dtype) == str(session.state["h"].dtype) == "bfloat16"


def test_text_is_a_state_too() -> None:
    node = helper.make_node("StringConcat", ["h", "x"], ["hn"])
    text = [helper.make_tensor_value_info(n, TensorProto.STRING, [2]) for n in ("x", "h", "hn")]
    session = clew.compile(model([node], text[:2], text[2:], []), threads=1).session()
    for _ in range(2):
        assert session(np.array(["a", "b"])) == ()
    assert session.state["h"].tolist() == ["aa", "bb"]


# --- the state ---


def test_an_initial_state_is_copied_and_reset_returns_to_it() -> None:
    start = random(2, 4, seed=5)
    session = compiled("cell").session(initial={"h": start})
    x, kept = random(2, 3), start.copy()
    wanted = compiled("cell")(x, start)[0]
    start[...] = 0
    np.testing.assert_array_equal(session.state["h"], kept)
    np.testing.assert_array_equal(session(x), wanted)
    assert np.any(session.state["h"] != kept)
    session.reset()
    np.testing.assert_array_equal(session.state["h"], kept)
    np.testing.assert_array_equal(session(x), wanted)


def test_one_initial_cache_gives_the_size_of_the_others() -> None:
    key = random(1, HEADS, 2, HEAD)
    session = compiled("decoder").session(initial={KEY: key})
    zeros = np.zeros_like(key)
    wanted = compiled("decoder")(STEPS[1], key, zeros)[0]
    np.testing.assert_array_equal(session(STEPS[1]), wanted)


def test_set_replaces_a_state_and_reset_undoes_it() -> None:
    session = compiled("decoder").session()
    for x in STEPS:
        session(x)
    first = {name: session.state[name][:, :, :3] for name in session.state_names}
    session.set(first)  # back to the state after the first step
    np.testing.assert_array_equal(session(STEPS[1]), decode_by_hand(STEPS)[1])
    session.reset()
    assert dict(session.state) == {}
    hidden = compiled("cell").session()
    hidden.set(h=np.ones((2, 4), np.float32))
    assert hidden.state["h"].sum() == 8
    hidden.reset()
    hidden(random(2, 3))


def test_copies_are_independent_and_share_their_memory() -> None:
    session = compiled("decoder").session()
    session(STEPS[0])
    other = session.copy()
    assert np.shares_memory(session.state[KEY], other.state[KEY])
    wanted = decode_by_hand(STEPS)
    np.testing.assert_array_equal(session(STEPS[1]), wanted[1])
    assert other.state[KEY].shape[2] == 3
    np.testing.assert_array_equal(other(STEPS[1]), wanted[1])
    other.reset()
    assert session.state[KEY].shape[2] == 4
    np.testing.assert_array_equal(session(STEPS[2]), wanted[2])


def test_the_state_is_the_array_that_the_model_made() -> None:
    made: list[Any] = []
    one = clew.compile(cell(), threads=1)
    run = one.run_in_order

    def noted(*given: Any) -> Any:
        made.append(run(*given))
        return made[-1]

    one.run_in_order = noted  # type: ignore[method-assign, assignment]
    session = one.session()
    session(random(2, 3))
    assert np.shares_memory(session.state["h"], made[0][1])


def test_a_state_that_does_not_change_is_passed_on_without_a_copy() -> None:
    node = helper.make_node
    shape: list[int | str] = [2, 3]
    graph = model(
        [node("Identity", ["h"], [name]) for name in ("kept", "shown")],
        [floats("h", shape), floats("x", shape)],
        [floats("kept", shape), floats("shown", shape)],
        [],
    )
    session = clew.compile(graph, threads=1).session({"h": "kept"}, initial={"h": random(2, 3)})
    before = session.state["h"]
    shown = session(random(2, 3))
    assert np.shares_memory(session.state["h"], before)
    assert not np.shares_memory(shown, before)


def test_state_is_read_only_and_a_snapshot() -> None:
    session = compiled("cell").session()
    session(random(2, 3))
    before = session.state
    kept = before["h"].copy()
    with pytest.raises(ValueError, match="read-only"):
        before["h"][...] = 0
    with pytest.raises(TypeError):
        before["h"] = kept  # type: ignore[index]
    session(random(2, 3))
    np.testing.assert_array_equal(before["h"], kept)


def test_writing_to_inputs_and_outputs_does_not_change_the_state() -> None:
    session = clew.compile(passing(), threads=1).session({"h": "kept"})
    x = random(2, 3)
    wanted = x.copy()
    shown, _ = session(x)
    x[...] = 0
    shown[...] = 0
    np.testing.assert_array_equal(session.state["h"], wanted)
    other = session.copy()
    _, seen = session(np.ones((2, 3), np.float32))
    np.testing.assert_array_equal(seen, wanted.reshape(3, 2))
    seen[...] = 0
    np.testing.assert_array_equal(other.state["h"], wanted)


def test_one_output_may_feed_two_inputs() -> None:
    node = helper.make_node
    shape: list[int | str] = [3]
    graph = model(
        [node("Add", ["a", "b"], ["c"]), node("Add", ["c", "x"], ["sum"])],
        [floats("a", shape), floats("b", shape), floats("x", shape)],
        [floats("sum", shape)],
        [],
    )
    session = clew.compile(graph, threads=1).session({"a": "sum", "b": "sum"})
    ones = np.ones(3, np.float32)
    assert [session(ones) for _ in range(3)] == [()] * 3  # the only output is state
    assert session.state["a"].tolist() == [7, 7, 7]


def test_a_session_without_state_is_the_model() -> None:
    session = compiled("cell").session({})
    x, h = random(2, 3), random(2, 4)
    for given, wanted in zip(session(x, h), compiled("cell")(x, h), strict=True):
        np.testing.assert_array_equal(given, wanted)


def test_sessions_and_outputs_say_what_they_are() -> None:
    session = compiled("cell").session()
    assert repr(session) == "<Session x float32[2, 3] -> y, state: h <- hn>"
    shown = [f"{o.name} {o.shown_type}" for o in compiled("cells").outputs]
    assert shown == ["y float32[batch, 2]", "hn float32[batch, 4]"]


# --- errors ---


def test_initial_and_set_take_states_only() -> None:
    text = failing("I371", lambda: compiled("cell").session(initial={"x": random(2, 3)}))
    assert "'x' is not a state of the session" in text
    assert "the states are h" in text
    session = compiled("cell").session()
    failing("I371", lambda: session.set(hn=random(2, 4)))
    failing("I042", lambda: session.set(h=random(2, 5)))
    failing("I043", lambda: session.set(h=random(2, 4).astype(np.float64)))


def test_a_size_that_no_input_tells_is_asked_for() -> None:
    graph = elementwise({"x": [2], "h": ["n", 3]}, {"y": ("Neg", "x"), "hn": ("Neg", "h")})
    one = clew.compile(graph, threads=1)
    text = failing("I373", lambda: one.session()(random(2)))
    assert "the initial value of state 'h' (float32[n, 3]) is unknown: n has no size" in text
    assert "hint: pass initial={'h': numpy.zeros((1, 3), 'float32')}" in text
    session = one.session(initial={"h": random(4, 3)})
    session(random(2))
    assert session.state["h"].shape == (4, 3)


def test_the_state_of_a_session_is_no_input() -> None:
    session = compiled("cell").session()
    x, h = random(2, 3), random(2, 4)
    for call in (lambda: session(x, h=h), lambda: session({"x": x, "h": h})):
        text = failing("I041", call)
        assert "input 'h' is a state of the session" in text
        assert "session.set({'h': ...}) changes it" in text
    text = failing("I040", lambda: session(x, h))
    assert "2 inputs given, but the session has 1" in text
    assert "the session's inputs are x" in text


def test_a_failed_call_leaves_the_state() -> None:
    session = clew.compile(growing(), threads=1).session()
    x = random(3)
    session(x)
    text = failing("I372", lambda: session(np.array([1, 0, 2], np.float32)))
    assert "output 'next_m' cannot be the next value of input 'm': input 'm' has shape [2]" in text
    np.testing.assert_array_equal(session.state["m"], x)
    with pytest.raises(ClewError):
        session(random(4))
    np.testing.assert_array_equal(session(x), x + x)

    cache = compiled("decoder").session()
    cache(STEPS[0])
    kept = cache.state[KEY]
    failing("I042", lambda: cache(random(2, 1, WIDTH)))  # the cache is of one batch
    np.testing.assert_array_equal(cache.state[KEY], kept)
    np.testing.assert_array_equal(cache(STEPS[1]), decode_by_hand(STEPS)[1])


def test_a_length_out_of_range_leaves_the_state(tmp_path: Path) -> None:
    """A cache of length 0 is a variant, with the build for all lengths in one file."""
    fresh = clew.compile(decoder(), threads=1, sizes={"past_seq": (0, 3)})
    fresh.save(tmp_path / "short.clew")
    short = clew.load_compiled(tmp_path / "short.clew", threads=1).session()
    short(STEPS[0])
    short(STEPS[1])
    assert "past_seq is 4" in failing("I317", lambda: short(STEPS[1]))
    assert short.state[KEY].shape[2] == 4


def test_zeros_are_within_the_budgets_of_the_model() -> None:
    inputs: dict[str, list[int | str]] = {"x": ["n"], "h": ["n", 1000]}
    graph = elementwise(inputs, {"y": ("Neg", "x"), "hn": ("Neg", "h")})
    one = clew.compile(graph, threads=1, limits=clew.Budgets(run_bytes=10**6))
    with pytest.raises(ClewError, match="bytes of state 'h': 4000000, but the budget run_bytes"):
        one.session()(random(1000))


# --- threads ---


def test_sessions_of_one_model_run_at_once() -> None:
    one = compiled("cell")
    inputs = [[random(2, 3, seed=10 * n + k) for k in range(40)] for n in range(4)]
    alone = []
    for own in inputs:
        session = one.session()
        alone.append([session(x) for x in own])
    start = threading.Barrier(4)
    found: list[list[Array]] = [[] for _ in inputs]

    def work(number: int) -> None:
        session = one.session()
        start.wait()
        found[number] += [session(x) for x in inputs[number]]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for given, wanted in zip(found, alone, strict=True):
        np.testing.assert_array_equal(given, wanted)


def test_a_second_call_during_a_call_is_refused() -> None:
    inside, go_on = threading.Event(), threading.Event()
    one = clew.compile(cell(), threads=1)
    run = one.run_in_order

    def slow(*given: Any) -> Any:
        inside.set()
        assert go_on.wait(60)
        return run(*given)

    one.run_in_order = slow  # type: ignore[method-assign, assignment]
    session, x = one.session(initial={"h": random(2, 4)}), random(2, 3)
    results: list[Array] = []
    thread = threading.Thread(target=lambda: results.append(session(x)))
    thread.start()
    try:
        assert inside.wait(60)
        for work in (lambda: session(x), session.reset, lambda: session.set(h=random(2, 4))):
            text = failing("I374", work)
            assert "the session is already running a call" in text
            assert "hint: use a session for each thread" in text
        other = session.copy()  # has the state before the call
        np.testing.assert_array_equal(other.state["h"], random(2, 4))
    finally:
        go_on.set()
        thread.join()
    np.testing.assert_array_equal(results[0], run([x, random(2, 4)])[0])
    np.testing.assert_array_equal(session.state["h"], run([x, random(2, 4)])[1])
    session.reset()
