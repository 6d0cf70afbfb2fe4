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
            then_branch = yes () => (seq(float[?, 2]) r) { r = SequenceInsert (q, a) },
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
