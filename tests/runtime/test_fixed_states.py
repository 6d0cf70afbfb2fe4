"""States of fixed capacity: calls write their new elements into the session's arrays. The reference
is the model without buffers, called with whole arrays.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import clew
from clew.passes.hold_states import with_held_states
from clew.runtime.guard import GuardSide
from clew.runtime.held import Hold
from clew.runtime.session import Session
from clew.runtime.state import conventional_pairs
from clew.support.errors import ClewError

from .session_models import floats, model, random

Array = np.ndarray[Any, Any]
NODE = helper.make_node
HEADS, ROOM, WIDTH = 4, 8, 1024  # large enough to be written in place


def places(name: str, shape: list[Any]) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.INT64, shape)


def cached(nodes: list[Any], index: list[Any], batch: Any = 2, rows: Any = 1) -> Any:
    """Returns a model that updates `past` by `new` and sums it, in which `x` is doubled before."""
    shape = [batch, HEADS, ROOM, WIDTH]
    inputs = [floats("x", [batch, HEADS, rows, WIDTH]), places("at", index), floats("past", shape)]
    outputs = [floats("y", [batch, HEADS, 1, WIDTH]), floats("present", shape)]
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [2])
    body = [NODE("Add", ["x", "x"], ["new"]), *nodes]
    body.append(NODE("ReduceSum", ["present", "axes"], ["y"], keepdims=1))
    return model(body, inputs, outputs, [axes], opset=24)


def scatter(mode: str = "linear", **sizes: Any) -> Any:
    node = NODE("TensorScatter", ["past", "new", "at"], ["present"], axis=2, mode=mode)
    return cached([node], [sizes.get("batch", 2)], **sizes)


def elements() -> Any:
    shape = helper.make_tensor("shape", TensorProto.INT64, [4], [2, HEADS, 1, WIDTH])
    constant = NODE("Constant", [], ["shape"], value=shape)
    expand = NODE("Expand", ["at", "shape"], ["every"])
    node = NODE("ScatterElements", ["past", "every", "new"], ["present"], axis=2)
    return cached([constant, expand, node], [1, 1, 1, 1])


def slices() -> Any:
    node = NODE("ScatterND", ["past", "at", "new"], ["present"])
    return cached([node], [2, HEADS, 1, 3])


def whole(compiled: Any) -> Session:
    """Returns a session that passes whole arrays on."""
    return Session(compiled, conventional_pairs(compiled.inputs, compiled.outputs))


def address(session: Session) -> int:
    return session._now.state["past"].ctypes.data


@cache
def compiled(kind: str = "linear") -> Any:
    made = {
        "linear": scatter,
        "circular": lambda: scatter("circular"),
        "free": lambda: scatter(batch="b", rows="s"),
        "elements": elements,
        "slices": slices,
    }[kind]()
    return clew.compile(made, threads=1, cache=False)


def given(kind: str, step: int, rows: int = 1, batch: int = 2) -> tuple[Array, Array]:
    x = random(batch, HEADS, rows, WIDTH, seed=step)
    at: Array
    match kind:
        case "elements":
            at = np.full((1, 1, 1, 1), step % ROOM)
        case "slices":
            grid = np.indices((2, HEADS, 1))
            grid[2] = step % ROOM
            at = np.moveaxis(grid, 0, -1).copy()
        case "circular":
            at = np.array([step, 5 * step + 3])
        case _:
            at = (np.arange(batch) * 3 + step) % (ROOM - rows + 1)
    return x, at.astype(np.int64)


@pytest.mark.parametrize("kind", ["linear", "circular", "free", "elements", "slices"])
def test_calls_write_into_the_arrays(kind: str) -> None:
    session, other = compiled(kind).session(), whole(compiled(kind))
    found = set()
    for step in range(12):
        rows = 1 + step % 3 if kind == "free" else 1
        call = given(kind, step, rows)
        np.testing.assert_array_equal(session(*call), other(*call), strict=True)
        found.add(address(session))
    assert len(found) == 1
    np.testing.assert_array_equal(session.state["past"], other.state["past"], strict=True)


def test_a_range_of_the_state() -> None:
    """An assignment to a range, as exporters write it, replaces it in place."""
    ints = {"zero": [0], "four": [4], "five": [5], "end": [ROOM], "axis": [2]}
    constants = [
        NODE("Constant", [], [name], value=helper.make_tensor(name, TensorProto.INT64, [1], value))
        for name, value in ints.items()
    ]
    nodes = [
        *constants,
        NODE("Slice", ["past", "zero", "four", "axis"], ["head"]),
        NODE("Slice", ["past", "five", "end", "axis"], ["tail"]),
        NODE("Concat", ["head", "new", "tail"], ["present"], axis=2),
    ]
    one = clew.compile(cached(nodes, [2]), threads=1, cache=False)
    session, other = one.session(), whole(one)
    found = set()
    for step in range(3):
        call = given("linear", step)
        np.testing.assert_array_equal(session(*call), other(*call), strict=True)
        found.add(address(session))
    assert len(found) == 1
    np.testing.assert_array_equal(session.state["past"], other.state["past"])


@pytest.mark.parametrize("side", GuardSide)
def test_writes_stay_inside_the_arrays(side: GuardSide) -> None:
    options = clew.Diagnostics(guard=side)
    one = clew.compile(scatter(batch="b", rows="s"), threads=1, cache=False, diagnostics=options)
    session, other = one.session(), whole(compiled("free"))
    for step in range(6):
        call = given("free", step, 1 + step, batch=3)
        np.testing.assert_array_equal(session(*call), other(*call))
    np.testing.assert_array_equal(session.state["past"], other.state["past"])


def test_given_and_shown_arrays_do_not_change() -> None:
    first = random(2, HEADS, ROOM, WIDTH)
    kept = first.copy()
    session = compiled().session(initial={"past": first})
    other = Session(compiled(), session._pairs, {"past": first})
    for step in range(3):
        call = given("linear", step)
        np.testing.assert_array_equal(session(*call), other(*call))
    shown = session.state["past"]
    before = shown.copy()
    session(*given("linear", 3))
    np.testing.assert_array_equal(shown, before)
    np.testing.assert_array_equal(first, kept)
    session.reset()
    np.testing.assert_array_equal(session.state["past"], kept)


def test_copies_diverge() -> None:
    session, other = compiled().session(), whole(compiled())
    for held in (session, other):
        held(*given("linear", 0))
    pairs = [(session.copy(), other.copy()) for _ in range(2)]
    pairs.append((session, other))
    for step in range(1, 4):
        for number, (held, reference) in enumerate(pairs):
            call = given("linear", 10 * step + number)
            np.testing.assert_array_equal(held(*call), reference(*call))
    assert len({address(held) for held, _ in pairs}) == 3
    for held, reference in pairs:
        np.testing.assert_array_equal(held.state["past"], reference.state["past"])


def test_a_position_out_of_range_loses_the_state() -> None:
    session, other = compiled().session(), whole(compiled())
    x, _ = given("linear", 0)
    with pytest.raises(ClewError, match="I320"):  # the first call writes to a copy
        session(x, np.array([0, ROOM]))
    for held in (session, other):
        held(*given("linear", 0))
    copy = session.copy()
    session(*given("linear", 1))
    assert not session.is_lost
    with pytest.raises(ClewError, match="I320"):
        session(x, np.array([0, ROOM]))
    assert session.is_lost
    for lost in (session, session.copy, lambda *_: session.state):
        with pytest.raises(ClewError, match="I377"):
            lost(*given("linear", 2)) if lost is session else lost()
    session.reset()
    session(*given("linear", 0))
    for step in (1, 2):
        call = given("linear", step)
        expected = other(*call)
        np.testing.assert_array_equal(session(*call), expected)
        np.testing.assert_array_equal(copy(*call), expected)


def test_a_wrong_input_loses_nothing() -> None:
    session = compiled().session()
    session(*given("linear", 0))
    before = session.state["past"].copy()
    session(*given("linear", 0))
    with pytest.raises(ClewError, match="I042"):
        session(random(2, HEADS, 2, WIDTH), np.array([0, 1]))
    np.testing.assert_array_equal(session.state["past"], before)


def test_the_state_is_not_shown_during_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    session = compiled().session()
    session(*given("linear", 0))
    seen: list[str] = []
    kind = type(session._model)
    run = kind.run_checked

    def watched(self: Any, *args: Any, **named: Any) -> Any:
        with pytest.raises(ClewError) as raised:
            session.copy()
        seen.append(raised.value.code)
        return run(self, *args, **named)

    with monkeypatch.context() as patched:
        patched.setattr(kind, "run_checked", watched)
        session(*given("linear", 1))
    assert seen == ["I374"]
    session.copy()


def test_the_state_is_shown_if_a_call_has_just_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread's call writes when the state is asked for, and ends before the answer."""
    session, other = compiled().session(), whole(compiled())
    for held in (session, other):
        held(*given("linear", 0))
    calls, real = [given("linear", 1)], Hold.lend

    def late(hold: Hold) -> bool:
        if not calls:
            return real(hold)
        call = calls.pop()
        session(*call)
        other(*call)
        return False

    monkeypatch.setattr(Hold, "lend", late)
    np.testing.assert_array_equal(session.state["past"], other.state["past"])
    assert not calls


