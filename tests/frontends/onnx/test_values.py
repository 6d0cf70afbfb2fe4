"""Sequences, optionals, tensors of unknown rank and control flow over them: against ONNX Runtime,
compiled, interpreted, saved and loaded.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper, parser

import clew
from clew.frontends.onnx import load
from clew.ir.interpret import interpret
from clew.ir.parser import parse_module
from clew.ir.printer import print_module
from clew.runtime.program import RunHost
from clew.support.errors import ClewError

X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2
SPARSE = np.where(np.arange(20).reshape(5, 4) % 3 == 0, 1.5, 0).astype(np.float32)


def model(text: str, opset: int = 21) -> ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>\n{text}')


def same(found: Any, want: Any) -> None:
    if isinstance(want, list):
        assert isinstance(found, list)
        assert len(found) == len(want)
        for a, b in zip(found, want, strict=True):
            same(a, b)
    elif want is None:
        assert found is None
    else:
        assert found.dtype == want.dtype
        assert found.shape == want.shape
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


def agrees(text: str, feeds: dict[str, Any], tmp_path: Path) -> tuple[str, ...]:
    """Holds a model against ONNX Runtime in all ways to run it; returns its host operators."""
    made = model(text)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(made.SerializeToString(), options)
    names = [o.name for o in session.get_outputs()]
    want = dict(zip(names, session.run(None, feeds), strict=True))
    compiled = clew.compile(made, threads=1)
    compiled.run(feeds)
    compiled.save(tmp_path / "model.clew")
    loaded = clew.load_compiled(tmp_path / "model.clew", threads=1)
    module = compiled.module
    ways = [compiled.run(feeds), loaded.run(feeds), interpret(module, feeds)]
    printed = print_module(load(made))
    assert print_module(parse_module(printed)) == printed
    for found in ways:
        for name in names:
            same(found[name], want[name])
    checked = compiled.checked([feeds[n] for n in compiled.input_names])
    steps = [i for p in compiled.served_for(checked).program.walk() for i in p.instructions]
    return tuple(i.label for i in steps if isinstance(i, RunHost))


def code(text: str, feeds: dict[str, Any] | None = None) -> str:
    """Returns the code of the error that a model raises, when it is compiled or run."""
    with pytest.raises(ClewError) as caught:
        clew.compile(model(text), threads=1).run(feeds or {})
    return caught.value.code


# --- sequences ------------------------------------------------------------------------------------

GROWS = """{ e = SequenceEmpty<dtype=1>()
  q = Loop(n, , e) <body = b(int64 i, bool c, seq(float[?,?]) v) => (bool c2, seq(float[?,?]) v2)
    { c2 = Identity(c) f = Cast<to=1>(i) t = Add(x, f) v2 = SequenceInsert(v, t) }>
  r = ConcatFromSequence<axis=0>(q) y = Relu(r) }"""


def test_a_list_that_grows_in_a_loop(tmp_path: Path) -> None:
    text = f"g (float[2,3] x, int64 n) => (float[?,?] y) {GROWS}"
    assert "sequence.join_rows" in agrees(text, {"x": X, "n": np.array(3)}, tmp_path)


def test_of_a_loop_of_known_length_no_list_is_left(tmp_path: Path) -> None:
    text = f"g (float[2,3] x) => (float[?,?] y) <int64 n = {{3}}> {GROWS}"
    assert agrees(text, {"x": X}, tmp_path) == ()


SPLITS = "{ q = SplitToSequence<axis=0>(x, two) a = SequenceAt(q, p) y = Relu(a) }"


def test_of_a_known_split_no_list_is_left(tmp_path: Path) -> None:
    x = np.arange(15, dtype=np.float32).reshape(5, 3) - 7
    known = f"g (float[5,3] x) => (float[?,?] y) <int64 two = {{2}}, int64 p = {{-1}}> {SPLITS}"
    assert agrees(known, {"x": x}, tmp_path) == ()
    text = f"g (float[5,3] x, int64 p) => (float[?,?] y) <int64 two = {{2}}> {SPLITS}"
    assert "sequence.at" in agrees(text, {"x": x, "p": np.array(-1)}, tmp_path)


def test_elements_of_different_rank(tmp_path: Path) -> None:
    text = """g (float[2,3] x, float[4] z, int64 p) => (float[?] y)
    { q = SequenceConstruct(x, z) a = SequenceAt(q, p) r = Relu(a) y = Add(r, r) }"""
    for p in (0, 1):
        feeds = {"x": X, "z": np.ones(4, np.float32), "p": np.array(p)}
        assert "onnx.layer" in agrees(text, feeds, tmp_path)


UNRANKED = "q = SequenceConstruct(x, z) a = SequenceAt(q, p)"


def test_a_layer_of_unknown_rank_whose_result_nobody_can_tell() -> None:
    made = model(f"""g (float[2,3] x, float[4] z, int64 p) => (float[?,?,?,?] y)
    {{ {UNRANKED} y = ai.onnx.preview.FlexAttention(a, a, a) }}""")
    made.opset_import.append(helper.make_opsetid("ai.onnx.preview", 1))
    with pytest.raises(ClewError, match=r"U025.*unknown before the run"):
        load(made)


def test_maps_of_scores_of_unknown_rank() -> None:
    made = model(f"""g (float[2,3] x, float[3] z, int64 p) => (seq(map(int64, float)) y)
    {{ {UNRANKED} y = ai.onnx.ml.ZipMap <classlabels_int64s=[7,8,9]> (a) }}""")
    made.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    feeds = {"x": X, "z": np.ones(3, np.float32), "p": np.array(0)}
    found = clew.compile(made, threads=1).run(feeds)
    assert found["y"] == [dict(zip((7, 8, 9), row, strict=True)) for row in X.tolist()]


def test_a_layer_of_unknown_rank_has_a_type_for_each_input() -> None:
    text = f"g (float[2,3] x, float[4] z, int64 p) => (float[?] y) {{ {UNRANKED} y = Relu(a) }}"
    written = print_module(load(model(text)))
    with pytest.raises(ClewError, match=r"T157.*1 inputs for 2 types"):
        parse_module(written.replace("inputs=[", 'inputs=["f32[*]", '))


def test_map_over_lists_of_different_shapes() -> None:
    text = """g (seq(float[?,?]) q, float[1,3] x) => (seq(float[?,?]) y, seq(float) z)
    { y, z = SequenceMap(q, x) <body = b(float[?,?] a, float[1,3] k) => (float[?,?] o, float p)
      { o = Add(a, k) p = ReduceMax<keepdims=0>(o) }> }"""
    compiled = clew.compile(model(text), threads=1)
    row = np.ones((1, 3), np.float32)
    found = compiled.run({"q": [X, X[:1]], "x": row})
    same(found["y"], [X + row, X[:1] + row])
    same(found["z"], [np.max(X + row), np.max(X[:1] + row)])
    assert compiled.run({"q": [], "x": row}) == {"y": [], "z": []}


@pytest.mark.parametrize(
    ("wanted", "body", "feeds"),
    [
        ("I270", "{ y = SequenceAt(q, p) }", {"q": [X], "p": np.array(1)}),
        ("I270", "{ y = SequenceAt(q, p) }", {"q": [], "p": np.array(0)}),
        ("I270", "{ y = SequenceErase(q, p) }", {"q": [X], "p": np.array(-2)}),
        ("I270", "{ a = SequenceErase(q, p) y = SequenceErase(a) }", {"q": [X], "p": np.array(0)}),
        ("I272", "{ y = ConcatFromSequence<axis=0>(q) }", {"q": [X, X[:, :1]], "p": np.array(0)}),
        ("I272", "{ y = ConcatFromSequence<axis=0>(q) }", {"q": [], "p": np.array(0)}),
        (
            "I274",
            "{ a = SequenceAt(q, p) y = SplitToSequence(a, z) }",
            {"q": [X], "p": np.array(0)},
        ),
        ("I042", "{ y = SequenceAt(q, p) }", {"q": [X[0]], "p": np.array(0)}),
        ("I043", "{ y = SequenceAt(q, p) }", {"q": [X.astype("f8")], "p": np.array(0)}),
        ("I043", "{ y = SequenceAt(q, p) }", {"q": X, "p": np.array(0)}),
        ("I042", "{ y = SequenceAt(q, p) }", {"q": [[1.0]], "p": np.array(0)}),
        ("I043", "{ y = SequenceAt(q, p) }", {"q": None, "p": np.array(0)}),
        ("T152", "{ i = Cast<to=7>(w) y = SequenceInsert(q, i) }", {}),
        ("M012", "{ y = Relu(q) }", {}),
    ],
)
def test_mistakes_with_lists_have_codes(wanted: str, body: str, feeds: dict[str, Any]) -> None:
    ends = "<int64 z = {0}, float[2] w = {1.0, 2.0}>"
    text = f"g (seq(float[?,?]) q, int64 p) => (float[?,?] y) {ends} {body}"
    assert code(text, feeds) == wanted


def test_an_index_outside_a_known_list_is_an_error_of_the_run() -> None:
    text = """g (float[2,3] x) => (float[2,3] y) <int64 p = {5}>
    { q = SequenceConstruct(x) y = SequenceAt(q, p) }"""
    compiled = clew.compile(model(text), threads=1)
    with pytest.raises(ClewError, match="I270") as caught:
        compiled(X)
    assert caught.value.layer == "SequenceAt_1"


def test_text_in_lists() -> None:
    text = """g (seq(string[?]) q, int64 p) => (string[?] y, seq(string[?]) z)
    { y = SequenceAt(q, p) z = SequenceInsert(q, y, p) }"""
    compiled = clew.compile(model(text), threads=1)
    found = compiled.run({"q": [np.array(["a", "b"]), np.array(["ü"], object)], "p": np.array(1)})
    assert found["y"].tolist() == ["ü"]
    assert [part.tolist() for part in found["z"]] == [["a", "b"], ["ü"], ["ü"]]
    with pytest.raises(ClewError, match="I043"):
        compiled.run({"q": [np.array([1])], "p": np.array(0)})


# --- optionals ------------------------------------------------------------------------------------

MAYBE = """g (optional(float[2,3]) o) => (bool h, float[2,3] y)
{ h = OptionalHasElement(o) y = If(h) <
    then_branch = a() => (float[2,3] r) { v = OptionalGetElement(o) r = Exp(v) },
    else_branch = b() => (float[2,3] r) { r = Identity(z) }> }"""


def test_what_may_be_absent() -> None:
    text = MAYBE.replace("\n{", "\n<float[2,3] z = {0, 0, 0, 0, 0, 0}>\n{", 1)
    compiled = clew.compile(model(text), threads=1)
    there, absent = compiled.run({"o": X}), compiled.run({"o": None})
    same([there["h"], there["y"]], [np.array(True), np.exp(X)])
    same([absent["h"], absent["y"]], [np.array(False), np.zeros_like(X)])
    with pytest.raises(ClewError, match="I042"):
        compiled.run({"o": [X]})


def test_nothing_has_no_value() -> None:
    text = "g (optional(float[2,3]) o) => (float[2,3] y) { y = OptionalGetElement(o) }"
    assert code(text, {"o": None}) == "I273"


def test_an_optional_as_output_is_none() -> None:
    text = "g (optional(seq(float[2,3])) o) => (optional(seq(float[2,3])) y) { y = Identity(o) }"
    compiled = clew.compile(model(text), threads=1)
    assert compiled.run({"o": None}) == {"y": None}
    same(compiled.run({"o": [X]})["y"], [X])


# --- If -------------------------------------------------------------------------------------------

UNLIKE = """{ y0 = If(c) <then_branch = a() => (float[?,?] r) { r = Exp(x) },
  else_branch = b() => (float r) { r = ReduceSum<keepdims=0>(x) }> y = Relu(y0) }"""


@pytest.mark.parametrize("holds", [True, False])
def test_branches_of_different_rank(holds: bool, tmp_path: Path) -> None:
    """A flag that is an input decides which graph it is; one that is computed, what runs."""
    by_input = f"g (float[2,3] x, bool c) => (float[?] y) {UNLIKE}"
    assert agrees(by_input, {"x": X, "c": np.array(holds)}, tmp_path) == ()
    computed = f"g (float[2,3] x, float[1,1] t) => (float[?] y) {UNLIKE}".replace(
        "{ y0", "{ s = ReduceSum<keepdims=0>(t) c = Cast<to=9>(s) y0"
    )
    feeds = {"x": X, "t": np.full((1, 1), holds, np.float32)}
    assert "onnx.layer" in agrees(computed, feeds, tmp_path)


def test_a_branch_that_fits_no_shapes_is_refused_only_when_taken() -> None:
    text = """g (float[2,3] x, float[1,1] t) => (float[?,?] y)
    { s = ReduceSum<keepdims=0>(t) c = Cast<to=9>(s)
      y = If(c) <then_branch = a() => (float[?,?] r) { r = MatMul(x, x) },
                 else_branch = b() => (float[?,?] r) { r = Relu(x) }> }"""
    compiled = clew.compile(model(text), threads=1)
    same(compiled(X, np.zeros((1, 1), np.float32)), np.maximum(X, 0))
    with pytest.raises(ClewError, match="T103"):
        compiled(X, np.ones((1, 1), np.float32))


def test_nested_branches_and_outer_values(tmp_path: Path) -> None:
    text = """g (float[2,3] x, bool c, bool d) => (float[?,?] y)
    { y, z = If(c) <
        then_branch = a() => (float[?,?] r, float[?,?] s) {
          r = If(d) <then_branch = aa() => (float[?,?] q) { q = Exp(x) },
                     else_branch = bb() => (float[?,?] q) { q = Identity(x) }>
          s = Neg(x) },
        else_branch = b() => (float[?,?] r, float[?,?] s) { r = Identity(x) s = Abs(x) }> }"""
    for c in (True, False):
        agrees(text, {"x": X, "c": np.array(c), "d": np.array(not c)}, tmp_path)


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ("T108", "bool[2] c"),
        ("T005", "float c"),
    ],
)
def test_conditions_that_are_none(wanted: str, text: str) -> None:
    branches = """{ y = If(c) <then_branch = a() => (float[?,?] r) { r = Exp(x) },
      else_branch = b() => (float[?,?] r) { r = Relu(x) }> }"""
    assert code(f"g (float[2,3] x, {text}) => (float[?,?] y) {branches}") == wanted


# --- Loop -----------------------------------------------------------------------------------------

DOUBLES = """b(int64 i, bool c, float[?,?] v) => (bool c2, float[?,?] v2, float s)
    { c2 = Identity(c) v2 = Concat<axis=0>(v, v) s = ReduceSum<keepdims=0>(v2) }"""


@pytest.mark.parametrize("trips", [0, 1, 3])
def test_state_that_grows(trips: int, tmp_path: Path) -> None:
    text = f"""g (float[2,3] x, int64 n) => (float[?,?] y, float[?] s)
    {{ y, s = Loop(n, , x) <body = {DOUBLES}> }}"""
    agrees(text, {"x": X, "n": np.array(trips)}, tmp_path)


@pytest.mark.parametrize("go_on", [True, False])
def test_a_condition_alone_ends_a_loop(go_on: bool, tmp_path: Path) -> None:
    text = """g (float[2,3] x, bool k) => (float[?,?] y) <int64 five = {5}>
    { y = Loop(, k, x) <body = b(int64 i, bool c, float[2,3] v) => (bool c2, float[2,3] v2)
      { c2 = Less(i, five) v2 = Add(v, v) }> }"""
    agrees(text, {"x": X, "k": np.array(go_on)}, tmp_path)


def test_a_rank_that_grows() -> None:
    text = """g (float[2,3] x, int64 n) => (float[?] y) <int64[1] ax = {0}>
    { y = Loop(n, , x) <body = b(int64 i, bool c, float[?] v) => (bool c2, float[?] v2)
      { c2 = Identity(c) z = Unsqueeze(v, ax) v2 = Neg(z) }> }"""
    compiled = clew.compile(model(text), threads=1)
    same(compiled(X, np.array(3)), -X[None, None, None])
    same(compiled(X, np.array(0)), X)


def test_nested_loops_over_outer_values(tmp_path: Path) -> None:
    text = """g (float[2,3] x, int64 n) => (float[?,?] y)
    { y = Loop(n, , x) <body = b(int64 i, bool c, float[2,3] v) => (bool c2, float[2,3] v2)
      { c2 = Identity(c)
        v2 = Loop(i, , v) <body = bb(int64 j, bool d, float[2,3] w) => (bool d2, float[2,3] w2)
          { d2 = Identity(d) f = Cast<to=1>(j) a = Add(w, f) w2 = Add(a, x) }> }> }"""
    agrees(text, {"x": X, "n": np.array(4)}, tmp_path)


def test_a_slice_by_the_iteration(tmp_path: Path) -> None:
    text = """g (float[5,4] x, int64 n) => (float[?,?] s) <int64[1] one = {1}, int64[1] zero = {0}>
    { u, s = Loop(n, , x) <body = b(int64 i, bool c, float[5,4] v)
      => (bool c2, float[5,4] v2, float[?] s)
      { c2 = Identity(c) v2 = Add(v, v) k = Add(i, one) j = Slice(v2, zero, k, zero)
        s = ReduceSum<keepdims=0>(j, zero) }> }"""
    agrees(text, {"x": SPARSE, "n": np.array(12)}, tmp_path)  # more values than are compiled for


def test_initializers_of_a_body() -> None:
    values = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Add", ["v", "k"], ["v2"]), helper.make_node("Identity", ["c"], ["c2"])],
        "body",
        [values("i", 7, []), values("c", 9, []), values("v", 1, [2, 3])],
        [values("c2", 9, []), values("v2", 1, [2, 3])],
        [numpy_helper.from_array(np.full(3, 2, np.float32), "k")],
    )
    node = helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)
    ends = [values("x", 1, [2, 3]), values("n", 7, [])], [values("y", TensorProto.FLOAT, [2, 3])]
    graph = helper.make_graph([node], "g", *ends)
    opsets = [helper.make_opsetid("", 21)]
    compiled = clew.compile(helper.make_model(graph, opset_imports=opsets, ir_version=8), threads=1)
    same(compiled(X, np.array(3)), X + 6)


@pytest.mark.parametrize("limit", ["int64 n", ""])
def test_stacks_of_different_shapes(limit: str) -> None:
    body = """{ u, y = Loop(n, , x) <body = b(int64 i, bool c, float[?,?] v)
      => (bool c2, float[?,?] v2, float[?,?] s)
      { c2 = Identity(c) v2 = Concat<axis=0>(v, v) s = Identity(v2) }> }"""
    known = "" if limit else "<int64 n = {3}>"
    inputs = ", ".join(filter(None, ["float[2,3] x", limit]))
    feeds = {"x": X} | ({"n": np.array(3)} if limit else {})
    wanted = "I271" if limit else "I272"
    assert code(f"g ({inputs}) => (float[?,?,?] y) {known} {body}", feeds) == wanted


@pytest.mark.parametrize(
    ("wanted", "results", "body"),
    [
        ("M012", "bool c2", "c2 = Identity(c)"),
        ("M012", "bool c2, int64[2,3] v2", "c2 = Identity(c) v2 = Cast<to=7>(v)"),
        ("T007", "int64 c2, float[2,3] v2", "c2 = Identity(i) v2 = Add(v, v)"),
        (
            "T008",
            "bool c2, float[2,3] v2, seq(float[2,3]) s",
            "c2 = Identity(c) v2 = Add(v, v) s = SequenceConstruct(v)",
        ),
    ],
)
def test_bodies_that_are_none(wanted: str, results: str, body: str) -> None:
    text = f"""g (float[2,3] x, int64 n) => (float[?,?] y)
    {{ y, s = Loop(n, , x) <body = b(int64 i, bool c, float[2,3] v) => ({results})
      {{ {body} }}> }}"""
    if wanted != "T008":
        text = text.replace("y, s = Loop", "y = Loop")
    assert code(text) == wanted


def test_a_loop_without_end_can_be_interrupted() -> None:
    text = """g (float[2,3] x) => (float[?,?] y)
    { y = Loop(, , x) <body = b(int64 i, bool c, float[2,3] v) => (bool c2, float[2,3] v2)
      { c2 = Identity(c) v2 = Mul(v, v) }> }"""
    compiled = clew.compile(model(text), threads=1)
    ended = threading.Event()

    def interrupt() -> None:  # again after a while: one that meets a finalizer is lost
        wait = 0.1
        while not ended.wait(wait):
            os.kill(os.getpid(), signal.SIGINT)
            wait = 2.0

    # A shell has jobs in the background ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=interrupt, daemon=True).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            compiled(X)
    finally:
        ended.set()
        signal.signal(signal.SIGINT, before)


def test_a_huge_count_is_not_written_out() -> None:
    text = (
        f"g (float[2,3] x) => (float[?,?] y) <int64 n = {{4611686018427387904}}> {GROWS}".replace(
            "c2 = Identity(c)", "five = Constant<value_int=5>() c2 = Less(i, five)"
        )
    )
    assert clew.compile(model(text), threads=1)(X).shape == (12, 3)


# --- functions ------------------------------------------------------------------------------------


def test_functions_with_attributes_absent_inputs_and_control_flow() -> None:
    text = """<ir_version: 9, opset_import: ["" : 21, "d" : 1]>
    g (float[2,3] x, float[3] w) => (float[2,3] y, float[2,3] z, float[2,3] u)
    { y = d.outer <a = 2.0> (x, w) z = d.outer (x) u = d.again (x, w) }
    <domain: "d", opset_import: ["" : 21, "d" : 1]>
    outer <a: float = 3.0> (x, w) => (y) { t = d.inner <k: float = @a> (x, w) y = Neg(t) }
    <domain: "d", opset_import: ["" : 21]>
    inner <k> (x, w) => (y)
    { kk = Constant <value_float: float = @k> () s = Mul(x, kk) h = OptionalHasElement(w)
      y = If(h) <then_branch = a() => (r) { r = Add(s, w) },
                 else_branch = b() => (r) { r = Identity(s) }> }
    <domain: "d", opset_import: ["" : 21]>
    again (x, w) => (y)
    { n = Constant <value_int = 2> () o = Constant <value_int = 1> () c = Cast <to = 9> (o)
      y = Loop(n, c, x) <body = b(i, k, v) => (k2, v2) { k2 = Identity(k) v2 = Add(v, w) }> }"""
    compiled = clew.compile(parser.parse_model(text), threads=1)
    w = np.arange(3, dtype=np.float32)
    y, z, u = compiled(X, w)
    same([y, z, u], [-(2 * X + w), -3 * X, X + w + w])


# -- sizes with data-dependent pads ---------------------------------------------------------------

LATE = [
    """(float[?,?] y) { rows = ReduceSum<keepdims=0>(x, a) nz = NonZero(rows) i = Squeeze(nz, z)
    gx = Gather<axis=0>(x, i) t = Transpose(x) y = MatMul(gx, t) }""",
    """(float[?,?] y) { nz = NonZero(x) s = Shape(nz) e = Expand(w, s)
    f = Cast<to=1>(nz) y = Add(e, f) }""",
    """(float[?,?] y) { nz = NonZero(x) s = Shape(nz) e = ConstantOfShape<value=float[1]{2.0}>(s)
    f = Cast<to=1>(nz) y = Add(e, f) }""",
    """(float[?] y) { nz = NonZero(x) t = Transpose(nz) q = Reshape(t, m) s = Shape(q)
    r = Cast<to=1>(q) u = Reshape(r, s) y = Relu(u) }""",
    "(int64[?] y) { nz = NonZero(x) s = Shape<start=1>(nz) n = Squeeze(s) y = Range(o, n, p) }",
    """(float[?,?] y) { nz = NonZero(x) s = Shape<start=1>(nz) d = Sub(s, s)
    q = Concat<axis=0>(d, a, s, d) y = Pad(x, q) }""",
    """(float[?,?] y) { nz = NonZero(x) s = Shape(nz) b = Cast<to=9>(p)
    y = If(b) <then_branch = t() => (float[?,?] r)
    { e = ConstantOfShape<value=float[1]{2.0}>(s) r = Relu(e) },
    else_branch = f() => (float[?,?] r) { r = Cast<to=1>(nz) }> }""",
    """(float[?,?] y) { nz = NonZero(x) s = Shape(nz) init = Expand(w, s)
    y = Loop(k, , init) <body = b(int64 i, bool c, float[?,?] v) => (bool c2, float[?,?] v2)
    { c2 = Identity(c) e = ConstantOfShape<value=float[1]{2.0}>(s) v2 = Add(v, e) }> }""",
]


@pytest.mark.parametrize("body", LATE)
def test_sizes_of_what_was_found(body: str, tmp_path: Path) -> None:
    """Sizes that depend on values, used in attributes far from what tells them; saved as well."""
    ends = """<int64[1] a = {1}, int64[1] z = {0}, float[1] w = {1.5}, int64[1] m = {-1},
    int64 o = {0}, int64 p = {1}>"""
    text = f"g (float[5,4] x, int64 k) => {body.replace('{', ends + '{', 1)}"
    agrees(text, {"x": SPARSE, "k": np.array(2)}, tmp_path)
