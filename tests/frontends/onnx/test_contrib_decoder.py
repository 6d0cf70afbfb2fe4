"""A decoder of ONNX Runtime's operators at all lengths of its cache, the empty one included."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import clew
from clew.runtime.guard import GuardSide
from clew.runtime.session import Session
from clew.runtime.state import conventional_pairs
from clew.support.errors import ClewError

HEADS, GROUPS, WIDTH, MOST = 4, 2, 16, 64
KEY, VALUE = "past_key_values.0.key", "past_key_values.0.value"


def decoder() -> onnx.ModelProto:
    """Returns a layer as model builders write it: lengths follow from an attention mask."""
    rng, node = np.random.default_rng(0), helper.make_node
    angles = np.arange(MOST)[:, None] / 50.0 ** np.linspace(0, 1, WIDTH // 2)
    constants: dict[str, Any] = {"one": np.array([1]), "axis": np.array(1)}
    constants |= {"cos": np.cos(angles).astype("f4"), "sin": np.sin(angles).astype("f4")}
    for name, heads in (("q", HEADS), ("k", GROUPS), ("v", GROUPS)):
        shape = (HEADS * WIDTH, heads * WIDTH)
        constants[f"w{name}"] = (0.3 * rng.standard_normal(shape)).astype("f4")
    given = ["q", "k", "v", KEY, VALUE, "last", "total", "cos", "sin"]
    nodes = [
        node("ReduceSum", ["mask", "one"], ["count"], keepdims=1),
        node("Sub", ["count", "one"], ["place"]),
        node("Cast", ["place"], ["last"], to=TensorProto.INT32),
        node("Shape", ["mask"], ["sizes"]),
        node("Gather", ["sizes", "axis"], ["length"], axis=0),
        node("Cast", ["length"], ["total"], to=TensorProto.INT32),
        *(node("MatMul", ["x", f"w{name}"], [name]) for name in "qkv"),
        node(
            "GroupQueryAttention", given, ["y", "present.0.key", "present.0.value"],
            domain="com.microsoft", num_heads=HEADS, kv_num_heads=GROUPS, do_rotary=1,
        ),
    ]  # fmt: skip
    info, floats = helper.make_tensor_value_info, TensorProto.FLOAT
    inputs = [info("x", floats, ["b", "s", HEADS * WIDTH])]
    inputs += [info(name, floats, ["b", GROUPS, "past", WIDTH]) for name in (KEY, VALUE)]
    inputs.append(info("mask", TensorProto.INT64, ["b", "total_length"]))
    outputs = [info("y", floats, ["b", "s", HEADS * WIDTH])]
    outputs += [
        info(f"present.0.{name}", floats, ["b", GROUPS, "present", WIDTH])
        for name in ("key", "value")
    ]
    weights = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, weights)
    domains = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=9)


def test_a_total_that_is_an_input_lets_caches_grow() -> None:
    """The number of keys is then known only in the run."""
    file = decoder()
    nodes = [n for n in file.graph.node if n.output[0] not in ("sizes", "length", "total")]
    del file.graph.node[:]
    file.graph.node.extend(nodes)
    file.graph.input.append(helper.make_tensor_value_info("total", TensorProto.INT32, []))
    runtime = ort.InferenceSession(file.SerializeToString())
    session = clew.compile(file, threads=1).session()
    rng, total = np.random.default_rng(3), 0
    state = dict.fromkeys((KEY, VALUE), np.zeros((1, GROUPS, 0, WIDTH), np.float32))
    for rows in (5, 1, 1, 3):
        total += rows
        x, count = rng.standard_normal((1, rows, HEADS * WIDTH)).astype("f4"), np.int32(total)
        mask = np.ones((1, total), np.int64)
        y, *present = runtime.run(None, {"x": x, "mask": mask, "total": np.array(count), **state})
        state = dict(zip((KEY, VALUE), present, strict=True))
        np.testing.assert_allclose(session(x, mask, count), y, rtol=1e-4, atol=1e-5)
        for name, value in state.items():
            np.testing.assert_allclose(session.state[name], value, rtol=1e-4, atol=1e-5)


def test_one_build_serves_all_lengths() -> None:
    file = decoder()
    compiled, runtime = (
        clew.compile(file, threads=1),
        ort.InferenceSession(file.SerializeToString()),
    )
    made = compiled.builds_made
    session = compiled.session()
    rng = np.random.default_rng(1)
    for lengths in ((5, 1, 1), (7, 1, 2), (9,), (1, 1)):
        session.reset()
        cache = np.zeros((1, GROUPS, 0, WIDTH), np.float32)
        state, total = {KEY: cache, VALUE: cache}, 0
        for rows in lengths:
            total += rows
            x = rng.standard_normal((1, rows, HEADS * WIDTH)).astype("f4")
            mask = np.ones((1, total), np.int64)
            y, *present = runtime.run(None, {"x": x, "mask": mask, **state})
            found = compiled.run({"x": x, "mask": mask, **state})
            state = dict(zip((KEY, VALUE), present, strict=True))
            for value in (found["y"], session(x, mask)):
                np.testing.assert_allclose(value, y, rtol=1e-4, atol=1e-5)
            for name, value in zip((KEY, VALUE), list(found.values())[1:], strict=True):
                np.testing.assert_allclose(value, state[name], rtol=1e-4, atol=1e-5)
                np.testing.assert_allclose(session.state[name], state[name], rtol=1e-4, atol=1e-5)
    assert compiled.builds_made == made


@pytest.mark.parametrize("side", [None, *GuardSide])
def test_caches_that_grow_to_a_total_lie_in_buffers(side: GuardSide | None) -> None:
    """Rows of a batch have different lengths, sessions return to earlier ones, and copies differ.
    The reference is the model without buffers.
    """
    options = clew.Diagnostics(guard=side or False)
    compiled = clew.compile(decoder(), threads=1, cache=False, diagnostics=options)
    pairs = conventional_pairs(compiled.inputs, compiled.outputs)
    both = [compiled.session(), Session(compiled, pairs)]
    rng, lengths, places = np.random.default_rng(2), np.zeros(2, int), set()

    def step(sessions: list[Session], added: tuple[int, int]) -> None:
        nonlocal lengths
        rows, lengths = max(added), lengths + added
        x = rng.standard_normal((2, rows, HEADS * WIDTH)).astype("f4")
        mask = (np.arange(lengths.max()) < lengths[:, None]).astype("i8")
        found, wanted = (session(x, mask) for session in sessions)
        for row, valid in enumerate(added):
            np.testing.assert_array_equal(found[row, :valid], wanted[row, :valid])

    for added in ((5, 3), (1, 1), (1, 1)):
        step(both, added)
        places.add(buffer(both[0]))
    assert len(places) == 1
    assert both[0].length == 7
    shown = both[0].state[KEY]
    kept = shown.copy()
    step(both, (1, 1))
    np.testing.assert_array_equal(shown, kept)
    assert buffer(both[0]) not in places
    copies = [session.copy() for session in both]
    before = lengths
    for sessions in (copies, both):
        lengths = before
        step(sessions, (1, 1))
        step(sessions, (1, 1))
    for session in both:
        session.rewind(4)
    lengths = np.array([4, 3])
    for added in ((1, 1), (1, 1), (1, 0)):
        step(both, added)
    assert [session.length for session in both] == [7, 7]


def test_copies_keep_their_caches() -> None:
    """A row that begins again writes before the positions of a copy of the session."""
    compiled = clew.compile(decoder(), threads=1, cache=False)
    pairs = conventional_pairs(compiled.inputs, compiled.outputs)
    both = [compiled.session(), Session(compiled, pairs)]
    rng = np.random.default_rng(4)

    def step(sessions: list[Session], lengths: tuple[int, int], rows: int = 1) -> None:
        x = rng.standard_normal((2, rows, HEADS * WIDTH)).astype("f4")
        mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype("i8")
        found, wanted = (session(x, mask) for session in sessions)
        np.testing.assert_array_equal(found, wanted)

    step(both, (6, 6), 6)
    step(both, (7, 7))
    copies = [session.copy() for session in both]
    step(both, (8, 1))
    for session, other in (both, copies):
        np.testing.assert_array_equal(session.state[KEY], other.state[KEY], strict=True)
    step(copies, (8, 8))
    step(both, (9, 2))


def buffer(session: Session) -> int:
    caches = session._now.caches
    assert caches is not None
    return int(caches.arrays[KEY].ctypes.data)


def sharing() -> onnx.ModelProto:
    """A layer whose cache keeps its capacity: the number of keys in all is an input."""
    floats, i32 = TensorProto.FLOAT, TensorProto.INT32
    info, node = helper.make_tensor_value_info, helper.make_node
    packed = (HEADS + 2 * GROUPS) * WIDTH
    cache: list[str | int] = ["b", GROUPS, "capacity", WIDTH]
    given = ["x", "", "", KEY, VALUE, "last", "total"]
    attention = node(
        "GroupQueryAttention", given, ["y", "present.0.key", "present.0.value"],
        domain="com.microsoft", num_heads=HEADS, kv_num_heads=GROUPS,
    )  # fmt: skip
    inputs = [info("x", floats, ["b", "s", packed]), info("last", i32, ["b"])]
    inputs += [info("total", i32, []), *(info(name, floats, cache) for name in (KEY, VALUE))]
    outputs = [info("y", floats, ["b", "s", HEADS * WIDTH])]
    outputs += [info(f"present.0.{name}", floats, cache) for name in ("key", "value")]
    graph = helper.make_graph([attention], "sharing", inputs, outputs)
    domains = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=9)


def test_caches_that_keep_their_capacity_are_written_in_place() -> None:
    """Rows of the batch are at different positions; one build serves all totals."""
    file, capacity, batch = sharing(), 2048, 2
    compiled = clew.compile(file, threads=1, cache=False)
    runtime = ort.InferenceSession(file.SerializeToString())
    cache = np.zeros((batch, GROUPS, capacity, WIDTH), np.float32)
    session = compiled.session(initial={KEY: cache, VALUE: cache})
    state = {KEY: cache, VALUE: cache}
    rng = np.random.default_rng(1)
    lengths, places, made = np.zeros(batch, np.int32), set(), 0
    for step, added in enumerate([(5, 3), (1, 1), (1, 1), (1, 1)]):
        lengths = lengths + np.array(added, np.int32)
        total, rows = np.array(lengths.max()), max(added)
        x = rng.standard_normal((batch, rows, (HEADS + 2 * GROUPS) * WIDTH)).astype("f4")
        call = {"x": x, "last": lengths - 1, "total": total}
        y, *present = runtime.run(None, {**call, **state})
        state = dict(zip((KEY, VALUE), present, strict=True))
        found = session(call)
        for row, valid in enumerate(added):
            np.testing.assert_allclose(found[row, :valid], y[row, :valid], rtol=1e-4, atol=1e-5)
        places.add(session._now.state[KEY].ctypes.data)
        made = compiled.builds_made if step == 0 else made
    assert len(places) == 1
    assert compiled.builds_made == made
    last = np.array([capacity, 7], np.int32)
    with pytest.raises(ClewError, match="I320"):
        session({**call, "last": last, "total": np.array(capacity, np.int32)})
