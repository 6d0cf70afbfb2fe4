"""Inputs whose values decide sizes: one build serves them, with the results of ONNX's reference."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator

import clew
from clew.api.compiled_model import CompiledModel
from clew.ir.parser import parse_module
from clew.passes.name_values import named_values

pytestmark = pytest.mark.usefixtures("shared_kernels")

RNG = np.random.default_rng(0)
HEAD = '<ir_version: 9, opset_import: ["" : 18]>\n'


def compiled(text: str, **options: Any) -> tuple[CompiledModel, ReferenceEvaluator]:
    model = onnx.parser.parse_model(HEAD + text)
    made = clew.compile(
        model, threads=1, cache=False, diagnostics=clew.Diagnostics(guard=True), **options
    )
    return made, ReferenceEvaluator(model)


def check(made: Any, reference: ReferenceEvaluator, feeds: dict[str, Any]) -> None:
    found, expected = made.run(feeds), reference.run(None, feeds)
    for a, b in zip(found.values(), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


RESIZE = """agraph (float[1,3,h,w] x, int64[4] sizes) => (float[n,c,k,l] y) {
    y = Resize <mode = "linear"> (x, , , sizes)
}"""
RESHAPE = """agraph (float[m,n] x, int64[3] shape) => (float[a,b,c] y) {
    e = Exp (x)
    y = Reshape (e, shape)
}"""
SLICE = """agraph (float[n,8] x, int64 begin, int64 count) => (float[m,8] y) {
    axis = Constant <value_ints = [0]> ()
    one = Constant <value_ints = [1]> ()
    from = Reshape (begin, one)
    end = Add (from, count)
    part = Slice (x, from, end, axis)
    y = Exp (part)
}"""
TOP_K = """agraph (float[m,n] x, int64[1] k) => (float[m,l] v, int64[m,l] i) {
    v, i = TopK (x, k)
}"""
RANGE = """agraph (int64 limit) => (float[n] y) {
    zero = Constant <value_int = 0> ()
    one = Constant <value_int = 1> ()
    r = Range (zero, limit, one)
    f = Cast <to = 1> (r)
    y = Sqrt (f)
}"""
EXPAND = """agraph (float[m,n] x, int64[2] shape) => (float[a,b] y) {
    y = Expand (x, shape)
}"""
CASES = [
    (RESIZE, [{"sizes": np.array([1, 3, *s])} for s in ((9, 7), (20, 31), (1, 1), (64, 48))]),
    (RESHAPE, [{"shape": np.array(s)} for s in ((2, 3, 4), (24, 1, 1), (4, 2, 3))]),
    (SLICE, [{"begin": np.array(b), "count": np.array(c)} for b, c in ((1, 2), (3, 5), (2, 1))]),
    (TOP_K, [{"k": np.array([k])} for k in (1, 3, 9, 4)]),
    (RANGE, [{"limit": np.array(n)} for n in (5, 1, 300)]),
]
DATA = {
    RESIZE: {"x": RNG.standard_normal((1, 3, 16, 24)).astype(np.float32)},
    RESHAPE: {"x": RNG.standard_normal((4, 6)).astype(np.float32)},
    SLICE: {"x": RNG.standard_normal((12, 8)).astype(np.float32)},
    TOP_K: {"x": RNG.standard_normal((3, 10)).astype(np.float32)},
    RANGE: {},
}
IDS = ["resize", "reshape", "slice", "top_k", "range"]


@pytest.mark.parametrize(("text", "values"), CASES, ids=IDS)
def test_one_build_serves_all_values(text: str, values: list[dict[str, Any]]) -> None:
    made, reference = compiled(text)
    for given in values:
        check(made, reference, {**DATA[text], **given})
    assert made.builds_made == 1
    assert all(len(i.value_names) == np.size(values[0][i.name]) for i in made.inputs if i.decides)


def test_a_size_of_1_is_expanded_to_a_given_value() -> None:
    """A build assumes that sizes of data and given ones are equal; they may differ at 1."""
    made, reference = compiled(EXPAND)
    for size, given in (((1, 3), (5, 3)), ((1, 3), (5, 1)), ((4, 3), (1, 3)), ((4, 3), (4, 3))):
        x = RNG.standard_normal(size).astype(np.float32)
        check(made, reference, {"x": x, "shape": np.array(given)})


def test_other_values_have_builds_of_their_own() -> None:
    made, reference = compiled(RESHAPE)
    for n, shape in enumerate([(2, 3, 4), (2, -1, 4), (0, 3, -1), (3, 2, 4)]):
        check(made, reference, {**DATA[RESHAPE], "shape": np.array(shape)})
        assert made.builds_made == (1, 2, 3, 3)[n]
    with pytest.raises(clew.ClewError, match="24 elements"):
        made.run({**DATA[RESHAPE], "shape": np.array([5, 2, 2])})


def test_limits_beyond_the_end_are_clamped() -> None:
    made, reference = compiled(SLICE)
    for begin, count in ((1, 2), (8, 90), (-3, 2), (20, 3)):
        check(made, reference, {**DATA[SLICE], "begin": np.array(begin), "count": np.array(count)})


@pytest.mark.parametrize("saved", [True, False])
def test_saved_models_take_all_values(tmp_path: Path, saved: bool) -> None:
    made, reference = compiled(RESIZE)
    if saved:
        check(made, reference, {**DATA[RESIZE], **CASES[0][1][0]})
    made.save(tmp_path / "resize.clew")
    loaded = clew.load_compiled(tmp_path / "resize.clew", threads=1)
    for given in CASES[0][1]:
        check(loaded, reference, {**DATA[RESIZE], **given})
    with pytest.raises(clew.ClewError) as caught:
        loaded.run({**DATA[RESIZE], "sizes": np.array([1, 3, 0, 4])})
    assert caught.value.code in ("I046", "T110")


SCRIPT = """
import sys
import numpy as np
import clew
folder, *sizes = sys.argv[1:]
model = clew.compile(folder + "/resize.onnx", threads=1)
x = np.load(folder + "/x.npy")
np.save(folder + "/y.npy", model(x, np.array([1, 3, *map(int, sizes)])))
print(model.from_cache, model.builds_made)
"""


def test_stored_builds_serve_new_values(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(HEAD + RESIZE)
    onnx.save(model, tmp_path / "resize.onnx")
    np.save(tmp_path / "x.npy", DATA[RESIZE]["x"])
    around = {"CLEW_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": os.pathsep.join(sys.path)}
    for n, sizes in enumerate([(9, 7), (20, 31)]):
        command = [sys.executable, "-c", SCRIPT, str(tmp_path), *map(str, sizes)]
        said = subprocess.run(
            command, env={**os.environ, **around}, capture_output=True, text=True, check=True
        ).stdout
        assert said.split() == [("False", "True")[n], ("1", "0")[n]]
        feeds = {**DATA[RESIZE], "sizes": np.array([1, 3, *sizes])}
        (expected,) = ReferenceEvaluator(model).run(None, feeds)
        np.testing.assert_allclose(np.load(tmp_path / "y.npy"), expected, rtol=1e-5, atol=1e-6)


def test_names_of_values_differ_from_those_of_sizes() -> None:
    module = parse_module(
        """clew 1
        def @main(%s: i64[2], %x: f32[s_0, 9]) -> (f32[?0, ?1],) with outputs=["y"] {
          %0: f32[?0, ?1] = tile(%x, %s, repeats=arg[1])
          %1 = (%0,)
          return %1
        }"""
    )
    named = named_values(module, (0,))
    assert named is not None
    assert named.names == {0: ("s__0", "s__1")}
    assert str(named.module.main.body.type) == "(f32[s_0*s__0, 9*s__1])"


def test_a_value_that_decides_an_axis_has_no_name() -> None:
    made, reference = compiled(
        """agraph (float[3,4] x, int64 axis) => (float[3,4] y) { y = CumSum (x, axis) }"""
    )
    x = RNG.standard_normal((3, 4)).astype(np.float32)
    for n, axis in enumerate((0, 1, 0)):
        check(made, reference, {"x": x, "axis": np.array(axis)})
        assert made.builds_made == (1, 2, 2)[n]
    assert not any(i.value_names for i in made.inputs)


FOUND = """agraph (float[9,8] x, float[u] q, int64[1] times, int64[1] to) => (float[m,8] y) {
    axis = Constant <value_ints = [0]> ()
    step = Constant <value_ints = [STEP]> ()
    found = NonZero (q)
    count = Shape <start = 1> (found)
    from = Mul (count, times)
    part = Slice (x, from, to, axis, step)
    y = Exp (part)
}"""


@pytest.mark.parametrize("step", [1, -2])
def test_a_value_times_a_size_that_the_run_finds(step: int) -> None:
    """No value of the graph had the size once it was part of an attribute."""
    made, reference = compiled(FOUND.replace("STEP", str(step)))
    x = RNG.standard_normal((9, 8)).astype(np.float32)
    for ones, times, to in ((1, 2, 5), (2, 3, 100), (1, 100, 1), (3, 2, 2), (0, 2, 5)):
        q = np.ones(ones, np.float32)
        check(made, reference, {"x": x, "q": q, "times": np.array([times]), "to": np.array([to])})


EMPTY = """agraph (float[9,8] x, int64[2] from) => (float[k,l] y) {
    axes = Constant <value_ints = [1, 0]> ()
    to = Constant <value_ints = [0, 0]> ()
    steps = Constant <value_ints = [-1, 3]> ()
    y = Slice (x, from, to, axes, steps)
}"""


def test_bounds_of_a_slice_without_elements_are_clamped() -> None:
    """There is no kernel whose reads show that a bound lies outside."""
    made, _ = compiled(EMPTY)
    x = np.zeros((9, 8), np.float32)
    for columns, rows in ((7, 2), (100, 100), (2, 1)):
        found = made.run({"x": x, "from": np.array([columns, rows])})["y"]
        assert found.shape == x[rows:0:3, columns:0:-1].shape
