"""Lists of tensors of different sizes: flat in loops that carry no other list."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import onnxruntime
import pytest

import clew
from clew.runtime.program import Program, RunHost

FILTER = """<ir_version: 9, opset_import: ["" : 18]>
agraph (seq(float[?, 2]) x, float t) => (float[?, 2] y) {
    go = Constant <value = bool {1}> ()
    none = Constant <value = float[1, 2] {0, 0}> ()
    first = SequenceConstruct (none)
    n = SequenceLength (x)
    s = Loop (n, go, first) <body = inner
        (int64 i, bool c, seq(float[?, 2]) q) => (bool c2, seq(float[?, 2]) q2) {
        c2 = Identity (c)
        a = SequenceAt (x, i)
        m = ReduceMax <keepdims = 0> (a)
        g = Greater (m, t)
        q2 = If (g) <
            then_branch = yes () => (seq(float[?, 2]) r) {
                d = Add (a, a)
                r = SequenceInsert (q, d)
            },
            else_branch = no () => (seq(float[?, 2]) k) { k = Identity (q) }>
    }>
    y = ConcatFromSequence <axis = 0> (s)
}"""
MAP = """<ir_version: 9, opset_import: ["" : 18]>
agraph (seq(float[?, 2]) x) => (seq(float[?, 2]) y) {
    y = SequenceMap (x) <body = each (float[k, 2] a) => (float[k, 2] b) { b = Tanh (a) }>
}"""


def host_steps(program: Program) -> list[str]:
    steps = (i for part in program.walk() for i in part.instructions)
    return [step.label for step in steps if isinstance(step, RunHost)]


@pytest.mark.parametrize(("text", "packs"), [(FILTER, False), (MAP, True)], ids=["filter", "map"])
def test_lists_are_packed_only_if_the_whole_loop_is_flat(text: str, packs: bool) -> None:
    model = onnx.parser.parse_model(text)
    compiled = clew.compile(model, threads=1)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    rng = np.random.default_rng(0)
    for sizes in ([2, 1, 3], [1], [4, 2, 2, 1]):
        feed: dict[str, Any] = {"x": [rng.standard_normal((n, 2)).astype("f4") for n in sizes]}
        if text is FILTER:
            feed["t"] = np.array(0.5, "f4")
        (found,), (expected,) = compiled.run(feed).values(), session.run(None, feed)
        many = isinstance(expected, list)
        for a, b in zip(found if many else [found], expected if many else [expected], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    steps = host_steps(compiled._chain.latest.program)
    assert ("sequence.pack" in steps) == packs
    assert ("sequence.length" in steps) != packs


BRANCH = """<ir_version: 9, opset_import: ["" : 18]>
agraph (seq(float[?, 2]) x, bool[n] takes, int64[n] at) => (seq(float[?, 2]) y, int64[m] l) {
    go = Constant <value = bool {1}> ()
    n = Size (at)
    y, l = Loop (n, go, x) <body = inner
        (int64 i, bool c, seq(float[?, 2]) q) => (bool c2, seq(float[?, 2]) q2, int64 l) {
        c2 = Identity (c)
        take = Gather <axis = 0> (takes, i)
        p = Gather <axis = 0> (at, i)
        one = Constant <value = float[1, 2] {5, 6}> ()
        two = Concat <axis = 0> (one, one)
        q2 = If (take) <then_branch = yes () => (seq(float[?, 2]) r) { r = THEN },
                        else_branch = no () => (seq(float[?, 2]) k) { k = ELSE }>
        l = SequenceLength (q2)
    }>
}"""
SAME = "Identity (q)"


@pytest.mark.parametrize(
    ("then", "orelse"),
    [
        ("SequenceInsert (q, two)", SAME),
        ("SequenceInsert (q, two, p)", SAME),
        (SAME, "SequenceInsert (q, two, p)"),
        ("SequenceErase (q)", SAME),
        (SAME, "SequenceErase (q, p)"),
    ],
)
def test_branches_change_flat_lists(then: str, orelse: str) -> None:
    model = onnx.parser.parse_model(BRANCH.replace("THEN", then).replace("ELSE", orelse))
    compiled = clew.compile(model, threads=1)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    rng = np.random.default_rng(0)
    for takes, at in (
        ([1, 0, 1, 0], [0, 1, 2, -1]),
        ([0, 1, 0, 1], [-3, 0, 1, 1]),
        ([then == SAME] * 3, [7, -9, 4]),  # out of range where the list stays as it is
        ([then != SAME], [0]),
    ):
        pieces = [rng.standard_normal((n, 2)).astype("f4") for n in (2, 0, 3)]
        feed = {"x": pieces, "takes": np.array(takes, bool), "at": np.array(at)}
        found, lengths = compiled.run(feed).values()
        expected, of_each = session.run(None, feed)
        np.testing.assert_array_equal(lengths, of_each)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a, b)
    steps = host_steps(compiled._chain.latest.program)
    assert not any(step in steps for step in ("sequence.insert", "sequence.erase"))


@pytest.mark.parametrize("at", [3, -4, 9])
@pytest.mark.parametrize("name", ["SequenceErase (q, p)", "SequenceInsert (q, two, p)"])
def test_positions_in_taken_branches_are_checked(name: str, at: int) -> None:
    """The position behind the last element is one for an insertion."""
    model = onnx.parser.parse_model(BRANCH.replace("THEN", name).replace("ELSE", SAME))
    compiled = clew.compile(model, threads=1)
    pieces = [np.ones((n, 2), "f4") for n in (2, 0, 3)]
    feed = {"x": pieces, "takes": np.array([True]), "at": np.array([at])}
    if at == 3 and name.startswith("SequenceInsert"):
        assert compiled.run(feed)["l"].tolist() == [4]
        return
    with pytest.raises(clew.ClewError, match=r"I(320|270)"):
        compiled.run(feed)
