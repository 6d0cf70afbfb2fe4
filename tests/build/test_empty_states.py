"""Growing states that start empty: one build serves all lengths, 0 included."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from free_models import decoder, drawn, feeds_of_decoder, made
from onnx import TensorProto, helper

import clew
import zoo
from clew.runtime.guard import GuardSide
from clew.support.errors import ClewError

pytestmark = pytest.mark.usefixtures("shared_kernels")

Array = np.ndarray[Any, Any]
LENGTHS = (0, 1, 5, 17, 0)
WIDTH = 5


def node(op: str, inputs: str, output: str, **attrs: Any) -> Any:
    return helper.make_node(op, inputs.split(), output.split(), **attrs)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


JOINED = node("Concat", "past_k x", "present_k", axis=1)
# Nodes beside or around the concatenation, the results, and constants.
READ: dict[str, tuple[list[Any], str, dict[str, Array]]] = {
    "joined": ([JOINED], "present_k", {}),
    "joined first": ([node("Concat", "x past_k", "present_k", axis=1)], "present_k", {}),
    "joined between": ([JOINED, node("Concat", "x past_k x", "y", axis=1)], "present_k y", {}),
    "scaled": (
        [node("Mul", "past_k c", "p"), node("Concat", "p x", "present_k", axis=1)],
        "present_k", {"c": drawn(WIDTH)},
    ),
    "a result without elements": ([JOINED, node("Exp", "past_k", "y")], "present_k y", {}),
    "transposed": (
        [
            node("Transpose", "past_k", "p", perm=[0, 2, 1]),
            node("Transpose", "x", "t", perm=[0, 2, 1]),
            node("Concat", "p t", "c", axis=2),
            node("Transpose", "c", "present_k", perm=[0, 2, 1]),
        ],
        "present_k c", {},
    ),
    "padded": (
        [JOINED, node("Pad", "past_k pads", "y")], "present_k y", {"pads": ints(0, 1, 0, 0, 2, 0)},
    ),
    "the last ones": (
        [JOINED, node("Slice", "past_k begin end axis", "p"), node("Concat", "p x", "y", axis=1)],
        "present_k y", {"begin": ints(-3), "end": ints(1 << 40), "axis": ints(1)},
    ),
    "split": (
        [
            JOINED,
            node("Split", "past_k", "a b", axis=2, num_outputs=2),
            node("Concat", "a a b", "y", axis=2),
        ],
        "present_k y", {},
    ),
    "its length": (
        [
            JOINED,
            node("Shape", "past_k", "n", start=1, end=2),
            node("Cast", "n", "f", to=TensorProto.FLOAT),
            node("Add", "present_k f", "y"),
        ],
        "present_k y", {},
    ),
    "reduced": (
        [JOINED, node("ReduceMean", "present_k axis", "y")], "present_k y", {"axis": ints(1)},
    ),
    "multiplied": ([JOINED, node("MatMul", "present_k w", "y")], "present_k y", {"w": drawn(5, 9)}),
    "product": ([JOINED, node("MatMul", "past_k w", "y")], "present_k y", {"w": drawn(5, 9)}),
    "sum": ([JOINED, node("ReduceSum", "past_k axis", "y")], "present_k y", {"axis": ints(1)}),
    "maximum": ([JOINED, node("ReduceMax", "past_k axis", "y")], "present_k y", {"axis": ints(1)}),
    "softmax": ([JOINED, node("Softmax", "past_k", "y", axis=1)], "present_k y", {}),
}  # fmt: skip
# Operators that divide by the length of a state, or read an element of it.
NOT_SERVED: dict[str, tuple[list[Any], str, dict[str, Array]]] = {
    "repeated": ([JOINED, node("Tile", "past_k r", "y")], "present_k y", {"r": ints(1, 2, 1)}),
    "element": ([JOINED, node("Gather", "past_k at", "y", axis=1)], "present_k y", {"at": ints(0)}),
}


def model_of(read: tuple[list[Any], str, dict[str, Array]]) -> bytes:
    nodes, results, constants = read
    shapes = {"x": ["b", "s", WIDTH], "past_k": ["b", "past", WIDTH]}
    return made(nodes, shapes, results.split(), **constants)


def feeds(length: int) -> dict[str, Array]:
    state = drawn(2, length, WIDTH, seed=length)
    return {"x": drawn(2, 1 + length % 3, WIDTH), "past_k": state}


def agrees(run: Any, model: Any, feed: dict[str, Array]) -> None:
    expected = onnxruntime.InferenceSession(model).run(None, feed)
    for found, wanted in zip(run(feed).values(), expected, strict=True):
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("side", list(GuardSide))
def test_one_build_of_a_decoder_serves_all_lengths(side: GuardSide, threads: int) -> None:
    compiled = clew.compile(
        zoo.path("decoder_free"),
        threads=threads,
        diagnostics=clew.Diagnostics(guard=side),
        cache=False,
    )
    for length in LENGTHS:
        feed = zoo.inputs("decoder_free", length, past=length)
        agrees(compiled.run, str(zoo.path("decoder_free")), feed)
    assert compiled.builds_made == 1


def test_results_are_those_of_a_build_for_length_0() -> None:
    feed = zoo.inputs("decoder_free", past=0)
    found = clew.compile(zoo.path("decoder_free"), threads=1, cache=False).run(feed)
    alone = clew.compile(zoo.path("decoder_free"), threads=1, cache=False, sizes={"past": 0})
    for name, wanted in alone.run(feed).items():
        np.testing.assert_array_equal(found[name], wanted)


@pytest.mark.parametrize("read", READ)
def test_ways_to_read_a_state(read: str) -> None:
    model = model_of(READ[read])
    for threads, side in ((1, GuardSide.END), (2, GuardSide.START)):
        compiled = clew.compile(
            model, threads=threads, diagnostics=clew.Diagnostics(guard=side), cache=False
        )
        for length in LENGTHS:
            agrees(compiled.run, model, feeds(length))
        assert compiled.builds_made == 1


@pytest.mark.parametrize("read", NOT_SERVED)
def test_other_ways_have_builds_of_their_own(read: str) -> None:
    model = model_of(NOT_SERVED[read])
    compiled = clew.compile(
        model, threads=1, diagnostics=clew.Diagnostics(guard=GuardSide.END), cache=False
    )
    for length in (1, 5, 17):
        agrees(compiled.run, model, feeds(length))
    assert compiled.builds_made == 1
    try:
        onnxruntime.InferenceSession(model).run(None, feeds(0))
    except Exception:
        with pytest.raises(ClewError, match="T110"):
            compiled.run(feeds(0))
    else:
        agrees(compiled.run, model, feeds(0))
        assert compiled.builds_made == 2


def test_a_call_with_an_empty_state_is_looked_into_as_any() -> None:
    model = decoder("prev")
    compiled = clew.compile(model, threads=1, cache=False)
    feed = feeds_of_decoder(2, 1, 0, state="prev")
    results = compiled.run(feed)
    assert compiled.build.sizes == {"b": 2, "s": 1, "past": 0}
    assert compiled.trace.verify(feed).ok
    last = list(compiled.trace.layers)[-1]
    np.testing.assert_array_equal(compiled.tap(last, **feed), results["y"])
    assert len(compiled.profile(feed).kernels) == len(compiled.kernels)
    assert compiled.graph()
    assert compiled.builds_made == 1


def test_a_session_starts_empty() -> None:
    model = decoder("prev")
    compiled = clew.compile(model, threads=1, cache=False)
    session = compiled.session({"prev_k": "k", "prev_v": "v"})
    state = feeds_of_decoder(1, 1, 0, state="prev")
    for step in range(4):
        state["x"] = drawn(1, 1, 48, seed=step)
        y, k, v = onnxruntime.InferenceSession(model).run(None, state)
        np.testing.assert_allclose(session(state["x"]), y, rtol=2e-5, atol=2e-6)
        state.update(prev_k=k, prev_v=v)
    assert compiled.builds_made == 2  # and that with buffers, which the session runs


def test_files_serve_all_lengths(tmp_path: Path) -> None:
    model = decoder("prev")
    clew.compile(model, threads=1, cache=False).save(tmp_path / "model.clew")
    loaded = clew.load_compiled(tmp_path / "model.clew", threads=1)
    assert repr(loaded).endswith("saved for all sizes>")
    for length in LENGTHS:
        agrees(loaded.run, model, feeds_of_decoder(2, 1, length, state="prev"))
    with pytest.raises(ClewError, match="I046"):
        loaded.run(feeds_of_decoder(0, 1, 3, state="prev"))


def test_other_sizes_of_0_are_no_part_of_it() -> None:
    model = decoder("prev")
    compiled = clew.compile(
        model, threads=1, diagnostics=clew.Diagnostics(guard=GuardSide.END), cache=False
    )
    for b, s, past in ((0, 1, 0), (2, 1, 0), (0, 1, 3), (2, 0, 3), (1, 2, 4)):
        agrees(compiled.run, model, feeds_of_decoder(b, s, past, state="prev"))
    assert compiled.builds_made > 1


_AGAIN = """
import sys, clew
sys.path.insert(0, sys.argv[2])
from free_models import feeds_of_decoder
compiled = clew.compile(sys.argv[1], threads=1)
assert compiled.from_cache
for past in (0, 3, 0):
    compiled.run(feeds_of_decoder(1, 1, past, state="prev"))
assert compiled.builds_made == 0, compiled.builds_made
assert compiled.build.sizes == {"b": 1, "s": 1, "past": 0}, compiled.build.sizes
assert compiled.builds_made == 1, compiled.builds_made
"""


def test_the_second_process_serves_all_lengths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEW_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "decoder.onnx"
    path.write_bytes(decoder("prev"))
    assert clew.compile(path, threads=1).builds_made == 2
    here = str(Path(__file__).parent)
    subprocess.run([sys.executable, "-c", _AGAIN, str(path), here], check=True, timeout=120)
