"""States of libraries: memory of the caller that calls read and change."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import clew
from clew.libraries import Exported
from clew.runtime.guard import GuardedBuffer, GuardSide

from .c_programs import STRICT, Array, message, needs, shared_library, state_of, step

pytestmark = needs("gcc", "nm")

PAIRS = {"h": "h_next", "delay1": "h_next", "delay2": "delay1_out", "kept": "kept_out"}


def recurrent() -> Any:
    """A cell with delayed states, beside a state that stays, and a table of rows."""
    random = np.random.default_rng(0)
    nodes = [
        helper.make_node("Gather", ["table", "i"], ["x"], name="embedding"),
        helper.make_node("MatMul", ["h", "w"], ["m"], name="recur"),
        helper.make_node("Add", ["m", "x"], ["a"], name="add"),
        helper.make_node("Tanh", ["a"], ["h_next"], name="tanh"),
        helper.make_node("Identity", ["delay1"], ["delay1_out"]),
        helper.make_node("Identity", ["kept"], ["kept_out"]),
        helper.make_node("Sub", ["h_next", "delay2"], ["d"], name="sub"),
        helper.make_node("Add", ["d", "kept"], ["y"], name="result"),
    ]
    weights = {
        "w": random.standard_normal((9, 9)).astype(np.float32),
        "table": random.standard_normal((5, 9)).astype(np.float32),
    }
    outputs = {name: [1, 9] for name in ("y", "h_next", "delay1_out", "kept_out")}
    inputs = {"delay1": [1, 9], "i": [1], "h": [1, 9], "delay2": [1, 9], "kept": [1, 9]}
    return message(nodes, inputs, outputs, weights, kinds={"i": TensorProto.INT64})


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Exported, ctypes.CDLL]:
    folder = tmp_path_factory.mktemp("cell")
    model = clew.compile(recurrent(), threads=1)
    made = model.export_c(folder, "net", state=PAIRS)
    return model, made, shared_library(made)


def frames(count: int) -> list[dict[str, Array]]:
    numbers = np.random.default_rng(1).integers(0, 5, count)
    return [{"i": np.array([number])} for number in numbers]


def same(found: Mapping[str, Array], wanted: Mapping[str, Array]) -> bool:
    return {n: a.tobytes() for n, a in found.items()} == {n: a.tobytes() for n, a in wanted.items()}


def test_frames_have_the_bits_of_a_session(cell: Any) -> None:
    model, made, library = cell
    session, state = model.session(state=PAIRS), state_of(made, library)
    for feed in frames(100):
        code, found = step(library, made, session, feed, state)
        assert code == 0
        assert same(found, session.run(feed))
    ends = state.view(np.float32).reshape(4, 16)[:, :9]
    for end, array in zip(ends, session.state.values(), strict=True):
        np.testing.assert_array_equal(end, array[0])
    assert library.net_state_reset(ctypes.c_void_p(state.ctypes.data)) == 0
    session.reset()
    feed = frames(1)[0]
    assert same(step(library, made, session, feed, state)[1], session.run(feed))


def test_a_copy_goes_its_own_way(cell: Any) -> None:
    model, made, library = cell
    session, state = model.session(state=PAIRS), state_of(made, library)
    for feed in frames(3):
        step(library, made, session, feed, state)
        session.run(feed)
    other, copy = session.copy(), np.zeros_like(state)
    places = [ctypes.c_void_p(a.ctypes.data) for a in (copy, state)]
    assert library.net_state_copy(*places) == 0
    for number in (4, 0, 2):
        feed = {"i": np.array([number])}
        assert same(step(library, made, other, feed, copy)[1], other.run(feed))
    for feed in frames(3):
        assert same(step(library, made, session, feed, state)[1], session.run(feed))


def test_a_call_that_fails_leaves_the_state(cell: Any) -> None:
    model, made, library = cell
    session, state = model.session(state=PAIRS), state_of(made, library)
    for feed in frames(3):
        step(library, made, session, feed, state)
    before = state.tobytes()
    assert step(library, made, session, {"i": np.array([5])}, state)[0] == 3
    assert state.tobytes() == before
    for place, code in ((None, 1), (state.ctypes.data + 4, 2)):
        pointer = ctypes.c_void_p(place)
        inputs = (ctypes.c_void_p * 1)(np.zeros(1, np.int64).ctypes.data)
        outputs, work = np.zeros(9, np.float32), np.zeros(made.workspace_bytes, np.uint8)
        rest = (ctypes.c_void_p(outputs.ctypes.data), ctypes.c_void_p(work.ctypes.data))
        addresses = (ctypes.c_void_p * 1)(rest[0].value)
        assert library.net_run(inputs, addresses, pointer, rest[1]) == code
        assert library.net_state_reset(pointer) == code
        assert library.net_state_copy(ctypes.c_void_p(state.ctypes.data), pointer) == code
    assert state.tobytes() == before


@pytest.mark.parametrize("side", list(GuardSide))
def test_calls_stay_inside_the_state(cell: Any, side: GuardSide) -> None:
    model, made, library = cell
    memory = GuardedBuffer(made.state_bytes, align_bytes=8, side=side)
    assert library.net_state_reset(ctypes.c_void_p(memory.address)) == 0
    session = model.session(state=PAIRS)
    for feed in frames(2):
        assert same(step(library, made, session, feed, memory.data)[1], session.run(feed))
    memory.check("the state")


def test_headers_and_example(cell: Any) -> None:
    _, made, _ = cell
    assert "| state, given by the caller | 256 |\n\n" in (made.folder / "README.md").read_text()
    subprocess.run(
        ["gcc", *STRICT, "main.c", "libnet.a", "-o", "main"], cwd=made.folder, check=True
    )
    np.array([2]).tofile(made.folder / "i.bin")
    subprocess.run(["./main", "i.bin", "y.bin"], cwd=made.folder, check=True, capture_output=True)
    found = np.fromfile(made.folder / "y.bin", np.float32)
    wanted = cell[0].session(state=PAIRS).run({"i": np.array([2])})["y"]
    assert found.tobytes() == wanted.tobytes()


@needs("g++")
def test_a_class_of_cpp_owns_the_state(cell: Any) -> None:
    model, made, _ = cell
    (made.folder / "use.cpp").write_text(
        '#include "net.hpp"\n#include <cstdio>\n'
        "int main() {\n"
        "  int64_t i = 3;\n"
        "  float y[9];\n"
        "  net_model model;\n"
        "  for (int n = 0; n < 3; n++) {\n"
        "    if (n == 2) model.reset();\n"
        "    model.run({&i}, {y});\n"
        "    std::fwrite(y, sizeof y, 1, stdout);\n"
        "  }\n"
        "}\n"
    )
    command = ["g++", *STRICT[1:], "-std=c++11", "use.cpp", "libnet.a", "-o", "use"]
    subprocess.run(command, cwd=made.folder, check=True)
    done = subprocess.run(["./use"], cwd=made.folder, check=True, capture_output=True)
    session, feed = model.session(state=PAIRS), {"i": np.array([3])}
    wanted = [session.run(feed)["y"].tobytes() for _ in range(2)]
    assert done.stdout == b"".join([*wanted, wanted[0]])


def test_states_with_free_sizes_are_refused(tmp_path: Path) -> None:
    node = helper.make_node("Concat", ["past", "x"], ["present"], axis=0)
    model = clew.compile(
        message([node], {"past": ["p", 4], "x": [1, 4]}, {"present": ["q", 4]}), sizes={"p": (0, 8)}
    )
    with pytest.raises(clew.ClewError, match=r"U081.*state 'past' has"):
        model.export_c(tmp_path, state={"past": "present"})
    with pytest.raises(clew.ClewError, match="I371"):
        model.export_c(tmp_path, state={"past": "future"})


def test_states_change_as_soon_as_their_old_values_are_used(tmp_path: Path) -> None:
    """Delay lines, whose kernels read the old values, take turns in the workspace; a state that is
    read before the new value is made is written in place.
    """
    random = np.random.default_rng(0)
    nodes, weights, pairs = [], {"from": np.array([1]), "to": np.array([64])}, {}
    shapes: dict[str, list[int]] = {"x": [1, 64]}
    value = "x"
    for n in range(3):
        weights[f"w{n}"] = random.standard_normal((64, 64)).astype(np.float32) / np.float32(8)
        nodes += [
            helper.make_node("Slice", [f"old{n}", "from", "to", "rows"], [f"kept{n}"]),
            helper.make_node("MatMul", [value, f"w{n}"], [f"in{n}"]),
            helper.make_node("Concat", [f"kept{n}", f"in{n}"], [f"new{n}"], axis=0),
            helper.make_node("ReduceSum", [f"new{n}", "rows"], [f"out{n}"], keepdims=1),
        ]
        value, shapes[f"old{n}"], pairs[f"old{n}"] = f"out{n}", [64, 64], f"new{n}"
    weights["rows"] = np.array([0])
    nodes += [
        helper.make_node("MatMul", [value, "w0"], ["p"]),
        helper.make_node("Add", ["p", "h"], ["y"]),
        helper.make_node("MatMul", ["y", "w1"], ["h_next"]),
    ]
    shapes["h"], pairs["h"] = [1, 64], "h_next"
    outputs = {"y": [1, 64], "h_next": [1, 64], **{f"new{n}": [64, 64] for n in range(3)}}
    model = clew.compile(message(nodes, shapes, outputs, weights), threads=1)
    made = model.export_c(tmp_path, "net", state=pairs)
    size_bytes = 4 * 64 * 64
    assert made.state_bytes == 3 * size_bytes + 256
    assert made.workspace_bytes < size_bytes + 4096
    library = shared_library(made)
    session, state = model.session(state=pairs), state_of(made, library)
    for _ in range(4):
        feed = {"x": random.standard_normal((1, 64)).astype(np.float32)}
        code, found = step(library, made, session, feed, state)
        assert code == 0
        assert same(found, session.run(feed))