@pytest.mark.parametrize("kind", ["linear", "free"])
def test_a_saved_model_writes_in_place(kind: str, tmp_path: Path) -> None:
    compiled(kind).save(tmp_path / "model.clew")
    session = clew.load_compiled(tmp_path / "model.clew", threads=1).session()
    other = whole(compiled(kind))
    found = set()
    for step in range(3):
        call = given("linear", step)
        np.testing.assert_array_equal(session(*call), other(*call))
        found.add(address(session))
    assert len(found) == 1


def test_a_start_from_the_disk_cache_writes_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEW_CACHE_DIR", str(tmp_path))
    expected: list[Array] = []
    for start in range(2):
        one = clew.compile(scatter(), threads=1)
        session = one.session()
        found = [session(*given("linear", step)) for step in range(3)]
        assert session._now.hold is not None
        expected = expected or found
        np.testing.assert_array_equal(found, expected)
        if start:
            assert one._chain.stored is not None
            assert one.builds_made == 0


def test_other_readers_keep_the_form() -> None:
    """The old value does not die: the sum reads it."""
    node = NODE("TensorScatter", ["past", "more", "at"], ["present"], axis=2)
    nodes = [NODE("ReduceSum", ["past", "axes"], ["sum"]), NODE("Add", ["new", "sum"], ["more"])]
    given_ = cached([*nodes, node], [2])
    module = clew.load(given_)
    assert with_held_states(module, [("past", "present")]).module is module
    session = clew.compile(given_, threads=1, cache=False).session()
    other = whole(session._model)
    for step in range(2):
        call = given("linear", step)
        np.testing.assert_array_equal(session(*call), other(*call))
    assert session._now.hold is None
