"""Sequences of tensors of different sizes, which loops carry as two tensors: drawn programs agree
with ONNX Runtime, also where it raises errors, guarded, saved, and at sizes of 0.
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import onnxruntime
import pytest

import clew
from clew.runtime.guard import GuardSide
from clew.support.errors import ClewError

Array = np.ndarray[Any, Any]
HEAD = '<ir_version: 9, opset_import: ["" : 18]>\n'
# The sizes of elements as the model states them, and the number of their axes.
SHAPES = {"": 0, "?": 1, "?, 3": 2, "2, ?": 2, "?, 2, ?": 3, "?, ?, 2": 3}


def looped(shape: str, steps: str, after: str, outputs: str) -> str:
    """Returns a model of a loop that changes the sequence `q` of an input, given elements of
    another one, `x`.
    """
    element = f"float[{shape}]" if shape else "float[]"
    return f"""{HEAD}agraph (seq({element}) x, seq({element}) first, int64 n) => ({outputs}) {{
        zero = Constant <value = int64 {{0}}> ()
        one = Constant <value = int64 {{1}}> ()
        minus = Constant <value = int64 {{-1}}> ()
        minus2 = Constant <value = int64 {{-2}}> ()
        count = SequenceLength (x)
        last = Loop (n, , first) <body = inner
            (int64 i, bool c, seq({element}) q0) => (bool c2, seq({element}) q) {{
            c2 = Identity (c)
            place = Mod (i, count)
            e = SequenceAt (x, place)
            {steps}
        }}>
        {after}
    }}"""


def drawn_steps(rng: np.random.Generator) -> str:
    """Returns some steps that change a sequence."""
    lines, length = [], int(rng.integers(1, 5))
    for n in range(length):
        q, then = f"q{n}", f"q{n + 1}" if n + 1 < length else "q"
        at = str(rng.choice(["zero", "one", "minus", "minus2", "i"]))
        kind = rng.choice(["append", "front", "insert", "erase", "pop", "grow", "length"])
        lines += {
            "append": [f"{then} = SequenceInsert ({q}, e)"],
            "front": [f"{then} = SequenceInsert ({q}, e, zero)"],
            "insert": [f"{then} = SequenceInsert ({q}, e, {at})"],
            "erase": [f"{then} = SequenceErase ({q}, {at})"],
            "pop": [f"{then} = SequenceErase ({q})"],
            "grow": [
                f"a{n} = SequenceAt ({q}, {at})",
                f"b{n} = Neg (a{n})",
                f"{then} = SequenceInsert ({q}, b{n})",
            ],
            "length": [
                f"l{n} = SequenceLength ({q})",
                f"p{n} = Div (l{n}, one)",
                f"{then} = SequenceInsert ({q}, e, p{n})",
            ],
        }[str(kind)]
    return "\n".join(lines)


def drawn_list(rng: np.random.Generator, shape: str, least: int) -> list[Array]:
    """Returns elements, some of which have sizes of 0 or 1."""
    axes = [part.strip() for part in shape.split(",")] if shape else []
    found = []
    for _ in range(int(rng.integers(least, 5))):
        sizes = [int(rng.choice([0, 1, 2, 5])) if a == "?" else int(a) for a in axes]
        found.append(np.asarray(rng.standard_normal(sizes), "f4"))
    return found


def session(text: str) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(onnx.parser.parse_model(text).SerializeToString(), options)


def compiled(text: str, **options: Any) -> Any:
    return clew.compile(onnx.parser.parse_model(text), **{"threads": 1, **options})


def check_equal(found: Any, wanted: Any) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("number", range(2))
def test_drawn_programs_agree(shape: str, number: int) -> None:
    rng = np.random.default_rng(100 * number + len(shape) + SHAPES[shape])
    text = looped(shape, drawn_steps(rng), "", f"seq(float[{shape}]) last")
    reference, made = session(text), compiled(text)
    for _ in range(8):
        feed: dict[str, Any] = {
            "x": drawn_list(rng, shape, 1),
            "first": drawn_list(rng, shape, 1),
            "n": np.array(rng.integers(0, 6)),
        }
        try:
            (wanted,) = reference.run(None, feed)
        except Exception:  # of several classes
            with pytest.raises(ClewError, match=r"\[(I270|I320|T110)\]"):
                made.run(feed)
            continue
        check_equal(made.run(feed)["last"], wanted)


JOINED = "y = ConcatFromSequence <axis = 0> (last)"
QUEUE = looped(
    "?, 3",
    "a = SequenceAt (q0, zero)\n q1 = SequenceErase (q0, zero)\n t = Tanh (a)\n"
    "q = SequenceInsert (q1, t)",
    JOINED,
    "seq(float[?, 3]) last, float[?, 3] y",
)
NESTED = f"""{HEAD}agraph (float[rows, 3] x, int64[pieces] sizes, int64 n) => (float[k, 3] y) {{
        axis = Constant <value = int64[1] {{0}}> ()
        parts = SplitToSequence <axis = 0> (x, sizes)
        count = SequenceLength (parts)
        last = Loop (n, , parts) <body = outer
            (int64 i, bool c, seq(float[?, 3]) q) => (bool c2, seq(float[?, 3]) q2) {{
            c2 = Identity (c)
            q2 = Loop (count, , q) <body = inner
                (int64 j, bool d, seq(float[?, 3]) r) => (bool d2, seq(float[?, 3]) r2) {{
                d2 = Identity (d)
                e = SequenceAt (r, j)
                t = Tanh (e)
                low = ReduceSum <keepdims = 1> (t, axis)
                r2 = SequenceInsert (r, low, j)
            }}>
        }}>
        y = ConcatFromSequence <axis = 0> (last)
    }}"""
MAPPED = f"""{HEAD}agraph (seq(float[?, 3]) x) => (seq(float[?, 3]) y) {{
        y = SequenceMap (x) <body = each (float[k, 3] a) => (float[k, 3] b) {{
            b = Softmax <axis = 1> (a)
        }}>
    }}"""


def feed_of(text: str, rng: np.random.Generator) -> dict[str, Any]:
    if text is NESTED:
        sizes = rng.integers(0, 4, int(rng.integers(1, 5)))
        x = rng.standard_normal((int(sizes.sum()), 3)).astype("f4")
        return {"x": x, "sizes": sizes, "n": np.array(rng.integers(0, 3))}
    lists = {"x": drawn_list(rng, "?, 3", 1)}
    if text is MAPPED:
        return lists
    return {**lists, "first": drawn_list(rng, "?, 3", 1), "n": np.array(rng.integers(0, 9))}


MODELS = {"queue": QUEUE, "nested": NESTED, "mapped": MAPPED}


@pytest.mark.parametrize("name", MODELS)
def test_they_are_native_calls(name: str, answered: list[bool]) -> None:
    text, rng = MODELS[name], np.random.default_rng(len(name))
    reference, made = session(text), compiled(text)
    for _ in range(12):
        feed = feed_of(text, rng)
        found = made.run(feed)
        for one, wanted in zip(found.values(), reference.run(None, feed), strict=True):
            is_list = isinstance(wanted, list)
            check_equal(one if is_list else [one], wanted if is_list else [wanted])
    assert all(answered)
    assert len(answered) >= 12


@pytest.mark.parametrize("side", list(GuardSide))
@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_touched_beside_buffers(name: str, side: GuardSide) -> None:
    text, rng = MODELS[name], np.random.default_rng(3)
    diagnostics = clew.Diagnostics(guard=side)
    guarded = compiled(text, threads=2, diagnostics=diagnostics, cache=False)
    plain = compiled(text)
    for _ in range(4):
        feed = feed_of(text, rng)
        for one, other in zip(guarded.run(feed).values(), plain.run(feed).values(), strict=True):
            check_equal(*((one, other) if isinstance(one, list) else ([one], [other])))


@pytest.mark.parametrize("name", MODELS)
def test_saved(name: str, tmp_path: Path) -> None:
    text, rng = MODELS[name], np.random.default_rng(4)
    made = compiled(text)
    made.save(tmp_path / "m.clew")
    loaded = clew.load_compiled(tmp_path / "m.clew", threads=1)
    feed = feed_of(text, rng)
    for one, other in zip(loaded.run(feed).values(), made.run(feed).values(), strict=True):
        check_equal(*((one, other) if isinstance(one, list) else ([one], [other])))


def test_results_own_their_memory() -> None:
    rng = np.random.default_rng(5)
    made = compiled(QUEUE)
    for _ in range(4):
        feed = feed_of(QUEUE, rng)
        given = [np.copy(e) for e in feed["first"]]
        before = made.run(feed)
        wanted = [np.copy(e) for e in before["last"]], before["y"].copy()
        again = made.run(feed)
        for array in (*again["last"], again["y"]):
            array[...] = 7
        check_equal(before["last"], wanted[0])
        check_equal([before["y"]], [wanted[1]])
        check_equal(feed["first"], given)


def test_many_small_results_take_linear_time() -> None:
    text = f"{HEAD}agraph (float[n, 2] x) => (seq(float[2]) s) "
    text += "{ s = SplitToSequence <axis = 0, keepdims = 0> (x) }"
    made = compiled(text)
    x = np.arange(40_000, dtype="f4").reshape(-1, 2)
    pieces = made.run({"x": x})["s"]
    assert not any(np.shares_memory(piece, x) for piece in pieces[::1000])
    assert not np.shares_memory(pieces[0], pieces[1])
    np.testing.assert_array_equal(np.stack(pieces), x)


def test_a_queue_of_many_turns_keeps_its_memory() -> None:
    made = compiled(QUEUE)
    feed = feed_of(QUEUE, np.random.default_rng(6))
    feed["n"] = np.array(3000)
    feed["first"] = [np.ones((2, 3), "f4")] * 3
    found = made.run(feed)
    gc.collect()
    assert [e.shape for e in found["last"]] == [(2, 3)] * 3


def test_budgets_hold() -> None:
    made = compiled(QUEUE, limits=clew.Limits(budgets=clew.Budgets(loop_steps=5)))
    feed = feed_of(QUEUE, np.random.default_rng(7))
    made.run({**feed, "n": np.array(4)})
    with pytest.raises(ClewError, match=r"I\d\d\d"):
        made.run({**feed, "n": np.array(50)})


def test_an_empty_sequence_cannot_be_joined() -> None:
    text = looped("?, 3", "q = SequenceErase (q0)", JOINED, "float[?, 3] y")
    made = compiled(text)
    first = [np.ones((2, 3), "f4")] * 2
    feed: dict[str, Any] = {"x": first, "first": first, "n": np.array(2)}
    with pytest.raises(ClewError, match="I272"):
        made.run(feed)
    assert made.run({**feed, "n": np.array(1)})["y"].shape == (2, 3)


def test_sizes_that_do_not_fit_are_an_error() -> None:
    made = compiled(NESTED)
    x = np.ones((5, 3), "f4")
    for sizes in ([2, 2], [6, -1], [6]):
        with pytest.raises(ClewError, match="I274"):
            made.run({"x": x, "sizes": np.array(sizes), "n": np.array(1)})


def test_guarded_loops_that_run_no_kernels() -> None:
    text = f"""{HEAD}agraph (float[n, 1] x, int64 count) => (seq(float[?, 1]) y, int64[2] total) {{
        two = Constant <value = int64 {{2}}> ()
        zeros = Constant <value = int64[2] {{0, 0}}> ()
        first = SplitToSequence <axis = 0> (x, two)
        y, total = Loop (count, , first, zeros) <body = inner
            (int64 i, bool c, seq(float[?, 1]) q0, int64[2] t0) =>
            (bool c2, seq(float[?, 1]) q, int64[2] t) {{
            c2 = Identity (c)
            zero = Constant <value = int64 {{0}}> ()
            e = SequenceAt (q0, i)
            q = SequenceErase (q0, zero)
            size = Shape (e)
            t = Add (t0, size)
        }}>
    }}"""
    guarded = compiled(text, threads=2, diagnostics=clew.Diagnostics(guard=True), cache=False)
    for rows, count in ((0, 0), (3, 0), (3, 1), (0, 0)):
        feed = {"x": np.ones((rows, 1), "f4"), "count": np.array(count)}
        found, wanted = guarded.run(feed), session(text).run(None, feed)
        check_equal(found["y"], wanted[0])
        check_equal(found["total"], wanted[1])


def test_a_guarded_loop_that_only_counts() -> None:
    text = f"""{HEAD}agraph (float[n] x, int64 count) => (int64[1] total) {{
        zeros = Constant <value = int64[1] {{0}}> ()
        total = Loop (count, , zeros) <body = inner
            (int64 i, bool c, int64[1] t0) => (bool c2, int64[1] t) {{
            c2 = Identity (c)
            t = Shape (x)
        }}>
    }}"""
    guarded = compiled(text, threads=1, diagnostics=clew.Diagnostics(guard=True), cache=False)
    for count in (0, 2):
        found = guarded.run({"x": np.ones(3, "f4"), "count": np.array(count)})
        check_equal(found["total"], np.array([3 if count else 0]))
