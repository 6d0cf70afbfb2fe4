"""Instructions between which data decide sizes: run as one native call they agree with ONNX
Runtime, guarded, saved, on several threads, and where Python has to take over.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import onnxruntime
import pytest

import clew
from clew.runtime.counted import CountedSegment
from clew.runtime.guard import GuardSide
from clew.support.budgets import Budgets, in_force
from clew.support.errors import ClewError

Array = np.ndarray[Any, Any]
HEAD = '<ir_version: 9, opset_import: ["" : 18]>\n'

MASK = f"""{HEAD}agraph (float[n, 4] x, float t) => (float[k] y) {{
    a = Neg (x)
    m = Greater (a, t)
    p = NonZero (m)
    q = Transpose <perm = [1, 0]> (p)
    g = GatherND (a, q)
    h = Exp (g)
    y = Mul (h, t)
}}"""
ROWS = f"""{HEAD}agraph (float[50, 4] x, float t) => (float[k, 4] y, int64[k] r, int64[2] s) {{
    axes = Constant <value = int64[1] {{1}}> ()
    zero = Constant <value = int64[1] {{0}}> ()
    m = ReduceMax <keepdims = 0> (x, axes)
    c = Greater (m, t)
    p = NonZero (c)
    r = Squeeze (p, zero)
    g = Gather (x, r)
    s = Shape (g)
    y = Sin (g)
}}"""
TWICE = f"""{HEAD}agraph (float[40] x, float t) => (float[k] y, float[j] z, float z1) {{
    c = Greater (x, t)
    a = Compress (x, c)
    b = Neg (a)
    u = Cos (b)
    d = Less (b, u)
    e = Compress (u, d)
    y = Sin (a)
    z = Exp (e)
    axes = Constant <value = int64[1] {{0}}> ()
    z1 = ReduceSum <keepdims = 0> (z, axes)
}}"""
UNIQUE = f"""{HEAD}agraph (float[3, n] x, float t) => (
    float[k] y, int64[k] a, int64[j] b, int64[k] c) {{
    r = Round (x)
    u, a, b, c = Unique (r)
    y = Add (u, t)
}}"""
MODELS = {"mask": MASK, "rows": ROWS, "twice": TWICE, "unique": UNIQUE}


def feeds_of(name: str, rows: int, bound: float, seed: int = 0) -> dict[str, Array]:
    """Returns values of which about a share of `1 - bound` is above `bound`."""
    shape = {"mask": (rows, 4), "rows": (50, 4), "twice": (40,), "unique": (3, rows)}[name]
    x = np.random.default_rng(seed).random(shape, np.float32)
    return {"x": -x if name == "mask" else x, "t": np.array(bound, np.float32)}


def natives(compiled: clew.CompiledModel, feeds: dict[str, Array]) -> list[CountedSegment]:
    """Returns the native calls of the program that serves these inputs."""
    program = compiled.build_for(feeds).program
    return [stretch.native for stretch in program.stretches]


def check(
    compiled: clew.CompiledModel, peer: onnxruntime.InferenceSession, feeds: dict[str, Array]
) -> list[Array]:
    """Compares the results with those of ONNX Runtime, and returns them."""
    found = list(compiled.run(feeds).values())
    for ours, theirs in zip(found, peer.run(None, feeds), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    return found


def both(name: str, **options: Any) -> tuple[clew.CompiledModel, onnxruntime.InferenceSession]:
    """Returns a model compiled by clew and by ONNX Runtime."""
    model = onnx.parser.parse_model(MODELS[name])
    peer = onnxruntime.InferenceSession(model.SerializeToString())
    return clew.compile(model, **options), peer


@pytest.mark.parametrize("name", MODELS)
def test_counts_of_all_kinds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The limits of counts grow, results of earlier calls stay, and no element is a valid count.
    compiled, peer = both(name, threads=1)
    ran: list[bool] = []
    run = CountedSegment.run
    monkeypatch.setattr(
        CountedSegment,
        "run",
        lambda self, arrays: (lambda found: (ran.append(found is not None), found)[1])(
            run(self, arrays)
        ),
    )
    kept = []
    for rows, bound in [(5, 0.5), (5, 1.0), (60, 0.0), (3, 0.9), (300, 0.3), (1, 0.5), (60, 0.0)]:
        found = check(compiled, peer, feeds_of(name, rows, bound, rows))
        kept.append((found, [value.copy() for value in found]))
    for found, before in kept:
        for now, then in zip(found, before, strict=True):
            np.testing.assert_array_equal(now, then)
    assert sum(ran) >= 5  # the sum of nothing is left to Python


@pytest.mark.parametrize(
    ("name", "side"),
    [("rows", GuardSide.END), ("unique", GuardSide.END), *(("twice", side) for side in GuardSide)],
)
def test_guarded(name: str, side: GuardSide) -> None:
    guarded, peer = both(name, threads=2, diagnostics=clew.Diagnostics(guard=side), cache=False)
    for rows, bound in [(7, 0.5), (90, 0.1), (3, 1.0)]:
        check(guarded, peer, feeds_of(name, rows, bound))
    assert natives(guarded, feeds_of(name, 7, 0.5))


def test_several_threads_divide_what_the_run_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clew.runtime.counted_tables.DEFAULTS", _Eager())
    compiled, peer = both("mask", threads=2)
    for rows, bound in [(700, 0.1), (700, 0.9), (701, 0.999), (9, 0.5), (700, 1.0)]:
        check(compiled, peer, feeds_of("mask", rows, bound))


class _Eager:
    """A machine on which threads always share work."""

    serial_below = 0.0


@pytest.mark.parametrize("name", ["mask", "twice"])
def test_saved(name: str, tmp_path: Path) -> None:
    compiled, peer = both(name, threads=1)
    check(compiled, peer, feeds_of(name, 6, 0.4))
    compiled.save(tmp_path / "model.clew")
    loaded = clew.load_compiled(tmp_path / "model.clew", threads=1)
    for rows, bound in [(6, 0.4), (6, 1.0), (200, 0.2)]:
        feeds = feeds_of(name, rows, bound)
        for ours, theirs in zip(loaded.run(feeds).values(), peer.run(None, feeds), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_an_index_out_of_range_has_its_layer() -> None:
    text = f"""{HEAD}agraph (float[6] x, float[3] table) => (float[k] y) {{
        m = Greater (x, x2)
        p = NonZero (m)
        q = Squeeze (p)
        y = Gather (table, q)
    }}""".replace("Greater (x, x2)", "Sign (x)")
    model = onnx.parser.parse_model(text)
    model.graph.node[3].name = "look"
    compiled = clew.compile(model, threads=1)
    table = np.arange(3, dtype=np.float32)
    few = np.float32([1, 0, -1, 0, 0, 0])
    np.testing.assert_array_equal(compiled(few, table), table[[0, 2]])
    with pytest.raises(ClewError, match="look") as caught:
        compiled(np.ones(6, np.float32), table)
    assert caught.value.code == "I320"
    np.testing.assert_array_equal(compiled(few, table), table[[0, 2]])


def test_sizes_of_values_from_outside() -> None:
    # The instructions read the branch's result, of which kernels need the size only.
    text = f"""{HEAD}agraph (float[n] x, float t) => (float[j] z, int64[1, k] p) {{
        zero = Constant <value = float {{0}}> ()
        f = Greater (t, zero)
        e = If (f) <
            then_branch = first () => (float[a] e1) {{ e1 = Identity (x) }},
            else_branch = other () => (float[b] e2) {{ e2 = Concat <axis = 0> (x, x) }}
        >
        s = Shape (e)
        c = ConstantOfShape (s)
        z = Exp (c)
        m = Greater (x, t)
        p = NonZero (m)
    }}"""
    compiled = clew.compile(onnx.parser.parse_model(text), threads=1)
    for t, count in [(0.5, 3), (-0.5, 6)]:
        x = np.float32([1, -1, 2])
        z, p = compiled(x, np.float32(t))
        np.testing.assert_array_equal(z, np.ones(count, np.float32))
        np.testing.assert_array_equal(p, np.nonzero(x > t))


@pytest.mark.parametrize("k", ["Shape (b)", "ReduceSum <keepdims = 0> (i)"])
def test_counts_that_must_be_zero(k: str) -> None:
    # No kernel serves a count from 1 up: nothing has as many elements.
    text = f"""{HEAD}agraph (float[0] x, bool[n, 1] b) => (float[k] y, int64[k] z) {{
        i = Cast <to = 7> (b)
        one = Constant <value = int64[1] {{1}}> ()
        n = {k}
        most = ReduceMin <keepdims = 0> (n)
        k = Reshape (most, one)
        y, z = TopK (x, k)
    }}"""
    model = onnx.parser.parse_model(text)
    compiled = clew.compile(model, threads=1, cache=False)
    x = np.zeros(0, np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a build for each size
        found = compiled(x, np.zeros((0, 1), bool))
        assert [value.shape for value in found] == [(0,), (0,)]
        with pytest.raises(ClewError, match="elements"):
            compiled(x, np.ones((2, 1), bool))


def test_budgets_hold() -> None:
    compiled, peer = both("mask", threads=1)
    feeds = feeds_of("mask", 400, 0.0)
    check(compiled, peer, feeds)
    with in_force(Budgets(run_bytes=4096)), pytest.raises(ClewError, match="bytes"):
        compiled.run(feeds)
    check(compiled, peer, feeds)
